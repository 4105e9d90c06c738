"""Vectors of texts: streams that want hidden states in place of logits, and gain no tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from .. import checks
from ..errors import EmptyInput
from ..interrupts import HoldInterrupts
from .stream import Stream

if TYPE_CHECKING:
    from ..cache import State

Pooling = Literal["last", "mean"]
POOLINGS: tuple[Pooling, ...] = ("last", "mean")


class _NoSampler:
    """Stands where other streams have a sampler: nothing is sampled here."""

    def choose(self, logits: np.ndarray, history: Sequence[int]) -> tuple[int, int]:
        raise AssertionError("a stream of hidden states samples nothing")

    def commit(self, token: int, position: int) -> None:
        raise AssertionError("a stream of hidden states samples nothing")


class HiddenStream(Stream):
    """Texts that are computed one after another, each for a vector of its hidden states.

    To a scheduler it is a stream with a prompt that never ends in a token: its rows join the passes of other streams,
    and have the bits that they have alone.

    Parameters
    ----------
    texts : token ids of each text; at least one text, and none of them empty.
    new_state : makes an empty state for so many positions.
    pooling : "last" takes the hidden state of the last token, "mean" the mean over all tokens, summed in float64 in the
        order of the text.

    Attributes
    ----------
    vectors : float32 [dim] of every text that is complete, of length 1 (or 0, where all numbers are 0).

    Raises
    ------
    EmptyInput : no text, or one without tokens.
    InvalidOption : another pooling.
    KvCacheOverflow : a text does not fit.
    """

    __slots__ = ("_rest", "_state", "_sum", "pooling", "vectors")

    def __init__(
        self, texts: Sequence[Sequence[int]], new_state: Callable[[int], State], pooling: str = "last"
    ) -> None:
        if not texts or not all(len(ids) for ids in texts):
            raise EmptyInput("a vector needs a text of at least one token")
        self.pooling = checks.one_of("pooling", pooling, POOLINGS)
        self.vectors: list[np.ndarray] = []
        self._rest, self._state = [list(map(int, ids)) for ids in reversed(texts)], new_state
        self._sum: np.ndarray | None = None
        first = self._rest.pop()
        super().__init__(new_state(len(first)), first, _NoSampler())

    def wanted(self, rows: int, last: bool) -> int:
        """Of how many of the next rows, the last ones, the hidden states are needed; `last`: they end the text."""
        return rows if self.pooling == "mean" else int(last)

    def accept(self, rows: np.ndarray, draft: Sequence[int] = ()) -> int:
        """Take hidden states, float32 [rows, dim]; at the end of a text keep its vector and go on to the next."""
        done = len(rows) if self.pooling == "mean" else self.pending
        total = np.zeros(rows.shape[1]) if self._sum is None else self._sum.copy()
        for row in rows:
            total += row
        with HoldInterrupts():
            self._sum = total
            self.state.commit(done)
            if self.pending == 0:
                self.vectors.append(unit(total))
                self._sum = None
                if self._rest:
                    self._next()
                else:
                    self.finish = "ended"
        return 0

    def _next(self) -> None:
        ids = self._rest.pop()
        try:
            state = self._state(len(ids))
        except Exception as error:
            self.fail(error)
            return
        self.tokens, self.prompt_end = ids, len(ids)
        self._take(state)


def unit(vector: np.ndarray) -> np.ndarray:
    """A vector scaled to length 1, float32; zeros stay zeros."""
    vector = vector.astype(np.float64)
    length = float(np.sqrt(np.sum(vector * vector)))
    return (vector / length if length > 0 else vector).astype(np.float32)
