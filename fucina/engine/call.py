"""The rows of one call of the engine, and how they become a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..cache import State
from ..ops.rows import RowBatch


class CallRows(NamedTuple):
    """One stream's rows of a call, checked: logits are wanted of the last `wanted` of them."""

    state: State
    tokens: np.ndarray  # int64 [n]
    wanted: int


def batch_of(rows: Sequence[CallRows]) -> RowBatch:
    """All rows of a call, stream after stream; made for one stream without joining anything."""
    tokens: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    stream: list[np.ndarray] = []
    wanted: list[np.ndarray] = []
    end = 0
    for i, (state, ids, want) in enumerate(rows):
        n = len(ids)
        tokens.append(ids)
        positions.append(np.arange(state.len, state.len + n))
        stream.append(np.full(n, i))
        end += n
        wanted.append(np.arange(end - want, end))

    def joined(parts: list[np.ndarray]) -> np.ndarray:
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    states = [r.state for r in rows]
    return RowBatch(joined(tokens), joined(positions), joined(stream), states, joined(wanted))
