"""The IQ formats of 1 to 3 bits: neighbouring weights share the index of a point in a grid.

A grid (`fucina.gguf.grids`) lists groups of eight (IQ1, IQ2) or four (IQ3) magnitudes that are worth spelling.  So eight
weights cost 8 to 11 bits and their signs.  Blocks have 256 columns; every part of 32 or 16 has a scale s of 3 or 4 bits.

    IQ1_S     50 bytes   d f16 | 32 bytes of indices | 8 x u16: 4 x 3 high bits, s in bits 12-14, shift in bit 15
    IQ1_M     56 bytes   32 bytes of indices | 16 bytes: 2 x (3 high bits, shift) | 4 x u16: 4 x 3 bits of s; d in the top 4
    IQ2_XXS   66 bytes   d f16 | 8 x (4 bytes of indices | u32: 4 x 7 bits of signs, s in bits 28-31)
    IQ2_XS    74 bytes   d f16 | 32 x u16: index in bits 0-8, signs in 9-15 | 8 bytes: 16 s of 4 bits
    IQ2_S     82 bytes   d f16 | 32 bytes of indices | 32 bytes of signs | 8 bytes: 2 high bits each | 8 bytes: 16 s
    IQ3_XXS   98 bytes   d f16 | 64 bytes of indices | 8 x u32: 4 x 7 bits of signs, s in bits 28-31
    IQ3_S    110 bytes   d f16 | 64 bytes of indices | 8 bytes of high bits | 32 bytes of signs | 4 bytes: 8 s of 4 bits

    IQ2      w = d/8 * (2 s + 1) * (8, 25 or 43)           IQ3_XXS   w = d/4 * (2 s + 1) * (4, 12, 20, 28, 36, 44, 52 or 62)
    IQ3_S    w = d * (2 s + 1) * (1, 3, ... or 15)         IQ1       w = d/8 * (2 s + 1) * (-8, 0 or 8, all + 1 or all - 1)

Seven bits of signs stand for eight: the number of minus signs is even.
"""

from __future__ import annotations

import numpy as np

from .coded import Blocks, Coded, fields, half, words
from .grids import grid
from .types import GgmlType

_SEVEN = np.arange(128, dtype=np.uint8)
_EIGHT = _SEVEN | (np.unpackbits(_SEVEN[:, None], axis=1).sum(1) & 1).astype(np.uint8) << 7  # the eighth sign by parity


def _signs(b: np.ndarray) -> np.ndarray:
    """[..., n] bytes -> [..., n, 8] bits, 1 for a minus."""
    return np.unpackbits(b[..., None], axis=-1, bitorder="little")


def _odd(s: np.ndarray) -> np.ndarray:
    return (2 * s + 1).astype(np.int8)


def _signed(points: np.ndarray, signs: np.ndarray, minus: int) -> np.ndarray:
    """Codes [rows, blocks, 256] of magnitudes [rows, blocks, ...] and as many signs."""
    shape = *points.shape[:2], 256
    return points.reshape(shape) | signs.reshape(shape) * np.uint8(minus)


def _indices_and_signs(raw: np.ndarray, start: int) -> tuple[np.ndarray, np.ndarray]:
    """The u32 from byte `start` on, every one of 4 x 7 bits of signs and a scale: signs [.., 8, 4, 8], scales [.., 8]."""
    packed = words(raw, start, start + 32, "<u4")
    seven = packed[..., None] >> np.array([0, 7, 14, 21], np.uint32) & 127
    return _signs(_EIGHT[seven]), _odd(packed >> 28)


def read_iq2_xxs(raw: np.ndarray) -> Blocks:
    pairs = words(raw, 2, 66, "<u4")
    signs, scales = _indices_and_signs(np.ascontiguousarray(pairs[..., 1::2]).view(np.uint8), 0)
    index = np.ascontiguousarray(pairs[..., 0::2]).view(np.uint8)
    return Blocks(_signed(grid("IQ2_XXS")[index], signs, 4), half(raw, 0), scales)


