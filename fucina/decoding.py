"""One step of decoding, with or without a draft.

A step forwards a stream's newest token and, behind it, a draft: what somebody believes to come next.  Then the sampler
goes through the rows one after another and stops where it chooses something else than was drafted.  What is committed
is always the sampler's own choice on a row that is conditioned on committed tokens only, so a draft changes how many
tokens a pass yields and never which.  Plain decoding is the case of an empty draft; it runs the same code.

Between steps a stream's tokens are one more than the rows of its cache: the newest enters with the next pass.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .errors import InvalidDecodeState, InvalidOption

if TYPE_CHECKING:
    from .cache import KvCache

Sink = Callable[[int], Any]
RowHook = Callable[[int, np.ndarray], None]


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many leading items of two lists are equal."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])


class RowModel(Protocol):
    """What decoding needs of a model: `fucina.Model` has it, and so does a toy of a few lines."""

    def forward_rows(self, requests: Sequence[tuple[Any, Sequence[int], str]]) -> list[np.ndarray]:
        """See `fucina.Model.forward_rows`."""


class DecodeStream:
    """One stream that is being decoded: its tokens, cache and sampler, and when it ends.

    Parameters
    ----------
    cache : KvCache
    sampler : Sampler
    history : list of int
        All tokens so far, prompt included; committed ones are appended.
    sink : callable, optional
        Called with each committed token.  A true answer ends the turn there: no later row is sampled, even inside an
        accepted draft, so that draws and processor are where plain decoding would have left them.
    stop_tokens : collection of int
        A token of these ends the turn and is not committed.
    max_tokens : int, optional
        The turn ends with this many committed tokens, at least 1.
    prefix_rows : int
        Rows that the cache holds in front of the first token of `history`.

    Attributes
    ----------
    ended : bool
        The turn is over.
    stop_token : int or None
        The token of `stop_tokens` that ended it.
    remaining : int
        Tokens that may still be committed.

    Raises
    ------
    InvalidOption
        max_tokens is not an integer of at least 1.
    """

    __slots__ = (
        "cache",
        "ended",
        "history",
        "prefix_rows",
        "remaining",
        "sampler",
        "sink",
        "stop_token",
        "stop_tokens",
    )

    def __init__(
        self,
        cache: KvCache,
        sampler: Any,
        history: list[int],
        sink: Sink | None = None,
        stop_tokens: Collection[int] = (),
        max_tokens: int | None = None,
        prefix_rows: int = 0,
    ) -> None:
        if max_tokens is not None and (isinstance(max_tokens, bool) or max_tokens < 1):
            raise InvalidOption(f"max_tokens must be an integer of at least 1, got {max_tokens!r}")
        self.cache, self.sampler, self.history, self.sink = cache, sampler, history, sink
        self.stop_tokens = frozenset(stop_tokens)
        self.remaining = sys.maxsize if max_tokens is None else int(max_tokens)
        self.prefix_rows = prefix_rows
        self.ended = False
        self.stop_token: int | None = None

    @property
    def room(self) -> int:
        """Rows that still fit in the cache."""
        return self.cache.capacity - self.cache.len

    def check(self, pending: int) -> None:
        """Raise InvalidDecodeState unless the turn goes on and `pending` tokens are not yet in the cache."""
        tokens, rows = len(self.history), self.cache.len - self.prefix_rows
        if self.ended:
            raise InvalidDecodeState("the turn of this stream has ended; a new turn needs a new DecodeStream")
        if tokens == 0 or tokens != rows + pending:
            wanted = "one more than" if pending else "as many as"
            raise InvalidDecodeState(
                f"a stream must have {wanted} its {rows} cached rows in tokens, and at least one: it has {tokens}"
            )

    def commit_rows(self, rows: np.ndarray, draft: Sequence[int], on_row: RowHook | None = None) -> None:
        """Sample rows for as long as they agree with the draft, and commit what was chosen.

        Whatever happens inside, an exception included, `history` and `cache` fit together afterwards and no row of a
        token that was not committed stays in the cache.

        Parameters
        ----------
        rows : float32 [1 + len(draft), vocab]
            Logits after the newest token and after each drafted one.
        draft : sequence of int
        on_row : callable, optional
            Called with the number of tokens that a row is conditioned on and the row, before it is sampled.
        """
        history = self.history
        try:
            for i in range(len(draft) + 1):
                if on_row is not None:
                    on_row(len(history), rows[i])
                token = self.sampler.next(rows[i], history)
                if token in self.stop_tokens:
                    self.stop_token, self.ended = token, True
                    break
                history.append(token)
                self.remaining -= 1
                if self.remaining <= 0:
                    self.ended = True
                if self.sink is not None and self.sink(token):
                    self.ended = True
                if self.ended or i == len(draft) or token != draft[i]:
                    break
        finally:
            self.rewind()

    def rewind(self) -> None:
        """Drop rows of the cache that belong to no committed token, and that of the newest one.

        The newest enters with the next pass.  Where a stop token ended the turn there is no newest one: all rows stay.
        """
        keep = len(self.history) + self.prefix_rows - (self.stop_token is None)
        if self.cache.len > keep and self.cache.can_truncate:
            self.cache.truncate(keep)


@dataclass(frozen=True, slots=True)
class PassTaken:
    """What a pass took.

    streams, rows, drafted : streams in it, rows of all of them, and how many of the rows were drafted tokens.
    context : positions in front of the rows, on average.
    seconds : wall time.
    cost : in plain passes of the same streams, where somebody has priced it already.
    """

    streams: int
    rows: int
    drafted: int
    context: float
    seconds: float
    cost: float | None = None


class Decoder:
    """Decodes one stream, plainly: every step is one row.

    Parameters
    ----------
    model : Model, or anything that has its `forward_rows`.
    on_row : callable, optional
        See `DecodeStream.commit_rows`; for tests and figures.
    """

    streams = 1  # that share the pass to come; a batch says how many

    def __init__(self, model: RowModel, on_row: RowHook | None = None) -> None:
        self.model, self.on_row = model, on_row

    def step(self, stream: DecodeStream) -> int:
        """Run one pass and return how many tokens it committed (0 if a stop token ended the turn).

        Raises
        ------
        InvalidDecodeState
            The turn has ended, or the tokens are not one more than the rows of the cache.
        """
        self.streams = 1
        draft = self.plan(stream)
        context, start = stream.cache.len, perf_counter()
        rows = self.model.forward_rows([(stream.cache, [stream.history[-1], *draft], "all")])[0]
        taken = PassTaken(1, len(draft) + 1, len(draft), context, perf_counter() - start)
        return self.settle(stream, rows, draft, taken)

    def bootstrap_step(self, stream: DecodeStream, logits: np.ndarray) -> int:
        """Commit one token from the logits of a prefill that the caller ran; return 1, or 0 at a stop token.

        Parameters
        ----------
        logits : float32 [vocab] or [1, vocab], of the last token of the history.

        Raises
        ------
        InvalidDecodeState
            The turn has ended, or the tokens are not as many as the rows of the cache.
        """
        stream.check(0)
        before = len(stream.history)
        stream.commit_rows(np.atleast_2d(logits), (), self.on_row)
        return len(stream.history) - before

    def plan(self, stream: DecodeStream, most: int | None = None) -> list[int]:
        """Check the stream and return the draft that the next pass should verify, of at most `most` tokens.

        Plain decoding has none.
        """
        stream.check(1)
        return []

    def settle(self, stream: DecodeStream, rows: np.ndarray, draft: list[int], taken: PassTaken) -> int:
        """Commit what the rows of the pass say; return how many tokens."""
        before = len(stream.history)
        stream.commit_rows(rows, draft, self.on_row)
        return len(stream.history) - before
