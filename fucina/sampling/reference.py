"""The sampler's definition in readable NumPy: sort everything, cut, draw.

`Sampler` gives the same tokens faster; tests compare the two.  Chapter 04 and the figures read from here.
"""

import math
from collections.abc import Sequence

import numpy as np

from ..kernels.softmax_weights import SHIFT, weights
from .options import SamplerOptions


def penalise(logits: np.ndarray, history: Sequence[int], options: SamplerOptions) -> None:
    """Apply repeat, frequency and presence penalties to `logits` (float32 [n]) in place.

    Each distinct token of the last `repeat_last_n` of `history` once; ids outside the row are ignored.
    """
    if not options.penalises or len(history) == 0:
        return
    window = np.asarray(history[-options.repeat_last_n :], dtype=np.int64)
    tokens, counts = np.unique(window, return_counts=True)
    inside = (tokens >= 0) & (tokens < len(logits))
    tokens, counts = tokens[inside], counts[inside]
    with np.errstate(over="ignore", invalid="ignore"):  # what does not stay finite is refused by the sampler
        seen = logits[tokens].astype(np.float64)
        seen = np.where(seen > 0, seen / options.repeat_penalty, seen * options.repeat_penalty)
        seen -= counts * options.frequency_penalty + options.presence_penalty
        logits[tokens] = seen


def sieve(logits: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return a copy of a row, float32 [n], with -inf at every token that a mask (uint32 [words]) does not allow.

    Bit i % 32 of word i // 32 is token i's; what the mask has no bit for is not allowed.
    """
    bits = (mask[:, None] >> np.arange(32, dtype=np.uint32) & 1).astype(bool).ravel()[: len(logits)]
    row = np.full_like(logits, -np.inf)
    row[: len(bits)][bits] = logits[: len(bits)][bits]
    return row


def candidates(logits: np.ndarray, options: SamplerOptions) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens that may be drawn, best first (equal logits by lowest id), and their weights.

    Parameters
    ----------
    logits : float32 [n]
        After processors and penalties.
    options : SamplerOptions
        With temperature > 0.

    Returns
    -------
    ids : int64 [kept]
    weight : int64 [kept]
        Probabilities are weight / weight.sum().
    """
    ids = np.lexsort((np.arange(len(logits)), -logits))  # by logit downwards, then by id upwards
    if options.top_k > 0:
        ids = ids[: options.top_k]
    weight = weights(logits, options.temperature)[ids]
    running = np.cumsum(weight)
    total = int(running[-1])
    keep = len(ids)
    if options.top_p < 1.0:
        needed = min(max(math.ceil(options.top_p * float(total)), 1), total)
        keep = int(np.searchsorted(running, needed)) + 1  # the entry that reaches the mass belongs to the nucleus
    if options.min_p > 0.0:
        least = max(math.ceil(options.min_p * float(1 << SHIFT)), 1)
        keep = min(keep, int(np.count_nonzero(weight >= least)))
    return ids[:keep], weight[:keep]


def choose(logits: np.ndarray, options: SamplerOptions, u: float) -> int:
    """Return the token that the uniform draw `u` in [0, 1) selects (temperature > 0)."""
    ids, weight = candidates(logits, options)
    running = np.cumsum(weight)
    total = int(running[-1])
    mark = min(int(u * float(total)), total - 1)
    return int(ids[np.searchsorted(running, mark, side="right")])  # first whose running sum passes the mark


def distribution(logits: np.ndarray, options: SamplerOptions, history: Sequence[int] = ()) -> np.ndarray:
    """Return float64 [n]: the probability with which each token is drawn under these settings.

    Greedy settings give 1.0 to one token.  `logits` is left as it is.
    """
    row = np.array(logits, dtype=np.float32)
    penalise(row, history, options)
    probability = np.zeros(len(row))
    if options.greedy:
        probability[int(np.argmax(row))] = 1.0
    else:
        ids, weight = candidates(row, options)
        probability[ids] = weight / weight.sum()
    return probability
