"""The state of a stream: layout, transactions, ways back, copies."""

from fractions import Fraction
from math import floor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fucina.cache import MAX_ROWS, Kv, Latent, Layout, Recurrent, State
from fucina.cache.dtypes import DTYPES
from fucina.cache.memory import bytes_held
from fucina.cache.rows import row_bytes
from fucina.errors import CannotRewind, KvCacheOverflow, KvCacheShapeMismatch, NoOpenPass
from tests.state_models import CASE_NAMES, CASES, KINDS, PARTS, check_claims, extend, fail, run_pass, toy_state, wide

TOKENS = [int(t) for t in np.random.default_rng(0).integers(0, 1000, 300)]


def states(*names):
    return pytest.mark.parametrize("parts", [KINDS[n] for n in names or KINDS], ids=names or list(KINDS))


# --- layout -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f16", "f32", "q8_0"])
@pytest.mark.parametrize("capacity", [1, 63, 64, 65, 300])
def test_addresses_follow_the_documented_formulas(capacity, dtype):
    state = toy_state(wide(PARTS) if dtype == "q8_0" else PARTS, capacity, dtype)
    size = {"f16": lambda n: 2 * n, "f32": lambda n: 4 * n, "q8_0": lambda n: n // 32 * 34}[dtype]
    state.begin(1)
    words = state.words()
    assert len(words) == 2 * len(state.layout.areas) <= 14
    for slot, where in enumerate(state.layout.slots):
        base, stride = words[2 * where.area : 2 * where.area + 2]
        if where.kind == "recurrent":
            for address, array in zip((base, stride), state.recurrent(slot), strict=True):
                assert array.ctypes.data == address + 4 * where.k_offset and array.ctypes.data % 64 == 0
            continue
        part, (k, v) = where.part, state.planes(slot)
        assert stride % 64 == 0 and base % 64 == 0 and k.shape[1] == v.shape[1] == stride
        for head in range(len(k)):
            for position in {0, capacity // 2, capacity - 1}:
                row = position % stride
                at = base + size(stride * (where.k_offset + head * part.k_dim) + row * part.k_dim)
                assert k[head, row].ctypes.data == at
                at = base + size(stride * (where.v_offset + head * part.v_dim) + row * where.v_step + where.v_at)
                assert v[head, row].ctypes.data == at


def test_areas_depend_on_the_family_alone():
    layout = Layout(PARTS, 8)
    assert [(a.kind, a.window) for a in layout.areas] == [("full", 0), ("ring", 20), ("ring", 60), ("recurrent", 0)]
    assert [s.area for s in layout.slots] == [0, 1, 3, 0, 2, 3, 1]
    assert layout.strides(10_000) == (10_048, 64, 128) and layout.strides(30) == (64, 64, 64)
    assert layout == Layout(list(PARTS), 8) != Layout(PARTS, 9) and hash(layout) == hash(Layout(PARTS, 8))


def test_planes_of_one_kind_lie_in_order_without_gaps():
    state = State((Kv(2, 8, 16), Kv(3, 16, 8)), 65)
    assert state.byte_size() == 2 * 128 * (2 * (8 + 16) + 3 * (16 + 8))
    assert [(s.k_offset, s.v_offset) for s in state.layout.slots] == [(0, 16), (48, 96)]


def test_q8_0_takes_34_bytes_where_f16_takes_64():
    for parts in (wide(PARTS[:2]), (Kv(3, 64, 64),) * 30, wide(KINDS["latent"])):
        half, state = (State(parts, 500, dtype) for dtype in ("f16", "q8_0"))
        assert state.byte_size() * 64 == half.byte_size() * 34
        layout = state.layout
        assert bytes_held(layout, "q8_0", 500, 200) * 64 == bytes_held(layout, "f16", 500, 200) * 34
        assert row_bytes(layout, "q8_0") * 64 == row_bytes(layout, "f16") * 34


def test_recurrent_parts_are_float32_beside_any_number_format():
    sizes = [State((Recurrent((100, 7)),), 500, dtype).byte_size() for dtype in ("f16", "q8_0", "f32")]
    assert len(set(sizes)) == 1


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (Kv(2, 48, 64), "slot 1 has keys of 48"),
        (Kv(2, 64, 16), "slot 1 has values of 16"),
        (Latent(40, 32), "slot 1 has rows of 40"),
        (Latent(64, 24), "slot 1 has values of 24"),
        (Latent(64, 32, 16), "slot 1 has values from 16"),
    ],
)
def test_widths_that_are_no_blocks_are_refused_by_name(part, message):
    with pytest.raises(KvCacheShapeMismatch, match=f"blocks of 32 numbers, {message}; expected a multiple of 32"):
        State((Kv(1, 32, 32), part), 10, "q8_0")
    State((Kv(1, 32, 32), part), 10, "f16")


