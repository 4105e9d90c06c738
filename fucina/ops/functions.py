"""What the ops compute, as functions of plain arrays: no streams, no files, one readable line where one is enough.

`EXACT` lists those that an interpreter calls; `ops/native_bits.py` has the same list with the arithmetic of the
kernels.  All arrays are float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .rope import RopeSpec, rope_table
from .vocabulary import RouterSpec


def product(x: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """x Wᵀ, row by row: x [m, inputs], matrix [outputs, inputs] -> [m, outputs]."""
    return np.stack([np.dot(matrix, row) for row in x]) if len(x) else np.empty((0, len(matrix)), np.float32)


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """Scale the last axis to a root mean square of 1, then by `weight`.  (Zhang and Sennrich 2019.)"""
    mean_square = np.mean(x * x, axis=-1, keepdims=True)
    return x / np.sqrt(mean_square + np.float32(eps)) * weight


def softmax(x: np.ndarray) -> np.ndarray:
    """Probabilities along the last axis; the maximum is taken out first so that exp cannot overflow."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x))."""
    with np.errstate(over="ignore"):  # exp(-x) may reach inf, and 1 / inf is the right 0
        return np.float32(1) / (1 + np.exp(-x))


def softplus(x: np.ndarray) -> np.ndarray:
    """log(1 + exp(x)), written so that nothing overflows and small results are exact."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def softcap(x: np.ndarray, cap: float) -> np.ndarray:
    """cap · tanh(x / cap)."""
    return np.float32(cap) * np.tanh(x / np.float32(cap))


def silu(x: np.ndarray) -> np.ndarray:
    """x · sigmoid(x)."""
    with np.errstate(over="ignore"):  # exp(-x) may reach inf, and x / inf is the right 0
        return x / (1 + np.exp(-x))


def gelu(x: np.ndarray) -> np.ndarray:
    """The tanh form of the Gaussian error linear unit."""
    return np.float32(0.5) * x * (1 + np.tanh(np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x**3)))


def swiglu(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """silu(gate) · up.  (Shazeer 2020, arXiv 2002.05202.)"""
    return silu(gate) * up


def geglu(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """gelu(gate) · up."""
    return gelu(gate) * up


def rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, pairing: str) -> np.ndarray:
    """Turn the first 2·len(cos) numbers of each head.  x [heads, head_dim]; cos, sin [dims / 2]."""
    half = len(cos)
    out = x.copy()
    if pairing == "interleaved":
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    else:
        first, second = slice(0, half), slice(half, 2 * half)
    a, b = x[:, first], x[:, second]
    out[:, first] = a * cos - b * sin
    out[:, second] = a * sin + b * cos
    return out


def rope(x: np.ndarray, positions: np.ndarray, spec: RopeSpec) -> np.ndarray:
    """Turn every head of every row.  x [m, heads, head_dim]"""
    out = np.empty_like(x)
    for i, position in enumerate(positions):
        cos, sin = rope_table(spec, position, position + 1)
        out[i] = rotate(x[i], cos[0], sin[0], spec.pairing)
    return out


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float) -> np.ndarray:
    """Attention of one row: q [heads, k_dim], k [kv_heads, n, k_dim], v [kv_heads, n, v_dim] -> [heads, v_dim]."""
    kv_heads = len(k)
    grouped = q.reshape(kv_heads, -1, q.shape[-1])  # [kv_heads, heads / kv_heads, k_dim]
    scores = grouped @ k.transpose(0, 2, 1) * np.float32(scale)  # [kv_heads, group, n]
    return (softmax(scores) @ v).reshape(len(q), -1)


def conv(window: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """One row of a causal convolution: window [taps, n], its own input last; kernel [n, taps] -> [n]."""
    return (window * kernel.T).sum(axis=0)


def delta_rule(
    s: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, decay: np.ndarray, beta: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """One row of the gated delta rule: the matrices after it [heads, k_dim, v_dim], and its output [heads, v_dim].

    s : the matrices before it.  q, k [heads, k_dim], v [heads, v_dim], decay, beta [heads].
    """
    s = np.exp(decay)[:, None, None] * s
    known = np.einsum("hk,hkv->hv", k, s)  # what the matrix answers to this key
    s = s + k[:, :, None] * (beta[:, None] * (v - known))[:, None, :]
    return s, np.einsum("hk,hkv->hv", q, s)


def choose(
    scores: np.ndarray, spec: RouterSpec, bias: np.ndarray | None = None, scales: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Experts of each row of scores [m, experts], best first, and their weights, both [m, top_k]; see `Ops.route`."""
    odds = softmax(scores) if spec.gating == "softmax" else sigmoid(scores)
    merit = of_best_groups(odds if bias is None else odds + bias, spec)
    best = np.argsort(-merit, axis=-1, kind="stable")[:, : spec.top_k]
    weights = np.take_along_axis(odds, best, axis=-1)
    if spec.normalise:
        weights = weights / np.maximum(weights.sum(axis=-1, keepdims=True), np.float32(2**-14))
    weights = weights * np.float32(spec.scale)
    return best, weights if scales is None else weights * scales[best]


