"""The step (and floor) with which a part of a block is stored best: by least squares, over several ways to round.

For given integers q, the step that makes Σ (step · q - x)² smallest is a quotient of two sums, and so are step and floor
together.  But q depends on the step.  So a range of first guesses is tried: each gives q by rounding, and q gives its best
step.  The one with the smallest error stays.

Arrays are [n, parts]: the n weights of a part lie along the first axis, so that NumPy goes through many parts at once.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def ratio(numerator: np.ndarray | np.floating, denominator: np.ndarray) -> np.ndarray:
    """numerator / denominator, 0 where the denominator is 0 (a block of zeros has no scale)."""
    over, under = np.broadcast_arrays(numerator, denominator)
    return np.divide(over, under, out=np.zeros(over.shape, np.float32), where=under != 0)


def widest(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """The element that is farthest from zero, with its sign; the axis stays, with length 1."""
    low, high = x.min(axis, keepdims=True), x.max(axis, keepdims=True)
    return np.where(-low > high, low, high)


def rounded(x: np.ndarray, inverse: np.ndarray, low: int, high: int) -> np.ndarray:
    """The integers low..high nearest to x · inverse, as float32."""
    q = x * inverse
    np.rint(q, out=q)
    return np.clip(q, low, high, out=q)


def step_of(x: np.ndarray, low: int, high: int, guesses: Iterable[float]) -> np.ndarray:
    """Steps [parts] such that x [n, parts] is near step · q, q in low..high.

    A guess g lets the weight that is farthest from zero become `low - g`, before it is cut to `low`; a positive g makes
    the step finer than that weight needs.
    """
    peak = widest(x, 0)
    best_gain = np.full(x.shape[1], -1, np.float32)
    best = np.zeros(x.shape[1], np.float32)
    for guess in guesses:
        q = rounded(x, ratio(np.float32(low - guess), peak), low, high)
        xq, qq = np.einsum("ij,ij->j", x, q), np.einsum("ij,ij->j", q, q)
        step = ratio(xq, qq)
        gain = step * xq  # by how much the squared error is less than that of zeros
        better = gain > best_gain
        np.copyto(best, step, where=better)
        np.copyto(best_gain, gain, where=better)
    return best


def step_and_floor(x: np.ndarray, top: int, guesses: Iterable[float]) -> tuple[np.ndarray, np.ndarray]:
    """Steps and floors [parts], none negative, such that x [n, parts] is near step · q - floor, q in 0..top.

    A guess g spreads the range of the weights over top + g steps; what is beyond 0..top is cut off.
    """
    n = np.float32(len(x))
    low, high = np.minimum(x.min(0), 0), np.maximum(x.max(0), 0)
    total = x.sum(0)
    best_gain = np.full(x.shape[1], -np.inf, np.float32)
    best = np.zeros(x.shape[1], np.float32), -low
    for guess in guesses:
        inverse = ratio(np.float32(top + guess), high - low)
        q = rounded(x - low, inverse, 0, top)
        xq, qq, sum_q = np.einsum("ij,ij->j", x, q), np.einsum("ij,ij->j", q, q), q.sum(0)
        step = ratio(n * xq - total * sum_q, n * qq - sum_q * sum_q)
        floor = (step * sum_q - total) / n
        below = floor < 0  # then the best line through zero
        step, floor = np.where(below, ratio(xq, qq), step), np.where(below, np.float32(0), floor)
        # what the squared error is less than that of zeros
        gain = step * (2 * xq - step * qq) + floor * (2 * step * sum_q - 2 * total - n * floor)
        better = (gain > best_gain) & (step >= 0)
        for mine, new in zip((*best, best_gain), (step, floor, gain), strict=True):
            np.copyto(mine, new, where=better)
    return best
