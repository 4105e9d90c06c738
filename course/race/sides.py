"""The contestants' processes: started when first asked, stopped while others run, replaced when they end."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from typing import Any

from course.source import ROOT
from fucina.errors import WorkerFailed
from fucina.measure.duel import Side, Worker

LIMITS = {"cpu_seconds": 120.0, "wall_seconds": 240.0, "memory_mb": 3072}
"""Of one run of the learner's code."""


@dataclass(frozen=True, slots=True)
class RaceSide(Side):
    """A side whose process is `course.race.runner`."""

    def command(self, prompt: str | None = None) -> list[str]:
        """Its command line; -P: nothing is imported from the working folder."""
        return [
            self.python,
            "-P",
            "-X",
            "utf8",
            "-m",
            "course.race.runner",
            self.kind,
            self.path,
            json.dumps(self.options),
        ]

    def environment(self, **extra: str) -> dict[str, str]:
        """As of other sides, and the checkout on its path."""
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        # NumPy's own threads wait by spinning: beside anything else they cost far more than they bring
        own = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        return {**super(RaceSide, self).environment(**extra), **own}


class Contestant:
    """A side that outlives its process: one that ended is started again by the next question."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self._worker: Worker | None = None

    def ask(self, name: str, **arguments: Any) -> Any:
        """The answer.

        Raises
        ------
        WorkerFailed
            The process could not start, ended, or did not answer in time.
        """
        if self._worker is None:
            self._worker = Worker(self.side)
        try:
            answer = self._worker.ask(name, **arguments)
        except BaseException:
            self.close()
            raise
        if isinstance(answer, dict) and answer.get("failed", {}).get("stopped"):
            self.close()  # it has ended itself
        return answer

    def close(self) -> None:
        """End the process."""
        worker, self._worker = self._worker, None
        if worker is not None:
            with contextlib.suppress(OSError):
                worker.close()


def yours(model: str, **limits: float) -> Contestant:
    """The process that runs the learner's engine on a model file."""
    return Contestant(RaceSide("yours", "yours", model, {**LIMITS, **limits}))


def ours(model: str) -> Contestant:
    """The process that runs our engine."""
    return Contestant(RaceSide("ours", "ours", model))


def llama(model: str, threads: int, python: str) -> Contestant:
    """The process of llama.cpp."""
    return Contestant(Side("llama.cpp", "llama.cpp", model, {"threads": threads}, python))


__all__ = ["LIMITS", "Contestant", "WorkerFailed", "llama", "ours", "yours"]
