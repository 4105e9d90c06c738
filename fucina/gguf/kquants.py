"""The K-quants: block formats of 256 columns with scales of scales.

A scale of 16 bits per 32 weights costs half a bit per weight.  K-quants save on that: 256 weights form a *super-block*
whose sub-blocks have scales of only 6 or 8 bits, and one 16-bit number is the size of one step of those scales.

    Q2_K  16 sub-blocks of 16   w = (d * scale[s]) * q - (dmin * floor[s])     q 0..3, scales and floors of 4 bits
    Q3_K  16 sub-blocks of 16   w = (d * (scale[s] - 32)) * q                  q -4..3
    Q4_K   8 sub-blocks of 32   w = (d * scale[s]) * q - (dmin * floor[s])     q 0..15
    Q5_K   8 sub-blocks of 32   the same                                       q 0..31
    Q6_K  16 sub-blocks of 16   w = (d * scale[s]) * q                         q -32..31

Bytes of a super-block ("f16" is an IEEE half, 2 bytes, little-endian):

    Q2_K   84 bytes   16 bytes: scale low, floor high | 64 bytes of q | d f16 | dmin f16
    Q3_K  110 bytes   32 bytes of third bits | 64 bytes of lower 2 bits | 8 + 4 bytes of 16 scales | d f16
    Q4_K  144 bytes   d f16 | dmin f16 | 12 bytes: 8 scales and 8 floors of 6 bits | 128 bytes of q
    Q5_K  176 bytes   d f16 | dmin f16 | 12 bytes as in Q4_K | 32 bytes of fifth bits | 128 bytes of low 4 bits
    Q6_K  210 bytes   128 bytes of low 4 bits | 64 bytes of upper 2 bits | 16 scales int8 | d f16

How the 6-bit numbers share 12 bytes (i runs over 0..3):

    byte i       scale[i] in bits 0-5, bits 4-5 of scale[i + 4] in bits 6-7
    byte i + 4   floor[i] in bits 0-5, bits 4-5 of floor[i + 4] in bits 6-7
    byte i + 8   bits 0-3 of scale[i + 4] in its low half, bits 0-3 of floor[i + 4] in its high half

Where the q are: Q4_K's byte 32 c + l (c from 0 to 3, l from 0 to 31) has weight l of sub-block 2c in its low half and
of sub-block 2c + 1 in its high half.  Bit s of Q5_K's fifth-bit byte l belongs to weight l of sub-block s.  Q6_K works
in halves of 128 weights; within a half, ql has 64 bytes and qh has 32.  Weight l + 32 k (k from 0 to 3) has its low bits
in byte l + 32 (k mod 2) of ql, in its low half for k < 2.  Its upper bits are bits 2k, 2k + 1 of byte l of qh.  Q2_K and
Q3_K have their 2 bits where Q6_K has its upper ones; bit s of Q3_K's third-bit byte l belongs to weight 32 s + l.  Of its
scales, byte i (0 to 7) has the low half of scale i and of scale i + 8, and byte 8 + i (0 to 3) has bits 4-5 of scales i, i + 4,
i + 8 and i + 12.

The functions here take and give whole rows; checks are in `fucina.gguf.dequantize` and `quantize`.
"""

from __future__ import annotations

import numpy as np

from .coded import Blocks, Coded, fields, half
from .fit import ratio, rounded, step_and_floor, step_of, widest
from .types import GgmlType

Q2_K = np.dtype([("scales", "u1", 16), ("q", "u1", 64), ("d", "<f2"), ("dmin", "<f2")])
Q3_K = np.dtype([("high", "u1", 32), ("q", "u1", 64), ("scales", "u1", 12), ("d", "<f2")])
Q4_K = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("q", "u1", 128)])
Q5_K = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("high", "u1", 32), ("q", "u1", 128)])
Q6_K = np.dtype([("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")])


# --- reading -------------------------------------------------------------------------------------------------------


