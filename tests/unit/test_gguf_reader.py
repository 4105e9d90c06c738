"""The GGUF reader: valid files, and every way in which a file can be wrong."""

from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from fucina.errors import GgufError, GgufIncomplete, GgufOpenError
from fucina.gguf import READABLE, GgmlType, GgufFile, dequantize, write_gguf
from fucina.gguf.limits import MAX_HEADER, MAX_NAME
from fucina.gguf.parse import parse_header
from tests.gguf_files import ARRAY, BOOL, STRING, U32, array, build, kv, sample, string, tensor
from tests.models import TINY, need_smollm2

HUGE = [2**31, 2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1]


@pytest.fixture
def put(tmp_path):
    def put(raw: bytes, name: str = "model.gguf") -> Path:
        path = tmp_path / name
        path.write_bytes(raw)
        return path

    return put


def refused(path: Path, *parts: str) -> str:
    """Opening raises GgufError whose message holds the file's name and all parts."""
    with pytest.raises(GgufError) as caught:
        GgufFile(path)
    for part in (path.name, *parts):
        assert part in str(caught.value)
    return str(caught.value)


# --- valid files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 3])
def test_sample(put, version):
    with GgufFile(str(put(sample(version)))) as file:
        assert (file.version, file.alignment) == (version, 64)
        assert list(file.tensors) == ["norm", "w", "e"]
        norm, w, e = file.tensors.values()
        assert (norm.shape, norm.ggml_type, norm.nbytes, norm.n_elements) == ((5,), GgmlType.F32, 20, 5)
        assert (w.shape, w.ggml_type, w.nbytes, w.row_bytes) == ((3, 64), GgmlType.Q4_1, 120, 40)
        assert (e.shape, e.ggml_type, e.nbytes) == ((2, 3, 4), GgmlType.F16, 48)
        assert file.nbytes == 188
        np.testing.assert_array_equal(norm.numbers(), np.float32([1, 2, 3, 4, 5]))
        np.testing.assert_array_equal(w.rows(), np.arange(120, dtype=np.uint8).reshape(3, 40))
        assert norm.rows().shape == (1, 20) and e.rows().shape == (6, 8) and e.numbers().shape == (2, 3, 4)
        assert dequantize(w.rows(), w.ggml_type).shape == w.shape
        assert file.parts == [file.path]
        text = repr(file)
        assert "model.gguf" in text and "3 tensors" in text and "188 bytes" in text
    assert "closed" in repr(file)


def test_views_are_read_only(put):
    with GgufFile(put(sample())) as file:
        for view in (file.tensor("w").data, file.tensor("w").rows(), file.tensor("norm").numbers()):
            assert not view.flags.writeable
            with pytest.raises(ValueError):
                view[0] = 0


def test_no_tensors_and_no_metadata(put):
    with GgufFile(put(build())) as file:
        assert len(file.tensors) == len(file.metadata) == file.nbytes == 0


def test_numbers_refuses_blocks(put):
    with GgufFile(put(sample())) as file, pytest.raises(GgufError, match="'w' is Q4_1"):
        file.tensor("w").numbers()


def test_unknown_tensor_is_named(put):
    with GgufFile(put(sample())) as file, pytest.raises(GgufError, match="'output.weight'"):
        file.tensor("output.weight")


def test_views_outlive_close(put):
    file = GgufFile(put(sample()))
    info = file.tensor("norm")
    view = info.numbers()
    file.close()
    file.close()
    assert view.sum() == 15 and info.numbers().sum() == 15
    info.release_pages()
    assert view.sum() == 15
    assert file.metadata.str("general.architecture") == "llama"
    assert file.metadata.strings("t.strings") == [b"a", b"", b"\xe6\xad"]
    with pytest.raises(GgufError, match="closed"):
        file.tensor("norm")


