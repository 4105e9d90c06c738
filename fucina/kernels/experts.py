"""Weights of three dimensions: a matrix per head, and a matrix per expert, of which each row uses a few.

Matrices lie one after the other, each in layout p8 (see `formats`), its last group filled up.  Row (r, i) of the *routed
rows* is row r of the pass for the i-th of its experts; its number is r · top_k + i.
"""

from __future__ import annotations

from . import record as R
from .formats import FORMATS, NAMES
from .lang import F8, F32, I32, LOWEST, Emitter, Value, vec
from .linear import in_tiles, store_columns, tiles
from .registry import kernel
from .rowops import each


@kernel("linear_heads", NAMES, rule="columns", params="w cols x x_step d s out n heads")
def linear_heads(k: Emitter, fmt: str) -> None:
    """out[r, h, n] = Σ_c x[r, h, c] · w[h, n, c]; a unit is UNIT output columns, each head's rounded up to eight."""
    f, p = FORMATS[fmt], k.p
    tile, sizes = tiles(k, fmt)
    rows, unit, groups = k.rows(), k.word(k.rec, R.UNIT) >> 3, (p.n + 7) >> 3
    blocks = p.cols // f.cols
    with k.range(k.u0 * unit, k.min(k.u1 * unit, groups * p.heads)) as g:
        h, first = g // groups, g % groups * 8
        x, d, s = head_of(f, h, blocks, p.x, p.d, p.s)
        valid = k.min(p.n - first, 8)

        def some_rows(rows: list[Value]) -> None:
            acc = tile(k, fmt, rows, [p.w + g * (blocks * f.packed)], p.cols, x, d, s, p.x_step)
            for r, v in zip(rows, acc):
                store_columns(k, v, p.out + ((r * p.heads + h) * p.n + first) * 4, valid)

        in_tiles(k, sizes, rows, some_rows)


def head_of(f, h: Value, blocks: Value, x: Value, d: Value, s: Value) -> tuple[Value, Value, Value]:
    """Where the activations of head h of row 0 begin: its numbers, scales and sums."""
    if f.activations == "f32":
        return x + h * blocks * 4, d, s
    sum_bytes = 4 if f.activations == "q8" else 32 if f.sums == "s16" else 16
    return x + h * blocks * f.cols, d + h * blocks * 4, s + h * blocks * sum_bytes


@kernel("linear_routed", NAMES, rule="columns", params="w w_step cols x x_step d s out n experts order per_row")
def linear_routed(k: Emitter, fmt: str) -> None:
    """out[i, n] = Σ_c x[i / per_row, c] · w[experts[i], n, c] for routed rows i, those of one expert after each other."""
    f, p = FORMATS[fmt], k.p
    tile, _ = tiles(k, fmt)
    rows, unit = k.rows(), k.word(k.rec, R.UNIT) >> 3
    group_bytes = p.cols // f.cols * f.packed
    end = k.min(k.u1 * unit, (p.n + 7) >> 3)
    with k.range(0, rows) as j:
        i = wide(k, p.order, j)
        w, r = p.w + wide(k, p.experts, i) * p.w_step, i // p.per_row
        with k.range(k.u0 * unit, end) as g:
            (acc,) = tile(k, fmt, [r], [w + g * group_bytes], p.cols, p.x, p.d, p.s, p.x_step)
            store_columns(k, acc, p.out + (i * p.n + g * 8) * 4, k.min(p.n - g * 8, 8))


def wide(k: Emitter, at: Value, i: Value) -> Value:
    """Number i of an int32 array, as int64."""
    return k.load(I32, at + i * 4).signed(k.u0.type)


