"""A conversation's file: what is appended comes back, and only what is new is written."""

from __future__ import annotations

import numpy as np
import pytest

from fucina.cache import Kv, KvFile
from fucina.cache.persist import header as headers
from fucina.cache.persist import inspect, load, read_header, read_tokens, restoring, writing
from fucina.cache.persist.identity import identity_of
from fucina.cache.persist.records import scan
from fucina.cache.rows import held_from, row_bytes
from fucina.errors import KvCacheShapeMismatch, KvFileInvalid, KvPersistTokenMismatch, TokenOutOfRange
from tests.kv_files import KINDS, PARTS, TOKENS, MemoryFile, ToyModel, filled
from tests.state_models import CASE_NAMES, CASES, check_claims, extend, fail


@pytest.mark.parametrize(("parts", "dtype"), CASES, ids=CASE_NAMES)
def test_what_is_appended_comes_back(parts, dtype, tmp_path):
    model, path = ToyModel(parts, dtype), tmp_path / "chat.kv"
    with KvFile.open(path, model) as file:
        assert file.restore(model.new_cache()) == ([], 0, [], 0, "the file is new")
        state = model.new_cache()
        for end in (1, 40, 41, 90, 150):
            extend(state, TOKENS[:end])
            assert file.append(state, TOKENS[:end]) > 0
            assert file.append(state, TOKENS[:end]) == 0
            assert (file.len, file.tokens) == (end, TOKENS[:end])
            other = model.new_cache()
            assert file.restore(other) == (TOKENS[:end], 0, [], 0, "")
            for slot, where in enumerate(state.layout.slots):
                if where.kind != "recurrent":
                    low = max(held_from(state)[where.area], held_from(other)[where.area])
                    for mine, theirs in zip(other.read(slot, low, end), state.read(slot, low, end)):
                        assert np.array_equal(mine, theirs)
            check_claims(other, TOKENS)
            extend(other, TOKENS[: end + 70])
            check_claims(other, TOKENS)
    assert read_tokens(path) == TOKENS[:150]
    assert read_header(path).rows == 150
    assert inspect(path, model)[1:] == (TOKENS[:150], [], 150, path.stat().st_size, "")
    loaded = load(path, model, capacity=200)
    assert loaded is not None
    assert (loaded.state.len, loaded.state.capacity, loaded.tokens) == (150, 200, TOKENS[:150])


@pytest.mark.parametrize("parts", KINDS.values(), ids=KINDS)
def test_a_beginning_alone_is_loaded(parts, tmp_path):
    """At most `limit` tokens, the largest prefix of them that a pass can go on from; the state need not hold more."""
    model, path = ToyModel(parts), tmp_path / "chat.kv"
    with KvFile.open(path, model) as file:
        state = model.new_cache()
        for end in (40, 90, 150):
            extend(state, TOKENS[:end])
            file.append(state, TOKENS[:end])
    for limit in (0, 39, 40, 64, 90, 149, 150, 151, 500):
        loaded = load(path, model, capacity=max(min(limit, 150), 1), limit=limit)
        point = 0 if loaded is None else loaded.state.len
        assert point <= limit
        assert point == min(limit, 150) or model.new_cache().layout.areas[-1].kind != "full"
        assert point >= max(end for end in (0, 40, 90, 150) if end <= limit) or limit < 64
        if loaded is not None:
            assert loaded.tokens == TOKENS[:point]
            check_claims(loaded.state, TOKENS)


def test_the_newest_token_and_the_notes_come_back(tmp_path):
    model = ToyModel()
    state = filled(model, 50)
    with KvFile.open(tmp_path / "chat.kv", model) as file:
        file.append(state, TOKENS[:51], notes=[b"one", b""])
        assert file.tokens == TOKENS[:51]
    with KvFile.open(tmp_path / "chat.kv", model) as file:
        other = model.new_cache()
        assert file.restore(other) == (TOKENS[:51], 0, [b"one", b""], 0, "")
        assert other.len == 50
        check_claims(other, TOKENS)