def test_file_can_be_removed_after_close_or_refusal(put):
    path = put(sample())
    GgufFile(path).close()
    path.unlink()
    path = put(sample()[:-1])
    with pytest.raises(GgufError):
        GgufFile(path)
    path.unlink()  # on Windows this fails while the file is mapped


def test_release_pages_keeps_the_bytes(tmp_path):
    path = tmp_path / "big.gguf"
    x = np.arange(64 * 4096, dtype=np.float32).reshape(64, 4096)
    write_gguf(path, {}, {"x": (x, "F32")})
    with GgufFile(path) as file:
        info = file.tensor("x")
        for start, stop in [(0, None), (0, 0), (1, 2), (5000, 900_000), (0, info.nbytes), (info.nbytes, info.nbytes)]:
            info.release_pages(start, stop)
            np.testing.assert_array_equal(info.numbers(), x)
        for start, stop in [(-1, 4), (8, 4), (0, info.nbytes + 1)]:
            with pytest.raises(GgufError, match="'x'"):
                info.release_pages(start, stop)


def test_tiny_models_open():
    paths = sorted(TINY.glob("*.gguf"))
    assert paths
    for path in paths:
        with GgufFile(path) as file:
            assert file.metadata.int(file.metadata.str("general.architecture") + ".block_count") > 0
            assert len(file.tensors) > 10


def test_smollm2_opens():
    with GgufFile(need_smollm2()) as file:
        m = file.metadata
        assert len(file.tensors) == 272 and m.int("llama.block_count") == 30
        tokens = m.strings("tokenizer.ggml.tokens")
        assert len(tokens) == 49152 and tokens[28120] == b"hello"
        embedding = file.tensor("token_embd.weight")
        assert embedding.shape == (49152, 576) and embedding.ggml_type == GgmlType.Q8_0


# --- paths ---------------------------------------------------------------------------------------------------------


def test_missing_file(tmp_path):
    message = refused(tmp_path / "absent.gguf", "no such file")
    assert "expected" in message
    with pytest.raises(OSError):
        GgufFile(tmp_path / "absent.gguf")
    with pytest.raises(GgufOpenError):
        GgufFile(tmp_path / "absent.gguf" / "below.gguf")


def test_folder_names_a_file_inside(tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    refused(folder, "is a folder", "without .gguf files")
    for name in ("b-00002-of-00002.gguf", "b-00001-of-00002.gguf", "a.txt"):
        (folder / name).write_bytes(b"x")
    refused(folder, "is a folder", "b-00001-of-00002.gguf")


def test_nul_in_path():
    with pytest.raises(GgufOpenError):
        GgufFile("a\0b.gguf")


def test_wrong_path_type():
    with pytest.raises(TypeError):
        GgufFile(3)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_pipe_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "pipe.gguf")
    refused(tmp_path / "pipe.gguf", "not a regular file")


@pytest.mark.skipif(getattr(os, "geteuid", int)() == 0, reason="permissions do not bind here")
def test_unreadable_file(put):
    path = put(sample())
    path.chmod(0)
    refused(path, "permission")


# --- not GGUF ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "hint"),
    [
        (b"<!DOCTYPE html><html><body>404</body></html>", "web page"),
        (b"\n  <html lang='en'>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git LFS pointer"),
        (b"PK\x03\x04rest of a checkpoint", "zip"),
        (b"\x1f\x8b\x08rest", "gzip"),
        (b"tjgg\x03\0\0\0", "older than GGUF"),
        (b"FUGG\0\0\0\x03", "big-endian"),
        (struct.pack("<Q", 100) + b'{"__metadata__":{}}', "safetensors"),
        (bytes(100), "zeros"),
        (b"GGUX", "starts with 'GGUX'"),
        (b"GX", "not a GGUF file"),
        (b"anything else", "starts with 'anything else'"),
        (b"\xff\xfe\x1b[31m", "not a GGUF file"),
    ],
)
def test_foreign_files(put, raw, hint):
    message = refused(put(raw), "not a GGUF file", "expected 'GGUF'", hint)
    assert message.isascii() and message.isprintable()


