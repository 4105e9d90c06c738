"""Passes of many rows with formats of 256 columns: a block of the weights is unpacked once for all of them.

A tile of `linear` unpacks a block in registers for its few rows.  Here the block of sixteen output rows becomes one byte per
weight in the thread's scratch, with its scales as integers, for up to ROWS rows of activations, eight at a time.  Integers
are exact and blocks are added up in the same order, so a row has the bits that a tile gives it.

For every format a block adds, with c the bytes, s and f the scales and floors of its parts j (see `superblocks`)

    y += d·dx · (a · Σ_j s_j Σ c·x - zero · Σ_j s_j Σx_j) - dmin·dx · Σ_j f_j Σx_j
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .formats import FORMATS, Format
from .lang import F32, I8, I16, I32, Emitter, Value, vec
from .superblocks import Planes, floor_pair, moved, pair, scale, step_of, terms
from .tile import Tile, ask_ahead

ROWS = 96  # that share an unpacked block; their results fill 6 KB beside its 6 KB
AT_ONCE = 12  # rows in a tile: `vpdpbusd` takes five cycles, two start in each, so ten sums keep it busy
LANES = 16
VECTOR = 64  # bytes of a vector: a word or four bytes for each of sixteen output rows
CODES, SCALES, PAIRS, FLOORS, STEPS, RESULTS = (VECTOR * i for i in (0, 64, 80, 88, 96, 98))
STARTS = RESULTS + ROWS * VECTOR  # of each row: the addresses of its activations, their scales and their sums
SCRATCH_BYTES = STARTS + ROWS * 24


@dataclass(frozen=True, slots=True)
class Terms:
    """What the sums of bytes stand for: see above.  `parts` have scales; one part has none."""

    parts: int
    a: int
    zero: int
    floors: bool


def fits(k: Emitter, f: Format) -> bool:
    """Whether passes of many rows unpack this format so: blocks of 256, and vectors that hold sixteen outputs."""
    return f.activations == "q8k" and 8 * k.isa.wide == LANES and k.isa.unsigned


def terms_of(f: Format) -> Terms:
    if f.coded is None:
        return Terms(8, 1, 0, True) if f.name == "q4_k" else Terms(16, 1, 32, False)
    t = terms(f.coded.values, True)
    return Terms(f.coded.parts, t.a, t.zero, bool(f.floors))


def unpack(t: Tile, f: Format, to: Value) -> None:
    """A block into scratch.  `t` is a tile of no rows."""
    k, names = t.k, terms_of(f)
    put = lambda v, at, step=0: k.store(v, to + step + at)
    {"q4_k": q4_k, "q6_k": q6_k}.get(f.name, coded)(t, f, put)
    scales_at = 32 if f.floors or f.name == "q4_k" else 16
    if names.parts > 1:
        with k.range(0, names.parts) as j:
            put(scale(t, f, scales_at, j * 8), SCALES, j * VECTOR)
    for i in range(max(names.parts, 8) // 2):
        if names.zero:
            put(pair(t, f, scales_at + 16 * i) if names.parts > 1 else k.const(vec(I16, 32), 1), PAIRS + VECTOR * i)
        if names.floors:
            put(floor_pair(t, f, i, scales_at, names.parts), FLOORS + VECTOR * i)
    put(step_of(t, f) if f.coded else t.half(0), STEPS)
    if names.floors:
        put(t.half(16), STEPS + VECTOR)


def q4_k(t: Tile, f: Format, put: Callable[..., None]) -> None:
    with t.k.range(0, 4) as j:
        for c in range(8):
            w = t.bytes(160 + 32 * c, j * 256)
            put(w & 15, CODES + VECTOR * c, j * (16 * VECTOR))
            put(w >> 4, CODES + VECTOR * (8 + c), j * (16 * VECTOR))


def q6_k(t: Tile, f: Format, put: Callable[..., None]) -> None:
    with t.k.range(0, 4) as i:
        half, odd = i >> 1, i & 1
        w_step, to_step = half * 768 + odd * 384, half * (32 * VECTOR) + odd * (4 * VECTOR)
        for c in range(4):
            a, b, high = (t.bytes(144 + 96 * c + 32 * f, w_step) for f in range(3))
            for f_, low in enumerate((a & 15, b & 15, a >> 4, b >> 4)):
                put(low | moved(high, 2 * f_, 2, 4), CODES + VECTOR * (8 * f_ + c), to_step)


def coded(t: Tile, f: Format, put: Callable[..., None]) -> None:
    assert f.coded is not None
    table, bits = terms(f.coded.values, True).table, f.coded.bits
    with t.k.range(0, 8) as j:
        planes = Planes(t, bits, f.planes, j * (32 * bits))
        for c in range(8):
            code = planes.code(c)
            if table is not None:
                code = t.k.isa.lookup(t.k, table, code)
            put(code, CODES + VECTOR * c, j * (8 * VECTOR))


def multiply(t: Tile, f: Format, block: Value) -> None:
    """What the unpacked block adds to the rows of a tile."""
    k, names = t.k, terms_of(f)
    get = lambda ty, at, step=0: k.load(ty, block + step + at)
    ints, pairs = vec(I32, LANES), vec(I16, 2 * LANES)
    halves = 2 if names.parts == 16 else 1
    total = [k.cell(ints, 0) for _ in t.rows]
    with k.range(0, 8, keep=True) as j:  # 32 columns
        dots = [t.dots(127) for _ in range(halves)]
        for c in range(8):
            w = get(vec(I8, VECTOR), CODES + VECTOR * c, j * (8 * VECTOR))
            dots[c * halves // 8].add(w, 4 * c, j * 32)
        for h, dot in enumerate(dots):
            by = get(ints, SCALES + VECTOR * h, j * (halves * VECTOR)) if names.parts > 1 else None
            for r in t.rows:
                total[r].set(total[r].get() + (dot.sum[r].total() if by is None else dot.sum[r].times(by)))
    sums = {name: [k.const(ints, 0) for _ in t.rows] for name in ("less", "floors")}
    for i in range(max(names.parts, 8) // 2):
        for wanted, name, at in ((names.zero, "less", PAIRS), (names.floors, "floors", FLOORS)):
            if wanted:
                by = get(pairs, at + VECTOR * i)
                for r in t.rows:
                    sums[name][r] = gain_pairs(k, sums[name][r], by, t.pairs_of(t.sums(r, i)))
    d, dmin = (get(vec(F32, LANES), STEPS + VECTOR * i) for i in range(2))
    for r in t.rows:
        value = total[r].get() * names.a
        if names.zero:
            value = value - sums["less"][r] * names.zero
        t.gain(r, d * t.d(r), value.float())
        if names.floors:
            t.gain(r, dmin * (t.d(r) * -1.0), sums["floors"][r].float())


def gain_pairs(k: Emitter, total: Value, x: Value, y: Value) -> Value:
    """total + `Isa.pairs`, in one instruction, which LLVM would split where registers are scarce."""
    t = total.type
    return k.call("llvm.x86.avx512.vpdpwssd.512", t, total, x.bits(t), y.bits(t))


def in_panels(
    k: Emitter,
    fmt: str,
    rows: Value,
    source: Callable[[Value], Value],
    groups: tuple[Value, Value],
    at: Callable[[Value], Value],
    cols: Value,
    data: tuple[Value, Value, Value, Value],
    keep: Callable[[Value, Value, Value], None],
) -> Value:
    """keep(number of a row, group, its sums) for every other group from groups[0] to before groups[1] and as many rows as fill
    tiles, which are returned.

    source(number) is the row of the activations, at(group) where the group's weights are, `data` as in `linear`.
    """
    f = FORMATS[fmt]
    x, d, s, step = data
    rows = rows // AT_ONCE * AT_ONCE
    block = k.scratch()
    arrays = ((x, f.cols), (d, 4), (s, 32 if f.sums == "s16" else 16))
    with k.range(0, rows, ROWS) as first:
        count = k.min(rows - first, ROWS)
        with k.range(0, count) as r:
            row = source(first + r) * (step // f.cols)
            for i, (p, size) in enumerate(arrays):
                k.store(p + row * size, block + STARTS + 8 * i + r * 24)
        with k.range(*groups, k.isa.wide) as g:
            weights = [at(k.min(g + i, groups[1] - 1)) for i in range(k.isa.wide)]  # the last may be alone
            result = lambda r: block + RESULTS + r * VECTOR
            with k.range(0, count) as r:
                k.store(k.const(vec(F32, LANES), 0.0), result(r))
            with k.range(0, cols // f.cols) as b:
                here = [w + b * f.packed for w in weights]
                ask_ahead(k, here, f.packed)
                unpack(Tile(k, here, [], [], [], []), f, block)
                offsets = [b * size for _, size in arrays]
                with k.range(0, count, AT_ONCE) as r:
                    table, results = block + STARTS + r * 24, result(r)
                    start = lambda row, i: k.word(table, 3 * row + i) + offsets[i]
                    starts = [[start(row, i) for row in range(AT_ONCE)] for i in range(3)]
                    acc = [k.cell(vec(F32, LANES), 0.0) for _ in range(AT_ONCE)]
                    for i, a in enumerate(acc):
                        a.set(k.load(vec(F32, LANES), results + i * VECTOR))
                    multiply(Tile(k, here, starts[0], starts[1], starts[2], acc), f, block)
                    for i, a in enumerate(acc):
                        k.store(a.get(), results + i * VECTOR)
            with k.range(0, count) as r:
                keep(first + r, g, k.load(vec(F32, LANES), result(r)))
    return rows
