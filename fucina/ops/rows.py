"""Rows: the unit of a forward pass.

A row is one token of one stream at one position.  Prefill is many rows of one stream, decode one row, a batch one row
of each of several streams; any mixture is one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..cache import MAX_ROWS, State

__all__ = ["MAX_ROWS", "RowBatch", "StreamRows", "joined"]


@dataclass(frozen=True, slots=True)
class RowBatch:
    """The rows of one pass, already checked.

    The rows of a stream are next to each other, their positions ascending by 1; each stream comes once.

    tokens, positions : int64 [m].
    stream : int64 [m], index into `states` of the stream that a row belongs to.
    states : one state per stream that has rows in this pass.
    out_rows : int64 [n], ascending indices of the rows that want logits.
    """

    tokens: np.ndarray
    positions: np.ndarray
    stream: np.ndarray
    states: Sequence[State]
    out_rows: np.ndarray


class StreamRows(NamedTuple):
    """One stream's rows of a call, checked: logits are wanted of the last `wanted` of them."""

    state: State
    tokens: np.ndarray  # int64 [n]
    wanted: int


def joined(rows: Sequence[StreamRows]) -> RowBatch:
    """All rows of a call, stream after stream; made for one stream without joining anything."""
    tokens, positions, stream, wanted, end = [], [], [], [], 0
    for i, (state, ids, want) in enumerate(rows):
        n = len(ids)
        tokens.append(ids)
        positions.append(np.arange(state.len, state.len + n))
        stream.append(np.full(n, i))
        end += n
        wanted.append(np.arange(end - want, end))
    join = (lambda parts: parts[0]) if len(rows) == 1 else np.concatenate
    return RowBatch(join(tokens), join(positions), join(stream), [r.state for r in rows], join(wanted))
