"""One chunk of attention: scores of some queries against up to 64 positions, softmax, weighted values.

A partial result of a query head holds the sum of values weighted with e^(score - m), the maximum m of the scores seen
and the sum of the weights.  Two of them are combined by scaling both to the larger maximum: the online softmax of
FlashAttention (Dao et al., 2022).
"""

from __future__ import annotations

from collections.abc import Iterator

from ..cache.parts import CHUNK
from .lang import F8, F32, LOWEST, Emitter, Value, vec
from .shapes import WIDE, Shape


def together(count: int, most: int) -> list[tuple[int, int]]:
    """`count` things in equal runs of at most `most`: (first, length)."""
    runs = -(-count // most)
    cuts = [count * i // runs for i in range(runs + 1)]
    return [(a, b - a) for a, b in zip(cuts, cuts[1:])]


def four_sums(k: Emitter, v: list[Value]) -> Value:
    """The sums of the eights of four vectors, each in the order ((0+1)+(2+3)) + ((4+5)+(6+7)): those of the first eights,
    then those of the second ones, if there are any."""
    lanes = v[0].type.count
    fours = range(0, lanes, 4)
    pick = lambda x, y, first: x.shuffle([first + i for a in fours for i in (a, a + 2, a + lanes, a + lanes + 2)], y)
    add = lambda x, y: pick(x, y, 0) + pick(x, y, 1)
    h = add(add(v[0], v[1]), add(v[2], v[3]))
    half = lambda first: h.shuffle([a + i for a in fours[first::2] for i in range(4)])
    return half(0) + half(1)


def scores(
    k: Emitter, shape: Shape, queries: list[Value], keys: Value, n: Value, out: Value, scale: Value, values: Value
) -> None:
    """out[i, t] = scale · query i · key t for n <= 64 positions; then -1e30 up to a multiple of 8.

    Meanwhile it asks memory for what is needed next: the values, and the keys of the next chunk.
    """
    count = 4 * k.isa.wide
    with k.range(0, n, count) as t:
        ask_next(k, shape, keys, values, t)
        at = [keys + k.min(t + i, n - 1) * shape.bytes(shape.k_dim) for i in range(count)]
        key = lambda p, j: shape.reader(k, at[p::4], j)
        dots(k, shape, queries, key, out + t * 4, scale)
    fill(k, len(queries), n, out)


def ask_next(k: Emitter, shape: Shape, keys: Value, values: Value, t: Value) -> None:
    count = 4 * k.isa.wide
    value, key = shape.bytes(shape.v_step), shape.bytes(shape.k_dim)
    k.prefetch(values + t * value, count * value)
    k.prefetch(keys + (t + CHUNK) * key, count * key)


def dots(k: Emitter, shape: Shape, queries: list[Value], key, out: Value, scale: Value) -> None:
    """out[i, p] = scale · query i · key p for four positions p, or eight.

    key(p, j)(i): numbers j + i … j + i + 7 of key p, followed by those of key p + 4 if there are eight.
    """
    lanes = 8 * k.isa.wide
    for first, count in together(len(queries), 6 if k.isa.registers == 32 else 3):
        sums = [[k.cell(vec(F32, lanes), 0.0) for _ in range(4)] for _ in range(count)]
        with k.range(0, shape.k_dim, shape.unit, keep=True) as j:
            read = [key(p, j) for p in range(4)]
            for at in range(0, shape.unit, 8):
                query = lambda i: k.load(F8, queries[first + i] + (j + at) * 4).shuffle([n % 8 for n in range(lanes)])
                for i, p, x, some in pairs(count, 4, query, lambda p: read[p](at)):
                    sums[i][p].set(k.fma(some, x, sums[i][p].get()))
        for i in range(count):
            total = four_sums(k, [s.get() for s in sums[i]])
            k.store(total * k.splat(scale, lanes // 2), out + (first + i) * CHUNK * 4)


def fill(k: Emitter, count: int, n: Value, out: Value) -> None:
    """Scores of -1e30 from position n up to a multiple of 8."""
    with k.range(0, count) as i:
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


def pairs(n: int, m: int, x, y) -> Iterator[tuple[int, int, Value, Value]]:
    """(i, j, x(i), y(j)) for all i < n and j < m: the fewer are loaded first and stay in registers."""
    if n <= m:
        xs = [x(i) for i in range(n)]
        yield from ((i, j, xs[i], v) for j in range(m) for v in [y(j)] for i in range(n))
    else:
        yield from ((i, j, v, w) for j, i, w, v in pairs(m, n, y, x))


def runs(k: Emitter, shape: Shape) -> list[tuple[int, int, int]]:
    """How the values of a kv head are weighed: (first query, queries, vectors at once), as registers allow."""
    most = 24 if k.isa.registers == 32 else 12
    wide = [1, 1, 2, 2 if shape.unit > 8 else 3, WIDE]  # a block of q8_0 is cut into equal parts
    return [(a, count, wide[min(WIDE, most // count)]) for a, count in together(shape.heads, most // 2)]


def some_vectors(k: Emitter, shape: Shape, wide: int, part) -> None:
    """part(first, count) for all vectors of a value: `wide` at a time, at last the rest."""
    vectors = shape.v_dim // shape.lanes(k)
    with k.range(0, vectors - vectors % wide, wide) as j:
        part(j, wide)
    if vectors % wide:
        part(k.i64(vectors - vectors % wide), vectors % wide)


def weigh(k: Emitter, shape: Shape, n: Value, values: Value, mine: Value, state: Value) -> None:
    """Each query's partial result, times its factor, plus the chunk's weighted values, times theirs."""
    lanes = shape.lanes(k)
    for first, count, wide in runs(k, shape):

        def part(j: Value, vectors: int) -> None:
            value = lambda t: shape.reader(k, [values + t * shape.bytes(shape.v_step)], j * lanes, lanes)
            weighted(k, shape, range(first, first + count), vectors, n, value, mine, state, j)

        some_vectors(k, shape, wide, part)


def weighted(
    k: Emitter, shape: Shape, queries: range, vectors: int, n: Value, value, mine: Value, state: Value, j: Value
) -> None:
    """`weigh` for some queries and for vectors j … j + vectors - 1.

    value(t)(i): numbers from i on of position t, counted from vector j.
    """
    ty = vec(F32, shape.lanes(k))
    sums = [[k.cell(ty, 0.0) for _ in range(vectors)] for _ in queries]
    with k.range(0, n, keep=True) as t:
        weight = lambda q: k.splat(k.load(F32, mine + t * 4 + (queries[0] + q) * CHUNK * 4), ty.count)
        read = value(t)
        for q, i, w, v in pairs(len(queries), vectors, weight, lambda i: read(i * ty.count)):
            sums[q][i].set(k.fma(w, v, sums[q][i].get()))
    for q, s in zip(queries, sums):
        head = state + q * shape.head
        old, new = (k.splat(k.load(F32, head + shape.v_dim * 4 + at), ty.count) for at in (8, 12))
        for i in range(vectors):
            at = head + (j + i) * (4 * ty.count)
            k.store(k.fma(k.load(ty, at), old, s[i].get() * new), at)


def chunk(
    k: Emitter,
    shape: Shape,
    queries: list[Value],
    keys: Value,
    values: Value,
    n: Value,
    state: Value,
    mine: Value,
    scale: Value,
) -> None:
    """Adds n <= 64 positions to the partial results of one row at `state`; `mine` is scratch for the scores."""
    scores(k, shape, queries, keys, n, mine, scale, values)
    softmax(k, shape, shape.heads, n, mine, state)
    weigh(k, shape, n, values, mine, state)


class Tile:
    """Rows that share keys and values: row i has its queries, its scores and its partial result at regular distances.

    `sees(i)` is how many positions of the chunk row i sees, from the first on; none where it is 0 or less.
    """

    def __init__(self, k: Emitter, shape: Shape, rows: Value, sees, queries, mine: Value, state: Value, some: Value):
        self.k, self.shape, self.rows, self.sees, self.queries = k, shape, rows, sees, queries
        self.mine, self.state, self.some = mine, state, some

    def each(self, more_than: Value | int, f) -> None:
        """f(positions, queries, scores, partial result) for the rows that see more than so many positions."""
        k, shape = self.k, self.shape
        with k.range(0, self.rows) as i:
            n = self.sees(i)
            with k.when(n > more_than):
                f(n, self.queries(i), self.mine + i * (shape.heads * CHUNK * 4), self.state + i * shape.part)

    def chunk(self, keys: Value, values: Value, n: Value, scale: Value) -> None:
        """As `chunk`, for all rows: keys and values are loaded and converted to float32 once for all of them.

        Converting takes a third of a single row's time; a tile of eight rows is 1.4 to 2 times as fast (AVX2).
        """
        k, shape, wide = self.k, self.shape, self.k.isa.wide
        with k.range(0, n, 4 * wide) as t:
            ask_next(k, shape, keys, values, t)
            place = lambda p, j: self.some + (j + p * shape.k_dim) * (4 * wide)
            for p in range(4):
                four = [keys + k.min(t + p + 4 * i, n - 1) * shape.bytes(shape.k_dim) for i in range(wide)]
                with k.range(0, shape.k_dim, shape.unit) as j:
                    read = shape.reader(k, four, j)
                    for i in range(0, shape.unit, 8):
                        k.store(read(i), place(p, j + i))
            key = lambda p, j: lambda i: k.load(vec(F32, 8 * wide), place(p, j + i))
            self.each(t, lambda n, q, mine, state: dots(k, shape, q, key, mine + t * 4, scale))

        def weights(n: Value, q, mine: Value, state: Value) -> None:
            fill(k, shape.heads, n, mine)
            softmax(k, shape, shape.heads, n, mine, state)

        self.each(0, weights)
        lanes = shape.lanes(k)
        for first, count, at_once in runs(k, shape):

            def part(j: Value, vectors: int) -> None:
                place = lambda t, i: self.some + (t * (vectors * lanes) + i) * 4
                with k.range(0, n) as t:
                    read = shape.reader(k, [values + t * shape.bytes(shape.v_step)], j * lanes, lanes)
                    for i in range(0, vectors * lanes, lanes):
                        k.store(read(i), place(t, i))
                value = lambda t: lambda i: k.load(vec(F32, lanes), place(t, i))
                queries = range(first, first + count)
                self.each(0, lambda n, q, mine, to: weighted(k, shape, queries, vectors, n, value, mine, to, j))

            some_vectors(k, shape, at_once, part)


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
