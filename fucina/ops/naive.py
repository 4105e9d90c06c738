"""The readable interpreter: every op of the vocabulary in plain NumPy, one after the other.

A family's forward calls these ops; each returns a new array.  Rows are multiplied one by one, so that a row's result
does not depend on how many rows share the pass.  This is the mathematical reference: weights become float32, and nothing
is rounded on the way but what enters the cache.  `twin.py` is the same interpreter with the native one's arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..models.weights import Weight
from .learner import checked
from .rope import RopeSpec, rope_table
from .rows import RowBatch


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """Scale the last axis to a root mean square of 1, then by `weight`.  (Zhang and Sennrich 2019.)"""
    mean_square = np.mean(x * x, axis=-1, keepdims=True)
    return x / np.sqrt(mean_square + np.float32(eps)) * weight


def softmax(x: np.ndarray) -> np.ndarray:
    """Probabilities along the last axis; the maximum is taken out first so that exp cannot overflow."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def silu(x: np.ndarray) -> np.ndarray:
    """x · sigmoid(x)."""
    with np.errstate(over="ignore"):  # exp(-x) may reach inf, and x / inf is the right 0
        return x / (1 + np.exp(-x))


def gelu(x: np.ndarray) -> np.ndarray:
    """The tanh form of the Gaussian error linear unit."""
    return np.float32(0.5) * x * (1 + np.tanh(np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x**3)))


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