def test_empty_file(put):
    refused(put(b""), "empty", "0 bytes")


@pytest.mark.parametrize("version", [0, 1, 4, 2**31, 2**32 - 1])
def test_versions(put, version):
    refused(put(build(version=version)), f"version {version}", "expected 2 or 3")


@pytest.mark.parametrize("version", [2, 3])
def test_big_endian(put, version):
    refused(put(b"GGUF" + struct.pack(">IQQ", version, 0, 0)), "big-endian", f"version {version}")


# --- counts, lengths, truncation -----------------------------------------------------------------------------------


def test_every_truncation_is_refused(put):
    raw = sample()
    parse_header(memoryview(raw), "whole")
    for cut in range(len(raw)):
        with pytest.raises(GgufIncomplete, match="the file is incomplete"):
            parse_header(memoryview(raw[:cut]), "cut")
    refused(put(raw[:-1]), "tensor 'e'", f"the file has {len(raw) - 1}", f"of {len(raw)} bytes", "interrupted download")
    refused(put(raw[:200]), "metadata count is 18, which takes at least", "ends at 200", "expected at least")
    refused(put(raw[:300]), "needs", "at offset", "the file ends at 300; expected at least")
    refused(
        put(raw[:20]), "tensor count is 3, which takes at least 99 bytes at offset 16", "ends at 20", "at least 115"
    )
    refused(
        put(raw[:10]), "tensor count needs 8 bytes at offset 8, but the file ends at 10; expected at least 16 bytes"
    )


@pytest.mark.parametrize("huge", [*HUGE, 1000])
def test_counts_that_cannot_fit(put, huge):
    cases = [
        (build(n_tensors=huge), "tensor count", str(huge)),
        (build(n_kv=huge), "metadata count", str(huge)),
        (build([struct.pack("<Q", huge) + b"key and more"], n_kv=1), "metadata key 0", "needs", str(huge)),
        (build([kv("k", STRING, struct.pack("<Q", huge) + b"abc")]), "'k'", "needs"),
        (build([kv("k", ARRAY, array(U32, huge, bytes(8)))]), "element count", "'k'", str(huge)),
        (build([kv("k", ARRAY, array(STRING, huge, bytes(8)))]), "element count", "'k'", str(huge)),
        (build([kv("k", ARRAY, array(STRING, 2, struct.pack("<Q", huge) + b"abcdefghijkl"))]), "'k'", "string 1"),
        (build([kv("k", ARRAY, array(STRING, 1, struct.pack("<Q", huge) + b"abcdefghijkl"))]), "all strings", "'k'"),
        (build([], [struct.pack("<Q", huge) + bytes(40)]), "name of tensor 0", "needs"),
    ]
    for raw, *parts in cases:
        path = put(raw)
        tracemalloc.start()
        try:
            refused(path, *parts)
            assert tracemalloc.get_traced_memory()[1] < 1 << 20  # nothing is allocated on the word of a count
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("length", [MAX_NAME, MAX_NAME + 1])
def test_longest_names(put, length):
    name = "k" * length
    for raw, what in (
        (build([kv(name, U32, bytes(4))]), "metadata key 0"),
        (build([], [tensor(name, [4], 0, 0)], bytes(16)), "name of tensor 0"),
    ):
        if length > MAX_NAME:
            refused(put(raw), what, f"needs {length} bytes; expected at most {MAX_NAME}")
        else:
            GgufFile(put(raw)).close()


def test_a_number_that_no_file_has_is_not_called_incomplete(put):
    for raw in (
        build([kv("k", STRING, struct.pack("<Q", 2**40))]),
        build(n_tensors=2**60),
        build([], [tensor("t", [2**60], 0, 0)], bytes(64)),
        build([], [tensor("t", [4], 0, 2**60)], bytes(64)),
    ):
        assert "incomplete" not in refused(put(raw), "model.gguf")


