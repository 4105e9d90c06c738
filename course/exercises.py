"""What solutions/chNN_*.py is written with: one `Exercise` object and four decorators.

A chapter file is ordinary Python that can be imported and read from top to bottom::

    ex = Exercise("ch05.truncate", title="Rewind a cache", points=5, level="easy", section="13.1", hints=[...])

    @ex.solution
    def truncate(cache, keep):
        '''The contract: shapes, units, errors, an example.'''
        ...

    @ex.wrong("Sets the length even when `keep` is larger: a rewind must never grow a cache.")
    def grows(cache, keep):
        ...

    @ex.check("a keep at or above the length changes nothing")
    def no_op(truncate, t):
        ...

The decorators return what they decorate, so the file stays plain.  `course.source` reads the same file as text:
the starter keeps signatures and docstrings of what `solution` marks, keeps whole what `given` marks, and knows
nothing of the rest.  When an exercise is graded, the worker executes the file with every solution and every wrong
solution cut out of it: a check cannot reach the answer even by mistake.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

LEVELS = ("easy", "medium", "hard")


@dataclass(frozen=True, slots=True)
class Check:
    """One property: its sentence, and the function `(mine, tools) -> None` that raises at the first counterexample."""

    text: str
    run: Callable[[Any, Any], None]


class Exercise:
    """One exercise of a chapter.  Every argument is a literal, because `course.source` reads it without running it.

    Parameters
    ----------
    name : str
        `chNN.word`; the name that check, hint and solution take.
    title : str
        A few words for lists.
    points : int
        What a pass is worth; half-right work earns a share of it.
    level : str
        `easy`, `medium` or `hard`.
    section : str
        The section of the chapter that teaches it.
    hints : list of str
        Two to four, from a nudge to nearly the answer.
    cpu_seconds, memory_mb : float, int
        What the learner's code may use, all checks together, before it is stopped.
    bonus : bool
        Points that are earned on top: they do not count against the total.
    engine : bool
        The answer may use `fucina`; the contract says so.  Otherwise the point is to build what the engine has already.
    """

    def __init__(
        self,
        name: str,
        *,
        title: str,
        points: int,
        level: str,
        section: str,
        hints: list[str],
        cpu_seconds: float = 3.0,
        memory_mb: int = 512,
        bonus: bool = False,
        engine: bool = False,
    ) -> None:
        self.name = name
        self.title = title
        self.points = points
        self.level = level
        self.section = section
        self.hints = hints
        self.cpu_seconds = cpu_seconds
        self.memory_mb = memory_mb
        self.bonus = bonus
        self.engine = engine
        self.checks: list[Check] = []
        _made.append(self)

    def solution(self, definition: T) -> T:
        """Mark a function or class that the learner writes.  In a class, methods marked `given` are kept whole."""
        return definition

    def wrong(self, message: str, replaces: str | None = None) -> Callable[[T], T]:
        """Mark a known wrong solution; `message` names the misconception, `replaces` the definition it stands for."""
        return lambda definition: definition

    def check(self, text: str) -> Callable[[Callable[[Any, Any], None]], Callable[[Any, Any], None]]:
        """Mark a check of the property `text`; the function takes (the learner's definition, tools)."""

        def keep(run: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
            self.checks.append(Check(text, run))
            return run

        return keep


def given(definition: T) -> T:
    """Mark a definition, a method or a value (`NAME = given(value)`) that the starter keeps as it is."""
    return definition


_made: list[Exercise] = []


def collect(run: Callable[[], None]) -> dict[str, Exercise]:
    """Call `run` and return the exercises that were made meanwhile, by name."""
    before = len(_made)
    try:
        run()
        return {exercise.name: exercise for exercise in _made[before:]}
    finally:
        del _made[before:]