@settings(max_examples=200)
@given(st.data())
def test_q8_0_rounds_as_it_says(data):
    """Each number of a block by exact arithmetic: d = max / 127 in float32, halves away from zero, d kept as float16."""
    numbers = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**20), max_value=2.0**20)
    halves = st.integers(-254, 254).map(lambda n: n / 2)
    block = np.array(data.draw(st.lists(st.one_of(numbers, halves), min_size=32, max_size=32)), np.float32)
    if data.draw(st.booleans()):
        block[data.draw(st.integers(0, 31))] = 127  # a scale of 1: halves are ties
    form = DTYPES["q8_0"]
    raw = form.encode(block)
    assert raw.shape == (34,)
    d = np.abs(block).max() / np.float32(127)
    assert raw[:2].view(np.float16)[0] == np.float16(d)
    inverse = np.float32(1) / d if d > 2.0**-100 else np.float32(0)
    for x, q in zip(block * inverse, raw[2:].view(np.int8), strict=True):
        exact = Fraction(float(x))
        want = floor(abs(exact) + Fraction(1, 2))
        assert q == min(want, 127) * (-1 if exact < 0 else 1)
    again = form.decode(raw)
    assert np.array_equal(again, raw[:2].view(np.float16).astype(np.float32) * raw[2:].view(np.int8))
    if np.abs(block).max() > 1e-2:
        assert np.abs(again - block).max() <= 0.51 * d + np.abs(block).max() * 2.0**-10


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_shows_in_its_block_alone(bad):
    row = np.ones(96, np.float32)
    row[40] = bad
    again = DTYPES["q8_0"].decode(DTYPES["q8_0"].encode(row))
    assert not np.isfinite(again[32:64]).any() and np.allclose(again[[*range(32), *range(64, 96)]], 1, rtol=1e-3)


@pytest.mark.parametrize(("parts", "dtype"), CASES, ids=CASE_NAMES)
def test_every_number_format_goes_through_everything(parts, dtype):
    """Passes, a rollback, a way back, a snapshot and a copy: each holds what the toy model computes."""
    state = toy_state(parts, dtype=dtype)
    extend(state, TOKENS[:40])
    state.checkpoint()
    extend(state, TOKENS[:130])
    fail(state, 70, 2)
    check_claims(state, TOKENS)
    other = toy_state(parts, 200, dtype)
    other.restore(state.snapshot())
    check_claims(other, TOKENS)
    third = toy_state(parts, 140, dtype)
    third.copy_rows(state, 0, 130)
    check_claims(third, TOKENS)
    for s in (state, other, third):
        s.rewind(s.rewind_point(100))
        check_claims(s, TOKENS)
        extend(s, TOKENS[: s.len + 30])
        check_claims(s, TOKENS)


def test_states_of_two_number_formats_exchange_nothing():
    mine, theirs = (State((Kv(1, 32, 32),), 10, dtype) for dtype in ("q8_0", "f16"))
    for do in (lambda: mine.restore(theirs.snapshot()), lambda: theirs.copy_rows(mine, 0, 0)):
        with pytest.raises(KvCacheShapeMismatch, match="another geometry or dtype"):
            do()


def test_windows_cost_a_window_and_one_pass():
    """A layout like Gemma's: 3 of 18 layers see everything, the others 512 positions."""
    layers = [Kv(1, 256, 256, window=0 if i % 6 == 5 else 512) for i in range(18)]
    size = State(layers, 8192).byte_size()
    ring = 640  # 512 + 128 - 1 rows, rounded up to 64
    assert size == 2 * 512 * (3 * 8192 + 15 * ring)
    assert size < State([Kv(1, 256, 256)] * 18, 8192).byte_size() / 4
    assert State(layers, 256).byte_size() == 2 * 512 * 18 * 256  # short ones are not rings


