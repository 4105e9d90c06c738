"""FUXKV001 and FUXKV002, byte for byte: the bytes here are put together by hand."""

from __future__ import annotations

import struct
from contextlib import suppress

import numpy as np
import pytest

from fucina.cache import Kv, Latent, Recurrent, load, save
from fucina.cache.persist import append_plain, inspect, plain, read_header, read_tokens
from fucina.cache.persist import header as headers
from fucina.cache.persist.header import plain_bytes, plain_row_bytes
from fucina.errors import KvFileError, KvFileInvalid, KvPersistTokenMismatch
from fucina.gguf import GgmlType, dequantize
from tests.kv_files import TOKENS, Crash, DyingFile, MemoryFile, ToyModel, filled
from tests.state_models import check_claims, extend

LAYERS = (Kv(2, 32, 32),) * 3
MODEL = ToyModel(LAYERS, "f16")
MIXED = ToyModel((Kv(1, 4, 4), Kv(2, 2, 2)), "f16")


def number(slot, head, at, token, i, salt):
    """What the toy model stores, see `tests.state_models.expected_rows`."""
    return (slot * 5 + head * 11 + at * 13 + token * 31 + i * 7 + salt) % 1999


def record(layers, at, token, stored=None):
    """One record, number by number."""
    out = struct.pack("<I", token if stored is None else stored)
    for slot, (heads, dim) in enumerate(layers):
        for salt in (0, 97):  # keys, then values
            for head in range(heads):
                out += struct.pack(f"<{dim}e", *(number(slot, head, at, token, i, salt) for i in range(dim)))
    return out


def expected(layers, tokens, prefix=0):
    """A whole file: of `tokens`, the first `prefix` belong to a prefix."""
    begin = b"FUXKV002" if prefix else b"FUXKV001"
    begin += struct.pack("<Q", len(tokens)) + (struct.pack("<Q", prefix) if prefix else b"")
    begin += struct.pack("<II", len(layers), 0)
    for heads, dim in layers:
        begin += struct.pack("<II", heads, dim)
    return begin + b"".join(record(layers, i, t, 0 if i < prefix else t) for i, t in enumerate(tokens))


@pytest.mark.parametrize(("model", "layers"), [(MODEL, [(2, 32)] * 3), (MIXED, [(1, 4), (2, 2)])])
@pytest.mark.parametrize("prefix", [0, 1, 3])
def test_the_bytes_are_those_of_the_format(model, layers, prefix, tmp_path):
    state, right = filled(model, 7), expected(layers, TOKENS[:7], prefix)
    assert len(right) == (32 if prefix else 24) + 8 * len(layers) + 7 * (4 + sum(4 * h * d for h, d in layers))
    path = tmp_path / "a"
    assert save(path, state, TOKENS[prefix:7], version=2, prefix_rows=prefix) == len(right)
    assert path.read_bytes() == right
    if not prefix:
        save(path, state, TOKENS[:7], version=1)
        assert path.read_bytes() == right
    # Grown in steps, it is the same file.
    other, grown = tmp_path / "b", model.new_cache()
    for end in (prefix, 4, 5, 7):
        extend(grown, TOKENS[:end])
        append_plain(other, grown, TOKENS[prefix:end], prefix)
    assert other.read_bytes() == right
    # And back.
    path.write_bytes(right)
    loaded = load(path, model, capacity=16)
    assert (loaded.tokens, loaded.prefix_rows, loaded.state.len) == (TOKENS[prefix:7], prefix, 7)
    for slot in range(len(layers)):
        for mine, theirs in zip(loaded.state.read(slot, 0, 7), state.read(slot, 0, 7)):
            assert np.array_equal(mine, theirs)
    assert read_tokens(path) == TOKENS[prefix:7]
    assert inspect(path, model).why == ""


