"""Activations to int8: in blocks of 32 (q8) for plain quantised weights, of 256 (q8k) for K-quants."""

from __future__ import annotations

from . import record as R
from .lang import F8, F32, I8, I16, I32, Emitter, Value, vec
from .registry import kernel


def largest(k: Emitter, at: Value) -> Value:
    """max |x| of 32 numbers, as float bits in int32 (ordered like the floats; a NaN stays the largest)."""
    v = [k.load(vec(I32, 8), at + 32 * i) & 0x7FFFFFFF for i in range(4)]
    return k.fold(k.max(k.max(v[0], v[1]), k.max(v[2], v[3])), k.max)


def scales(k: Emitter, bits: Value) -> tuple[Value, Value]:
    """The scale d = max/127, and 127/max (0 for numbers so small that it would overflow)."""
    m = bits.bits(F32)
    tiny = bits < 0x03800000  # 2^-120
    return m / 127.0, k.where(tiny, k.const(F32, 0.0), k.const(F32, 127.0) / m)


def quantise32(k: Emitter, x: Value, inverse: Value, q: Value) -> tuple[Value, Value]:
    """32 numbers to int8; sums of the first 16 and of the others, in eight lanes each."""
    i = [k.round(k.load(F8, x + 32 * j) * inverse).int() for j in range(4)]
    k.store(k.concat([k.concat(i[:2]), k.concat(i[2:])]).narrow(I8), q)
    return i[0] + i[1], i[2] + i[3]


def q8(k: Emitter, x: Value, q: Value, d: Value, s: Value, s16: Value) -> None:
    """One block of 32: d, d · sum, -128 · sum."""
    scale, inverse = scales(k, largest(k, x))
    a, b = quantise32(k, x, k.splat(inverse), q)
    k.store(scale, d)
    total = k.sum(a + b)
    k.store(scale * total.float(), s)
    k.store(total * -128, s16)


def q8k(k: Emitter, x: Value, q: Value, d: Value, s: Value, s16: Value) -> None:
    """One block of 256: d, eight sums of 32, sixteen of 16."""
    most = k.cell(I32, 0)
    with k.range(0, 8) as j:
        most.set(k.max(most.get(), largest(k, x + j * 128)))
    scale, inverse = scales(k, most.get())
    k.store(scale, d)
    inverse = k.splat(inverse)
    with k.range(0, 8) as j:
        a, b = (k.sum(v) for v in quantise32(k, x + j * 128, inverse, q + j * 32))
        k.store(a.narrow(I16), s16 + j * 4)
        k.store(b.narrow(I16), s16 + j * 4 + 2)
        k.store((a + b).narrow(I16), s + j * 2)


@kernel("quantise", ("q8", "q8k"), ("rows", "cols"), rule="rows", params="x x_step cols q d s s16")
def quantise(k: Emitter, kind: str, rule: str) -> None:
    """x as int8 blocks.  rows: a unit is one of UNITS parts of a row; cols: UNIT columns of every row (rule columns)."""
    p = k.p
    size, block, s_bytes, s16_bytes = (32, q8, 4, 4) if kind == "q8" else (256, q8k, 16, 32)
    nb = p.cols // size

    def span(r: Value, first: Value, last: Value) -> None:
        x = p.x + (r * p.x_step - r * nb * size) * 4  # so that block b of the whole array is this row's
        with k.range(r * nb + first, r * nb + last) as b:
            block(k, x + b * size * 4, p.q + b * size, p.d + b * 4, p.s + b * s_bytes, p.s16 + b * s16_bytes)

    if rule == "rows":
        parts = k.word(k.rec, R.UNITS)
        with k.range(k.u0, k.u1) as u:
            part = u % parts
            span(u // parts, nb * part // parts, nb * (part + 1) // parts)
    else:
        unit = k.word(k.rec, R.UNIT) // size
        with k.range(0, k.rows()) as r:
            span(r, k.u0 * unit, k.min(k.u1 * unit, nb))
