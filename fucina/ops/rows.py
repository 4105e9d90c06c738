"""Rows: the unit of a forward pass.

A row is one token of one stream at one position.  Prefill is many rows of one stream, decode one row, a batch one row
of each of several streams; any mixture is one pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..cache import KvCache
from ..kernels.record import MAX_ROWS  # what a pass may hold is what the native buffers hold

__all__ = ["MAX_ROWS", "RowBatch"]


@dataclass(frozen=True, slots=True)
class RowBatch:
    """The rows of one pass, already checked.

    tokens, positions : int64 [m].
    stream : int64 [m], index into `caches` of the stream that a row belongs to.
    caches : one cache a stream.
    out_rows : int64 [n], ascending indices of the rows that want logits.
    """

    tokens: np.ndarray
    positions: np.ndarray
    stream: np.ndarray
    caches: list[KvCache]
    out_rows: np.ndarray
