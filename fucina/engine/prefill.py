"""How much of a pass prompts may have beside streams that decode."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .drafts import PassStats
from .verify_cost import VerifyCost


class PrefillShare:
    """How many rows of prompts may join a pass, so that the streams that decode in it hardly wait.

    How many rows make a pass `stretch` times as long follows from the table of costs, and is corrected by the times that
    passes really take.

    Parameters
    ----------
    stretch : how many times as long a pass may take; infinity puts prompts first.
    """

    __slots__ = ("_cost", "_factor", "_unit", "stretch")

    def __init__(self, stretch: float) -> None:
        self.stretch = stretch
        self._cost = VerifyCost()
        self._unit = 0.0  # seconds per unit of the table's cost, of passes without prompts, smoothed
        self._factor = 1.0  # measured correction of the number of rows

    def rows(self, own: int, budget: int, contexts: Sequence[int]) -> int:
        """Rows of prompts that may join `own` decode rows; at least one while the budget of rows allows it."""
        left = budget - own
        if own == 0 or left < 1 or not contexts or math.isinf(self.stretch):
            return max(left, 0)
        curve = self._cost.curve(max(contexts))  # a row looks back at every position of its own prompt
        allowed, last = self.stretch * curve[own], len(curve) - 1
        fitting = (rows for rows in range(own + 1, min(budget, last) + 1) if curve[rows] <= allowed)
        rows = max(fitting, default=own)
        return max(1, min(left, round((rows - own) * self._factor)))

    def learn(self, stats: PassStats) -> None:
        """Compare a pass that prompts have joined with those that had none."""
        if not stats.rows:
            return
        seconds = stats.seconds / self._cost.curve(stats.context)[stats.rows]
        if not stats.prefill:
            self._unit = seconds if not self._unit else 0.8 * self._unit + 0.2 * seconds
        elif self._unit and seconds > 0:
            correction = (self.stretch * self._unit / seconds) ** 0.3
            self._factor = min(max(self._factor * correction, 0.2), 1.5)
