"""Rows of a packed matrix back as float32: the embedding of each row's token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from . import record as R
from .formats import FORMATS, NAMES, Format
from .lang import F32, I8, I16, I32, Emitter, Value, vec
from .registry import kernel
from .superblocks import power_of_two

FOUR = vec(I8, 4)


class Row:
    """One block of one row of a packed matrix: fields of the eight rows, of which `lane` is ours."""

    def __init__(self, k: Emitter, at: Value, lane: Value, scale: Value, out: Value) -> None:
        self.k, self.at, self.lane, self.scale, self.out = k, at, lane, scale, out

    def half(self, offset: int) -> Value:
        """A float16 of the row, in four lanes."""
        k = self.k
        return k.isa.to_float(k, k.splat(k.load(I16, self.at + self.lane * 2 + offset), 4))

    def integer(self, offset, width: int = 1) -> Value:
        """A signed byte of the row, as int32 in four lanes; `width` bytes lie between the rows."""
        k = self.k
        return k.splat(k.load(I8, self.at + self.lane * width + offset), 4).signed(I32)

    def byte(self, offset, width: int = 1) -> Value:
        """The same as float."""
        return self.integer(offset, width).float()

    def four(self, offset) -> Value:
        """Four bytes of the row, unsigned, as int32."""
        return self.k.load(FOUR, self.at + self.lane * 4 + offset).unsigned(I32)

    def put(self, element, value: Value) -> None:
        """Four elements, scaled."""
        self.k.store(value * self.scale, self.out + element * 4)


def q8_0(w: Row) -> None:
    d = w.half(0)
    for c in range(8):
        w.put(4 * c, ((w.four(16 + 32 * c) << 24).shift_signed(24)).float() * d)


def q4_0(w: Row) -> None:
    d = w.half(0)
    for c in range(4):
        v = w.four(16 + 32 * c)
        w.put(4 * c, ((v & 15) - 8).float() * d)
        w.put(16 + 4 * c, ((v >> 4) - 8).float() * d)


def q4_1(w: Row) -> None:
    d, m = w.half(0), w.half(16)
    for c in range(4):
        v = w.four(32 + 32 * c)
        w.put(4 * c, (v & 15).float() * d + m)
        w.put(16 + 4 * c, (v >> 4).float() * d + m)


def q5_0(w: Row) -> None:
    d, high = w.half(0), w.four(16)
    for c in range(4):
        v = w.four(48 + 32 * c)
        for i, low in enumerate((v & 15, v >> 4)):
            fifth = ((high >> (c + 4 * i)) & 1) << 4
            w.put(16 * i + 4 * c, ((low | fifth) - 16).float() * d)


def q4_k(w: Row) -> None:
    d, least = w.half(0), w.half(16)
    with w.k.range(0, 4) as j:
        for i in range(2):
            scale = d * w.byte(j * 16 + (32 + 8 * i))
            less = least * w.byte(j * 16 + (96 + i), 2)
            for c in range(8):
                v = w.four(j * 256 + (160 + 32 * c))
                w.put(j * 64 + (32 * i + 4 * c), ((v >> 4 * i) & 15).float() * scale - less)


def q6_k(w: Row) -> None:
    d = w.half(0)
    with w.k.range(0, 4) as i:
        half, odd = i >> 1, i & 1
        at, scale_at, to = half * 768 + odd * 384, half * 64 + odd * 8, half * 128 + odd * 16
        for f in range(4):
            scale = d * w.byte(scale_at + (16 + 16 * f))
            for c in range(4):
                low, high = (w.four(at + (144 + 96 * c + 32 * x)) for x in (f & 1, 2))
                v = ((low >> (4 * (f >> 1))) & 15) | (((high >> 2 * f) & 3) << 4)
                w.put(to + (32 * f + 4 * c), (v - 32).float() * scale)


def coded(w: Row, f: Format) -> None:
    """A block of any coded format, 32 columns at a time."""
    assert f.coded is not None
    k, c = w.k, f.coded
    d = power_of_two(k, w.integer(0, 1) & 255) if f.exponent else w.half(0)
    d = d if c.factor == 1 else d * c.factor
    dmin, scales_at = (w.half(16), 32) if f.floors else (None, 16)
    with k.range(0, f.cols // 32) as j:
        planes, at = {}, f.planes
        for width in (4, 2, 1):
            if c.bits & width:
                planes[width] = [w.four(j * (32 * c.bits) + (at + 32 * i)) for i in range(width)]
                at += 32 * width
        for half in range(2):  # 16 columns
            part = j * 2 + half if c.parts == 16 else j
            scale, less = d, dmin
            if c.parts > 1:
                s = w.integer(part * 8 + scales_at)
                scale = d * (s & 15 if f.floors == "nibbles" else s).float()
                if f.floors == "nibbles":
                    less = w.half(16) * ((s >> 4) & 15).float()
                elif f.floors == "pairs":
                    at = (part >> 1) * 16 + (part & 1) + (scales_at + 8 * c.parts)
                    less = w.half(16) * w.byte(at, 2)
            for i in range(4 * half, 4 * half + 4):
                v = value(k, c.values, code(planes, i)).float() * scale
                w.put(j * 32 + 4 * i, v if dmin is None else v + less if f.floors == "one" else v - less)


def code(planes: dict[int, list[Value]], c: int) -> Value:
    """The codes of columns 4c … 4c + 3, as int32; see `superblocks.Planes`."""
    out, to = None, 0
    for width, fours in planes.items():
        four, first = {4: (c % 4, c // 4 * 4), 2: (c // 4, c % 4 * 2), 1: (0, c)}[width]
        part = ((fours[four] >> first) & ((1 << width) - 1)) << to
        out, to = part if out is None else out | part, to + width
    assert out is not None
    return out


def value(k: Emitter, values: Sequence[int], codes: Value) -> Value:
    """values[code] of int32 lanes."""
    step = values[1] - values[0]
    if all(v == step * c + values[0] for c, v in enumerate(values)):
        return codes * step + values[0]
    out = k.const(codes.type, values[0])
    for c, v in enumerate(values):
        out = k.where(codes.eq(c), k.const(codes.type, v), out)
    return out


def number(k: Emitter, fmt: str, at: Value) -> Value:
    """One float of a float format."""
    if fmt == "f32":
        return k.load(F32, at)
    h = k.splat(k.load(I16, at), 4)
    return (k.isa.to_float(k, h) if fmt == "f16" else (h.unsigned(I32) << 16).bits(vec(F32, 4))).lane(0)


BLOCKS: dict[str, Callable[[Row], None]] = {
    "q8_0": q8_0,
    "q4_0": q4_0,
    "q4_1": q4_1,
    "q5_0": q5_0,
    "q4_k": q4_k,
    "q6_k": q6_k,
}
BLOCKS |= {name: partial(coded, f=f) for name, f in FORMATS.items() if f.coded}


@kernel("embed", NAMES, rule="rows", params="w cols out scale:f32")
def embed(k: Emitter, fmt: str) -> None:
    """out[r] = scale · w[token of row r]"""
    w, cols, out, scale = k.p.w, k.p.cols, k.p.out, k.p.scale
    f = FORMATS[fmt]
    nb = cols // f.cols
    with k.range(k.u0, k.u1) as r:
        token = k.row(r, R.TOK)
        at, lane, to = w + (token >> 3) * nb * f.packed, token & 7, out + r * cols * 4
        with k.range(0, nb) as b:
            block = at + b * f.packed
            if f.cols == 1:
                k.store(number(k, fmt, block + lane * (f.packed // 8)) * scale, to + b * 4)
            else:
                BLOCKS[fmt](Row(k, block, lane, k.splat(scale, 4), to + b * f.cols * 4))
