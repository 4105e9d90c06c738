"""What a probability is to the sampler: an integer weight, so that sums are exact in any order.

The best token of a row weighs exactly 2**40, a token `d` below it in logits round(exp(-d / temperature) * 2**40).
Sums of such integers do not depend on the order of summation.  So a sampler that sorts everything
(`fucina.sampling.reference`) and one that never sorts (`fucina.kernels.draw`) give the same token.  So does any machine:
exp is the polynomial below, in plain float64 operations.  What the rounding drops is below 2**-41 of the best token's probability, far under the rounding
of the float32 logits themselves.
"""

import math

import numpy as np

SHIFT = 40  # the best token weighs 2**SHIFT
MAX_VOCAB = 1 << 22  # so that the sum of all weights stays below 2**63
LOWEST = -40.0  # exp(-40) * 2**40 rounds to 0

LOG2E = 1.4426950408889634
LN2_HI = float.fromhex("0x1.62e42feep-1")  # 32 bits: its product with a small integer is exact
LN2_LO = float.fromhex("0x1.a39ef35793c76p-33")
ROUND = 1.5 * 2.0**52  # adding it rounds a float64 to an integer, held in the low bits
TAYLOR = tuple(1.0 / math.factorial(k) for k in range(12, -1, -1))  # enough for |r| <= ln(2)/2 in float64


def weights(logits: np.ndarray, temperature: float) -> np.ndarray:
    """Return int64 [n]: the weight of each logit of a row.

    Parameters
    ----------
    logits : float32 [n]
        At least one finite, no NaN, no +inf.
    temperature : float
        > 0.
    """
    with np.errstate(over="ignore"):  # a tiny temperature: -inf, and weight 0, is the right answer
        distance = (logits.astype(np.float64) - np.float64(logits.max())) / temperature
    distance = np.maximum(distance, LOWEST)
    power = (distance * LOG2E + ROUND) - ROUND  # e^d = 2^power * e^r
    r = (distance - power * LN2_HI) - power * LN2_LO
    exp_r = np.full_like(r, TAYLOR[0])
    for coefficient in TAYLOR[1:]:
        exp_r = exp_r * r + coefficient
    scaled = np.ldexp(exp_r, power.astype(np.int64) + SHIFT)
    return np.rint(scaled).astype(np.int64)