def test_the_header_tells_its_kind_dtype_and_layers(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(
        bytes.fromhex(
            "4655584b56303032 0200000000000000 0100000000000000 02000000 01000000 01000000 20000000 02000000 40000000"
        )
        + bytes(2 * (4 + 2 * 34 + 2 * 2 * 2 * 34))
    )
    header = read_header(path)
    assert (header.version, header.dtype, header.prefix_rows, header.rows) == (2, "q8_0", 1, 2)
    assert header.parts == (Kv(1, 32, 32), Kv(2, 64, 64))
    assert header.row_bytes == 2 * 34 + 2 * 2 * 2 * 34 == plain_row_bytes(header.parts, "q8_0")
    assert plain_bytes(header.parts, "q8_0", 1, 2) == path.read_bytes()[: header.start]
    why = []
    assert load(path, ToyModel(header.parts, "f16"), explain=why) is None
    assert "its rows are q8_0, those of the cache f16" in why[0]


def test_ten_bytes_cut_off_four_records_leave_three(tmp_path):
    path = tmp_path / "a"
    save(path, filled(MODEL, 4), TOKENS[:4], version=1)
    path.write_bytes(path.read_bytes()[:-10])
    why = []
    loaded = load(path, MODEL, explain=why)
    assert (loaded.tokens, loaded.state.len) == (TOKENS[:3], 3)
    assert "the file ends after 3 positions" in why[0]
    assert inspect(path, MODEL)[1:] == (TOKENS[:3], [], 3, path.stat().st_size, inspect(path).why)
    assert inspect(path).why == "the file ends after 3 positions, its count says 4"
    # The next append writes the fourth again, although the count says that it is there.
    extend(loaded.state, TOKENS[:6])
    append_plain(path, loaded.state, TOKENS[:6])
    assert path.read_bytes() == expected([(2, 32)] * 3, TOKENS[:6])


@pytest.mark.parametrize("prefix", [0, 2])
def test_every_cut_gives_the_records_that_are_whole(prefix, tmp_path):
    path = tmp_path / "a"
    save(path, filled(MIXED, 5), TOKENS[prefix:5], version=2, prefix_rows=prefix)
    whole = path.read_bytes()
    start, row = (32 if prefix else 24) + 16, 4 + 32
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        loaded, rows = load(path, MIXED), max(0, size - start) // row
        assert (loaded.tokens if loaded else []) == (TOKENS[prefix:rows] if rows > prefix else []), size


def test_a_crash_before_the_count_leaves_the_old_count(tmp_path):
    path, state = tmp_path / "a", filled(MODEL, 4)
    save(path, state, TOKENS[:4], version=1)
    before = path.read_bytes()
    extend(state, TOKENS[:9])
    append_plain(path, state, TOKENS[:9])
    after = path.read_bytes()
    assert after[:8] + after[16 : len(before)] == before[:8] + before[16:]
    path.write_bytes(after[:8] + before[8:16] + after[16:])
    assert load(path, MODEL).tokens == TOKENS[:4]


def test_a_longer_file_follows_a_shorter_session(tmp_path):
    path, state = tmp_path / "a", filled(MODEL, 9)
    save(path, state, TOKENS[:9], version=1)
    before = path.read_bytes()
    state.rewind(5)
    assert append_plain(path, state, TOKENS[:5]) == 8
    assert path.read_bytes() == before[:8] + struct.pack("<Q", 5) + before[16:]
    assert append_plain(path, state, TOKENS[:5]) == 0
    assert load(path, MODEL).tokens == TOKENS[:5]


def test_an_undone_turn_is_written_over_even_if_nobody_told_the_file(tmp_path):
    path, state = tmp_path / "a", filled(MODEL, 9)
    save(path, state, TOKENS[:9], version=1)
    state.rewind(5)
    tokens = [*TOKENS[:5], 7, 8, 9, 10, 11, 12]
    extend(state, tokens)
    append_plain(path, state, tokens)
    assert path.read_bytes() == expected([(2, 32)] * 3, tokens)


@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("following", [TOKENS[:14], TOKENS[:5], [*TOKENS[:5], 7, 8], [*TOKENS[:5], *range(9)]])
def test_a_crash_at_any_byte_leaves_a_true_prefix(prefix, following):
    storage, state = MemoryFile(), filled(MIXED, 9)
    plain.append(storage, state, np.array(TOKENS[prefix:9], np.uint32), prefix)
    before = bytes(storage.data)
    state.rewind(5)
    extend(state, following)
    tokens = np.array(following[prefix:], np.uint32)
    written = plain.append(storage, state, tokens, prefix)
    for left in range(written + 1):
        dying, found = DyingFile(before, left, Crash()), MIXED.new_cache()
        with suppress(Crash):
            plain.append(dying, state, tokens, prefix)
        dying = MemoryFile(dying.data)
        restored = plain.load(dying, headers.read(dying), found)
        text = [*[0] * prefix, *restored.tokens]
        assert any(text[prefix:] == right[prefix : found.len] for right in (TOKENS[:9], following)), left
        assert found.len >= 5
        same = TOKENS if text[prefix:] == TOKENS[prefix : found.len] else following
        check_claims(found, same)
        if left == written:
            assert restored.tokens == following[prefix:]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b"FUXKV", "begins with b'FUXKV'"),
        (b"GGUF" + bytes(100), "begins with b'GGUF"),
        (b"FUXKV001" + bytes(5), "ends in the header"),
        (expected([(2, 32)] * 2, TOKENS[:4]), "another geometry: 2 parts, expected 3"),
        (expected([(2, 32)] * 2 + [(2, 64)], TOKENS[:4]), "another geometry: part 2"),
        (b"FUXKV002" + struct.pack("<QQII", 4, 0, 3, 0) + bytes(9000), "a prefix of 0 rows"),
        (expected([(2, 32)] * 3, TOKENS[:4], 4), "4 of them a prefix"),
        (expected([(2, 32)] * 3, []), "holds 0 positions"),
        (expected([(2, 32)] * 3, TOKENS[:17]), "claims 17 positions, the cache takes 16"),
        (b"FUXKV001" + struct.pack("<QII", 4, 1 << 31, 0) + bytes(900), "claims 2147483648 layers"),
        (b"FUXKV001" + struct.pack("<QII", 4, 1, 7) + bytes(900), "its dtype is 7"),
        (b"FUXKV001" + struct.pack("<QIIII", 4, 1, 0, 0, 64) + bytes(900), "a layer without heads"),
        (b"FUXKV001" + struct.pack("<QIIII", 4, 1, 1, 1, 33) + bytes(900), "no multiple of 32"),
    ],
)
def test_what_is_foreign_gives_nothing_and_is_begun_anew(content, why, tmp_path):
    path, said = tmp_path / "a", []
    path.write_bytes(content)
    assert load(path, MODEL, capacity=16, explain=said) is None
    assert len(said) == 1
    assert why in said[0]
    state = filled(MODEL, 6)
    append_plain(path, state, TOKENS[:6])
    assert path.read_bytes()[: len(expected([(2, 32)] * 3, TOKENS[:6]))] == expected([(2, 32)] * 3, TOKENS[:6])
    assert load(path, MODEL, capacity=16).tokens == TOKENS[:6]


