"""Memory whose address kernels may keep."""

from __future__ import annotations

import numpy as np

PAGE = 4096


def aligned(nbytes: int, zero: bool = True, alignment: int = 128) -> np.ndarray:
    """uint8 [nbytes] that starts at a multiple of `alignment`.  Without `zero`, untouched pages cost nothing."""
    raw = (np.zeros if zero else np.empty)(nbytes + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + nbytes]


def aligned_words(rows: list[list[int]] | np.ndarray) -> np.ndarray:
    """int64 copy of a table, on a cache line."""
    table = np.asarray(rows, np.int64)
    copy = aligned(max(table.nbytes, 8)).view(np.int64)[: table.size].reshape(table.shape)
    copy[...] = table
    return copy
