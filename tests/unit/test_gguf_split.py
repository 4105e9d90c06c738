"""Models that are split over several files."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from fucina.errors import GgufError, GgufOpenError
from fucina.gguf import GgufFile, Typed, ValueType, write_gguf
from tests.gguf_files import U16, build, kv, tensor, write_split

METADATA = {"general.architecture": "llama", "llama.block_count": 7}
TENSORS = {f"t{i}": (np.full((2, 4), i, np.float32), "F32") for i in range(7)}


@pytest.fixture
def parts(tmp_path):
    return write_split(tmp_path, "model", METADATA, TENSORS, 3)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_any_part_opens_all(parts, which):
    with GgufFile(parts[which]) as file:
        assert file.path == parts[which] and file.parts == parts
        assert list(file.tensors) == list(TENSORS)
        for name, (value, _) in TENSORS.items():
            np.testing.assert_array_equal(file.tensor(name).numbers(), value)
        assert {t.part for t in file.tensors.values()} == {0, 1, 2}
        assert file.metadata.int("llama.block_count") == 7
        assert "3 parts" in repr(file)


def test_str_and_relative_paths(parts, monkeypatch):
    monkeypatch.chdir(parts[0].parent)
    with GgufFile(parts[1].name) as file:
        assert len(file.tensors) == 7


@pytest.mark.parametrize("opened", [0, 1])
def test_missing_part_is_named(parts, opened):
    parts[2].unlink()
    with pytest.raises(GgufOpenError, match="missing beside it: model-00003-of-00003.gguf"):
        GgufFile(parts[opened])


def test_missing_first_part_is_named(parts):
    parts[0].unlink()
    with pytest.raises(GgufOpenError, match="model-00001-of-00003.gguf"):
        GgufFile(parts[1])


def test_folder_names_the_first_part(parts):
    with pytest.raises(GgufOpenError, match="model-00001-of-00003.gguf"):
        GgufFile(parts[0].parent)


def test_renamed_part(parts):
    other = parts[1].rename(parts[1].with_name("other.gguf"))
    with pytest.raises(GgufError, match="part 2 of a model split over 3 files.*-00002-of-00003.gguf"):
        GgufFile(other)


def test_name_contradicts_metadata(parts):
    other = parts[1].rename(parts[1].with_name("model-00003-of-00004.gguf"))
    with pytest.raises(GgufError, match="name says part 3 of 4, the metadata says part 2 of 3"):
        GgufFile(other)


def test_parts_exchanged(parts):
    first, second = parts[1].read_bytes(), parts[2].read_bytes()
    parts[1].write_bytes(second)
    parts[2].write_bytes(first)
    with pytest.raises(GgufError, match="split.no is 2 and split.count 3; expected 1 and 3"):
        GgufFile(parts[0])


def test_part_of_another_model(parts, tmp_path):
    write_split(tmp_path, "model", METADATA, {**TENSORS, **{f"more{i}": TENSORS["t0"] for i in range(5)}}, 3)
    saved = parts[2].read_bytes()
    write_split(tmp_path, "model", METADATA, TENSORS, 3)
    parts[2].write_bytes(saved)
    with pytest.raises(GgufError, match="split.tensors.count is 7, but the 3 parts hold"):
        GgufFile(parts[0])


def test_tensor_in_two_parts(parts):
    extra = {"split.no": np.uint16(2), "split.count": np.uint16(3)}
    write_gguf(parts[2], extra, {"t0": TENSORS["t0"]})
    with pytest.raises(GgufError, match="'t0' is in model-00001-of-00003.gguf as well"):
        GgufFile(parts[0])


def test_damaged_part_is_named(parts):
    parts[2].write_bytes(parts[2].read_bytes()[:-40])
    with pytest.raises(GgufError, match="model-00003-of-00003.gguf.*complete file"):
        GgufFile(parts[0])


def test_plain_file_as_part(parts):
    write_gguf(parts[1], {}, {"t9": TENSORS["t0"]})
    with pytest.raises(GgufError, match="split.no is None and split.count None; expected 1 and 3"):
        GgufFile(parts[0])


@pytest.mark.parametrize("count", [0, 1])
def test_split_count_of_a_single_file(tmp_path, count):
    path = tmp_path / "single.gguf"
    keys = [kv("split.no", U16, struct.pack("<H", 0)), kv("split.count", U16, struct.pack("<H", count))]
    path.write_bytes(build(keys, [tensor(f"t{i}", [4], 0, 32 * i) for i in range(7)], bytes(7 * 32)))
    with GgufFile(path) as file:
        assert file.parts == [path] and len(file.tensors) == 7


@pytest.mark.parametrize("key", ["split.count", "split.no"])
def test_split_keys_of_a_wrong_type(tmp_path, key):
    path = tmp_path / "model-00001-of-00002.gguf"
    write_gguf(path, {"split.no": np.uint16(0), "split.count": np.uint16(2), key: "two"}, TENSORS)
    with pytest.raises(GgufError, match=f"'{key}': expected an integer, found string 'two'"):
        GgufFile(path)


@pytest.mark.parametrize("count", [2**63, 10**6])
def test_absurd_split_count(tmp_path, count):
    path = tmp_path / "model-00001-of-00002.gguf"
    write_gguf(path, {"split.no": np.uint16(0), "split.count": np.uint64(count)}, TENSORS)
    with pytest.raises(GgufError, match=f"of {count}"):
        GgufFile(path)


@pytest.mark.parametrize("name", ["merged.gguf", "model-00001-of-00003.gguf", "merged-00001-of-00001.gguf"])
def test_a_merged_file_is_whole(parts, tmp_path, name):
    path = tmp_path / "merged" / name
    path.parent.mkdir()
    with GgufFile(parts[0]) as file:
        entries = {key: file.metadata.entry(key) for key in file.metadata}
        for metadata in (file.metadata, dict(file.metadata), entries):
            write_gguf(path, metadata, file.tensors)
            with GgufFile(path) as merged:
                assert merged.parts == [path] and list(merged.tensors) == list(TENSORS)
                assert list(merged.metadata) == list(METADATA)
                np.testing.assert_array_equal(merged.tensor("t6").numbers(), TENSORS["t6"][0])


def test_a_part_written_again_stays_a_part(parts):
    with GgufFile(parts[1]) as file:
        mine = {name: t for name, t in file.tensors.items() if t.part == 0}
        metadata = dict.fromkeys(file.metadata) | {key: file.metadata.entry(key) for key in file.metadata}
        write_gguf(parts[0], metadata, mine)
    with GgufFile(parts[2]) as file:
        assert file.parts == parts and len(file.tensors) == 7


NUMBERS = [-(2**63), -1, 0, 1, 2, 3, 4, 99_999, 100_000, 2**31, 2**63 - 1, 2**63, 2**64 - 1]


@pytest.mark.parametrize("key", ["split.no", "split.count", "split.tensors.count"])
@pytest.mark.parametrize("value", NUMBERS)
def test_any_number_in_a_split_key_is_right_or_refused(parts, key, value):
    right = {"split.no": 0, "split.count": 3, "split.tensors.count": 7}
    kind = ValueType.I64 if value < 2**63 else ValueType.U64
    with GgufFile(parts[0]) as file:
        mine = {name: t for name, t in file.tensors.items() if t.part == 0}
        write_gguf(parts[0], METADATA | right | {key: Typed(value, kind)}, mine)
    if value == right[key]:
        GgufFile(parts[0]).close()
    elif not (key == "split.count" and value in (-(2**63), -1, 0, 1)):  # those say that the file is whole
        with pytest.raises(GgufError, match="model-0000"):
            GgufFile(parts[0])
