"""Weights of the tokens of a row, and sums of them: the loops over many tokens of `fucina.kernels.draw`.

Each is written so that it becomes vector code: no branch inside, and sums instead of answers.  What a weight is, and the
same computation in NumPy, is in `softmax_weights`.  Private: nothing here checks its arguments.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from .softmax_weights import LN2_HI, LN2_LO, LOG2E, LOWEST, ROUND, SHIFT, TAYLOR

BLOCK = 64  # logits that are compared, or added up in int32, together
ROUND_BITS = int(np.float64(ROUND).view(np.int64))

# the bounds of a tail's mass: float32, a short series, int32 sums of 2**-24
TAIL_SHIFT = 24
TAIL_ERROR = 2.0**-16  # of each term: the series drops less than 2**-18, roundings less than 2**-17
TAIL_TEMPERATURES = (2.0**-10, 2.0**10)  # of others nothing is claimed
LEAST_POWER = np.float32(-30.0)  # 2**-30 is nothing in units of 2**-24
EXP2 = tuple(np.float32(math.log(2.0) ** k / math.factorial(k)) for k in range(5, -1, -1))
ROUND32 = np.float32(1.5 * 2.0**23)
ROUND32_BITS = np.int32(ROUND32.view(np.int32))
ZERO = np.float32(0.0)


@njit
def _weight(logit, highest, temperature):
    """Return the weight of one token, as `softmax_weights.weights` defines it."""
    distance = max((np.float64(logit) - highest) / temperature, LOWEST)
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
    return np.float64(scaled + ROUND).view(np.int64) - ROUND_BITS


@njit
def weigh(logits, highest, temperature, weight):
    """Fill weight [n] with the weights of logits [n]; return their sum."""
    total = 0
    for i in range(logits.shape[0]):
        weight[i] = _weight(logits[i], highest, temperature)
        total += weight[i]
    return total


@njit
def _tail_part(logit, low, per_temperature):
    """Return 2**24 * exp((logit - low) / temperature), nearly, towards zero; 0 for a logit above `low`."""
    power = (logit - low) * per_temperature
    power = power if power > LEAST_POWER else LEAST_POWER
    rounded = power + ROUND32
    r = power - (rounded - ROUND32)
    part = EXP2[0]
    part = part * r + EXP2[1]
    part = part * r + EXP2[2]
    part = part * r + EXP2[3]
    part = part * r + EXP2[4]
    part = part * r + EXP2[5]
    exponent = np.int32(np.float32(rounded).view(np.int32) - ROUND32_BITS + np.int32(127 + TAIL_SHIFT))
    part = part * np.int32(exponent << np.int32(23)).view(np.float32)
    return np.int32(part if logit <= low else ZERO)


@njit
def tail_bounds(logits, low, highest, temperature):
    """Return two integers: the weights of all tokens with logits of at most `low` sum to one of them, or to one between.

    low : float32, below highest.  temperature : within TAIL_TEMPERATURES.
    """
    per_temperature = np.float32(LOG2E / temperature)
    blocks = logits.shape[0] // BLOCK
    total = np.int64(0)
    for b in range(blocks):
        parts = np.int32(0)
        for j in range(BLOCK):
            parts += _tail_part(logits[b * BLOCK + j], low, per_temperature)
        total += parts
    for i in range(blocks * BLOCK, logits.shape[0]):
        total += _tail_part(logits[i], low, per_temperature)
    unit = math.exp((np.float64(low) - highest) / temperature) * 2.0 ** (SHIFT - TAIL_SHIFT)
    rounding = logits.shape[0]  # each part was cut to an integer, each weight was rounded to one
    least = total * (1.0 - TAIL_ERROR) * unit - rounding
    most = (total + rounding) * (1.0 + TAIL_ERROR) * unit + rounding
    return max(np.int64(least), 0), np.int64(most) + 1


@njit
def gather(logits, low, high, ids, near):
    """Fill ids and near with the tokens whose logits are in (low, high], by id, and their logits; return how many."""
    n, blocks = 0, logits.shape[0] // BLOCK
    inside = np.empty(blocks, np.int32)
    for b in range(blocks):
        count = np.int32(0)
        for j in range(BLOCK):
            count += np.int32((logits[b * BLOCK + j] > low) & (logits[b * BLOCK + j] <= high))
        inside[b] = count
    for b in range(blocks):
        if inside[b]:
            for i in range(b * BLOCK, b * BLOCK + BLOCK):
                ids[n] = i
                near[n] = logits[i]
                n += (logits[i] > low) & (logits[i] <= high)
    for i in range(blocks * BLOCK, logits.shape[0]):
        if low < logits[i] <= high:
            ids[n] = i
            near[n] = logits[i]
            n += 1
    return n


@njit
def between(logits, value, low, high):
    """Return how many logits are in (low, high], and the sum of their values."""
    n, mass = np.int64(0), np.int64(0)
    for i in range(logits.shape[0]):
        inside = np.int64((logits[i] > low) & (logits[i] <= high))
        n += inside
        mass += -inside & value[i]
    return n, mass


@njit
def count_above(logits, low):
    """Return how many logits are above `low`."""
    n = np.int32(0)
    for i in range(logits.shape[0]):
        n += np.int32(logits[i] > low)
    return np.int64(n)


@njit
def mass_through(logits, weight, last):
    """Return the mass of all tokens up to and including `last`: those with higher logits, and equal ones by id."""
    bound, mass = logits[last], 0
    for i in range(logits.shape[0]):
        before = np.int64((logits[i] > bound) | ((logits[i] == bound) & (i <= last)))
        mass += -before & weight[i]
    return mass


@njit
def mass_above(weight, least):
    """Return the sum of the weights that are at least `least`."""
    mass = 0
    for i in range(weight.shape[0]):
        mass += -np.int64(weight[i] >= least) & weight[i]
    return mass
