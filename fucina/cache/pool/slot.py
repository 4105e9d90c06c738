"""A slot: a state that a request owns until it gives it back."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ...errors import SlotReleased

if TYPE_CHECKING:
    from ..state import State
    from .pool import SlotPool


class Slot:
    """What `SlotPool.acquire` gives: a state of the request's own, with the rows that the pool had.

    Used with `with`, it is discarded at the end of the block unless it was released in it.

    Attributes
    ----------
    tokens : list of int
        The first `cached` tokens of the request: those whose rows the state holds.
    cached : int
        At most one less than the request has: the last token is always computed, since logits are not kept.
    shared : int
        Tokens with which some stored text begins too.  More than `cached` where a window or recurrent parts were not
        kept at that place: whoever computes up to there and calls `store` lets the next request begin there.
    prefix_rows : int
        As given to `acquire`.  If the state is empty although this is not 0, the prefix has to be written.
    """

    def __init__(
        self,
        pool: SlotPool,
        state: State,
        scope: bytes,
        ids: Sequence[int],
        prefix_rows: int,
        shared: int,
    ) -> None:
        self.prefix_rows, self.shared = prefix_rows, shared
        self.cached = max(state.len - prefix_rows, 0)
        self.tokens = list(ids[: self.cached])
        self._pool, self._scope, self._asked = pool, scope, len(ids)
        self._state: State | None = state
        self._claim: object | None = None  # who gives it back

    def __repr__(self) -> str:
        return (
            f"Slot({'given back' if self._state is None else 'in use'}, {self.cached} of {self._asked} tokens cached)"
        )

    @property
    def state(self) -> State:
        """The state; SlotReleased once it was given back."""
        if self._claim is not None or self._state is None:
            raise SlotReleased("this slot was given back; its state belongs to the pool, expected a new acquire()")
        return self._state

    def _claimed_by(self, who: object) -> State:
        """Let somebody give the slot back, and nobody else; the pool's lock is held."""
        if self._claim is not None or self._state is None:
            raise SlotReleased("this slot was given back already, or is being given back by another thread")
        self._claim = who
        return self._state

    def _unclaim(self, who: object) -> None:
        if self._claim is who and self._state is not None:
            self._claim = None

    def _gone(self) -> None:
        """The slot was given back: a stream that goes on from its state ends."""
        if self._state is not None:
            self._state.owner = None
        self._state = None

    def store(self, tokens: Sequence[int]) -> None:
        """Store the rows so far and go on: see `SlotPool.store`."""
        self._pool._store(self.state, tokens, self._scope, self.prefix_rows)

    def release(self, tokens: Sequence[int]) -> None:
        """Give the state back with the text whose rows it holds; the pool keeps those.

        Parameters
        ----------
        tokens : the whole text.  Tokens whose rows were not computed are left out, rows without a token too.

        Raises
        ------
        SlotReleased : it was given back already, or another thread is about to.
        TokenOutOfRange, InvalidOption : the tokens are none.  InvalidPrefix : the state lost its prefix.
        """
        self._pool._release(self, tokens)

    def discard(self) -> None:
        """Give the state back and keep nothing of it; SlotReleased if it was given back already."""
        self._pool._discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._claim is None:
            self.discard()
