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
_accusers: list[weakref.ref[Any]] = []  # learners' checks that call wrong what is plainly right


class Endless(BaseException):
    """A suspect was called too often; no `except Exception` of the learner's check catches it."""


def home(function: Any) -> Mapping[str, Any]:
    """The names of the file in which a learner's function stands; empty where it cannot be found out."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(getattr(function, "__func__", function))
    names = getattr(function, "__globals__", None)
    if names is None:
        names = getattr(vars(type(function)).get("__call__"), "__globals__", None)
    return names or {}


def counted(function: Callable[..., Any], most: int = MOST_CALLS) -> Callable[..., Any]:
    """The function under a plain name, which refuses to be called more than `most` times."""
    calls = 0

    def suspect(*args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > most:
            raise Endless
        return function(*args, **named)

    return suspect


def verdict(t: Tools, check: Callable[..., Any], *args: Any, shown: str, about: str) -> str | None:
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
            raise Failed(
                f"called {about} more than {MOST_CALLS} times and was stopped. A wrong one may make no progress at all: "
                "give your loops a bound"
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
    said = verdict(t, check, *args, shown=f"{shown}      # a right one: {style}", about="it")
    if said is not None:
        if vital:
            _accusers.append(weakref.ref(check))
        raise Failed(f"calls a right one wrong. Its style: {style}. Your claim was: {one_line(said, 200)}")


def finds(t: Tools, check: Callable[..., Any], *args: Any, shown: str, hint: str) -> None:
    """The check must have a counterexample against a wrong suspect; `hint` says where one may look, and no more."""
    if any(accuser() is check for accuser in _accusers):
        raise Failed("calls right ones wrong as well, so it does not count that it complains of this one")
    if verdict(t, check, *args, shown=f"{shown}      # a wrong one", about="it") is None:
        raise Failed(f"takes it for a right one. {hint}")
