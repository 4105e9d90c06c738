"""Where values live: one block of memory, buffers reused once the last reader's step is over.

The schedule is known by now, so a buffer changes hands only between steps: reuse adds no order that was not there.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...kernels.memory import aligned
from .schedule import Value

_STAGGER = 320  # bytes between buffers, so that their first rows do not share the same few cache sets


def place(values: Iterable[Value]) -> tuple[dict[int, int], int]:
    """Offsets of every value by id(value), and the bytes of the whole block."""
    offsets: dict[int, int] = {}
    free: list[tuple[int, int, int]] = []  # bytes, offset, step from which it may be written
    size = 0
    for value in sorted(values, key=lambda v: v.first):
        need = -(-value.nbytes // 64) * 64
        first = value.first
        usable = [b for b in free if b[0] >= need and b[2] <= first]
        if usable:
            best = min(usable)
            free.remove(best)
            nbytes, offset = best[0], best[1]
        else:
            nbytes, offset = need, size
            size += need + _STAGGER
        offsets[id(value)] = offset
        free.append((nbytes, offset, value.last + 1))
    return offsets, size


def allocate(values: Iterable[Value]) -> tuple[dict[int, int], np.ndarray]:
    """Addresses of every value by id(value), and the block that they lie in."""
    offsets, size = place(values)
    block = aligned(max(size, 64), zero=False)
    base = block.ctypes.data
    return {key: base + offset for key, offset in offsets.items()}, block
