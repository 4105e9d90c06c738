"""The engine's thread: one scheduler, which requests join and leave between any two passes.

Every row has the same bits whatever runs beside it, and every request has its own sampler, state and grammar.  So a
reply is exactly the one that its request gets alone; the order of things here decides about time only.

A job waits in the line; then it runs, or waits for a prompt that is being computed and begins as its own does; where
memory is short it is set aside, and waits in the line again.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Self

from .. import checks
from ..defaults import PREFILL_STRETCH
from ..engine import Scheduler
from ..errors import ShuttingDown
from .jobs import GenerateRequest, Job
from .line import Line
from .memory import Memory
from .observer import Observer
from .replies import Replies
from .turns import Turns

if TYPE_CHECKING:
    from ..cache.pool import SlotPool
    from ..model import Model


class Worker:
    """Answers requests for one model, on a thread of its own that alone runs the model.

    Parameters
    ----------
    model : used by nobody else meanwhile.
    pool : where rows come from and go to.
    queue : how many requests may wait.
    streams : how many are answered at once.
    speculation : draft for every stream.
    observer : is told what happens.
    memory : bytes, or a text like "1GiB", for the rows of all streams and of the pool, which gets what the streams leave;
        default: the pool keeps its own budget, and streams have no limit.
    share : how many of those that wait may be one tenant's; default: all.
    stretch : how many times as long as usual a pass may take while prompts are computed beside it.
    turns : shared with the workers of other models, so that one pass runs at a time.

    Raises
    ------
    InvalidOption : a number is out of its range.
    """

    def __init__(
        self,
        model: Model,
        pool: SlotPool,
        queue: int = 16,
        streams: int = 8,
        speculation: bool = False,
        observer: Observer | None = None,
        *,
        memory: int | str | None = None,
        share: int | None = None,
        stretch: float = PREFILL_STRETCH,
        turns: Turns | None = None,
    ) -> None:
        self.model, self.pool, self.speculation = model, pool, speculation
        self.streams = checks.integer("streams", streams, 1)
        self._line = Line(
            checks.integer("queue", queue, 0), None if share is None else checks.integer("share", share, 1)
        )
        self._memory = Memory(model, pool, memory)
        self._observer = observer or Observer()
        self._changed = threading.Condition()
        scheduler = Scheduler(model, stretch=checks.real("stretch", stretch, 1, 1000), turns=turns)
        self._replies = Replies(
            model, pool, self.streams, speculation, self._observer, self._line, self._changed, self._memory, scheduler
        )
        self._closing = False
        self._deadline: float | None = None
        self._thread = threading.Thread(target=self._run, name="fucina-engine", daemon=True)
        self._thread.start()

    # --- from any thread ----------------------------------------------------------------------------------------------

    def submit(self, request: GenerateRequest) -> Job:
        """Ask for a reply; see `submit_all`."""
        return self.submit_all([request])[0]

    def submit_all(self, requests: Sequence[GenerateRequest]) -> list[Job]:
        """Ask for several replies of one tenant, all or none of them; what their prompts share is computed once.

        Raises
        ------
        QueueFull : too many wait already, or too many of this tenant.
        RequestTooLarge : one does not fit in memory.
        ShuttingDown : after `close` or `refuse`.
        """
        jobs = [Job(request) for request in requests]
        for job in jobs:
            self._memory.check(job)
        with self._changed:
            if self._closing:
                raise ShuttingDown("the server ends; it takes no new request")
            self._line.add(jobs, max(self.streams - self.busy, 0))
            self._changed.notify_all()
        return jobs

    @property
    def waiting(self) -> int:
        """Jobs that stand in the line: those that have not begun, and those that were set aside."""
        return len(self._line)

    @property
    def set_aside(self) -> int:
        """Jobs that had to make room for others and wait to go on."""
        return len(self._replies.aside)

    @property
    def longest(self) -> int:
        """Tokens of the longest request that fits in memory, its reply included."""
        return self._memory.longest

    @property
    def stream_bytes(self) -> int:
        """Bytes of rows that streams take; they are counted from lengths."""
        return self._memory.used(list(self._replies.running), 0)

    @property
    def busy(self) -> int:
        """Jobs that are being answered, or wait for the rows of the same prompt."""
        return self._replies.busy

    @property
    def closing(self) -> bool:
        """Whether new requests are refused."""
        return self._closing

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def running(self) -> list[dict[str, int]]:
        """The streams as they are now: tokens of their prompt, of their reply, and how many rows are computed."""
        told = []
        for running in list(self._replies.running):
            s = running.stream
            with suppress(Exception):  # it ends just now
                told.append({"prompt_tokens": s.prompt_end, "completion_tokens": s.committed, "rows": s.cached})
        return told

    def refuse(self) -> None:
        """Take no new request, and end those that wait; what runs goes on."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def close(self, grace: float = 10.0) -> None:
        """Refuse what is new, let what runs go on for some seconds, then end it; return when the thread has ended."""
        with self._changed:
            self._closing = True
            self._deadline = monotonic() + grace
            self._changed.notify_all()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(0.0)

    # --- the engine's thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.busy or len(self._line) or self._closing)
                if self._closing and not self.busy and not len(self._line):
                    self._changed.wait_for(lambda: self._deadline is not None)
                    return
            try:
                self._round()
            except (
                BaseException
            ) as error:  # a fault of ours: nobody may wait for ever, and the next request has a chance
                self._replies.end_all(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    def _round(self) -> None:
        """Let requests join, run a pass, tell what it gave, let those that have ended leave."""
        if self._closing:
            self._replies.end_waiting()
            if self._deadline is not None and monotonic() >= self._deadline:
                self._replies.end_waiting(begun=True)
                self._replies.end_all(ShuttingDown("the server ended before this reply was complete"))
                return
        self._replies.admit()
        for running in self._replies.running:
            if running.job.cancelled:
                running.stream.cancel()
        self._replies.make_room()
        try:
            stats = self._replies.scheduler.step()
        except Exception as error:  # of the pass that all share
            self._replies.end_all(error)
            return
        if stats is not None:
            with suppress(Exception):
                self._observer.passed(stats)
        for running in list(self._replies.running):
            running.share()
            if running.stream.finish is None:
                running.flush()
            else:
                self._replies.settle(running)
