"""What drafts would have won while the gate is off.

A probe costs verifies.  Looking costs nothing: the source goes on proposing, and plain steps show what of it would have
been accepted.  Drafts that would have paid wake the gate before its pause is over; the probe that follows still has to
show it with real passes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ..decoding import common_prefix
from .options import Options


class Watch:
    """Compares proposals that are not verified with what plain steps commit."""

    __slots__ = ("_cost", "_draft", "_entries", "_options", "_start")

    def __init__(self, options: Options) -> None:
        self._options = options
        # as many proposals as a probe has verifies, but enough to hold the drafted tokens that a judgement needs
        most = max(options.probe_steps, -(-options.min_window_drafted // options.min_draft))
        self._entries: deque[tuple[int, int, float]] = deque(maxlen=most)
        self._draft: list[int] = []
        self._start = 0
        self._cost = 1.0

    @property
    def waiting(self) -> bool:
        """Whether a proposal is still being compared."""
        return bool(self._draft)

    def clear(self) -> None:
        """Forget everything: verifies have begun again, or another text."""
        self._entries.clear()
        self._draft = []

    def propose(self, draft: list[int], length: int, cost: float) -> None:
        """Begin to compare a draft for a history of `length` tokens, whose verify would have cost so much."""
        self._draft, self._start, self._cost = draft, length, cost

    def look(self, history: Sequence[int]) -> None:
        """Compare with what has been committed since."""
        fresh = history[self._start :]
        accepted = common_prefix(fresh, self._draft)
        if self._draft and len(fresh) > accepted:  # a verify would have ended here, with a correction or a bonus
            self._entries.append((accepted + 1, len(self._draft), self._cost))
            self._draft = []

    @property
    def promising(self) -> bool:
        """Whether the latest proposals would have shown what a probe must show."""
        o = self._options
        committed, drafted, cost = (
            (sum(column) for column in zip(*self._entries, strict=True)) if self._entries else (0, 0, 0.0)
        )
        enough = len(self._entries) >= 2 and drafted >= o.min_window_drafted
        return enough and committed >= (o.min_speedup + o.probe_margin) * cost
