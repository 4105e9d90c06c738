"""The arithmetic of the native interpreter for `Naive`: same quantisation, same order of sums, same bits.

`EXACT` computes what the mathematics says; its last bits depend on NumPy and its BLAS.  With `NATIVE_BITS` the same
interpreter calls the NumPy twins of the compiled kernels (`fucina.kernels.reference`), so that a whole model can be
compared bit for bit: `fucina.load(path, backend="naive", activations="q8").logits(ids)` equals what the native backend
returns.  Slow: made to be compared with.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from ..cache.parts import CHUNK
from ..kernels import reference, reference_experts
from . import functions
from .rope import RopeSpec, rope_table
from .vocabulary import RouterSpec


def product(x: np.ndarray, matrix: Any) -> np.ndarray:
    """x Wᵀ, activations of quantised products rounded to int8 blocks; in float32 for a matrix decoded by others."""
    if isinstance(matrix, np.ndarray):
        return functions.product(x, matrix)
    return reference.product(x, matrix) if len(x) else np.empty((0, matrix.integers.shape[-2]), np.float32)


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """Norm of each head.  x [m, heads, n]"""
    m, heads, n = x.shape
    return reference.rms_norm(x.reshape(m, heads * n), weight, eps, heads).reshape(x.shape)


def rope(x: np.ndarray, positions: np.ndarray, spec: RopeSpec) -> np.ndarray:
    """Turn every head of every row.  x [m, heads, head_dim]"""
    m, heads, _ = x.shape
    table = np.concatenate(rope_table(spec, 0, int(positions.max()) + 1), axis=1)  # [positions, cos | sin]
    return reference.rope(x.reshape(m, -1), heads, spec.dims, table, positions, spec.pairing).reshape(x.shape)


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, first: int) -> np.ndarray:
    """Attention of one row, in chunks that begin at multiples of 64 positions.

    q [heads, k_dim], k [kv_heads, n, k_dim], v [kv_heads, n, v_dim] of positions first … -> [heads, v_dim].
    """
    before = first % CHUNK  # positions of the first chunk that are not seen
    keys, values = (np.pad(t, ((0, 0), (before, 0), (0, 0))) for t in (k, v))
    group, n = len(q) // len(k), k.shape[1]
    position = before + n - 1
    rows = [reference.attention(keys[h // group], values[h // group], q[h], position, scale, n) for h in range(len(q))]
    return np.stack(rows)


def choose(
    scores: np.ndarray, spec: RouterSpec, bias: np.ndarray | None = None, scales: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Experts of each row of scores [m, experts], and their weights."""
    return reference_experts.choose(scores, **asdict(spec), bias=bias, scales=scales)


NATIVE_BITS = functions.Functions(
    activations="q8",
    unpack=reference.unpack,
    product=product,
    rms_norm=rms_norm,
    rope=rope,
    attend=attend,
    sigmoid=reference.sigmoid,
    softplus=reference.softplus,
    softcap=reference.softcap,
    swiglu=reference.swiglu,
    geglu=reference.geglu,
    conv=reference.conv,
    delta_rule=reference.delta_rule,
    choose=choose,
    weighted_sum=reference_experts.weighted_sum,
)