def test_a_count_beyond_the_file_is_not_believed(tmp_path):
    path = tmp_path / "a"
    content = expected([(2, 32)] * 3, TOKENS[:4])
    path.write_bytes(content[:8] + struct.pack("<Q", 1 << 62) + content[16:])
    assert load(path, MODEL) is None  # above every capacity
    path.write_bytes(content[:8] + struct.pack("<Q", 200) + content[16:])
    assert load(path, MODEL).tokens == TOKENS[:4]


def test_another_prefix_begins_the_file_anew(tmp_path):
    path, state = tmp_path / "a", filled(MODEL, 6)
    append_plain(path, state, TOKENS[2:6], 2)
    append_plain(path, state, TOKENS[3:6], 3)
    assert path.read_bytes() == expected([(2, 32)] * 3, TOKENS[:6], 3)
    append_plain(path, state, TOKENS[:6])
    assert path.read_bytes() == expected([(2, 32)] * 3, TOKENS[:6])


@pytest.mark.parametrize("prefix", [0, 2])
def test_files_in_q8_0_hold_blocks_as_weights_do(prefix, tmp_path):
    """Read by hand: the decoder of weights gives what the state holds.  A state of another dtype refuses the file."""
    path, layers = tmp_path / "a", (Kv(2, 32, 32), Kv(1, 64, 64))
    model = ToyModel(layers, "q8_0")
    state = filled(model, 7)
    append_plain(path, state, TOKENS[prefix:7], prefix)
    data, start = path.read_bytes(), (32 if prefix else 24) + 8 * len(layers)
    assert data[:8] == (b"FUXKV002" if prefix else b"FUXKV001") and data[start - 20 : start - 16] == struct.pack(
        "<I", 1
    )
    width = 4 + 2 * (2 * 34 + 2 * 34)
    assert len(data) == start + 7 * width
    records = np.frombuffer(data, np.uint8, offset=start).reshape(7, width)
    assert records[prefix:, :4].copy().view("<u4")[:, 0].tolist() == TOKENS[prefix:7]
    numbers = dequantize(np.ascontiguousarray(records[:, 4:]), GgmlType.Q8_0)  # [positions, numbers]
    rows = [plane for slot in range(2) for plane in state.read(slot, 0, 7)]  # [heads, positions, dim]
    assert np.array_equal(numbers, np.concatenate([r.swapaxes(0, 1).reshape(7, -1) for r in rows], axis=1))
    loaded = load(path, model, capacity=16)
    assert (loaded.tokens, loaded.prefix_rows) == (TOKENS[prefix:7], prefix)
    check_claims(loaded.state, TOKENS)
    other = ToyModel(layers, "f16")
    assert load(path, other) is None
    assert inspect(path, other).why == "its rows are q8_0, those of the cache f16"
    save(path, state, TOKENS[:7])
    assert read_header(path).dtype == "q8_0" and load(path, other) is None
    assert inspect(path, other).why == "its rows are q8_0, those of the cache f16"


