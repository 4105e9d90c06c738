"""A learner's functions inside the fast engine: the op that they replace becomes a host stage.

The functions have the signatures of `fucina.ops.naive` and see one row at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...cache import LayerGeometry
from ..learner import checked
from ..rope import RopeSpec, rope_table
from ..rows import RowBatch
from .recorder import Recorder, Sources, rows_of
from .schedule import Value

Function = Callable[..., np.ndarray]


class LearnerRecorder(Recorder):
    """A recorder in which some ops are Python functions.

    Parameters
    ----------
    overrides : functions by the op that they replace.
    """

    def __init__(
        self, sources: Sources, geometry: Sequence[LayerGeometry], cache_dtype: str, overrides: dict[str, Function]
    ) -> None:
        super().__init__(sources, geometry, cache_dtype)
        self._overrides = {op: checked(f, op) for op, f in overrides.items()}
        self._decoded: dict[str, np.ndarray] = {}  # a weight is decoded when it is first used, then kept

    def _float32(self, w: Any) -> np.ndarray:
        if w.name not in self._decoded:
            self._decoded[w.name] = w.float32()
        return self._decoded[w.name]

    def rms_norm(self, x: Value, w: Any, eps: float, heads: int = 1) -> Value:
        mine = self._overrides.get("rms_norm")
        if mine is None:
            return super().rms_norm(x, w, eps, heads)

        def norm(arrays: list[np.ndarray], batch: RowBatch) -> np.ndarray:
            by_head = arrays[0].reshape(len(arrays[0]), heads, -1)  # [m, heads, n / heads]
            weight = self._float32(w)
            return np.stack([[mine(head, weight, eps) for head in row] for row in by_head]).reshape(arrays[0].shape)

        return self.host_op(norm, [x], x.cols, "your rms_norm")

    def linear(self, x: Value, w: Any) -> Value:
        mine = self._overrides.get("linear")
        if mine is None:
            return super().linear(x, w)
        return self.host_op(
            lambda arrays, batch: np.stack([mine(self._float32(w), row) for row in arrays[0]]),
            [x],
            w.shape[0],
            "your linear",
        )

    def rope(self, x: Value, heads: int, rope: RopeSpec) -> Value:
        mine = self._overrides.get("rope")
        if mine is None:
            return super().rope(x, heads, rope)

        def turn(arrays: list[np.ndarray], batch: RowBatch) -> np.ndarray:
            out = np.empty_like(arrays[0])
            for i, position in enumerate(batch.positions):
                cos, sin = rope_table(rope, position, position + 1)
                out[i] = mine(arrays[0][i].reshape(heads, -1), cos[0], sin[0], rope.pairing).reshape(-1)
            return out

        return self.host_op(turn, [x], x.cols, "your rope")

    def attention(self, layer: int, q: Value, heads: int, scale: float, window: int = 0) -> Value:
        mine = self._overrides.get("attention")
        if mine is None:
            return super().attention(layer, q, heads, scale, window)

        def attend(arrays: list[np.ndarray], batch: RowBatch) -> np.ndarray:
            out = []
            for row, stream, position in zip(arrays[0], batch.stream, batch.positions, strict=True):
                keys, values = batch.caches[stream].planes(layer)
                seen = slice(max(0, position - window + 1) if window else 0, position + 1)
                k, v = keys[:, seen].astype(np.float32), values[:, seen].astype(np.float32)  # [kv_heads, n, dim]
                out.append(mine(row.reshape(heads, -1), k, v, scale).reshape(-1))
            return np.stack(out)

        g = self._geometry[layer]
        return self.host_op(attend, [q], heads * g.v_dim, "your attention", uses=[rows_of(layer)])

    def swiglu(self, gate: Value, up: Value) -> Value:
        return self._gated("swiglu", gate, up) or super().swiglu(gate, up)

    def geglu(self, gate: Value, up: Value) -> Value:
        return self._gated("geglu", gate, up) or super().geglu(gate, up)

    def _gated(self, op: str, gate: Value, up: Value) -> Value | None:
        mine = self._overrides.get(op)
        if mine is None:
            return None
        return self.host_op(lambda arrays, batch: mine(*arrays), [gate, up], gate.cols, f"your {op}")
