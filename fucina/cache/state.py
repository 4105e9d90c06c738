"""The state of one stream: what its passes leave, so that the next pass need not recompute it; see `fucina.cache`.

One immutable record, `Held`, says what is valid, and every method replaces it by one assignment, as its last act.  So
an interrupt at any instruction leaves the state of before or the state of after.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident

import numpy as np

from ..checks import integer
from ..errors import CannotRewind, KvCacheOverflow, KvCacheShapeMismatch, NoOpenPass
from . import copies
from .copies import StateSnapshot
from .dtypes import DTYPES
from .memory import Banks, Planes, allocate_planes
from .parts import Layout, Part, Recurrent
from .record import Held, Mark, Open, SavedRows


class State:
    """The state of one stream.

    Parameters
    ----------
    layout : where the parts lie, or the parts themselves.
    capacity : positions that fit, at least 1.
    dtype : "f16" (the default), "q8_0" or "f32", of keys, values and latents; recurrent parts are always float32.
    fingerprint : identifies the model that the state belongs to; a pass of another model refuses it.

    Attributes
    ----------
    owner : what the latest stream that goes on from this state knows it by; None after a pass without a stream.

    Raises
    ------
    KvCacheShapeMismatch : parts or dtype that are none; widths that are no multiples of 32 for "q8_0".
    KvCacheOverflow : a capacity that is no count, or more memory than there is.
    """

    def __init__(
        self, layout: Layout | Sequence[Part], capacity: int, dtype: str = "f16", fingerprint: bytes = b""
    ) -> None:
        self.layout = layout if isinstance(layout, Layout) else Layout(layout)
        self.capacity = integer("capacity", capacity, 1, error=KvCacheOverflow)
        self.dtype, self.fingerprint = dtype, fingerprint
        self._buffers, self._planes = allocate_planes(self.layout, self.capacity, dtype)
        self._strides = self.layout.strides(self.capacity)
        self._words = [w for b, s in zip(self._buffers, self._strides, strict=True) for w in (b.ctypes.data, s)]
        self._banks = Banks(self.layout) if self.layout.recurrent else None
        self._ring_strides = self._strides if any(area.kind == "ring" for area in self.layout.areas) else ()
        marks = (Mark(0, 0),) if self._banks else ()
        self._held = Held(0, (0,) * len(self._strides), marks)
        self.owner: object | None = None

    def __repr__(self) -> str:
        return f"State({self.len} of {self.capacity} positions, {len(self.layout.slots)} slots, {self.dtype})"

    @property
    def parts(self) -> tuple[Part, ...]:
        """What the state consists of, one part per slot."""
        return self.layout.parts

    @property
    def len(self) -> int:
        """Positions held."""
        return self._held.len

    def byte_size(self) -> int:
        """Bytes of all planes and banks, pages that were never touched included (they take no memory)."""
        return sum(b.nbytes for b in self._buffers) + (self._banks.byte_size() if self._banks is not None else 0)

    # --- transactions ---------------------------------------------------------------------------------------------

    def begin(self, rows: int) -> None:
        """Start a transaction of `rows` new positions.  One that was left open is rolled back first.

        Raises
        ------
        KvCacheOverflow : they do not fit.
        """
        self.rollback()
        held = self._held
        end = held.len + rows
        if rows < 0 or end > self.capacity:
            raise KvCacheOverflow(f"{rows} rows at position {held.len} pass the capacity of {self.capacity}")
        source = target = 0
        if self._banks:
            source = held.marks[-1].bank
            target = self._banks.spare([m.bank for m in held.marks])
        low = held.low_after(end, self._ring_strides)
        saved: tuple[SavedRows, ...] = ()
        if rows > self.layout.max_rows and low != held.low:
            # A ring has room for its window and the rows of one pass: several passes may overwrite rows that a pass
            # after a rollback would read, so these are copied.  Other rows that go could only serve a rewind.
            low, saved = copies.save_rows(self, low)
        self._held = Held(held.len, low, held.marks, Open(rows, source, target, 0, saved, get_ident()))

    def next_pass(self) -> None:
        """End a pass: the next one reads the recurrent parts that it has left.

        Called after each pass in which the stream had rows, the last one included.

        Raises
        ------
        NoOpenPass : no transaction is open.
        """
        held, transaction = self._held, self._opened()
        if self._banks is None:
            return
        # If another pass follows, it needs a third bank: the one that the last commit has left as a way back.
        marks = held.kept_marks()
        source = transaction.target
        target = self._banks.spare([source, *(m.bank for m in marks)])
        passed = transaction._replace(source=source, target=target, passes=transaction.passes + 1)
        self._held = held._replace(marks=marks, open=passed)

    def commit(self, rows: int) -> None:
        """Close the transaction and hold its first `rows` rows: all of them, or those of tokens that were accepted.

        What exists only after all of the rows (recurrent parts, rows of a window that a long call has overwritten)
        cannot be kept in part: then `len` stays as it was, and the caller computes the rows again.  The recurrent parts
        of before can be gone back to until the next transaction is committed.

        Raises
        ------
        NoOpenPass : no transaction is open, another thread has begun the one that is, or too few passes have written
            the recurrent parts.
        KvCacheShapeMismatch : more rows than it was begun for.
        """
        held, transaction = self._held, self._opened()
        if transaction.thread != get_ident():
            raise NoOpenPass("another thread has begun a transaction of this state; expected one thread per state")
        if not 0 <= rows <= transaction.rows:
            raise KvCacheShapeMismatch(f"the transaction was begun for {transaction.rows} rows, commit got {rows}")
        end, marks, low = held.len + rows, held.marks, held.low_after(held.len + transaction.rows, self._ring_strides)
        if rows < transaction.rows:
            whole = zip(self.layout.areas, low, strict=False)
            if self._banks or not all(area.holds(end, first) for area, first in whole):
                self.rollback()
                return
            low = tuple(min(first, end) for first in low)
        if self._banks and rows:
            if rows > transaction.passes * self.layout.max_rows:
                raise NoOpenPass(f"commit of {rows} rows came after {transaction.passes} next_pass(): they are too few")
            marks = (*marks, Mark(end, transaction.source))
        self._held = Held(end, low, marks)

    def rollback(self) -> None:
        """Drop the open transaction, if there is one: what the next pass reads is as it was before `begin`.

        It may no longer be possible to go back to earlier positions, as after a commit.
        """
        held = self._held
        if held.open is None:
            return
        for slot, first, rows in held.open.saved:
            self._planes[slot].put(first, rows)
        self._held = held._replace(open=None)

    def _opened(self) -> Open:
        if self._held.open is None:
            raise NoOpenPass("no transaction is open; expected a call of begin() first")
        return self._held.open

    # --- going back -----------------------------------------------------------------------------------------------

    def rewind_point(self, n: int) -> int:
        """The largest number of positions, at most `n` and `len`, that all parts can go back to; 0 is always possible.

        Planes that keep every position can go back to any; a ring, if it still holds the rows that a query at `n`
        reads; recurrent parts, to positions whose arrays are held.
        """
        return self._held.rewind_point(n, self.layout.areas)

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
        self._held = self._held.rewound(n)

    def truncate(self, keep: int) -> None:
        """Keep the first `keep` positions; at or above `len` nothing changes.  Raises CannotRewind as `rewind` does."""
        if keep < 0:
            raise KvCacheOverflow(f"truncate keeps at least 0 positions, got {keep}")
        self.rewind(min(keep, self.len))

    def reset(self) -> None:
        """Forget every position, every checkpoint and an open transaction."""
        held = self._held
        marks = held.marks[:1]
        if self._banks and marks[0].position:
            written = (held.open.source, held.open.target) if held.open else ()  # perhaps at this moment, by a pass
            bank = self._banks.spare([*(m.bank for m in held.marks), *written])
            self._banks[bank].fill(0)
            marks = (Mark(0, bank),)
        self._held = Held(0, (0,) * len(self._strides), marks)

    def checkpoint(self) -> None:
        """Keep the recurrent parts as they are at `len`, so that a rewind can come back here.

        At most 4 are kept, the oldest is dropped.  Changes nothing where there are no recurrent parts.
        """
        self._held = self._held.with_checkpoint()

    # --- copies ---------------------------------------------------------------------------------------------------

    def snapshot(self) -> StateSnapshot:
        """A copy of the positions held, independent of this state.  An open transaction is rolled back."""
        return copies.take(self)

    def restore(self, snapshot: StateSnapshot) -> None:
        """Hold what the snapshot holds.  Interrupted, the state is as before or empty.

        Raises
        ------
        KvCacheShapeMismatch : it was taken from a state of other parts, of another dtype or model.
        KvCacheOverflow : it holds more positions than fit here.
        """
        copies.restore(self, snapshot)

    def copy_rows(self, source: State, start: int, end: int) -> None:
        """Copy positions [start, end) of another state to the same positions of this one, and set `len` to `end`.

        Keys depend on their position (RoPE), so rows cannot move.  `end` may be any that `source.rewind_point` gives.

        Raises
        ------
        KvCacheShapeMismatch : other parts, dtype or model; `len` is not `start`; the source does not hold the rows.
        KvCacheOverflow : `end` passes the capacity.
        """
        copies.copy_rows(self, source, start, end)

    # --- access for interpreters ----------------------------------------------------------------------------------

    def words(self) -> list[int]:
        """Two integers per area, for kernels: the address and the stride of its planes.

        The recurrent area's are the addresses of the banks to read and to write; NoOpenPass without a transaction.
        """
        if self._banks is None:
            return list(self._words)
        transaction = self._opened()
        return [*self._words, self._banks.address(transaction.source), self._banks.address(transaction.target)]

    def planes(self, slot: int) -> tuple[np.ndarray, np.ndarray]:
        """Views of a slot's keys [heads, stride, k_dim] and values [heads, stride, v_dim]; row = position % stride.

        In q8_0 they are bytes, 34 for 32 numbers (see `fucina.cache.dtypes`).
        """
        p = self._slot(slot)
        return p.k, p.v

    def write(self, slot: int, position: int, k: np.ndarray, v: np.ndarray | None = None) -> None:
        """Store one position: `k` [heads, k_dim], `v` [heads, v_dim], None for a latent.  `len` does not move."""
        p = self._slot(slot)
        if not 0 <= position < self.capacity:
            raise KvCacheOverflow(f"position {position} is outside the capacity of {self.capacity}")
        for plane, row in zip(p.stored, (k,) if v is None else (k, v), strict=True):
            plane[:, position % p.stride] = DTYPES[self.dtype].encode(row)

    def read(self, slot: int, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """Positions [first, last) as float32: keys [heads, n, k_dim] and values [heads, n, v_dim]."""
        p = self._slot(slot)
        rows, decode = p.rows(first, last), DTYPES[self.dtype].decode
        return decode(p.k[:, rows]), decode(p.v[:, rows])

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
            raise KvCacheShapeMismatch(f"slot {slot} of the {len(self.layout.slots)} slots has no rows") from None
