"""What drafts may lose in all: a bound that holds whatever a source proposes."""

from __future__ import annotations

import math

from .options import Options

MOST_RISKED = 8.0  # plain steps, of those that drafts have won, that later drafts may lose again


class Ledger:
    """Steps that plain decoding would have taken, and how many of them drafts have saved.

    Decoding of n tokens then costs at most (1 + max_loss) n + loss_credit plain steps, by the prices of passes.
    """

    __slots__ = ("_options", "_plain", "_won")

    def __init__(self, options: Options) -> None:
        self._options = options
        self._plain = 0
        self._won = 0.0

    @property
    def allowance(self) -> float:
        """Plain steps that the next draft may cost if none of it is accepted.

        Negative after a pass that cost more than its estimate: then no draft is allowed at all, not even a free one,
        since its estimate may be wrong again.
        """
        o = self._options
        if not o.min_speedup:
            return math.inf
        return o.loss_credit + o.max_loss * self._plain + self._won

    def enter(self, sampled: int, cost: float) -> None:
        """Enter a step: the rows that it sampled, and its cost in plain steps."""
        self._plain += max(sampled, 1)
        self._won = min(self._won + sampled - cost, MOST_RISKED)