def test_recurrent_parts_have_three_banks_and_one_more_per_checkpoint_in_use():
    state = toy_state(KINDS["recurrent"])
    assert state.byte_size() == 3 * 64
    for end in range(10, 110, 10):
        extend(state, TOKENS[:end])
        state.checkpoint()
    assert state.byte_size() <= 7 * 64
    check_claims(state, TOKENS)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Layout(()), "at least one part"),
        (lambda: Layout([Kv(1, 2, 2), "kv"]), "slot 1: expected Kv, Latent or Recurrent, got str"),
        (lambda: Layout([Kv(1, 2, 2)], 0), "max_rows must be an integer of at least 1"),
        (lambda: Layout([Kv(1, 2, 2, window=w) for w in range(8)]), "8 areas.*at most 7"),
        (lambda: Kv(0, 2, 2), "Kv kv_heads must be an integer of at least 1, got 0"),
        (lambda: Kv(1, 2, 2, window=-1), "window must be an integer of at least 0, got -1"),
        (lambda: Kv(1, 2.0, 2), "k_dim"),
        (lambda: Latent(5, 3, 3), "3 numbers from 3 on of 5"),
        (lambda: Recurrent(()), "at least one size"),
        (lambda: Recurrent((2, 0)), "got 0"),
        (lambda: State(PARTS, 4, "q4_0"), "one of 'f16', 'q8_0', 'f32', got 'q4_0'"),
    ],
)
def test_impossible_parts_are_refused(make, message):
    with pytest.raises(KvCacheShapeMismatch, match=message):
        make()


@pytest.mark.parametrize("capacity", [0, -1, 2.5, True, 1 << 50, 1 << 90])
def test_impossible_capacities_are_refused(capacity):
    with pytest.raises(KvCacheOverflow):
        State([Kv(2, 8, 16)], capacity)


# --- transactions -----------------------------------------------------------------------------------------------------


@states()
def test_rows_are_held_after_commit_and_only_then(parts):
    state = toy_state(parts)
    for end in (5, 13, 14, 150, 158):
        before = state.len
        state.begin(end - before)
        for first in range(before, end, 8):
            run_pass(state, TOKENS, first, min(first + 8, end))
            state.next_pass()
            assert state.len == before
        state.commit(end - before)
        assert state.len == end
        check_claims(state, TOKENS)


@states()
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("passes", [0, 1, 15])
@pytest.mark.parametrize("count", [8, 120])
def test_a_failed_transaction_changes_nothing(parts, closed, passes, count):
    state = toy_state(parts)
    extend(state, TOKENS[:140])
    extend(state, TOKENS[:145])
    points = [state.rewind_point(n) for n in range(146)]
    fail(state, count, passes)
    if closed:
        state.rollback()
    assert state.len == 145
    if count == 8 and passes <= 1:
        assert [state.rewind_point(n) for n in range(137, 146)] == points[137:]
    extend(state, TOKENS[:150])
    check_claims(state, TOKENS)
    extend(state, TOKENS[:300])
    check_claims(state, TOKENS)


def test_transactions_are_checked():
    state = toy_state()
    for call in (state.next_pass, state.words, lambda: state.commit(1), lambda: state.recurrent(2)):
        with pytest.raises(NoOpenPass, match="no transaction is open"):
            call()
    with pytest.raises(KvCacheOverflow, match="301 rows at position 0 pass the capacity of 300"):
        state.begin(301)
    with pytest.raises(KvCacheOverflow):
        state.begin(-1)
    state.begin(4)
    with pytest.raises(NoOpenPass, match="4 rows came after 0 next_pass"):
        state.commit(4)
    with pytest.raises(KvCacheShapeMismatch, match="begun for 4 rows, commit got 5"):
        state.commit(5)
    state.commit(3)  # recurrent parts exist after all rows only: nothing can be kept
    assert state.len == 0
    state.begin(12)
    run_pass(state, TOKENS, 0, 8)
    state.next_pass()
    run_pass(state, TOKENS, 8, 12)
    with pytest.raises(NoOpenPass, match="12 rows came after 1 next_pass"):
        state.commit(12)
    state.next_pass()
    state.commit(12)
    check_claims(state, TOKENS)
    state.begin(0)
    state.commit(0)
    check_claims(state, TOKENS)


def test_naive_access():
    state = toy_state()
    state.write(1, 299, np.full((1, 2), 3), np.full((1, 4), 4))
    assert [a.tolist() for a in state.read(1, 299, 300)] == [[[[3, 3]]], [[[4] * 4]]]
    state.write(3, 7, np.arange(5))
    assert [a.tolist() for a in state.read(3, 7, 8)] == [[[[0, 1, 2, 3, 4]]], [[[1, 2, 3]]]]
    with pytest.raises(KvCacheOverflow, match="position 300"):
        state.write(0, 300, 0, 0)
    with pytest.raises(KvCacheShapeMismatch, match="slot 2 .* no rows"):
        state.read(2, 0, 1)
    with pytest.raises(KvCacheShapeMismatch, match="slot 0 is not recurrent"):
        state.recurrent(0)


