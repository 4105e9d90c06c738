"""Formats of 1, 2 and 4 bits whose blocks have no scales of scales.

    TQ1_0   256 columns   54 bytes   trits: five to a byte (the byte is the fraction 0.t1 t2 t3 t4 t5 in base 3)   d * -1, 0, 1
    TQ2_0   256 columns   66 bytes   64 bytes of 2 bits | d f16                                          d * -1, 0, 1 (2)
    Q1_0    128 columns   18 bytes   d f16 | 16 bytes, a bit a weight                                    d * -1, 1
    Q2_0     64 columns   18 bytes   d f16 | 16 bytes of 2 bits, four neighbours a byte                  d * -1, 0, 1, 2
    IQ4_NL   32 columns   18 bytes   d f16 | 16 bytes of 4 bits as in Q4_0                               d * table
    IQ4_XS  256 columns  136 bytes   d f16 | 8 scales of 6 bits in 2 + 4 bytes | 128 bytes of 4 bits     d * (scale - 32) * table
    MXFP4    32 columns   17 bytes   exponent e | 16 bytes as in Q4_0                                    2^(e-128) * table
    NVFP4    64 columns   36 bytes   4 scales in e4m3 | 4 runs of 8 bytes, 16 weights each               scale/2 * table

The table of IQ4 is denser around zero, where most weights are.  That of the FP4 formats holds the numbers of a float of
4 bits (sign, 2 bits of exponent, 1 of mantissa), doubled to be integers (OCP Microscaling Formats, version 1.0).
"""

from __future__ import annotations

import numpy as np

from .coded import Blocks, Coded, fields, half
from .fit import ratio, rounded, widest
from .types import GgmlType

TERNARY = (-1, 0, 1, 2)
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def _trits(b: np.ndarray, count: int, run: int) -> np.ndarray:
    """[..., n] bytes -> their first `count` trits: first trits of a run of bytes, then second ones, and so on."""
    b = b.reshape(*b.shape[:-1], -1, 1, run)
    shifted = b * np.array([1, 3, 9, 27, 81][:count], np.uint8)[:, None]  # the fraction after each trit, modulo 1
    return (shifted.astype(np.uint16) * 3 >> 8).astype(np.uint8).reshape(*b.shape[:-3], -1)


def read_tq1_0(raw: np.ndarray) -> Blocks:
    parts = _trits(raw[..., :32], 5, 32), _trits(raw[..., 32:48], 5, 16), _trits(raw[..., 48:52], 4, 4)
    return Blocks(np.concatenate(parts, -1), half(raw, 52))


def read_tq2_0(raw: np.ndarray) -> Blocks:
    return Blocks(fields(raw[..., :64], 2, 32), half(raw, 64))


def read_q1_0(raw: np.ndarray) -> Blocks:
    return Blocks(fields(raw[..., 2:], 1, 1), half(raw, 0))


def read_q2_0(raw: np.ndarray) -> Blocks:
    return Blocks(fields(raw[..., 2:], 2, 1), half(raw, 0))


def read_iq4_nl(raw: np.ndarray) -> Blocks:
    return Blocks(fields(raw[..., 2:], 4, 16), half(raw, 0))


def read_iq4_xs(raw: np.ndarray) -> Blocks:
    low = fields(raw[..., 4:8], 4, 1)
    high = fields(raw[..., 2:4], 2, 1)
    return Blocks(fields(raw[..., 8:], 4, 16), half(raw, 0), (low | high << 4).astype(np.int8) - np.int8(32))


def read_mxfp4(raw: np.ndarray) -> Blocks:
    e = raw[..., 0].astype(np.uint32)
    bits = np.where(e < 2, np.uint32(0x0020_0000) << e, (e - 1) << 23)  # 2^(e-128); the first two are subnormal
    return Blocks(fields(raw[..., 1:], 4, 16), bits.astype(np.uint32).view(np.float32))


def read_nvfp4(raw: np.ndarray) -> Blocks:
    x = raw[..., :4]
    exponent, mantissa = (x >> 3 & 15).astype(np.int32), (x & 7).astype(np.float32)
    scale = np.ldexp(np.where(exponent == 0, mantissa, mantissa + 8), np.maximum(exponent, 1) - 11)
    scale[x == 0x7F] = 0  # stands for a NaN; ggml reads it as 0
    return Blocks(fields(raw[..., 4:], 4, 8), np.ones(raw.shape[:2], np.float32), scale.astype(np.float32))


# --- writing -------------------------------------------------------------------------------------------------------

IQ4_NL_BLOCK = np.dtype([("d", "<f2"), ("q", "u1", 16)])
TQ2_0_BLOCK = np.dtype([("q", "u1", 64), ("d", "<f2")])

_NEAREST = np.abs(np.arange(-128, 128)[:, None] - np.array(IQ4)).argmin(1).astype(np.uint8)
"""The code of the value that is nearest to each int8, from -128 on."""


def _nearest(x: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    """The codes of the values of IQ4 nearest to x · inverse."""
    return _NEAREST[rounded(x, inverse, -128, 127).astype(np.int16) + 128]


def write_iq4_nl(x: np.ndarray) -> np.ndarray:
    x = np.ascontiguousarray(np.moveaxis(x, -1, 0))  # [32, rows, blocks]
    peak, values = widest(x, 0)[0], np.array(IQ4, np.float32)
    best, best_gain = np.zeros_like(peak), np.full_like(peak, -1)
    for size in np.arange(-136, -98, 7.0, dtype=np.float32):  # what the weight that is farthest from zero becomes
        for sign in (1, -1):  # the table reaches farther on its negative side, but is not symmetric
            v = values[_nearest(x, ratio(sign * size, peak))]
            xv, vv = np.einsum("i...,i...->...", x, v), np.einsum("i...,i...->...", v, v)
            step = ratio(xv, vv)
            better = step * xv > best_gain
            np.copyto(best, step, where=better)
            np.copyto(best_gain, step * xv, where=better)
    b = np.zeros(peak.shape, IQ4_NL_BLOCK)
    b["d"] = best
    q = np.moveaxis(_nearest(x, ratio(np.float32(1), b["d"].astype(np.float32))), 0, -1)
    b["q"] = q[..., :16] | q[..., 16:] << 4
    return b


def write_tq2_0(x: np.ndarray) -> np.ndarray:
    d = np.abs(x).max(axis=-1)
    q = np.sign(np.trunc(ratio(x, d[..., None]) * 2)) + 1  # half of d, and more, is one
    b = np.zeros(x.shape[:2], TQ2_0_BLOCK)
    b["d"] = d
    b["q"] = np.bitwise_or.reduce(
        q.astype(np.uint8).reshape(*x.shape[:2], 2, 4, 32) << np.array([0, 2, 4, 6], np.uint8)[:, None], axis=-2
    ).reshape(*x.shape[:2], 64)
    return b


CODED = {
    GgmlType.IQ4_NL: Coded(IQ4, 1, read_iq4_nl),
    GgmlType.IQ4_XS: Coded(IQ4, 8, read_iq4_xs),
    GgmlType.TQ1_0: Coded(TERNARY, 1, read_tq1_0),
    GgmlType.TQ2_0: Coded(TERNARY, 1, read_tq2_0),
    GgmlType.Q1_0: Coded((-1, 1), 1, read_q1_0),
    GgmlType.Q2_0: Coded(TERNARY, 1, read_q2_0),
    GgmlType.MXFP4: Coded(FP4, 1, read_mxfp4),
    GgmlType.NVFP4: Coded(FP4, 4, read_nvfp4),
}
