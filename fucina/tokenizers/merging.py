"""The merge loop that byte-level BPE and SentencePiece share.

Both algorithms start from single symbols and repeatedly join the *cheapest* pair of neighbours.  The cost of a pair is
its rank in the list of merges (BPE), or minus the score of the joined text (SentencePiece).  Looking for the cheapest
pair by scanning would take n scans of n pairs; a heap of candidates takes O(n log n), so that even a megabyte without a
space is possible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import AnyStr


def merge(symbols: Sequence[AnyStr], cost: Callable[[AnyStr, AnyStr], float | None]) -> list[AnyStr]:
    """Join neighbouring symbols, cheapest pair first (the leftmost one on ties), until no pair may be joined.

    Parameters
    ----------
    symbols
        The pieces to begin with, none empty.
    cost
        `cost(left, right)`: what joining the two costs, or None if they may not be joined.

    Returns
    -------
    list
        The pieces that are left; their concatenation is unchanged.
    """
    pieces = list(symbols)
    n = len(pieces)
    following = list(range(1, n + 1))  # index of the next living piece, n = none
    preceding = list(range(-1, n - 1))  # index of the one before, -1 = none
    candidates = []
    for i in range(n - 1):
        price = cost(pieces[i], pieces[i + 1])
        if price is not None:
            candidates.append((price, i, len(pieces[i]) + len(pieces[i + 1])))
    heapify(candidates)
    while candidates:
        _, left, size = heappop(candidates)
        right = following[left]
        # A candidate is stale once either piece was joined with another.  Pieces only grow, and a swallowed piece is
        # empty, so the pair is unchanged exactly if the left one is alive and both together still have this length.
        if not pieces[left] or right == n or len(pieces[left]) + len(pieces[right]) != size:
            continue
        pieces[left] += pieces[right]
        pieces[right] = pieces[right][:0]
        after = following[left] = following[right]
        if after < n:
            preceding[after] = left
            price = cost(pieces[left], pieces[after])
            if price is not None:
                heappush(candidates, (price, left, len(pieces[left]) + len(pieces[after])))
        before = preceding[left]
        if before >= 0:
            price = cost(pieces[before], pieces[left])
            if price is not None:
                heappush(candidates, (price, before, len(pieces[before]) + len(pieces[left])))
    return [piece for piece in pieces if piece]
