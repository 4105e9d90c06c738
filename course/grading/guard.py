"""Refuses the solutions to running code: the grader must never grade them by accident."""

from __future__ import annotations

import contextlib
import importlib.abc
import os
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType

from course.grading.learner import OWN_WORK


class SolutionsUsed(ImportError):
    """The learner's code reached for the solutions folder."""


class Guard(importlib.abc.MetaPathFinder):
    """Watches imports (as the first finder) and opened files (as an audit hook) of one process.

    It is active inside `armed_for` only, and remembers what it refused: code that catches the error is told as well.
    """

    def __init__(self, solutions: str) -> None:
        self.folder = os.path.normcase(os.path.abspath(solutions)) + os.sep
        self.armed = False
        self.tripped = ""
        sys.meta_path.insert(0, self)
        sys.addaudithook(self._hook)

    @contextlib.contextmanager
    def armed_for(self) -> Iterator[None]:
        """Active while the learner's code may run."""
        self.armed, self.tripped = True, ""
        try:
            yield
        finally:
            self.armed = False

    def message(self) -> str:
        """What to tell when it was tripped, else an empty string."""
        return f"the code reaches for {self.tripped}: {OWN_WORK}" if self.tripped else ""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Refuse `solutions` and what is in it; every other name is left to the finders after it."""
        if self.armed and fullname.partition(".")[0] == "solutions":
            self.refuse(fullname)

    def refuse(self, what: str) -> None:
        """Remember and raise."""
        self.tripped = what
        raise SolutionsUsed(f"{what} cannot be used here")

    def _hook(self, event: str, args: tuple) -> None:
        if not self.armed or event != "open":
            return
        name = os.fsdecode(args[0]) if isinstance(args[0], bytes) else args[0]
        if isinstance(name, str) and os.path.normcase(os.path.abspath(name)).startswith(self.folder):
            self.refuse("a file of the solutions folder")