def unpack_scales(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[…, 12] bytes -> 8 scales and 8 floors of 6 bits, uint8 […, 8] each."""
    a, b, c = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scale = np.concatenate([a & 63, (c & 15) | (a >> 6 << 4)], axis=-1)
    floor = np.concatenate([b & 63, (c >> 4) | (b >> 6 << 4)], axis=-1)
    return scale, floor


def read_q2_k(raw: np.ndarray) -> Blocks:
    scale, floor = raw[..., :16] & 15, raw[..., :16] >> 4
    return Blocks(fields(raw[..., 16:80], 2, 32), half(raw, 80), scale.view(np.int8), half(raw, 82), floor)


def read_q3_k(raw: np.ndarray) -> Blocks:
    scale = fields(raw[..., 96:104], 4, 8) | fields(raw[..., 104:108], 2, 4) << 4
    codes = fields(raw[..., 32:96], 2, 32) | fields(raw[..., :32], 1, 32) << 2
    return Blocks(codes, half(raw, 108), scale.astype(np.int8) - np.int8(32))


def read_q4_k(raw: np.ndarray) -> Blocks:
    scale, floor = unpack_scales(raw[..., 4:16])
    return Blocks(fields(raw[..., 16:], 4, 32), half(raw, 0), scale.view(np.int8), half(raw, 2), floor)


def read_q5_k(raw: np.ndarray) -> Blocks:
    scale, floor = unpack_scales(raw[..., 4:16])
    codes = fields(raw[..., 48:], 4, 32) | fields(raw[..., 16:48], 1, 32) << 4
    return Blocks(codes, half(raw, 0), scale.view(np.int8), half(raw, 2), floor)


def read_q6_k(raw: np.ndarray) -> Blocks:
    low = fields(raw[..., :128], 4, 64)  # a run is the 64 bytes of half a block
    codes = low | fields(raw[..., 128:192], 2, 32) << 4
    return Blocks(codes, half(raw, 208), raw[..., 192:208].view(np.int8))


CODED = {
    GgmlType.Q2_K: Coded(tuple(range(4)), 16, read_q2_k),
    GgmlType.Q3_K: Coded(tuple(range(-4, 4)), 16, read_q3_k),
    GgmlType.Q4_K: Coded(tuple(range(16)), 8, read_q4_k),
    GgmlType.Q5_K: Coded(tuple(range(32)), 8, read_q5_k),
    GgmlType.Q6_K: Coded(tuple(range(-32, 32)), 16, read_q6_k),
}


# --- writing -------------------------------------------------------------------------------------------------------
# First the best step (and floor) of each sub-block as real numbers, then these are quantised themselves, and last the
# weights with the scales as they will be read.


def pack_scales(scale: np.ndarray, floor: np.ndarray) -> np.ndarray:
    """8 scales and 8 floors below 64, uint8 […, 8] each -> […, 12] bytes; the inverse of `unpack_scales`."""
    a = scale[..., :4] | scale[..., 4:] >> 4 << 6
    b = floor[..., :4] | floor[..., 4:] >> 4 << 6
    c = (scale[..., 4:] & 15) | floor[..., 4:] << 4
    return np.concatenate([a, b, c], axis=-1)


def _parts(x: np.ndarray, n: int) -> np.ndarray:
    """[rows, blocks, 256] -> [n, rows, blocks, 256 / n]: the weights of each part of n along the first axis."""
    return np.ascontiguousarray(np.moveaxis(x.reshape(*x.shape[:2], -1, n), -1, 0))


def _joined(fields: np.ndarray, bits: int, run: int) -> np.ndarray:
    """The inverse of `coded.fields`: [..., n] numbers below 2^bits -> [..., n * bits / 8] bytes."""
    b = fields.reshape(*fields.shape[:-1], -1, 8 // bits, run)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    return np.bitwise_or.reduce(b << shifts, axis=-2).reshape(*fields.shape[:-1], -1)


def _codes(q: np.ndarray) -> np.ndarray:
    """[n, rows, blocks, parts] -> uint8 [rows, blocks, 256]."""
    return np.moveaxis(q.astype(np.uint8), 0, -1).reshape(*q.shape[1:3], -1)


def _with_floor(x: np.ndarray, part: int, top: int, most: int, guesses: np.ndarray) -> tuple[np.ndarray, ...]:
    """d, dmin float16 [rows, blocks], scales and floors uint8 [rows, blocks, parts] up to `most`, and codes."""
    x = _parts(x, part)
    shape = x.shape[1:]
    step, floor = (v.reshape(shape) for v in step_and_floor(x.reshape(part, -1), top, guesses))
    d, dmin = ((v.max(axis=-1) / np.float32(most)).astype("<f2") for v in (step, floor))
    d32, dmin32 = d.astype(np.float32)[..., None], dmin.astype(np.float32)[..., None]
    scale, floor = np.clip(np.rint(ratio(step, d32)), 0, most), np.clip(np.rint(ratio(floor, dmin32)), 0, most)
    q = rounded(x + dmin32 * floor, ratio(np.float32(1), d32 * scale), 0, top)
    return d, dmin, scale.astype(np.uint8), floor.astype(np.uint8), _codes(q)


def write_q2_k(x: np.ndarray) -> np.ndarray:
    d, dmin, scale, floor, codes = _with_floor(x, 16, 3, 15, np.arange(-0.5, 1.05, 0.1, dtype=np.float32))
    b = np.zeros(x.shape[:2], Q2_K)
    b["d"], b["dmin"], b["scales"], b["q"] = d, dmin, scale | floor << 4, _joined(codes, 2, 32)
    return b


def _symmetric(x: np.ndarray, half: int, most: int, guesses: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """d float16 [rows, blocks], scales -most..most - 1 [rows, blocks, 16], and codes from 0."""
    x = _parts(x, 16)
    step = step_of(x.reshape(16, -1), -half, half - 1, guesses).reshape(x.shape[1:])
    d = (widest(step)[..., 0] / np.float32(-most)).astype("<f2")
    d32 = d.astype(np.float32)[..., None]
    scale = np.clip(np.rint(ratio(step, d32)), -most, most - 1)
    q = rounded(x, ratio(np.float32(1), d32 * scale), -half, half - 1)
    return d, scale, _codes(q + np.float32(half))


def write_q3_k(x: np.ndarray) -> np.ndarray:
    d, scale, codes = _symmetric(x, 4, 32, np.arange(-0.9, 0.95, 0.1, dtype=np.float32))
    scale = (scale + 32).astype(np.uint8)
    b = np.zeros(x.shape[:2], Q3_K)
    b["d"], b["high"], b["q"] = d, _joined(codes >> 2, 1, 32), _joined(codes & 3, 2, 32)
    b["scales"] = np.concatenate([_joined(scale & 15, 4, 8), _joined(scale >> 4, 2, 4)], axis=-1)
    return b


def _write_with_floor(x: np.ndarray, dtype: np.dtype, top: int, guesses: np.ndarray) -> np.ndarray:
    d, dmin, scale, floor, codes = _with_floor(x, 32, top, 63, guesses)
    b = np.zeros(x.shape[:2], dtype)
    b["d"], b["dmin"], b["scales"], b["q"] = d, dmin, pack_scales(scale, floor), _joined(codes & 15, 4, 32)
    if "high" in (dtype.names or ()):
        b["high"] = _joined(codes >> 4, 1, 32)
    return b


def write_q4_k(x: np.ndarray) -> np.ndarray:
    return _write_with_floor(x, Q4_K, 15, np.arange(-0.9, 1.3, 0.2, dtype=np.float32))


def write_q5_k(x: np.ndarray) -> np.ndarray:
    return _write_with_floor(x, Q5_K, 31, np.arange(-0.6, 2.2, 0.3, dtype=np.float32))


def write_q6_k(x: np.ndarray) -> np.ndarray:
    d, scale, codes = _symmetric(x, 32, 128, np.arange(-0.9, 0.95, 0.3, dtype=np.float32))
    b = np.zeros(x.shape[:2], Q6_K)
    b["d"], b["scales"], b["ql"], b["qh"] = d, scale, _joined(codes & 15, 4, 64), _joined(codes >> 4, 2, 32)
    return b
