"""The records of version 3: a log that only its own writer can continue.

Each record begins with a head of 24 bytes:

    kind u8, flags u8, zeros u16, value u32, length u64, checksum of the payload u32, chain u32

The chain of a record is the CRC-32 of its head's first 20 bytes, continued from the chain of the record before it; the
first continues the header's checksum, which covers 16 random bytes.  So a record that was swapped, taken from another
file or left over from a turn that was undone has a chain that does not fit, and everything from there on is no part of
the file.  Heads alone are enough to follow the chain: tokens are read without reading a row.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from ..parts import Layout
from .files import Storage
from .header import Header

HEAD = struct.Struct("<BBHIQI")
CHAIN = struct.Struct("<I")
HEAD_BYTES = HEAD.size + CHAIN.size

ROW, BANK, NOTE, PENDING = 1, 2, 3, 4
"""Kinds of records: rows of one position; recurrent parts; a note of the owner; the newest token, without a row yet."""

PINNED = 1
"""Flag of a BANK: a checkpoint of the state."""

CUT = 1
"""Flag of a NOTE: there are only `value` notes from here on.  Of a PENDING: there is no such token any more."""

MAX_NOTE = 16 << 20
"""Bytes of one note at most."""

_BLOCK = 1 << 16  # read at once where heads are close together


def head(kind: int, flags: int, value: int, payload: bytes | memoryview, chain: int) -> tuple[bytes, int]:
    """The head of a record that comes after one of this chain, and its own chain."""
    begin = HEAD.pack(kind, flags, 0, value, len(payload), zlib.crc32(payload))
    chain = zlib.crc32(begin, chain)
    return begin + CHAIN.pack(chain), chain


class Event(NamedTuple):
    """A record that is no ROW.

    position : ROW records before it.  at : where its payload begins.  data : the payload of a NOTE.
    """

    position: int
    kind: int
    flags: int
    value: int
    at: int
    checksum: int
    data: bytes = b""


ROWS = np.dtype(
    [("token", np.uint32), ("held", np.uint8), ("start", np.uint64), ("chain", np.uint32), ("checksum", np.uint32)]
)
"""What an index knows of a ROW record.

