"""Writing GGUF files: what is read back equals what was written, and failures leave nothing behind."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fucina.errors import BlockFormatError, GgufError
from fucina.gguf import (
    WRITABLE,
    GgmlType,
    GgufFile,
    Metadata,
    Typed,
    ValueType,
    block_shape,
    dequantize,
    quantize,
    row_bytes,
    write_gguf,
)  # fmt: skip
from fucina.gguf.limits import MAX_NAME
from fucina.gguf.parse import parse_header
from fucina.gguf.types import VALUE_DTYPES
from tests.gguf_files import sample

V = ValueType


def test_types_chosen_for_plain_values():
    values = {
        "bool": True, "u32": 2**32 - 1, "i32": -1, "i64": -(2**31) - 1, "i64b": 2**32, "u64": 2**63, "f32": 0.1,
        "str": "é", "bytes": b"\xff", "f64": np.float64(0.1), "u8": np.uint8(3), "npb": np.bool_(False),
        "ints": [1, -1], "uints": [1, 2**31], "longs": [-1, 2**31], "ulongs": [0, 2**63], "floats": (0.5, 1.0),
        "bools": [True, False], "strs": ["a", b"b"], "arr": np.array([1, 2], np.int8),
        "empty": np.array([], np.float32),
    }  # fmt: skip
    m = Metadata.from_dict(values)
    found = {k: m.entry(k).item.label + "[]" if m.entry(k).item is not None else m.entry(k).type.label for k in m}
    assert found == {
        "bool": "bool", "u32": "u32", "i32": "i32", "i64": "i64", "i64b": "i64", "u64": "u64", "f32": "f32",
        "str": "string", "bytes": "string", "f64": "f64", "u8": "u8", "npb": "bool",
        "ints": "i32[]", "uints": "u32[]", "longs": "i64[]", "ulongs": "u64[]", "floats": "f32[]",
        "bools": "bool[]", "strs": "string[]", "arr": "i8[]", "empty": "f32[]",
    }  # fmt: skip
    assert m.float("f32") == float(np.float32(0.1)) and m.float("f64") == 0.1
    assert m.strings("strs") == [b"a", b"b"]


def scalars():
    for kind, dtype in VALUE_DTYPES.items():
        if dtype.kind in "iu":
            info = np.iinfo(dtype)
            yield kind, st.integers(int(info.min), int(info.max))
        elif dtype.kind == "b":
            yield kind, st.booleans()
        else:
            yield kind, st.floats(width=dtype.itemsize * 8, allow_nan=False)
    yield V.STRING, st.one_of(st.binary(max_size=20), st.text(max_size=10).map(lambda s: s.encode("utf-8", "ignore")))


TYPED = st.one_of(
    *[values.map(lambda v, k=kind: Typed(v, k)) for kind, values in scalars()],
    *[st.lists(values, max_size=5).map(lambda v, k=kind: Typed(v, V.ARRAY, k)) for kind, values in scalars()],
)
KEYS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).filter(lambda k: k != "general.alignment")


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_round_trip(tmp_path_factory, data):
    metadata = data.draw(st.dictionaries(KEYS, TYPED, max_size=6))
    alignment = data.draw(st.sampled_from([None, 8, 16, 32, 256]))
    if alignment:
        metadata["general.alignment"] = alignment
    tensors = {}
    for name in data.draw(st.lists(KEYS, max_size=4, unique=True)):
        t = data.draw(st.sampled_from(sorted(WRITABLE)))
        cols, size = block_shape(t)
        lead = data.draw(st.lists(st.integers(1, 3), max_size=2))
        blocks = data.draw(st.integers(1, 3))
        raw = data.draw(arrays(np.uint8, (*lead, blocks * size)))
        tensors[name] = (raw, t, (*lead, blocks * cols))
    path = tmp_path_factory.getbasetemp() / "round-trip.gguf"
    write_gguf(path, metadata, {n: (raw, t) for n, (raw, t, _) in tensors.items()})
    assert not list(path.parent.glob(".*.tmp"))
    check_read_back(path, metadata, alignment or 32, tensors)


def check_read_back(path, metadata, alignment, tensors):
    # A function of its own: on Windows the next example can replace the file only once no view of it is left.
    with GgufFile(path) as file:
        assert file.version == 3 and file.alignment == alignment
        assert list(file.metadata) == list(metadata)
        for key, value in metadata.items():
            if key == "general.alignment":
                continue
            entry = file.metadata.entry(key)
            assert (entry.type, entry.item) == (value.type, value.item)
            assert list(entry.value) == value.value if value.type == V.ARRAY else entry.value == value.value
        assert list(file.tensors) == list(tensors)
        for name, (raw, t, shape) in tensors.items():
            info = file.tensor(name)
            assert (info.shape, info.ggml_type) == (shape, t)
            np.testing.assert_array_equal(info.data, raw.reshape(-1))


@pytest.mark.parametrize("t", sorted(WRITABLE), ids=str)
def test_floats_are_quantised(tmp_path, t):
    x = np.random.default_rng(2).normal(size=(2, 3, 512)).astype(np.float32)
    write_gguf(tmp_path / "m.gguf", {}, {"x": (x, t), "v": (x[0, 0], t.name), "d": (x[0].astype(np.float64), int(t))})
    with GgufFile(tmp_path / "m.gguf") as file:
        info = file.tensor("x")
        assert info.shape == x.shape and info.row_bytes == row_bytes(512, t)
        np.testing.assert_array_equal(info.rows(), quantize(x.reshape(6, 512), t))
        assert file.tensor("v").shape == (512,)
        np.testing.assert_array_equal(dequantize(file.tensor("d").rows(), t), dequantize(info.rows()[:3], t))


def test_large_tensor_is_written_in_pieces(tmp_path):
    x = np.random.default_rng(2).normal(size=(3000, 2048)).astype(np.float32)
    write_gguf(tmp_path / "m.gguf", {}, {"x": (x, "Q8_0")})
    with GgufFile(tmp_path / "m.gguf") as file:
        np.testing.assert_array_equal(file.tensor("x").rows()[::100], quantize(x[::100], "Q8_0"))


def test_plain_numbers(tmp_path):
    dtypes = {"I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64, "F64": np.float64, "F16": np.float16}
    numbers = {t: np.arange(-3, 3).astype(dtype).reshape(2, 3) for t, dtype in dtypes.items()}
    write_gguf(tmp_path / "m.gguf", {}, {t: (x, t) for t, x in numbers.items()})
    with GgufFile(tmp_path / "m.gguf") as file:
        for t, x in numbers.items():
            np.testing.assert_array_equal(file.tensor(t).numbers(), x)
            assert file.tensor(t).numbers().dtype == x.dtype


def test_sample_survives_copying(tmp_path):
    (tmp_path / "a.gguf").write_bytes(sample())
    with GgufFile(tmp_path / "a.gguf") as a:
        entries = {k: a.metadata.entry(k) for k in a.metadata}
        write_gguf(tmp_path / "b.gguf", entries, a.tensors)
    copied, original = (tmp_path / "b.gguf").read_bytes(), sample()
    assert copied[: len(original)] == original and not copied[len(original) :].strip(b"\0")


def test_replaces_an_existing_file(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"old")
    write_gguf(str(path), {"a": 1}, {})
    with GgufFile(path) as file:
        assert file.metadata.int("a") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["m.gguf"]


def test_failure_leaves_the_old_file(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"old")
    x = np.ones((4, 32), np.float32)
    x[3, 3] = np.nan  # found only while writing
    with pytest.raises(BlockFormatError, match="NaN"):
        write_gguf(path, {}, {"good": (np.ones((4, 32), np.float32), "Q8_0"), "bad": (x, "Q8_0")})
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["m.gguf"]


def test_missing_folder(tmp_path):
    with pytest.raises(OSError):
        write_gguf(tmp_path / "absent" / "m.gguf", {}, {})


@pytest.mark.parametrize(
    "value",
    [None, [], [1, "a"], [True, 1], [[1]], {}, 2**64, -(2**63) - 1, 1j, np.zeros((2, 2)), np.array(["a"]), object(),
     1e39, -1e39, 1e-60, [0.5, 3.5e38], Typed(1e39, V.F32), Typed([1.0, -1e300], V.ARRAY, V.F32), Typed(10**400, V.F64),
     "\ud83d", Typed(300, V.U8), Typed(-1, V.U32), Typed(1.5, V.I32), Typed(True, V.I32), Typed(1, V.BOOL),
     Typed("1", V.I32), Typed(1, V.STRING), Typed([1], V.ARRAY), Typed([[1]], V.ARRAY, V.ARRAY),
     Typed([1, 2.5], V.ARRAY, V.I32)],
    ids=lambda value: repr(value).partition(" at 0x")[0],
)  # fmt: skip
def test_metadata_that_cannot_be_written(tmp_path, value):
    with pytest.raises(GgufError):
        write_gguf(tmp_path / "m.gguf", {"k": value}, {})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("key", ["", 3, "\ud83d"])
def test_bad_keys(tmp_path, key):
    with pytest.raises(GgufError):
        write_gguf(tmp_path / "m.gguf", {key: 1}, {})
    with pytest.raises(GgufError):
        write_gguf(tmp_path / "m.gguf", {}, {key: (np.zeros(4, np.float32), "F32")})


@pytest.mark.parametrize("key", ["k" * (MAX_NAME + 1), "\u00e9" * (MAX_NAME // 2 + 1)])
def test_names_too_long(tmp_path, key):
    with pytest.raises(GgufError, match=f"has {MAX_NAME + 1} bytes; expected at most {MAX_NAME}"):
        write_gguf(tmp_path / "m.gguf", {key: 1}, {})
    with pytest.raises(GgufError, match=f"has {MAX_NAME + 1} bytes; expected at most {MAX_NAME}"):
        write_gguf(tmp_path / "m.gguf", {}, {key: (np.zeros(4, np.float32), "F32")})
    write_gguf(tmp_path / "m.gguf", {key[:-1]: 1}, {})
    with GgufFile(tmp_path / "m.gguf") as file:
        assert file.metadata.int(key[:-1]) == 1


def test_floats_are_rounded_and_keep_infinities(tmp_path):
    values = {"a": 0.1, "b": math.inf, "c": -math.inf, "d": 0.0, "e": 1e-45, "f": np.float64(1e300), "g": 3.4028235e38}
    write_gguf(tmp_path / "m.gguf", values, {})
    with GgufFile(tmp_path / "m.gguf") as file:
        for key, value in values.items():
            found = file.metadata.float(key)
            assert found == value if key == "f" else np.float32(found) == np.float32(value) != 0 or value == 0


def test_types_of_an_open_file_are_kept(tmp_path):
    write_gguf(tmp_path / "a.gguf", {"a": np.float64(0.1), "b": np.uint8(3), "c": b"\xff", "d": Typed(1, V.I64)}, {})
    with GgufFile(tmp_path / "a.gguf") as file:
        write_gguf(tmp_path / "b.gguf", file.metadata, {})
    assert (tmp_path / "b.gguf").read_bytes() == (tmp_path / "a.gguf").read_bytes()


def test_the_longest_file_name(tmp_path):
    path = tmp_path / ("m" * 250 + ".gguf")
    write_gguf(path, {"a": 1}, {})
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("value", [0, 1, 33, 2**22, 2**31, "32", np.uint16(32)])
def test_bad_alignment(tmp_path, value):
    with pytest.raises(GgufError, match="general.alignment"):
        write_gguf(tmp_path / "m.gguf", {"general.alignment": value}, {})


@pytest.mark.parametrize(
    ("x", "t"),
    [(np.zeros((2, 33), np.float32), "Q4_0"), (np.zeros((2, 19), np.uint8), "Q4_0"),
     (np.zeros((2, 32), np.int32), "Q4_0"), (np.zeros(3, np.float32), "I32"), (np.zeros((), np.float32), "F32"),
     (np.zeros((2, 0), np.float32), "F32"), (np.zeros((1,) * 5, np.float32), "F32"), ([1.0], "F32"),
     (np.zeros(256, np.float32), "IQ2_S"), (np.zeros(256, np.float32), 99)],
)  # fmt: skip
def test_tensors_that_cannot_be_written(tmp_path, x, t):
    with pytest.raises(GgufError):
        write_gguf(tmp_path / "m.gguf", {}, {"t": (x, t)})
    assert not list(tmp_path.iterdir())


def test_the_bytes_are_those_of_the_format(tmp_path):
    write_gguf(tmp_path / "m.gguf", {"k": "v"}, {"t": (np.float32([[1, 2]]), GgmlType.F32)})
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<IQ", 8, 1) + b"v"
    head += struct.pack("<Q", 1) + b"t" + struct.pack("<IQQIQ", 2, 2, 1, 0, 0)
    head += bytes(-len(head) % 32) + struct.pack("<2f", 1, 2)
    found = (tmp_path / "m.gguf").read_bytes()
    assert found == head + bytes(24)
    assert parse_header(memoryview(found), "x").tensors[0].shape == (1, 2)
