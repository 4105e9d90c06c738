"""The penalties of `fucina.sampling.reference.penalise`, compiled: only the tokens of the window are touched.

Private: nothing here checks its arguments; `Sampler` does.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numba import njit

from .compile import cached_here


def penalise_tokens(logits, window, repeat, frequency, presence):
    """Change logits [vocab] of the tokens in `window`, int64 and ascending, in place; ids outside the row are ignored."""
    at = 0
    while at < window.shape[0]:
        token, count = window[at], 0
        while at < window.shape[0] and window[at] == token:
            count += 1
            at += 1
        if 0 <= token < logits.shape[0]:
            seen = np.float64(logits[token])
            seen = seen / repeat if seen > 0.0 else seen * repeat
            logits[token] = np.float32(seen - (count * frequency + presence))


@cache
def penaliser():
    """Return `penalise_tokens`, compiled or taken from the cache on disk."""
    with cached_here("penalise_tokens"):
        return njit("void(f4[::1], i8[::1], f8, f8, f8)", cache=True, nogil=True)(penalise_tokens)
