"""y = x Wᵀ: matrix products of activations with weights in layout p8, one kernel per format for any number of rows.

A tile is eight output rows times a few activation rows.  Each weight vector is loaded and unpacked once a tile and used
for all its activation rows; lane = output row.  Quantised formats multiply int8 by int8 exactly in integers, block
by block, and add the blocks up in float32, first block first, whatever the tile: so a row of the result has the same
bits for any number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from . import record as R
from .formats import FORMATS, NAMES
from .lang import F8, F32, I8, I16, I32, Emitter, Value, vec
from .registry import kernel
from .superblocks import moved, superblock

AT_ONCE = 4  # groups that a tile's rows meet before the next rows do: a row's results fill whole cache lines
AHEAD = 8192  # bytes between the weights that are used and those that memory is asked for, see `ask_ahead`
BYTES, PAIRS, LANES = vec(I8, 32), vec(I16, 16), vec(I32, 8)  # what eight output rows have of 4, 2, 1 columns


class Tile:
    """One block of the weights of eight output rows, against the same columns of a few rows of activations."""

    def __init__(self, k: Emitter, at: Value, x, d, s, acc) -> None:
        self.k, self.at, self.x_at, self.d_at, self.s_at, self.acc = k, at, x, d, s, acc
        self.rows, self.lanes = range(len(acc)), 8

    # --- weights: lane = output row
    def bytes(self, offset: int, step: Value | int = 0) -> Value:
        """Four bytes of each output row."""
        return self.k.load(BYTES, self.at + step + offset)

    def half(self, offset: int) -> Value:
        """A float16 of each output row, as float32."""
        return self.k.isa.to_float(self.k, self.k.load(vec(I16, 8), self.at + offset))

    def int8(self, offset: int, step: Value | int = 0) -> Value:
        """A signed byte of each output row, as int32."""
        return self.k.load(vec(I8, 8), self.at + step + offset).signed(I32)

    def int8_pairs(self, offset: int, step: Value | int = 0) -> Value:
        """Two signed bytes of each output row, as int16."""
        return self.k.load(vec(I8, 16), self.at + step + offset).signed(I16)

    # --- activations: the same numbers in every lane
    def x(self, row: int, offset: int, step: Value | int = 0) -> Value:
        """Four int8 activations."""
        return self.k.splat(self.k.load(I32, self.x_at[row] + step + offset)).bits(BYTES)

    def sums(self, row: int, index: int = 0) -> Value:
        """Number `index` of the row's integer sums of activations, as int32."""
        return self.k.splat(self.k.load(I32, self.s_at[row] + 4 * index))

    def d(self, row: int) -> Value:
        """The scale of the activations."""
        return self.k.splat(self.k.load(F32, self.d_at[row]))

    def s(self, row: int) -> Value:
        """The scaled sum of the activations."""
        return self.k.splat(self.k.load(F32, self.s_at[row]))

    # --- sums
    def dots(self, bound: int | None, zero: int = 0) -> Dots:
        """Σ (w - zero) · x for each row, with w in 0 … bound (or signed: None).  `zero` is a power of two."""
        return Dots(self, bound, zero)

    def gain(self, row: int, a: Value, b: Value) -> None:
        """The row's result grows by a · b."""
        self.acc[row].set(self.k.fma(a, b, self.acc[row].get()))


class Dots:
    """Integer dot products of one tile, one per row."""

    def __init__(self, t: Tile, bound: int | None, zero: int) -> None:
        def dot(row: int):
            offset = lambda: t.sums(row)  # -128 · Σx
            bias = (lambda: t.sums(row).shift_signed(8 - zero.bit_length())) if zero else None
            return t.k.isa.dot(t.k, bound, bias, offset)

        self.t, self.sum = t, [dot(row) for row in t.rows]

    def add(self, w: Value, offset: int, step: Value | int = 0) -> None:
        """Σ += w[4 of them] · x[offset …]."""
        for row in self.t.rows:
            self.sum[row].add(w, self.t.x(row, offset, step))


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
    total = [k.cell(LANES, 0) for _ in t.rows]
    with k.range(0, 4) as j:  # parts 2j (low nibbles) and 2j + 1 (high)
        low, high = t.dots(15), t.dots(15)
        for c in range(8):
            w = t.bytes(160 + 32 * c, j * 256)
            low.add(w & 15, 4 * c, j * 64)
            high.add(w >> 4, 32 + 4 * c, j * 64)
        scales = t.int8(32, j * 16), t.int8(40, j * 16)
        for r in t.rows:
            total[r].set(total[r].get() + low.sum[r].times(scales[0]) + high.sum[r].times(scales[1]))
    less = [k.const(LANES, 0) for _ in t.rows]
    for i in range(4):
        mins = t.int8_pairs(96 + 16 * i)  # of parts 2i and 2i + 1
        for r in t.rows:
            less[r] = less[r] + k.isa.pairs(k, mins, t.sums(r, i).bits(PAIRS))
    d, m = t.half(0), t.half(16)
    for r in t.rows:
        t.gain(r, d * t.d(r), total[r].get().float())
        t.gain(r, m * (t.d(r) * -1.0), less[r].float())


