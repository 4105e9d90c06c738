"""The requests that wait: bounded, and in a fair order."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..errors import QueueFull
from .jobs import Job

PATIENCE = 8
"""So many requests that came later are taken before one of the same tenant; then it comes first, whatever its priority."""


@dataclass(slots=True)
class _Place:
    """A job that waits; `passed` counts jobs that came later and were taken before it."""

    job: Job
    passed: int = 0


class Line:
    """Requests that wait for a free stream.

    Tenants take turns.  Within a tenant, a higher priority comes first, then who came first; but nobody is passed over
    for ever.  So with n tenants that wait, and k requests of its own tenant that came before it, a request has its
    turn after at most n · (k + PATIENCE + 1) turns.

    Parameters
    ----------
    limit : how many jobs may wait.
    share : how many of them may be one tenant's; default: all.
    """

    def __init__(self, limit: int, share: int | None = None) -> None:
        self.limit, self.share = limit, limit if share is None else min(share, limit)
        self._tenants: OrderedDict[str, list[_Place]] = OrderedDict()  # whose turn it is: the first
        self._passed: dict[Job, int] = {}  # of jobs that had their turn and may come back
        self._arrivals = self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, jobs: Sequence[Job], free: int = 0) -> None:
        """Let jobs of one tenant wait, all or none of them.

        Parameters
        ----------
        free : how many jobs can leave the line at once.

        Raises
        ------
        QueueFull : too many wait, or too many of this tenant.
        """
        if not jobs:
            return
        new, own = len(jobs), len(self._tenants.get(jobs[0].request.tenant, ()))
        if self._count + new > self.limit + free:
            raise QueueFull(f"{self._count} requests wait, the limit is {self.limit}; {new} more do not fit now")
        if own + new > self.share + free:
            raise QueueFull(f"{own} requests of this key wait, the limit is {self.share}; {new} more do not fit now")
        for job in jobs:
            self._arrivals += 1
            job.arrival = self._arrivals
            self._tenants.setdefault(job.request.tenant, []).append(_Place(job))
        self._count += new

    def put_back(self, job: Job) -> None:
        """Let a job wait again that had its turn: where it would stand had it not, and its tenant comes next."""
        waiting = self._tenants.setdefault(job.request.tenant, [])
        at = next((i for i, place in enumerate(waiting) if place.job.arrival > job.arrival), len(waiting))
        waiting.insert(at, _Place(job, self._passed.pop(job, 0)))
        self._tenants.move_to_end(job.request.tenant, last=False)
        self._count += 1

    def forget(self, job: Job) -> None:
        """A job that had its turn will not come back."""
        self._passed.pop(job, None)

    def next(self, fits: Callable[[Job], bool] = lambda job: True) -> Job | None:
        """The job whose turn it is, which leaves the line; None if nobody waits.

        Parameters
        ----------
        fits : whether a job can begin now.  If the one whose turn it is cannot, nobody passes it: smaller ones would
            keep the room taken that it waits for.
        """
        for tenant, waiting in self._tenants.items():  # arrivals ascend
            overdue = (place for place in waiting if place.passed >= PATIENCE)
            first = next(overdue, None) or min(waiting, key=lambda p: (-p.job.request.priority, p.job.arrival))
            if not fits(first.job):
                return None
            waiting.remove(first)
            for place in waiting:
                place.passed += place.job.arrival < first.job.arrival
            self._passed[first.job] = first.passed
            self._count -= 1
            if waiting:
                self._tenants.move_to_end(tenant)
            else:
                del self._tenants[tenant]
            return first.job
        return None

    def take_out(self, unwanted: Callable[[Job], bool]) -> Iterator[Job]:
        """Take out jobs that no longer wait for their turn: those that were given up."""
        for tenant, waiting in list(self._tenants.items()):
            gone = [place for place in waiting if unwanted(place.job)]
            waiting[:] = [place for place in waiting if place not in gone]
            self._count -= len(gone)
            if not waiting:
                del self._tenants[tenant]
            for place in gone:
                yield place.job
