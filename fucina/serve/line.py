"""The requests that wait: bounded, and in a fair order."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from ..errors import QueueFull
from .jobs import Job

Group = list[Job]
"""Jobs with one prompt, which are answered together."""


class Line:
    """Requests that wait for a free stream.

    Tenants take turns.  Within a tenant, a higher priority comes first, then who came first: so nobody can push
    others away by many requests or a high priority.

    Parameters
    ----------
    limit : how many jobs may wait.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._tenants: OrderedDict[str, list[Group]] = OrderedDict()  # whose turn it is: the first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, groups: Sequence[Group], free: int = 0) -> None:
        """Let groups wait, all or none of them.

        Parameters
        ----------
        free : how many jobs can leave the line at once.

        Raises
        ------
        QueueFull
        """
        new = sum(map(len, groups))
        if self._count + new > self.limit + free:
            raise QueueFull(f"{self._count} requests wait, the limit is {self.limit}; {new} more do not fit now")
        for group in groups:
            waiting = self._tenants.setdefault(group[0].request.tenant, [])
            priority = group[0].request.priority
            at = next((i for i, g in enumerate(waiting) if g[0].request.priority < priority), len(waiting))
            waiting.insert(at, group)
        self._count += new

    def next(self) -> Group | None:
        """The group whose turn it is, which leaves the line; None if nobody waits."""
        for tenant, waiting in self._tenants.items():
            group = waiting.pop(0)
            self._count -= len(group)
            if waiting:
                self._tenants.move_to_end(tenant)
            else:
                del self._tenants[tenant]
            return group
        return None

    def remove_cancelled(self) -> Iterator[Job]:
        """Take out the jobs that were given up."""
        for tenant, waiting in list(self._tenants.items()):
            for group in waiting:
                for job in [job for job in group if job.cancelled]:
                    group.remove(job)
                    self._count -= 1
                    yield job
            waiting[:] = filter(None, waiting)
            if not waiting:
                del self._tenants[tenant]
