"""What a block of a coded format adds to a tile of a matrix product; see `formats` for the layout.

With c the codes, s and f the scales and floors of the parts j of a block, and `value` the table of the format:

    y += d·dx · Σ_j s_j Σ value[c]·x - dmin·dx · Σ_j f_j Σx_j

Everything under the sums is exact in integers.  The multiplication of bytes wants weights that are not negative.  Where the
values are evenly spaced, value[c] = a·c - z, codes are multiplied as they are; else value[c] + z, looked up in a table.  Then

    Σ_j s_j Σ value[c]·x = a · Σ_j s_j Σ c·x - z · Σ_j s_j Σx_j
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .formats import Format
from .lang import F32, I16, I32, Emitter, Value, vec

if TYPE_CHECKING:
    from .tile import Dots, Tile


@dataclass(frozen=True, slots=True)
class Terms:
    """How bytes that are not negative stand for the values of codes.

    table : of these bytes, or None where they are the codes themselves.
    a, zero : a value is a · byte - zero.
    bound : the largest byte; None where values are multiplied with their sign.
    """

    table: Sequence[int] | None
    a: int
    zero: int
    bound: int | None


def terms(values: Sequence[int], unsigned: bool) -> Terms:
    """The bytes for a table of values; `unsigned`: the CPU multiplies only bytes of 0 … 255 with signed ones."""
    a = values[1] - values[0]
    if all(v == a * c + values[0] for c, v in enumerate(values)):
        return Terms(None, a, -values[0], len(values) - 1)
    zero = 1 << (-min(values) - 1).bit_length()  # a power of two
    if max(values) + zero > 127 and not unsigned:
        return Terms(values, 1, 0, None)
    return Terms([v + zero for v in values], 1, zero, max(values) + zero)


def moved(v: Value, first: int, width: int, to: int) -> Value:
    """Bits first … first + width - 1 of every byte, moved to bit `to`."""
    if first != to:
        pairs = v.bits(
            vec(I16, v.type.count // 2)
        )  # shifting int16 is one instruction; what crosses bytes is masked off
        pairs = pairs << (to - first) if first < to else pairs >> (first - to)
        v = pairs.bits(v.type)
    return v & (((1 << width) - 1) << to)


class Planes:
    """The codes of 32 columns of eight (or sixteen) output rows."""

    def __init__(self, t: Tile, bits: int, at: int, step: Value | int) -> None:
        self.fours: dict[int, list[Value]] = {}
        self.bits = bits
        for width in (4, 2, 1):
            if bits & width:
                self.fours[width] = [t.bytes(at + 32 * i, step) for i in range(width)]
                at += 32 * width

    def code(self, c: int) -> Value:
        """The codes of columns 4c … 4c + 3."""
        parts, to = [], 0
        for width, fours in self.fours.items():
            four, first = {4: (c % 4, c // 4 * 4), 2: (c // 4, c % 4 * 2), 1: (0, c)}[width]
            if width == 4 and first:
                parts.append(fours[four] >> 4)
            else:
                parts.append(moved(fours[four], first, width, to))
            to += width
        out = parts[0]
        for part in parts[1:]:
            out = out | part
        return out


def multiply(t: Tile, planes: Planes, w: Terms, dots: list[Dots], step: Value | int = 0) -> None:
    """Adds the products of 32 columns to one sum, or to one for each half of them."""
    for c in range(8):
        codes = planes.code(c)
        if w.table is not None:
            codes = t.k.isa.lookup(t.k, w.table, codes)
        dots[c * len(dots) // 8].add(codes, 4 * c, step)


def superblock(t: Tile, format: Format) -> None:
    """One block of a coded format."""
    assert format.coded is not None
    w = terms(format.coded.values, t.k.isa.unsigned)
    (plain if format.activations == "q8" else parted)(t, format, w)


def plain(t: Tile, f: Format, w: Terms) -> None:
    """A block of 32 columns: y += d·dx · Σ value[c]·x + m · (dx·Σx)"""
    assert f.coded is not None
    dots = t.dots(w.bound, w.zero)
    multiply(t, Planes(t, f.coded.bits, f.planes, 0), w, [dots])
    d, m = step_of(t, f), t.half(16) if f.floors else None
    for r in t.rows:
        dx, sx = t.d(r), t.s(r) if f.floors else None
        t.gain(r, d * dx, dots.sum[r].total().float())
        if m is not None and sx is not None:
            t.gain(r, m, sx)


def step_of(t: Tile, f: Format) -> Value:
    """The step of the block."""
    assert f.coded is not None
    if f.exponent:
        return power_of_two(t.k, t.int8(0) & 255)
    d = t.half(0)
    return d if f.coded.factor == 1 else d * f.coded.factor


def parted(t: Tile, f: Format, w: Terms) -> None:
    """A block of 256 columns; its parts, of 16 or 32, have scales, or it is one part."""
    assert f.coded is not None
    k, parts, ints = t.k, f.coded.parts, vec(I32, t.lanes)
    scales_at = 32 if f.floors else 16
    halves = 2 if parts == 16 else 1
    total = [k.cell(ints, 0) for _ in t.rows]
    with k.range(0, 8) as j:  # 32 columns
        dots = [t.dots(w.bound) for _ in range(halves)]
        multiply(t, Planes(t, f.coded.bits, f.planes, j * (32 * f.coded.bits)), w, dots, j * 32)
        scales = [scale(t, f, scales_at + 8 * h, j * (8 * halves)) for h in range(halves)] if parts > 1 else []
        for r in t.rows:
            here = [d.sum[r].times(s) for d, s in zip(dots, scales)] or [dots[0].sum[r].total()]
            total[r].set(sum(here, total[r].get()))
    less = [k.const(ints, 0) for _ in t.rows]
    floors = [k.const(ints, 0) for _ in t.rows]
    for i in range(max(parts, 8) // 2):  # parts 2i and 2i + 1
        if w.zero:
            weights = pair(t, f, scales_at + 16 * i) if parts > 1 else k.const(vec(I16, 2 * t.lanes), 1)
            for r in t.rows:
                less[r] = less[r] + k.isa.pairs(k, weights, t.pairs_of(t.sums(r, i)))
        if f.floors:
            mins = floor_pair(t, f, i, scales_at, parts)
            for r in t.rows:
                floors[r] = floors[r] + k.isa.pairs(k, mins, t.pairs_of(t.sums(r, i)))
    d, dmin = step_of(t, f), t.half(16) if f.floors else None
    for r in t.rows:
        value = total[r].get() * w.a
        if w.zero:
            value = value - less[r] * w.zero
        t.gain(r, d * t.d(r), value.float())
        if dmin is not None:
            t.gain(r, dmin * (t.d(r) * -1.0), floors[r].float())


def power_of_two(k: Emitter, e: Value) -> Value:
    """2^(e - 128) of int32 lanes 0 … 255; the first two are subnormal."""
    bits = k.where(e < 2, k.const(e.type, 0x0020_0000) << e, (e - 1) << 23)
    return bits.bits(vec(F32, e.type.count))


def scale(t: Tile, f: Format, at: int, step: Value | int = 0) -> Value:
    """The scale of one part."""
    s = t.int8(at, step)
    return s & 15 if f.floors == "nibbles" else s


def pair(t: Tile, f: Format, at: int, shift: int = 0) -> Value:
    """The scales of two parts; `shift` 4: the other half of their bytes."""
    even, odd = t.int8(at), t.int8(at + 8)
    if f.floors == "nibbles":
        even, odd = ((v >> shift) & 15 for v in (even, odd))
    return t.pairs_of((even & 0xFFFF) | (odd << 16))


def floor_pair(t: Tile, f: Format, i: int, scales_at: int, parts: int) -> Value:
    """The floors of parts 2i and 2i + 1."""
    if f.floors == "nibbles":
        return pair(t, f, scales_at + 16 * i, 4)
    return t.int8_pairs(scales_at + 8 * parts + 16 * i)
