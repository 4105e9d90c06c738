"""How fast the machine reads memory: the ceiling of decode.

A decoded token reads every weight once, so its rate cannot exceed bandwidth / bytes of weights. Measured the way
decode reads: T threads, each streaming through its own slice of an array far larger than the caches, in compiled code
(a sum of 64-bit integers; LLVM makes it vector loads and adds).
"""

from __future__ import annotations

import threading
from functools import cache
from time import perf_counter
from typing import Any

import numpy as np

_BYTES = 512 << 20


@cache
def _sum() -> Any:
    import numba

    def total(a: np.ndarray) -> int:
        s = 0
        for i in range(a.size):
            s += a[i]
        return s

    return numba.njit("int64(int64[::1])", nogil=True)(total)


class Bandwidth:
    """Holds the array and measures when asked.

    Parameters
    ----------
    threads : streams that read at the same time.
    size : bytes to read; the default is 512 MiB.
    """

    def __init__(self, threads: int, size: int = _BYTES) -> None:
        self._slices = np.array_split(np.ones(size // 8, np.int64), threads)
        self._size = size // 8 * 8
        _sum()(self._slices[0][:64])

    def measure(self) -> float:
        """Bytes per second of one pass over the array."""
        total = _sum()
        workers = [threading.Thread(target=total, args=(s,)) for s in self._slices[1:]]
        start = perf_counter()
        for w in workers:
            w.start()
        total(self._slices[0])
        for w in workers:
            w.join()
        return self._size / (perf_counter() - start)
