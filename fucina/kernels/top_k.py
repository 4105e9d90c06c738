"""The highest logits of rows, compiled: one look at each logit, in blocks that the best so far dismiss whole.

Private: `highest` checks nothing; `top_ids` does.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numba import njit

from ..errors import InvalidLogits, InvalidOption
from .compile import cached_here

BLOCK = 128  # logits that are compared together with the worst of the best


@njit
def _any_above(block, bound):
    """Whether one of BLOCK logits is above the bound; the loop is written so that it becomes vector code."""
    hit = np.int32(0)
    for j in range(0, BLOCK, 8):
        low = (block[j] > bound) | (block[j + 1] > bound) | (block[j + 2] > bound) | (block[j + 3] > bound)
        high = (block[j + 4] > bound) | (block[j + 5] > bound) | (block[j + 6] > bound) | (block[j + 7] > bound)
        hit |= np.int32(low | high)
    return hit != 0


def highest(rows, ids, values):
    """Fill ids [m, k] with the k highest of rows [m, n], best first, equal ones by lowest id; -1 after the last."""
    m, n = rows.shape
    k = ids.shape[1]
    for r in range(m):
        row = rows[r]
        found = 0
        for start in range(0, n, BLOCK):
            stop = min(start + BLOCK, n)
            if found == k and stop - start == BLOCK and not _any_above(row[start:stop], values[k - 1]):
                continue
            for i in range(start, stop):
                x = row[i]
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
    int32 [m, k], best first, equal logits by lowest id; -1 after the end of a vocabulary smaller than k.

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
