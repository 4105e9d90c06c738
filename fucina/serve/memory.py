"""The memory that rows may take: of replies that are being made, and of the pool with what these leave."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import checks
from ..cache.memory import bytes_held
from ..errors import InvalidOption, RequestTooLarge
from .jobs import Job

if TYPE_CHECKING:
    from ..cache.pool import SlotPool
    from ..model import Model
    from .running import Running

STEP = 32
"""Positions that a stream may need in one pass: its next token, and a draft."""

AHEAD = 96
"""Positions that all must have ahead of them when one more begins, so that it is not set aside again at once."""

TURNS = 3
"""Who was set aside so often stays, while there is somebody else to set aside."""


class Memory:
    """Bytes for rows, counted from the lengths of texts: by these a decision depends on what was asked, not on clocks.

    Parameters
    ----------
    model, pool : the pool gets what the streams leave.
    budget : bytes for streams and pool together; None: no limit for streams, and the pool keeps its own.

    Attributes
    ----------
    longest : tokens of the longest text that fits alone.

    Raises
    ------
    InvalidOption : no such budget, or one in which nothing fits.
    """

    def __init__(self, model: Model, pool: SlotPool, budget: int | str | None) -> None:
        self.budget = None if budget is None else checks.byte_count("memory", budget)
        self._context, self._pool = model.context, pool
        self._layout, self._dtype = model.new_cache(1).layout, model.cache_dtype
        self._left = -1
        self.longest = self._context
        if self.budget is not None:
            sizes = range(1, self._context + 1)
            budget = self.budget
            self.longest = bisect_right(sizes, budget, key=lambda n: bytes_held(self._layout, self._dtype, n, n))
            if not self.longest:
                least = bytes_held(self._layout, self._dtype, 1, 1)
                raise InvalidOption(
                    f"memory must be at least {least} bytes, which a text of this model takes, got {budget}"
                )

    def capacity(self, job: Job) -> int:
        """Positions that a request may need."""
        return min(self._context, job.request.capacity)

    def check(self, job: Job) -> None:
        """Refuse what does not fit with the whole budget to itself.

        Raises
        ------
        RequestTooLarge
        """
        if self.capacity(job) > self.longest:
            raise RequestTooLarge(
                f"{job.request} does not fit in the memory of this server, which is enough for {self.longest} tokens"
            )

    def fits(self, job: Job, tokens: int, running: Sequence[Running]) -> bool:
        """Whether a job with so many tokens can begin beside others, and all of them go on for a while."""
        return self.budget is None or self._bytes(job, tokens + AHEAD) + self.used(running, AHEAD) <= self.budget

    def can_store(self, rows: int) -> bool:
        """Whether the pool has the room for so many rows that two requests share."""
        return bytes_held(self._layout, self._dtype, self._context, rows) <= self._pool.stats().budget

    def used(self, running: Sequence[Running], ahead: int = STEP) -> int:
        """Bytes that streams take once they have their tokens, the prompt's included, and so many more."""
        return sum(self._bytes(r.job, len(r.stream.tokens) + ahead) for r in running)

    def _bytes(self, job: Job, rows: int) -> int:
        most = self.capacity(job)
        if not job.request.can_be_set_aside:  # it has all its memory from the beginning, so that it never has to wait
            rows = most
        return bytes_held(self._layout, self._dtype, most, min(rows, most))

    def short(self, running: Sequence[Running]) -> bool:
        """Whether not all of the streams can go on."""
        return self.budget is not None and len(running) > 1 and self.used(running) > self.budget

    def give_rest(self, running: Sequence[Running]) -> None:
        """Let the pool have what the streams leave."""
        if self.budget is not None and (left := max(self.budget - self.used(running), 0)) != self._left:
            self._pool.resize(left)
            self._left = left


def to_set_aside(running: Sequence[Running]) -> Running:
    """Who waits when memory is short: of the tenant that came last, the lowest priority, of these the newest.

    The oldest of equal priority always goes on, so that the line gets shorter.
    """
    able = [r for r in running if r.job.request.can_be_set_aside]  # one at least: the others never need more
    others = [r for r in able if r.job.set_aside < TURNS] or able
    newest = max(others, key=lambda r: r.job.arrival)
    same = [r for r in others if r.job.request.tenant == newest.job.request.tenant]
    return min(same, key=lambda r: (r.job.request.priority, -r.job.arrival))
