"""The board of the fastest `linear`: ratios to a plain compiled loop, run in turn on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from course.board_scores import NotCounted, called
from course.interleaved import best_times
from course.ours import ours

ROWS, COLS = 16384, 576  # 38 MB of float32: more than most caches hold
TOLERANCE = 0.02  # of the root mean square: what 8 bits may cost


def compiled(kernel: Callable[..., Any]) -> Any:
    """A kernel as numba compiles it."""
    import numba  # here: only this board needs it, and it takes a moment

    return numba.njit(nogil=True)(getattr(kernel, "py_func", kernel))


def _plain(matrix: Any, x: Any, out: Any) -> None:
    for n in range(out.size):
        total = np.float32(0)
        for c in range(x.size):
            total += matrix[n, c] * x[c]
        out[n] = total


class Plain:
    """The plain loop, compiled: what every entry is measured against."""

    def __init__(self) -> None:
        self.kernel = compiled(_plain)

    def __call__(self, matrix: np.ndarray, x: np.ndarray) -> np.ndarray:
        out = np.empty(len(matrix), np.float32)
        self.kernel(matrix, x, out)
        return out


class Lanes:
    """Chapter 20's kernel with lanes, in float32 and one thread."""

    def __init__(self) -> None:
        self.kernel, self.packed = compiled(ours("ch20.lanes")), {}  # type: ignore[var-annotated]

    def __call__(self, matrix: np.ndarray, x: np.ndarray) -> np.ndarray:
        if matrix.ctypes.data not in self.packed:
            self.packed[matrix.ctypes.data] = matrix, ours("ch20.pack")(matrix, 64)
        packed = self.packed[matrix.ctypes.data][1]
        out = np.empty(len(matrix), np.float32)
        self.kernel(packed, x, out, 0, len(packed))
        return out


def eight_bits(threads: int) -> Any:
    """Our `Linear` of chapter 20, with our 8-bit kernel."""
    return ours("ch20.linear")(compiled(ours("ch20.q8_linear")), threads)


def baselines() -> dict[str, Callable[[], Any]]:
    """What an entry is shown beside, slowest first as a rule."""
    two = min(2, os.cpu_count() or 1)
    return {
        "plain compiled loop": Plain,
        "NumPy": lambda: np.matmul,
        "lanes, float32": Lanes,
        "8 bits, one thread": lambda: eight_bits(1),
        f"8 bits, {two} threads": lambda: eight_bits(two),
    }


@lru_cache(maxsize=1)
def problem() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A matrix, a row, and their product in float64."""
    rng = np.random.default_rng(20)
    matrix = rng.standard_normal((ROWS, COLS), np.float32)
    x = rng.standard_normal(COLS, np.float32)
    return matrix, x, matrix.astype(np.float64) @ x


def checked(linear: Any) -> None:
    """Whether an entry computes the product at all.

    Raises
    ------
    NotCounted
        It does not: shape, values, or two calls with different bits.
    """
    matrix, x, right = problem()
    got = np.asarray(called("it", linear, matrix, x))
    if got.shape != right.shape or got.dtype != np.float32:
        raise NotCounted(f"it returns {got.dtype} {list(got.shape)}, expected float32 [{ROWS}]")
    error = float(np.sqrt(np.mean((got - right) ** 2) / np.mean(right**2)))
    if not error <= TOLERANCE:
        raise NotCounted(f"its results are off by {100 * error:.2g} per cent, {100 * TOLERANCE:g} are allowed")
    bits = got.tobytes()
    for _ in range(3):
        if np.asarray(called("it", linear, matrix, x)).tobytes() != bits:
            raise NotCounted("two calls with the same numbers give different bits")
    other = np.asarray(called("it", linear, matrix[: ROWS // 2], -x))
    if got.tobytes() != bits or not np.allclose(other, -right[: ROWS // 2], atol=0.1 * float(np.std(right))):
        raise NotCounted(
            "it does not compute what it is given: another matrix and row come out wrong, or spoil the last result"
        )


def speeds(entry: Any = None, rounds: int = 25) -> dict[str, float]:
    """How many times as fast as the plain loop each baseline is, and "yours", an entry that was checked."""
    matrix, x, _ = problem()
    made = {name: make() for name, make in baselines().items()}
    if entry is not None:
        checked(entry)
        made["yours"] = entry
    best = best_times({name: lambda f=f: f(matrix, x) for name, f in made.items()}, rounds)  # type: ignore[misc]
    return {name: best["plain compiled loop"] / seconds for name, seconds in best.items()}
