"""When to speculate: only while it is measured, or estimated, to win time.

A verify of d drafts costs C(d + 1) plain steps and commits a + 1 tokens, a of them accepted drafts.  It wins if
a + 1 > C(d + 1).  Tokens a step say nothing about that; the gate therefore looks at

    speedup = committed tokens / cost in plain steps

over the latest verifies (facts 9.3 and 9.4).  The cost comes from a table, for its shape, times a scale that slowly
follows what passes really take here: one passing disturbance cannot flip the gate, another machine is learned soon.
"""

from __future__ import annotations

import math
from collections import deque

from .cost_table import CostTable
from .options import Options

PLAIN_ALPHA = 0.25  # weight of a new plain time
SCALE_ALPHA = 0.2  # weight of a new measured cost
SCALE_LOW, SCALE_HIGH = 0.25, 4.0
PATIENCE = 128  # plain passes without a verify, after which a scale above 1 begins to be forgotten ...
FORGET = 0.01  # ... by this part a plain pass
MOST_RISKED = 8.0  # plain steps, of those that drafts have won, that later drafts may lose again


class VerifyCost:
    """Prices passes in plain steps: the table's shape times what was measured.

    Streams that are decoded together share one: the pass is theirs together.

    Attributes
    ----------
    scale : measured cost over the table's, smoothed; 1.0 until something was measured.  Prices that keep all drafts
        out are never measured again: a high scale that no verify confirms therefore fades.
    """

    __slots__ = ("_curve", "_curve_of", "_plain", "_table", "_unconfirmed", "scale")

    def __init__(self, options: Options | None = None) -> None:
        self._table = (Options() if options is None else options).table
        self._plain: dict[int, float] = {}  # seconds of a pass of one row each of n streams
        self._curve: list[float] = []
        self._curve_of = -1
        self._unconfirmed = 0
        self.scale = 1.0

    @property
    def table(self) -> CostTable:
        """The table that gives the shape."""
        return self._table

    @property
    def untouched(self) -> bool:
        """Whether nothing was measured yet."""
        return self.scale == 1.0 and not self._plain

    def curve(self, context: float) -> list[float]:
        """The table's costs of 0, 1, … 128 rows about here."""
        block = int(context) // 64
        if block != self._curve_of:
            self._curve, self._curve_of = self._table.curve(64 * block + 32), block
        return self._curve

    def plain_seconds(self, streams: int = 1) -> float | None:
        """Smoothed seconds of a plain pass of so many streams; None before the first."""
        return self._plain.get(streams)

    def estimates(self, drafts: int, context: float, streams: int = 1) -> list[float]:
        """Return what verifies of 0, 1, ... `drafts` drafts would cost, in plain steps; learn nothing.

        In a pass of several streams: what they would cost one stream that alone drafts.
        """
        curve, scale = self.curve(context), self.scale
        if streams == 1:
            return [max(scale * base, 1.0) for base in curve[1 : drafts + 2]]
        plain, last = curve[min(streams, len(curve) - 1)], len(curve) - 1
        rows = range(streams, streams + drafts + 1)
        return [1.0 + streams * (max(scale * curve[min(r, last)] / plain, 1.0) - 1.0) for r in rows]

    def estimate(self, drafts: int, context: float, streams: int = 1) -> float:
        """Return the cost of a verify of `drafts` drafts; see `estimates`."""
        return self.estimates(drafts, context, streams)[-1]

    def note_plain(self, seconds: float, streams: int = 1) -> None:
        """Learn how long a pass of one row each of `streams` streams took."""
        old = self._plain.get(streams)
        self._plain[streams] = seconds if old is None else PLAIN_ALPHA * seconds + (1 - PLAIN_ALPHA) * old
        self._unconfirmed += 1
        if self._unconfirmed > PATIENCE and self.scale > 1.0:
            self.scale += FORGET * (1.0 - self.scale)

    def verify(self, rows: int, context: float = 0, streams: int = 1, seconds: float | None = None) -> float:
        """Return the cost of a pass in plain passes of the same streams, at least 1; learn from its `seconds`.

        Parameters
        ----------
        rows : all rows of the pass.
        context : positions in front of them, on average.
        streams : streams that share the pass.
        seconds : what it took; None if there is no clock.
        """
        curve = self.curve(context)
        base = curve[min(rows, len(curve) - 1)]
        if streams > 1:
            base = max(base / curve[min(streams, len(curve) - 1)], 1.0)
        plain = self._plain.get(streams)
        if seconds is not None and plain:
            measured = max(seconds / plain, 1.0)
            sample = min(max(measured / base, SCALE_LOW), SCALE_HIGH)
            scale = SCALE_ALPHA * sample + (1 - SCALE_ALPHA) * self.scale
            self.scale = min(max(scale, SCALE_LOW), SCALE_HIGH)
            self._unconfirmed = 0
        return max(self.scale * base, 1.0)


