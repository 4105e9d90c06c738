"""What a mask leaves of a row of logits: a few ids and their logits, or the whole row with -inf at all others.

`fucina.sampling.reference.sieve` is the same in NumPy.  Private: nothing here checks its arguments; `Sampler` does.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numba import njit

from .compile import cached_here

WORD = 32  # tokens per word of a mask
ALL = np.uint32(0xFFFFFFFF)
NONE = np.uint32(0)
FORBIDDEN = np.float32(-np.inf)


@njit
def _bits(word):
    """Return how many bits of a word are set."""
    word = word - ((word >> np.uint32(1)) & np.uint32(0x55555555))
    word = (word & np.uint32(0x33333333)) + ((word >> np.uint32(2)) & np.uint32(0x33333333))
    word = (word + (word >> np.uint32(4))) & np.uint32(0x0F0F0F0F)
    return np.int32(np.uint32(word * np.uint32(0x01010101)) >> np.uint32(24))


def sieve_row(row, mask, most, ids, out):
    """Return how many tokens of the row the mask allows, n; where they are at most `most`, ids[:n] and out[:n] are theirs.

    Otherwise out is the row, and -inf at every token that is not allowed.

    row, out : float32 [vocab]; they may be the same.  mask : uint32 [words], bit i of it for token i; it forbids what it
    has no bit for.  ids : int64 [most].
    """
    vocab = row.shape[0]
    words = min(mask.shape[0], vocab // WORD)
    rest = min(mask.shape[0] * WORD, vocab) - words * WORD  # tokens of a last word that is not whole
    last = mask[words] & np.uint32((np.uint64(1) << np.uint64(rest)) - np.uint64(1)) if rest else NONE
    allowed = _bits(last)
    for w in range(words):
        allowed += _bits(mask[w])
    if allowed <= most:
        n = 0
        for w in range(words + (rest > 0)):
            word = mask[w] if w < words else last
            if word != NONE:
                for i in range(w * WORD, min(w * WORD + WORD, vocab)):
                    if word & np.uint32(1):
                        ids[n] = i
                        out[n] = row[i]  # n <= i: nothing that is still to be read is overwritten
                        n += 1
                    word >>= np.uint32(1)
        return np.int64(allowed)
    for w in range(words):
        word = mask[w]
        at = w * WORD
        if word == ALL:
            for j in range(WORD):
                out[at + j] = row[at + j]
        else:
            for j in range(WORD):
                out[at + j] = row[at + j] if word & (np.uint32(1) << np.uint32(j)) else FORBIDDEN
    for i in range(words * WORD, vocab):
        j = i - words * WORD
        out[i] = row[i] if j < rest and last & (np.uint32(1) << np.uint32(j)) else FORBIDDEN
    return np.int64(allowed)


@cache
def siever():
    """Return `sieve_row`, compiled or taken from the cache on disk."""
    with cached_here("sieve_row"):
        return njit("i8(f4[::1], u4[::1], i8, i8[::1], f4[::1])", cache=True, nogil=True)(sieve_row)
