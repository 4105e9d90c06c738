"""Formats as codes: what a block says about each weight, before any arithmetic.

Most block formats are one idea with different numbers.  Each weight has a *code* of 1 to 6 bits, a table gives the
*value* of each code, a small integer, and a part of a block shares a step:

    w = (d * factor * scale[part]) * value[code] - dmin * floor[part]

`Coded` describes such a format, `Blocks` is what its reader finds in the bytes.  `decode` does the arithmetic above.  The
kernels do it in another order and with packed codes (`fucina.kernels.superblocks`), from the same `Blocks`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Blocks:
    """What blocks of rows hold.

    codes : uint8 [rows, blocks, columns of a block].
    d : float32 [rows, blocks], the step of the whole block.
    scales : int8 [rows, blocks, parts] (NVFP4: float32), or None where there is one part.
    dmin : float32 [rows, blocks] or None, the step of the floors.
    floors : uint8 [rows, blocks, parts], or None where there is one part.
    """

    codes: np.ndarray
    d: np.ndarray
    scales: np.ndarray | None = None
    dmin: np.ndarray | None = None
    floors: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class Coded:
    """A block format.

    values : the integer that each code stands for, as many as the codes' bits can count.
    parts : parts of a block with a scale each.
    factor : by which all steps are multiplied, a power of two.
    read : records uint8 [rows, blocks, bytes of a block] -> Blocks.
    """

    values: tuple[int, ...]
    parts: int
    read: Callable[[np.ndarray], Blocks]
    factor: float = 1.0

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return (len(self.values) - 1).bit_length()


def decode(format: Coded, blocks: Blocks) -> np.ndarray:
    """The weights, float32 [rows, blocks, parts, columns of a part]."""
    step = (blocks.d * np.float32(format.factor))[..., None]
    if blocks.scales is not None:
        step = step * blocks.scales
    values = np.array(format.values, np.float32)[blocks.codes]
    w = step[..., None] * values.reshape(*values.shape[:2], format.parts, -1)
    if blocks.dmin is not None:
        floor = blocks.dmin[..., None]
        w -= (floor if blocks.floors is None else floor * blocks.floors)[..., None]
    return w


# --- bytes -> numbers, for the readers -----------------------------------------------------------------------------


def half(raw: np.ndarray, at: int) -> np.ndarray:
    """The float16 at byte `at` of every block: float32 [rows, blocks]."""
    return np.ascontiguousarray(raw[..., at : at + 2]).view("<f2")[..., 0].astype(np.float32)


def words(raw: np.ndarray, start: int, stop: int, dtype: str) -> np.ndarray:
    """Bytes start..stop of every block as numbers of `dtype`, little-endian: [rows, blocks, numbers]."""
    return np.ascontiguousarray(raw[..., start:stop]).view(dtype)


def fields(raw: np.ndarray, bits: int, run: int) -> np.ndarray:
    """Bytes [..., n] -> [..., n * 8 / bits] numbers of `bits` bits.

    Bytes come in runs of `run`: first the lowest bits of all bytes of a run, then the next bits of all of them, and so on.
    """
    b = raw.reshape(*raw.shape[:-1], -1, 1, run)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    return ((b >> shifts) & np.uint8((1 << bits) - 1)).reshape(*raw.shape[:-1], -1)