# --- going back -------------------------------------------------------------------------------------------------------


def test_full_planes_go_back_anywhere():
    state = toy_state(KINDS["full"])
    extend(state, TOKENS[:200])
    assert [state.rewind_point(n) for n in (-1, 0, 1, 77, 200, 999)] == [0, 0, 1, 77, 200, 200]
    state.truncate(999)
    assert state.len == 200
    state.truncate(77)
    assert state.len == 77
    with pytest.raises(CannotRewind, match="78 positions; the nearest point before is 77"):
        state.rewind(78)
    with pytest.raises(KvCacheOverflow, match="at least 0"):
        state.truncate(-1)
    check_claims(state, TOKENS)


def test_a_ring_goes_back_as_far_as_its_rows_reach():
    state = toy_state(KINDS["ring"])  # 64 rows, of which a pass reads 19 and its own
    extend(state, TOKENS[:64])
    assert state.rewind_point(1) == 1  # nothing was overwritten
    extend(state, TOKENS[:100])  # positions from 36 on are left
    assert [state.rewind_point(n) for n in (100, 55, 54, 30)] == [100, 55, 0, 0]
    state.rewind(55)
    extend(state, TOKENS[:90])
    check_claims(state, TOKENS)
    with pytest.raises(CannotRewind, match="nearest point before is 0"):
        state.truncate(20)
    state.truncate(0)
    extend(state, TOKENS[:30])
    assert state.rewind_point(20) == 20


def test_rows_of_one_pass_can_always_be_taken_back():
    """What speculation needs: whatever drafts a pass verified, all of them can be dropped."""
    for window in (1, 2, 20, 57, 64, 500):
        state = State(Layout([Kv(1, 2, 2, window=window)], MAX_ROWS), 2000)
        for end in range(200, 1800, 100):
            state.begin(end - state.len)
            state.commit(end - state.len)
            state.begin(MAX_ROWS)
            state.commit(MAX_ROWS)
            assert state.rewind_point(end) == end
            state.rewind(end)


def test_recurrent_parts_go_back_to_the_commit_before():
    state = toy_state(KINDS["recurrent"])
    extend(state, TOKENS[:10])
    extend(state, TOKENS[:15])
    assert [state.rewind_point(n) for n in (9, 10, 12, 14, 15)] == [0, 10, 10, 10, 15]
    fail(state, 3, 1)  # one pass writes the third bank
    assert state.rewind_point(12) == 10
    state.rewind(10)
    check_claims(state, TOKENS)
    assert state.rewind_point(9) == 0
    extend(state, TOKENS[:15])
    assert state.rewind_point(12) == 10  # again


def test_the_way_back_goes_when_a_second_pass_needs_its_bank():
    state = toy_state(KINDS["recurrent"])
    extend(state, TOKENS[:10])
    extend(state, TOKENS[:15])
    fail(state, 24, 2)
    assert [state.rewind_point(n) for n in (12, 15)] == [0, 15]
    extend(state, TOKENS[:39])
    assert [state.rewind_point(n) for n in (20, 39)] == [15, 39]
    check_claims(state, TOKENS)


def test_checkpoints_are_kept_until_there_are_too_many():
    state = toy_state(KINDS["recurrent"])
    state.checkpoint()  # at 0, where every state can go
    for end in range(10, 80, 10):
        extend(state, TOKENS[:end])
        state.checkpoint()
        state.checkpoint()
    assert [state.rewind_point(n) for n in (69, 59, 49, 39)] == [60, 50, 40, 0]
    extend(state, TOKENS[:90])
    assert [state.rewind_point(n) for n in (90, 89, 69, 59, 49, 39)] == [90, 70, 60, 50, 40, 0]
    state.rewind(50)
    assert [state.rewind_point(n) for n in (90, 49, 39)] == [50, 40, 0]
    extend(state, TOKENS[:55])
    extend(state, TOKENS[:56])
    assert [state.rewind_point(n) for n in (55, 54, 49)] == [55, 50, 40]
    check_claims(state, TOKENS)
    state.reset()
    assert state.len == state.rewind_point(50) == 0
    check_claims(state, TOKENS)


def test_a_composite_goes_back_where_every_part_can():
    state = toy_state((Kv(1, 2, 2), Kv(1, 2, 2, window=20), Recurrent((2,))))
    extend(state, TOKENS[:40])
    state.checkpoint()
    extend(state, TOKENS[:60])
    state.checkpoint()
    extend(state, TOKENS[:80])
    assert [state.rewind_point(n) for n in (80, 79, 59)] == [80, 60, 40]
    extend(state, TOKENS[:105])  # the ring holds 41 to 105
    assert [state.rewind_point(n) for n in (104, 79, 59)] == [80, 60, 0]
    state.rewind(60)
    check_claims(state, TOKENS)


