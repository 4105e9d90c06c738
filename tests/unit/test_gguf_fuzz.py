"""Damaged files: whatever the bytes are, opening gives a GgufError or a file that can be used."""

from __future__ import annotations

import struct
import tracemalloc

from hypothesis import example, given, settings
from hypothesis import strategies as st

from fucina.errors import GgufError
from fucina.gguf import SUPPORTED, GgufFile, dequantize
from fucina.gguf.parse import parse_header
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
                    assert 0 <= t.start and t.start + t.nbytes <= len(raw)
                    assert t.nbytes > 0 and 1 <= len(t.shape) <= 4
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert opened > 500 and refused > 1000  # names and values may change; lengths, counts, types may not


def test_undamaged(tmp_path):
    assert opens(tmp_path / "sample.gguf", SAMPLE)