class Naive:
    """Interpreter of the op vocabulary in NumPy.

    Parameters
    ----------
    forward, config, weights : of the family (see `fucina.models`).
    dequantize : learner's decoders by format name, e.g. {"Q4_1": f}; f(raw uint8 [rows, bytes]) -> float32 [rows, cols].
    """

    name = "naive"
    activations = "f32"
    threads = 1

    def __init__(
        self,
        forward: Callable[..., np.ndarray],
        config: Any,
        weights: Any,
        dequantize: dict[str, Callable[[np.ndarray], np.ndarray]] | None = None,
    ) -> None:
        self._forward, self._config, self._weights = forward, config, weights
        self._dequantize = dict(dequantize or {})
        self._float32: dict[str, np.ndarray] = {}  # decoded weights, kept: decoding costs more than multiplying
        self._overrides: dict[str, Callable[..., np.ndarray]] = {}
        self._batch: RowBatch | None = None

    def run(self, batch: RowBatch) -> np.ndarray:
        """Logits, float32 [len(batch.out_rows), vocab].  Writes K/V rows; moves no cache's `len`."""
        self._batch = batch
        try:
            return self._forward(self, self._config, self._weights)
        finally:
            self._batch = None

    def explain(self) -> str:
        """What this interpreter does, in words."""
        return (
            f"naive interpreter, activations={self.activations}: the ops of the family's forward run one by one "
            "in NumPy, each on all rows of the pass; matrix products row by row."
        )

    def override(self, op: str, function: Callable[..., np.ndarray]) -> Callable[[], None]:
        """Let a function take the place of an op; returns what undoes it."""
        before = dict(self._overrides)
        self._overrides[op] = checked(function, op)

        def restore() -> None:
            self._overrides = before

        return restore

    def close(self) -> None:
        """Forget the decoded weights."""
        self._float32.clear()

    def float32(self, w: Weight) -> np.ndarray:
        """A weight as float32 [rows, cols] or [n], decoded once."""
        if w.name not in self._float32:
            mine = self._dequantize.get(w.ggml_type.name)
            self._float32[w.name] = w.float32() if mine is None else w.decoded_by(mine)
        return self._float32[w.name]

    # --- the vocabulary ---------------------------------------------------------------------------------------------

    def embed(self, w: Weight, scale: float = 1.0) -> np.ndarray:
        """Row `token` of the embedding matrix for every row of the pass.  -> [m, dim]"""
        return self.float32(w)[self._batch.tokens] * np.float32(scale)

    def rms_norm(self, x: np.ndarray, w: Weight, eps: float, heads: int = 1) -> np.ndarray:
        """Root-mean-square norm of each row, or of each head of it.  [m, n] -> [m, n]"""
        norm = self._overrides.get("rms_norm")
        weight = self.float32(w)
        by_head = x.reshape(len(x), heads, x.shape[1] // heads)  # [m, heads, n / heads]
        if norm is not None:
            out = np.stack([[norm(h, weight, eps) for h in row] for row in by_head])
        else:
            out = rms_norm(by_head, weight, eps)
        return out.reshape(x.shape)

    def linear(self, x: np.ndarray, w: Weight) -> np.ndarray:
        """x Wᵀ, row by row.  [m, cols] -> [m, rows of w]"""
        matrix = self.float32(w)
        product = self._overrides.get("linear", np.dot)
        return np.stack([product(matrix, row) for row in x]) if len(x) else np.empty((0, len(matrix)), np.float32)

    def add(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """x + y, the residual connection."""
        return x + y

    def rope(self, x: np.ndarray, heads: int, rope: RopeSpec) -> np.ndarray:
        """Turn each head of each row by its position.  [m, heads · head_dim] -> the same"""
        turn = self._overrides.get("rope", rotate)
        out = np.empty_like(x)
        for i, position in enumerate(self._batch.positions):
            cos, sin = rope_table(rope, position, position + 1)
            out[i] = turn(x[i].reshape(heads, -1), cos[0], sin[0], rope.pairing).reshape(-1)
        return out

    def kv_append(self, layer: int, k: np.ndarray, v: np.ndarray) -> None:
        """Store each row's key and value at its position in its stream's cache (rounded to the cache's dtype)."""
        for i, (stream, position) in enumerate(zip(self._batch.stream, self._batch.positions, strict=True)):
            cache = self._batch.caches[stream]
            g = cache.geometry[layer]
            cache.write(layer, position, k[i].reshape(g.kv_heads, g.k_dim), v[i].reshape(g.kv_heads, g.v_dim))

    def attention(self, layer: int, q: np.ndarray, heads: int, scale: float, window: int = 0) -> np.ndarray:
        """Each row looks at its stream's positions up to its own, at most `window` of them if that is not 0.

        Query heads share key heads in groups (grouped-query attention).  [m, heads · k_dim] -> [m, heads · v_dim]
        """
        attend = self._overrides.get("attention", attention)
        out = []
        for i, (stream, position) in enumerate(zip(self._batch.stream, self._batch.positions, strict=True)):
            keys, values = self._batch.caches[stream].planes(layer)
            first = max(0, position - window + 1) if window else 0
            seen = slice(first, position + 1)
            k = keys[:, seen].astype(np.float32)  # [kv_heads, n, k_dim]
            v = values[:, seen].astype(np.float32)  # [kv_heads, n, v_dim]
            out.append(attend(q[i].reshape(heads, -1), k, v, scale).reshape(-1))
        return np.stack(out)

    def swiglu(self, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
        """silu(gate) · up."""
        return self._overrides.get("swiglu", swiglu)(gate, up)

    def geglu(self, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
        """gelu(gate) · up."""
        return self._overrides.get("geglu", geglu)(gate, up)

    def output_rows(self, x: np.ndarray) -> np.ndarray:
        """The rows that want logits.  [m, dim] -> [n, dim]"""
        return x[self._batch.out_rows]


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float) -> np.ndarray:
    """Attention of one row: q [heads, k_dim], k [kv_heads, n, k_dim], v [kv_heads, n, v_dim] -> [heads, v_dim]."""
    kv_heads = len(k)
    grouped = q.reshape(kv_heads, -1, q.shape[-1])  # [kv_heads, heads / kv_heads, k_dim]
    scores = grouped @ k.transpose(0, 2, 1) * np.float32(scale)  # [kv_heads, group, n]
    return (softmax(scores) @ v).reshape(len(q), -1)


def swiglu(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """silu(gate) · up.  (Shazeer 2020, arXiv 2002.05202.)"""
    return silu(gate) * up


def geglu(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """gelu(gate) · up."""
    return gelu(gate) * up
