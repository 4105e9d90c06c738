"""Weights of three dimensions: a matrix per head, and a matrix per expert, of which each row uses a few.

Matrices lie one after the other, each in layout p8 (see `formats`), its last group filled up.  Row (r, i) of the *routed
rows* is row r of the pass for the i-th of its experts; its number is r · top_k + i.
"""

from __future__ import annotations

from functools import partial

from . import record as R
from .formats import FORMATS, NAMES
from .lang import F8, F32, I32, LOWEST, Emitter, Value, vec
from .linear import AT_ONCE, in_tiles, store_columns, tiles
from .panels import fits, in_panels
from .registry import kernel
from .rowops import each

LEAST_SHARE = 2.0**-14  # by which the odds of chosen experts are divided at least
TAKEN = float("-inf")


@kernel("linear_heads", NAMES, rule="columns", params="w cols x x_step d s out n heads")
def linear_heads(k: Emitter, fmt: str) -> None:
    """out[r, h, n] = Σ_c x[r, h, c] · w[h, n, c]; a unit is UNIT output columns, each head's rounded up to eight."""
    f, p = FORMATS[fmt], k.p
    tile, sizes = tiles(k, fmt)
    rows, unit, groups = k.rows(), k.word(k.rec, R.UNIT) >> 3, (p.n + 7) >> 3
    blocks, group = p.cols // f.cols, k.var(k.u0 * unit)
    end = k.min(k.u1 * unit, groups * p.heads)
    with k.loop(lambda: group.get() < end):
        g = group.get()
        h, first = g // groups, g % groups * 8
        last = k.min(end, (h + 1) * groups)
        x, d, s = head_of(f, h, blocks, p.x, p.d, p.s)
        at = [p.w + k.min(g + i, last - 1) * (blocks * f.packed) for i in range(k.isa.wide)]  # the last may be alone
        valid = k.min(k.min(p.n - first, (last - g) * 8), 8 * k.isa.wide)

        def some_rows(rows: list[Value]) -> None:
            for r, v in zip(rows, tile(k, fmt, rows, at, p.cols, x, d, s, p.x_step), strict=True):
                store_columns(k, v, p.out + ((r * p.heads + h) * p.n + first) * 4, valid)

        in_tiles(k, sizes, rows, some_rows)
        group.set(k.min(g + k.isa.wide, last))


def head_of(f, h: Value, blocks: Value, x: Value, d: Value, s: Value) -> tuple[Value, Value, Value]:
    """Where the activations of head h of row 0 begin: its numbers, scales and sums."""
    if f.activations == "f32":
        return x + h * blocks * 4, d, s
    sum_bytes = 4 if f.activations == "q8" else 32 if f.sums == "s16" else 16
    return x + h * blocks * f.cols, d + h * blocks * 4, s + h * blocks * sum_bytes


ROUTED = "w w_step cols x x_step d s out n experts order ends per_row"


