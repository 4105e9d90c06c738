"""The replies that are being made: who gets a stream, who waits for rows, who makes room, and how each of them ends.

For the engine's thread alone, except for what is only counted.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from ..engine import Scheduler
from ..errors import ShuttingDown
from .jobs import Cancelled, Done, Failed, Job
from .line import Line
from .memory import Memory, to_set_aside
from .observer import Observer
from .running import Running
from .sharing import leader_of
from .vectors import Embedding, VectorRequest

if TYPE_CHECKING:
    from ..cache.pool import SlotPool
    from ..model import Model


class Replies:
    """Jobs on their way from the line to their end.

    Parameters
    ----------
    model, pool, streams, speculation, observer : see `Worker`.
    line, lock : the jobs that wait, and what guards them.
    memory : decides who fits.

    Attributes
    ----------
    running : those that have a stream which takes part in passes.
    aside : those that had one and stand in the line again.
    scheduler : runs the passes.
    """

    def __init__(
        self,
        model: Model,
        pool: SlotPool,
        streams: int,
        speculation: bool,
        observer: Observer,
        line: Line,
        lock: threading.Condition,
        memory: Memory,
        scheduler: Scheduler,
    ) -> None:
        self._model, self._pool, self._streams, self._speculation = model, pool, streams, speculation
        self._observer, self._line, self._lock, self._memory = observer, line, lock, memory
        self.scheduler = scheduler
        self.running: list[Running] = []
        self.aside: dict[Job, Running] = {}
        self._followers: list[tuple[Job, Running, int]] = []  # who waits for how many rows of whose prompt

    @property
    def busy(self) -> int:
        """Jobs that have a place: those that run, and those that wait for rows of the same prompt."""
        return len(self.running) + len(self._followers)

    def admit(self) -> None:
        """Give free streams to those who wait."""
        with self._lock:
            gone = list(self._line.take_out(lambda job: job.cancelled))
        for job in gone:
            self.fail(job, Cancelled("the request was given up"))
        for waiting in list(self._followers):
            job, leader, rows = waiting
            if job.cancelled or leader not in self.running or not leader.shares(rows):
                self._followers.remove(waiting)
                self._start(job)
        while self.busy < self._streams:
            with self._lock:
                next_job = self._line.next(self._fits)
            if next_job is None:
                return
            self._start(next_job)

    def _fits(self, job: Job) -> bool:
        aside = self.aside.get(job)
        tokens = len(job.request.ids) if aside is None else len(aside.stream.tokens)
        return self._memory.fits(job, tokens, self.running)

    def _start(self, job: Job) -> None:
        """Give a job a stream, and let it take part from the next pass on; what fails here fails alone."""
        try:
            if job.cancelled:
                raise Cancelled("the request was given up")
            if not self._fits(job):  # it waited for the rows of another prompt meanwhile
                with self._lock:
                    self._line.put_back(job)
                return
            running = self.aside.get(job)
            if running is not None:
                running.resume()
                del self.aside[job]
            elif isinstance(job.request, VectorRequest):
                running = Embedding(job, job.request, self._model)
            elif self._waits_for_rows(job):
                return
            else:
                running = Running(job, self._model, self._pool, self._speculation)
        except Exception as error:
            self.fail(job, error)
            return
        self.running.append(running)
        self.scheduler.add(running.stream)

    def _waits_for_rows(self, job: Job) -> bool:
        """Let a job wait for the rows of a prompt that begins as its own, if there is one and they are not there yet."""
        leader, rows = leader_of(job, self.running, self._memory)
        if leader is None:
            return False
        leader.share_at(rows)
        leader.share()
        if leader.shares(rows):
            self._followers.append((job, leader, rows))
            return True
        return False

    def make_room(self) -> None:
        """Set streams aside until the others have the memory that they need; the pool gets the rest."""
        while self._memory.short(self.running):
            running = to_set_aside(self.running)
            self.running.remove(running)
            self.aside[running.job] = running
            self.scheduler.remove(running.stream)
            try:
                self._memory.give_rest(self.running)
                running.set_aside()
            except Exception as error:
                self.fail(running.job, error)
                continue
            with self._lock:
                self._line.put_back(running.job)
            with suppress(Exception):
                self._observer.set_aside(running.job)
        self._memory.give_rest(self.running)

    # --- ends ---------------------------------------------------------------------------------------------------------

    def settle(self, running: Running, error: Exception | None = None) -> None:
        """End a job that has a stream."""
        with suppress(ValueError):
            self.running.remove(running)
        with suppress(ValueError):
            self.scheduler.remove(running.stream)
        self.aside.pop(running.job, None)
        with suppress(Exception):  # of the pool: nobody may wait for ever
            self._memory.give_rest(self.running)
        self._end(running.job, running.settle(error), running)

    def fail(self, job: Job, error: Exception) -> None:
        """End a job, whether it has begun or not."""
        if (running := self.aside.get(job)) is not None:
            self.settle(running, error)
        else:
            self._end(job, Failed(error), None)

    def _end(self, job: Job, end: Done | Failed, running: Running | None) -> None:
        """Tell the end of a job: first to who counts, so that the asker finds it counted."""
        with self._lock:
            self._line.forget(job)
        with suppress(Exception):
            self._observer.ended(job, end, running)
        job.put(end)

    def end_waiting(self, begun: bool = False) -> None:
        """End all that stand in the line; those that have begun only if asked to."""
        with self._lock:
            jobs = list(self._line.take_out(lambda job: begun or job not in self.aside))
        for job in jobs:
            self.fail(job, ShuttingDown("the server ended before this request had its turn"))

    def end_all(self, error: Exception) -> None:
        """End all that run, and those that wait for their rows."""
        followers, self._followers = self._followers, []
        for job, _, _ in followers:
            self.fail(job, error)
        for running in list(self.running):
            try:
                self.settle(running, error)
            except Exception as worse:  # it has left both lists by then
                running.job.put(Failed(worse))
