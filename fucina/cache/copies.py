"""Copies of states: snapshots, and rows that one state takes over from another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..errors import KvCacheOverflow, KvCacheShapeMismatch
from .parts import Part
from .record import Held, Mark, SavedRows

if TYPE_CHECKING:
    from .state import State


@dataclass(frozen=True, slots=True, eq=False)
class StateSnapshot:
    """A copy of a state, made by `State.snapshot`.

    parts, dtype, fingerprint, len : of the state.
    low : per area of planes, the first position held.
    rows : by slot, the stored rows of positions [low, len): keys and values [heads, n, dim], of a latent the keys.
    bank : numbers of all recurrent parts, float32, or None.
    """

    parts: tuple[Part, ...]
    dtype: str
    fingerprint: bytes
    len: int
    low: tuple[int, ...]
    rows: dict[int, tuple[np.ndarray, ...]]
    bank: np.ndarray | None


def take(state: State) -> StateSnapshot:
    """See `State.snapshot`."""
    state.rollback()
    held = state._held
    rows = {slot: p.get(held.low[p.area], held.len) for slot, p in state._planes.items()}
    bank = state._banks[held.marks[-1].bank].copy() if state._banks else None
    return StateSnapshot(state.parts, state.dtype, state.fingerprint, held.len, held.low, rows, bank)


def restore(state: State, snapshot: StateSnapshot) -> None:
    """See `State.restore`."""
    _check_same(state, "the snapshot was taken from a state", snapshot)
    n = snapshot.len
    if n > state.capacity:
        raise KvCacheOverflow(f"the snapshot holds {n} positions, the capacity is {state.capacity}")
    state.reset()
    if n == 0:
        return
    state.begin(n)
    low = tuple(max(at, n - stride) for at, stride in zip(snapshot.low, state._strides, strict=True))
    for slot, rows in snapshot.rows.items():
        planes = state._planes[slot]
        skipped = low[planes.area] - snapshot.low[planes.area]
        planes.put(low[planes.area], tuple(r[:, skipped:] for r in rows))
    adopt(state, n, low, snapshot.bank)


def copy_rows(state: State, source: State, start: int, end: int) -> None:
    """See `State.copy_rows`."""
    _check_same(state, "copy_rows was given a state", source)
    if end <= start:
        return
    if start < 0 or state.len != start:
        raise KvCacheShapeMismatch(
            f"rows from {start} can only be copied after {start} rows, this state holds {state.len}"
        )
    if end > source.len:
        raise KvCacheShapeMismatch(f"rows up to {end} were asked for, the source holds {source.len}")
    if end > state.capacity:
        raise KvCacheOverflow(f"{end} rows pass the capacity of {state.capacity}")
    source.rollback()
    for area, low in zip(state.layout.areas, source._held.low, strict=False):
        needed = max(start, area.first_read(end))
        if needed < min(low, end):
            raise KvCacheShapeMismatch(
                f"rows up to {end} were asked for: in a window of {area.window} they need positions from {needed} on, "
                f"the source holds them from {low} on"
            )
    bank = None
    if source._banks:
        marks = {m.position: m.bank for m in source._held.marks}
        if end not in marks:
            raise KvCacheShapeMismatch(
                f"rows up to {end} were asked for: the source holds its recurrent parts only at "
                f"{', '.join(map(str, sorted(marks)))}"
            )
        bank = source._banks[marks[end]]
    # A ring takes over the latest rows that fit; then it holds nothing older, unless that continues without a gap.
    first = tuple(
        min(end, max(start, at, end - stride)) for at, stride in zip(source._held.low, state._strides, strict=True)
    )
    state.begin(end - start)
    for slot, planes in state._planes.items():
        planes.copy(source._planes[slot], first[planes.area], end)
    written = state._held.low_after(end, state._ring_strides)
    adopt(state, end, tuple(f if f > start else w for f, w in zip(first, written, strict=True)), bank)


def save_rows(state: State, low: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[SavedRows, ...]]:
    """Copies of the rows below `low` that a rollback needs; before them, per area of planes, the first position held."""
    held = state._held
    copied = held.endangered(low, state.layout.areas)
    saved = tuple(
        (slot, held.low[p.area], p.get(held.low[p.area], min(low[p.area], held.len)))
        for slot, p in state._planes.items()
        if p.area in copied
    )
    return tuple(held.low[a] if a in copied else min(at, held.len) for a, at in enumerate(low)), saved


def adopt(state: State, end: int, low: tuple[int, ...], bank: np.ndarray | None) -> None:
    """Close the transaction of a state whose rows were copied: planes hold positions from `low` on, `bank` is copied."""
    held = state._held
    marks: tuple[Mark, ...] = ()
    if state._banks and held.open and bank is not None:
        state._banks[held.open.target][:] = bank
        marks = (*held.kept_marks(), Mark(end, held.open.target))
    state._held = Held(end, low, marks)


def _check_same(state: State, what: str, other: State | StateSnapshot) -> None:
    if other.parts != state.parts or other.dtype != state.dtype:
        raise KvCacheShapeMismatch(f"{what} of another geometry or dtype; expected the same")
    if other.fingerprint != state.fingerprint:
        raise KvCacheShapeMismatch(f"{what} of another model; expected the same")
