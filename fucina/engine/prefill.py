"""How much of a pass prompts may have beside streams that decode, and which of them comes first."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from ..defaults import PREFILL_STRETCH
from .drafts import PassStats
from .verify_cost import VerifyCost

if TYPE_CHECKING:
    from .stream import Stream

AGING = 4
"""A prompt comes before a shorter one when so many times the rows that it is longer by were given out since it came."""

RECENT = 31  # passes of either kind whose times count: of their median, so that a dozen slow ones change nothing
ENOUGH = 3  # passes of either kind that must be known
DEAREST = 1.35  # passes with prompts count as at most so many times as dear as the table says ...
CHEAPEST = PREFILL_STRETCH / 2.5  # ... and as at least so many times: by the table no pass is longer than 2.5 times


class PrefillShare:
    """How many rows of prompts may join a pass, so that the streams that decode in it hardly wait.

    How many rows make a pass `stretch` times as long follows from the table of costs, and is corrected by the times that
    passes really take.  These count by their medians and within limits: a machine that is busy with something else
    leaves prompts most of their rows.

    Parameters
    ----------
    stretch : how many times as long a pass may take; infinity puts prompts first.
    """

    __slots__ = ("_cost", "_cost_joined", "_joined", "_looked_back", "_plain", "stretch")

    def __init__(self, stretch: float) -> None:
        self.stretch = stretch
        self._cost, self._cost_joined = VerifyCost(), VerifyCost()
        self._plain: deque[float] = deque(
            maxlen=RECENT
        )  # seconds per unit of the table's cost, of passes without prompts
        self._joined: deque[float] = deque(maxlen=RECENT)  # and of those that prompts have joined
        self._looked_back = 0

    @property
    def dearness(self) -> float:
        """How many times as dear as the table says passes with prompts are here, beside those without."""
        if min(len(self._plain), len(self._joined)) < ENOUGH or not (plain := median(self._plain)):
            return 1.0
        return min(max(median(self._joined) / plain, CHEAPEST), DEAREST)

    def rows(self, own: int, budget: int, contexts: Sequence[int]) -> int:
        """Rows of prompts that may join `own` decode rows; at least one while the budget of rows allows it.

        Of the numbers that are allowed, the one at which a row is cheapest: kernels work in tiles of rows, so that a few
        more rows can cost nothing, and one more a whole tile.

        Parameters
        ----------
        contexts : positions that the prompts in question have already; a row looks back at all of its own.
        """
        left = budget - own
        if own == 0 or left < 1 or not contexts or math.isinf(self.stretch):
            return max(left, 0)
        self._looked_back = max(contexts)
        curve = self._cost_joined.curve(self._looked_back)
        allowed = self.stretch / self.dearness * curve[own]
        fitting = [rows for rows in range(1, min(left, len(curve) - 1 - own) + 1) if curve[own + rows] <= allowed]
        return max(fitting, key=lambda rows: (rows / curve[own + rows], rows), default=1)

    def learn(self, stats: PassStats) -> None:
        """Note how long a pass took, beside what the table says."""
        if not stats.rows or stats.seconds <= 0:
            return
        seconds = stats.seconds / self._cost.curve(stats.context)[stats.rows]
        if not stats.prefill:
            self._plain.append(seconds)
        else:
            curve = self._cost_joined.curve(self._looked_back)
            self._joined.append(seconds * curve[stats.rows] / curve[min(stats.rows + stats.prefill, len(curve) - 1)])


class PrefillOrder:
    """Which prompt comes first: the one that has the fewest rows left, but nobody waits for ever.

    Prompts one after another have their first tokens sooner on average than in turns, and short ones first sooner than
    in any other order.  So that a long one gets on as well, what came `AGING` · n rows later must be more than n rows
    shorter to come before it.  While at most s streams are there, a prompt of n rows therefore waits for no more rows
    than those that were left of other prompts when it came, and (`AGING` + s) · n.
    """

    __slots__ = ("_given", "_since")

    def __init__(self) -> None:
        self._given = 0  # rows of prompts so far
        self._since: dict[Stream, int] = {}  # how many there were when a prompt came

    def sort(self, prompts: Sequence[Stream]) -> list[Stream]:
        """All streams that have rows of prompts to be computed, who comes first in front."""
        self._since = {s: self._since.get(s, self._given) for s in prompts}
        return sorted(prompts, key=lambda s: self._since[s] + AGING * s.pending)

    def note(self, rows: int) -> None:
        """So many rows of prompts were computed."""
        self._given += rows

    def forget(self, stream: Stream) -> None:
        """A stream has left."""
        self._since.pop(stream, None)
