"""Functions that take the place of an op: which ops can be replaced, by what, and how what they return is checked.

`OVERRIDES` is the whole list, for all interpreters.  A function sees one row of one stream; an interpreter calls it
through `RowWise.rows`, which cuts a whole tensor into rows and puts the results together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..cache import State
from ..errors import ModelError
from .rope import RopeSpec, rope_table
from .rows import RowBatch
from .vocabulary import AttentionSpec

Function = Callable[..., np.ndarray]


@dataclass(frozen=True, slots=True)
class RowWise:
    """An op that a function on rows can replace.

    signature : of the function, as documents and messages show it.
    shape : of what it must return, given its arguments.
    rows : rows(function, batch, ...) -> float32 [m, columns]: calls the function for every row of the pass.
    """

    signature: str
    shape: Callable[..., tuple[int, ...]]
    rows: Callable[..., np.ndarray]


def _rms_norm(f: Function, batch: RowBatch, x: np.ndarray, weight: np.ndarray, eps: float, heads: int) -> np.ndarray:
    out = np.empty((len(x), heads, x.shape[1] // heads), np.float32)
    for i, row in enumerate(x.reshape(out.shape)):
        out[i] = [f(head, weight, eps) for head in row]
    return out.reshape(x.shape)


def _linear(f: Function, batch: RowBatch, x: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    out = np.empty((len(x), len(matrix)), np.float32)
    for i, row in enumerate(x):
        out[i] = f(matrix, row)
    return out


def _rope(f: Function, batch: RowBatch, x: np.ndarray, heads: int, spec: RopeSpec) -> np.ndarray:
    out = np.empty_like(x)
    for i, position in enumerate(batch.positions):
        cos, sin = rope_table(spec, position, position + 1)
        out[i] = f(x[i].reshape(heads, -1), cos[0], sin[0], spec.pairing).reshape(-1)
    return out


def _attention(f: Function, batch: RowBatch, q: np.ndarray, slot: int, spec: AttentionSpec) -> np.ndarray:
    """The keys and values of the pass have been stored before."""
    out = []
    for row, stream, position in zip(q, batch.stream, batch.positions, strict=True):
        k, v = looked_at(batch.states[stream], slot, int(position), spec)  # [kv_heads, n, dim]
        out.append(f(row.reshape(spec.heads, -1), k, v, spec.scale).reshape(-1))
    return np.stack(out)


def _gate(f: Function, batch: RowBatch, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    return f(gate, up)


OVERRIDES = {
    "rms_norm": RowWise("(x [n], weight [n], eps) -> [n]", lambda x, weight, eps: x.shape, _rms_norm),
    "linear": RowWise("(matrix [rows, cols], x [cols]) -> [rows]", lambda matrix, x: matrix.shape[:1], _linear),
    "rope": RowWise(
        "(x [heads, head_dim], cos [dims / 2], sin [dims / 2], pairing) -> [heads, head_dim]",
        lambda x, cos, sin, pairing: x.shape,
        _rope,
    ),
    "attention": RowWise(
        "(q [heads, k_dim], k [kv_heads, n, k_dim], v [kv_heads, n, v_dim], scale) -> [heads, v_dim]",
        lambda q, k, v, scale: (len(q), v.shape[-1]),
        _attention,
    ),
    "swiglu": RowWise("(gate [m, n], up [m, n]) -> [m, n]", lambda gate, up: gate.shape, _gate),
    "geglu": RowWise("(gate [m, n], up [m, n]) -> [m, n]", lambda gate, up: gate.shape, _gate),
}


def looked_at(state: State, slot: int, position: int, spec: AttentionSpec) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values that the row at `position` sees, the oldest first: float32 [kv_heads, n, dim] each."""
    first = max(0, position - spec.window + 1) if spec.window else 0
    k, v = state.read(slot, first, position + 1)
    return np.ascontiguousarray(k), np.ascontiguousarray(v)


class Overrides:
    """The functions in force, the newest first.  Each is taken out by its own `restore`, in whatever order."""

    def __init__(self) -> None:
        self._entries: list[tuple[str, Function]] = []

    def add(self, op: str, function: Function) -> Callable[[], None]:
        """Put a function, checked, in place of an op; returns what takes it out again (more calls do nothing)."""
        entry = (op, checked(function, op))
        self._entries.append(entry)

        def restore() -> None:
            self._entries = [e for e in self._entries if e is not entry]

        return restore

    def get(self, op: str) -> Function | None:
        """The newest function in place of an op."""
        return next((f for name, f in reversed(self._entries) if name == op), None)

    def __bool__(self) -> bool:
        return bool(self._entries)


def checked(function: Function, op: str) -> Function:
    """The function, with its result checked: the shape that the op must return, float32, finite.

    Raises
    ------
    ModelError : names the function, what it returned and what was expected.  The function's own errors pass through.
    """
    who = f"{getattr(function, '__name__', repr(function))}() in place of {op}"
    shape = OVERRIDES[op].shape

    def call(*arguments: Any) -> np.ndarray:
        result = np.asarray(function(*arguments))
        expected = shape(*arguments)
        if result.dtype.kind not in "fiu" or result.shape != expected:
            raise ModelError(f"{who} returned {result.dtype} {list(result.shape)}, expected float32 {list(expected)}")
        if not np.isfinite(result).all():
            raise ModelError(f"{who} returned {np.count_nonzero(~np.isfinite(result))} values that are not finite")
        return result.astype(np.float32, copy=False)

    return call
