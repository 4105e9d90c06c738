"""Refuses to running code what an answer may not use (`course.grading.barred`), however it reaches for it."""

from __future__ import annotations

import contextlib
import importlib.abc
import os
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType

from course.grading.barred import ALWAYS, why


class BarredUsed(ImportError):
    """The learner's code reached for something that an answer may not use."""


class Guard(importlib.abc.MetaPathFinder):
    """Watches imports (as the first finder) and opened files (as an audit hook) of one process.

    It is active inside `armed_for` only, and remembers what it refused: code that catches the error is told as well.
    """

    def __init__(self, solutions: str) -> None:
        self.folder = os.path.normcase(os.path.abspath(solutions)) + os.sep
        self.armed = False
        self.barred: tuple[str, ...] = ALWAYS
        self.tripped = ""
        sys.meta_path.insert(0, self)
        sys.addaudithook(self._hook)

    @contextlib.contextmanager
    def armed_for(self, barred: tuple[str, ...] = ALWAYS) -> Iterator[None]:
        """Active while the learner's code may run; `barred` are the packages that it may not load."""
        self.armed, self.barred, self.tripped = True, barred, ""
        try:
            yield
        finally:
            self.armed = False

    def message(self) -> str:
        """What to tell when it was tripped, else an empty string."""
        return f"the code reaches for {self.tripped}: {why(self.tripped)}" if self.tripped else ""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Refuse what is barred; every other name is left to the finders after this one."""
        if self.armed and fullname.partition(".")[0] in self.barred:
            self.refuse(fullname)

    def refuse(self, what: str) -> None:
        """Remember and raise."""
        self.tripped = what
        raise BarredUsed(f"{what} cannot be used here")

    def _hook(self, event: str, args: tuple) -> None:
        if not self.armed or event != "open":
            return
        name = os.fsdecode(args[0]) if isinstance(args[0], bytes) else args[0]
        if isinstance(name, str) and os.path.normcase(os.path.abspath(name)).startswith(self.folder):
            self.refuse("a file of the solutions folder")
