"""Typed metadata getters: right types pass, errors name the key, what was expected and what was found."""

from __future__ import annotations

import numpy as np
import pytest

from fucina.errors import GgufError
from fucina.gguf import GgufFile, Metadata
from tests.gguf_files import sample

GETTERS = {
    "int": {"t.u8": 7, "t.i8": -1, "t.u16": 65535, "t.i16": -3, "t.i32": -70000, "t.u64": 2**64 - 1, "t.i64": -(2**63),
            "general.alignment": 64},
    "float": {"t.f32": 0.5, "t.f64": 1e300},
    "bool": {"t.bool": True},
    "str": {"general.architecture": "llama"},
    "ints": {"t.ints": [1, -2, 3]},
    "floats": {"t.floats": [1.5, -2.5]},
    "bools": {"t.bools": [True, False]},
    "strings": {"t.strings": [b"a", b"", b"\xe6\xad"], "t.none": []},
}  # fmt: skip


@pytest.fixture
def metadata(tmp_path) -> Metadata:
    (tmp_path / "m.gguf").write_bytes(sample())
    with GgufFile(tmp_path / "m.gguf") as file:
        return file.metadata


@pytest.mark.parametrize("getter", GETTERS)
def test_getters(metadata, getter):
    get = getattr(metadata, getter)
    for key, value in GETTERS[getter].items():
        found = get(key)
        assert list(found) == value if isinstance(value, list) else found == value
        if not isinstance(value, list):
            assert type(found).__name__ == getter
    right = set(GETTERS[getter])
    for key in metadata:
        if key in right or (getter == "str" and key == "t.bytes"):
            continue
        with pytest.raises(GgufError) as caught:
            get(key)
        for part in ("m.gguf", repr(key), "expected a", "found " + metadata.describe(key)):
            assert part in str(caught.value)
        with pytest.raises(GgufError):  # a default is for missing keys, not for wrong types
            get(key, default=None)
    with pytest.raises(GgufError, match="'no.such' is missing; expected a"):
        get("no.such")
    marker = object()
    assert get("no.such", default=marker) is marker
    assert get("no.such", None) is None


def test_dtypes(metadata):
    assert metadata.ints("t.ints").dtype == np.int64
    assert metadata.floats("t.floats").dtype == np.float32
    assert metadata.bools("t.bools").dtype == np.bool_


def test_invalid_utf8_string(metadata):
    with pytest.raises(GgufError, match="'t.bytes': expected a string of valid UTF-8, found an invalid byte at 0"):
        metadata.str("t.bytes")
    assert metadata["t.bytes"] == "\ufffd\ufffd"


def test_broadcast():
    m = Metadata.from_dict({"one": 5, "each": [1, 2, 3], "float": 2.0, "flag": True, "text": "x"})
    assert list(m.ints("one", broadcast=3)) == [5, 5, 5]
    assert list(m.ints("each", broadcast=3)) == [1, 2, 3]
    assert list(m.floats("float", broadcast=2)) == [2.0, 2.0]
    assert list(m.bools("flag", broadcast=2)) == [True, True]
    with pytest.raises(GgufError, match="'one': expected an array of integers, found u32 5"):
        m.ints("one")
    with pytest.raises(GgufError, match="4 of them, or one for all.*found array of 3 i32"):
        m.ints("each", broadcast=4)
    for key in ("flag", "text", "float"):
        with pytest.raises(GgufError, match=f"'{key}'"):
            m.ints(key, broadcast=2)
    assert m.ints("none", default=None, broadcast=2) is None


def test_integers_beyond_int64():
    m = Metadata.from_dict({"a": np.array([1, 2**63], np.uint64), "b": np.array([], np.uint64), "c": np.uint64(2**63)})
    with pytest.raises(GgufError, match="below"):
        m.ints("a")
    with pytest.raises(GgufError, match="below"):
        m.ints("c", broadcast=2)
    assert len(m.ints("b")) == 0
    assert m.int("c") == 2**63


def test_float64_beyond_float32_is_infinite():
    assert Metadata.from_dict({"a": np.array([1e300, 1.0])}).floats("a").tolist() == [np.inf, 1.0]


def test_mapping(metadata):
    assert "t.u8" in metadata and "absent" not in metadata
    assert metadata["t.u8"] == 7 and metadata["general.architecture"] == "llama"
    assert list(metadata["t.strings"]) == [b"a", b"", b"\xe6\xad"]
    assert metadata["t.strings"] == [b"a", b"", b"\xe6\xad"] and metadata["t.strings"] != [b"a"]
    assert metadata["t.strings"][2] == b"\xe6\xad" and len(metadata["t.strings"]) == 3
    assert metadata.get("absent") is None
    assert len(metadata) == len(list(metadata)) == 18
    assert metadata.describe("t.strings") == "array of 3 string"
    assert metadata.describe("absent") == "missing"
    with pytest.raises(KeyError):
        metadata["absent"]


def test_values_cannot_be_changed(metadata):
    with pytest.raises(ValueError):
        metadata["t.ints"][0] = 9
    metadata.strings("t.strings").append(b"more")
    assert len(metadata.strings("t.strings")) == 3
    metadata.ints("t.ints")[0] = 9
    assert list(metadata.ints("t.ints")) == [1, -2, 3]
