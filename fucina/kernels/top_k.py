"""The highest logits of rows, compiled: one look at each logit, in blocks that the best so far dismiss whole.

Private: `highest` checks nothing; `top_ids` does.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numba import njit

from fucina.errors import InvalidLogits, InvalidOption
from fucina.kernels.compile import cached_here

BLOCK = 64  # logits that are compared as one with the worst of the best


def highest(rows, ids, values):
    """Fill ids [m, k] with the k highest of rows [m, n], best first, equal ones by lowest id; -1 behind the last."""
    m, n = rows.shape
    k = ids.shape[1]
    for r in range(m):
        found = 0
        for start in range(0, n, BLOCK):
            stop = min(start + BLOCK, n)
            if found == k:
                bound = values[k - 1]
                best = rows[r, start]
                for i in range(start + 1, stop):
                    best = rows[r, i] if rows[r, i] > best else best
                if best <= bound:
                    continue
            for i in range(start, stop):
                x = rows[r, i]
                if found == k and not x > values[k - 1]:
                    continue
                at = found if found < k else k - 1
                while at > 0 and values[at - 1] < x:
                    values[at] = values[at - 1]
                    ids[r, at] = ids[r, at - 1]
                    at -= 1
                values[at] = x
                ids[r, at] = i
                found += found < k
        for j in range(found, k):
            ids[r, j] = -1


@cache
def _compiled():
    with cached_here("highest"):
        return njit("void(f4[:,::1], i4[:,::1], f4[::1])", cache=True, nogil=True)(highest)


def top_ids(rows: np.ndarray, k: int) -> np.ndarray:
    """Return the ids of the k highest logits of each row.

    Parameters
    ----------
    rows : float32 [m, vocab]
    k : at least 1.

    Returns
    -------
    int32 [m, k], best first, equal logits by lowest id; -1 behind the end of a vocabulary smaller than k.

    Raises
    ------
    InvalidLogits, InvalidOption
    """
    rows = np.ascontiguousarray(rows, dtype=np.float32)
    if rows.ndim != 2 or rows.shape[1] == 0 or rows.shape[1] > 1 << 31:
        raise InvalidLogits(f"expected rows of logits [m, vocab], got shape {list(rows.shape)}")
    if k < 1:
        raise InvalidOption(f"k must be at least 1, got {k}")
    ids = np.empty((rows.shape[0], k), np.int32)
    _compiled()(rows, ids, np.empty(k, np.float32))
    return ids