def read_iq2_xs(raw: np.ndarray) -> Blocks:
    q = words(raw, 2, 66, "<u2")
    codes = _signed(grid("IQ2_XS")[q & 511], _signs(_EIGHT[q >> 9]), 4)
    return Blocks(codes, half(raw, 0), _odd(fields(raw[..., 66:], 4, 1)))


def read_iq2_s(raw: np.ndarray) -> Blocks:
    index = raw[..., 2:34] | fields(raw[..., 66:74], 2, 1).astype(np.uint16) << 8
    codes = _signed(grid("IQ2_S")[index], _signs(raw[..., 34:66]), 4)
    return Blocks(codes, half(raw, 0), _odd(fields(raw[..., 74:], 4, 1)))


def read_iq3_xxs(raw: np.ndarray) -> Blocks:
    signs, scales = _indices_and_signs(raw, 66)
    return Blocks(_signed(grid("IQ3_XXS")[raw[..., 2:66]], signs, 8), half(raw, 0), scales)


def read_iq3_s(raw: np.ndarray) -> Blocks:
    index = raw[..., 2:66] | fields(raw[..., 66:74], 1, 1).astype(np.uint16) << 8
    points = grid("IQ3_S")[index].reshape(*raw.shape[:2], 256)
    signs = _signs(raw[..., 74:106]).reshape(points.shape)
    codes = (points | 8) ^ signs * np.uint8(15)  # 8 + i for the magnitude 2 i + 1, 7 - i for its negative
    return Blocks(codes, half(raw, 0), _odd(fields(raw[..., 106:], 4, 1)))


def read_iq1_s(raw: np.ndarray) -> Blocks:
    h = words(raw, 34, 50, "<u2")
    high = h[..., None] >> np.array([0, 3, 6, 9], np.uint16) & 7
    points = grid("IQ1")[raw[..., 2:34] | high.reshape(*raw.shape[:2], 32) << 8]
    minus = np.repeat(h >> 15, 32, axis=-1).astype(np.uint8)
    return Blocks(_signed(points, minus, 4), half(raw, 0), _odd(h >> 12 & 7))


def read_iq1_m(raw: np.ndarray) -> Blocks:
    h = fields(raw[..., 32:48], 4, 1)  # a nibble per point
    points = grid("IQ1")[raw[..., :32] | (h & 7).astype(np.uint16) << 8]
    s = words(raw, 48, 56, "<u2")
    d = np.bitwise_or.reduce(s >> 12 << np.array([0, 4, 8, 12], np.uint16), axis=-1).astype("<u2")
    three = s[..., None] >> np.array([0, 3, 6, 9], np.uint16) & 7
    scales = _odd(three.reshape(*raw.shape[:2], 16))
    return Blocks(_signed(points, np.repeat(h >> 3, 8, axis=-1), 4), d.view("<f2").astype(np.float32), scales)


_IQ1 = (-7, 1, 9, 0, -9, -1, 7, 0)
_IQ2 = (8, 25, 43, 0, -8, -25, -43, 0)
_IQ3 = (4, 12, 20, 28, 36, 44, 52, 62)

CODED = {
    GgmlType.IQ1_S: Coded(_IQ1, 8, read_iq1_s, 1 / 8),
    GgmlType.IQ1_M: Coded(_IQ1, 16, read_iq1_m, 1 / 8),
    GgmlType.IQ2_XXS: Coded(_IQ2, 8, read_iq2_xxs, 1 / 8),
    GgmlType.IQ2_XS: Coded(_IQ2, 16, read_iq2_xs, 1 / 8),
    GgmlType.IQ2_S: Coded(_IQ2, 16, read_iq2_s, 1 / 8),
    GgmlType.IQ3_XXS: Coded((*_IQ3, *(-v for v in _IQ3)), 8, read_iq3_xxs, 1 / 4),
    GgmlType.IQ3_S: Coded(tuple(range(-15, 16, 2)), 8, read_iq3_s),
}
