"""Safetensors: what is read, and damaged files, which give a named error or a model that converts."""

from __future__ import annotations

import json
import random
import struct
import tracemalloc

import numpy as np
import pytest

from fucina.convert import SafetensorsFile, convert
from fucina.convert.lazy import numbers
from fucina.convert.safetensors import ITEM_BYTES, WEIGHTS, read_folder
from fucina.errors import ConvertError, FucinaError, SafetensorsError
from tests.published import PUBLISHED, published

from .test_convert import changed, laid_out, split

WORDS = [0, 1, 2, 7, 8, 9, 255, 2**16, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1]


def file(path, header, data=b""):
    """A file of this header (an object, or the bytes of one) and data."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return path


def entry(dtype="F32", shape=(2, 3), offsets=(0, 24), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


def test_values_of_every_kind(tmp_path):
    values = np.array([[0.5, -1.0, 3.0], [0.0, 2.0, -0.25]], np.float32)
    half = (values.view(np.uint32) >> 16).astype(np.uint16)
    raw = {"a": values.tobytes(), "b": values.astype(np.float16).tobytes(), "c": half.tobytes(), "d": b"\1\0"}
    kinds = {"a": ("F32", [2, 3]), "b": ("F16", [3, 2]), "c": ("BF16", [6]), "d": ("BOOL", [2])}
    header, data = laid_out({n: {"dtype": k, "shape": s} for n, (k, s) in kinds.items()}, raw)
    found = SafetensorsFile(
        file(tmp_path / "x.safetensors", {"__metadata__": {"format": "pt"}, **header}, data)
    ).tensors
    assert {name: (t.dtype, list(t.shape)) for name, t in found.items()} == kinds
    for name in "abc":
        x = numbers(found[name])
        assert x.shape == found[name].shape and np.array_equal(x.rows(0, x.n_rows).reshape(-1), values.reshape(-1))
    with pytest.raises(SafetensorsError, match="BOOL"):
        numbers(found["d"])
    assert set(WEIGHTS) < set(ITEM_BYTES)


def test_an_empty_tensor_and_one_without_axes(tmp_path):
    header = {"none": entry(shape=(0, 4), offsets=(0, 0)), "one": entry(shape=(), offsets=(0, 4))}
    found = SafetensorsFile(file(tmp_path / "x.safetensors", header, bytes(4))).tensors
    for tensor in found.values():
        with pytest.raises(SafetensorsError, match="expected some numbers"):
            numbers(tensor)


@pytest.mark.parametrize(
    ("header", "data", "found"),
    [
        (b"", 0, "no JSON"),
        (b"[1]", 0, "list"),
        (b'{"a": 1, "a": 2}', 0, "twice"),
        (b"\xff{}", 0, "no JSON"),
        (b"[" * 200_000, 0, "no JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", 0, "no JSON"),
        ({"a": 1}, 0, "expected dtype, shape"),
        ({"a": entry(more=1)}, 24, "expected dtype, shape"),
        ({"a": entry("F33")}, 24, "F33"),
        ({"a": entry(["F32"])}, 24, "dtype"),
        ({"a": entry(shape=(2.0, 3))}, 24, "list of counts"),
        ({"a": entry(shape=(True, 6))}, 24, "list of counts"),
        ({"a": entry(shape=(-2, -3))}, 24, "list of counts"),
        ({"a": entry(shape=(2**70,))}, 24, "list of counts"),
        ({"a": entry(shape=(2**62, 4), offsets=(0, 0))}, 0, "needs"),
        ({"a": entry(shape=(1,) * 9, offsets=(0, 4))}, 4, "at most 8"),
        ({"a": entry(offsets=(24, 0))}, 24, "beginning and an end"),
        ({"a": entry(offsets=(0, 24, 48))}, 48, "beginning and an end"),
        ({"a": entry(offsets=(0, 20))}, 24, "needs 24 bytes"),
        ({"a": entry(offsets=(4, 28))}, 28, "4 bytes after"),
        ({"a": entry(), "b": entry(offsets=(20, 44))}, 44, "overlaps"),
        ({"a": entry(), "b": entry()}, 24, "overlaps"),
        ({"a": entry()}, 20, "ends 4 bytes before"),
        ({"a": entry()}, 25, "1 bytes follow"),
    ],
)
def test_headers_that_lie(header, data, found, tmp_path):
    with pytest.raises(SafetensorsError, match=found):
        SafetensorsFile(file(tmp_path / "x.safetensors", header, bytes(data)))


@pytest.mark.parametrize("raw", [b"", b"1234567", struct.pack("<Q", 2**63) + b"{}", struct.pack("<Q", 3) + b"{}"])
def test_files_that_are_too_short(raw, tmp_path):
    (tmp_path / "x.safetensors").write_bytes(raw)
    with pytest.raises(SafetensorsError, match="bytes"):
        SafetensorsFile(tmp_path / "x.safetensors")


def test_paths_that_are_no_files(tmp_path):
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(SafetensorsError):
            SafetensorsFile(path)
    with pytest.raises(SafetensorsError, match="no file"):
        read_folder(tmp_path)


def test_an_index_that_lies(tmp_path):
    folder = split(published("llama", tmp_path))
    path = folder / "model.safetensors.index.json"
    places = json.loads(path.read_text())["weight_map"]
    name, place = next(iter(places.items()))
    other = next(p for p in places.values() if p != place)
    for wrong, found in [
        ({**places, name: other}, "which the index places"),
        ({k: v for k, v in places.items() if k != name}, "which the index places"),
        ({**places, "more": place}, "lacks the tensor 'more'"),
        ({**places, name: "../llama/" + place}, "in the same folder"),
        ({**places, name: 3}, "in the same folder"),
        ({**places, "more": "nothing.safetensors"}, "nothing"),
        ([], "weight_map"),
    ]:
        changed(folder, path.name, weight_map=wrong)
        with pytest.raises(SafetensorsError, match=found):
            read_folder(folder)
    path.write_text("{")
    with pytest.raises(SafetensorsError, match="no JSON"):
        read_folder(folder)
    path.unlink()
    with pytest.raises(SafetensorsError, match="2 files"):
        read_folder(folder)


def damaged(rng, raw: bytes) -> bytes:
    """A file with a few bytes, numbers of its header or pieces changed."""
    raw = bytearray(raw)
    n = 8 + int.from_bytes(raw[:8], "little")
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(n) if rng.random() < 0.9 else rng.randrange(len(raw))
        match rng.choice(["byte", "digit", "word", "cut", "insert", "remove", "copy"]):
            case "byte":
                raw[at : at + 1] = bytes([rng.randrange(256)])
            case "digit":
                digits = [i for i in range(at, min(n, len(raw))) if 48 <= raw[i] < 58]
                if digits:
                    raw[digits[0] : digits[0] + 1] = str(rng.choice(WORDS)).encode()
            case "word":
                raw[:8] = struct.pack("<Q", rng.choice(WORDS))
            case "cut":
                del raw[rng.randrange(len(raw)) :]
            case "insert":
                raw[at:at] = rng.randbytes(rng.randint(1, 20))
            case "remove":
                del raw[at : at + rng.randint(1, 20)]
            case "copy":
                raw[at:at] = raw[at : at + rng.randint(1, 100)]
        if not raw:
            break
    return bytes(raw)


def test_damaged_files(tmp_path):
    """2,000 files: a named error, or tensors whose every number can be read."""
    raw, rng, opened = (PUBLISHED / "qwen35.safetensors").read_bytes(), random.Random(15), 0
    path = tmp_path / "x.safetensors"
    tracemalloc.start()
    try:
        for _ in range(2000):
            path.write_bytes(damaged(rng, raw))
            try:
                tensors = SafetensorsFile(path).tensors
                for tensor in tensors.values():
                    x = numbers(tensor)
                    assert x.rows(0, x.n_rows).size == tensor.data.size // ITEM_BYTES[tensor.dtype]
                opened += 1
            except SafetensorsError as error:
                assert str(error) and len(str(error)) < 1000
        assert tracemalloc.get_traced_memory()[1] < 64 * len(raw)
    finally:
        tracemalloc.stop()
    assert 0 < opened < 1000


def test_damaged_folders(tmp_path):
    """300 folders with one damaged file: an error of this package and no file, or a model."""
    folder, rng, made = published("qwen3moe", tmp_path), random.Random(7), 0
    files = ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]
    kept = {file: (folder / file).read_bytes() for file in files}
    for _ in range(300):
        file = rng.choice(files)
        raw = kept[file]
        raw = damaged(rng, raw) if file.endswith("s") else damaged(rng, struct.pack("<Q", len(raw)) + raw)[8:]
        (folder / file).write_bytes(raw)
        try:
            convert(folder, tmp_path / "out.gguf", "F32")
            made += 1
        except FucinaError as error:
            assert str(error)
            assert not (tmp_path / "out.gguf").exists()
        (tmp_path / "out.gguf").unlink(missing_ok=True)
        (folder / file).write_bytes(kept[file])
    assert made < 250 and {path.name for path in tmp_path.iterdir()} == {"qwen3moe"}


@pytest.mark.parametrize("at", range(8))
def test_truncated_files(at, tmp_path):
    """Cut anywhere in the header or the data."""
    folder = published("llama", tmp_path)
    raw = (folder / "model.safetensors").read_bytes()
    for stop in range(at, len(raw), 4001):
        (folder / "model.safetensors").write_bytes(raw[:stop])
        with pytest.raises(ConvertError, match=r"complete\?|expected a file"):
            read_folder(folder)
