"""One chunk of attention: scores of some queries against up to 64 positions, softmax, weighted values.

A partial result of a query head holds the sum of values weighted with e^(score - m), the maximum m of the scores seen
and the sum of the weights.  Two of them are combined by scaling both to the larger maximum: the online softmax of
FlashAttention (Dao et al., 2022).
"""

from __future__ import annotations

from dataclasses import dataclass

from . import record as R
from .lang import F8, F32, I16, LOWEST, Emitter, Value, vec

CHUNK = R.CHUNK
AHEAD = 4  # positions whose scores are computed together
LINE = 64  # bytes of a cache line


def part_bytes(heads: int, v_dim: int) -> int:
    """Bytes of a partial result: for each query head of a kv head, v_dim sums and eight more words, see `Query`."""
    return heads * (v_dim + 8) * 4


def scratch_bytes(heads: int, k_dim: int, v_dim: int) -> int:
    """Bytes of scratch a thread needs: for a tile's rows, the scores of a chunk and a partial result."""
    return tile_rows(heads, 32) * (heads * CHUNK * 4 + part_bytes(heads, v_dim)) + 63 & ~63


def tile_rows(heads: int, registers: int) -> int:
    """Rows that share each load of a chunk they all see whole, so that about six queries do; one without registers."""
    return max(1, 6 // heads) if registers == 32 else 1


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

    def load(self, k: Emitter, at: Value) -> Value:
        """Eight numbers of the cache."""
        return k.isa.to_float(k, k.load(vec(I16, 8), at)) if self.dtype == "f16" else k.load(F8, at)


def together(count: int, most: int) -> list[tuple[int, int]]:
    """`count` things in equal runs of at most `most`: (first, length)."""
    runs = -(-count // most)
    cuts = [count * i // runs for i in range(runs + 1)]
    return [(a, b - a) for a, b in zip(cuts, cuts[1:])]


def four_sums(k: Emitter, v: list[Value]) -> Value:
    """The sums of four vectors of eight, each in the order ((0+1)+(2+3)) + ((4+5)+(6+7))."""
    pick = lambda x, y, first: x.shuffle([first + i for i in (0, 2, 8, 10, 4, 6, 12, 14)], y)
    add = lambda x, y: pick(x, y, 0) + pick(x, y, 1)
    h = add(add(v[0], v[1]), add(v[2], v[3]))
    return h.shuffle([0, 1, 2, 3]) + h.shuffle([4, 5, 6, 7])


def scores(
    k: Emitter, shape: Shape, queries: list[Value], keys: Value, n, out: Value, scale: Value, values: Value
) -> None:
    """out[i, t] = scale · query i · key t for n <= 64 positions; then -1e30 up to a multiple of 8.

    Meanwhile it asks memory for the values, which are needed next.
    """
    with k.range(0, n, AHEAD) as t:
        soon = values + t * (shape.v_step * shape.size)
        for line in range(0, AHEAD * shape.v_step * shape.size, LINE):
            k.prefetch(soon + line)
        if isinstance(n, Value):  # a last step of fewer than four repeats the last position; what it yields is not used
            at = [keys + k.min(t + i, n - 1) * (shape.k_dim * shape.size) for i in range(AHEAD)]
        else:
            at = [keys + t * (shape.k_dim * shape.size) + i * shape.k_dim * shape.size for i in range(AHEAD)]
        for first, count in together(len(queries), 6 if k.isa.registers == 32 else 3):
            sums = [[k.cell(F8, 0.0) for _ in range(AHEAD)] for _ in range(count)]

            with k.range(0, shape.k_dim, 8, keep=True) as j:
                key = [shape.load(k, a + j * shape.size) for a in at]
                for i in range(count):
                    x = k.load(F8, queries[first + i] + j * 4)
                    for p in range(AHEAD):
                        sums[i][p].set(k.fma(key[p], x, sums[i][p].get()))
            for i in range(count):
                total = four_sums(k, [s.get() for s in sums[i]])
                k.store(total * k.splat(scale, 4), out + t * 4 + (first + i) * CHUNK * 4)
    if isinstance(n, Value):
        with k.range(0, len(queries)) as i:
            with k.range(n, (n + 7) & -8) as t:
                k.store(k.const(F32, LOWEST), out + (i * CHUNK + t) * 4)


def softmax(k: Emitter, shape: Shape, count: int, n, mine: Value, state: Value) -> None:
    """Scores of `count` queries to weights e^(score - maximum); updates the tails of their partial results."""
    with k.range(0, count) as i:
        row, tail = mine + i * (CHUNK * 4), state + i * shape.head + shape.v_dim * 4
        most, total = k.cell(F8, LOWEST), k.cell(F8, 0.0)
        end = ((n + 7) & -8) * 4
        with k.range(0, end, 32) as t:
            most.set(k.max(most.get(), k.load(F8, row + t)))
        here = k.fold(most.get(), k.max)
        with k.range(0, end, 32) as t:
            w = k.exp(k.load(F8, row + t) - k.splat(here))
            k.store(w, row + t)
            total.set(total.get() + w)
        combine_tails(k, tail, here, k.sum(total.get()))


def combine_tails(k: Emitter, tail: Value, most: Value, weights: Value) -> None:
    """Maximum and sum of weights of the result at `tail` and of another: their combination, and the factors of both."""
    before = k.load(F32, tail)
    both = k.max(before, most)
    old, new = (k.exp(k.splat(m - both, 4)).lane(0) for m in (before, most))
    k.store(both, tail)
    k.store(k.fma(k.load(F32, tail + 4), old, weights * new), tail + 4)
    k.store(old, tail + 8)
    k.store(new, tail + 12)


def weigh(k: Emitter, shape: Shape, count: int, n, values: Value, mine: Value, state: Value) -> None:
    """Each query's partial result, times its factor, plus the chunk's weighted values, times theirs."""
    most = 24 if k.isa.registers == 32 else 12
    for first, queries in together(count, most // 2):

        def part(j: Value, vectors: int) -> None:
            sums = [[k.cell(F8, 0.0) for _ in range(vectors)] for _ in range(queries)]
            with k.range(0, n, keep=True) as t:
                at = values + t * (shape.v_step * shape.size) + j * (8 * shape.size)
                v = [shape.load(k, at + 8 * shape.size * i) for i in range(vectors)]
                for q in range(queries):
                    w = k.splat(k.load(F32, mine + t * 4 + (first + q) * CHUNK * 4))
                    for i in range(vectors):
                        sums[q][i].set(k.fma(w, v[i], sums[q][i].get()))
            for q in range(queries):
                head = state + (first + q) * shape.head
                old, new = (k.splat(k.load(F32, head + shape.v_dim * 4 + at)) for at in (8, 12))
                for i in range(vectors):
                    at = head + j * 32 + 32 * i
                    k.store(k.fma(k.load(F8, at), old, sums[q][i].get() * new), at)

        vectors, wide = shape.v_dim // 8, max(1, min(4, most // queries))
        with k.range(0, vectors - vectors % wide, wide) as j:
            part(j, wide)
        if vectors % wide:
            part(k.int(vectors - vectors % wide), vectors % wide)


def chunk(
    k: Emitter,
    shape: Shape,
    queries: list[Value],
    keys: Value,
    values: Value,
    n: Value | int,
    state: Value,
    mine: Value,
    scale: Value,
) -> None:
    """Adds n <= 64 positions to the partial results at `state`; `mine` is scratch for the scores."""
    scores(k, shape, queries, keys, n, mine, scale, values)
    softmax(k, shape, len(queries), n, mine, state)
    weigh(k, shape, len(queries), n, values, mine, state)


def clear(k: Emitter, shape: Shape, count: int, state: Value) -> None:
    """The partial results of no positions at all."""
    with k.range(0, count) as i:
        at = state + i * shape.head
        with k.range(0, shape.v_dim * 4, 32) as j:
            k.store(k.const(F8, 0.0), at + j)
        k.store(k.const(F32, LOWEST), at + shape.v_dim * 4)
        k.store(k.const(F32, 0.0), at + shape.v_dim * 4 + 4)


def finish(k: Emitter, shape: Shape, state: Value, out: Value) -> None:
    """The weighted means of the values, from the results of all chunks."""
    with k.range(0, shape.heads) as g:
        at = state + g * shape.head
        inverse = k.splat(k.const(F32, 1.0) / k.load(F32, at + shape.v_dim * 4 + 4))
        with k.range(0, shape.v_dim * 4, 32) as j:
            k.store(k.load(F8, at + j) * inverse, out + j + g * (shape.v_dim * 4))
