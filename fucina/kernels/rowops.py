"""Everything that is neither a matrix product nor attention: norms, rope, gates, sums, joined rows.

Lengths need not be multiples of 8: the last vector of a row is loaded and stored with a mask.
"""

from __future__ import annotations

from collections.abc import Callable

from . import record as R
from .lang import ATANH, F8, F32, I64, Emitter, Value, vec
from .registry import kernel


def each(k: Emitter, lo: Value, hi: Value, f: Callable[[Value, Value | None], None], at_once: int = 8) -> None:
    """f(byte offset, lanes) for float32 numbers lo … hi-1, some at a time; lanes is None where it is all `at_once`."""
    whole = lo + ((hi - lo) & -at_once)
    with k.range(lo, whole, at_once) as i:
        f(i * 4, None)
    with k.when(whole < hi):
        f(whole * 4, hi - whole)


def copy(k: Emitter, source: Value, to: Value, n: Value) -> None:
    """n numbers."""
    each(k, k.i64(0), n, lambda at, lanes: k.store(k.load(F8, source + at, lanes), to + at, lanes))


def columns(
    k: Emitter,
    inputs: list[tuple[Value, Value]],
    f: Callable[..., Value],
    factor: tuple[Value, Value] | None = None,
) -> None:
    """out = f(inputs …) over this unit range's columns of every row; an input is its address and its step.

    `factor`: one number of each row, the last argument of f.
    """
    out, cols, unit = k.p.out, k.p.cols, k.word(k.rec, R.UNIT)
    lo, hi = k.min(k.u0 * unit, cols), k.min(k.u1 * unit, cols)
    some = vec(F32, 8 * k.isa.wide)
    with k.range(0, k.rows()) as r:
        starts, to = [x + r * step * 4 for x, step in inputs], out + r * cols * 4
        more = [] if factor is None else [k.load(F32, factor[0] + r * factor[1] * 4)]
        one = lambda at, n: k.store(f(*(k.load(some, x + at, n) for x in starts), *more), to + at, n)
        each(k, lo, hi, one, some.count)


def two_inputs(k: Emitter, f: Callable[[Value, Value], Value]) -> None:
    """out = f(x, y), column by column."""
    columns(k, [(k.p.x, k.p.x_step), (k.p.y, k.p.y_step)], f)


TWO = {"rule": "columns", "params": "x x_step y y_step out cols"}


@kernel("add", **TWO)
def add(k: Emitter) -> None:
    """out = x + y"""
    two_inputs(k, lambda x, y: x + y)


@kernel("mul", **TWO)
def mul(k: Emitter) -> None:
    """out = x · y"""
    two_inputs(k, lambda x, y: x * y)


@kernel("mul_rows", **TWO)
def mul_rows(k: Emitter) -> None:
    """out = x · y, y one number per row"""
    columns(k, [(k.p.x, k.p.x_step)], lambda x, y: x * k.splat(y, x.type.count), (k.p.y, k.p.y_step))


def over_logistic(k: Emitter, x: Value, z: Value) -> Value:
    """x / (1 + e^-z)"""
    return x / (k.exp(z * -1.0) + 1.0)


@kernel("swiglu", **TWO)
def swiglu(k: Emitter) -> None:
    """out = silu(x) · y, silu(x) = x / (1 + e^-x)"""
    two_inputs(k, lambda x, y: over_logistic(k, x, x) * y)


@kernel("geglu", **TWO)
def geglu(k: Emitter) -> None:
    """out = gelu(x) · y with the tanh form, gelu(x) = x / (1 + e^-z), z = 2·sqrt(2/pi)·(x + 0.044715·x³)"""
    gelu = lambda x: over_logistic(k, x, k.fma(x * x * 0.044715, x, x) * 1.5957691216057308)
    two_inputs(k, lambda x, y: gelu(x) * y)


@kernel("sigmoid", rule="columns", params="x x_step out cols")
def sigmoid(k: Emitter) -> None:
    """out = 1 / (1 + e^-x)"""
    columns(k, [(k.p.x, k.p.x_step)], lambda x: over_logistic(k, k.const(x.type, 1.0), x))


@kernel("softplus", rule="columns", params="x x_step out cols")
def softplus(k: Emitter) -> None:
    """out = log(1 + e^x) = max(x, 0) + 2·atanh(u / (u + 2)), u = e^-|x|: the argument is at most 1/3, and a short series
    has every bit of it."""

    def f(x: Value) -> Value:
        u = k.exp(k.min(x, x * -1.0))
        s = u / (u + 2.0)
        square, series = s * s, k.const(x.type, ATANH[0])
        for c in ATANH[1:]:
            series = k.fma(series, square, k.const(x.type, c))
        return k.fma(s + s, series, k.max(x, 0.0))

    columns(k, [(k.p.x, k.p.x_step)], f)


@kernel("softcap", rule="columns", params="x x_step out cols cap:f32")
def softcap(k: Emitter) -> None:
    """out = cap · tanh(x / cap), tanh(y) = (e^2y - 1) / (e^2y + 1)"""
    twice = k.const(F32, 2.0) / k.p.cap

    def f(x: Value) -> Value:
        e = k.exp(x * k.splat(twice, x.type.count))
        return (e + -1.0) / (e + 1.0) * k.splat(k.p.cap, x.type.count)

    columns(k, [(k.p.x, k.p.x_step)], f)


