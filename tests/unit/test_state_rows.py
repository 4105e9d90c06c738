"""Rows of a state in the order of their positions: `fucina.cache.rows`."""

from __future__ import annotations

import numpy as np
import pytest

from fucina.cache import Kv, Latent, Layout
from fucina.cache.rows import append_rows, held_from, pack_rows, recurrent_at, recurrent_positions, row_bytes
from fucina.errors import KvCacheOverflow, KvCacheShapeMismatch
from tests.state_models import CASE_NAMES, CASES, KINDS, PARTS, check_claims, extend, fail, image, toy_state

TOKENS = [int(t) for t in np.random.default_rng(3).integers(0, 1000, 300)]


@pytest.mark.parametrize(("parts", "dtype"), CASES, ids=CASE_NAMES)
def test_rows_go_into_a_state_of_any_capacity(parts, dtype):
    source = toy_state(parts, dtype=dtype)
    for end in (40, 70, 150):
        extend(source, TOKENS[:end])
    rows = pack_rows(source, 0, 150)
    assert rows.shape == (150, row_bytes(source.layout, dtype))
    for capacity in (150, 200, 1000):
        state = toy_state(parts, capacity, dtype)
        append_rows(state, [rows[:64], rows[64:64], rows[64:]], held_from(source), recurrent_at(source, 150))
        assert state.len == 150
        for slot, where in enumerate(state.layout.slots):
            if where.kind != "recurrent":
                first = max(held_from(state)[where.area], held_from(source)[where.area])
                for mine, theirs in zip(state.read(slot, first, 150), source.read(slot, first, 150), strict=True):
                    assert np.array_equal(mine, theirs)
        check_claims(state, TOKENS)
        extend(state, TOKENS[: min(capacity, 200)])
        check_claims(state, TOKENS)


@pytest.mark.parametrize("parts", KINDS.values(), ids=KINDS)
def test_rows_continue_those_that_a_state_has(parts):
    source, state = toy_state(parts), toy_state(parts)
    extend(source, TOKENS[:90])
    for start in (0, 17, 64, 89):
        state.reset()
        extend(state, TOKENS[:start])
        low = tuple(min(at, start) if start >= at else at for at in held_from(source))
        append_rows(state, [pack_rows(source, start, 90)], low, recurrent_at(source, 90))
        check_claims(state, TOKENS)
        extend(state, TOKENS[:250])
        check_claims(state, TOKENS)


def test_a_record_is_slot_after_slot_keys_then_values():
    state = toy_state((Kv(2, 3, 2), Latent(5, 3, 1)), dtype="f16")
    extend(state, TOKENS[:3])
    kv_k, kv_v = (plane[:, :3].astype("<f2") for plane in state.planes(0))
    latent = state.planes(1)[0][:, :3].astype("<f2")
    expected = b"".join(plane[head, 1].tobytes() for plane in (kv_k, kv_v, latent) for head in range(len(plane)))
    assert pack_rows(state, 1, 2).tobytes() == expected
    assert row_bytes(state.layout, "f16") == len(expected) == (2 * 5 + 5) * 2
    assert row_bytes(state.layout, "f32") == 2 * len(expected)


def test_what_is_missing_or_does_not_fit_is_refused():
    source = toy_state()
    extend(source, TOKENS[:150])
    rows, bank = pack_rows(source, 0, 150), recurrent_at(source, 150)
    state = toy_state(capacity=160)
    extend(state, TOKENS[:20])
    before = image(state)
    for pieces, low, recurrent, error, message in (
        ([rows], held_from(source), bank, KvCacheOverflow, "170 rows pass the capacity of 160"),
        ([rows[:, :-1]], held_from(source), bank, KvCacheShapeMismatch, "expected rows uint8"),
        ([rows[:130]], held_from(source), None, KvCacheShapeMismatch, "recurrent parts float32 .* got none"),
        ([rows[:130]], held_from(source), bank[1:], KvCacheShapeMismatch, "recurrent parts float32"),
        ([rows[:80]], held_from(source), bank, KvCacheShapeMismatch, "a window from .* held from"),
    ):
        with pytest.raises(error, match=message):
            append_rows(state, pieces, low, recurrent)
        assert image(state) == before
    with pytest.raises(KvCacheShapeMismatch, match="positions 0 to 151 were asked for, the state holds 150"):
        pack_rows(source, 0, 151)
    with pytest.raises(KvCacheShapeMismatch, match=r"at 7 were asked for, the state holds them at \(150,\)"):
        recurrent_at(source, 7)


def test_recurrent_parts_are_given_at_checkpoints_too():
    state = toy_state(KINDS["recurrent"])
    extend(state, TOKENS[:30])
    state.checkpoint()
    extend(state, TOKENS[:80])
    assert recurrent_positions(state) == (30, 80)
    other = toy_state(KINDS["recurrent"])
    append_rows(other, [pack_rows(state, 0, 30)], (), recurrent_at(state, 30))
    check_claims(other, TOKENS)
    assert recurrent_at(toy_state(PARTS[:1]), 0) is None
    assert recurrent_positions(toy_state(PARTS[:1])) == ()


def test_an_open_transaction_is_not_part_of_what_is_packed():
    state = toy_state()
    extend(state, TOKENS[:145])
    right = pack_rows(state, 0, 145).tobytes()
    fail(state, 120, 15)
    assert pack_rows(state, 0, 145).tobytes() == right
    assert Layout(PARTS).recurrent
