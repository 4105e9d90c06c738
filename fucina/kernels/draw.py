"""The draw of `fucina.sampling.reference.choose`, compiled and without a sort: time linear in the vocabulary.

Kept sets are prefixes of one order (logit downwards, equal logits by lowest id), so a set is described by its mass
alone, and every cut is the same question: which token covers unit `mark` of the mass?  `_find` answers it with a
histogram over the logits, then looks inside one bucket.  Weights are integers (see `weights`): sums are exact in any
order, which is what makes this equal to the sorted definition, token for token.

Private: nothing here checks its arguments; `Sampler` does.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numba import njit

from .compile import cached_here
from .weighing import LN2_HI, LN2_LO, LOG2E, LOWEST, ROUND, SHIFT, TAYLOR

BUCKETS = 1024
PER_NAT = -BUCKETS / (LOWEST - 1.0)  # buckets a unit of (scaled) logit distance
ROUND_BITS = int(np.float64(ROUND).view(np.int64))
SMALL = 24  # so few members are sorted directly


@njit
def _weigh(logits, highest, temperature, weight, bucket):
    """Fill weight [n] as `weights` does, and the histogram bucket of each token; return nothing."""
    for i in range(logits.shape[0]):
        distance = (np.float64(logits[i]) - highest) / temperature
        distance = max(distance, LOWEST)
        rounded = distance * LOG2E + ROUND
        power = rounded - ROUND
        r = (distance - power * LN2_HI) - power * LN2_LO
        exp_r = TAYLOR[0]
        exp_r = exp_r * r + TAYLOR[1]
        exp_r = exp_r * r + TAYLOR[2]
        exp_r = exp_r * r + TAYLOR[3]
        exp_r = exp_r * r + TAYLOR[4]
        exp_r = exp_r * r + TAYLOR[5]
        exp_r = exp_r * r + TAYLOR[6]
        exp_r = exp_r * r + TAYLOR[7]
        exp_r = exp_r * r + TAYLOR[8]
        exp_r = exp_r * r + TAYLOR[9]
        exp_r = exp_r * r + TAYLOR[10]
        exp_r = exp_r * r + TAYLOR[11]
        exp_r = exp_r * r + TAYLOR[12]
        exponent = np.float64(rounded).view(np.int64) - ROUND_BITS + (1023 + SHIFT)
        scaled = exp_r * np.int64(exponent << 52).view(np.float64)
        weight[i] = np.float64(scaled + ROUND).view(np.int64) - ROUND_BITS
        bucket[i] = np.int32(distance * -PER_NAT)


@njit
def _histogram(bucket, value, mass):
    mass[:] = 0
    for i in range(bucket.shape[0]):
        mass[bucket[i]] += value[i]


@njit
def _find(logits, value, bucket, mass, mark, members):
    """Return the token that covers unit `mark` (0 <= mark < sum of value) when tokens are laid out in order."""
    b = 0
    while mass[b] <= mark:
        mark -= mass[b]
        b += 1
    n = 0
    for i in range(bucket.shape[0]):
        members[n] = i
        n += (bucket[i] == b) & (value[i] > 0)
    fine = np.empty(64, np.int64)
    while True:
        low = high = logits[members[0]]
        for j in range(1, n):
            low = min(low, logits[members[j]])
            high = max(high, logits[members[j]])
        if low == high or n <= SMALL:
            break
        # split the bucket again; `high` and `low` fall into different parts, so this ends
        fine[:] = 0
        scale = 64.0 / (np.float64(high) - np.float64(low))
        for j in range(n):
            part = min(np.int64((np.float64(high) - np.float64(logits[members[j]])) * scale), 63)
            fine[part] += value[members[j]]
        b = 0
        while fine[b] <= mark:
            mark -= fine[b]
            b += 1
        kept = 0
        for j in range(n):
            i = members[j]
            members[kept] = i
            kept += min(np.int64((np.float64(high) - np.float64(logits[i])) * scale), 63) == b
        n = kept
    if low != high:
        for j in range(1, n):  # stable, so that equal logits stay by lowest id
            i = members[j]
            k = j
            while k > 0 and logits[members[k - 1]] < logits[i]:
                members[k] = members[k - 1]
                k -= 1
            members[k] = i
    j = 0
    while value[members[j]] <= mark:
        mark -= value[members[j]]
        j += 1
    return members[j]


@njit
def _mass_through(logits, weight, last):
    """Return the mass of all tokens up to and including `last`, in order."""
    bound = logits[last]
    total = 0
    for i in range(last + 1):
        total += weight[i] if logits[i] >= bound else 0
    for i in range(last + 1, logits.shape[0]):
        total += weight[i] if logits[i] > bound else 0
    return total


def draw_token(logits, highest, temperature, top_k, top_p, min_p, u, weight, bucket, members, ones):
    """Return the token of `reference.choose`.  weight, bucket, members: scratch [n]; ones: scratch [n] if top_k."""
    n = logits.shape[0]
    mass = np.empty(BUCKETS + 1, np.int64)
    _weigh(logits, highest, temperature, weight, bucket)
    total = 0
    for i in range(n):
        total += weight[i]
    if 0 < top_k < n:
        alive = 0
        for i in range(n):
            ones[i] = np.int64(weight[i] > 0)
            alive += ones[i]
        if top_k < alive:
            _histogram(bucket, ones, mass)
            total = _mass_through(logits, weight, _find(logits, ones, bucket, mass, top_k - 1, members))
    _histogram(bucket, weight, mass)
    kept = total
    if top_p < 1.0:
        needed = min(max(np.int64(math.ceil(top_p * np.float64(total))), 1), total)
        kept = _mass_through(logits, weight, _find(logits, weight, bucket, mass, needed - 1, members))
    if min_p > 0.0:
        least = max(np.int64(math.ceil(min_p * np.float64(1 << SHIFT))), 1)
        above = 0
        for i in range(n):
            above += weight[i] if weight[i] >= least else 0
        kept = min(kept, above)
    mark = min(np.int64(u * np.float64(kept)), kept - 1)
    return _find(logits, weight, bucket, mass, mark, members)


@cache
def drawer():
    """Return `draw_token`, compiled or taken from the cache on disk."""
    with cached_here("draw_token"):
        return njit("i8(f4[::1], f8, f8, i8, f8, f8, f8, i8[::1], i4[::1], i8[::1], i8[::1])", cache=True, nogil=True)(
            draw_token
        )
