"""Who is told what the engine's thread does."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..engine import PassStats
    from .jobs import Done, Failed, Job
    from .running import Running


class Observer:
    """Is told what the engine's thread does, on that thread.  This one ignores it; a server counts.

    What it raises is dropped: counts must not end a reply.
    """

    def passed(self, stats: PassStats) -> None:
        """A pass was run."""

    def set_aside(self, job: Job) -> None:
        """A reply makes room for others, and goes on later."""

    def ended(self, job: Job, end: Done | Failed, running: Running | None) -> None:
        """A job has ended; `running` is None if it had no stream."""