def test_tokens_must_be_as_many_as_rows(tmp_path):
    path, state = tmp_path / "a", filled(MODEL, 6)
    for tokens, prefix in ((TOKENS[:5], 0), (TOKENS[:7], 0), (TOKENS[:6], 1)):
        for write in (append_plain, lambda *a: save(*a[:3], version=2, prefix_rows=a[3])):
            with pytest.raises(KvPersistTokenMismatch, match=f"{len(tokens)} tokens .* expected {6 - prefix}$"):
                write(path, state, tokens, prefix)
    assert not path.exists()


def test_states_that_these_versions_cannot_hold_are_refused(tmp_path):
    path = tmp_path / "a"
    for parts, dtype, why in (
        (LAYERS, "f32", "those of the state are f32"),
        ((Kv(1, 2, 4),), "f16", "of one size; part 0 is Kv"),
        ((Kv(1, 2, 2), Latent(4, 2)), "f16", "part 1 is Latent"),
        ((Kv(1, 2, 2), Recurrent((3,))), "f16", "part 1 is Recurrent"),
    ):
        model = ToyModel(parts, dtype)
        for write in (append_plain, lambda p, s, t: save(p, s, t, version=1)):
            with pytest.raises(KvFileInvalid, match=why):
                write(path, filled(model, 5), TOKENS[:5])
    with pytest.raises(KvFileInvalid, match="version 1 has no prefix"):
        save(path, filled(MODEL, 5), TOKENS[1:5], version=1, prefix_rows=1)
    with pytest.raises(KvFileInvalid, match="version must be 1, 2 or 3, got 4"):
        save(path, filled(MODEL, 5), TOKENS[:5], version=4)
    with pytest.raises(KvFileInvalid, match="have no notes"):
        save(path, filled(MODEL, 5), TOKENS[:5], version=1, notes=[b"a"])


def test_windows_go_into_these_versions_as_long_as_all_rows_are_there(tmp_path):
    path, model = tmp_path / "a", ToyModel((Kv(1, 2, 2), Kv(1, 2, 2, window=20)), "f16")
    state = model.new_cache()
    extend(state, TOKENS[:50])
    append_plain(path, state, TOKENS[:50])
    extend(state, TOKENS[:100])
    append_plain(path, state, TOKENS[:100])
    loaded = load(path, model)
    assert (loaded.tokens, loaded.state.len) == (TOKENS[:100], 100)
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    assert load(path, model).tokens == TOKENS[:99]
    for target in ("b", "c"):
        (tmp_path / "c").write_bytes(b"something else")
        with pytest.raises(KvFileInvalid, match="no longer holds all rows from position 0 on"):
            append_plain(tmp_path / target, state, TOKENS[:100])
    assert (tmp_path / "c").read_bytes() == b"something else"


def test_a_missing_file_is_no_error_and_a_folder_is(tmp_path):
    why = []
    assert load(tmp_path / "none", MODEL, explain=why) is None
    assert "there is no such file" in why[0]
    with pytest.raises(KvFileError, match="is a folder"):
        load(tmp_path, MODEL)
