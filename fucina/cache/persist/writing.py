"""From a state to records of version 3: what the file does not hold yet, and the counter after it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ... import checks
from ...errors import KvFileInvalid, KvPersistTokenMismatch
from ..rows import held_from, pack_rows, recurrent_at, row_bytes
from ..state import State
from .files import Storage
from .header import Header
from .records import BANK, CUT, HEAD_BYTES, MAX_NOTE, NOTE, PENDING, PINNED, ROW, Event, Index, head
from .restoring import CHUNK_BYTES


def checked(state: State, tokens: Sequence[int], prefix_rows: int, most: int = 1) -> np.ndarray:
    """The tokens as uint32, as many as the state has rows after the prefix, or up to `most` more.

    An open transaction of the state is rolled back: what it has written is no part of the text.

    Raises
    ------
    KvPersistTokenMismatch : they are not.  TokenOutOfRange, InvalidOption : they are no token ids.
    """
    state.rollback()
    ids = checks.token_ids("tokens", tokens, 1 << 32)
    rows = state.len - checks.integer("prefix_rows", prefix_rows, 0)
    if not 0 <= len(ids) - rows <= most:
        raise KvPersistTokenMismatch(
            f"{len(ids)} tokens were given for {state.len} positions of which {prefix_rows} are a prefix; "
            f"expected {rows}" + (" or one more" if most else "")
        )
    return np.array(ids, np.uint32)


def checked_notes(notes: Sequence[bytes]) -> list[bytes]:
    """Notes that a file takes.  Raises KvFileInvalid for one that is no bytes, or too long."""
    for i, note in enumerate(notes):
        if not isinstance(note, bytes):
            raise KvFileInvalid(f"note {i} is {type(note).__name__}; expected bytes")
        if len(note) > MAX_NOTE:
            raise KvFileInvalid(f"note {i} has {len(note)} bytes; expected at most {MAX_NOTE}")
    return list(notes)


@dataclass(slots=True)
class Writer:
    """Writes records after those of an index.

    index : of what was written so far.  written : bytes.
    """

    file: Storage
    header: Header
    index: Index
    written: int = 0

    def write(self, data: bytes | memoryview) -> None:
        """Write at the end."""
        self.file.write_at(self.index.end, data)
        self.written += len(data)

    def rows(self, state: State, tokens: np.ndarray, last: int) -> None:
        """Write ROW records up to position `last`, 4 MiB at once.  `tokens` are those of all positions."""
        low, width = held_from(state), HEAD_BYTES + self.header.row_bytes
        most = max(1, CHUNK_BYTES // width)
        for first in range(len(self.index), last, most):
            stop = min(first + most, last)
            records = np.empty((stop - first, width), np.uint8)
            records[:, HEAD_BYTES:] = pack_rows(state, first, stop)
            end, chain, new = self.index.end, self.index.chain, []
            for i, position in enumerate(range(first, stop)):
                held = sum(1 << area for area, at in enumerate(low) if position >= at)
                payload, token = records[i, HEAD_BYTES:].data, int(tokens[position])
                begin, follows = head(ROW, held, token, payload, chain)
                records[i, :HEAD_BYTES] = np.frombuffer(begin, np.uint8)
                new.append((token, held, end, chain, int.from_bytes(begin[16:20], "little")))
                end, chain = end + width, follows
            self.write(records.reshape(-1).data)
            self.index = self.index.with_rows(new, end, chain)

    def event(self, kind: int, flags: int, value: int, payload: bytes = b"") -> None:
        """Write another record."""
        begin, chain = head(kind, flags, value, payload, self.index.chain)
        at = self.index.end
        event = Event(
            len(self.index), kind, flags, value, at + HEAD_BYTES, zlib.crc32(payload), payload if kind == NOTE else b""
        )
        self.write(begin + payload)
        self.index = self.index.with_event(event, at + HEAD_BYTES + len(payload), chain)

    def state(self, state: State, tokens: np.ndarray) -> None:
        """Write rows and recurrent parts that the index lacks: checkpoints, and the parts at the end."""
        marks = [mark for mark in state._held.marks if mark.position]
        for mark in marks:
            if mark.position >= len(self.index) and (mark.pinned or mark is marks[-1]):
                self.rows(state, tokens, mark.position)
                there = self.index.banks().get(mark.position)
                if there is None or (mark.pinned and not there.flags & PINNED):
                    bank = recurrent_at(state, mark.position)
                    assert bank is not None
                    self.event(BANK, PINNED if mark.pinned else 0, mark.position, bank.tobytes())
        self.rows(state, tokens, state.len)

    def pending(self, token: int | None) -> None:
        """Say which token comes next."""
        if token != self.index.pending():
            self.event(PENDING, CUT if token is None else 0, token or 0)

    def cut_notes(self, notes: Sequence[bytes]) -> None:
        """Say that notes which the owner no longer has are gone; before rows, so that rows never meet older notes."""
        old = self.index.notes()
        if old[: len(notes)] != notes[: len(old)] or len(notes) < len(old):
            same = next((i for i, (a, b) in enumerate(zip(old, notes, strict=False)) if a != b), len(notes))
            self.event(NOTE, CUT, same)

    def notes(self, notes: Sequence[bytes]) -> None:
        """Write the notes that come after those that are there."""
        for i in range(len(self.index.notes()), len(notes)):
            self.event(NOTE, 0, i, notes[i])


def kept(index: Index, state: State, tokens: np.ndarray) -> int:
    """Positions of a file that can stay, when a state of these tokens is written over it.

    They are those of the common prefix; fewer if the state holds rows of a window that the file lacks there, and that
    a pass after the state's last position will read.
    """
    same = min(len(index), state.len)
    different = np.flatnonzero(index.tokens[:same] != tokens[:same])
    same = int(different[0]) if len(different) else same
    for bit, (area, at) in enumerate(zip(state.layout.areas, held_from(state), strict=False)):
        first = max(area.first_read(state.len), at)
        lacking = np.flatnonzero(~index.rows["held"][first:same] >> bit & 1)
        if len(lacking):
            same = min(same, first + int(lacking[0]))
    return same


def prefix_differs(index: Index, state: State, prefix_rows: int, known: bool) -> bool:
    """Whether the rows of a prefix, which no token names, differ from those in the file, or cannot be compared.

    known : the state is the one that the file was last written from, or restored into; its first row is enough then.
    """
    if not prefix_rows or len(index) < prefix_rows:
        return prefix_rows > 0
    if any(held_from(state)) or not row_bytes(state.layout, state.dtype):  # a window moved, or all is recurrent
        return not known
    rows = pack_rows(state, 0, 1 if known else prefix_rows)
    return any(zlib.crc32(row) != crc for row, crc in zip(rows, index.rows["checksum"].tolist(), strict=False))
