"""Block formats in NumPy: what the bytes of a quantised row mean.

A weight of a language model needs far fewer than 32 bits.  Block formats cut a row into blocks of 32 weights that are
neighbours, hence of similar size, and store for each block one 16-bit *scale* `d` (some formats a *minimum* `m` too)
and for each weight a small integer `q`.  Reading is one line of arithmetic:

    symmetric    Q8_0, Q4_0, Q5_0     w = d * q          q centred on zero
    with a floor Q4_1, Q5_1           w = d * q + m      q from 0 upwards

The layout of one block, byte by byte ("f16" is an IEEE half, 2 bytes, little-endian; j runs over 0..15):

    Q8_0   34 bytes   d f16 | q[32] int8
    Q4_0   18 bytes   d f16 | 16 bytes: byte j = q[j] (low 4 bits), q[j + 16] (high 4 bits), both + 8
    Q4_1   20 bytes   d f16 | m f16 | 16 bytes as in Q4_0, without the + 8
    Q5_0   22 bytes   d f16 | 4 bytes: bit i is the fifth bit of q[i] | 16 bytes as in Q4_0, q + 16
    Q5_1   24 bytes   d f16 | m f16 | 4 bytes of fifth bits | 16 bytes, without the + 16

Note the order in the 4-bit formats: byte j holds weights j and j + 16, not 2j and 2j + 1.  Vector units like that:
one AND and one shift give two runs of 16 weights in order.

F32, F16 and BF16 have no blocks.  BF16 is the upper half of a float32: widening it is a shift by 16 bits.

This code is the reference that the compiled kernels are compared with; it favours being read over being fast.  The other
formats are in `fucina.gguf.kquants`, `fucina.gguf.iquants` and `fucina.gguf.lowbit`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..errors import BlockFormatError
from . import iquants, kquants, lowbit
from .coded import Blocks, Coded, decode, half
from .fit import ratio, widest
from .types import SUPPORTED, GgmlType, block_shape, ggml_type, row_bytes, type_label

# One block as a NumPy record: `raw.view(Q4_1)` turns [rows, row_bytes] bytes into [rows, blocks] records.
Q8_0 = np.dtype([("d", "<f2"), ("q", "i1", 32)])
Q4_0 = np.dtype([("d", "<f2"), ("q", "u1", 16)])
Q4_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)])
Q5_0 = np.dtype([("d", "<f2"), ("high", "u1", 4), ("q", "u1", 16)])
Q5_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("high", "u1", 4), ("q", "u1", 16)])


# --- reading: [rows, row_bytes] bytes -> [rows, cols] or [rows, blocks, 32] float32 --------------------------------


def _f32(half: np.ndarray) -> np.ndarray:
    """[rows, blocks] half -> [rows, blocks, 1] float32, ready to be multiplied with the weights of each block."""
    return half.astype(np.float32)[..., None]


def _nibbles(q: np.ndarray) -> np.ndarray:
    """[rows, blocks, 16] bytes -> [rows, blocks, 32] integers 0..15: all low halves, then all high halves."""
    return np.concatenate([q & 0x0F, q >> 4], axis=-1)


def _fifth_bits(high: np.ndarray) -> np.ndarray:
    """[rows, blocks, 4] bytes -> [rows, blocks, 32] integers 0 or 16."""
    return np.unpackbits(high, axis=-1, bitorder="little") << 4


def read_f32(raw: np.ndarray) -> np.ndarray:
    return raw.view("<f4").astype(np.float32)


def read_f16(raw: np.ndarray) -> np.ndarray:
    return raw.view("<f2").astype(np.float32)


def read_bf16(raw: np.ndarray) -> np.ndarray:
    return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)


def read_q8_0(raw: np.ndarray) -> np.ndarray:
    b = raw.view(Q8_0)  # [rows, blocks]
    return _f32(b["d"]) * b["q"]  # [rows, blocks, 32]


def read_q4_0(raw: np.ndarray) -> np.ndarray:
    b = raw.view(Q4_0)
    q = _nibbles(b["q"]).astype(np.int8) - 8  # -8 .. 7
    return _f32(b["d"]) * q


def read_q4_1(raw: np.ndarray) -> np.ndarray:
    b = raw.view(Q4_1)
    q = _nibbles(b["q"])  # 0 .. 15
    return _f32(b["d"]) * q + _f32(b["m"])


def read_q5_0(raw: np.ndarray) -> np.ndarray:
    b = raw.view(Q5_0)
    q = (_nibbles(b["q"]) | _fifth_bits(b["high"])).astype(np.int8) - 16  # -16 .. 15
    return _f32(b["d"]) * q


def read_q5_1(raw: np.ndarray) -> Blocks:
    b = raw.view(Q5_1)[..., 0]
    return Blocks(_nibbles(b["q"]) | _fifth_bits(b["high"]), half(raw, 0), dmin=-half(raw, 2))


# --- writing: [rows, blocks, 32] float32 -> [rows, blocks] records -------------------------------------------------
# Round to nearest: the best q for a given scale.  Scales follow the reference quantiser of the format.


def _pack_nibbles(q: np.ndarray) -> np.ndarray:
    """[rows, blocks, 32] integers -> [rows, blocks, 16] bytes of their low 4 bits."""
    q = q.astype(np.uint8) & 0x0F
    return q[..., :16] | q[..., 16:] << 4


def _pack_fifth_bits(q: np.ndarray) -> np.ndarray:
    return np.packbits(q.astype(np.uint8) >> 4 & 1, axis=-1, bitorder="little")


def write_q8_0(x: np.ndarray) -> np.ndarray:
    d = np.abs(x).max(axis=-1, keepdims=True) / np.float32(127)
    b = np.zeros(x.shape[:-1], Q8_0)
    b["d"], b["q"] = d[..., 0], np.rint(ratio(x, d))
    return b


def _write_symmetric(x: np.ndarray, dtype: np.dtype, half: int) -> np.ndarray:
    # The weight farthest from zero gets q = -half exactly, so that all 2 * half values of q are used.
    d = widest(x) / np.float32(-half)
    q = np.clip(np.floor(ratio(x, d) + np.float32(half + 0.5)), 0, 2 * half - 1)
    b = np.zeros(x.shape[:-1], dtype)
    b["d"], b["q"] = d[..., 0], _pack_nibbles(q)
    if "high" in (dtype.names or ()):
        b["high"] = _pack_fifth_bits(q)
    return b


def _write_with_floor(x: np.ndarray, dtype: np.dtype, top: int) -> np.ndarray:
    m = x.min(axis=-1, keepdims=True)
    d = (x.max(axis=-1, keepdims=True) - m) / np.float32(top)
    q = np.clip(np.floor(ratio(x - m, d) + np.float32(0.5)), 0, top)
    b = np.zeros(x.shape[:-1], dtype)
    b["d"], b["m"], b["q"] = d[..., 0], m[..., 0], _pack_nibbles(q)
    if "high" in (dtype.names or ()):
        b["high"] = _pack_fifth_bits(q)
    return b


def write_q4_0(x: np.ndarray) -> np.ndarray:
    return _write_symmetric(x, Q4_0, 8)


def write_q5_0(x: np.ndarray) -> np.ndarray:
    return _write_symmetric(x, Q5_0, 16)


def write_q4_1(x: np.ndarray) -> np.ndarray:
    return _write_with_floor(x, Q4_1, 15)


def write_q5_1(x: np.ndarray) -> np.ndarray:
    return _write_with_floor(x, Q5_1, 31)


def write_f32(x: np.ndarray) -> np.ndarray:
    return x.astype("<f4")


def write_f16(x: np.ndarray) -> np.ndarray:
    return x.astype("<f2")


def write_bf16(x: np.ndarray) -> np.ndarray:
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")  # to nearest, ties to even


_READERS: dict[GgmlType, Callable[[np.ndarray], np.ndarray]] = {
    GgmlType.F32: read_f32,
    GgmlType.F16: read_f16,
    GgmlType.BF16: read_bf16,
    GgmlType.Q8_0: read_q8_0,
    GgmlType.Q4_0: read_q4_0,
    GgmlType.Q4_1: read_q4_1,
    GgmlType.Q5_0: read_q5_0,
}

CODED: dict[GgmlType, Coded] = {
    GgmlType.Q5_1: Coded(tuple(range(32)), 1, read_q5_1),
    **kquants.CODED,
    **iquants.CODED,
    **lowbit.CODED,
}
"""Formats that are read as codes; the others have a reader of their own."""

_WRITERS: dict[GgmlType, Callable[[np.ndarray], np.ndarray]] = {
    GgmlType.F32: write_f32,
    GgmlType.F16: write_f16,
    GgmlType.BF16: write_bf16,
    GgmlType.Q8_0: write_q8_0,
    GgmlType.Q4_0: write_q4_0,
    GgmlType.Q4_1: write_q4_1,
    GgmlType.Q5_0: write_q5_0,
    GgmlType.Q5_1: write_q5_1,
    GgmlType.Q2_K: kquants.write_q2_k,
    GgmlType.Q3_K: kquants.write_q3_k,
    GgmlType.Q4_K: kquants.write_q4_k,
    GgmlType.Q5_K: kquants.write_q5_k,
    GgmlType.Q6_K: kquants.write_q6_k,
    GgmlType.IQ4_NL: lowbit.write_iq4_nl,
    GgmlType.TQ2_0: lowbit.write_tq2_0,
}


WRITABLE: frozenset[GgmlType] = frozenset(_WRITERS)
"""Formats that `quantize` writes."""


def _known(format: GgmlType | int | str, known: frozenset[GgmlType], what: str) -> GgmlType:
    t = ggml_type(format)
    if t not in known:
        names = ", ".join(s.name for s in sorted(known))
        raise BlockFormatError(f"tensor format {type_label(t)} cannot be {what}; supported: {names}")
    return t


def dequantize(raw: np.ndarray, format: GgmlType | int | str) -> np.ndarray:
    """Turn the stored bytes of rows into numbers.

    Parameters
    ----------
    raw
        uint8 [rows, row_bytes], as `TensorInfo.rows()` gives it.
    format
        A GgmlType, its number, or its name.

    Returns
    -------
    numpy.ndarray
        float32 [rows, cols], a new array.

    Raises
    ------
    BlockFormatError
        `raw` is not a uint8 matrix, its rows are not whole blocks, or the format is not supported.
    """
    t = _known(format, SUPPORTED, "dequantised")
    cols, size = block_shape(t)
    if not isinstance(raw, np.ndarray) or raw.dtype != np.uint8 or raw.ndim != 2:
        found = f"{raw.dtype} {list(raw.shape)}" if isinstance(raw, np.ndarray) else type(raw).__name__
        raise BlockFormatError(f"dequantize {t.name}: got {found}; expected a uint8 array [rows, row_bytes]")
    rows, width = raw.shape
    if width == 0 or width % size:
        raise BlockFormatError(f"dequantize {t.name}: rows of {width} bytes; expected a multiple of {size}, and not 0")
    with np.errstate(all="ignore"):  # foreign bytes may hold inf or NaN scales: they come out as they are
        raw, coded = np.ascontiguousarray(raw), CODED.get(t)
        out = decode(coded, coded.read(raw.reshape(rows, -1, size))) if coded else _READERS[t](raw)
    return out.reshape(rows, width // size * cols)


def quantize(x: np.ndarray, format: GgmlType | int | str) -> np.ndarray:
    """Store rows of numbers in a tensor format, each rounded to the nearest that its block can express.

    Parameters
    ----------
    x
        float32 [rows, cols] (float16 and float64 are converted first).
    format
        A GgmlType, its number, or its name.

    Returns
    -------
    numpy.ndarray
        uint8 [rows, row_bytes], a new array.

    Raises
    ------
    BlockFormatError
        `x` is not a float matrix, its rows are not whole blocks, it holds NaN or infinities or numbers that the format
        cannot hold, or the format is not supported.
    """
    t = _known(format, WRITABLE, "written")
    if not isinstance(x, np.ndarray) or x.dtype.kind != "f" or x.ndim != 2:
        found = f"{x.dtype} {list(x.shape)}" if isinstance(x, np.ndarray) else type(x).__name__
        raise BlockFormatError(f"quantize {t.name}: got {found}; expected a float32 array [rows, cols]")
    width = row_bytes(x.shape[1], t)
    cols, _ = block_shape(t)
    with np.errstate(all="ignore"):  # what overflows is found below, in the result
        x = np.ascontiguousarray(x, np.float32)
        raw = np.ascontiguousarray(_WRITERS[t](x if cols == 1 else x.reshape(x.shape[0], -1, cols)))
    raw = raw.view(np.uint8).reshape(x.shape[0], width)
    if not (np.isfinite(x).all() and np.isfinite(dequantize(raw, t)).all()):
        raise BlockFormatError(f"quantize {t.name}: NaN, infinities, or numbers beyond the format's range")
    return raw
