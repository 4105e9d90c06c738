"""Rows: the unit of a forward pass.

A row is one token of one stream at one position.  Prefill is many rows of one stream, decode one row, a batch one row
of each of several streams; any mixture is one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..cache import MAX_ROWS, State

__all__ = ["MAX_ROWS", "NO_HEAD", "RowBatch"]

NO_HEAD = "the forward of this family does not end with the output matrix: there are no hidden states before it"


@dataclass(frozen=True, slots=True)
class RowBatch:
    """The rows of one pass, already checked.

    The rows of a stream are next to each other, their positions ascending by 1; each stream comes once.

    tokens, positions : int64 [m].
    stream : int64 [m], index into `states` of the stream that a row belongs to.
    states : one state per stream that has rows in this pass.
    out_rows : int64 [n], ascending indices of the rows that want logits.
    hidden_rows : int64 [k], ascending indices of other rows, which want what the head would multiply: their hidden state
        after the last norm.
    """

    tokens: np.ndarray
    positions: np.ndarray
    stream: np.ndarray
    states: Sequence[State]
    out_rows: np.ndarray
    hidden_rows: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
