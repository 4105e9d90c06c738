"""The scheduler: which rows run in the next pass, and what becomes of them.

One pass holds the pending rows of every stream that decodes, the drafts of those that have a drafter, and chunks of
prompts in what is left of a budget.  Streams join and leave between any two passes.  Every row has the bits that it
would have alone, so that nothing here can change a token: the scheduler decides about time only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from ..checks import shown
from ..defaults import PREFILL_STRETCH
from ..errors import InvalidDraft, SharedStream
from ..ops.rows import MAX_ROWS
from .call import Hidden
from .drafts import Drafter, PassStats, Verified
from .prefill import PrefillOrder, PrefillShare
from .stream import Stream
from .work import Work

PROMPT_PART = 16  # one row in so many is kept for prompts, if there are any, however many streams decode


class PassRunner(Protocol):
    """What a scheduler needs of an engine: `fucina.engine.Engine` has both, and so does a toy of a few lines."""

    n_tokens: int

    def forward_rows(self, requests: Sequence[Any]) -> list[np.ndarray]:
        """See `Engine.forward_rows`."""


class Scheduler:
    """Runs passes over streams.

    Parameters
    ----------
    engine : Engine, or anything that has its `forward_rows` and `n_tokens`.
    row_budget : rows of a pass at most, 1 to 128.
    stretch : how many times as long as its decode rows alone a pass may take when prompts join it.
    turns : entered for every pass; waiting for it is no part of the time that a pass takes.

    Attributes
    ----------
    streams : those that were added and not removed, in order; the ones that have ended among them.
    """

    def __init__(
        self,
        engine: PassRunner,
        row_budget: int = MAX_ROWS,
        stretch: float = PREFILL_STRETCH,
        turns: AbstractContextManager[None] | None = None,
    ) -> None:
        self.engine, self.row_budget, self._turns = engine, row_budget, turns or nullcontext()
        self.streams: list[Stream] = []
        self._turn = 0  # passes so far: where there are more streams than rows, they take turns
        self._share, self._order = PrefillShare(stretch), PrefillOrder()
        self._helper: ThreadPoolExecutor | None = None

    # --- joining and leaving ------------------------------------------------------------------------------------------

    def add(self, stream: Stream) -> Stream:
        """Let a stream take part from the next pass on.

        Raises
        ------
        SharedStream : its state, tokens, sampler, processor or drafter belongs to another stream here that goes on.
        """
        for other in self.streams:
            if other.finish is None and (thing := _shared(stream, other)):
                raise SharedStream(
                    f"the {thing} is that of another stream of this scheduler; every stream needs its own"
                )
        self.streams.append(stream)
        return stream

    def remove(self, stream: Stream) -> None:
        """Take a stream out; nothing of it is lost."""
        self.streams.remove(stream)
        self._order.forget(stream)

    @property
    def live(self) -> list[Stream]:
        """Streams that go on."""
        return [s for s in self.streams if not s.check_end()]

    # --- a step -------------------------------------------------------------------------------------------------------

    def step(self) -> PassStats | None:
        """Run one pass; return what it was made of, or None if no stream goes on.

        A drafter, sampler, processor or `on_token` that raises ends its own stream (`Stream.error`).  An error of the
        pass itself is raised, and leaves every stream as it was before the step.
        """
        works = self._plan(self.live)
        if not works:
            return None
        self._turn += 1
        decoding = [w for w in works if not w.joins]
        own = sum(w.rows + len(w.draft) for w in decoding)
        context = sum(w.stream.state.len for w in decoding) / len(decoding) if decoding else 0.0
        requests = [(w.stream.state, w.tokens, w.want) for w in works]
        prepared: dict[int, Future[None]] = {}
        try:
            self._start_preparing(works, prepared)
            with self._turns:
                start = perf_counter()
                rows = self.engine.forward_rows(requests)
                seconds = perf_counter() - start
            rows = [self._of_tokens(out, want) for out, (_, _, want) in zip(rows, requests, strict=True)]
            drafted = sum(len(w.draft) for w in works)
            total = sum(len(tokens) for _, tokens, _ in requests)
            stats = PassStats(len(decoding), own, drafted, context, seconds, total - own)
            self._share.learn(stats)
            self._order.note(stats.prefill)
            for work, logits in zip(works, rows, strict=True):
                self._settle(work, logits, stats, prepared.get(id(work.stream)))
        finally:  # after the step nobody but the caller works with a processor, also where the pass has failed
            wait([future for future in prepared.values() if not future.cancel()])
        return stats

    def _of_tokens(self, rows: np.ndarray, want: int | Hidden) -> np.ndarray:
        """Rows without the last logits of a padded vocabulary, which belong to no token."""
        return rows if isinstance(want, Hidden) else rows[:, : self.engine.n_tokens]

    def run(self, stream: Stream) -> Iterator[Stream]:
        """Step until a stream ends, and give it whenever it has gained tokens."""
        while stream.finish is None:
            before = stream.committed
            if self.step() is None:
                break
            if stream.committed > before:
                yield stream

    def _settle(self, work: Work, logits: np.ndarray, stats: PassStats, prepared: Future[None] | None) -> None:
        """Sample the rows of a stream and commit the tokens; an error ends this stream alone."""
        stream, draft = work.stream, work.draft
        if not stream.owns_state:
            stream.check_end()
            return
        if not work.in_place:  # another thread has rewound the state meanwhile: these tokens are pending again
            stream.state.rollback()
            return
        if not work.wanted:
            stream.state.commit(work.rows)
            return
        before, of_prompt, sampled, whole = len(stream.tokens), not stream.decoding, 0, False
        if of_prompt and stream.check_end():  # cancelled before its first token
            stream.state.commit(work.rows - 1)
            return
        try:
            if prepared is not None:
                prepared.result()
            sampled = stream.accept(logits, draft)
            whole = True
        except Exception as error:
            stream.fail(error)
        finally:
            if stream.drafter is not None:
                new = stream.tokens[before:]
                redone = 0 if of_prompt else work.rows - 1
                sampled = sampled if whole else len(new)
                verified = Verified(draft, new, sampled, logits, stats, redone, of_prompt, whole)
                try:
                    stream.drafter.learn(stream, verified)
                except Exception as error:
                    stream.fail(stream.error or error)

    # --- planning -----------------------------------------------------------------------------------------------------

    def _plan(self, live: list[Stream]) -> list[Work]:
        """Decode rows first, then their drafts, then chunks of prompts, and of texts whose rows were given up.

        Every stream that decodes has a row, as far as the budget goes; prompts have a part of the budget in any case.
        """
        decoding, prompts = [s for s in live if not s.filling], [s for s in live if s.filling]
        budget = self.row_budget
        if prompts and budget > 1:
            budget -= max(1, budget // PROMPT_PART)
        if len(decoding) > budget:
            at = self._turn * budget % len(decoding)
            decoding = (decoding[at:] + decoding[:at])[:budget]
        works = []
        for others, stream in zip(reversed(range(len(decoding))), decoding, strict=True):
            works.append(Work.next_of(stream, budget - others))  # more than one row where some were lost
            budget -= works[-1].rows
        self._draft(works, budget)
        works = [w for w in works if w.stream.finish is None]
        own = sum(w.rows + len(w.draft) for w in works)
        taken, contexts = 0, []
        for stream in self._order.sort(prompts):
            contexts.append(stream.state.len)
            left = self._share.rows(own, self.row_budget, contexts) - taken
            if left < 1:
                break
            works.append(Work.next_of(stream, left, joins=True))
            taken += works[-1].rows
        # Where another thread has gone on from the state since, nothing is pending; and the stream ends with an error.
        return [w for w in works if w.rows > 0 or not w.stream.check_end()]

    def _draft(self, works: list[Work], budget: int) -> None:
        """Ask the drafters of streams that have one pending token; all drafts of one kind of drafter together."""
        limit = budget // max(len(works), 1)
        groups: dict[type[Drafter], list[tuple[Work, Drafter]]] = {}
        for w in works:
            if (drafter := w.stream.drafter) is not None and w.rows == w.wanted == 1:
                groups.setdefault(type(drafter), []).append((w, drafter))
        for kind, group in groups.items():
            requests: list[tuple[Drafter, Stream, int]] = []
            for w, drafter in group:
                s = w.stream  # a pass commits one token more than it accepts: the last allowed token needs no draft
                requests.append((drafter, s, max(min(limit, s.free_rows, s.remaining - 1), 0)))
            drafts = kind.draft_many(requests, len(works))
            for (w, _), (_, stream, longest), draft in zip(group, requests, drafts, strict=True):
                if isinstance(draft, Exception):
                    stream.fail(draft)
                elif all(0 <= token < self.engine.n_tokens for token in draft.tokens[:longest]):
                    w.draft = draft.tokens[:longest]
                else:
                    found = shown(list(draft.tokens[:longest]))
                    stream.fail(InvalidDraft(f"a drafter proposed {found}, expected token ids"))

    # --- work beside a pass -------------------------------------------------------------------------------------------

    def _start_preparing(self, works: list[Work], started: dict[int, Future[None]]) -> None:
        """Start what processors want to do before the next row is sampled (a grammar's mask), beside the pass.

        A processor that has a `prepare` has it called on another thread, once per pass, after all its commits; the
        pass that fails or is broken off waits for it too.
        """
        for work in works:
            calls = [p.prepare for p in _processors(work.stream) if callable(getattr(p, "prepare", None))]
            if work.wanted and calls:
                if self._helper is None:
                    self._helper = ThreadPoolExecutor(1, "fucina-prepare")
                started[id(work.stream)] = self._helper.submit(_call_all, calls)


def _shared(stream: Stream, other: Stream) -> str | None:
    """What two streams share although it belongs to one stream."""
    for name in ("state", "tokens", "sampler"):
        if getattr(stream, name) is getattr(other, name):
            return name
    if {id(p) for p in _processors(stream)} & {id(p) for p in _processors(other)}:
        return "processor"
    if stream.drafter is not None and other.drafter is not None:
        return stream.drafter.shared_with(other.drafter)
    return None


def _processors(stream: Stream) -> tuple[Any, ...]:
    """The logit processors of a stream, as far as its sampler has any."""
    return getattr(stream.sampler, "processors", ())


def _call_all(calls: Sequence[Callable[[], None]]) -> None:
    for call in calls:
        call()