def test_header_larger_than_the_limit(tmp_path):
    path = tmp_path / "sparse.gguf"  # a hole in the file: takes no room on disk where the system has sparse files
    with open(path, "wb") as out:
        out.write(build([kv("k", ARRAY, array(STRING, 2**27, b""))]))
        out.truncate(MAX_HEADER + (1 << 30))
    refused(path, "element count", "'k'", f"header of {MAX_HEADER} bytes")


# --- metadata ------------------------------------------------------------------------------------------------------


def test_empty_and_duplicate_keys(put):
    refused(put(build([kv("", U32, bytes(4))])), "metadata key 0 of 1 is empty")
    refused(put(build([kv("a", U32, bytes(4)), kv("a", U32, bytes(4))])), "metadata key 'a' appears twice")
    refused(put(build([kv(b"\xff", U32, bytes(4))])), "metadata key 0", "UTF-8")


@pytest.mark.parametrize("kind", [13, 14, 255, 2**32 - 1])
def test_unknown_value_types(put, kind):
    refused(put(build([kv("a.key", kind, bytes(16))])), "'a.key'", f"unknown type {kind}", "expected 0 to 12")
    refused(put(build([kv("a.key", ARRAY, array(kind, 1, bytes(16)))])), "'a.key'", f"unknown type {kind}")


@pytest.mark.parametrize("depth", [1, 2, 20_000])
def test_nested_arrays(put, depth):
    nested = array(U32, 1, bytes(4))
    for _ in range(depth):
        nested = array(ARRAY, 1, nested)
    refused(put(build([kv("deep", ARRAY, nested)])), "'deep'", "array of arrays")


def test_booleans_are_0_or_1(put):
    refused(put(build([kv("flag", BOOL, b"\x02")])), "'flag'", "byte 2", "expected 0 or 1")
    refused(put(build([kv("flags", ARRAY, array(BOOL, 2, b"\x01\xff"))])), "'flags'", "byte 255")


@pytest.mark.parametrize("value", [0, 1, 3, 4, 31, 33, 2**22, 2**31, 2**32 - 1])
def test_alignment_value(put, value):
    path = put(build([kv("general.alignment", U32, struct.pack("<I", value))]))
    refused(path, "general.alignment", f"u32 {value}", "at most 2097152")


def test_alignment_type(put):
    refused(put(build([kv("general.alignment", STRING, string("32"))])), "general.alignment", "string '32'")
    refused(put(build([kv("general.alignment", BOOL, b"\1")])), "general.alignment", "bool")
    refused(put(build([kv("general.alignment", ARRAY, array(U32, 1, struct.pack("<I", 32)))])), "array of 1 u32")


def test_alignment_is_obeyed(put):
    for alignment in (8, 32, 4096, 2**21):
        kvs = [kv("general.alignment", U32, struct.pack("<I", alignment))]
        raw = build(kvs, [tensor("x", [1], 0, 0)], struct.pack("<f", 2.5), alignment=alignment)
        with GgufFile(put(raw, f"{alignment}.gguf")) as file:
            assert file.tensor("x").numbers()[0] == 2.5 and file.tensor("x").start % alignment == 0


# --- tensors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 5, 9, 1_000_000, 0xFFFFFFFF])
def test_number_of_dimensions(put, n):
    raw = build([], [tensor("t", [4], 0, 0, n_dims=n)], bytes(64))
    refused(put(raw), f"tensor 't' has {n} dimensions", "expected 1 to 4")


@pytest.mark.parametrize("dims", [[4, 0], [0], [0, 4], [1, 1, 1, 0], [2**63, 0]])
def test_zero_dimension(put, dims):
    refused(put(build([], [tensor("t", dims, 0, 0)], bytes(64))), "tensor 't'", str(dims), "at least 1")


