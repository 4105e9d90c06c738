"""Damaged files: whatever the bytes are, opening gives a GgufError or a file that can be used."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fucina.errors import GgufError, GgufIncomplete
from fucina.gguf import SUPPORTED, GgufFile, dequantize, parse
from fucina.gguf.parse import _Cursor, parse_header
from tests.gguf_files import sample

SAMPLE = sample()
WORDS = [0, 1, 2, 3, 7, 8, 9, 31, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1]


def use(file: GgufFile) -> None:
    """Touch everything that an open file offers."""
    for key in file.metadata:
        file.metadata.describe(key)
        value = file.metadata[key]
        if not isinstance(value, (str, int, float)):
            list(value)
    repr(file)
    for t in file.tensors.values():
        assert t.data.nbytes == t.nbytes and t.n_elements > 0
        int(t.data.sum())
        if t.ggml_type in SUPPORTED:
            assert dequantize(t.rows(), t.ggml_type).size == t.n_elements
        else:
            assert t.numbers().shape == t.shape
        t.release_pages()


def opens(path, raw: bytes) -> bool:
    path.write_bytes(raw)
    try:
        file = GgufFile(path)
    except GgufError as error:
        assert path.name in str(error) and len(str(error)) < 1000
        return False
    with file:
        use(file)
    return True


@st.composite
def damaged(draw) -> bytes:
    raw = bytearray(SAMPLE)
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, max(0, len(raw) - 1)))
        match draw(st.sampled_from(["byte", "u32", "u64", "cut", "insert", "remove", "copy"])):
            case "byte":
                raw[at : at + 1] = bytes([draw(st.integers(0, 255))])
            case "u32":
                raw[at : at + 4] = struct.pack("<I", draw(st.sampled_from(WORDS)) & 0xFFFFFFFF)
            case "u64":
                raw[at : at + 8] = struct.pack("<Q", draw(st.sampled_from(WORDS)))
            case "cut":
                del raw[at:]
            case "insert":
                raw[at:at] = draw(st.binary(max_size=40))
            case "remove":
                del raw[at : at + draw(st.integers(1, 40))]
            case "copy":
                raw[at:at] = raw[at : at + draw(st.integers(1, 200))]
    return bytes(raw)


@settings(max_examples=600, deadline=None)
@given(raw=damaged())
@example(raw=SAMPLE)
def test_damaged_files(tmp_path_factory, raw):
    opens(tmp_path_factory.getbasetemp() / "damaged.gguf", raw)


@settings(max_examples=150, deadline=None)
@given(raw=st.binary(max_size=300), version=st.sampled_from([2, 3]), whole=st.booleans())
def test_noise_after_the_magic(tmp_path_factory, raw, version, whole):
    counts = struct.pack("<QQ", raw[0] % 3, raw[-1] % 3) if whole and raw else b""
    opens(tmp_path_factory.getbasetemp() / "noise.gguf", b"GGUF" + struct.pack("<I", version) + counts + raw)


def test_every_byte_and_word_of_the_header():
    end = len(SAMPLE) - 240  # the data: any bytes are valid there
    opened = refused = 0
    tracemalloc.start()
    try:
        for at in range(end):
            for patch in (b"\0", b"\xff", bytes([SAMPLE[at] ^ 0x80]), bytes([SAMPLE[at] ^ 1]), b"\xff" * 8):
                raw = SAMPLE[:at] + patch + SAMPLE[at + len(patch) :]
                try:
                    header = parse_header(memoryview(raw), "patched")
                except GgufError:
                    refused += 1
                    continue
                opened += 1
                for t in header.tensors:
                    assert t.start >= 0 and t.start + t.nbytes <= len(raw)
                    assert t.nbytes > 0 and 1 <= len(t.shape) <= 4
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert opened > 500 and refused > 1000  # names and values may change; lengths, counts, types may not


class Recorder(_Cursor):
    """A cursor that remembers where the numbers of a header lie: (offset, bytes)."""

    def __init__(self, raw: bytes) -> None:
        super().__init__(memoryview(raw), "recorded")
        self.numbers: list[tuple[int, int]] = []

    def u32(self, field: str) -> int:
        self.numbers.append((self.at, 4))
        return super().u32(field)

    def u64(self, field: str) -> int:
        self.numbers.append((self.at, 8))
        return super().u64(field)


def numbers(raw: bytes, monkeypatch) -> list[tuple[int, int]]:
    recorder = Recorder(raw)
    monkeypatch.setattr(parse, "_Cursor", lambda view, where: recorder)
    parse_header(memoryview(raw), "recorded")
    monkeypatch.undo()
    return recorder.numbers


def test_every_number_replaced_by_extremes(tmp_path, monkeypatch):
    """Counts, lengths, types, dimensions, offsets: an error of its own class, and no memory on the word of a number."""
    places = numbers(SAMPLE, monkeypatch)
    at = SAMPLE.index(b"t.strings") + 9 + 16  # lengths inside an array of strings are read in a loop of their own
    places += [(at, 8), (at + 9, 8), (at + 17, 8)]
    assert len(places) > 70
    extremes = sorted(
        {(1 << n) + d & (1 << 64) - 1 for n in (0, 4, 7, 8, 16, 28, 31, 32, 40, 62, 63) for d in (-1, 0, 1)}
    )
    path = tmp_path / "extreme.gguf"
    opened = 0
    tracemalloc.start()
    try:
        for at, width in places:
            for value in {v & (1 << 8 * width) - 1 for v in extremes}:
                opened += opens(path, SAMPLE[:at] + value.to_bytes(width, "little") + SAMPLE[at + width :])
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert opened > 10  # a version, a type of the same size


def test_every_bit_flipped(tmp_path):
    end = len(SAMPLE) - 240
    for at in range(end):
        for bit in range(8):
            raw = SAMPLE[:at] + bytes([SAMPLE[at] ^ 1 << bit]) + SAMPLE[at + 1 :]
            try:
                parse_header(memoryview(raw), "flipped")
            except GgufError as error:
                assert "flipped: " in str(error) and len(str(error)) < 1000


def test_every_cut_is_called_incomplete(tmp_path):
    path = tmp_path / "cut.gguf"
    for cut in range(len(SAMPLE)):
        path.write_bytes(SAMPLE[:cut])
        with pytest.raises(GgufIncomplete) as caught:
            GgufFile(path)
        assert "cut.gguf: the file is " in str(caught.value) and (cut == 0 or str(cut) in str(caught.value))


def test_undamaged(tmp_path):
    assert opens(tmp_path / "sample.gguf", SAMPLE)
