"""Byte-pair encoding of many words at once, compiled; its readable twin is `fucina.tokenizers.merging.merge`.

Symbols are numbers.  Which pair may be joined is in an open-addressing table of rows (left * 2**32 + right,
rank * 2**32 + joined symbol), with -1 in front where a row is empty.  The candidates of a word lie in a heap of
rank * 2**32 + place, so that the lowest rank comes first, and the leftmost place on ties.

Private: nothing here checks its arguments; `fucina.tokenizers.batch` does.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numba import njit

from .compile import cached_here

_LOW = np.int64(0xFFFFFFFF)
GONE = -2  # a symbol that was joined to the one before it


@njit
def _pair_slot(table, key):
    """Return the row of the pair, or the empty one where it belongs."""
    mask = table.shape[0] - 1
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    at = np.int64(mixed >> np.uint64(32)) & mask
    while table[at, 0] != -1 and table[at, 0] != key:
        at = (at + 1) & mask
    return at


@njit
def _value(table, left, right):
    """Return rank and joined symbol of a pair in one number, or -1 if it may not be joined."""
    if left < 0 or right < 0:
        return np.int64(-1)
    at = _pair_slot(table, (np.int64(left) << 32) | np.int64(right))
    return table[at, 1] if table[at, 0] != -1 else np.int64(-1)


@njit
def _push(heap, count, entry):
    """Put an entry into a heap of so many."""
    at = count
    while at > 0:
        above = (at - 1) >> 1
        if heap[above] <= entry:
            break
        heap[at] = heap[above]
        at = above
    heap[at] = entry


@njit
def _pop(heap, count):
    """Return the smallest entry of a heap of so many, which then has one less."""
    top = heap[0]
    last = heap[count - 1]
    count -= 1
    at = np.int64(0)
    while True:
        below = 2 * at + 1
        if below >= count:
            break
        if below + 1 < count and heap[below + 1] < heap[below]:
            below += 1
        if heap[below] >= last:
            break
        heap[at] = heap[below]
        at = below
    heap[at] = last
    return top


def fill_pairs(table, pairs):
    """Enter rows (key, value) into an empty table; of equal keys the first counts."""
    for i in range(pairs.shape[0]):
        at = _pair_slot(table, pairs[i, 0])
        if table[at, 0] == -1:
            table[at, 0], table[at, 1] = pairs[i, 0], pairs[i, 1]


def merge_words(table, symbols, starts, ends, following, preceding, heap):
    """Join the symbols of each word, in place.

    table
        int64 [power of two, 2], at least one row empty.
    symbols
        int32 [n]: those of all words; negative: may not be joined.  Afterwards a word begins where it did and is shorter.
    starts
        int64 [words + 1]: where each word begins, and n.
    ends
        int64 [words]: filled with where each word ends then.
    following, preceding, heap
        Working memory: int32 of the length of the longest word, twice, and int64 of twice that length.
    """
    for word in range(ends.shape[0]):
        first = starts[word]
        n = starts[word + 1] - first
        count = np.int64(0)
        for i in range(n):
            following[i], preceding[i] = i + 1, i - 1
            if i + 1 < n:
                value = _value(table, symbols[first + i], symbols[first + i + 1])
                if value >= 0:
                    _push(heap, count, (value & ~_LOW) | np.int64(i))
                    count += 1
        while count > 0:
            entry = _pop(heap, count)
            count -= 1
            left = entry & _LOW
            if symbols[first + left] == GONE:
                continue
            right = np.int64(following[left])
            if right == n:
                continue
            value = _value(table, symbols[first + left], symbols[first + right])
            if value < 0 or (value & ~_LOW) != (entry & ~_LOW):
                continue  # one of the two has grown since
            symbols[first + left] = np.int32(value & _LOW)
            symbols[first + right] = GONE
            after = np.int64(following[right])
            following[left] = after
            if after < n:
                preceding[after] = left
                value = _value(table, symbols[first + left], symbols[first + after])
                if value >= 0:
                    _push(heap, count, (value & ~_LOW) | left)
                    count += 1
            before = np.int64(preceding[left])
            if before >= 0:
                value = _value(table, symbols[first + before], symbols[first + left])
                if value >= 0:
                    _push(heap, count, (value & ~_LOW) | before)
                    count += 1
        place, end = np.int64(0), first
        while place < n:
            symbols[end] = symbols[first + place]
            end += 1
            place = np.int64(following[place])
        ends[word] = end


@cache
def filler():
    """Return `fill_pairs`, compiled or taken from the cache on disk."""
    with cached_here("fill_pairs"):
        return njit("void(i8[:,::1], i8[:,::1])", cache=True, nogil=True)(fill_pairs)


@cache
def merger():
    """Return `merge_words`, compiled or taken from the cache on disk."""
    with cached_here("merge_words"):
        return njit("void(i8[:,::1], i4[::1], i8[::1], i8[::1], i4[::1], i4[::1], i8[::1])", cache=True, nogil=True)(
            merge_words
        )
