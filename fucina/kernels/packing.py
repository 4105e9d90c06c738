"""Packing at load: matrices of a GGUF file to layout p8 (see `formats`), by compiled code and without the GIL.

Coded formats are packed by NumPy (`coded_packing`), which takes a processor 2 to 5 ns per weight.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..errors import KernelArgumentError
from .coded_packing import pack_coded
from .formats import BY_TYPE, FORMATS, GROUP, Format, groups, packed_bytes
from .invoke import invoke
from .memory import aligned

SLICE = 4 << 20  # bytes of the file that are repacked, then released, at a time
CODED_SLICE = 128 << 10  # the same for formats that are taken apart in NumPy: its arrays should stay in a cache


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """A weight in layout p8: a matrix, or several of one shape, one after the other.

    Attributes
    ----------
    data : numpy.ndarray
        uint8, 64-byte aligned; owns the memory.
    addr : int
        Address of its first byte.
    format : str
        Name of the format, e.g. "q4_1".
    rows, cols : int
        Output rows and columns of a matrix.
    count : int
        How many matrices.
    """

    data: np.ndarray
    addr: int
    format: str
    rows: int
    cols: int
    count: int = 1

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    @property
    def step(self) -> int:
        """Bytes from one matrix to the next."""
        return self.data.nbytes // self.count


def pack(
    raw: np.ndarray,
    ggml_type: int,
    rows: int,
    cols: int,
    count: int = 1,
    release: Callable[[int, int], None] | None = None,
    threads: int = 1,
) -> PackedWeight:
    """Repacks a weight of a GGUF file for the kernels.

    Parameters
    ----------
    raw : numpy.ndarray
        uint8 [count · rows, bytes of a row], C-contiguous; may be read-only (a view on the mapped file).
    ggml_type : int
        Number of the format in the file.
    rows, cols : int
        Shape of a matrix.
    count : int
        Matrices: of a weight with three dimensions, one per head or expert.
    release : callable, optional
        Called as release(start, stop) with byte ranges of `raw` that are not needed any more.
    threads : int
        Threads that repack slices of the weight.

    Raises
    ------
    KernelArgumentError
        The format has no kernel, `cols` is not a multiple of its block, or `raw` has another size.
    """
    f = _format(ggml_type, rows, cols, count)
    row_bytes = cols // f.cols * f.raw
    if raw.dtype != np.uint8 or raw.shape != (count * rows, row_bytes) or not raw.flags.c_contiguous:
        wanted = f"{f.name} of {count * rows} x {cols} is a contiguous uint8 array of shape {(count * rows, row_bytes)}"
        raise KernelArgumentError(f"{wanted}, got {raw.dtype} {raw.shape}")
    step = packed_bytes(f.name, rows, cols)
    data = aligned(count * step, zero=False, alignment=64)
    per_slice = max(1, (CODED_SLICE if f.coded else SLICE) // (row_bytes * GROUP))

    def work(matrix: int, first: int) -> None:
        start, last = matrix * rows * row_bytes, min(first + per_slice, groups(rows))
        if f.coded:
            lines = raw[matrix * rows : (matrix + 1) * rows][first * GROUP : last * GROUP]
            packed = pack_coded(lines, f).reshape(-1)
            to = matrix * step + first * (step // groups(rows))
            data[to : to + packed.size] = packed
        else:
            by_kernel(start, matrix * step, first, last)
        if release is not None:
            release(start + first * GROUP * row_bytes, start + min(last * GROUP, rows) * row_bytes)

    def by_kernel(start: int, to: int, first: int, last: int) -> None:
        words = {"raw": raw.ctypes.data + start, "cols": cols, "out": data.ctypes.data + to, "n": rows}
        invoke(f"pack.{f.name}", words, units=(first, last))

    _in_threads(work, [(i, g) for i in range(count) for g in range(0, groups(rows), per_slice)], threads)
    return PackedWeight(data, data.ctypes.data, f.name, rows, cols, count)


def _format(ggml_type: int, rows: int, cols: int, count: int) -> Format:
    f = BY_TYPE.get(int(ggml_type))
    if f is None:
        known = ", ".join(f"{x.ggml_type} ({n})" for n, x in FORMATS.items())
        raise KernelArgumentError(f"weights of type {ggml_type!r} have no native kernel; those that do: {known}")
    if count < 1 or rows < 1 or cols < 1 or cols % f.cols:
        wanted = f"at least one row and columns a multiple of {f.cols}"
        raise KernelArgumentError(f"{f.name} needs {wanted}, got {rows} x {cols}")
    return f


def _in_threads(work: Callable[[int, int], None], slices: list[tuple[int, int]], threads: int) -> None:
    """work(*slice) of every slice, by some threads; the first error is raised again when all have ended."""
    waiting = iter(slices)
    failure: list[BaseException] = []

    def run() -> None:
        try:
            for one in waiting:  # a list's iterator hands each slice to one thread
                work(*one)
        except BaseException as e:
            failure.append(e)

    helpers = [threading.Thread(target=run) for _ in range(min(threads, len(slices)) - 1)]
    for t in helpers:
        t.start()
    run()
    for t in helpers:
        t.join()
    if failure:
        raise failure[0]