# --- what is written ------------------------------------------------------------------------------------------------

COUNTER = 32
HEAD = 24


def opened(model, data=b""):
    return KvFile(MemoryFile(data), identity_of(model))


def same_file(file, model):
    """The same file, opened by somebody who comes later."""
    return opened(model, bytes(file._file.data))


def gives(file, model, tokens, notes=(), prefix=()):
    """Check that a file, opened again, gives these tokens, rows and notes; returns the state."""
    state = model.new_cache()
    restored = same_file(file, model).restore(state)
    assert restored == (list(tokens), len(prefix), list(notes), 0, "")
    check_claims(state, [*prefix, *tokens])
    return state


@pytest.mark.parametrize("new", [1, 2, 40])
def test_an_append_writes_what_is_new_and_nothing_else(new):
    model = ToyModel(KINDS["full"])
    file, state = opened(model), model.new_cache()
    extend(state, TOKENS[:200])
    file.append(state, TOKENS[:200])
    width = HEAD + row_bytes(state.layout, "f32")
    extend(state, TOKENS[: 200 + new])
    file._file.log.clear()
    assert file.append(state, TOKENS[: 200 + new]) == new * width + COUNTER
    rows, counter = file._file.log  # two calls, the counter the last
    assert (rows[0], rows[1], len(rows[2])) == ("write", 3 * 4096 + 200 * width, new * width)
    assert counter[0] == "write"
    assert len(counter[2]) == COUNTER
    file._file.log.clear()
    assert file.append(state, TOKENS[: 200 + new]) == 0
    assert file._file.log == []
    gives(file, model, TOKENS[: 200 + new])


