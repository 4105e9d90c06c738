"""What the decoder and its sources of drafts say to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..decoding import PassTaken


@dataclass(frozen=True, slots=True)
class TopKRow:
    """Feedback of one verified row: the token that went in, and the ids of the highest logits, best first."""

    token: int
    top_k: np.ndarray


@runtime_checkable
class DraftSource(Protocol):
    """What proposes drafts.  It must be deterministic; it cannot change which tokens are committed.

    A source may have more methods.  What is absent is not computed for it:

    - `observe_top_k(rows: Sequence[TopKRow])`: the best tokens of each verified row, after `observe`.
    - `truncate_pending(n: int)`: of the draft just returned, only the first n tokens will be verified.
    - `odds(n: int) -> Sequence[float]`: of each of the first n tokens of the draft just returned, how likely it is
      right if those before it are.  The decoder then verifies as many as are expected to win most; without this, as
      many as the gate's budget allows.
    - `restart()`: another text begins; `observe` will be told all of it.
    """

    def suggest(self, context: Sequence[int], limit: int) -> Sequence[int]:
        """Return at most `limit` tokens that may follow `context`, which ends with the newest token; none is fine."""

    def observe(self, committed: Sequence[int]) -> None:
        """Take note of tokens that have become part of the text: the prompt first, then each step's."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What one step did, for logs and figures.

    kind : "verify", "fallback" (no draft) or "off" (the gate).  cost : in plain steps; of a pass of several
    streams, this one's part.
    """

    kind: str
    drafted: int
    accepted: int
    committed: int
    cost: float
    taken: PassTaken


def wants_top_k(source: Any) -> bool:
    """Whether a source takes feedback from verified rows."""
    return callable(getattr(source, "observe_top_k", None))
