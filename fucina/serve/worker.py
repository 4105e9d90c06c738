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
from ..engine import Scheduler
from ..engine.prefill import PREFILL_STRETCH
from ..errors import ShuttingDown
from .jobs import Cancelled, Done, Failed, GenerateRequest, Job
from .line import Line
from .memory import Memory, to_set_aside
from .observer import Observer
from .running import Running
from .sharing import leader_of

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
    ) -> None:
        self.model, self.pool, self.speculation = model, pool, speculation
        self.streams = checks.integer("streams", streams, 1)
        self._line = Line(
            checks.integer("queue", queue, 0), None if share is None else checks.integer("share", share, 1)
        )
        self._memory = Memory(model, pool, memory)
        self._observer = observer or Observer()
        self._scheduler = Scheduler(model, stretch=checks.real("stretch", stretch, 1, 1000))
        self._running: list[Running] = []
        self._followers: list[tuple[Job, Running, int]] = []  # who waits for how many rows of whose prompt
        self._aside: dict[Job, Running] = {}  # who stands in the line again
        self._changed = threading.Condition()
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
        return len(self._aside)

    @property
    def stream_bytes(self) -> int:
        """Bytes of rows that streams take; they are counted from lengths."""
        return self._memory.used(list(self._running), 0)

    @property
    def busy(self) -> int:
        """Jobs that are being answered, or wait for the rows of the same prompt."""
        return len(self._running) + len(self._followers)

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
        for running in list(self._running):
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
                self._end_all(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    def _round(self) -> None:
        """Let requests join, run a pass, tell what it gave, let those that have ended leave."""
        if self._closing:
            self._end_waiting()
            if self._deadline is not None and monotonic() >= self._deadline:
                self._end_waiting(begun=True)
                self._end_all(ShuttingDown("the server ended before this reply was complete"))
                return
        self._admit()
        for running in self._running:
            if running.job.cancelled:
                running.stream.cancel()
        self._make_room()
        try:
            stats = self._scheduler.step()
        except Exception as error:  # of the pass that all share
            self._end_all(error)
            return
        if stats is not None:
            with suppress(Exception):
                self._observer.passed(stats)
        for running in list(self._running):
            running.share()
            if running.stream.finish is None:
                running.flush()
            else:
                self._settle(running)

    def _admit(self) -> None:
        """Give free streams to those who wait."""
        with self._changed:
            gone = list(self._line.take_out(lambda job: job.cancelled))
        for job in gone:
            self._fail(job, Cancelled("the request was given up"))
        for waiting in list(self._followers):
            job, leader, rows = waiting
            if job.cancelled or leader not in self._running or not leader.shares(rows):
                self._followers.remove(waiting)
                self._start(job)
        while self.busy < self.streams:
            with self._changed:
                next_job = self._line.next(self._fits)
            if next_job is None:
                return
            self._start(next_job)

    def _fits(self, job: Job) -> bool:
        aside = self._aside.get(job)
        tokens = len(job.request.ids) if aside is None else len(aside.stream.tokens)
        return self._memory.fits(job, tokens, self._running)

    def _start(self, job: Job) -> None:
        """Give a job a stream, and let it take part from the next pass on; what fails here fails alone."""
        try:
            if job.cancelled:
                raise Cancelled("the request was given up")
            if not self._fits(job):  # it waited for the rows of another prompt meanwhile
                with self._changed:
                    self._line.put_back(job)
                return
            running = self._aside.get(job)
            if running is not None:
                running.resume()
                del self._aside[job]
            elif self._waits_for_rows(job):
                return
            else:
                running = Running(job, self.model, self.pool, self.speculation)
        except Exception as error:
            self._fail(job, error)
            return
        self._running.append(running)
        self._scheduler.add(running.stream)

    def _waits_for_rows(self, job: Job) -> bool:
        """Let a job wait for the rows of a prompt that begins as its own, if there is one and they are not there yet."""
        leader, rows = leader_of(job, self._running, self._memory)
        if leader is None:
            return False
        leader.share_at(rows)
        leader.share()
        if leader.shares(rows):
            self._followers.append((job, leader, rows))
            return True
        return False

    def _make_room(self) -> None:
        """Set streams aside until the others have the memory that they need; the pool gets the rest."""
        while self._memory.short(self._running):
            running = to_set_aside(self._running)
            self._running.remove(running)
            self._aside[running.job] = running
            self._scheduler.remove(running.stream)
            try:
                self._memory.give_rest(self._running)
                running.set_aside()
            except Exception as error:
                self._fail(running.job, error)
                continue
            with self._changed:
                self._line.put_back(running.job)
            with suppress(Exception):
                self._observer.set_aside(running.job)
        self._memory.give_rest(self._running)

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _settle(self, running: Running, error: Exception | None = None) -> None:
        """End a job that has a stream."""
        with suppress(ValueError):
            self._running.remove(running)
        with suppress(ValueError):
            self._scheduler.remove(running.stream)
        self._aside.pop(running.job, None)
        with suppress(Exception):  # of the pool: nobody may wait for ever
            self._memory.give_rest(self._running)
        self._end(running.job, running.settle(error), running)

    def _fail(self, job: Job, error: Exception) -> None:
        """End a job, whether it has begun or not."""
        if (running := self._aside.get(job)) is not None:
            self._settle(running, error)
        else:
            self._end(job, Failed(error), None)

    def _end(self, job: Job, end: Done | Failed, running: Running | None) -> None:
        """Tell the end of a job: first to who counts, so that the asker finds it counted."""
        with self._changed:
            self._line.forget(job)
        with suppress(Exception):
            self._observer.ended(job, end, running)
        job.put(end)

    def _end_waiting(self, begun: bool = False) -> None:
        """End all that stand in the line; those that have begun only if asked to."""
        with self._changed:
            jobs = list(self._line.take_out(lambda job: begun or job not in self._aside))
        for job in jobs:
            self._fail(job, ShuttingDown("the server ended before this request had its turn"))

    def _end_all(self, error: Exception) -> None:
        """End all that run, and those that wait for their rows."""
        followers, self._followers = self._followers, []
        for job, _, _ in followers:
            self._fail(job, error)
        for running in list(self._running):
            try:
                self._settle(running, error)
            except Exception as worse:  # it has left both lists by then
                running.job.put(Failed(worse))