def of_best_groups(merit: np.ndarray, spec: RouterSpec) -> np.ndarray:
    """What a row chooses by, -inf for the experts of groups that it does not use.  merit [m, experts]"""
    if spec.groups == 1:
        return merit
    groups = merit.reshape(len(merit), spec.groups, -1)  # [m, groups, experts of one]
    two = np.sort(groups, axis=-1)[..., -2:].sum(axis=-1)
    used = np.argsort(-two, axis=-1, kind="stable")[:, : spec.groups_used]
    kept = np.full_like(groups, -np.inf)
    np.put_along_axis(kept, used[..., None], np.take_along_axis(groups, used[..., None], axis=1), axis=1)
    return kept.reshape(merit.shape)


def weighted_sum(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Σ weights[i] · rows[i], from the first to the last.  rows [n, dim], weights [n] -> [dim]"""
    total = np.zeros(rows.shape[1], np.float32)
    for row, weight in zip(rows, weights, strict=True):
        total = total + weight * row
    return total


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, first: int) -> np.ndarray:
    """`attention`; `first`, the position of the first key, does not matter to the mathematics."""
    return attention(q, k, v, scale)


@dataclass(frozen=True, slots=True)
class Functions:
    """What the ops compute with.  Each has the signature of the function of that name in this file.

    activations : "f32", or "q8" if products round their input to 8 bits.
    unpack : (raw uint8 [rows, bytes], format) -> what `product` takes for a matrix, or None for a float32 array.
    """

    activations: str = "f32"
    unpack: Callable[[np.ndarray, str], Any] | None = None
    product: Callable[[np.ndarray, Any], np.ndarray] = product
    rms_norm: Callable[..., np.ndarray] = rms_norm
    rope: Callable[..., np.ndarray] = rope
    attend: Callable[..., np.ndarray] = attend
    sigmoid: Callable[[np.ndarray], np.ndarray] = sigmoid
    softplus: Callable[[np.ndarray], np.ndarray] = softplus
    softcap: Callable[[np.ndarray, float], np.ndarray] = softcap
    swiglu: Callable[[np.ndarray, np.ndarray], np.ndarray] = swiglu
    geglu: Callable[[np.ndarray, np.ndarray], np.ndarray] = geglu
    conv: Callable[[np.ndarray, np.ndarray], np.ndarray] = conv
    delta_rule: Callable[..., tuple[np.ndarray, np.ndarray]] = delta_rule
    choose: Callable[..., tuple[np.ndarray, np.ndarray]] = choose
    weighted_sum: Callable[[np.ndarray, np.ndarray], np.ndarray] = weighted_sum


EXACT = Functions()
