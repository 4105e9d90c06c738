"""Compiles the team's two functions, or loads them from the cache, when the first native model is made."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from numba import njit, types

from ...kernels.compile import cached_here
from . import loop, planner


class Compiled(NamedTuple):
    """make_plan(control, bank) -> shared steps; take_part(control, tid, bank, step, end) -> 0."""

    make_plan: Callable[[int, int], int]
    take_part: Callable[[int, int, int, int, int], int]


@cache
def compiled() -> Compiled:
    """The team's compiled functions."""
    options = {"nogil": True, "boundscheck": False, "error_model": "numpy", "cache": True}
    i = types.int64
    with cached_here("make_plan"):
        make_plan = njit(i(i, i), **options)(planner.make_plan)
    with cached_here("take_part"):
        take_part = njit(i(i, i, i, i, i), **options)(loop.take_part)
    return Compiled(make_plan, take_part)
