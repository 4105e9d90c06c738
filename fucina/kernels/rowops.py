"""Everything that is neither a matrix product nor attention: norms, rope, activations, sums, cache rows.

Lengths need not be multiples of 8: the last vector of a row is loaded and stored with a mask.
"""

from __future__ import annotations

from typing import Callable

from fucina.kernels import record as R
from fucina.kernels.lang import F8, F32, I64, Emitter, Value, kernel, vec


def each(k: Emitter, lo: Value, hi: Value, f: Callable[[Value, Value | None], None]) -> None:
    """f(byte offset, lanes) for float32 numbers lo … hi-1, eight at a time; lanes is None where it is all eight."""
    whole = lo + ((hi - lo) & -8)
    with k.range(lo, whole, 8) as i:
        f(i * 4, None)
    with k.when(whole < hi):
        f(whole * 4, hi - whole)


def columns(k: Emitter, cols: Value, f: Callable[[Value, Value | None], None]) -> None:
    """f over this unit range's columns of every row of a [rows, cols] array."""
    unit = k.word(k.rec, R.UNIT)
    lo, hi = k.min(k.u0 * unit, cols), k.min(k.u1 * unit, cols)
    with k.range(0, k.rows()) as r:
        each(k, r * cols + lo, r * cols + hi, f)


@kernel("add")
def add(k: Emitter) -> None:
    """out = x + y"""
    x, y, out, cols = k.params(4)
    columns(k, cols, lambda at, n: k.store(k.load(F8, x + at, n) + k.load(F8, y + at, n), out + at, n))


def gated(k: Emitter, activation: Callable[[Value], Value]) -> None:
    x, y, out, cols = k.params(4)
    columns(k, cols, lambda at, n: k.store(activation(k.load(F8, x + at, n)) * k.load(F8, y + at, n), out + at, n))


def over_logistic(k: Emitter, x: Value, z: Value) -> Value:
    """x / (1 + e^-z)"""
    return x / (k.exp(z * -1.0) + 1.0)


@kernel("swiglu")
def swiglu(k: Emitter) -> None:
    """out = silu(x) · y, silu(x) = x / (1 + e^-x)"""
    gated(k, lambda x: over_logistic(k, x, x))


@kernel("geglu")
def geglu(k: Emitter) -> None:
    """out = gelu(x) · y with the tanh form, gelu(x) = x / (1 + e^-z), z = 2·sqrt(2/pi)·(x + 0.044715·x³)"""
    gated(k, lambda x: over_logistic(k, x, k.fma(x * x * 0.044715, x, x) * 1.5957691216057308))


@kernel("rms_norm")
def rms_norm(k: Emitter) -> None:
    """out = x / sqrt(mean(x²) + eps) · w over each head's n numbers.

    Number i of a head is added to lane i mod 8 of sum (i div 8) mod 4.
    """
    x, out, w, n, heads = k.params(5)
    eps, width = k.fparam(5), n.float()
    with k.range(k.u0, k.u1) as r:
        with k.range(r * heads, (r + 1) * heads) as h:
            row, sums = h * n * 4, [k.cell(F8, 0.0) for _ in range(4)]

            def square(i: Value, at: Value, lanes: Value | None = None) -> None:
                v = k.load(F8, x + row + at, lanes)
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
            scale = k.splat(k.const(F32, 1.0) / k.sqrt(total / width + eps))

            def norm(at: Value, lanes: Value | None) -> None:
                k.store(k.load(F8, x + row + at, lanes) * scale * k.load(F8, w + at, lanes), out + row + at, lanes)

            each(k, k.int(0), n, norm)


@kernel("rope", ("interleaved", "half"))
def rope(k: Emitter, pairing: str) -> None:
    """Rotates pairs (a, b) of the first `dims` numbers of each head by the angle of the row's position:
    a·cos - b·sin, b·cos + a·sin.  Pairs are neighbours (interleaved) or dims/2 apart (half); the rest is copied."""
    x, out, heads, head_dim, dims, table = k.params(6)
    half = dims >> 1
    with k.range(k.u0, k.u1) as r:
        cos = table + k.row(r, R.POS) * dims * 4
        sin = cos + half * 4
        with k.range(r * heads, (r + 1) * heads) as h:
            a, o = x + h * head_dim * 4, out + h * head_dim * 4

            def neighbours(at: Value, lanes: Value | None) -> None:
                n = None if lanes is None else (lanes + 1) >> 1
                c, s = (k.load(vec(F32, 4), p + (at >> 1), n).shuffle([0, 0, 1, 1, 2, 2, 3, 3]) for p in (cos, sin))
                v = k.load(F8, a + at, lanes)
                sign = k.const(F8, [-1.0, 1.0] * 4)
                k.store(k.fma(v, c, v.shuffle([1, 0, 3, 2, 5, 4, 7, 6]) * (s * sign)), o + at, lanes)

            def halves(at: Value, lanes: Value | None) -> None:
                c, s = k.load(F8, cos + at, lanes), k.load(F8, sin + at, lanes)
                first, second = k.load(F8, a + at, lanes), k.load(F8, a + half * 4 + at, lanes)
                k.store(k.fma(first, c, second * (s * -1.0)), o + at, lanes)
                k.store(k.fma(second, c, first * s), o + half * 4 + at, lanes)

            each(k, k.int(0), *((dims, neighbours) if pairing == "interleaved" else (half, halves)))
            each(k, dims, head_dim, lambda at, lanes: k.store(k.load(F8, a + at, lanes), o + at, lanes))


@kernel("kv_append", ("f16", "f32"))
def kv_append(k: Emitter, dtype: str) -> None:
    """Writes each row's keys and values at its position of its cache.  k_dim and v_dim are multiples of 8."""
    key, value, heads, k_dim, v_dim, k_offset, v_offset = k.params(7)
    size = 2 if dtype == "f16" else 4
    with k.range(k.u0, k.u1) as r:
        position, base, stride = (k.row(r, field) for field in (R.POS, R.KV, R.STRIDE))
        for x, dim, offset in ((key, k_dim, k_offset), (value, v_dim, v_offset)):
            with k.range(0, heads) as h:
                to = base + (stride * (offset + h * dim) + position * dim) * size
                with k.range(0, dim, 8) as j:
                    v = k.load(F8, x + ((r * heads + h) * dim + j) * 4)
                    k.store(k.isa.to_half(k, v) if dtype == "f16" else v, to + j * size)


@kernel("gather_rows")
def gather_rows(k: Emitter) -> None:
    """out[i] = x[OUTROWS[i]]"""
    x, cols, out = k.params(3)
    chosen = k.word(k.job, R.OUTROWS)
    with k.range(k.u0, k.u1) as i:
        source, to = x + k.load(I64, chosen + i * 8) * cols * 4, out + i * cols * 4
        each(k, k.int(0), cols, lambda at, n: k.store(k.load(F8, source + at, n), to + at, n))


@kernel("test", ("noop", "add_one"))
def test(k: Emitter, what: str) -> None:
    """For tests of the interpreter: nothing at all, or out = x + 1."""
    if what == "add_one":
        x, out, cols = k.params(3)
        columns(k, cols, lambda at, n: k.store(k.load(F8, x + at, n) + 1.0, out + at, n))