@kernel("linear_routed", NAMES, rule="columns", params=ROUTED)
def linear_routed(k: Emitter, fmt: str) -> None:
    """out[i, n] = Σ_c x[i / per_row, c] · w[experts[i], n, c] for routed rows i.

    The rows of an expert follow each other in `order`, up to number ends[expert].  They share its weights as the rows of
    `linear` do, a few groups at a time: each weight comes from memory once for all of them.
    """
    f, p = FORMATS[fmt], k.p
    tile, sizes = tiles(k, fmt)
    unit = k.word(k.rec, R.UNIT) >> 3
    group_bytes = p.cols // f.cols * f.packed
    end = k.min(k.u1 * unit, (p.n + 7) >> 3)
    rows, j = k.rows(), k.var(0)
    with k.loop(lambda: j.get() < rows):
        start = j.get()
        expert = wide(k, p.experts, wide(k, p.order, start))
        w, count = p.w + expert * p.w_step, wide(k, p.ends, expert) - start

        def keep(r: Value, g: Value, v: Value, last: Value, start=start) -> None:
            valid = k.min(k.min(p.n, last * 8) - g * 8, 8 * k.isa.wide)
            store_columns(k, v, p.out + (wide(k, p.order, start + r) * p.n + g * 8) * 4, valid)

        done = k.i64(0)
        if fits(k, f):
            source = lambda r, start=start: wide(k, p.order, start + r) // p.per_row
            data, groups = (p.x, p.d, p.s, p.x_step), (k.u0 * unit, end)
            at = lambda g, w=w: w + g * group_bytes
            done = in_panels(k, fmt, count, source, groups, at, p.cols, data, partial(keep, last=end))
        with k.range(k.u0 * unit, end, AT_ONCE) as first:
            last = k.min(first + AT_ONCE, end)

            def some_rows(rows: list[Value]) -> None:
                sources = [wide(k, p.order, start + r) // p.per_row for r in rows]
                with k.range(first, last, k.isa.wide) as g:
                    at = [w + k.min(g + i, last - 1) * group_bytes for i in range(k.isa.wide)]  # the last may be alone
                    acc = tile(k, fmt, sources, at, p.cols, p.x, p.d, p.s, p.x_step)
                    for r, v in zip(rows, acc, strict=True):
                        keep(r, g, v, last)

            in_tiles(k, sizes, count, some_rows, done)
        j.set(start + count)


def wide(k: Emitter, at: Value, i: Value) -> Value:
    """Number i of an int32 array, as int64."""
    return k.load(I32, at + i * 4).signed(k.u0.type)


ROUTE = "x x_step room experts weights n top_k sigmoid normalise scale:f32 groups groups_used bias scales"


@kernel("route", rule="rows", params=ROUTE)
def route(k: Emitter) -> None:
    """experts = the top_k columns with the largest odds + bias, ties to the lower one, out of the best groups; weights =
    their odds, divided by their sum if `normalise`, times scale and scales[expert].

    `room` holds 2 n + groups numbers per row: odds, what is chosen by, and of each group the sum of its best two.
    `bias` and `scales` may be 0.
    """
    p = k.p
    with k.range(k.u0, k.u1) as r:
        odds = p.room + r * (p.n * 2 + p.groups) * 4
        merit, experts, weights = odds + p.n * 4, p.experts + r * p.top_k * 4, p.weights + r * p.top_k * 4
        score = p.x + r * p.x_step * 4
        with k.when(p.sigmoid.eq(0)):
            softmax(k, score, odds)
        with k.when(p.sigmoid > 0):
            logistic = lambda at, n: k.const(F8, 1.0) / (k.exp(k.load(F8, score + at, n) * -1.0) + 1.0)
            each(k, k.i64(0), p.n, lambda at, n: k.store(logistic(at, n), odds + at, n))
        each(k, k.i64(0), p.n, lambda at, n: k.store(k.load(F8, odds + at, n), merit + at, n))
        with k.when(p.bias > 0):
            better = lambda at, n: k.load(F8, odds + at, n) + k.load(F8, p.bias + at, n)
            each(k, k.i64(0), p.n, lambda at, n: k.store(better(at, n), merit + at, n))
        with k.when(p.groups > 1):
            drop_groups(k, merit, merit + p.n * 4)
        share = k.cell(F32, 0.0)
        with k.range(0, p.top_k) as i:
            best = take_best(k, merit, p.n)
            chosen = k.load(F32, odds + best * 4)
            k.store(best.narrow(I32), experts + i * 4)
            k.store(chosen, weights + i * 4)
            share.set(share.get() + chosen)
        share.set(k.max(share.get(), LEAST_SHARE))
        with k.when(p.normalise.eq(0)):
            share.set(k.const(F32, 1.0))
        with k.range(0, p.top_k) as i:
            k.store(k.load(F32, weights + i * 4) / share.get() * p.scale, weights + i * 4)
        with k.when(p.scales > 0):
            with k.range(0, p.top_k) as i:
                own = k.load(F32, p.scales + wide(k, experts, i) * 4)
                k.store(k.load(F32, weights + i * 4) * own, weights + i * 4)


def softmax(k: Emitter, x: Value, odds: Value) -> None:
    """Of n numbers.  Sums of e^(x - maximum) are kept by column mod 8 and folded."""
    n, lane = k.p.n, k.const(vec(I32, 8), range(8))
    most, total = k.cell(F8, LOWEST), k.cell(F8, 0.0)

    def lanes(c: Value) -> tuple[Value, Value, Value]:
        """Eight numbers, those past the end so low that they do not count; which are before it, and how many."""
        count = k.min(n - c, 8)
        here = lane < k.splat(count.narrow(I32))
        return k.where(here, k.load(F8, x + c * 4, count), k.const(F8, LOWEST)), here, count

    with k.range(0, n, 8) as c:
        most.set(k.max(most.get(), lanes(c)[0]))
    top = k.splat(k.fold(most.get(), k.max))
    with k.range(0, n, 8) as c:
        v, here, count = lanes(c)
        e = k.where(here, k.exp(v - top), k.const(F8, 0.0))
        k.store(e, odds + c * 4, count)
        total.set(total.get() + e)
    all_ = k.splat(k.sum(total.get()))
    each(k, k.i64(0), n, lambda at, count: k.store(k.load(F8, odds + at, count) / all_, odds + at, count))


def take_best(k: Emitter, at: Value, n: Value) -> Value:
    """Index of the largest of n numbers, the first of equals, which becomes -inf; 0 where no number is larger."""
    best, value = k.var(0), k.cell(F32, TAKEN)
    with k.range(0, n) as c:
        v = k.load(F32, at + c * 4)
        with k.when(v > value.get()):
            best.set(c)
            value.set(v)
    k.store(k.const(F32, TAKEN), at + best.get() * 4)
    return best.get()


def drop_groups(k: Emitter, merit: Value, scores: Value) -> None:
    """Makes -inf of the experts that are not in the best groups_used groups, by the sum of a group's best two."""
    p = k.p
    size = p.n // p.groups
    with k.range(0, p.groups) as g:
        first, second = k.cell(F32, TAKEN), k.cell(F32, TAKEN)
        with k.range(g * size, (g + 1) * size) as c:
            v = k.load(F32, merit + c * 4)
            second.set(k.max(second.get(), k.min(v, first.get())))
            first.set(k.max(first.get(), v))
        k.store(first.get() + second.get(), scores + g * 4)
    with k.range(0, p.groups_used):
        take_best(k, scores, p.groups)
    with k.range(0, p.groups) as g:
        with k.when(k.load(F32, scores + g * 4) > TAKEN):
            with k.range(g * size, (g + 1) * size) as c:
                k.store(k.const(F32, TAKEN), merit + c * 4)


@kernel("gather_experts", rule="columns", params="experts order counts n")
def gather_experts(k: Emitter) -> None:
    """order = the routed rows, sorted by expert, then by number; counts[e] = where those of expert e end.  There is one
    unit."""
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
