"""Boards in a notebook and in a terminal: which entry takes part, and what is shown."""

from __future__ import annotations

import os
from typing import Any

from course import boards
from course.board_kernels import compiled
from course.cards import message, show_card
from course.catalogue import Course, UnknownExercise
from course.files import FilesError
from course.grading import GradingFault
from course.grading.learner import Unusable
from course.progress import BOARDS, Progress
from fucina.errors import InvalidOption

PROBLEMS = (InvalidOption, FilesError, Unusable, GradingFault, UnknownExercise)


def entry_for(name: str, course: Course, entry: Any = None) -> Any:
    """The entry: what was handed over, else the one in exercises/board.py, else (for `linear`) the passed exercises."""
    board = boards.find(name)
    if entry is None:
        entry = boards.entry_of(board, course)
    if entry is None and name == "linear":
        from course.notebook import mine  # here: notebook.py shows boards as well

        made, kernel = mine("ch20.linear"), mine("ch20.q8_linear")
        if made is not None and kernel is not None:
            return made(compiled(kernel), min(2, os.cpu_count() or 1))
    return entry


def overview(course: Course) -> list[str]:
    """Every board with the best points and the latest number of its entries."""
    kept = Progress(course).read(BOARDS)
    rows = []
    for name in boards.names():
        board = boards.find(name)
        most = sum(points for _, points in board.baselines.values())
        numbers = boards.history(name, course)
        latest = f", latest entry {numbers[-1]:.2f} {board.unit}" if numbers else ""
        rows.append(f"{name:<9} {board.title}: {kept.get(name, {}).get('points', 0)} of {most} points{latest}")
    return rows


def board(name: str | None = None, entry: Any = None) -> None:
    """Show a board, with your entry on it: `board("drafter", MyDrafter)`; without a name, what boards there are.

    Parameters
    ----------
    name : str, optional
        drafter, gate, lockstep or linear.
    entry : optional
        Your class or function.  Without one, the definition in exercises/board.py takes part, if there is any.
    """
    course = Course()
    try:
        if name is None:
            return show_card(message(*overview(course)))
        return show_card(boards.card(boards.run(name, entry_for(name, course, entry), course)))
    except PROBLEMS as error:
        return show_card(message(str(error)))


def as_lines(name: str | None, course: Course) -> list[str]:
    """The same for a terminal."""
    if name is None:
        return [
            *overview(course),
            "",
            "One of them: `python3 -m course board NAME`. Your entries stand in exercises/board.py.",
        ]
    return boards.lines(boards.run(name, entry_for(name, course), course))
