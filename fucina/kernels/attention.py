"""Causal attention over the KV cache in chunks of 64 positions.

Chunks start at absolute multiples of 64, also with a window, and their results are combined first to last.  So a row's
result depends on its position alone, not on the rows, threads or units around it.  Positions outside the row's span are
never read: what lies there may be anything.
"""

from __future__ import annotations

from ..cache.parts import CHUNK
from . import record as R
from .chunks import Tile, chunk, clear, combine_tails, finish
from .lang import F8, F32, Emitter, Value, Var
from .registry import kernel
from .shapes import Shape, part_bytes, scratch_bytes, tile_rows

__all__ = ["part_bytes", "scratch_bytes"]  # sizes, for whoever runs these kernels


class Pass:
    """The words of an attention record, and what follows from them for a row."""

    def __init__(self, k: Emitter, shape: Shape) -> None:
        self.k, self.shape = k, shape
        p = k.p
        self.q, self.q_step, self.out, self.kv_heads = p.q, p.q_step, p.out, p.kv_heads
        self.k_offset, self.v_offset, self.area = p.k_offset, p.v_offset, p.area
        self.window, self.scale = p.window, p.scale
        self.parts, self.shared = k.word(k.job, R.NPART), k.word(k.job, R.PART)
        self.mine = k.word(k.job, R.SCRATCH) + k.tid * k.word(k.job, R.SCRATCH_STEP)
        rows = tile_rows(shape.heads, shape.k_dim)
        self.state = self.mine + rows * shape.heads * CHUNK * 4  # after the scores
        self.some = self.state + rows * shape.part

    def span(self, r: Value) -> tuple[Value, Value, Value]:
        """First position that row r sees, its first chunk, and one past its last."""
        position = self.k.row(r, R.POS)
        lo = self.k.where(self.window > 0, self.k.max(position - self.window + 1, 0), 0)
        return lo, lo // CHUNK, position // CHUNK + 1

    def queries(self, r: Value, h: Value) -> list[Value]:
        """Addresses of the query heads of a (row, kv head)."""
        size = self.shape.k_dim * 4
        first = self.q + r * self.q_step * 4 + h * (self.shape.heads * size)
        return [first + g * size for g in range(self.shape.heads)]

    def cache(self, r: Value, h: Value, position: Value) -> tuple[Value, Value]:
        """Addresses of the keys and the values of kv head h from a position on."""
        k, s = self.k, self.shape
        base, stride = k.area(k.stream(k.row(r, R.STREAM)), self.area)
        row = position % stride
        if s.latent:
            key = base + s.bytes(stride * self.k_offset + row * s.k_dim)
            return key, key + s.bytes(self.v_offset)
        key = base + s.bytes(stride * (self.k_offset + h * s.k_dim) + row * s.k_dim)
        return key, base + s.bytes(stride * (self.v_offset + h * s.v_dim) + row * s.v_dim)

    def find(self, r: Var, left: Var) -> None:
        """Moves on to the row that holds the unit `left` units after row r's first one (split attention)."""
        k = self.k

        def units() -> Value:
            _, a, b = self.span(r.get())
            return (b - a) * self.kv_heads

        with k.loop(lambda: units() <= left.get()):
            left.set(left.get() - units())
            r.set(r.get() + 1)

    def join(self, r: Value, most: Value, rows: Var, first: Var, top: Var) -> None:
        """Makes a tile of row r and those after it, at most `most`, of its stream.

        `first`: the first chunk that no row sees from its middle on; `top`: one past the last position that any sees.
        """
        k = self.k
        rows.set(k.i64(0))
        first.set(k.i64(0))
        top.set(k.i64(0))
        same = lambda i: k.row(r + k.min(i, most - 1), R.STREAM).eq(k.row(r, R.STREAM))
        with k.loop(lambda: (rows.get() < most) & same(rows.get())):
            lo, _, _ = self.span(r + rows.get())
            first.set(k.max(first.get(), (lo + CHUNK - 1) // CHUNK))
            top.set(k.max(top.get(), k.row(r + rows.get(), R.POS) + 1))
            rows.set(rows.get() + 1)

    def chunks(self, r: Value, h: Value, first: Value, last: Value, state: Value) -> None:
        """Adds chunks first … last-1 of one row to a partial result, each as far as the row sees it."""
        k, (lo, _, _), position = self.k, self.span(r), self.k.row(r, R.POS)
        with k.range(first, last) as c:
            a = k.max(c * CHUNK, lo)
            n = k.min((c + 1) * CHUNK, position + 1) - a
            chunk(k, self.shape, self.queries(r, h), *self.cache(r, h, a), n, state, self.mine, self.scale)


DTYPES = ("f16", "f32", "q8_0")
PARAMS = "q q_step out kv_heads k_offset v_offset area window scale:f32"


@kernel("attention", DTYPES, int, int, int, rule="attention", params=PARAMS)
def attention(k: Emitter, dtype: str, heads: int, k_dim: int, v_dim: int) -> None:
    """out = softmax(scale · q kᵀ) v of each row's query heads, `heads` of them per kv head, over the positions up to
    its own, at most `window` of them if that is not 0."""
    attend(k, Shape(dtype, heads, k_dim, v_dim))


@kernel("latent", DTYPES, int, int, int, rule="attention", params=PARAMS)
def latent(k: Emitter, dtype: str, heads: int, k_dim: int, v_dim: int) -> None:
    """Attention to one head of keys that hold their values, `v_offset` numbers from where they begin.  The kv heads are
    parts of the query heads here, `heads` each; all of them read the same keys."""
    attend(k, Shape(dtype, heads, k_dim, v_dim, latent=True))


def attend(k: Emitter, shape: Shape) -> None:
    """Whole: a unit is a (kv head, row), and writes its output.  Split, for few rows: a unit is one chunk of a (row, kv
    head) and leaves a partial result, which `combine` adds up in the order that the whole form has.

    Neighbouring rows of one stream are taken together as a tile.  First come each row's own first chunks (of a window
    that starts in the middle of one).  Then come the chunks that all see from the first position on, with one load of
    keys and values for all of them.
    """
    heads = shape.heads
    p, size = Pass(k, shape), tile_rows(heads, shape.k_dim)
    split, per_row, m = k.word(k.job, R.SPLIT).eq(1), heads * shape.v_dim * 4, k.rows()
    u, r, left = k.var(k.u0), k.var(0), k.var(k.u0)  # left: units of a split attention before u in row r
    with k.loop(lambda: u.get() < k.u1):
        h, state, rows = k.var(0), k.var(p.state), k.var(1)
        first, top = k.var(0), k.var(0)  # the tile's chunks: from this one on, up to this position
        with k.when(split):
            p.find(r, left)
            _, a, b = p.span(r.get())
            h.set(left.get() // (b - a))
            first.set(a + left.get() % (b - a))
            left.set(left.get() + 1)
            state.set(p.shared + ((r.get() * p.kv_heads + h.get()) * p.parts + first.get() - a) * shape.part)
        with k.when(split.eq(0)):
            h.set(u.get() // m)
            r.set(u.get() % m)
            p.join(r.get(), k.min(k.min(m - r.get(), k.u1 - u.get()), size), rows, first, top)
            with k.when(rows.get().eq(1)):  # nothing to share: all its chunks are its own
                first.set(k.i64(1 << 40))
        clear(k, shape, rows.get() * heads, state.get())
        with k.range(0, rows.get()) as i:
            _, a, b = p.span(r.get() + i)
            begin, end = k.where(split, first.get(), a), k.where(split, first.get() + 1, k.min(first.get(), b))
            p.chunks(r.get() + i, h.get(), begin, end, state.get() + i * shape.part)
        with k.range(first.get(), (top.get() + CHUNK - 1) // CHUNK) as c:
            sees = lambda i: k.min(k.row(r.get() + i, R.POS) + 1 - c * CHUNK, CHUNK)
            queries = lambda i: p.queries(r.get() + i, h.get())
            tile = Tile(k, shape, rows.get(), sees, queries, p.mine, state.get(), p.some)
            tile.chunk(*p.cache(r.get(), h.get(), c * CHUNK), k.min(top.get() - c * CHUNK, CHUNK), p.scale)
        with k.when(split.eq(0)):
            with k.range(0, rows.get()) as i:
                finish(k, shape, state.get() + i * shape.part, p.out + ((r.get() + i) * p.kv_heads + h.get()) * per_row)
        u.set(u.get() + rows.get())


@kernel("combine", DTYPES, int, int, int, rule="rows", params=PARAMS)
def combine(k: Emitter, dtype: str, heads: int, k_dim: int, v_dim: int) -> None:
    """After a split attention: adds up the partial results of each (row, kv head), first chunk to last."""
    shape = Shape(dtype, heads, k_dim, v_dim)
    p = Pass(k, shape)
    with k.when(k.word(k.job, R.SPLIT).eq(1)):
        with k.range(k.u0, k.u1) as unit:
            _, first, last = p.span(unit // p.kv_heads)
            clear(k, shape, heads, p.state)
            with k.range(0, last - first) as c:
                part = p.shared + (unit * p.parts + c) * shape.part
                with k.range(0, heads) as g:
                    to, add = p.state + g * shape.head, part + g * shape.head
                    tail = to + v_dim * 4
                    combine_tails(k, tail, k.load(F32, add + v_dim * 4), k.load(F32, add + (v_dim * 4 + 4)))
                    old, new = (k.splat(k.load(F32, tail + at)) for at in (8, 12))
                    with k.range(0, v_dim * 4, 32) as j:
                        k.store(k.fma(k.load(F8, to + j), old, k.load(F8, add + j) * new), to + j)
            finish(k, shape, p.state, p.out + unit * (heads * v_dim * 4))
