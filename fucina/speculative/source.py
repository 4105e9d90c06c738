"""What a source of drafts is, and what it may return."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..engine.drafts import PassStats
from ..errors import InvalidDraft


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
      right if those before it are.  The number of tokens that is expected to win most is then verified; without this,
      the number that a `CostGate` allows.
    - `restart()`: another text begins; `observe` will be given all of it.
    """

    def suggest(self, context: Sequence[int], limit: int) -> Sequence[int]:
        """Return at most `limit` tokens that may follow `context`, which ends with the newest token; none is fine."""

    def observe(self, committed: Sequence[int]) -> None:
        """Enter tokens that have become part of the text: the prompt first, then each step's."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What one step did, for logs and figures.

    kind : "verify", "fallback" (no draft) or "off" (turned off, by the gate or the options).
    drafted, accepted, committed : tokens.
    cost : in plain steps; of a pass of several streams, this one's part.
    stats : of the pass.
    """

    kind: str
    drafted: int
    accepted: int
    committed: int
    cost: float
    stats: PassStats


def wants_top_k(source: Any) -> bool:
    """Whether a source takes feedback from verified rows."""
    return callable(getattr(source, "observe_top_k", None))


def usable(proposed: Any, width: int, vocab: int, stops: Collection[int], source: Any) -> tuple[list[int], int]:
    """Return a proposal up to what cannot be verified, and its own length.

    It is cut before an item that is no id of the vocabulary, or that would end the text, and after `width` tokens.

    Raises
    ------
    InvalidDraft : it is no sequence of tokens at all.
    """
    if proposed is None:
        return [], 0
    if isinstance(proposed, Iterator):
        proposed = list(itertools.islice(proposed, width + 1))
    flat = isinstance(proposed, np.ndarray) and proposed.ndim == 1
    if not flat and (isinstance(proposed, (str, bytes)) or not isinstance(proposed, Sequence)):
        raise InvalidDraft(
            f"suggest() of {type(source).__name__} returned {_kind(proposed)}, expected a sequence of token ids"
        )
    draft: list[int] = []
    for token in proposed[:width]:
        try:
            token = operator.index(token)
        except TypeError:
            break
        if not 0 <= token < vocab or token in stops:
            break
        draft.append(token)
    return draft, len(proposed)


def odds_of(source: Any, n: int) -> list[float]:
    """Return the odds of the first n tokens of the draft that a source returned last.

    Raises
    ------
    InvalidDraft : `odds` gives no sequence of numbers.
    """
    given = source.odds(n)
    try:
        if isinstance(given, (str, bytes)):
            raise TypeError
        return [float(p) for p in itertools.islice(given, n)]
    except (TypeError, ValueError):
        raise InvalidDraft(
            f"odds() of {type(source).__name__} returned {_kind(given)}, expected {n} numbers from 0 to 1"
        ) from None


def _kind(value: Any) -> str:
    return "an array of no dimension" if isinstance(value, np.ndarray) else f"a value of type {type(value).__name__}"
