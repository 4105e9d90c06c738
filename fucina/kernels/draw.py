"""The draw of `fucina.sampling.reference.choose`, compiled and without a sort of the vocabulary.

Tokens are laid out in one order (logit downwards, equal logits by lowest id), each as long as its weight.  Every set that a
cut keeps is a prefix of this order, so its mass alone describes it, and every question is the same one: which token
covers unit `mark` of the mass?  The answer mostly lies near the best token: only *candidates*, the tokens whose logits
reach a bound, are looked at, and the bound falls until their mass covers the mark.  The token is then found by halving the
range of logits that it must lie in.

Weights are integers (see `softmax_weights`): sums are exact in any order, which makes this equal to the sorted definition,
token for token.  Of all sums, the mass of the whole vocabulary is the dearest.  Two bounds of it are cheap, and nearly
always the token is the same for both, and so for all masses between them; if it is not, the mass is computed.

Private: nothing here checks its arguments; `Sampler` does.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numba import njit

from .compile import cached_here
from .masses import (
    TAIL_TEMPERATURES,
    between,
    count_above,
    gather,
    mass_above,
    mass_through,
    tail_bounds,
    weigh,
)
from .softmax_weights import SHIFT

NEAR = (4.0, 8.0, 10.0, 12.0, 16.0)  # bounds of the candidates, in temperatures below the best logit; then all tokens
ALL = len(NEAR)
TAIL = 1  # tokens below the candidates of this level are a tail whose mass has bounds
MANY = 12  # where one token in so many is a candidate, looking at all of them costs no more
NOTHING = 28.43  # exp(-28.43) * 2**40 rounds to 0: tokens so many temperatures below the best have no weight
SMALL = 64  # so few tokens are sorted directly
FURTHEST = float(np.finfo(np.float32).min)
UNDECIDED = -1


@njit
def _find(logits, value, low, high, mark, members, near):
    """Return the index of the token that covers unit `mark` when the tokens in (low, high] are laid out in order.

    logits, value : [n], by id.  mark : 0 <= mark < sum of value in (low, high].  members, near : scratch [n].
    """
    n = logits.shape[0]
    while n > SMALL:
        middle = np.float32(0.5 * (max(np.float64(low), FURTHEST) + np.float64(high)))
        if middle <= low or middle >= high:
            break  # neighbours: all these logits are equal
        above, mass = between(logits, value, middle, high)
        if mark < mass:
            low, n = middle, above
        else:
            mark, high, n = mark - mass, middle, n - above
    n = gather(logits, low, high, members, near)
    if n <= SMALL:
        for j in range(1, n):  # stable, so that equal logits stay by lowest id
            i, x, k = members[j], near[j], j
            while k > 0 and near[k - 1] < x:
                members[k], near[k] = members[k - 1], near[k - 1]
                k -= 1
            members[k], near[k] = i, x
    j = 0
    while value[members[j]] <= mark:
        mark -= value[members[j]]
        j += 1
    return members[j]


@njit
def _below(highest, distance):
    """Return a float32 below `highest - distance`, and below `highest` in any case; -inf where there is no other."""
    return np.nextafter(np.float32(highest - distance), np.float32(-np.inf))


@njit
def _candidates(logits, highest, temperature, level, ids, near, weight, whole):
    """Return the candidates of a level: their logits, weights and mass, and a logit just below theirs.

    ids is filled with their ids, unless they are all tokens.
    """
    if level == ALL:
        return logits, whole, weigh(logits, highest, temperature, whole), _below(highest, NOTHING * temperature)
    low = _below(highest, NEAR[level] * temperature)
    n = gather(logits, low, np.float32(highest), ids, near)
    return near[:n], weight[:n], weigh(near[:n], highest, temperature, weight[:n]), low


@njit
def _wider(level, candidates, vocab):
    """Return the level to look at next."""
    return ALL if candidates * MANY > vocab else level + 1


@njit
def _decide(
    exact, logits, highest, temperature, top_k, top_p, min_p, u, ids, near, weight, whole, ones, members, order
):
    """Return the token, or UNDECIDED where it takes the exact mass of all tokens to tell; see `draw_token`."""
    vocab, best = logits.shape[0], np.float32(highest)
    whole_row = not 0 < top_k < vocab and (top_p < 1.0 or min_p == 0.0)  # the mass of all tokens is asked for
    level = (ALL if exact else TAIL) if whole_row else 0
    if level == TAIL and top_p < 1.0 and count_above(logits, _below(highest, NEAR[TAIL] * temperature)) * MANY > vocab:
        return np.int64(UNDECIDED)  # a flat row: the nucleus reaches beyond its candidates
    some, weights, mass, low = _candidates(logits, highest, temperature, level, ids, near, weight, whole)

    # kept: bounds of the mass of what may be drawn; equal once it is known; negative before
    kept = kept_most = np.int64(-1)
    if 0 < top_k < vocab:
        while some.shape[0] < top_k and level < ALL:
            level = _wider(level, some.shape[0], vocab)
            some, weights, mass, low = _candidates(logits, highest, temperature, level, ids, near, weight, whole)
        kept = mass
        if top_k < between(some, ones, low, best)[0]:
            kept = mass_through(some, weights, _find(some, ones, low, best, top_k - 1, members, order))
        kept_most = kept
    elif whole_row:
        kept = kept_most = mass
        if level < ALL:
            tail, tail_most = tail_bounds(logits, low, highest, temperature)
            kept, kept_most = mass + tail, mass + tail_most
    if top_p < 1.0:
        needed = min(max(np.int64(math.ceil(top_p * np.float64(kept))), np.int64(1)), kept)
        needed_most = min(max(np.int64(math.ceil(top_p * np.float64(kept_most))), np.int64(1)), kept_most)
        while needed_most > mass:
            level = _wider(level, some.shape[0], vocab)
            if level == ALL:
                return np.int64(UNDECIDED)
            some, weights, mass, low = _candidates(logits, highest, temperature, level, ids, near, weight, whole)
        kept = mass_through(some, weights, _find(some, weights, low, best, needed - 1, members, order))
        if needed_most > kept:
            return np.int64(UNDECIDED)
        kept_most = kept
    if min_p > 0.0:
        least = max(np.int64(math.ceil(min_p * np.float64(1 << SHIFT))), 1)
        while kept < 0 and level < ALL and weights.min() >= least:  # those outside weigh no more than those inside
            level = _wider(level, some.shape[0], vocab)
            some, weights, mass, low = _candidates(logits, highest, temperature, level, ids, near, weight, whole)
        above = mass_above(weights, least)
        kept = kept_most = above if kept < 0 else min(kept, above)
    mark = min(np.int64(u * np.float64(kept)), kept - 1)
    mark_most = min(np.int64(u * np.float64(kept_most)), kept_most - 1)
    while mark_most >= mass:
        level = _wider(level, some.shape[0], vocab)
        if level == ALL:
            return np.int64(UNDECIDED)
        some, weights, mass, low = _candidates(logits, highest, temperature, level, ids, near, weight, whole)
    token = _find(some, weights, low, best, mark, members, order)
    if mark_most > mark and mark_most >= mass_through(some, weights, token):
        return np.int64(UNDECIDED)
    return np.int64(token if level == ALL else ids[token])


def draw_token(logits, highest, temperature, top_k, top_p, min_p, u, ids, near, weight, whole, ones, members, order):
    """Return the token of `reference.choose`.

    ids, members : int32 scratch [vocab].  near, order : float32.  weight, whole : int64.  ones : int64 [vocab], all 1.
    """
    for exact in (not TAIL_TEMPERATURES[0] <= temperature <= TAIL_TEMPERATURES[1], True):
        token = _decide(
            exact, logits, highest, temperature, top_k, top_p, min_p, u, ids, near, weight, whole, ones, members, order
        )
        if token != UNDECIDED:
            break
    return token


@cache
def drawer():
    """Return `draw_token`, compiled or taken from the cache on disk."""
    scratch = "i4[::1], f4[::1], i8[::1], i8[::1], i8[::1], i4[::1], f4[::1]"
    with cached_here("draw_token"):
        return njit(f"i8(f4[::1], f8, f8, i8, f8, f8, f8, {scratch})", cache=True, nogil=True)(draw_token)