# --- copies -----------------------------------------------------------------------------------------------------------


@states()
def test_snapshots_are_independent_and_restore(parts):
    state = toy_state(parts)
    for end in (60, 90, 150):
        extend(state, TOKENS[:end])
    snapshot = state.snapshot()
    state.truncate(0)
    extend(state, TOKENS[100:250])
    state.restore(snapshot)
    assert state.len == 150
    check_claims(state, TOKENS)
    for capacity in (150, 1000):
        other = toy_state(parts, capacity)
        extend(other, TOKENS[50:120])
        other.restore(snapshot)
        check_claims(other, TOKENS)
        extend(other, TOKENS[: min(capacity, 200)])
        check_claims(other, TOKENS)
    other.restore(toy_state(parts).snapshot())
    assert other.len == 0
    check_claims(other, TOKENS)


def test_foreign_snapshots_and_sources_are_refused():
    source = toy_state()
    extend(source, TOKENS[:40])
    snapshot = source.snapshot()
    for other, message in (
        (toy_state(PARTS[:3]), "another geometry or dtype"),
        (toy_state(dtype="f16"), "another geometry or dtype"),
        (toy_state(fingerprint=b"other"), "another model"),
    ):
        with pytest.raises(KvCacheShapeMismatch, match=message):
            other.restore(snapshot)
        with pytest.raises(KvCacheShapeMismatch, match=message):
            other.copy_rows(source, 0, 40)
        assert other.len == 0
    small = toy_state(capacity=39)
    extend(small, TOKENS[:30])
    with pytest.raises(KvCacheOverflow, match="holds 40 positions, the capacity is 39"):
        small.restore(snapshot)
    with pytest.raises(KvCacheOverflow, match="40 rows pass the capacity of 39"):
        small.copy_rows(source, 30, 40)
    assert small.len == 30
    check_claims(small, TOKENS)


@states()
def test_rows_can_be_copied_wherever_the_source_could_go(parts):
    source = toy_state(parts)
    for end in (40, 70, 100):
        extend(source, TOKENS[:end])
        source.checkpoint()
    extend(source, TOKENS[:160])
    for n in (160, 159, 120, 100, 71, 40):
        end = source.rewind_point(n)
        for start in {0, 30, 60} if end else ():
            if start >= end:
                continue
            state = toy_state(parts, 200)
            extend(state, TOKENS[:start])
            state.copy_rows(source, start, end)
            assert state.len == end
            check_claims(state, TOKENS)
            extend(state, TOKENS[:200])
            check_claims(state, TOKENS)
    assert source.len == 160
    check_claims(source, TOKENS)


def test_what_the_source_no_longer_holds_is_refused():
    source = toy_state(KINDS["ring"])
    extend(source, TOKENS[:150])  # positions from 86 on are left
    with pytest.raises(KvCacheShapeMismatch, match="window of 20 they need positions from 71 on.*from 86 on"):
        toy_state(KINDS["ring"]).copy_rows(source, 0, 90)
    source = toy_state(KINDS["recurrent"])
    extend(source, TOKENS[:10])
    extend(source, TOKENS[:30])
    with pytest.raises(KvCacheShapeMismatch, match="recurrent parts only at 10, 30"):
        toy_state(KINDS["recurrent"]).copy_rows(source, 0, 20)


def test_copies_join_where_they_begin():
    source, state = toy_state(), toy_state()
    extend(source, TOKENS[:40])
    with pytest.raises(KvCacheShapeMismatch, match="after 2 rows, this state holds 0"):
        state.copy_rows(source, 2, 40)
    with pytest.raises(KvCacheShapeMismatch, match="up to 41 were asked for, the source holds 40"):
        state.copy_rows(source, 0, 41)
    state.copy_rows(source, 5, 5)
    assert state.len == 0


@states("ring", "all")
def test_copies_of_a_state_whose_transaction_nobody_closed(parts):
    source = toy_state(parts)
    extend(source, TOKENS[:145])
    fail(source, 120, 15)
    snapshot, state = source.snapshot(), toy_state(parts)
    state.restore(snapshot)
    check_claims(state, TOKENS)
    fail(source, 120, 15)
    state.reset()
    state.copy_rows(source, 0, 145)
    check_claims(state, TOKENS)
