"""What the oracles share, in float64, over a whole text at once: nothing of the engine, no cache, no rows."""

from __future__ import annotations

import numpy as np


def norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def swiglu(h: np.ndarray, gate: np.ndarray, up: np.ndarray, down: np.ndarray) -> np.ndarray:
    g = h @ gate.T
    return (g * sigmoid(g) * (h @ up.T)) @ down.T


def rope(x: np.ndarray, base: float = 10_000.0) -> np.ndarray:
    """x [time, heads, dims], number i turned with number i + dims / 2, as complex numbers."""
    half = x.shape[-1] // 2
    turn = np.exp(1j * np.arange(len(x))[:, None] * base ** (-np.arange(half) / half))[:, None, :]
    z = (x[..., :half] + 1j * x[..., half:]) * turn
    return np.concatenate([z.real, z.imag], -1)


def look(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, window: int = 0) -> np.ndarray:
    """q, k [time, heads, k_dim], v [time, heads, v_dim] -> [time, heads, v_dim], causal."""
    scores = np.einsum("thd,shd->hts", q, k) * scale
    t, s = np.arange(len(q))[:, None], np.arange(len(q))[None, :]
    seen = (s <= t) & ((s > t - window) if window else True)
    e = np.where(seen, np.exp(scores - np.where(seen, scores, -np.inf).max(-1, keepdims=True)), 0)
    return np.einsum("hts,shd->thd", e / e.sum(-1, keepdims=True), v)


def attention(
    h: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, heads: int, kv_heads: int, window: int = 0
) -> np.ndarray:
    """Grouped-query attention with RoPE over all numbers: [time, dim] -> [time, heads · head_dim]."""
    q, k, v = ((h @ m.T).reshape(len(h), n, -1) for m, n in ((q, heads), (k, kv_heads), (v, kv_heads)))
    k, v = (np.repeat(t, heads // kv_heads, axis=1) for t in (rope(k), v))
    return look(rope(q), k, v, q.shape[-1] ** -0.5, window).reshape(len(h), -1)
