"""What an exercise needs in which the learner writes the test: right things to spare, wrong things to find.

A chapter file makes the suspects; `spares` and `finds` hand them to the learner's check, one by one, and say what it
made of them.  A wrong suspect may return at once, raise, or make no progress: its calls are counted, so that a loop
that waits for it comes to an end with a message of its own.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from course.grading.tools import Failed, LearnerError, Tools, describe, one_line, show

MOST_CALLS = 4000  # of one suspect, by one run of the learner's check


class Endless(BaseException):
    """A suspect was called too often; no `except Exception` of the learner's check catches it.  Its
    arguments: what was called, and how often it may be."""


class Accusers:
    """Learners' checks that call wrong what is plainly right.

    An object and no list: what is remembered here is the grader's own, and no trace of the learner's code.
    """

    def __init__(self) -> None:
        self._checks: list[weakref.ref[Any]] = []

    def add(self, check: Any) -> None:
        """Remember one."""
        self._checks = [known for known in self._checks if known() is not None]
        self._checks.append(weakref.ref(check))

    def __contains__(self, check: Any) -> bool:
        return any(known() is check for known in self._checks)


_accusers = Accusers()


def home(function: Any) -> Mapping[str, Any]:
    """The names of the file in which a learner's function stands; empty where it cannot be found out."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(getattr(function, "__func__", function))
    names = getattr(function, "__globals__", None)
    if names is None:
        names = getattr(vars(type(function)).get("__call__"), "__globals__", None)
    return names or {}


def counted(function: Callable[..., Any], most: int = MOST_CALLS, name: str = "") -> Callable[..., Any]:
    """The function under a plain name, which refuses to be called more than `most` times; `name` is for the message."""
    calls = 0

    def suspect(*args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > most:
            raise Endless(name, most)
        return function(*args, **named)

    return suspect


def verdict(t: Tools, check: Callable[..., Any], *args: Any, shown: str, about: str = "it") -> str | None:
    """What the learner's check says of one suspect: None, or its counterexample.

    Raises
    ------
    Failed
        It says neither, or it does not come back with an answer.
    """
    t.story = [shown]
    try:
        answer = t.call(check, *args, shown=None, changes=True)
    except LearnerError as caught:
        if isinstance(caught.error, Endless):
            called, most = caught.error.args
            raise Failed(
                f"called {called or about} more than {most} times and was stopped; calls that raise an error count as well. A wrong one may make no "
                "progress at all: give your loops a bound"
            ) from None
        if isinstance(caught.error, (SystemExit, EOFError)):
            raise
        raise Failed(
            f"ended with {describe(caught.error)} instead of an answer. What is judged may raise: catch that, and "
            "return it as a counterexample"
        ) from None
    if answer is None or (isinstance(answer, str) and answer.strip()):
        return answer
    raise Failed(f"returned {show(answer)}, expected None or a text that tells the counterexample")


def spares(t: Tools, check: Callable[..., Any], *args: Any, shown: str, style: str, vital: bool = False) -> None:
    """The check must find nothing wrong with a right suspect, in whatever style it is written.

    `vital`: a check that fails here finds nothing afterwards, since it would call everything wrong.
    """
    said = verdict(t, check, *args, shown=f"{shown}      # a right one: {style}")
    if said is not None:
        if vital:
            _accusers.add(check)
        raise Failed(f"calls a right one wrong. Its style: {style}. Your claim was: {one_line(said, 200)}")


def finds(t: Tools, check: Callable[..., Any], *args: Any, shown: str, hint: str) -> None:
    """The check must have a counterexample against a wrong suspect; `hint` says where one may look, and no more."""
    if check in _accusers:
        raise Failed("calls the plainest right one wrong as well (see its check), so no complaint of it counts")
    if verdict(t, check, *args, shown=f"{shown}      # a wrong one") is None:
        raise Failed(f"takes it for a right one. {hint}")
