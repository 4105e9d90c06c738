"""Repacking kernels: rows of a GGUF file to layout p8 (see `formats`).  `packing` runs them."""

from __future__ import annotations

from collections.abc import Callable

from .formats import FORMATS, GROUP
from .lang import I8, I16, I32, Emitter, Value
from .registry import kernel


class Gather:
    """One block of eight rows of the file, and where its packed form goes."""

    def __init__(self, k: Emitter, rows: list[Value], at: Value, to: Value) -> None:
        self.k, self.rows, self.at, self.to, self.offset = k, rows, at, to, 0

    def take(self, ty, offset) -> Value:
        """The field of type `ty` at `offset` of each row's block."""
        return self.k.vector([self.k.load(ty, r + self.at + offset) for r in self.rows])

    def put(self, v: Value) -> None:
        """Appends to the packed block."""
        self.k.store(v, self.to + self.offset)
        self.offset += v.type.count * v.type.element.width // 8

    def copy(self, ty, first: int, count: int = 1) -> None:
        """Appends `count` fields that follow each other in the file."""
        for i in range(count):
            self.put(self.take(ty, first + i * ty.width // 8))


def plain(header: int, quads: int) -> Callable[[Gather], None]:
    """A block that is `header` float16 numbers and then bytes."""

    def emit(g: Gather) -> None:
        g.copy(I16, 0, header)
        g.copy(I32, 2 * header, quads)

    return emit


def q5_0(g: Gather) -> None:
    """Bit 4c + j of the fifth bits goes to bit c of byte j."""
    g.copy(I16, 0)
    bits = g.take(I32, 2)
    out = bits & 0
    for j in range(4):
        for c in range(8):
            out = out | (((bits >> (4 * c + j)) & 1) << (8 * j + c))
    g.put(out)
    g.copy(I32, 6, 4)


def q4_k(g: Gather) -> None:
    """The twelve bytes of 6-bit scales and minimums are spread to a byte each."""
    k = g.k
    g.copy(I16, 0, 2)
    raw = [g.take(I8, 4 + i) for i in range(12)]
    scales = [raw[j] & 63 if j < 4 else (raw[j + 4] & 15) | ((raw[j - 4] >> 6) << 4) for j in range(8)]
    mins = [raw[j + 4] & 63 if j < 4 else (raw[j + 4] >> 4) | ((raw[j] >> 6) << 4) for j in range(8)]
    for s in scales:
        g.put(s)
    for j in range(0, 8, 2):
        g.put(mins[j].shuffle([i // 2 + 8 * (i % 2) for i in range(16)], mins[j + 1]))
    at, to = g.at, g.to
    with k.range(0, 32) as c:  # the same field 32 times, in a loop of the machine
        g.at, g.to, g.offset = at + c * 4, to + c * 32, 160
        g.copy(I32, 16)
    g.at, g.to = at, to


def q6_k(g: Gather) -> None:
    """Low bits (128 bytes), high bits (64), scales (16), d; see `formats` for the order wanted."""
    k = g.k
    g.copy(I16, 208)
    at, to = g.at, g.to
    with k.range(0, 16) as c:
        g.at, g.to, g.offset = at + c, to + c * 8, 16
        g.copy(I8, 192)
    for half in range(2):
        with k.range(0, 8) as c:
            g.at, g.to, g.offset = at + c * 4, to + c * 96, 144 + 768 * half
            for source in (64 * half, 64 * half + 32, 128 + 32 * half):
                g.copy(I32, source)
    g.at, g.to = at, to


BLOCKS = {
    "f32": lambda g: g.copy(I32, 0),
    "f16": lambda g: g.copy(I16, 0),
    "bf16": lambda g: g.copy(I16, 0),
    "q8_0": plain(1, 8),
    "q4_0": plain(1, 4),
    "q4_1": plain(2, 4),
    "q5_0": q5_0,
    "q4_k": q4_k,
    "q6_k": q6_k,
}


@kernel("pack", tuple(BLOCKS), rule="groups", params="raw cols out n")
def pack_kernel(k: Emitter, fmt: str) -> None:
    """Groups u0 … u1-1 of eight rows; rows past the last one repeat it."""
    raw, cols, out, n = k.p.raw, k.p.cols, k.p.out, k.p.n
    f = FORMATS[fmt]
    nb = cols // f.cols
    with k.range(k.u0, k.u1) as g:
        rows = [raw + k.min(g * GROUP + i, n - 1) * nb * f.raw for i in range(GROUP)]
        with k.range(0, nb) as b:
            BLOCKS[fmt](Gather(k, rows, b * f.raw, out + (g * nb + b) * f.packed))
