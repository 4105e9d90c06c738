"""y = x Wᵀ: matrix products of activations with weights in layout p8, one kernel per format for any number of rows.

A tile is eight or sixteen output rows times a few activation rows (see `tile`).  Each weight vector is loaded and unpacked
once a tile and used for all its activation rows; lane = output row.  Quantised formats multiply int8 by int8 exactly in
integers, block by block, and add the blocks up in float32, first block first, whatever the tile: so a row of the result
has the same bits for any number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from . import record as R
from .formats import FORMATS, NAMES
from .lang import F8, F32, I16, I32, Emitter, Value, vec
from .panels import fits, in_panels
from .registry import kernel
from .superblocks import moved, superblock
from .tile import Dots, Tile, ask_ahead

AT_ONCE = 4  # groups that a tile's rows meet before the next rows do: a row's results fill whole cache lines


# --- formats: what one block adds to each row -----------------------------------------------------------------


def nibbles(t: Tile, dots: Dots, first: int, fifth: Value | None = None) -> None:
    """32 elements whose low four bits lie in 4 x 4 bytes: byte j holds element j (low) and j + 16 (high)."""
    for c in range(4):
        w = t.bytes(first + 32 * c)
        low, high = w & 15, w >> 4
        if fifth is not None:
            low, high = low | moved(fifth, c, 1, 4), high | moved(fifth, c + 4, 1, 4)
        dots.add(low, 4 * c)
        dots.add(high, 16 + 4 * c)


def q4_1(t: Tile) -> None:
    """y += d·dx · Σ w·x + m · (dx·Σx), w in 0 … 15"""
    dots = t.dots(15)
    nibbles(t, dots, 32)
    d, m = t.half(0), t.half(16)
    for r in t.rows:
        dx, sx = t.d(r), t.s(r)  # loaded before the sum, else LLVM spills weights instead (AVX2)
        total = dots.sum[r].total().float()
        t.gain(r, d * dx, total)
        t.gain(r, m, sx)


def q4_0(t: Tile) -> None:
    """y += d·dx · Σ (w - 8)·x, w in 0 … 15"""
    dots = t.dots(15, zero=8)
    nibbles(t, dots, 16)
    scaled(t, dots)


def q5_0(t: Tile) -> None:
    """y += d·dx · Σ (w - 16)·x, w in 0 … 31, the fifth bits apart"""
    dots = t.dots(31, zero=16)
    nibbles(t, dots, 48, t.bytes(16))
    scaled(t, dots)


def q8_0(t: Tile) -> None:
    """y += d·dx · Σ w·x, w signed"""
    dots = t.dots(None)
    for c in range(8):
        dots.add(t.bytes(16 + 32 * c), 4 * c)
    scaled(t, dots)


def scaled(t: Tile, dots: Dots) -> None:
    d = t.half(0)
    for r in t.rows:
        dx = t.d(r)
        t.gain(r, d * dx, dots.sum[r].total().float())


def q4_k(t: Tile) -> None:
    """y += d·dx · Σ_j scale_j Σ w·x - dmin·dx · Σ_j min_j Σx_j, over 8 parts j of 32 columns, w in 0 … 15"""
    k = t.k
    total = [k.cell(vec(I32, t.lanes), 0) for _ in t.rows]
    with k.range(0, 4) as j:  # parts 2j (low nibbles) and 2j + 1 (high)
        low, high = t.dots(15), t.dots(15)
        for c in range(8):
            w = t.bytes(160 + 32 * c, j * 256)
            low.add(w & 15, 4 * c, j * 64)
            high.add(w >> 4, 32 + 4 * c, j * 64)
        scales = t.int8(32, j * 16), t.int8(40, j * 16)
        for r in t.rows:
            total[r].set(total[r].get() + low.sum[r].times(scales[0]) + high.sum[r].times(scales[1]))
    less = [k.const(vec(I32, t.lanes), 0) for _ in t.rows]
    for i in range(4):
        mins = t.int8_pairs(96 + 16 * i)  # of parts 2i and 2i + 1
        for r in t.rows:
            less[r] = less[r] + k.isa.pairs(k, mins, t.pairs_of(t.sums(r, i)))
    d, m = t.half(0), t.half(16)
    for r in t.rows:
        t.gain(r, d * t.d(r), total[r].get().float())
        t.gain(r, m * (t.d(r) * -1.0), less[r].float())


def q6_k(t: Tile) -> None:
    """y += d·dx · Σ_j scale_j (Σ w·x - 32 Σx_j), over 16 parts j of 16 columns, w in 0 … 63, scales signed"""
    k = t.k
    total = [k.cell(vec(I32, t.lanes), 0) for _ in t.rows]
    less = [k.cell(vec(I32, t.lanes), 0) for _ in t.rows]
    with k.range(0, 4) as i:  # half i >> 1 of the block (128 columns), its even or odd parts
        half, odd = i >> 1, i & 1
        x_step, w_step, scale_step = half * 128 + odd * 16, half * 768 + odd * 384, half * 64 + odd * 8
        scales = [t.int8(16 + 16 * f, scale_step) for f in range(4)]
        dots = [t.dots(63) for _ in range(4)]
        for c in range(4):
            a, b, high = (t.bytes(144 + 96 * c + 32 * f, w_step) for f in range(3))
            for f, low in enumerate((a & 15, b & 15, a >> 4, b >> 4)):
                dots[f].add(low | moved(high, 2 * f, 2, 4), 32 * f + 4 * c, x_step)
        for r in t.rows:
            total[r].set(sum((dots[f].sum[r].times(scales[f]) for f in range(4)), total[r].get()))
    for j in range(8):  # parts 2j and 2j + 1
        even, odd = t.int8(16 + 16 * j), t.int8(24 + 16 * j)
        both = t.pairs_of((even & 0xFFFF) | (odd << 16))
        for r in t.rows:
            less[r].set(less[r].get() + k.isa.pairs(k, both, t.pairs_of(t.sums(r, j))))
    d = t.half(0)
    for r in t.rows:
        t.gain(r, d * t.d(r), (total[r].get() - (less[r].get() << 5)).float())


BLOCKS = {"q4_0": q4_0, "q4_1": q4_1, "q5_0": q5_0, "q8_0": q8_0, "q4_k": q4_k, "q6_k": q6_k}
BLOCKS |= {name: partial(superblock, format=f) for name, f in FORMATS.items() if f.coded}


# --- drivers --------------------------------------------------------------------------------------------------


def quantised_tile(
    k: Emitter, fmt: str, rows: Sequence[Value], w: Sequence[Value], cols: Value, x, d, s, step
) -> list[Value]:
    """The activation rows with these numbers, `step` columns apart, against the groups of eight output rows at `w`: their
    sums, block by block."""
    f = FORMATS[fmt]
    nb, row = cols // f.cols, step // f.cols  # blocks of a weight row, blocks from one activation row to the next
    sum_bytes = 4 if f.activations == "q8" else 32 if f.sums == "s16" else 16  # of one block
    acc = [k.cell(vec(F32, 8 * len(w)), 0.0) for _ in rows]
    arrays = ((x, f.cols), (d, 4), (s, sum_bytes))
    starts = [[p + r * row * size for r in rows] for p, size in arrays]
    with k.range(0, nb) as b:
        here = [at + b * f.packed for at in w]
        ask_ahead(k, here, f.packed)
        x_at, d_at, s_at = ([p + b * size for p in ps] for ps, (_, size) in zip(starts, arrays))
        BLOCKS[fmt](Tile(k, here, x_at, d_at, s_at, acc))
    return [a.get() for a in acc]


def floats(k: Emitter, fmt: str, at: Sequence[Value]) -> Value:
    """One column of each group's eight output rows, as float32."""
    if fmt == "f32":
        return k.concat([k.load(F8, a) for a in at])
    h = k.concat([k.load(vec(I16, 8), a) for a in at])
    return k.isa.to_float(k, h) if fmt == "f16" else (h.unsigned(I32) << 16).bits(vec(F32, 8 * len(at)))


