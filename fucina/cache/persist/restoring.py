"""From the records of version 3 to a state: the largest true prefix that a pass can go on from."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..rows import append_rows
from ..state import State
from .files import Storage
from .header import Header
from .records import HEAD_BYTES, PINNED, Index

CHUNK_BYTES = 4 << 20
"""Bytes of records that are read or written at once."""


class Restored(NamedTuple):
    """What a file gave.

    tokens : those of the rows after the prefix, and the newest one of a reply, whose row is yet to be computed, if the
        file holds that.
    prefix_rows : rows before them that belong to no token.
    notes : of the owner, as they were at this point.
    cut : positions of the file that were not restored.
    why : what was wrong with them, or with the file; "" if all is there.
    """

    tokens: list[int]
    prefix_rows: int
    notes: list[bytes]
    cut: int = 0
    why: str = ""


def restore(file: Storage, header: Header, index: Index, state: State) -> tuple[Index, Restored]:
    """Fill a state, which is empty.

    Returns
    -------
    The index without what turned out to be damaged, and what the state holds now.  An error leaves the state empty.
    """
    if len(index) > state.capacity:
        why = f"the file holds {len(index)} positions, the cache takes {state.capacity}"
        return index, Restored([], header.prefix_rows, [], len(index), why)
    try:
        good, broken, why = _fill(file, header, index, state)
        whole = index.cut(good).without_banks(broken)
        rows, prefix = state.len, header.prefix_rows
        if rows < prefix:
            state.reset()
            return whole, Restored([], prefix, [], len(index), why or _nothing(index, prefix))
    except BaseException:
        state.reset()
        raise
    tokens = index.tokens[prefix:rows].tolist()
    pending = index.pending()
    if pending is not None and rows == len(index):
        tokens.append(pending)
    if not len(index) and not index.events:
        why = why or "the file holds no rows"
    if rows < len(index) and not why:
        why = f"a pass after {len(index)} positions needs rows or recurrent parts that the file does not hold"
    return whole, Restored(tokens, prefix, index.notes(rows), len(index) - rows, why)


def _nothing(index: Index, prefix: int) -> str:
    return f"the file holds {len(index)} positions, {prefix} of them a prefix, and none that a pass can go on from"


def _fill(file: Storage, header: Header, index: Index, state: State) -> tuple[int, set[int], str]:
    """Append the rows up to the last position that all of them allow.

    Returns
    -------
    Positions whose rows are whole, those whose recurrent parts are damaged, and why these are not all.
    """
    low, stops, banks = index.low(state.layout), index.restorable(state.layout), index.banks()
    pieces: list[np.ndarray] = []
    waiting, good, why = 0, 0, ""
    broken: set[int] = set()

    def flush(end: int) -> bool:
        """Give the state all pieces, which go up to `end`; False if the recurrent parts there are damaged."""
        bank = None
        if state.layout.recurrent:
            event = banks[end]
            data = file.read_at(event.at, header.bank_bytes)
            if len(data) < header.bank_bytes or zlib.crc32(data) != event.checksum:
                broken.add(end)
                return False
            bank = np.frombuffer(data, np.float32)
        append_rows(state, pieces, low[:, end].tolist(), bank)
        return True

    for chunk, bad in _chunks(file, header, index):
        pieces.append(chunk)
        waiting += chunk.nbytes
        good += len(chunk)
        event = banks.get(good)
        wanted = event is not None and event.flags & PINNED if state.layout.recurrent else waiting >= CHUNK_BYTES
        if len(chunk) and wanted and stops[good] and flush(good):
            state.checkpoint()
            pieces, waiting = [], 0
        if bad:
            why = f"the rows of position {good} are damaged"
            break
    # The rest, up to the last position where a state may end.
    while pieces and len(ends := np.flatnonzero(stops[: good + 1])) and (end := int(ends[-1])) > state.len:
        pieces = _first(pieces, end - state.len)
        if flush(end):
            if state.layout.recurrent and banks[end].flags & PINNED:
                state.checkpoint()
            break
        why = why or f"the recurrent parts after {end} positions are damaged"
        stops[end] = False
    return good, broken, why


def _first(pieces: list[np.ndarray], rows: int) -> list[np.ndarray]:
    """The first `rows` rows of some pieces."""
    kept = []
    for piece in pieces:
        kept.append(piece[:rows])
        rows -= len(kept[-1])
        if rows == 0:
            break
    return kept


def _chunks(file: Storage, header: Header, index: Index) -> Iterator[tuple[np.ndarray, bool]]:
    """The rows in pieces uint8 [n, row_bytes] that end at every bank; True beside the last piece before damaged rows."""
    width = HEAD_BYTES + header.row_bytes
    most = max(1, CHUNK_BYTES // width)
    borders = sorted({e.position for e in index.events} | {len(index)})
    at = 0
    for border in borders:
        while at < border:
            n = min(border - at, most)
            data = file.read_at(int(index.rows["start"][at]), n * width)
            whole = len(data) // width
            records = np.frombuffer(data, np.uint8, whole * width).reshape(whole, width)
            rows = records[:, HEAD_BYTES:]
            for i, expected in enumerate(index.rows["checksum"][at : at + whole].tolist()):
                if zlib.crc32(rows[i]) != expected:
                    whole = i
                    break
            yield rows[:whole], whole < n
            if whole < n:
                return
            at += n


def damaged(file: Storage, header: Header, index: Index) -> int | None:
    """The first position whose rows do not have their checksum; None if all have."""
    good = 0
    for chunk, bad in _chunks(file, header, index):
        good += len(chunk)
        if bad:
            return good
    return None
