"""Repacking at load: rows of a GGUF file to layout p8 (see `formats`), compiled and without the GIL."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Callable

import numpy as np

from fucina.errors import KernelArgumentError
from fucina.kernels.formats import BY_TYPE, FORMATS, GROUP, NAMES, groups, packed_bytes
from fucina.kernels.lang import I8, I16, I32, Emitter, Value, kernel, vec

SLICE = 4 << 20  # bytes of the file that are repacked, then released, at a time


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


@kernel("pack", NAMES)
def pack_kernel(k: Emitter, fmt: str) -> None:
    """Groups u0 … u1-1 of eight rows; rows past the last one repeat it."""
    raw, cols, out, n = k.params(4)
    f = FORMATS[fmt]
    nb = cols // f.cols
    with k.range(k.u0, k.u1) as g:
        rows = [raw + k.min(g * GROUP + i, n - 1) * nb * f.raw for i in range(GROUP)]
        with k.range(0, nb) as b:
            BLOCKS[fmt](Gather(k, rows, b * f.raw, out + (g * nb + b) * f.packed))


# --- the public side ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """A weight matrix in layout p8.

    Attributes
    ----------
    data : numpy.ndarray
        uint8, 64-byte aligned; owns the memory.
    addr : int
        Address of its first byte.
    format : str
        Name of the format, e.g. "q4_1".
    rows, cols : int
        Output rows and columns of the matrix.
    """

    data: np.ndarray
    addr: int
    format: str
    rows: int
    cols: int

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


def aligned(nbytes: int) -> np.ndarray:
    """Uninitialised uint8 [nbytes] that begins at a multiple of 64."""
    raw = np.empty(nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]


def pack(
    raw: np.ndarray,
    ggml_type: int,
    rows: int,
    cols: int,
    release: Callable[[int, int], None] | None = None,
    threads: int = 1,
) -> PackedWeight:
    """Repacks a matrix of a GGUF file for the kernels.

    Parameters
    ----------
    raw : numpy.ndarray
        uint8 [rows, bytes of a row], C-contiguous; may be read-only (a view on the mapped file).
    ggml_type : int
        Number of the format in the file.
    rows, cols : int
        Shape of the matrix.
    release : callable, optional
        Called as release(start, stop) with byte ranges of `raw` that are not needed any more.
    threads : int
        Slices of the matrix are repacked by so many threads.

    Raises
    ------
    KernelArgumentError
        The format has no kernel, `cols` is not a multiple of its block, or `raw` has another size.
    """
    f = BY_TYPE.get(int(ggml_type))
    if f is None:
        known = ", ".join(f"{x.ggml_type} ({n})" for n, x in FORMATS.items())
        raise KernelArgumentError(f"weights of type {ggml_type!r} have no native kernel; those that do: {known}")
    if rows < 1 or cols < 1 or cols % f.cols:
        wanted = f"at least one row and columns a multiple of {f.cols}"
        raise KernelArgumentError(f"{f.name} needs {wanted}, got {rows} x {cols}")
    row_bytes = cols // f.cols * f.raw
    if raw.dtype != np.uint8 or raw.shape != (rows, row_bytes) or not raw.flags.c_contiguous:
        wanted = f"{f.name} of {rows} x {cols} is a contiguous uint8 array of shape {(rows, row_bytes)}"
        raise KernelArgumentError(f"{wanted}, got {raw.dtype} {raw.shape}")
    from fucina.kernels.call import invoke

    data = aligned(packed_bytes(f.name, rows, cols))
    step = max(1, SLICE // (row_bytes * GROUP))
    starts = iter(range(0, groups(rows), step))
    failure: list[BaseException] = []

    def work() -> None:
        try:
            for a in starts:  # a range iterator hands each start to one thread
                b = min(a + step, groups(rows))
                invoke(f"pack.{f.name}", [raw.ctypes.data, cols, data.ctypes.data, rows], units=(a, b))
                if release is not None:
                    release(a * GROUP * row_bytes, min(b * GROUP, rows) * row_bytes)
        except BaseException as e:  # told to the caller below
            failure.append(e)

    helpers = [threading.Thread(target=work) for _ in range(min(threads, -(-groups(rows) // step)) - 1)]
    for t in helpers:
        t.start()
    work()
    for t in helpers:
        t.join()
    if failure:
        raise failure[0]
    return PackedWeight(data, data.ctypes.data, f.name, rows, cols)
