"""The state of one stream: what its passes leave, so that the next pass need not recompute it.

A state holds `len` positions.  A call that computes more of them is a transaction:

    state.begin(rows)        room is checked; from here on passes may write
    ... a pass ...
    state.next_pass()        after each pass in which the stream had rows (a long call is cut into several)
    state.commit(rows)       `len` moves; or state.rollback(), and everything is as before

What a pass writes is out of sight until `commit`: rows at or past `len` are scratch, and of recurrent parts another
bank than the committed one is written.  A transaction that was never closed, because Ctrl-C came between the lines, is
rolled back by the next call that needs to know.

Everything that says what is valid is one immutable record, `_Now`, and every method replaces it by one assignment, as
its last act.  So an interrupt at any instruction leaves the state of before or the state of after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..errors import CannotRewind, KvCacheOverflow, KvCacheShapeMismatch, NoOpenPass
from .memory import Banks, Planes, allocate_planes
from .parts import Latent, Layout, Part, Recurrent

CHECKPOINTS = 4
"""Checkpoints of recurrent parts that a state keeps; the oldest goes first."""


class _Mark(NamedTuple):
    """The recurrent parts after `position`, kept in a bank.  A pinned one is a checkpoint that was asked for."""

    position: int
    bank: int
    pinned: bool


_SavedRows = tuple[int, int, tuple[np.ndarray, ...]]  # slot, first position, rows


class _Open(NamedTuple):
    """A transaction: its rows, the banks that the next pass reads and writes, passes done, ring rows to bring back."""

    rows: int
    source: int
    target: int
    passes: int
    saved: tuple[_SavedRows, ...]


class _Now(NamedTuple):
    """What is valid.  During a transaction: what is valid after a rollback.

    len : positions held.
    low : per area, the first position that is still held: above 0 only in rings.
    marks : ascending; the last one is at `len`.  Empty without recurrent parts.
    """

    len: int
    low: tuple[int, ...]
    marks: tuple[_Mark, ...]
    open: _Open | None


@dataclass(frozen=True, slots=True)
class StateSnapshot:
    """A copy of a state, made by `State.snapshot`.

    parts, dtype, fingerprint, len : of the state.
    low : per area, the first position held.
    rows : by slot, the stored rows of positions [low, len): keys and values [heads, n, dim], of a latent the keys.
    bank : numbers of all recurrent parts, or None.
    """

    parts: tuple[Part, ...]
    dtype: str
    fingerprint: bytes
    len: int
    low: tuple[int, ...]
    rows: dict[int, tuple[np.ndarray, ...]]
    bank: np.ndarray | None


class State:
    """The state of one stream.

    Parameters
    ----------
    layout : where the parts lie, or the parts themselves.
    capacity : positions that fit, at least 1.
    dtype : "f16" (the default) or "f32", of keys, values and latents; recurrent parts are always float32.
    fingerprint : names the model that the state belongs to; a pass of another model refuses it.

    Raises
    ------
    KvCacheShapeMismatch : parts or dtype that are none.
    KvCacheOverflow : a capacity that is no count, or more memory than there is.
    """

    def __init__(
        self, layout: Layout | Sequence[Part], capacity: int, dtype: str = "f16", fingerprint: bytes = b""
    ) -> None:
        self.layout = layout if isinstance(layout, Layout) else Layout(layout)
        if isinstance(capacity, bool) or not isinstance(capacity, (int, np.integer)) or capacity < 1:
            raise KvCacheOverflow(f"capacity must be an integer of at least 1 position, got {capacity!r}")
        self.capacity, self.dtype, self.fingerprint = int(capacity), dtype, fingerprint
        self._buffers, self._planes = allocate_planes(self.layout, self.capacity, dtype)
        self._strides = self.layout.strides(self.capacity)
        self._words = [w for b, s in zip(self._buffers, self._strides, strict=True) for w in (b.ctypes.data, s)]
        self._banks = Banks(self.layout) if self.layout.recurrent else None
        marks = (_Mark(0, 0, False),) if self._banks else ()
        self._now = _Now(0, (0,) * len(self._strides), marks, None)

    def __repr__(self) -> str:
        return f"State({self.len} of {self.capacity} positions, {len(self.layout.slots)} slots, {self.dtype})"

    @property
    def parts(self) -> tuple[Part, ...]:
        """What the state consists of, one part per slot."""
        return self.layout.parts

    @property
    def len(self) -> int:
        """Positions held."""
        return self._now.len

    def byte_size(self) -> int:
        """Bytes of all planes and banks; pages that were never touched are counted, though they take no memory."""
        return sum(b.nbytes for b in self._buffers) + (self._banks.byte_size() if self._banks else 0)

    # --- transactions ---------------------------------------------------------------------------------------------

    def begin(self, rows: int) -> None:
        """Start a transaction of `rows` new positions.  One that was left open is rolled back first.

        Raises
        ------
        KvCacheOverflow : they do not fit.
        """
        self.rollback()
        now = self._now
        end = now.len + rows
        if rows < 0 or end > self.capacity:
            raise KvCacheOverflow(f"{rows} rows at position {now.len} pass the capacity of {self.capacity}")
        source = target = 0
        if self._banks:
            source = now.marks[-1].bank
            target = self._banks.spare([mark.bank for mark in now.marks])
        low, saved = self._low_after(end), ()
        if low != now.low:
            low, saved = self._save(low)
        self._now = now._replace(low=low, open=_Open(rows, source, target, 0, saved))

    def next_pass(self) -> None:
        """A pass has written its rows: the bank that it wrote is the one to read now.

        Called after each pass in which the stream had rows, the last one included.

        Raises
        ------
        NoOpenPass : no transaction is open.
        """
        now, transaction = self._now, self._opened()
        if self._banks is None:
            self._now = now._replace(open=transaction._replace(passes=transaction.passes + 1))
            return
        # If another pass follows, it needs a third bank: the one that the last commit left as a way back.
        marks = tuple(m for m in now.marks if m.pinned or m.position == now.len)
        source = transaction.target
        target = self._banks.spare([source, *(m.bank for m in marks)])
        again = transaction._replace(source=source, target=target, passes=transaction.passes + 1)
        self._now = now._replace(marks=marks, open=again)

    def commit(self, rows: int) -> None:
        """Close the transaction and hold its first `rows` rows: all of them, or those of tokens that were accepted.

        Recurrent parts exist after all of the rows only: if fewer are kept, `len` stays where the transaction began,
        and the caller computes these rows again.

        Raises
        ------
        NoOpenPass : no transaction is open, or no pass has written the recurrent parts.
        KvCacheShapeMismatch : more rows than it was begun for.
        """
        now, transaction = self._now, self._opened()
        if not 0 <= rows <= transaction.rows:
            raise KvCacheShapeMismatch(f"the transaction was begun for {transaction.rows} rows, commit got {rows}")
        marks = now.marks
        if self._banks and rows < transaction.rows:
            rows = 0
        if self._banks and rows:
            if not transaction.passes:
                raise NoOpenPass("commit came before any next_pass(): the recurrent parts were not computed")
            marks = (*marks, _Mark(now.len + rows, transaction.source, False))
        self._now = _Now(now.len + rows, self._low_after(now.len + transaction.rows), marks, None)

    def rollback(self) -> None:
        """Drop the open transaction, if there is one.

        `len` and everything that a pass reads from there on are as before `begin`; a ring may have lost older rows,
        which only a rewind would have used.
        """
        now = self._now
        if now.open is None:
            return
        for slot, first, rows in now.open.saved:
            self._planes[slot].put(first, rows)
        self._now = now._replace(open=None)

    def _opened(self) -> _Open:
        if self._now.open is None:
            raise NoOpenPass("no transaction is open; expected begin() first")
        return self._now.open

    def _low_after(self, end: int) -> tuple[int, ...]:
        """First position held per area, once all positions below `end` have been written."""
        return tuple(max(low, end - stride) for low, stride in zip(self._now.low, self._strides, strict=True))

    def _save(self, low: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[_SavedRows, ...]]:
        """What a rollback must bring back if the transaction overwrites all rows below `low`.

        A ring has room for the window and one pass.  Several passes may overwrite rows that the next pass after a
        rollback would read: these rings are copied.  The others lose only rows that a rewind would have used.

        Returns
        -------
        First position per area that is held after a rollback, and the copies.
        """
        now, areas = self._now, self.layout.areas
        lost = [areas[a].first_read(now.len) < min(new, now.len) for a, new in enumerate(low)]
        saved = tuple(
            (slot, now.low[p.area], p.get(now.low[p.area], min(low[p.area], now.len)))
            for slot, p in self._planes.items()
            if lost[p.area]
        )
        return tuple(old if gone else new for old, new, gone in zip(now.low, low, lost, strict=True)), saved

    # --- going back -----------------------------------------------------------------------------------------------

    def rewind_point(self, n: int) -> int:
        """The largest number of positions, at most `n` and `len`, that the state can go back to.

        For planes that keep every position it is `n`; for a ring `n` if the rows that a query at `n` reads are still
        held; for recurrent parts a position whose arrays are held.  All parts must agree; 0 is always possible.
        """
        now = self._now
        point = max(0, min(n, now.len))
        if now.marks:
            point = max((m.position for m in now.marks if m.position <= point), default=0)
        # A ring that cannot go back to this point cannot go back to an earlier one either, so one look is enough.
        for area, low in zip(self.layout.areas, now.low, strict=False):
            if area.first_read(point) < min(low, point):
                return 0
        return point

    def rewind(self, n: int) -> None:
        """Keep the first `n` positions.  An open transaction is rolled back.

        Raises
        ------
        CannotRewind : `rewind_point(n)` is not `n`.
        """
        point = self.rewind_point(n)
        if point != n:
            raise CannotRewind(f"{self!r} cannot go back to {n} positions; the nearest point before is {point}")
        if n == 0:
            self.reset()
            return
        self.rollback()
        now = self._now
        marks = tuple(m for m in now.marks if m.position <= n)
        self._now = _Now(n, tuple(min(low, n) for low in now.low), marks, None)

    def truncate(self, keep: int) -> None:
        """Keep the first `keep` positions; at or above `len` nothing changes.  Raises CannotRewind as `rewind` does."""
        if keep < 0:
            raise KvCacheOverflow(f"truncate keeps at least 0 positions, got {keep}")
        self.rewind(min(keep, self.len))

    def reset(self) -> None:
        """Forget every position, every checkpoint and an open transaction."""
        marks = self._now.marks
        if self._banks and marks[0].position:
            bank = self._banks.spare([m.bank for m in marks])
            self._banks[bank].fill(0)
            marks = (_Mark(0, bank, False),)
        self._now = _Now(0, (0,) * len(self._strides), marks[:1], None)

    def checkpoint(self) -> None:
        """Keep the recurrent parts as they are at `len`, so that a rewind can come back here.

        At most `CHECKPOINTS` are kept, the oldest is dropped.  Changes nothing where there are no recurrent parts.
        """
        now = self._now
        if now.len == 0 or not now.marks:
            return
        marks = [*now.marks[:-1], now.marks[-1]._replace(pinned=True)]
        pinned = [m for m in marks if m.pinned]
        if len(pinned) > CHECKPOINTS:
            marks.remove(pinned[0])
        self._now = now._replace(marks=tuple(marks))

    # --- copies ---------------------------------------------------------------------------------------------------

    def snapshot(self) -> StateSnapshot:
        """A copy of the positions held, independent of what happens to this state later.  Not during a transaction."""
        self.rollback()
        now = self._now
        rows = {slot: p.get(now.low[p.area], now.len) for slot, p in self._planes.items()}
        bank = self._banks[now.marks[-1].bank].copy() if self._banks else None
        return StateSnapshot(self.parts, self.dtype, self.fingerprint, now.len, now.low, rows, bank)

    def restore(self, snapshot: StateSnapshot) -> None:
        """Become what the snapshot holds.  If it is interrupted, the state is as before or empty.

        Raises
        ------
        KvCacheShapeMismatch : it was taken from a state of other parts, of another dtype or model.
        KvCacheOverflow : it holds more positions than fit here.
        """
        self._check_same("the snapshot was taken from a state", snapshot)
        if snapshot.len > self.capacity:
            raise KvCacheOverflow(f"the snapshot holds {snapshot.len} positions, the capacity is {self.capacity}")
        self.reset()
        if snapshot.len == 0:
            return
        self.begin(snapshot.len)
        low = tuple(max(at, snapshot.len - s) for at, s in zip(snapshot.low, self._strides, strict=True))
        for slot, rows in snapshot.rows.items():
            first, area = low[self._planes[slot].area], self._planes[slot].area
            self._planes[slot].put(first, tuple(r[:, first - snapshot.low[area] :] for r in rows))
        self._adopt(snapshot.len, low, snapshot.bank)

    def copy_rows(self, source: State, start: int, end: int) -> None:
        """Copy positions [start, end) of another state to the same positions of this one, and set `len` to `end`.

        Keys carry their position (RoPE), so rows cannot move.  `end <= start` changes nothing.  Every end that
        `source.rewind_point` gives can be copied.

        Raises
        ------
        KvCacheShapeMismatch : other parts, dtype or model; `len` is not `start`; the source does not hold the rows.
        KvCacheOverflow : `end` passes the capacity.
        """
        self._check_same("copy_rows was given a state", source)
        if end <= start:
            return
        if start < 0 or self.len != start:
            raise KvCacheShapeMismatch(
                f"rows from {start} can only be copied after {start} rows, this state holds {self.len}"
            )
        if end > source.len:
            raise KvCacheShapeMismatch(f"rows up to {end} were asked for, the source holds {source.len}")
        source.rollback()
        now, bank = source._now, None
        for area, low in zip(self.layout.areas, now.low, strict=False):
            first = max(start, area.first_read(end))
            if first < min(low, end):
                raise KvCacheShapeMismatch(
                    f"rows up to {end} need positions from {first} on in a window of {area.window}, "
                    f"the source holds them from {low} on"
                )
        if source._banks:
            marks = {m.position: m.bank for m in now.marks}
            if end not in marks:
                raise KvCacheShapeMismatch(
                    f"recurrent parts can only be copied where the source holds them, {sorted(marks)}, not at {end}"
                )
            bank = source._banks[marks[end]]
        self.begin(end - start)
        own = self._low_after(end)
        first = tuple(min(end, max(start, at, end - s)) for at, s in zip(now.low, self._strides, strict=True))
        for slot, planes in self._planes.items():
            planes.copy(source._planes[slot], first[planes.area], end)
        self._adopt(end, tuple(at if at > start else low for at, low in zip(first, own, strict=True)), bank)

    def _adopt(self, end: int, low: tuple[int, ...], bank: np.ndarray | None) -> None:
        """Close a transaction whose rows were copied: `low` is held from, `bank` are the recurrent parts at `end`."""
        now = self._now
        marks = now.marks
        if self._banks and bank is not None:
            target = self._opened().target
            self._banks[target][:] = bank
            marks = (*(m for m in marks if m.pinned or m.position == now.len), _Mark(end, target, False))
        self._now = _Now(end, low, marks, None)

    def _check_same(self, what: str, other: State | StateSnapshot) -> None:
        if other.parts != self.parts or other.dtype != self.dtype:
            raise KvCacheShapeMismatch(f"{what} of another geometry or dtype; expected the same")
        if other.fingerprint != self.fingerprint:
            raise KvCacheShapeMismatch(f"{what} of another model; expected the same")

    # --- access for interpreters ----------------------------------------------------------------------------------

    def words(self) -> list[int]:
        """Two integers per area, for kernels: the address and the stride of its planes.

        The recurrent area's are the addresses of the bank to read and of the bank to write; they need an open
        transaction (NoOpenPass).
        """
        if self._banks is None:
            return list(self._words)
        transaction = self._opened()
        return [*self._words, self._banks.address(transaction.source), self._banks.address(transaction.target)]

    def planes(self, slot: int) -> tuple[np.ndarray, np.ndarray]:
        """Views of a slot's keys [heads, stride, k_dim] and values [heads, stride, v_dim]; row = position % stride."""
        p = self._slot(slot)
        return p.k, p.v

    def write(self, slot: int, position: int, k: np.ndarray, v: np.ndarray | None = None) -> None:
        """Store one position: `k` [heads, k_dim], `v` [heads, v_dim], None for a latent.  `len` does not move."""
        p = self._slot(slot)
        if not 0 <= position < self.capacity:
            raise KvCacheOverflow(f"position {position} is outside the capacity of {self.capacity}")
        p.k[:, position % p.stride] = k
        if not isinstance(self.layout.slots[slot].part, Latent):
            p.v[:, position % p.stride] = v

    def read(self, slot: int, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """Positions [first, last) as float32: keys [heads, n, k_dim] and values [heads, n, v_dim]."""
        p = self._slot(slot)
        rows = np.arange(first, last) % p.stride
        return p.k[:, rows].astype(np.float32), p.v[:, rows].astype(np.float32)

    def recurrent(self, slot: int) -> tuple[np.ndarray, np.ndarray]:
        """The array that the current pass reads and the one that it writes, float32 of the slot's shape."""
        if self._banks is None or not isinstance(self.layout.slots[slot].part, Recurrent):
            raise KvCacheShapeMismatch(f"slot {slot} is not recurrent")
        transaction = self._opened()
        return self._banks.view(transaction.source, slot), self._banks.view(transaction.target, slot)

    def _slot(self, slot: int) -> Planes:
        try:
            return self._planes[slot]
        except KeyError:
            raise KvCacheShapeMismatch(
                f"slot {slot} of a state with {len(self.layout.slots)} slots has no rows"
            ) from None
