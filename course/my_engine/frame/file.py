# ruff: noqa: F821
# mypy: ignore-errors
import struct

import numpy as np

# ======================================================================================================================
# 1. The model's file: a header, a table of tensors, and blocks of small integers (chapter 01)
# ======================================================================================================================


class InvalidDecodeState(ValueError):
    """History and cache do not belong together: len(history) != cache.len + 1."""


class KvCacheOverflow(ValueError):
    """Rows would be written past a cache's capacity."""


class UnknownModel(ValueError):
    """The file holds a model that this forward does not know."""


#: ch01.read_header
#: ch01.dequantize_q8_0
#: ch01.dequantize_q4_1
#: ch01.dequantize_q4_k

DECODERS = {  # a format's number in the file: weights of a block, bytes of a block, decoder
    3: (32, 20, dequantize_q4_1),
    8: (32, 34, dequantize_q8_0),
    12: (256, 144, dequantize_q4_k),
}
PLAIN_FORMATS = {0: np.float32, 1: np.float16}
LONGEST_HEADER = 64 << 20  # bytes


def read_file(path):
    """The metadata of a GGUF file, and its tensors: name -> (shape, format, uint8 array of its bytes, on disk)."""
    whole = np.memmap(path, np.uint8, "r")
    data = bytes(whole[:LONGEST_HEADER])
    _, n_tensors, metadata = read_header(data)
    (n_entries,) = struct.unpack_from("<Q", data, 16)
    at = 24
    for _ in range(n_entries):  # once more: read_header does not say where the table of tensors begins
        _, at = read_value(data, at, 8)
        (kind,) = struct.unpack_from("<I", data, at)
        _, at = read_value(data, at + 4, kind)
    table = []
    for _ in range(n_tensors):
        name, at = read_value(data, at, 8)
        (n_axes,) = struct.unpack_from("<I", data, at)
        shape = struct.unpack_from(f"<{n_axes}Q", data, at + 4)[::-1]  # the file has the columns first
        number, offset = struct.unpack_from("<IQ", data, at + 4 + 8 * n_axes)
        table.append((name, shape, number, offset))
        at += 16 + 8 * n_axes
    alignment = metadata.get("general.alignment", 32)
    start = -(-at // alignment) * alignment
    ends = [*sorted(offset for *_, offset in table)[1:], len(whole) - start]
    end_of = dict(zip(sorted(offset for *_, offset in table), ends, strict=True))
    return metadata, {
        name: (shape, number, whole[start + offset : start + end_of[offset]]) for name, shape, number, offset in table
    }


def decoded(shape, number, raw):
    """A tensor as float32, decoded some thousand rows at a time."""
    if number in PLAIN_FORMATS:
        dtype = np.dtype(PLAIN_FORMATS[number])
        return raw[: int(np.prod(shape)) * dtype.itemsize].view(dtype).astype(np.float32).reshape(shape)
    if number in DECODERS:
        weights, size, decode_rows = DECODERS[number]
    else:
        from fucina.gguf import block_shape, dequantize

        weights, size = block_shape(number)

        def decode_rows(rows):
            return dequantize(rows, number)

    rows, columns = shape
    raw = raw[: rows * columns // weights * size].reshape(rows, -1)
    out = np.empty(shape, np.float32)
    for i in range(0, rows, 4096):
        out[i : i + 4096] = decode_rows(np.array(raw[i : i + 4096]))
    return out
