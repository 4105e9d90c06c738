"""What an attention kernel is compiled for, and how many bytes its partial results take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ..cache.parts import CHUNK
from .lang import F32, I8, I16, I32, Emitter, Value, vec

QUADS = 2  # fours of positions whose scores are computed together, at most: as many as `Isa.wide`
WIDE = 4  # vectors of a value that are weighed together, at most
NEAR = 12288  # bytes that a tile's queries may take of the nearest cache


Count = TypeVar("Count", int, Value)


def numbers_bytes(dtype: str, n: Count) -> Count:
    """Bytes of n numbers of the cache, in q8_0 a multiple of 32."""
    return n + (n >> 4) if dtype == "q8_0" else n * (2 if dtype == "f16" else 4)


def part_bytes(heads: int, v_dim: int) -> int:
    """Bytes of a partial result: for each query head of a kv head, v_dim sums and eight more words, see `Query`."""
    return heads * (v_dim + 8) * 4


def tile_rows(heads: int, k_dim: int) -> int:
    """Rows that share the keys and values of the chunks they see."""
    return max(1, min(8, NEAR // (heads * k_dim * 4)))


def scratch_bytes(heads: int, k_dim: int, v_dim: int) -> int:
    """Bytes of scratch a thread needs: a tile's scores and partial results, and some keys or values as float32."""
    rows, some = tile_rows(heads, k_dim), max(4 * QUADS * k_dim, CHUNK * WIDE * 16) * 4
    return rows * (heads * CHUNK * 4 + part_bytes(heads, v_dim)) + some + 63 & ~63


@dataclass(frozen=True, slots=True)
class Shape:
    """What an attention kernel is compiled for: dtype of the cache, query heads per kv head, widths of K and V.

    latent : there is one head of keys, and values are a part of the keys.
    """

    dtype: str
    heads: int
    k_dim: int
    v_dim: int
    latent: bool = False

    @property
    def v_step(self) -> int:
        """Numbers from the values of a position to those of the next."""
        return self.k_dim if self.latent else self.v_dim

    @property
    def unit(self) -> int:
        """Numbers that are read together: a block of q8_0, else a vector."""
        return 32 if self.dtype == "q8_0" else 8

    def bytes(self, n: Count) -> Count:
        """Bytes of n numbers of the cache."""
        return numbers_bytes(self.dtype, n)

    @property
    def part(self) -> int:
        return part_bytes(self.heads, self.v_dim)

    @property
    def head(self) -> int:
        """Bytes of one head's partial result: sums | maximum, sum of weights, two factors of the last combination."""
        return (self.v_dim + 8) * 4

    def reader(self, k: Emitter, rows: list[Value], j: Value, lanes: int = 8) -> Callable[[int], Value]:
        """f(i): numbers j + i … j + i + lanes - 1 of each of one or two rows of the cache, as float32.

        In q8_0, the numbers from j on that are read are part of one block, or begin with one.
        """
        if self.dtype == "q8_0":
            return self._block_reader(k, rows, j, lanes)
        ty = vec(I16 if self.dtype == "f16" else F32, lanes)

        def read(i: int) -> Value:
            v = k.concat([k.load(ty, a + self.bytes(j + i)) for a in rows])
            return k.isa.to_float(k, v) if self.dtype == "f16" else v

        return read

    def _block_reader(self, k: Emitter, rows: list[Value], j: Value, lanes: int) -> Callable[[int], Value]:
        block, inside = (j >> 5) * 34, j & 31
        scales: dict[int, Value] = {}

        def read(i: int) -> Value:
            at = i // 32 * 34
            if at not in scales:
                halves = [k.splat(k.load(I16, a + block + at), lanes) for a in rows]
                scales[at] = k.isa.to_float(k, k.concat(halves))
            whole = k.concat([k.load(vec(I8, lanes), a + block + inside + (at + 2 + i % 32)) for a in rows])
            return whole.signed(I32).float() * scales[at]

        return read

    def lanes(self, k: Emitter) -> int:
        """Numbers of a value that are weighed as one vector."""
        return 16 if k.isa.wide == 2 and self.v_dim % 16 == 0 else 8