def test_large_states_are_written_and_read_in_pieces(monkeypatch):
    monkeypatch.setattr(restoring, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(writing, "CHUNK_BYTES", 1000)
    for kind, parts in KINDS.items():
        model = ToyModel(parts)
        file, state = opened(model), filled(model, 150)
        file.append(state, TOKENS[:150])
        assert max(len(data) for _, at, data in file._file.log if at > 8192) <= 1000, kind
        gives(file, model, TOKENS[:150])
        extend(state, TOKENS[:170])
        file.append(state, TOKENS[:170])
        extend(gives(file, model, TOKENS[:170]), TOKENS[:250])


def test_opening_reads_heads_and_not_rows():
    model = ToyModel((Kv(8, 64, 64),))  # 4 KiB of rows per position
    file, state = opened(model), model.new_cache()
    extend(state, TOKENS[:100])
    file.append(state, TOKENS[:100])
    later = same_file(file, model)
    assert later.tokens == TOKENS[:100]
    assert later._file.bytes_read < 20_000 < 400_000 < later.size
    header = headers.read(later._file)
    before = later._file.bytes_read
    scan(later._file, header, later.size)
    assert later._file.bytes_read - before == 100 * HEAD


def test_the_counter_is_written_after_the_records_and_fsync_waits_for_both():
    model = ToyModel()
    file = KvFile(MemoryFile(), identity_of(model), fsync=True)
    state = filled(model, 20)
    file.append(state, TOKENS[:20], notes=[b"x"])
    kinds = [kind for kind, _, _ in file._file.log]
    at = [offset for kind, offset, _ in file._file.log if kind == "write"]
    assert kinds[-3:] == ["sync", "write", "sync"]
    assert kinds.count("sync") == 2
    assert at[-1] in (4096, 8192)
    assert all(offset == 0 or offset >= 12288 for offset in at[:-1])
    extend(state, TOKENS[:30])
    file.append(state, TOKENS[:30])
    assert {offset for kind, offset, _ in file._file.log if offset in (4096, 8192)} == {4096, 8192}  # they take turns


def test_tokens_whose_rows_the_file_no_longer_has_are_not_claimed():
    model = ToyModel(KINDS["full"])
    file, state = opened(model), filled(model, 10)
    file.append(state, TOKENS[:10])
    whole = bytes(file._file.data)
    for lost in (1, 5, row_bytes(state.layout, "f32")):
        later = opened(model, whole[:-lost])
        assert (later.tokens, later.why) == (TOKENS[:9], "the file ends in the record after 9 positions")


@pytest.mark.parametrize("kind", KINDS)
def test_a_turn_that_was_interrupted_in_a_pass_is_no_part_of_the_file(kind):
    model = ToyModel(KINDS[kind])
    file, state = opened(model), filled(model, 145)
    fail(state, 120, 15)
    file.append(state, TOKENS[:145])
    gives(file, model, TOKENS[:145])


# --- undo, branches, pending, notes ---------------------------------------------------------------------------------


def test_an_undone_turn_is_cut_off_and_leaves_nothing_on_the_disk():
    model = ToyModel(KINDS["full"])
    file, state = opened(model), filled(model, 40)
    file.append(state, TOKENS[:40], notes=[b"first"])
    size = file.size
    extend(state, TOKENS[:90])
    file.append(state, TOKENS[:90], notes=[b"first", b"a secret"])
    assert b"a secret" in file._file.data
    state.rewind(40)
    assert file.append(state, TOKENS[:40], notes=[b"first"]) == COUNTER
    assert file.size == size
    assert b"a secret" not in file._file.data
    gives(file, model, TOKENS[:40], [b"first"])
    other = [*TOKENS[:40], *range(30)]
    extend(state, other)
    file.append(state, other, notes=[b"first", b"second"])
    gives(file, model, other, [b"first", b"second"])


@pytest.mark.parametrize("kind", ["full", "latent"])
def test_another_branch_is_written_from_where_it_differs(kind):
    model = ToyModel(KINDS[kind])
    file, state = opened(model), filled(model, 90)
    file.append(state, TOKENS[:90])
    other = [*TOKENS[:33], *range(50)]
    branch = model.new_cache()
    extend(branch, other)
    width = HEAD + row_bytes(state.layout, "f32")
    assert file.append(branch, other) == 50 * width + COUNTER
    gives(file, model, other)
    assert file.append(branch, other) == 0
    # A file that is ahead of a session that has forgotten all.
    file.append(model.new_cache(), [])
    assert (file.len, file.tokens) == (0, [])


def test_the_newest_token_gets_its_row_or_another_takes_its_place():
    model = ToyModel()
    for following in (TOKENS[:60], [*TOKENS[:50], 7, 8], TOKENS[:50], [*TOKENS[:50], 9]):
        file, state = opened(model), filled(model, 50)
        file.append(state, TOKENS[:51])
        gives(file, model, TOKENS[:51])
        later, pending = same_file(file, model), len(following) == 51
        extend(state, following[:50] if pending else following)
        assert later.append(state, following) > 0
        gives(later, model, following)
        assert later.append(state, following) == 0


def test_notes_are_written_once_and_follow_their_owner():
    model = ToyModel(KINDS["full"])
    file, state = opened(model), filled(model, 30)
    file.append(state, TOKENS[:30], notes=[b"a", b"b", b"c" * 1000])
    assert file.append(state, TOKENS[:30], notes=[b"a", b"b", b"c" * 1000]) == 0
    assert file.append(state, TOKENS[:30], notes=[b"a", b"b", b"c" * 1000, b"d"]) == HEAD + 1 + COUNTER
    assert file.append(state, TOKENS[:30], notes=[b"a", b"B"]) == 2 * HEAD + 1 + COUNTER
    gives(file, model, TOKENS[:30], [b"a", b"B"])
    assert file.append(state, TOKENS[:30], notes=[b"a"]) == HEAD + COUNTER
    gives(file, model, TOKENS[:30], [b"a"])
    extend(state, TOKENS[:40])
    file.append(state, TOKENS[:40])  # None: they stay
    gives(file, model, TOKENS[:40], [b"a"])
    file.append(state, TOKENS[:40], notes=[])
    gives(file, model, TOKENS[:40], [])
    for notes, why in (([b"a", "b"], "note 1 is str"), ([b"x" * ((16 << 20) + 1)], "note 0 has 16777217 bytes")):
        with pytest.raises(KvFileInvalid, match=why):
            file.append(state, TOKENS[:40], notes=notes)
    gives(file, model, TOKENS[:40], [])


def test_tokens_must_fit_the_rows_and_a_state_the_file(tmp_path):
    model = ToyModel()
    with KvFile.open(tmp_path / "a", model) as file:
        state = filled(model, 10)
        for tokens, prefix in ((TOKENS[:9], 0), (TOKENS[:12], 0), (TOKENS[:10], 2), ([], 0), (TOKENS[:3], 11)):
            with pytest.raises(KvPersistTokenMismatch, match=f"{len(tokens)} tokens were given for 10 positions"):
                file.append(state, tokens, prefix)
        for bad in (-1, 1 << 32, 1.5, "a", True):
            with pytest.raises(TokenOutOfRange):
                file.append(state, [*TOKENS[:9], bad])
        for other in (ToyModel(dtype="f16"), ToyModel(PARTS[:3]), ToyModel(fingerprint=b"other")):
            with pytest.raises(KvCacheShapeMismatch, match="not of the model"):
                file.append(filled(other, 10), TOKENS[:10])
            with pytest.raises(KvCacheShapeMismatch, match="not of the model"):
                file.restore(other.new_cache())
        with pytest.raises(KvCacheShapeMismatch, match="this one holds 10 rows"):
            file.restore(state)
        assert (tmp_path / "a").stat().st_size == 0  # nothing was written


# --- prefixes -------------------------------------------------------------------------------------------------------


def after_prefix(model, prefix, rows):
    """A state whose first rows belong to no token; the toy model computes them from these numbers."""
    state = model.new_cache()
    extend(state, [*prefix, *TOKENS[:rows]])
    return state


@pytest.mark.parametrize("kind", KINDS)
def test_a_prefix_comes_back_and_another_one_is_noticed(kind):
    model, prefix, other = ToyModel(KINDS[kind]), [1, 2, 3], [1, 9, 3]
    file, state = opened(model), after_prefix(model, prefix, 20)
    file.append(state, TOKENS[:21], 3, [b"n"])
    assert (file.prefix_rows, file.len, file.tokens) == (3, 23, TOKENS[:21])
    gives(file, model, TOKENS[:21], [b"n"], prefix)
    # The same text after another prefix: no row may stay.
    for known in (False, True):
        later = same_file(file, model)
        if known:
            assert later.append(state, TOKENS[:21], 3) == 0 or kind in ("narrow", "recurrent")
        later.append(after_prefix(model, other, 20), TOKENS[:20], 3)
        gives(later, model, TOKENS[:20], [], other)
        later.append(filled(model, 20), TOKENS[:20])
        gives(later, model, TOKENS[:20])
        later.append(after_prefix(model, prefix, 5), TOKENS[:5], 3)
        gives(later, model, TOKENS[:5], [], prefix)
    if kind == "recurrent":  # no row that could be compared
        return
    # The same state, reset and filled with another prefix.
    first = [8, 2, 3]
    state.reset()
    extend(state, [*first, *TOKENS[:20]])
    file.append(state, TOKENS[:20], 3)
    gives(file, model, TOKENS[:20], [], first)


def test_a_file_torn_in_its_prefix_gives_nothing():
    model, prefix = ToyModel(KINDS["full"]), [1, 2, 3]
    file = opened(model)
    file.append(after_prefix(model, prefix, 5), TOKENS[:5], 3)
    width = HEAD + row_bytes(model.new_cache().layout, "f32")
    whole = bytes(file._file.data)
    for rows in range(9):
        later, state = opened(model, whole[: 12288 + rows * width]), model.new_cache()
        restored = later.restore(state)
        assert state.len == (rows if rows >= 3 else 0)
        assert restored.tokens == (TOKENS[: rows - 3] if rows > 3 else [])
        assert (restored.why == "") == (rows == 8)
