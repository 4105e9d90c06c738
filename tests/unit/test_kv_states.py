"""Every kind of state through a file: windows with holes, recurrent parts with their checkpoints, damage, Ctrl-C."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fucina.cache.persist
from fucina.cache import KvFile
from fucina.cache.persist import header as headers
from fucina.cache.persist import records
from fucina.cache.persist.identity import identity_of
from fucina.cache.rows import held_from, recurrent_positions
from tests.interrupts import every_interrupt
from tests.kv_files import KINDS, PARTS, TOKENS, MemoryFile, ToyModel, filled
from tests.state_models import check_claims, extend

PERSIST = Path(fucina.cache.persist.__file__).parent


def written(model, *ends, pinned=()):
    """A file to which a state was appended after each of these ends, and the state."""
    file, state = KvFile(MemoryFile(), identity_of(model)), model.new_cache()
    for end in ends:
        extend(state, TOKENS[:end])
        if end in pinned:
            state.checkpoint()
        file.append(state, TOKENS[:end])
    return file, state


def restored(file, model, data=None):
    later = KvFile(MemoryFile(bytes(file._file.data if data is None else data)), identity_of(model))
    state = model.new_cache()
    return later.restore(state), state, later


def test_a_window_that_moved_between_two_appends_leaves_a_hole():
    model = ToyModel(KINDS["ring"])  # a window of 20 positions in a ring of 64
    file, _ = written(model, 10, 200)
    index = file._content.index
    held = np.flatnonzero(index.rows["held"] & 1).tolist()
    assert held == [*range(10), *range(136, 200)]
    assert restored(file, model)[0].tokens == TOKENS[:200]
    good = np.flatnonzero(index.restorable(model.new_cache().layout)).tolist()
    assert good == [*range(11), *range(155, 201)]  # 19 rows before a position, its own excluded
    # Cut where the hole is: the largest point before it.
    starts = index.rows["start"].tolist()
    for rows in (5, 10, 11, 100, 154, 155, 199):
        got, state, _ = restored(file, model, file._file.data[: starts[rows]])
        point = max(n for n in good if n <= rows)
        assert (state.len, got.tokens, got.cut) == (point, TOKENS[:point], rows - point)
        assert got.why
        check_claims(state, TOKENS)


def test_rows_that_the_file_lacks_are_written_when_the_state_has_them():
    model = ToyModel(KINDS["ring"])
    file, _ = written(model, 200)
    branch = [*TOKENS[:100], 1, 2, 3]
    state = model.new_cache()
    extend(state, branch)
    file.append(state, branch)  # all 100 shared tokens are there, but not the rows of the window
    got, state, _ = restored(file, model)
    assert got == (branch, 0, [], 0, "")
    check_claims(state, branch)


@pytest.mark.parametrize("kind", ["recurrent", "all"])
def test_checkpoints_come_back(kind):
    model = ToyModel(KINDS[kind])
    file, state = written(model, 20, 35, 50, 65, 80, pinned=(20, 50, 65))
    state.checkpoint()
    assert file.append(state, TOKENS[:80]) > 0  # the parts are the same, but they are kept now
    assert file.append(state, TOKENS[:80]) == 0
    got, other, _ = restored(file, model)
    assert got == (TOKENS[:80], 0, [], 0, "")
    assert recurrent_positions(other) == (20, 50, 65, 80)
    check_claims(other, TOKENS)
    for back in (65, 50):
        assert other.rewind_point(back) == back
        other.rewind(back)
        check_claims(other, TOKENS)
    other.rewind(0)
    # Parts of several checkpoints that were set between two appends.
    state = model.new_cache()
    for end in (10, 30, 60):
        extend(state, TOKENS[:end])
        state.checkpoint()
    extend(state, TOKENS[:70])
    file.append(state, TOKENS[:70])
    file.append(model.new_cache(), [])
    file.append(state, TOKENS[:70])
    got, other, _ = restored(file, model)
    assert recurrent_positions(other) == ((10, 30, 60, 70) if kind == "recurrent" else (30, 60, 70))  # a ring moved on
    check_claims(other, TOKENS)


@pytest.mark.parametrize("kind", ["recurrent", "all"])
def test_damaged_recurrent_parts_are_passed_over(kind):
    model = ToyModel(KINDS[kind])
    file, _ = written(model, 20, 50, 80, pinned=(20, 50))
    banks = file._content.index.banks()
    for broken, left in (({80}, 50), ({80, 50}, 20), ({50}, 80), ({20, 50, 80}, 0)):
        data = bytearray(file._file.data)
        for position in broken:
            data[banks[position].at + 3] ^= 16
        got, state, later = restored(file, model, data)
        assert (state.len, got.tokens, got.cut) == (left, TOKENS[:left], 80 - left)
        assert ("damaged" in got.why) == (left < 80)
        check_claims(state, TOKENS)
        # The next append writes what is missing.
        extend(state, TOKENS[:80])
        later.append(state, TOKENS[:80])
        assert restored(later, model)[0] == (TOKENS[:80], 0, [], 0, "")


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_rows_end_what_is_restored_and_the_next_append_repairs_them(kind):
    model = ToyModel(KINDS[kind])
    file, _ = written(model, 15, 40, 60, pinned=(15, 40))
    rows = file._content.index.rows
    if rows["start"][1] - rows["start"][0] == 24:
        return  # a kind without rows
    for position in (0, 14, 15, 39, 59):
        data = bytearray(file._file.data)
        data[int(rows["start"][position]) + 24 + 5] ^= 1
        got, state, later = restored(file, model, data)
        assert state.len <= position
        assert state.len == position or kind == "all"  # recurrent parts exist at 15, 40 and 60
        assert got.why == f"the rows of position {position} are damaged"
        assert (got.tokens, got.cut) == (TOKENS[: state.len], 60 - state.len)
        check_claims(state, TOKENS)
        extend(state, TOKENS[:70])
        later.append(state, TOKENS[:70])
        assert restored(later, model)[0] == (TOKENS[:70], 0, [], 0, "")


def test_a_state_of_another_capacity_takes_what_fits_into_it():
    model = ToyModel()
    file, _ = written(model, 150)
    for capacity in (150, 151, 1000):
        state = model.new_cache(capacity)
        assert file.restore(state).why == ""
        assert held_from(state)[0] == 0
        check_claims(state, TOKENS)
    state = model.new_cache(149)
    got = file.restore(state)
    assert (got.tokens, got.cut, state.len) == ([], 150, 0)
    assert got.why == "the file holds 150 positions, the cache takes 149"
    assert file.len == 150


@pytest.mark.parametrize("signalled", [False, True])
def test_an_interrupt_leaves_a_true_prefix_and_an_object_that_goes_on(signalled):
    model = ToyModel(PARTS[:4])
    base, _ = written(model, 30, 50)
    before = bytes(base._file.data)
    shorter = [*TOKENS[:30], *range(12)]
    branch = model.new_cache()
    extend(branch, shorter)
    files = []

    def make():
        files.append(KvFile(MemoryFile(before), identity_of(model)))
        return lambda: files[-1].append(branch, shorter, notes=[b"n"])

    for at in every_interrupt(make, PERSIST, signalled=signalled, step=1 if signalled else 7):
        file = files[-1]
        got, other, _ = restored(file, model)
        assert shorter[: len(got.tokens)] == got.tokens or TOKENS[: len(got.tokens)] == got.tokens, at
        assert len(got.tokens) >= 30
        check_claims(other, got.tokens)
        if at % 5 == 0:
            file.append(branch, shorter, notes=[b"n"])
            assert restored(file, model)[0] == (shorter, 0, [b"n"], 0, "")
    assert len(files) > 20


@pytest.mark.parametrize("signalled", [False, True])
def test_an_interrupted_restore_leaves_an_empty_state(signalled):
    model = ToyModel(PARTS[:4])
    file, _ = written(model, 20, 50, pinned=(20,))
    states = []

    def make():
        states.append(model.new_cache())
        return lambda: file.restore(states[-1])

    for at in every_interrupt(make, PERSIST, signalled=signalled, step=1 if signalled else 7):
        assert states[-1].len in (0, 50), at
        if states[-1].len == 0:
            assert file.restore(states[-1]).tokens == TOKENS[:50]
    assert filled(model, 3).len == 3


@pytest.mark.parametrize(
    ("kind", "value", "payload"),
    [
        (1, 5, b"short"),
        (2, 10, b"x"),
        (2, 9, None),
        (4, 5, b"x"),
        (0, 0, b""),
        (5, 0, b""),
        (3, 0, bytes((16 << 20) + 1)),
    ],
)
def test_a_record_of_no_known_form_ends_the_file_even_if_its_chain_fits(kind, value, payload):
    model = ToyModel(PARTS)
    file, _ = written(model, 10)
    content = file._content
    payload = bytes(content.header.bank_bytes) if payload is None else payload
    forged = MemoryFile(bytes(file._file.data))
    begin, _ = records.head(kind, 0, value, payload, content.index.chain)
    forged.write_at(content.index.end, begin + payload)
    headers.write_counter(forged, content.header, headers.Counter(9, forged.size(), 11))
    later = KvFile(forged, identity_of(model))
    assert later.why == f"the record after 10 positions is none: kind {kind}, {len(payload)} bytes"
    assert (later.tokens, later.notes) == (TOKENS[:10], [])
    state = model.new_cache()
    assert later.restore(state).tokens == TOKENS[:10]
    check_claims(state, TOKENS)