def float_tile(
    k: Emitter, fmt: str, rows: Sequence[Value], w: Sequence[Value], cols: Value, x, d, s, step
) -> list[Value]:
    """As `quantised_tile`, for float weights: column c goes to sum c mod 4 of its row; the four are added at last."""
    lanes, size = 8 * len(w), FORMATS[fmt].packed
    acc = [[k.cell(vec(F32, lanes), 0.0) for _ in range(4)] for _ in rows]

    def column(c: Value, a: int) -> None:
        weights = floats(k, fmt, [at + c * size for at in w])
        for i, r in enumerate(rows):
            v = k.splat(k.load(F32, x + (r * step + c) * 4), lanes)
            acc[i][a].set(k.fma(weights, v, acc[i][a].get()))

    whole = cols & -4
    with k.range(0, whole, 4) as c:
        ask_ahead(k, [at + c * size for at in w], 4 * size)
        for a in range(4):
            column(c + a, a)
    for a in range(3):
        with k.when(whole + a < cols):
            column(whole + a, a)
    return [(a[0].get() + a[1].get()) + (a[2].get() + a[3].get()) for a in acc]


def tiles(k: Emitter, fmt: str) -> tuple[Callable[..., list[Value]], Sequence[int]]:
    """The function that emits a tile of this format, and how many rows a tile may have, descending to 1."""
    f = FORMATS[fmt]
    if f.activations == "f32":
        return float_tile, k.isa.float_tiles
    if f.activations == "q8":
        return quantised_tile, k.isa.tiles
    # q8k keeps more sums per row: beyond four rows, registers run out; coded formats have fewer at a time
    return quantised_tile, [m for m in k.isa.tiles if m <= 4 or (m == 8 and f.coded)]


