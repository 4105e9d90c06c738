"""Versions 1 and 2 of the format, byte for byte: a header, then one record per position, and a count.

A record is the token, u32, and the rows of one position (`fucina.cache.rows`).  Version 2 has rows at the beginning that
belong to no token.  There are no checks: `load` compares the geometry, as the format says, and believes the rest.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from ...errors import KvFileInvalid
from ..parts import Kv
from ..rows import append_rows, held_from, pack_rows, row_bytes
from ..state import State
from .header import Header, plain_bytes, read
from .restoring import CHUNK_BYTES, Restored

if TYPE_CHECKING:
    from .files import Storage


def check_expressible(state: State) -> None:
    """Raise KvFileInvalid for a state that these versions cannot hold."""
    if state.dtype not in ("f16", "q8_0"):
        raise KvFileInvalid(f"versions 1 and 2 hold rows of f16 or q8_0, those of the state are {state.dtype}")
    for i, part in enumerate(state.parts):
        if not isinstance(part, Kv) or part.k_dim != part.v_dim:
            raise KvFileInvalid(f"versions 1 and 2 hold keys and values of one size; part {i} is {part}")


def append(file: Storage, state: State, tokens: np.ndarray, prefix_rows: int) -> int:
    """Make a file of version 1 (with a prefix: 2) hold a state's rows; returns the bytes written.

    tokens : uint32, one per position after the prefix.

    A file of another kind, geometry or prefix is begun anew.  Records come first and the count last: after a crash
    between the two, the old count holds.  Where records that count already must change, the count goes down first.
    """
    check_expressible(state)
    row = 4 + row_bytes(state.layout, state.dtype)
    every = np.concatenate([np.zeros(prefix_rows, np.uint32), tokens])
    header, written, count, first = _matching(file, state, prefix_rows), 0, 0, 0
    if header is not None:
        # The count may be above what the file has, and what it has may be of a turn that was undone since.
        count, first = count_of(file), min(header.rows, state.len)
        there = tokens_of(file, header, first)
        first = next((i for i in range(prefix_rows, first) if there[i] != every[i]), first)
    if first < state.len and any(low > first for low in held_from(state)):
        raise KvFileInvalid(
            f"the state no longer holds all rows from position {first} on (a window has moved); "
            f"versions 1 and 2 need them, version 3 does not"
        )
    if header is None:
        data = plain_bytes(state.parts, state.dtype, prefix_rows, 0)
        file.truncate(0)
        file.write_at(0, data)
        start = written = len(data)
    else:
        start = header.start
    if first == state.len == count:
        return written
    if first < min(count, state.len):  # records that count are never written over
        file.write_at(8, struct.pack("<Q", first))
        written += 8
    most = max(1, CHUNK_BYTES // row)
    for at in range(first, state.len, most):
        stop = min(at + most, state.len)
        records = np.empty((stop - at, row), np.uint8)
        records[:, :4] = every[at:stop].astype("<u4")[:, None].view(np.uint8)
        records[:, 4:] = pack_rows(state, at, stop)
        file.write_at(start + at * row, records.reshape(-1).data)
        written += records.nbytes
    file.write_at(8, struct.pack("<Q", state.len))
    return written + 8


def count_of(file: Storage) -> int:
    """The count of records, as it is in the file."""
    return struct.unpack("<Q", file.read_at(8, 8))[0]


def tokens_of(file: Storage, header: Header, rows: int) -> list[int]:
    """The tokens of the first records; zeros in the prefix mean nothing."""
    width = 4 + header.row_bytes
    return [int.from_bytes(file.read_at(header.start + i * width, 4), "little") for i in range(rows)]


def _matching(file: Storage, state: State, prefix_rows: int) -> Header | None:
    """The header of a file that can be continued."""
    try:
        header = read(file)
    except KvFileInvalid:
        return None
    if header.version > 2 or header.prefix_rows != prefix_rows or _differs(header, state):
        return None
    return header


def _differs(header: Header, state: State) -> bool:
    plain = tuple(Kv(p.kv_heads, p.k_dim, p.v_dim) for p in state.parts if isinstance(p, Kv))
    return header.dtype != state.dtype or header.parts != plain


def load(file: Storage, header: Header, state: State) -> Restored:
    """Fill an empty state from a file of version 1 or 2 whose header fits it.

    `tokens` is empty, and `why` says why, if the count is above the capacity or leaves nothing after the prefix, or if
    the file ends in the prefix.  A file that ends earlier than its count gives the positions that it has.
    """
    count = count_of(file)
    prefix, row = header.prefix_rows, 4 + header.row_bytes
    if count > state.capacity:
        return Restored([], prefix, [], count, f"the file claims {count} positions, the cache takes {state.capacity}")
    if min(header.rows, count) <= prefix:
        return Restored([], prefix, [], count, f"the file holds {header.rows} positions, {prefix} of them a prefix")
    tokens: list[int] = []
    pieces: list[np.ndarray] = []
    most = max(1, CHUNK_BYTES // row)
    for at in range(0, header.rows, most):
        data = file.read_at(header.start + at * row, min(most, header.rows - at) * row)
        whole = len(data) // row
        records = np.frombuffer(data, np.uint8, whole * row).reshape(whole, row)
        tokens += np.ascontiguousarray(records[:, :4]).view("<u4")[:, 0].tolist()
        pieces.append(records[:, 4:])
        if whole < min(most, header.rows - at):
            break
    if len(tokens) <= prefix:
        return Restored([], prefix, [], count, "the file ends in its prefix")
    append_rows(state, pieces, [0] * len(held_from(state)))
    cut = count - len(tokens)
    return Restored(tokens[prefix:], prefix, [], cut, f"the file ends after {len(tokens)} positions" if cut else "")


def checked_version(version: int, prefix_rows: int) -> None:
    """Raise KvFileInvalid for a version that is none, or that has no prefix where there is one."""
    if version not in (1, 2, 3):
        raise KvFileInvalid(f"version must be 1, 2 or 3, got {version!r}")
    if version == 1 and prefix_rows:
        raise KvFileInvalid(f"version 1 has no prefix, {prefix_rows} rows of one were given; expected version 2 or 3")
