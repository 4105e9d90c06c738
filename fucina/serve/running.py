"""One reply in the making: its slot, its stream, and what its tokens spell."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from ..engine import Stream
from ..engine.text import StreamText
from ..errors import SlotReleased
from ..generation import finish_reason, is_complete
from ..sampling import BiasTokens, Sampler, compose
from ..speculative import make_drafter
from ..speculative.factory import stats_of
from .jobs import Cancelled, Done, Failed, Job, TextDelta, TokenLogprob

if TYPE_CHECKING:
    from ..cache.pool import Slot, SlotPool
    from ..model import Model

FLOOR = -9999.0
"""The logarithm of probabilities that are 0, or too small for a number: JSON has no infinity."""


class Running:
    """A job that has a stream.

    Attributes
    ----------
    job, stream
    joined, first : clock readings: when it got its stream, and its first token (0 before).
    """

    def __init__(self, job: Job, model: Model, pool: SlotPool, speculation: bool) -> None:
        self.job, self.joined, self.first = job, perf_counter(), 0.0
        request = job.request
        self._constraint = None if request.grammar is None else request.grammar.constraint(model, request.grammar_ends)
        biases = BiasTokens(request.biases) if request.biases else None
        sampler = Sampler(request.options, compose(biases, self._constraint))
        drafter = make_drafter(model, speculation, (), self._constraint)
        self._text = StreamText(model.tokenizer, request.stops)
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._row: np.ndarray | None = None
        self._cuts: list[int] = []  # of the prompt, where its rows are to be stored
        self._model = model
        self._pool = pool
        self._capacity = min(model.context, len(request.ids) + request.max_tokens)
        self._slot: Slot | None = self._acquire(request.ids)
        try:
            self.stream = Stream(
                self._slot.state,
                list(request.ids),
                sampler,
                drafter,
                stop_tokens=request.ends,
                max_tokens=request.max_tokens,
                on_token=self._take,
                on_row=None if request.top_logprobs is None else self._note_row,
            )
        except BaseException:
            self._slot.discard()
            raise
        self._cut_where_shared(self._slot)

    def _acquire(self, ids: Sequence[int]) -> Slot:
        return self._pool.acquire(ids, tenant=self.job.request.tenant, capacity=self._capacity)

    # --- rows that others begin with ----------------------------------------------------------------------------------

    def can_share(self, rows: int) -> bool:
        """Whether so many rows of the prompt can be stored: now, or when they are computed."""
        state = self.stream.state
        return rows > state.len or state.rewind_point(rows) == rows

    def share_at(self, rows: int) -> None:
        """Store so many rows of the prompt as soon as they are there; before that, `shares` tells that they are to come."""
        self._cuts = sorted({*self._cuts, rows})
        self.stream.cut = self._cuts[0]

    def shares(self, rows: int) -> bool:
        """Whether so many rows are still to be stored."""
        return rows in self._cuts

    def share(self) -> None:
        """Store rows for others, where the prompt has got to a place at which they were asked for."""
        while self._cuts and self.stream.cached >= self._cuts[0]:
            rows = self._cuts.pop(0)
            self.stream.cut = self._cuts[0] if self._cuts else 0
            if self._slot is not None:
                with suppress(Exception):  # without them the others compute the rows again
                    self._slot.store(self.stream.tokens[:rows])

    def _cut_where_shared(self, slot: Slot) -> None:
        # A text that begins like this one is known, but its windows or recurrent parts were not stored at that place.
        self._cuts = [slot.shared] if self.stream.cached < slot.shared < self.stream.prompt_end else []
        self.stream.cut = self._cuts[0] if self._cuts else 0

    # --- making room for others ---------------------------------------------------------------------------------------

    def set_aside(self) -> None:
        """Give all rows to the pool, and keep the rest: tokens, draws, grammar, drafts and text stay as they are.

        Raises
        ------
        What the pool raises, with nothing held.
        """
        slot, self._slot, self._cuts = self._slot, None, []
        self.job.set_aside += 1
        if slot is None:
            return
        try:
            self.stream.move(self._model.new_cache(self._capacity))  # takes no memory until there are rows
            self.stream.cut = 0
            slot.release(self.stream.tokens)
        except BaseException:
            with suppress(SlotReleased):
                slot.discard()
            raise

    def resume(self) -> None:
        """Go on with the rows that the pool still has; the others are computed again."""
        slot = self._acquire(self.stream.tokens)
        try:
            self.stream.move(slot.state)
        except BaseException:
            slot.discard()
            raise
        self._slot = slot
        self._cut_where_shared(slot)

    # --- what it gives ------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Give out what was decided since the last time."""
        if not self._tokens:
            return
        delta = TextDelta(self._text.unread(), tuple(self._tokens), tuple(self._logprobs))
        self._tokens.clear()
        self._logprobs.clear()
        self.job.put(delta)

    def settle(self, error: Exception | None = None) -> Done | Failed:
        """End the reply: give its rows to the pool, and its last text to its asker; return the event that ends it.

        Parameters
        ----------
        error : what has ended it; by default, what its stream says.
        """
        stream, slot, self._slot = self.stream, self._slot, None
        error = error or stream.error
        if not stream.check_end():
            stream.cancel()
            stream.check_end()
        try:
            if slot is not None:
                slot.release(stream.tokens)
        except Exception as failure:
            error = error or failure
            if slot is not None:
                slot.discard()
        self._text.finish()
        rest = self._text.unread()
        if self._tokens or rest:
            self.job.put(TextDelta(rest, tuple(self._tokens), tuple(self._logprobs)))
        reason = finish_reason(stream, self._text)
        if error is None and reason == "cancelled":
            error = Cancelled("the request was given up")
        end: Done | Failed
        try:
            end = self._done() if error is None else Failed(error)
        except Exception as failure:  # what is told about one reply may not end the others
            end = Failed(failure)
        return end

    def _done(self) -> Done:
        stream, text, request = self.stream, self._text, self.job.request
        complete = None
        if request.grammar is not None and self._constraint is not None:
            complete = is_complete(request.grammar, self._constraint, stream, text)
        drafts = stats_of(stream.drafter)
        return Done(
            "length" if finish_reason(stream, text) == "length" else "stop",
            stream.prompt_end,
            stream.committed,
            stream.reused,
            None if text.fired is None else text.stops.index(text.fired),
            complete,
            0 if drafts is None else drafts.drafted,
            0 if drafts is None else drafts.accepted,
        )

    # --- on the way ---------------------------------------------------------------------------------------------------

    def _note_row(self, length: int, row: np.ndarray) -> None:
        self._row = row

    def _take(self, token: int) -> bool:
        self.first = self.first or perf_counter()
        ended = self._text.take(token)
        self._tokens.append(token)
        if self._row is not None:
            self._logprobs.append(logprob_of(self._row, token, self.job.request.top_logprobs or 0))
        return ended


def logprob_of(row: np.ndarray, token: int, top: int) -> TokenLogprob:
    """The logarithms of the probabilities that a row of logits gives to a token, and to the likeliest ones.

    Equal logits are ordered by lowest id.
    """
    row = row.astype(np.float64)
    highest = row.max()
    total = highest + np.log(np.exp(row - highest).sum())
    best: tuple[tuple[int, float], ...] = ()
    if top:
        top = min(top, len(row))
        least = np.partition(row, len(row) - top)[len(row) - top]
        ids = np.flatnonzero(row >= least)
        ids = ids[np.argsort(-row[ids], kind="stable")][:top]
        best = tuple((int(i), _finite(row[i] - total)) for i in ids)
    return TokenLogprob(token, _finite(row[token] - total), best)


def _finite(value: float) -> float:
    return float(value) if value > FLOOR else FLOOR