@kernel("rms_norm", rule="rows", params="x x_step x_head out w n heads eps:f32")
def rms_norm(k: Emitter) -> None:
    """out = x / sqrt(mean(x²) + eps) · w over each head's n numbers.

    Number i of a head is added to lane i mod 8 of sum (i div 8) mod 4.
    """
    w, n, heads = k.p.w, k.p.n, k.p.heads
    width = n.float()
    with k.range(k.u0, k.u1) as r:
        with k.range(0, heads) as h:
            x, out = k.p.x + (r * k.p.x_step + h * k.p.x_head) * 4, k.p.out + (r * heads + h) * n * 4
            sums = [k.cell(F8, 0.0) for _ in range(4)]

            def square(i: int, at: Value, lanes: Value | None = None) -> None:
                v = k.load(F8, x + at, lanes)
                sums[i].set(k.fma(v, v, sums[i].get()))

            whole = n & -32
            with k.range(0, whole, 32) as j:
                for i in range(4):
                    square(i, j * 4 + 32 * i)
            for i in range(4):  # the rest, under 32: at most four vectors, the last one masked
                left = n - whole - 8 * i
                with k.when(left > 0):
                    square(i, (whole + 8 * i) * 4, k.min(left, 8))
            total = k.sum((sums[0].get() + sums[1].get()) + (sums[2].get() + sums[3].get()))
            scale = k.splat(k.const(F32, 1.0) / k.sqrt(total / width + k.p.eps))

            def norm(at: Value, lanes: Value | None) -> None:
                k.store(k.load(F8, x + at, lanes) * scale * k.load(F8, w + at, lanes), out + at, lanes)

            each(k, k.i64(0), n, norm)


@kernel("rope", ("interleaved", "half"), rule="rows", params="x x_step x_head out heads head_dim dims table")
def rope(k: Emitter, pairing: str) -> None:
    """Rotates pairs (a, b) of the first `dims` numbers of each head by the angle of the row's position:
    a·cos - b·sin, b·cos + a·sin.  Pairs are neighbours (interleaved) or dims/2 apart (half); the rest is copied.
    Row p of `table` is cos[dims/2], then sin[dims/2]."""
    p, half = k.p, k.p.dims >> 1
    with k.range(k.u0, k.u1) as r:
        cos = p.table + k.row(r, R.POS) * p.dims * 4
        sin = cos + half * 4
        with k.range(0, p.heads) as h:
            a, o = p.x + (r * p.x_step + h * p.x_head) * 4, p.out + (r * p.heads + h) * p.head_dim * 4

            def neighbours(at: Value, lanes: Value | None) -> None:
                n = None if lanes is None else (lanes + 1) >> 1
                c, s = (k.load(vec(F32, 4), t + (at >> 1), n).shuffle([0, 0, 1, 1, 2, 2, 3, 3]) for t in (cos, sin))
                v = k.load(F8, a + at, lanes)
                sign = k.const(F8, [-1.0, 1.0] * 4)
                k.store(k.fma(v, c, v.shuffle([1, 0, 3, 2, 5, 4, 7, 6]) * (s * sign)), o + at, lanes)

            def halves(at: Value, lanes: Value | None) -> None:
                c, s = k.load(F8, cos + at, lanes), k.load(F8, sin + at, lanes)
                first, second = k.load(F8, a + at, lanes), k.load(F8, a + half * 4 + at, lanes)
                k.store(k.fma(first, c, second * (s * -1.0)), o + at, lanes)
                k.store(k.fma(second, c, first * s), o + half * 4 + at, lanes)

            each(k, k.i64(0), *((p.dims, neighbours) if pairing == "interleaved" else (half, halves)))
            each(k, p.dims, p.head_dim, lambda at, lanes: k.store(k.load(F8, a + at, lanes), o + at, lanes))


@kernel("concat", rule="rows", params="x x_step x_head x_cols y y_step y_head y_cols out heads")
def concat(k: Emitter) -> None:
    """out = per head x_cols numbers of x, then y_cols numbers of y."""
    p = k.p
    with k.range(k.u0, k.u1) as r:
        with k.range(0, p.heads) as h:
            to = p.out + (r * p.heads + h) * (p.x_cols + p.y_cols) * 4
            copy(k, p.x + (r * p.x_step + h * p.x_head) * 4, to, p.x_cols)
            copy(k, p.y + (r * p.y_step + h * p.y_head) * 4, to + p.x_cols * 4, p.y_cols)


@kernel("gather_rows", rule="rows", params="x x_step out cols")
def gather_rows(k: Emitter) -> None:
    """out[i] = x[OUT_ROWS[i]]"""
    chosen = k.word(k.job, R.OUT_ROWS)
    with k.range(k.u0, k.u1) as i:
        source = k.p.x + k.load(I64, chosen + i * 8) * k.p.x_step * 4
        copy(k, source, k.p.out + i * k.p.cols * 4, k.p.cols)


@kernel("test", ("noop", "add_one"), rule="columns", params="x x_step out cols")
def test(k: Emitter, what: str) -> None:
    """For tests of the interpreter: nothing at all, or out = x + 1."""
    if what == "add_one":
        columns(k, [(k.p.x, k.p.x_step)], lambda x: x + 1.0)
