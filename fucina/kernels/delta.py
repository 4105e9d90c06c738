"""What a stream keeps besides keys and values, row after row: the gated delta rule, and a causal convolution.

The delta rule has a matrix per head that every row decays, corrects and reads.  (Yang et al., 2024.)
"""

from __future__ import annotations

from . import record as R
from .lang import F8, F32, Emitter, Value
from .registry import kernel
from .rowops import copy, each

SUMS = 4  # vectors of columns that the delta rule works on together
CONV_COLUMNS = 256  # of a unit of the convolution
DELTA = (
    "q q_step key key_step value value_step decay decay_step beta beta_step out heads key_heads k_dim v_dim offset area"
)


@kernel("delta_rule", rule="rows", params=DELTA)
def delta_rule(k: Emitter) -> None:
    """For the rows of a stream in order: S = e^decay · S; S += k ⊗ beta·(v - k S); out = q S.  A unit is a head of a
    stream; S begins at the bank to read and ends in the bank to write.

    Columns of S do not mix, and sums run over its rows in order: some columns are taken through all rows of the pass, 32 at
    a time, so that four sums are under way and whole cache lines are read.
    """
    p = k.p
    size, wide = p.k_dim * p.v_dim * 4, 8 * SUMS
    with k.range(k.u0, k.u1) as unit:
        stream, h = k.stream(unit // p.heads), unit % p.heads
        first, rows = k.word(stream, R.STREAM_FIRST), k.word(stream, R.STREAM_ROWS)
        start = p.offset * 4 + h * size
        read, write = (bank + start for bank in k.area(stream, p.area))

        def through(c: Value, sums: int, lanes: Value | None) -> None:
            """Columns from c on, through all rows."""
            source = k.var(read + c * 4)
            with k.range(first, first + rows) as r:
                one_row(k, r, h, c, sums, lanes, source.get(), write + c * 4)
                source.set(write + c * 4)

        whole = p.v_dim & -wide
        with k.range(0, whole, wide) as c:
            through(c, SUMS, None)
        with k.range(whole, p.v_dim, 8) as c:
            through(c, 1, k.min(p.v_dim - c, 8))


def one_row(k: Emitter, r: Value, h: Value, c: Value, sums: int, lanes: Value | None, source: Value, to: Value) -> None:
    """One row, for `sums` times 8 columns of the matrix of head h, c and those after it: from `source`, into `to`."""
    p, line = k.p, k.p.v_dim * 4
    at = [32 * j for j in range(sums)]
    number = lambda x, step: k.splat(k.load(F32, x + (r * step + h) * 4))
    fade, beta = k.exp(number(p.decay, p.decay_step)), number(p.beta, p.beta_step)
    shared = h % p.key_heads  # the query and key head of this head
    key, query = (x + (r * step + shared * p.k_dim) * 4 for x, step in ((p.key, p.key_step), (p.q, p.q_step)))
    seen, out = ([k.cell(F8, 0.0) for _ in at] for _ in range(2))
    with k.range(0, p.k_dim) as i:
        x = k.splat(k.load(F32, key + i * 4))
        for j, total in zip(at, seen, strict=True):
            total.set(k.fma(x, k.load(F8, source + i * line + j, lanes) * fade, total.get()))
    values = p.value + (r * p.value_step + h * p.v_dim + c) * 4
    change = [beta * (k.load(F8, values + j, lanes) - total.get()) for j, total in zip(at, seen, strict=True)]
    with k.range(0, p.k_dim) as i:
        x, y = (k.splat(k.load(F32, v + i * 4)) for v in (key, query))
        for j, by, total in zip(at, change, out, strict=True):
            s = k.fma(x, by, k.load(F8, source + i * line + j, lanes) * fade)
            k.store(s, to + i * line + j, lanes)
            total.set(k.fma(y, s, total.get()))
    for j, total in zip(at, out, strict=True):
        k.store(total.get(), p.out + ((r * p.heads + h) * p.v_dim + c) * 4 + j, lanes)


@kernel("conv", rule="rows", params="x x_step w out cols parts taps offset area")
def conv(k: Emitter) -> None:
    """out[r, c] = Σ_j w[j, c] · x[r - taps + 1 + j, c], j ascending, over the rows of each stream; those before the pass
    are the ones that it keeps.  A unit is CONV_COLUMNS columns of a stream."""
    p = k.p
    line, old = p.cols * 4, p.taps - 1  # bytes of a row; rows that a stream keeps
    with k.range(k.u0, k.u1) as unit:
        stream, lo = k.stream(unit // p.parts), unit % p.parts * CONV_COLUMNS
        hi = k.min(lo + CONV_COLUMNS, p.cols)
        first, rows = k.word(stream, R.STREAM_FIRST), k.word(stream, R.STREAM_ROWS)
        read, write = (bank + p.offset * 4 for bank in k.area(stream, p.area))

        def row(i: Value) -> Value:
            """Address of a row, counted from the oldest one that the stream keeps."""
            return k.where(i < old, read + i * line, p.x + (first + i - old) * p.x_step * 4)

        with k.range(0, rows) as i:

            def one(at: Value, lanes: Value | None, i: Value = i) -> None:
                total = k.cell(F8, 0.0)
                with k.range(0, p.taps) as j:
                    x = k.load(F8, row(i + j) + at, lanes)
                    total.set(k.fma(k.load(F8, p.w + j * line + at, lanes), x, total.get()))
                k.store(total.get(), p.out + (first + i) * line + at, lanes)

            each(k, lo, hi, one)
        with k.range(0, old) as j:
            copy(k, row(rows + j) + lo * 4, write + j * line + lo * 4, hi - lo)
