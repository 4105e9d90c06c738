"""Causal attention over the KV cache in chunks of 64 positions.

Chunks start at absolute multiples of 64, also with a window, and their results are combined first to last.  So a row's
result depends on its position alone, not on the rows, threads or units around it.  Each chunk gives, for each query
head, its own maximum m, the sum l of its weights e^(score - m) and the weighted sum of values; two such results are
combined by scaling both to the larger maximum (the online softmax of FlashAttention).  Positions outside the row's span
are never read: what lies there may be anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from fucina.kernels import record as R
from fucina.kernels.lang import F8, F32, I16, LOWEST, Emitter, Value, kernel, vec

CHUNK = R.CHUNK
AHEAD = 4  # positions whose scores are computed together


def part_bytes(heads: int, v_dim: int) -> int:
    """Bytes of a partial result: for each query head of a kv head, v_dim sums, the maximum and the sum of weights."""
    return heads * (v_dim + 8) * 4


def scratch_bytes(heads: int, k_dim: int, v_dim: int) -> int:
    """Bytes of scratch a thread needs: the scores of a chunk and a partial result."""
    return (heads * CHUNK * 4 + part_bytes(heads, v_dim) + 63) & ~63


@dataclass(frozen=True, slots=True)
class Shape:
    """What an attention kernel is compiled for: dtype of the cache, query heads a kv head, widths of K and V."""

    dtype: str
    heads: int
    k_dim: int
    v_dim: int

    @property
    def size(self) -> int:
        return 2 if self.dtype == "f16" else 4

    @property
    def part(self) -> int:
        return part_bytes(self.heads, self.v_dim)

    def load(self, k: Emitter, at: Value) -> Value:
        """Eight numbers of the cache."""
        return k.isa.to_float(k, k.load(vec(I16, 8), at)) if self.dtype == "f16" else k.load(F8, at)


def unrolled(k: Emitter, count: int, most: int, step: int, f) -> None:
    """f(first, vectors) over `count` vectors: `most` at a time, in a loop of the machine if there are many."""
    whole = count - count % most
    if whole > 2 * most:
        with k.range(0, whole, most) as j:
            f(j * step, most)
    else:
        for j in range(0, whole, most):
            f(k.int(j * step), most)
    if count % most:
        f(k.int(whole * step), count % most)


def four_sums(k: Emitter, v: list[Value]) -> Value:
    """The sums of four vectors of eight, each in the order ((0+1)+(2+3)) + ((4+5)+(6+7))."""
    pick = lambda x, y, first: x.shuffle([first + i for i in (0, 2, 8, 10, 4, 6, 12, 14)], y)
    add = lambda x, y: pick(x, y, 0) + pick(x, y, 1)
    h = add(add(v[0], v[1]), add(v[2], v[3]))
    return h.shuffle([0, 1, 2, 3]) + h.shuffle([4, 5, 6, 7])


def scores(k: Emitter, shape: Shape, q: Value, keys: Value, n: Value, out: Value, scale: Value) -> None:
    """out[g, t] = scale · q[g] · key[t] for n <= 64 positions; then -1e30 up to a multiple of 8."""
    heads, together = shape.heads, 3 if shape.heads % 3 == 0 else 2 if shape.heads % 2 == 0 else 1
    with k.range(0, n, AHEAD) as t:
        at = [keys + k.min(t + i, n - 1) * (shape.k_dim * shape.size) for i in range(AHEAD)]  # never past the last one
        for g in range(0, heads, together):
            sums = [[k.cell(F8, 0.0) for _ in range(AHEAD)] for _ in range(together)]

            def part(first: Value, vectors: int) -> None:
                for j in range(vectors):
                    key = [shape.load(k, a + first * shape.size + 8 * shape.size * j) for a in at]
                    for h in range(together):
                        x = k.load(F8, q + first * 4 + ((g + h) * shape.k_dim + 8 * j) * 4)
                        for i in range(AHEAD):
                            sums[h][i].set(k.fma(key[i], x, sums[h][i].get()))

            unrolled(k, shape.k_dim // 8, 4, 8, part)
            for h in range(together):
                total = four_sums(k, [s.get() for s in sums[h]])
                k.store(total * k.splat(scale, 4), out + t * 4 + (g + h) * CHUNK * 4)
    with k.range(0, heads) as g:
        with k.range(n, (n + 7) & -8) as t:
            k.store(k.const(F32, LOWEST), out + (g * CHUNK + t) * 4)


def chunk(k: Emitter, shape: Shape, q: Value, keys: Value, values: Value, n: Value, state: Value, mine: Value, scale: Value) -> None:
    """Adds n <= 64 positions to the partial result at `state`; `mine` is this thread's scratch for scores."""
    heads, v_dim, head_bytes = shape.heads, shape.v_dim, (shape.v_dim + 8) * 4
    scores(k, shape, q, keys, n, mine, scale)
    weights = (n + 7) & -8
    factors = []  # of what is there already, of this chunk
    for g in range(heads):
        row, tail = mine + g * CHUNK * 4, state + (g * head_bytes + v_dim * 4)
        most, total = k.cell(F8, LOWEST), k.cell(F8, 0.0)
        with k.range(0, weights * 4, 32) as t:
            most.set(k.max(most.get(), k.load(F8, row + t)))
        here = k.fold(most.get(), k.max)
        with k.range(0, weights * 4, 32) as t:
            w = k.exp(k.load(F8, row + t) - k.splat(here))
            k.store(w, row + t)
            total.set(total.get() + w)
        old, new = combined_max(k, k.load(F32, tail), here)
        k.store(k.max(k.load(F32, tail), here), tail)
        k.store(k.fma(k.load(F32, tail + 4), old, k.sum(total.get()) * new), tail + 4)
        factors.append((k.splat(old), k.splat(new)))

    def part(first: Value, vectors: int) -> None:
        sums = [[k.cell(F8, 0.0) for _ in range(vectors)] for _ in range(heads)]
        with k.range(0, n) as t:
            at = values + (t * v_dim + first) * shape.size
            v = [shape.load(k, at + 8 * shape.size * j) for j in range(vectors)]
            for g in range(heads):
                w = k.splat(k.load(F32, mine + t * 4 + g * CHUNK * 4))
                for j in range(vectors):
                    sums[g][j].set(k.fma(w, v[j], sums[g][j].get()))
        for g in range(heads):
            for j in range(vectors):
                at = state + first * 4 + (g * head_bytes + 32 * j)
                k.store(k.fma(k.load(F8, at), factors[g][0], sums[g][j].get() * factors[g][1]), at)

    unrolled(k, v_dim // 8, 4 if heads <= 3 else 2 if heads <= 6 else 1, 8, part)


def combined_max(k: Emitter, a: Value, b: Value) -> tuple[Value, Value]:
    """Factors that scale results with the maxima a and b to their common maximum."""
    both = k.max(a, b)
    return tuple(k.exp(k.splat(x - both, 4)).lane(0) for x in (a, b))


def clear(k: Emitter, shape: Shape, state: Value) -> None:
    """The partial result of no positions at all."""
    for g in range(shape.heads):
        at = state + g * (shape.v_dim + 8) * 4
        with k.range(0, shape.v_dim * 4, 32) as j:
            k.store(k.const(F8, 0.0), at + j)
        k.store(k.const(F32, LOWEST), at + shape.v_dim * 4)
        k.store(k.const(F32, 0.0), at + shape.v_dim * 4 + 4)


def finish(k: Emitter, shape: Shape, state: Value, out: Value) -> None:
    """The weighted mean of the values, from the result of all chunks."""
    for g in range(shape.heads):
        at = state + g * (shape.v_dim + 8) * 4
        inverse = k.splat(k.const(F32, 1.0) / k.load(F32, at + shape.v_dim * 4 + 4))
        with k.range(0, shape.v_dim * 4, 32) as j:
            k.store(k.load(F8, at + j) * inverse, out + j + g * shape.v_dim * 4)


def span(k: Emitter, position: Value, window: Value) -> tuple[Value, Value, Value]:
    """First position that a row sees, its first chunk, and one past its last."""
    lo = k.where(window > 0, k.max(position - window + 1, 0), 0)
    return lo, lo // CHUNK, position // CHUNK + 1


@kernel("attention", ("f16", "f32"), int, int, int)
def attention(k: Emitter, dtype: str, heads: int, k_dim: int, v_dim: int) -> None:
    """Whole: a unit is (row, kv head), and writes its output.  Split, for few rows: a unit is one chunk of a (row, kv
    head) and leaves a partial result, which `combine` adds up in the order that the whole form has."""
    q, out, kv_heads, k_offset, v_offset, window = k.params(6)
    shape, scale = Shape(dtype, heads, k_dim, v_dim), k.fparam(6)
    split, parts, shared = (k.word(k.job, w) for w in (R.SPLIT, R.NPART, R.PART))
    mine = k.word(k.job, R.SCRATCH) + k.tid * k.word(k.job, R.SCRATCH_STEP)
    own = mine + heads * CHUNK * 4

    u, r, left = k.var(k.u0), k.var(0), k.var(k.u0)  # left: units of a split attention before u in row r
    with k.loop(lambda: u.get() < k.u1):
        h, first, last = k.var(0), k.var(0), k.var(0)
        with k.when(split.eq(0)):
            r.set(u.get() // kv_heads)
            h.set(u.get() % kv_heads)
            _, a, b = span(k, k.row(r.get(), R.POS), window)
            first.set(a)
            last.set(b)
        with k.when(split.eq(1)):

            def chunks() -> Value:
                _, a, b = span(k, k.row(r.get(), R.POS), window)
                return b - a

            with k.loop(lambda: chunks() * kv_heads <= left.get()):
                left.set(left.get() - chunks() * kv_heads)
                r.set(r.get() + 1)
            _, a, b = span(k, k.row(r.get(), R.POS), window)
            h.set(left.get() // (b - a))
            first.set(a + left.get() % (b - a))
            last.set(first.get() + 1)
            left.set(left.get() + 1)
        position, base, stride = (k.row(r.get(), field) for field in (R.POS, R.KV, R.STRIDE))
        lo, start, _ = span(k, position, window)
        unit = r.get() * kv_heads + h.get()
        state = k.where(split.eq(1), shared + (unit * parts + first.get() - start) * shape.part, own)
        keys = base + stride * (k_offset + h.get() * k_dim) * shape.size
        values = base + stride * (v_offset + h.get() * v_dim) * shape.size
        clear(k, shape, state)
        with k.range(first.get(), last.get()) as c:
            a = k.max(c * CHUNK, lo)
            n = k.min((c + 1) * CHUNK, position + 1) - a
            at = (keys + a * k_dim * shape.size, values + a * v_dim * shape.size)
            chunk(k, shape, q + unit * heads * k_dim * 4, *at, n, state, mine, scale)
        with k.when(split.eq(0)):
            finish(k, shape, state, out + unit * heads * v_dim * 4)
        u.set(u.get() + 1)


@kernel("combine", ("f16", "f32"), int, int, int)
def combine(k: Emitter, dtype: str, heads: int, k_dim: int, v_dim: int) -> None:
    """After a split attention: adds up the partial results of each (row, kv head), first chunk to last."""
    q, out, kv_heads, k_offset, v_offset, window = k.params(6)
    shape = Shape(dtype, heads, k_dim, v_dim)
    parts, shared = k.word(k.job, R.NPART), k.word(k.job, R.PART)
    mine = k.word(k.job, R.SCRATCH) + k.tid * k.word(k.job, R.SCRATCH_STEP)
    state = mine + heads * CHUNK * 4
    with k.when(k.word(k.job, R.SPLIT).eq(1)):
        with k.range(k.u0, k.u1) as unit:
            _, first, last = span(k, k.row(unit // kv_heads, R.POS), window)
            clear(k, shape, state)
            with k.range(0, last - first) as c:
                part = shared + (unit * parts + c) * shape.part
                for g in range(heads):
                    at, add = (p + g * (v_dim + 8) * 4 for p in (state, part))
                    tail, add_tail = at + v_dim * 4, add + v_dim * 4
                    old, new = combined_max(k, k.load(F32, tail), k.load(F32, add_tail))
                    k.store(k.max(k.load(F32, tail), k.load(F32, add_tail)), tail)
                    k.store(k.fma(k.load(F32, tail + 4), old, k.load(F32, add_tail + 4) * new), tail + 4)
                    a, b = k.splat(old), k.splat(new)
                    with k.range(0, v_dim * 4, 32) as j:
                        k.store(k.fma(k.load(F8, at + j), a, k.load(F8, add + j) * b), at + j)
            finish(k, shape, state, out + unit * heads * v_dim * 4)
