"""What an attention kernel is compiled for, and how many bytes its partial results take."""

from __future__ import annotations

from dataclasses import dataclass

from ..cache.parts import CHUNK
from .lang import F32, I16, Emitter, Value, vec

QUADS = 2  # fours of positions whose scores are computed together, at most: as many as `Isa.wide`
WIDE = 4  # vectors of a value that are weighed together, at most
NEAR = 12288  # bytes that a tile's queries may take of the nearest cache


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
    def size(self) -> int:
        return 2 if self.dtype == "f16" else 4

    @property
    def part(self) -> int:
        return part_bytes(self.heads, self.v_dim)

    @property
    def head(self) -> int:
        """Bytes of one head's partial result: sums | maximum, sum of weights, two factors of the last combination."""
        return (self.v_dim + 8) * 4

    def load(self, k: Emitter, *at: Value, lanes: int = 8) -> Value:
        """So many numbers of the cache from each address, as float32."""
        if self.dtype == "f16":
            return k.isa.to_float(k, k.concat([k.load(vec(I16, lanes), a) for a in at]))
        return k.concat([k.load(vec(F32, lanes), a) for a in at])

    def lanes(self, k: Emitter) -> int:
        """Numbers of a value that are weighed as one vector."""
        return 16 if k.isa.wide == 2 and self.v_dim % 16 == 0 else 8
