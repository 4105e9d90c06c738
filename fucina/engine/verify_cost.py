"""What passes cost here, in plain steps: the shape of a table, scaled by measured times.

A plain step is a pass of one row per stream.  The cost of a pass with more rows comes from a table, for its shape,
times a scale that slowly follows what passes really take on this machine: one disturbance cannot flip a decision,
another machine is learned soon.
"""

from __future__ import annotations

from .cost_table import CostTable, default_table
from .drafts import PassStats

PLAIN_ALPHA = 0.25  # weight of a new plain time
SCALE_ALPHA = 0.2  # weight of a new measured cost
SCALE_LOW, SCALE_HIGH = 0.25, 4.0
PATIENCE = 128  # plain passes without a verify, after which a scale above 1 begins to be forgotten ...
FORGET = 0.01  # ... by this part per plain pass
CONTEXTS = 512  # times of passes are compared with those of contexts in the same block of 512 positions


class VerifyCost:
    """Prices passes in plain steps: the table's shape times what was measured.

    Every drafter has one, and learns from each pass that its stream takes part in: so it begins with the table, and
    what disturbed an earlier text does not burden the next one.

    Parameters
    ----------
    table : CostTable, optional
        Gives the shape; default: the package's own.

    Attributes
    ----------
    table : CostTable
    scale : measured cost over the table's, smoothed; 1.0 until something was measured.  Prices that keep all drafts
        out are never measured again: a high scale that no verify confirms therefore fades.
    """

    __slots__ = ("_after", "_curve", "_plain", "_unconfirmed", "scale", "table")

    def __init__(self, table: CostTable | None = None) -> None:
        self.table = default_table() if table is None else table
        self._plain: dict[tuple[int, int], float] = {}  # seconds of a plain pass, by streams and block of contexts
        self._curve: tuple[int, list[float]] = (-1, [])  # block of 64 positions, its curve
        self._unconfirmed = 0
        self._after: int | None = None  # streams of the pass before, if that was a plain one
        self.scale = 1.0

    def curve(self, context: float) -> list[float]:
        """The table's costs of passes of 0, 1, … 128 rows at about this context."""
        block = int(context) // 64
        known, curve = self._curve
        if block != known:
            curve = self.table.curve(64 * block + 32)
            self._curve = block, curve
        return curve

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

    def price(self, stats: PassStats, timed: bool = True) -> float:
        """Return the cost of a pass in plain passes of its streams, and learn from its time.

        A pass with rows of prompts took time for these as well: nothing is learned from it.  A plain pass after a wider
        one may take longer than those of plain decoding do, which follow each other; then it is learned from only if
        nothing better is known.
        """
        timed = timed and not stats.prefill
        plain = not stats.prefill and stats.rows == stats.streams > 0
        after, self._after = self._after, stats.streams if plain else None
        if stats.rows > stats.streams:
            # rows that are computed again want no logits: they are a little cheaper than those of drafts
            seconds = stats.seconds if timed and stats.drafted else None
            return self.verify(stats.rows, stats.context, stats.streams, seconds)
        if timed and plain:
            seconds, known = stats.seconds, self._plain.get((stats.streams, int(stats.context) // CONTEXTS))
            if known is not None and after != stats.streams:
                seconds = min(seconds, known)
            self.note_plain(seconds, stats.streams, stats.context)
        return 1.0

    def note_plain(self, seconds: float, streams: int = 1, context: float = 0) -> None:
        """Learn how long a pass of one row each of `streams` streams took."""
        key = streams, int(context) // CONTEXTS
        old = self._plain.get(key)
        self._plain[key] = seconds if old is None else PLAIN_ALPHA * seconds + (1 - PLAIN_ALPHA) * old
        self._unconfirmed += 1
        if self._unconfirmed > PATIENCE and self.scale > 1.0:
            self.scale += FORGET * (1.0 - self.scale)

    def verify(self, rows: int, context: float = 0, streams: int = 1, seconds: float | None = None) -> float:
        """Return the cost of a pass in plain passes of the same streams, at least 1; learn from its `seconds`.

        Parameters
        ----------
        rows : all rows of the pass.
        context : positions before them, on average.
        streams : streams that share the pass.
        seconds : what it took; None if there is no clock.
        """
        curve = self.curve(context)
        base = curve[min(rows, len(curve) - 1)]
        if streams > 1:
            base = max(base / curve[min(streams, len(curve) - 1)], 1.0)
        plain = self._plain.get((streams, int(context) // CONTEXTS))
        if seconds is not None and plain:
            measured = max(seconds / plain, 1.0)
            sample = min(max(measured / base, SCALE_LOW), SCALE_HIGH)
            scale = SCALE_ALPHA * sample + (1 - SCALE_ALPHA) * self.scale
            self.scale = min(max(scale, SCALE_LOW), SCALE_HIGH)
            self._unconfirmed = 0
        return max(self.scale * base, 1.0)
