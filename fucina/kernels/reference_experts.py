"""Routing to experts once more in NumPy, with the bits of the kernels; see `reference`."""

from __future__ import annotations

import numpy as np

from .experts import LEAST_SHARE
from .reference import F, exp, fma, fold, sigmoid


def choose(
    scores: np.ndarray,
    top_k: int,
    gating: str = "softmax",
    normalise: bool = True,
    scale: float = 1.0,
    groups: int = 1,
    groups_used: int = 1,
    bias: np.ndarray | None = None,
    scales: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """The experts of each row, best first, int64 [m, top_k], and their weights, float32 [m, top_k]."""
    odds = softmax(scores) if gating == "softmax" else sigmoid(scores)
    merit = odds.copy() if bias is None else odds + bias
    if groups > 1:
        by_group = merit.reshape(len(merit), groups, -1)
        best_two = np.sort(by_group, axis=2)[..., -2:]
        order = np.argsort(-(best_two[..., 1] + best_two[..., 0]), axis=1, kind="stable")
        for row, unused in zip(by_group, order[:, groups_used:], strict=True):
            row[unused] = -np.inf
        merit = by_group.reshape(merit.shape)
    best = np.argsort(-merit, axis=1, kind="stable")[:, :top_k]
    weights, share = np.take_along_axis(odds, best, 1), np.zeros(len(odds), F)
    for i in range(top_k):
        share = share + weights[:, i]
    if normalise:
        weights = weights / np.maximum(share, F(LEAST_SHARE))[:, None]
    weights = weights * F(scale)
    return best, weights if scales is None else weights * scales[best]


def softmax(scores: np.ndarray) -> np.ndarray:
    """Of each row: float32 [m, n]."""
    m, n = scores.shape
    e = np.zeros((m, -(-n // 8) * 8), F)
    e[:, :n] = exp(scores - scores.max(1, keepdims=True))
    total = np.zeros((m, 8), F)
    for part in np.moveaxis(e.reshape(m, -1, 8), 1, 0):
        total = total + part
    return e[:, :n] / fold(total)[:, None]


def weighted_sum(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Σ weights[i] · rows[i], i ascending: float32 [n, dim], [n] -> [dim]."""
    total = np.zeros(rows.shape[1], F)
    for row, weight in zip(rows, weights, strict=True):
        total = fma(weight, row, total)
    return total