class CostGate:
    """Decides for one stream when to draft, and how much.

    Attributes
    ----------
    state : "on", "off" or "probing".
    backoff : plain steps that the next, or present, pause lasts.
    """

    __slots__ = ("_options", "_plain", "_probe_left", "_sums", "_waited", "_window", "_won", "backoff", "state")

    def __init__(self, options: Options | None = None) -> None:
        self._options = Options() if options is None else options
        self.state = "on"
        self.backoff = self._options.reprobe_after
        self._waited = 0
        self._probe_left = 0
        self._plain = 0  # steps that plain decoding would have taken so far
        self._won = 0.0  # of them, how many the drafts have saved
        self._window: deque[tuple[int, int, int, float]] = deque()
        self._clear()

    def _clear(self) -> None:
        self._window.clear()
        self._sums = [0, 0, 0]

    @property
    def speedup(self) -> float:
        """Tokens committed in the time of a plain step, over the window; +inf while nothing was paid."""
        cost = math.fsum(entry[3] for entry in self._window)
        return self._sums[0] / cost if cost > 0 else math.inf

    @property
    def evaluable(self) -> bool:
        """Whether the window holds enough to judge by: one verify alone is too noisy."""
        return len(self._window) >= 2 and self._sums[2] >= self._options.min_window_drafted

    def allows(self) -> bool:
        """Whether this step may draft.  Called once a step: it counts the steps of a pause."""
        self._plain += 1
        if self.state != "off":
            return True
        self._waited += 1
        if self._waited < self.backoff:
            return False
        self.state, self._probe_left = "probing", self._options.probe_steps
        self._clear()
        return True

    def wake(self) -> None:
        """End a pause now and probe: drafts that were not verified would have won."""
        if self.state == "off":
            self._waited = self.backoff

    @property
    def allowance(self) -> float:
        """Plain steps that the next draft may cost if nothing of it is accepted: never slower by more than was agreed.

        Below 0 after a pass that was dearer than it was priced before: then not even a draft that costs nothing is
        allowed, since its price might be wrong again.
        """
        o = self._options
        if not o.min_speedup:
            return math.inf
        return o.loss_credit + o.max_loss * self._plain + self._won

    def budget(self) -> int:
        """How many tokens to draft at most: less where less is accepted."""
        o = self._options
        _, accepted, drafted = self._sums
        if not o.adapt_budget:
            return o.max_draft
        if not drafted:
            return min(o.max_draft, max(o.min_draft, o.first_draft))
        return min(o.max_draft, max(o.min_draft, 2 + math.ceil(accepted * o.max_draft / drafted)))

    def record(self, committed: int, accepted: int, drafted: int, cost: float) -> None:
        """Enter a verify into the window, and judge."""
        o = self._options
        self._plain += max(committed - 1, 0)
        self._won = min(self._won + committed - cost, MOST_RISKED)
        entry = (committed, accepted, drafted, cost)
        self._window.append(entry)
        self._sums = [s + x for s, x in zip(self._sums, entry, strict=False)]
        if len(self._window) > o.rate_window:
            self._sums = [s - x for s, x in zip(self._sums, self._window.popleft(), strict=False)]
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