held : bit `a` is set where the rows of area `a` are there.
start : where the record begins.  chain : of the record before it.  checksum : of its payload.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """What a file holds, without the rows: never changed, replaced.

    Attributes
    ----------
    end, chain : where the next record goes, and the chain that it continues.
    rows : ROWS [n], one per ROW record.
    events : the other records, in order.
    """

    end: int
    chain: int
    rows: np.ndarray = field(default_factory=lambda: np.empty(0, ROWS))
    events: tuple[Event, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def tokens(self) -> np.ndarray:
        """uint32 [n]: of all positions, zeros for those of a prefix."""
        return self.rows["token"]

    def cut(self, rows: int) -> Index:
        """The index of the records before ROW record `rows`."""
        if rows >= len(self):
            return self
        _, _, end, chain, _ = self.rows[rows].tolist()
        return Index(end, chain, self.rows[:rows], tuple(e for e in self.events if e.position <= rows))

    def with_rows(self, rows: Sequence[tuple[int, int, int, int, int]], end: int, chain: int) -> Index:
        """The index after further ROW records, each as in ROWS."""
        return Index(end, chain, np.concatenate([self.rows, np.array(rows, ROWS)]), self.events)

    def with_event(self, event: Event, end: int, chain: int) -> Index:
        """The index after another record."""
        return replace(self, events=(*self.events, event), end=end, chain=chain)

    def without_banks(self, positions: Collection[int]) -> Index:
        """The index without recurrent parts that turned out to be damaged."""
        events = tuple(e for e in self.events if e.kind != BANK or e.position not in positions)
        return replace(self, events=events) if positions else self

    def notes(self, rows: int | None = None) -> list[bytes]:
        """The notes as they were when the file held `rows` positions (None: now)."""
        found: list[bytes] = []
        for event in self.events:
            if event.kind == NOTE and (rows is None or event.position <= rows):
                del found[event.value :]
                if not event.flags & CUT:
                    found.append(event.data)
        return found

    def pending(self) -> int | None:
        """The token that comes next and has no row yet."""
        token = None
        for event in self.events:
            if event.kind == PENDING and event.position == len(self):
                token = None if event.flags & CUT else event.value
        return token

    def banks(self) -> dict[int, Event]:
        """Positions whose recurrent parts are there."""
        return {event.position: event for event in self.events if event.kind == BANK}

    def low(self, layout: Layout) -> np.ndarray:
        """int64 [areas, n + 1]: the first position from which an area's rows are there without a gap up to position n."""
        areas = [a for a in layout.areas if a.kind != "recurrent"]
        low = np.zeros((len(areas), len(self) + 1), np.int64)
        after = np.arange(1, len(self) + 1)
        for bit in range(len(areas)):
            np.maximum.accumulate(np.where(self.rows["held"] >> bit & 1, 0, after), out=low[bit, 1:])
        return low

    def restorable(self, layout: Layout) -> np.ndarray:
        """bool [n + 1]: whether a state may end at a position: all that a pass there reads is in the file."""
        low, at = self.low(layout), np.arange(len(self) + 1)
        good = np.ones(len(self) + 1, bool)
        for first, area in zip(low, layout.areas, strict=False):
            reads = np.maximum(at - area.window + 1, 0) if area.kind == "ring" else 0
            good &= reads >= np.minimum(first, at)
        if layout.recurrent:
            there = np.zeros(len(self) + 1, bool)
            there[[0, *self.banks()]] = True
            good &= there
        return good


def scan(file: Storage, header: Header, end: int) -> tuple[Index, str]:
    """Follow the chain up to `end`, where the counter says that the records end.

    Returns
    -------
    The index of the records that fit, and why it ends before the counter does ("" if it does not).
    """
    near, size = header.row_bytes < 2048, file.size()
    block, block_at = b"", 0

    def fetch(at: int, count: int) -> bytes:
        nonlocal block, block_at
        if not block_at <= at <= at + count <= block_at + len(block):
            block, block_at = file.read_at(at, max(count, _BLOCK) if near else count), at
        return block[at - block_at : at - block_at + count]

    rows: list[tuple[int, int, int, int, int]] = []
    events: list[Event] = []
    at, chain, why = header.start, header.checksum, ""
    while at < end:
        data = fetch(at, HEAD_BYTES)
        where = f"the record after {len(rows)} positions"
        if len(data) < HEAD_BYTES:
            why = f"the file ends in {where}"
            break
        kind, flags, zeros, value, length, checksum = HEAD.unpack_from(data)
        follows = zlib.crc32(data[: HEAD.size], chain)
        if CHAIN.unpack_from(data, HEAD.size)[0] != follows:
            why = f"{where} does not belong to those before it"
            break
        payload, after = at + HEAD_BYTES, at + HEAD_BYTES + length
        lengths = {ROW: header.row_bytes, BANK: header.bank_bytes, NOTE: min(length, MAX_NOTE), PENDING: 0}
        if zeros or length != lengths.get(kind) or (kind == BANK and value != len(rows)) or after > end:
            why = f"{where} is none: kind {kind}, {length} bytes"
            break
        if after > size:
            why = f"the file ends in {where}"
            break
        content = b""
        if kind == NOTE:
            content = fetch(payload, length)
            if len(content) < length or zlib.crc32(content) != checksum:
                why = f"the note after {len(rows)} positions is damaged"
                break
        if kind == ROW:
            rows.append((value, flags, at, chain, checksum))
        else:
            events.append(Event(len(rows), kind, flags, value, payload, checksum, content))
        at, chain = after, follows
    return Index(at, chain, np.array(rows, ROWS), tuple(events)), why


def text_of(index: Index, prefix_rows: int) -> list[int]:
    """The tokens after a prefix, and the newest one that has no row yet."""
    pending = index.pending()
    return [*index.tokens[prefix_rows:].tolist(), *([] if pending is None else [pending])]