def q6_k(t: Tile) -> None:
    """y += d·dx · Σ_j scale_j (Σ w·x - 32 Σx_j), over 16 parts j of 16 columns, w in 0 … 63, scales signed"""
    k = t.k
    total = [k.cell(LANES, 0) for _ in t.rows]
    less = [k.cell(LANES, 0) for _ in t.rows]
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
        both = ((even & 0xFFFF) | (odd << 16)).bits(PAIRS)
        for r in t.rows:
            less[r].set(less[r].get() + k.isa.pairs(k, both, t.sums(r, j).bits(PAIRS)))
    d = t.half(0)
    for r in t.rows:
        t.gain(r, d * t.d(r), (total[r].get() - (less[r].get() << 5)).float())


BLOCKS = {"q4_0": q4_0, "q4_1": q4_1, "q5_0": q5_0, "q8_0": q8_0, "q4_k": q4_k, "q6_k": q6_k}
BLOCKS |= {name: partial(superblock, format=f) for name, f in FORMATS.items() if f.coded}


# --- drivers --------------------------------------------------------------------------------------------------


def ask_ahead(k: Emitter, at: Value, size: int) -> None:
    """Ask memory for what is read `AHEAD` bytes after the `size` bytes at `at`.

    A core's own prefetcher follows a stream only to the end of its page of 4 KB, and starts anew in each.  Asking two
    pages ahead keeps memory busy: one thread then reads weights 1.5 to 2 times as fast (8.4 to 15 GB/s for Q4_1 with
    AVX2), as fast as a plain sum does.  The weights of the next groups follow in memory; past the end nobody cares.
    """
    k.prefetch(at, size, AHEAD)


def quantised_tile(k: Emitter, fmt: str, rows: int, w: Value, cols: Value, x, d, s, step, r: Value) -> list[Value]:
    """`rows` activation rows from r on, `step` columns apart, against the group of eight output rows at `w`: their sums,
    block by block."""
    f = FORMATS[fmt]
    nb, row = cols // f.cols, step // f.cols  # blocks of a weight row, blocks from one activation row to the next
    sum_bytes = 4 if f.activations == "q8" else 32 if f.sums == "s16" else 16  # of one block
    acc = [k.cell(F8, 0.0) for _ in range(rows)]
    arrays = ((x, f.cols), (d, 4), (s, sum_bytes))
    starts = [[p + (r + i) * row * size for i in range(rows)] for p, size in arrays]
    with k.range(0, nb) as b:
        ask_ahead(k, w + b * f.packed, f.packed)
        x_at, d_at, s_at = ([p + b * size for p in ps] for ps, (_, size) in zip(starts, arrays))
        BLOCKS[fmt](Tile(k, w + b * f.packed, x_at, d_at, s_at, acc))
    return [a.get() for a in acc]


def eight_floats(k: Emitter, fmt: str, at: Value) -> Value:
    """One column of eight output rows, as float32."""
    if fmt == "f32":
        return k.load(F8, at)
    h = k.load(vec(I16, 8), at)
    return k.isa.to_float(k, h) if fmt == "f16" else (h.unsigned(I32) << 16).bits(F8)


def float_tile(k: Emitter, fmt: str, rows: int, w: Value, cols: Value, x, d, s, step, r: Value) -> list[Value]:
    """As `quantised_tile`, for float weights: column c goes to sum c mod 4 of its row; the four are added at last."""
    acc = [[k.cell(F8, 0.0) for _ in range(4)] for _ in range(rows)]

    def column(c: Value, a: int) -> None:
        weights = eight_floats(k, fmt, w + c * FORMATS[fmt].packed)
        for i in range(rows):
            v = k.splat(k.load(F32, x + ((r + i) * step + c) * 4))
            acc[i][a].set(k.fma(weights, v, acc[i][a].get()))

    whole = cols & -4
    with k.range(0, whole, 4) as c:
        ask_ahead(k, w + c * FORMATS[fmt].packed, 4 * FORMATS[fmt].packed)
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


@kernel("linear", NAMES, rule="columns", params="w cols x x_step d s out n")
def linear(k: Emitter, fmt: str) -> None:
    """out[r, n] = Σ_c x[r, c] · w[n, c]; a unit is UNIT output columns n of all rows r."""
    w, cols, out, n = k.p.w, k.p.cols, k.p.out, k.p.n
    tile, sizes = tiles(k, fmt)
    f, data = FORMATS[fmt], (k.p.x, k.p.d, k.p.s, k.p.x_step)
    rows, unit = k.rows(), k.word(k.rec, R.UNIT) >> 3  # groups
    group_bytes = (cols // f.cols) * f.packed
    end = k.min(k.u1 * unit, (n + 7) >> 3)

    with k.range(k.u0 * unit, end, AT_ONCE) as first:
        r, last = k.var(0), k.min(first + AT_ONCE, end)
        for size in sizes:
            with k.loop(lambda: r.get() + size <= rows):
                with k.range(first, last) as g:
                    valid = k.min(n - g * 8, 8)
                    for i, v in enumerate(tile(k, fmt, size, w + g * group_bytes, cols, *data, r.get())):
                        store_columns(k, v, out + ((r.get() + i) * n + g * 8) * 4, valid)
                r.set(r.get() + size)


def store_columns(k: Emitter, v: Value, at: Value, valid: Value) -> None:
    """The first `valid` lanes: a plain store when that is all eight."""
    with k.when(valid.eq(8)):
        k.store(v, at)
    with k.when(valid < 8):
        k.store(v, at, valid)
