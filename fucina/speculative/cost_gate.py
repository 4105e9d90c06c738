"""When to speculate: only while it is measured, or estimated, to win time.

A verify of d drafts costs C(d + 1) plain steps and commits a + 1 tokens, a of them accepted drafts.  It wins if
a + 1 > C(d + 1).  Tokens per step do not show that; the gate therefore looks at

    speedup = committed tokens / cost in plain steps

over the latest verifies.  While it loses, the gate is off for a pause that doubles with each probe that fails.

This is the gate of sources that do not know how likely their drafts are.  Where a source knows (`odds`), each draft is
judged by itself and nothing needs to be turned off; see `fucina.speculative.odds`.
"""

from __future__ import annotations

import math
from collections import deque

from .options import Options


class CostGate:
    """Decides for one stream when to draft, and how much.

    Attributes
    ----------
    state : "on", "off" or "probing".
    backoff : plain steps that the next, or present, pause lasts.
    """

    __slots__ = (
        "_accepted", "_committed", "_drafted", "_options", "_probe_left", "_waited", "_window", "backoff", "state",
    )  # fmt: skip

    def __init__(self, options: Options | None = None) -> None:
        self._options = Options() if options is None else options
        self.state = "on"
        self.backoff = self._options.reprobe_after
        self._waited = 0
        self._probe_left = 0
        self._window: deque[tuple[int, int, int, float]] = deque()
        self._clear()

    def _clear(self) -> None:
        self._window.clear()
        self._committed = self._accepted = self._drafted = 0  # sums over the window

    @property
    def speedup(self) -> float:
        """Tokens committed per plain step of time, over the window; +inf while nothing was paid."""
        cost = math.fsum(entry[3] for entry in self._window)
        return self._committed / cost if cost > 0 else math.inf

    @property
    def evaluable(self) -> bool:
        """Whether the window holds enough to judge by: one verify alone is too noisy."""
        return len(self._window) >= 2 and self._drafted >= self._options.min_window_drafted

    def allows(self) -> bool:
        """Whether this step may draft.  Called once per step: it counts the steps of a pause."""
        if self.state != "off":
            return True
        self._waited += 1
        if self._waited < self.backoff:
            return False
        self.state, self._probe_left = "probing", self._options.probe_steps
        self._clear()
        return True

    def budget(self) -> int:
        """How many tokens to draft at most: less where less is accepted."""
        o = self._options
        if not o.adapt_budget:
            return o.max_draft
        if not self._drafted:
            return min(o.max_draft, max(o.min_draft, o.first_draft))
        return min(o.max_draft, max(o.min_draft, 2 + math.ceil(self._accepted * o.max_draft / self._drafted)))

    def record(self, committed: int, accepted: int, drafted: int, cost: float) -> None:
        """Enter a verify into the window, and judge."""
        o = self._options
        self._window.append((committed, accepted, drafted, cost))
        if len(self._window) > o.rate_window:
            self._window.popleft()
        self._committed = sum(entry[0] for entry in self._window)
        self._accepted = sum(entry[1] for entry in self._window)
        self._drafted = sum(entry[2] for entry in self._window)
        losing = self.evaluable and self.speedup < o.min_speedup
        if self.state == "on" and losing:
            self._turn_off(o.reprobe_after)
        elif self.state == "probing":
            self._probe_left -= 1
            if losing:
                self._turn_off(2 * self.backoff)
            elif self._probe_left == 0:
                if self.speedup >= o.min_speedup + o.probe_margin:
                    self.state = "on"
                else:
                    self._turn_off(2 * self.backoff)

    def _turn_off(self, backoff: int) -> None:
        self.state, self.backoff = "off", min(backoff, self._options.reprobe_max)
        self._waited = 0
        self._clear()