def in_tiles(
    k: Emitter, sizes: Sequence[int], rows: Value, emit: Callable[[list[Value]], None], first: Value | int = 0
) -> None:
    """emit(numbers of the rows of a tile), for all rows from `first` on, in as large tiles as are full.

    With `Isa.repeats`, a tile whose last row would be missing is taken too, and computes the row before it twice: one
    multiplication too many, but the weights are not unpacked once more.
    """
    r = k.var(first)
    for size, smaller in zip(sizes, (*sizes[1:], 0)):
        full = smaller + 1 if k.isa.repeats else size  # rows that suffice
        with k.loop(lambda: r.get() + full <= rows):
            emit([r.get() + i if i < full else k.min(r.get() + i, rows - 1) for i in range(size)])
            r.set(r.get() + size)


@kernel("linear", NAMES, rule="columns", params="w cols x x_step d s out n")
def linear(k: Emitter, fmt: str) -> None:
    """out[r, n] = Σ_c x[r, c] · w[n, c]; a unit is UNIT output columns n of all rows r."""
    w, cols, out, n = k.p.w, k.p.cols, k.p.out, k.p.n
    tile, sizes = tiles(k, fmt)
    f, data = FORMATS[fmt], (k.p.x, k.p.d, k.p.s, k.p.x_step)
    rows, unit = k.rows(), k.word(k.rec, R.UNIT) >> 3  # groups
    group_bytes, wide = (cols // f.cols) * f.packed, k.isa.wide
    end = k.min(k.u1 * unit, (n + 7) >> 3)

    def keep(r: Value, g: Value, v: Value, last: Value) -> None:
        store_columns(k, v, out + (r * n + g * 8) * 4, k.min(k.min(n, last * 8) - g * 8, 8 * wide))

    done = k.i64(0)
    if fits(k, f):
        groups = k.u0 * unit, end
        done = in_panels(
            k, fmt, rows, lambda r: r, groups, lambda g: w + g * group_bytes, cols, data, partial(keep, last=end)
        )
    with k.range(k.u0 * unit, end, AT_ONCE) as first:
        last = k.min(first + AT_ONCE, end)

        def some_rows(rows: list[Value]) -> None:
            with k.range(first, last, wide) as g:
                at = [w + k.min(g + i, last - 1) * group_bytes for i in range(wide)]  # the last may be alone
                for r, v in zip(rows, tile(k, fmt, rows, at, cols, *data)):
                    keep(r, g, v, last)

        in_tiles(k, sizes, rows, some_rows, done)


def store_columns(k: Emitter, v: Value, at: Value, valid: Value) -> None:
    """The first `valid` lanes: a plain store when that is all of them."""
    with k.when(valid.eq(v.type.count)):
        k.store(v, at)
    with k.when(valid < v.type.count):
        k.store(v, at, valid)