@pytest.mark.parametrize(
    "dims",
    [[2**64 - 1], [2**63], [2**32, 2**32], [2**62, 4], [2**16] * 4, [2**63, 2**63, 2**63, 2**63], [32, 2**59], [17]],
)
def test_products_of_dimensions(put, dims):
    # [2**32, 2**32] is 0 modulo 2**64: a product that wraps around would pass.
    refused(put(build([], [tensor("t", dims, 0, 0)], bytes(64))), "tensor 't'", "but the file has")


@pytest.mark.parametrize(
    ("kind", "label"),
    [(36, "36 (IQ4_NL_4_4)"), (9, "9 (Q8_1)"), (200, "200 (unknown)"), (4, "4 (Q4_2)"), (2**31, "unknown"),
     (15, "15 (Q8_K)"), (43, "43 (unknown)")],
)  # fmt: skip
def test_unsupported_tensor_types(put, kind, label):
    message = refused(put(build([], [tensor("blk.0.w", [7], kind, 2**63)], bytes(64))), "tensor 'blk.0.w'", label)
    for known in ("supported:", "Q4_1", "Q6_K", "BF16"):
        assert known in message


def test_every_ggml_type_is_named_or_read(put):
    assert [t.value for t in GgmlType] == list(range(43))
    for kind in GgmlType:
        path = put(build([], [tensor("t", [256], kind, 0)], bytes(1024 * 2)), f"{kind.name}.gguf")
        if kind in READABLE:
            with GgufFile(path) as file:
                assert file.tensor("t").ggml_type == kind
        else:
            refused(path, f"{kind.value} ({kind.name})")


def test_row_width(put):
    refused(put(build([], [tensor("t", [33, 2], 2, 0)], bytes(64))), "tensor 't'", "33 columns", "multiple of 32")
    refused(put(build([], [tensor("t", [128, 2], 12, 0)], bytes(512))), "128 columns", "256", "Q4_K")


def test_empty_and_duplicate_tensor_names(put):
    refused(put(build([], [tensor("", [4], 0, 0)], bytes(64))), "name of tensor 0 of 1 is empty")
    twice = [tensor("t", [4], 0, 0), tensor("t", [4], 0, 32)]
    refused(put(build([], twice, bytes(64))), "tensor 't' appears twice")


@pytest.mark.parametrize("offset", [1, 16, 31, 2**64 - 1])
def test_offset_alignment(put, offset):
    refused(put(build([], [tensor("t", [4], 0, offset)], bytes(64))), "tensor 't'", f"offset {offset}", "alignment 32")


@pytest.mark.parametrize("offset", [64, 2**32, 2**63, 2**64 - 32])
def test_offset_outside(put, offset):
    # 2**64 - 32 plus the start of the data wraps to a place inside the file, if it wraps.
    refused(put(build([], [tensor("t", [4], 0, offset)], bytes(64))), "tensor 't'", "but the file has")


def test_overlap(put):
    names = [tensor("a", [16], 0, 32), tensor("b", [9], 0, 0)]
    refused(put(build([], names, bytes(96))), "'b' and 'a' overlap")
    good = [tensor("a", [16], 0, 32), tensor("b", [8], 0, 0)]
    with GgufFile(put(build([], good, bytes(96)), "good.gguf")) as file:
        assert list(file.tensors) == ["a", "b"]


def test_messages_are_short_and_printable(put):
    name = "\x1b[31m" + "ä" * 5000
    message = refused(put(build([], [tensor(name, [0], 0, 0)], bytes(64))), "at least 1")
    assert len(message) < 500 and "\x1b" not in message


def test_released_pages_read_the_same_again(tmp_path):
    path = tmp_path / "model.gguf"
    write_gguf(path, {"general.architecture": "llama"}, {"w": (np.arange(5000, dtype=np.float32), GgmlType.F32)})
    file = GgufFile(path)
    before = file.tensor("w").data.tobytes()
    file.release_pages()
    assert file.tensor("w").data.tobytes() == before
    assert file.metadata.str("general.architecture") == "llama"
