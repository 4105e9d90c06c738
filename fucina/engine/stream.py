"""A stream: tokens, and a state that holds rows of a prefix of them.

Whatever is not in the state is *pending*, and a pass takes some of it.  So prefill (many pending tokens), decode (one),
catching up after a break (a few) are one thing, and a stream whose state was rewound or never filled is as good as any
other: it has more pending tokens.

A pass computes rows for pending tokens and a draft; the sampler then goes through the rows one after another and stops
where it chooses something else than was drafted.  Rows enter the state only after that, and only those of tokens that
stand in the text.  At no moment does a state hold a row that its stream's tokens do not explain.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from .. import checks
from ..errors import CannotRewind, InvalidDecodeState, KvCacheOverflow, SharedStream
from ..interrupts import HoldInterrupts
from .drafts import Drafter

if TYPE_CHECKING:
    from ..cache import State

FEW = 32
"""So many pending tokens may belong to a stream that decodes: those of a draft that came to nothing."""

Finish = Literal["stop_token", "ended", "length", "cancelled", "error"]
OnToken = Callable[[int], Any]
OnRow = Callable[[int, np.ndarray], None]


class TokenSampler(Protocol):
    """What a stream needs of a sampler: `fucina.Sampler` has it."""

    def choose(self, logits: np.ndarray, history: Sequence[int]) -> tuple[int, int]:
        """See `Sampler.choose`."""

    def commit(self, token: int, position: int) -> None:
        """See `Sampler.commit`."""


class Stream:
    """One text in the making.

    Parameters
    ----------
    state : State
        Holds `prefix_rows` rows that belong to no token, then rows of the first tokens.
    tokens : list of int
        The whole text so far, at least one token; the stream appends to this list.
    sampler : Sampler
    drafter : Drafter, optional
        Without one, every step is plain.
    stop_tokens : collection of int
        One of these ends the stream, and is not committed.
    max_tokens : int, optional
        The stream ends with this many committed tokens, at least 1.
    on_token : callable, optional
        Called with each committed token; to be quick, since Ctrl-C waits for it.  A true answer ends the stream there:
        no later row is sampled, even inside an accepted draft, so that draws and processor are where plain decoding
        would have left them.
    prefix_rows : int
    on_row : callable, optional
        Called with (number of tokens that a row is conditioned on, raw logits) before a row is sampled; for tests and
        figures.

    Attributes
    ----------
    prompt_end : tokens before the first committed one.
    cut : a pass stops at this many tokens of the prompt, so that the state can be stored there; 0 for nowhere.
    reused : tokens whose rows were in the state already when the stream began.
    finish : None while the stream goes on; then "stop_token", "ended" (by `on_token`), "length" (max_tokens or the
        capacity), "cancelled" or "error".
    stop_token : the token of `stop_tokens` that ended it, or None.
    error : the exception that ended it, or None.

    Raises
    ------
    InvalidDecodeState : there is no token, or the state holds fewer rows than the prefix.
    KvCacheOverflow : the tokens do not fit in the state.
    InvalidOption : max_tokens is not an integer of at least 1.
    """

    __slots__ = (
        "_due", "_key", "cancelled", "cut", "drafter", "error", "finish", "max_tokens", "on_row", "on_token", "prefix_rows",
        "prompt_end", "reused", "sampler", "state", "stop_token", "stop_tokens", "tokens",
    )  # fmt: skip

    def __init__(
        self,
        state: State,
        tokens: list[int],
        sampler: TokenSampler,
        drafter: Drafter | None = None,
        *,
        stop_tokens: Collection[int] = (),
        max_tokens: int | None = None,
        on_token: OnToken | None = None,
        prefix_rows: int = 0,
        on_row: OnRow | None = None,
    ) -> None:
        self.max_tokens = sys.maxsize if max_tokens is None else checks.integer("max_tokens", max_tokens, 1)
        _check_fit(state, tokens, prefix_rows)
        self.tokens, self.sampler, self.drafter = tokens, sampler, drafter
        self.stop_tokens = frozenset(stop_tokens)
        self.on_token, self.on_row, self.prefix_rows = on_token, on_row, prefix_rows
        self.prompt_end = len(tokens)
        self.finish: Finish | None = None
        self.stop_token: int | None = None
        self.error: Exception | None = None
        self.cancelled = False
        self.cut = 0
        self._key: object = None
        self._take(state)
        self.reused = self.cached

    def _take(self, state: State) -> None:
        self.state, self._key, self._due = state, object(), len(self.tokens)
        state.owner = self._key
        self.keep_rows(len(self.tokens) - 1)  # the row of the newest token gives the first logits

    # --- what follows from tokens and state ---------------------------------------------------------------------------

    @property
    def cached(self) -> int:
        """Tokens whose rows the state holds."""
        return self.state.len - self.prefix_rows

    @property
    def pending(self) -> int:
        """Tokens whose rows are still to be computed; at least 1 while the stream goes on."""
        return len(self.tokens) - self.cached

    @property
    def committed(self) -> int:
        """Tokens that the stream has gained."""
        return len(self.tokens) - self.prompt_end

    @property
    def remaining(self) -> int:
        """Tokens that may still be committed."""
        return max(self.max_tokens - self.committed, 0)

    @property
    def free_rows(self) -> int:
        """Rows that still fit in the state after the pending ones."""
        return self.state.capacity - self.prefix_rows - len(self.tokens)

    @property
    def decoding(self) -> bool:
        """Whether the prompt is computed, and the first token is there."""
        return self.committed > 0

    @property
    def filling(self) -> bool:
        """Whether rows of many tokens are still to be computed: of the prompt, or of a text that has lost its rows."""
        return self.cached < self._due or self.pending > FEW

    @property
    def owns_state(self) -> bool:
        """Whether nobody else has gone on from the state since the stream began."""
        return self.state.owner is self._key

    def move(self, state: State) -> None:
        """Go on from another state, which holds rows of a prefix of the tokens, or none: the rest is pending.

        Between two passes.  Tokens, sampler, drafter and text are as they were, and a row has the same bits whenever it
        is computed; so the tokens that follow are the same.

        Raises
        ------
        InvalidDecodeState, KvCacheOverflow : as for a new stream.
        """
        _check_fit(state, self.tokens, self.prefix_rows)
        self._take(state)

    def keep_rows(self, tokens: int) -> None:
        """Let the state hold rows of at most the first `tokens` tokens: of fewer where it cannot go back to that."""
        if self.cached > tokens:
            self.state.rewind(rewind_point(self.state, self.prefix_rows + tokens, self.prefix_rows))

    # --- ends ---------------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """End the stream at its next token or its next pass; from any thread."""
        self.cancelled = True

    def check_end(self) -> bool:
        """Return whether the stream has ended; set `finish` if a limit or `cancel` has ended it."""
        if self.finish is None:
            if not self.owns_state:
                self.fail(SharedStream("the state of this stream was used by another one; every stream needs its own"))
            elif self.remaining == 0 or self.free_rows < 0:
                self.finish = "length"
            elif self.cancelled:
                self.finish = "cancelled"
        return self.finish is not None

    def fail(self, error: Exception) -> None:
        """End the stream with an error of its own."""
        with HoldInterrupts():
            self.error, self.finish = error, "error"

    # --- a step -------------------------------------------------------------------------------------------------------

    def accept(self, rows: np.ndarray, draft: Sequence[int] = ()) -> int:
        """Sample rows for as long as they agree with the draft, and commit what is chosen.

        The state is in the middle of a pass over all pending tokens and the draft; it keeps the rows of tokens that
        stand in the text afterwards, except that of the newest one, which enters with the next pass.  That holds
        however the sampling ends, by an exception too.

        Parameters
        ----------
        rows : float32 [1 + len(draft), vocab]
            Logits after the newest token, and after each drafted one.
        draft : sequence of int

        Returns
        -------
        How many rows were sampled: one per committed token, and one for a stop token.
        """
        tokens, sampled = self.tokens, 0
        try:
            for i in range(len(draft) + 1):
                if self.on_row is not None:
                    self.on_row(len(tokens), rows[i])
                token, position = self.sampler.choose(rows[i], tokens)
                with HoldInterrupts():
                    self.sampler.commit(token, position)
                    sampled += 1
                    if token in self.stop_tokens:
                        self.stop_token, self.finish = token, "stop_token"
                    else:
                        tokens.append(token)
                        if self.on_token is not None and self.on_token(token) and self.finish is None:
                            self.finish = "ended"
                if self.check_end() or i == len(draft) or token != draft[i]:
                    break
        finally:
            self.state.commit(self.pending - (self.stop_token is None))
        return sampled


def _check_fit(state: State, tokens: Sequence[int], prefix_rows: int) -> None:
    if not tokens or state.len < prefix_rows:
        raise InvalidDecodeState(
            f"a stream needs a token, and a state with its {prefix_rows} rows of prefix: "
            f"it has {len(tokens)} tokens and {state.len} rows"
        )
    if prefix_rows + len(tokens) > state.capacity:
        raise KvCacheOverflow(
            f"{len(tokens)} tokens after {prefix_rows} rows of prefix do not fit in a capacity of {state.capacity}"
        )


def rewind_point(state: State, rows: int, at_least: int = 0) -> int:
    """Return the largest number of rows, at most `rows`, that a state can go back to without losing its prefix.

    Raises
    ------
    CannotRewind : it would lose some of the first `at_least` rows, which cannot be computed again.
    """
    point = state.rewind_point(rows)
    if point < at_least:
        raise CannotRewind(
            f"the state can only go back to {point} of {state.len} rows, and {at_least} rows of prefix must stay"
        )
    return point
