"""Functions of a learner inside the engine: what they return is checked, and errors name them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import ModelError


def checked(function: Callable[..., Any], op: str) -> Callable[..., np.ndarray]:
    """The function, with its result checked: the shape that the op must return, float32, finite.

    Raises
    ------
    ModelError : names the function, what it returned and what was expected.  The function's own errors pass through.
    """
    who = f"{getattr(function, '__name__', repr(function))}() in place of {op}"

    def call(*arguments: Any) -> np.ndarray:
        result = np.asarray(function(*arguments))
        expected = _result_shape(op, arguments)
        if result.dtype.kind not in "fiu" or result.shape != expected:
            raise ModelError(f"{who} returned {result.dtype} {list(result.shape)}, expected float32 {list(expected)}")
        if not np.isfinite(result).all():
            raise ModelError(f"{who} returned {np.count_nonzero(~np.isfinite(result))} values that are not finite")
        return result.astype(np.float32, copy=False)

    return call


def _result_shape(op: str, arguments: tuple[Any, ...]) -> tuple[int, ...]:
    if op == "linear":  # matrix [rows, cols], x [cols]
        return (len(arguments[0]),)
    if op == "attention":  # q [heads, k_dim], k, v [kv_heads, n, v_dim]
        return (len(arguments[0]), arguments[2].shape[-1])
    return arguments[0].shape
