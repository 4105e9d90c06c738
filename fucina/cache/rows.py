"""Rows of a state in the order of their positions, as files and the slot pool keep them.

In a state's planes, the rows of one head are neighbours; here everything of one *position* is: for each slot in turn,
the key row of all its heads and then the value row (of a latent, the one row that is both), in the state's dtype.  That
is a *record*, without its token, of the file formats `FUXKV001` to `FUXKV003`.  Its size follows from the layout and
the dtype alone, so the rows of a state of one capacity can go into a state of another.

Recurrent parts have no rows: they are handled beside these, as one array (`recurrent_at`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..errors import KvCacheOverflow, KvCacheShapeMismatch
from .copies import adopt
from .dtypes import DTYPES
from .memory import Planes
from .parts import Kv, Latent, Layout

if TYPE_CHECKING:
    from .state import State


def row_bytes(layout: Layout, dtype: str) -> int:
    """Bytes of one position's rows: of all slots that have rows, the areas with a window included."""
    return DTYPES[dtype].nbytes(sum(_numbers(slot.part) for slot in layout.slots))


def bytes_by_area(layout: Layout, dtype: str) -> list[np.ndarray]:
    """Per area of planes, which bytes of a position's rows are its: indices, int64 [bytes]."""
    sizes = [DTYPES[dtype].nbytes(_numbers(s.part)) for s in layout.slots]
    area_of = np.repeat([s.area for s in layout.slots], sizes)
    return [np.flatnonzero(area_of == i) for i, area in enumerate(layout.areas) if area.kind != "recurrent"]


def held_from(state: State) -> tuple[int, ...]:
    """Per area of planes, the first position whose rows the state holds: above 0 only in windows."""
    return tuple(min(low, state.len) for low in state._held.low)


def recurrent_positions(state: State) -> tuple[int, ...]:
    """Positions above 0 at which the state holds its recurrent parts, ascending; empty if there are none."""
    return tuple(mark.position for mark in state._held.marks if mark.position)


def recurrent_at(state: State, position: int) -> np.ndarray | None:
    """A copy of the recurrent parts as they were at a position, float32 and flat; None for a state without any.

    Raises
    ------
    KvCacheShapeMismatch : the state does not hold them (see `recurrent_positions`).
    """
    state.rollback()
    if state._banks is None:
        return None
    for mark in state._held.marks:
        if mark.position == position:
            return state._banks[mark.bank].copy()
    raise KvCacheShapeMismatch(
        f"recurrent parts at {position} were asked for, the state holds them at {recurrent_positions(state)}"
    )


def pack_rows(state: State, first: int, last: int) -> np.ndarray:
    """Copy positions [first, last) of a state.

    Returns
    -------
    uint8 [last - first, row_bytes] : rows of a window that the state no longer holds (see `held_from`) are zeros.

    Raises
    ------
    KvCacheShapeMismatch : the state does not hold these positions.
    """
    if not 0 <= first <= last <= state.len:
        raise KvCacheShapeMismatch(f"positions {first} to {last} were asked for, the state holds {state.len}")
    state.rollback()
    out = np.zeros((last - first, row_bytes(state.layout, state.dtype)), np.uint8)
    low = held_from(state)
    for planes, fields in _fields(state, out):
        start = max(first, min(low[planes.area], last))
        rows = planes.rows(start, last)
        for plane, field in zip(planes.stored, fields, strict=True):
            field[start - first :] = plane[:, rows].transpose(1, 0, 2)
    return out


def append_rows(
    state: State, pieces: Sequence[np.ndarray], held_from: Sequence[int], recurrent: np.ndarray | None = None
) -> None:
    """Let a state hold more positions, whose rows `pack_rows` gave: `len` grows by those of all pieces.

    The state is as before until all of them are in, however this ends.

    Parameters
    ----------
    pieces : uint8 [n, row_bytes] each
        Rows of the positions from `state.len` on.
    held_from : per area of planes
        The first position whose rows are there (in the state or in the pieces) without a gap up to the end: 0 unless
        the area has a window.
    recurrent : float32, flat
        What `recurrent_at` gave for the new `len`; required for states with recurrent parts.

    Raises
    ------
    KvCacheShapeMismatch : rows of another size; rows are missing that a pass at the new `len` reads; recurrent parts
        that are missing or of another size.
    KvCacheOverflow : they do not fit.
    """
    width, start = row_bytes(state.layout, state.dtype), state.len
    for piece in pieces:
        if piece.dtype != np.uint8 or piece.ndim != 2 or piece.shape[1] != width:
            raise KvCacheShapeMismatch(f"expected rows uint8 [n, {width}], got {piece.dtype} {list(piece.shape)}")
    end = start + sum(len(piece) for piece in pieces)
    if end > state.capacity:
        raise KvCacheOverflow(f"{end} rows pass the capacity of {state.capacity}")
    strides = state.layout.strides(state.capacity)
    low = tuple(min(max(at, end - n), end) for at, n in zip(held_from, strides, strict=True))
    for area, at in zip(state.layout.areas, low, strict=False):
        if not area.holds(end, at):
            raise KvCacheShapeMismatch(
                f"a pass at position {end} reads a window from {area.first_read(end)} on, rows are held from {at} on"
            )
    if state.layout.recurrent:
        numbers = state.layout.areas[-1].width
        if recurrent is None or recurrent.dtype != np.float32 or recurrent.shape != (numbers,):
            found = "none" if recurrent is None else f"{recurrent.dtype} {list(recurrent.shape)}"
            raise KvCacheShapeMismatch(f"expected recurrent parts float32 [{numbers}] at {end}, got {found}")
    if end == start:
        return
    state.begin(end - start)
    at = start
    for piece in pieces:
        for planes, fields in _fields(state, piece):
            skip = max(low[planes.area] - at, 0)  # what would be overwritten at once, or was never held
            if skip < len(piece):
                planes.put(at + skip, tuple(field[skip:].transpose(1, 0, 2) for field in fields))
        at += len(piece)
    adopt(state, end, low, recurrent)


def _numbers(part: object) -> int:
    match part:
        case Kv(heads, k_dim, v_dim):
            return heads * (k_dim + v_dim)
        case Latent(k_dim):
            return k_dim
    return 0


def _fields(state: State, rows: np.ndarray) -> Iterator[tuple[Planes, list[np.ndarray]]]:
    """Per slot with rows: its planes, and views [n, heads, items] of `rows` for each stored plane."""
    items = rows.view(DTYPES[state.dtype].item)
    at = 0
    for _, planes in sorted(state._planes.items()):
        fields = []
        for plane in planes.stored:
            heads, _, dim = plane.shape
            fields.append(items[:, at : at + heads * dim].reshape(len(rows), heads, dim))
            at += heads * dim
        yield planes, fields
