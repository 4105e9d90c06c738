"""Row spaces: which rows a tensor has.

Most tensors have the rows of the pass.  After `output_rows` only those remain whose logits or hidden states were asked
for, and after the head those whose logits were; experts work
on a row per (row, expert); a recurrence works on streams.  A kernel learns from its record which word of the job the
number of its rows follows from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...cache.parts import MAX_ROWS
from ...kernels import record as R


@dataclass(frozen=True, slots=True)
class RowSpace:
    """Rows of a kind.

    name : of one of them, for people.
    word : the job's word that their number follows from.
    times : rows per one of what that word counts.
    """

    name: str
    word: int
    times: int = 1

    @property
    def limit(self) -> int:
        """Rows at most."""
        return MAX_ROWS * self.times

    def count(self, job: Sequence[int] | Mapping[int, int]) -> int:
        """Rows in a pass with these job words."""
        return job[self.word] * self.times


PASS = RowSpace("row", R.M)
OUTPUT = RowSpace("out row", R.N_OUT)
LOGITS = RowSpace("row of logits", R.N_LOGITS)
STREAMS = RowSpace("stream", R.N_STREAMS)


def routed(top_k: int) -> RowSpace:
    """A row per row of the pass and expert that it is sent to: number row · top_k + rank."""
    return RowSpace("routed row", R.M, top_k)
