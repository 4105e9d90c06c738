"""The naive interpreter with the arithmetic of the native one: same quantisation, same order of sums, same bits.

`Naive` computes what the maths says; its last bits depend on NumPy and its BLAS.  `Twin` runs the same forward through
the NumPy twins of the compiled kernels (`fucina.kernels.reference`), so that a whole model can be compared bit for bit:
`fucina.load(path, backend="naive", activations="q8").logits(ids)` equals what the native backend returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..kernels import reference
from ..models.weights import Weight
from .naive import Naive
from .rope import RopeSpec, rope_table


class Twin(Naive):
    """Interpreter of the op vocabulary with the native kernels' bits.  Slow: made to be compared with."""

    activations = "q8"

    def __init__(
        self,
        forward: Callable[..., np.ndarray],
        config: Any,
        weights: Any,
        dequantize: dict[str, Callable[[np.ndarray], np.ndarray]] | None = None,
    ) -> None:
        super().__init__(forward, config, weights, dequantize)
        self._unpacked: dict[str, reference.Unpacked] = {}

    def close(self) -> None:
        """Forget the decoded weights."""
        super().close()
        self._unpacked.clear()

    def linear(self, x: np.ndarray, w: Weight) -> np.ndarray:
        """x Wᵀ, activations of quantised products rounded to int8 blocks.  [m, cols] -> [m, rows of w]"""
        if "linear" in self._overrides or w.ggml_type.name in self._dequantize:
            return super().linear(x, w)
        if not len(x):
            return np.empty((0, w.shape[0]), np.float32)
        if w.name not in self._unpacked:
            self._unpacked[w.name] = reference.unpack(w.raw, w.ggml_type.name.lower())
        return reference.product(x, self._unpacked[w.name])

    def rms_norm(self, x: np.ndarray, w: Weight, eps: float, heads: int = 1) -> np.ndarray:
        """Norm of each row, or of each head of it.  [m, n] -> [m, n]"""
        if "rms_norm" in self._overrides:
            return super().rms_norm(x, w, eps, heads)
        return reference.rms_norm(x, self.float32(w), eps, heads)

    def rope(self, x: np.ndarray, heads: int, rope: RopeSpec) -> np.ndarray:
        """Turn each head of each row by its position.  [m, heads · head_dim] -> the same"""
        if "rope" in self._overrides:
            return super().rope(x, heads, rope)
        positions = self._batch.positions
        table = np.concatenate(rope_table(rope, 0, int(positions.max()) + 1), axis=1)  # [positions, cos | sin]
        return reference.rope(x, heads, rope.dims, table, positions, rope.pairing)

    def attention(self, layer: int, q: np.ndarray, heads: int, scale: float, window: int = 0) -> np.ndarray:
        """Attention in chunks of 64 positions.  [m, heads · k_dim] -> [m, heads · v_dim]"""
        if "attention" in self._overrides:
            return super().attention(layer, q, heads, scale, window)
        out = []
        for i, (stream, position) in enumerate(zip(self._batch.stream, self._batch.positions, strict=True)):
            keys, values = self._batch.caches[stream].planes(layer)
            group = heads // len(keys)
            for h, row in enumerate(q[i].reshape(heads, -1)):
                k, v = (p[h // group, : position + 1].astype(np.float32) for p in (keys, values))
                out.append(reference.attention(k, v, row, int(position), scale, window))
        return np.stack(out).reshape(len(q), -1)

    def swiglu(self, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
        """silu(gate) · up."""
        return super().swiglu(gate, up) if "swiglu" in self._overrides else reference.swiglu(gate, up)

    def geglu(self, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
        """gelu(gate) · up."""
        return super().geglu(gate, up) if "geglu" in self._overrides else reference.geglu(gate, up)
