"""What of a state's memory is valid, as one immutable record that `State` replaces as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .parts import Area

SavedRows = tuple[int, int, tuple[np.ndarray, ...]]
"""Slot, first position, and copies of rows that a rollback writes back."""


CHECKPOINTS = 4
"""Checkpoints of recurrent parts that a state keeps; the oldest goes first."""


class Mark(NamedTuple):
    """The recurrent parts as they were after `position`, kept in a bank; `pinned` if a checkpoint was asked for."""

    position: int
    bank: int
    pinned: bool = False


class Open(NamedTuple):
    """A transaction.

    rows : positions that it computes.
    source, target : banks that the current pass reads and writes.
    passes : passes done.
    saved : rows of rings that a rollback brings back.
    thread : whose it is: no other thread may commit it.
    """

    rows: int
    source: int
    target: int
    passes: int
    saved: tuple[SavedRows, ...]
    thread: int


class Held(NamedTuple):
    """What is valid; during a transaction, what is valid after a rollback.

    len : positions held.
    low : per area of planes, the first position that is still held: above 0 only in rings.
    marks : ascending, the last one at `len`; empty without recurrent parts.
    open : the transaction.
    """

    len: int
    low: tuple[int, ...]
    marks: tuple[Mark, ...] = ()
    open: Open | None = None

    def low_after(self, end: int, strides: Sequence[int]) -> tuple[int, ...]:
        """First position held per area, once all positions below `end` have been written; no strides: no ring."""
        return tuple([max(at, end - n) for at, n in zip(self.low, strides, strict=True)]) if strides else self.low

    def endangered(self, low: Sequence[int], areas: Sequence[Area]) -> set[int]:
        """Areas in which a pass at `len` would miss rows that it reads, if those below `low` were overwritten."""
        return {i for i, at in enumerate(low) if not areas[i].holds(self.len, at)}

    def rewind_point(self, n: int, areas: Sequence[Area]) -> int:
        """The largest number of positions, at most `n`, that all parts can go back to."""
        point = max(0, min(n, self.len))
        if self.marks:
            point = max((m.position for m in self.marks if m.position <= point), default=0)
        # A ring that cannot go back to this point cannot go back to an earlier one either (but to 0), so one check of
        # each part is enough.
        return point if all(a.holds(point, low) for a, low in zip(areas, self.low, strict=False)) else 0

    def rewound(self, n: int) -> Held:
        """The record after going back to `n` positions."""
        return Held(n, tuple(min(low, n) for low in self.low), tuple(m for m in self.marks if m.position <= n))

    def kept_marks(self) -> tuple[Mark, ...]:
        """The checkpoints, and the mark at `len`."""
        return tuple(m for m in self.marks if m.pinned or m.position == self.len)

    def with_checkpoint(self) -> Held:
        """The record with the mark at `len` pinned; 0 needs none, and neither do states without recurrent parts."""
        if self.len == 0 or not self.marks:
            return self
        marks = [*self.marks[:-1], self.marks[-1]._replace(pinned=True)]
        pinned = [m for m in marks if m.pinned]
        if len(pinned) > CHECKPOINTS:
            marks.remove(pinned[0])
        return self._replace(marks=tuple(marks))
