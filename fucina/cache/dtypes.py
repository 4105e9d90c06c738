"""Number formats of keys, values and latents in a state.

`f16` and `f32` keep every number by itself.  `q8_0` keeps the 32 neighbours of a row as a *block* of 34 bytes: a float16
scale d, then 32 integers of 8 bits; a number is d · q.  These are the bytes of GGML's Q8_0, and of the file formats
`FUXKV001` and `FUXKV002`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..checks import one_of
from ..errors import KvCacheShapeMismatch
from .parts import Kv, Latent, Part

_F = np.float32
_BLOCK = np.dtype([("d", "<f2"), ("q", "i1", 32)])

TINY = 2.0**-100
"""A block whose scale is not above this becomes zeros: as float16 the scale is zero, and its inverse may overflow."""


@dataclass(frozen=True, slots=True)
class CacheDtype:
    """One number format.

    Attributes
    ----------
    name : as `cache_dtype=` takes it.
    item : what planes consist of in NumPy.
    block : numbers of a row that are kept together.
    block_bytes : bytes of so many.
    """

    name: str
    item: np.dtype[Any]
    block: int
    block_bytes: int

    def nbytes(self, numbers: int) -> int:
        """Bytes of so many numbers, a multiple of `block`."""
        return numbers // self.block * self.block_bytes

    def items(self, numbers: int) -> int:
        """Items of so many numbers."""
        return self.nbytes(numbers) // self.item.itemsize

    def check(self, parts: Sequence[Part]) -> None:
        """Raise KvCacheShapeMismatch for a part whose rows are not whole blocks."""
        for slot, part in enumerate(parts):
            match part:
                case Kv(_, k_dim, v_dim):
                    widths = {"keys of": k_dim, "values of": v_dim}
                case Latent(k_dim, v_dim, v_at):
                    widths = {"rows of": k_dim, "values of": v_dim, "values from": v_at}
                case _:
                    continue
            for what, n in widths.items():
                if n % self.block:
                    raise KvCacheShapeMismatch(
                        f"a cache in {self.name} keeps blocks of {self.block} numbers, slot {slot} has {what} {n}; "
                        f"expected a multiple of {self.block}, or cache_dtype f16 or f32"
                    )

    def encode(self, rows: np.ndarray) -> np.ndarray:
        """Numbers [..., n] as they are kept: [..., items(n)]."""
        return _quantise(rows) if self.block > 1 else np.asarray(rows).astype(self.item)

    def decode(self, rows: np.ndarray) -> np.ndarray:
        """What `encode` gave, as float32 [..., n]."""
        if self.block == 1:
            return rows.astype(_F)
        blocks = np.ascontiguousarray(rows).view(_BLOCK)  # [..., blocks]
        with np.errstate(invalid="ignore"):  # an infinite scale times 0
            numbers = blocks["d"].astype(_F)[..., None] * blocks["q"].astype(_F)  # exact: 8 bits by 11
        return numbers.reshape(*rows.shape[:-1], blocks.shape[-1] * 32)


DTYPES = {
    "f16": CacheDtype("f16", np.dtype(np.float16), 1, 2),
    "q8_0": CacheDtype("q8_0", np.dtype(np.uint8), 32, _BLOCK.itemsize),
    "f32": CacheDtype("f32", np.dtype(_F), 1, 4),
}


def cache_dtype(name: str) -> CacheDtype:
    """The format of this name; KvCacheShapeMismatch if there is none."""
    return DTYPES[one_of("cache dtype", name, DTYPES.keys(), KvCacheShapeMismatch)]


def _quantise(x: np.ndarray) -> np.ndarray:
    """As GGML's reference does: d = max |x| / 127, q = x · (1/d) rounded, halves away from zero.

    A NaN makes the scale of its block NaN, and so the whole block.
    """
    x = np.asarray(x, _F)
    b = x.reshape(*x.shape[:-1], x.shape[-1] // 32, 32)
    out = np.empty(b.shape[:-1], _BLOCK)
    with np.errstate(all="ignore"):
        d = np.abs(b).max(-1, keepdims=True) / _F(127)
        y = b * np.where(d > _F(TINY), _F(1) / d, _F(0))
        y = np.minimum(np.where(y > _F(-127), y, _F(-127)), _F(127))  # a NaN becomes -127
        q = np.trunc(y)
        rest = y - q
        out["q"] = q + (rest >= _F(0.5)) - (rest <= _F(-0.5))
        out["d"] = d[..., 0]
    return out.view(np.uint8)
