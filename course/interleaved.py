"""Times things against each other: in turn, again and again, so that a busy moment hits all of them.

What is told is the best time of each, since whatever else a machine does only ever makes a run slower.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any


def best_times(runs: Mapping[str, Callable[[], Any]], rounds: int = 25) -> dict[str, float]:
    """Seconds of the fastest call of each, after one call that does not count (it may compile).

    Parameters
    ----------
    runs : mapping of name to a function without arguments
    rounds : int
        How many times each is called, one after the other in every round.
    """
    for run in runs.values():
        run()
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            start = perf_counter()
            run()
            best[name] = min(best[name], perf_counter() - start)
    return best