@kernel("route", rule="rows", params="x x_step odds experts weights n top_k")
def route(k: Emitter) -> None:
    """experts = the top_k columns of softmax(x), ties to the lower one; weights = their odds, divided by their sum.

    Sums of e^(x - maximum) are kept by column mod 8 and folded; `odds` is room for n numbers per row.
    """
    p, lane = k.p, k.const(vec(I32, 8), range(8))
    with k.range(k.u0, k.u1) as r:
        x, odds = p.x + r * p.x_step * 4, p.odds + r * p.n * 4
        experts, weights = p.experts + r * p.top_k * 4, p.weights + r * p.top_k * 4
        most, total = k.cell(F8, LOWEST), k.cell(F8, 0.0)

        def lanes(at: Value, n: Value) -> tuple[Value, Value]:
            """Eight numbers, those past the row's end so low that they do not count; and which are before it."""
            here = lane < k.splat(n.narrow(I32))
            return k.where(here, k.load(F8, x + at, n), k.const(F8, LOWEST)), here

        with k.range(0, p.n, 8) as c:
            most.set(k.max(most.get(), lanes(c * 4, k.min(p.n - c, 8))[0]))
        top = k.splat(k.fold(most.get(), k.max))
        with k.range(0, p.n, 8) as c:
            n = k.min(p.n - c, 8)
            v, here = lanes(c * 4, n)
            e = k.where(here, k.exp(v - top), k.const(F8, 0.0))
            k.store(e, odds + c * 4, n)
            total.set(total.get() + e)
        all_, share = k.sum(total.get()), k.cell(F32, 0.0)
        with k.range(0, p.n) as c:
            k.store(k.load(F32, odds + c * 4) / all_, odds + c * 4)
        with k.range(0, p.top_k) as i:
            best, value = k.var(0), k.cell(F32, -0.5)
            with k.range(0, p.n) as c:
                v = k.load(F32, odds + c * 4)
                with k.when(v > value.get()):
                    best.set(c)
                    value.set(v)
            chosen = k.load(F32, odds + best.get() * 4)
            k.store(k.const(F32, -1.0), odds + best.get() * 4)  # not again
            k.store(best.get().narrow(I32), experts + i * 4)
            k.store(chosen, weights + i * 4)
            share.set(share.get() + chosen)
        with k.range(0, p.top_k) as i:
            k.store(k.load(F32, weights + i * 4) / share.get(), weights + i * 4)


@kernel("gather_experts", rule="columns", params="experts order counts n")
def gather_experts(k: Emitter) -> None:
    """order = the routed rows, sorted by expert, then by number; `counts` is room for n experts.  There is one unit."""
    p = k.p
    at = lambda e: p.counts + e * 4
    rows = k.rows()
    with k.range(0, p.n) as e:
        k.store(k.const(I32, 0), at(e))
    with k.range(0, rows) as i:
        e = at(wide(k, p.experts, i))
        k.store(k.load(I32, e) + 1, e)
    end = k.cell(I32, 0)
    with k.range(0, p.n) as e:  # counts become where each expert's rows begin
        count = k.load(I32, at(e))
        k.store(end.get(), at(e))
        end.set(end.get() + count)
    with k.range(0, rows) as i:
        e = at(wide(k, p.experts, i))
        to = k.load(I32, e)
        k.store(to + 1, e)
        k.store(i.narrow(I32), p.order + to.signed(i.type) * 4)


@kernel("sum_routed", rule="columns", params="x weights out cols top_k")
def sum_routed(k: Emitter) -> None:
    """out[r] = Σ_i weights[r, i] · x[r, i], i ascending"""
    p, unit = k.p, k.word(k.rec, R.UNIT)
    lo, hi = k.min(k.u0 * unit, p.cols), k.min(k.u1 * unit, p.cols)
    with k.range(0, k.rows()) as r:
        first = r * p.top_k

        def add_up(at: Value, lanes: Value | None) -> None:
            total = k.cell(F8, 0.0)
            with k.range(first, first + p.top_k) as i:
                v = k.load(F8, p.x + i * p.cols * 4 + at, lanes)
                total.set(k.fma(k.splat(k.load(F32, p.weights + i * 4)), v, total.get()))
            k.store(total.get(), p.out + r * p.cols * 4 + at, lanes)

        each(k, lo, hi, add_up)
