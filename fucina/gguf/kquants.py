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

Q4_K = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("q", "u1", (4, 32))])
Q5_K = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("high", "u1", 32), ("q", "u1", (4, 32))])
Q6_K = np.dtype([("ql", "u1", (2, 2, 32)), ("qh", "u1", (2, 32)), ("scales", "i1", 16), ("d", "<f2")])


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


READ_2_K = Coded(tuple(range(4)), 16, read_q2_k)
READ_3_K = Coded(tuple(range(-4, 4)), 16, read_q3_k)
READ_4_K = Coded(tuple(range(16)), 8, read_q4_k)
READ_5_K = Coded(tuple(range(32)), 8, read_q5_k)
READ_6_K = Coded(tuple(range(-32, 32)), 16, read_q6_k)


# --- writing -------------------------------------------------------------------------------------------------------
# First the best step (and floor) of each sub-block as real numbers, then these are quantised themselves, and last the
# weights with the scales as they will be read.


def pack_scales(scale: np.ndarray, floor: np.ndarray) -> np.ndarray:
    """8 scales and 8 floors below 64, uint8 […, 8] each -> […, 12] bytes; the inverse of `unpack_scales`."""
    a = scale[..., :4] | scale[..., 4:] >> 4 << 6
    b = floor[..., :4] | floor[..., 4:] >> 4 << 6
    c = (scale[..., 4:] & 15) | floor[..., 4:] << 4
    return np.concatenate([a, b, c], axis=-1)


def ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """numerator / denominator, 0 where the denominator is 0 (a block of zeros has no scale)."""
    numerator, denominator = np.broadcast_arrays(numerator, denominator)
    return np.divide(numerator, denominator, out=np.zeros(numerator.shape, np.float32), where=denominator != 0)


def widest(x: np.ndarray) -> np.ndarray:
    """[…, n] -> […, 1]: the element that is farthest from zero, with its sign."""
    return np.take_along_axis(x, np.abs(x).argmax(axis=-1, keepdims=True), axis=-1)


def _fit_with_floor(x: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    """Step and floor (both >= 0) of each sub-block x [..., 32] such that x is near step * q - floor, q in 0..top.

    Tries ranges somewhat narrower than min..max: cutting off an outlier lets the others be finer.  For each, q is
    fixed by rounding, then step and floor come from least squares; the least squared error wins.
    """
    low = np.minimum(x.min(axis=-1), 0)
    high = np.maximum(x.max(axis=-1), 0)
    best = (high - low) / np.float32(top), -low  # the whole range
    q = np.clip(np.rint(ratio(x + best[1][..., None], best[0][..., None])), 0, top)
    best_error = _squared_error(x, q, *best)
    for shrink in np.linspace(0.75, 1.0, 11, dtype=np.float32):
        step, floor = (high - low) * shrink / np.float32(top), -low * shrink
        q = np.clip(np.rint(ratio(x + floor[..., None], step[..., None])), 0, top)
        mean_q, mean_x = q.mean(axis=-1), x.mean(axis=-1)
        dq = q - mean_q[..., None]
        step = ratio((dq * x).sum(axis=-1), (dq * dq).sum(axis=-1))  # the slope of x over q
        floor = step * mean_q - mean_x
        through_zero = ratio((q * x).sum(axis=-1), (q * q).sum(axis=-1))  # the slope where a floor would be negative
        step, floor = np.where(floor < 0, through_zero, step), np.maximum(floor, 0)
        error = _squared_error(x, q, step, floor)
        better = error < best_error
        best = np.where(better, step, best[0]), np.where(better, floor, best[1])
        best_error = np.where(better, error, best_error)
    return best


def _squared_error(x: np.ndarray, q: np.ndarray, step: np.ndarray, floor: np.ndarray) -> np.ndarray:
    return np.square(step[..., None] * q - floor[..., None] - x).sum(axis=-1)


def _write_with_floor(x: np.ndarray, dtype: np.dtype, top: int) -> np.ndarray:
    x = x.reshape(*x.shape[:-1], 8, 32)
    step, floor = _fit_with_floor(x, top)  # [rows, blocks, 8]
    b = np.zeros(x.shape[:-2], dtype)
    b["d"] = step.max(axis=-1) / np.float32(63)
    b["dmin"] = floor.max(axis=-1) / np.float32(63)
    d, dmin = b["d"].astype(np.float32)[..., None], b["dmin"].astype(np.float32)[..., None]
    scale = np.clip(np.rint(ratio(step, d)), 0, 63).astype(np.uint8)
    floor = np.clip(np.rint(ratio(floor, dmin)), 0, 63).astype(np.uint8)
    b["scales"] = pack_scales(scale, floor)
    q = np.clip(np.rint(ratio(x + (dmin * floor)[..., None], (d * scale)[..., None])), 0, top).astype(np.uint8)
    b["q"] = (q[..., 0::2, :] & 15) | q[..., 1::2, :] << 4
    if "high" in (dtype.names or ()):
        b["high"] = np.bitwise_or.reduce(q >> 4 << np.arange(8, dtype=np.uint8)[:, None], axis=-2)
    return b


def write_q4_k(x: np.ndarray) -> np.ndarray:
    return _write_with_floor(x, Q4_K, 15)


def write_q5_k(x: np.ndarray) -> np.ndarray:
    return _write_with_floor(x, Q5_K, 31)


def write_q6_k(x: np.ndarray) -> np.ndarray:
    x = x.reshape(*x.shape[:-1], 16, 16)
    step = widest(x)[..., 0] / np.float32(-32)  # signed: the weight farthest from zero gets q = -32
    b = np.zeros(x.shape[:-2], Q6_K)
    b["d"] = widest(step)[..., 0] / np.float32(-128)
    d = b["d"].astype(np.float32)[..., None]
    b["scales"] = np.clip(np.rint(ratio(step, d)), -128, 127)
    q = np.clip(np.rint(ratio(x, (d * b["scales"])[..., None])), -32, 31) + 32
    q = q.astype(np.uint8).reshape(*b.shape, 2, 4, 32)  # halves, k, l
    low, upper = q & 15, q >> 4
    b["ql"] = low[..., 0:2, :] | low[..., 2:4, :] << 4
    b["qh"] = np.bitwise_or.reduce(upper << np.array([0, 2, 4, 6], np.uint8)[:, None], axis=-2)
    return b
