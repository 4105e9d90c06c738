"""The rows of one call of the engine: how they become a batch, parts of one, and results again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..cache import State
from ..ops.rows import MAX_ROWS, RowBatch


class Hidden(NamedTuple):
    """What a request may want of a pass in place of logits: the hidden states of its last `rows` rows.

    The hidden state of a row is what the output matrix would make its logits of, after the last norm: [rows, dim].
    """

    rows: int


class CallRows(NamedTuple):
    """One stream's rows of a call, checked: logits, or hidden states, are wanted of the last `wanted` of them."""

    state: State
    tokens: np.ndarray  # int64 [n]
    wanted: int
    hidden: bool = False


def batch_of(rows: Sequence[CallRows]) -> RowBatch:
    """All rows of a call, stream after stream; made for one stream without joining anything."""
    tokens: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    stream: list[np.ndarray] = []
    wanted: tuple[list[np.ndarray], list[np.ndarray]] = [], []  # of logits, of hidden states
    end = 0
    for i, (state, ids, want, hidden) in enumerate(rows):
        n = len(ids)
        tokens.append(ids)
        positions.append(np.arange(state.len, state.len + n))
        stream.append(np.full(n, i))
        end += n
        wanted[hidden].append(np.arange(end - want, end))

    def joined(parts: list[np.ndarray]) -> np.ndarray:
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int64), *parts])

    states = [r.state for r in rows]
    logits, hiddens = map(joined, wanted)
    return RowBatch(joined(tokens), joined(positions), joined(stream), states, logits, hiddens)


class Part(NamedTuple):
    """Rows of a batch that fit in one pass, and where its results belong among those of the batch."""

    batch: RowBatch
    logits: slice
    hidden: slice


def part_of(batch: RowBatch, start: int) -> Part:
    """The part of a batch that begins with row `start`."""
    part = slice(start, start + MAX_ROWS)
    taking = np.unique(batch.stream[part])
    stream = np.searchsorted(taking, batch.stream[part])
    ends = (start, start + MAX_ROWS)
    logits, hidden = (slice(*np.searchsorted(rows, ends)) for rows in (batch.out_rows, batch.hidden_rows))
    states = [batch.states[i] for i in taking]
    out_rows, hidden_rows = batch.out_rows[logits] - start, batch.hidden_rows[hidden] - start
    return Part(
        RowBatch(batch.tokens[part], batch.positions[part], stream, states, out_rows, hidden_rows), logits, hidden
    )


def per_request(rows: Sequence[CallRows], logits: np.ndarray, hidden: np.ndarray | None) -> list[np.ndarray]:
    """Each request's rows of the results."""
    out: list[np.ndarray] = []
    at = [0, 0]
    for row in rows:
        found = hidden if row.hidden and hidden is not None else logits
        first = at[row.hidden]
        at[row.hidden] = first + row.wanted
        out.append(found[first : first + row.wanted])
    return out
