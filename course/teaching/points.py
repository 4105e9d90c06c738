"""`points("ch05.truncate")`: grades the answer cell of an assignment notebook and says what it is worth.

The graded text is what was run in the notebook, read from its history; it goes to the worker process of
`course.grading`, as an exercises file does.  Nothing is written: neither exercises/ nor the progress file.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any

from course.catalogue import Course
from course.grading import Grade, feedback, grade_text
from course.grading.regions import MARKER
from course.source import ChapterSource, ExerciseSource, normalise
from course.terminal import say

CULPRIT = re.compile(r"in the part of (ch\d\d\.[a-z0-9_]+)")
BEGIN = re.compile(r"\s*(?:# %%|%%exercise)[ \t]+(\S+)")


def points(name: str, history: Iterable[str] | None = None, course: Course | None = None) -> int:
    """Grade the answer to an exercise and return the points that it earns; the feedback is printed.

    Parameters
    ----------
    name : str
        An exercise, `chNN.word`.
    history : iterable of str, optional
        Texts of cells, in the order in which they were run; the notebook's own by default.
    course : Course, optional
        Another checkout than this one.

    Returns
    -------
    int
        0 to the exercise's points.  As the last value of a cell, nbgrader takes it for the cell's score.

    Raises
    ------
    UnknownExercise
        There is no such exercise.
    GradingFault
        The grader itself broke.
    """
    course = course or Course()
    chapter, exercise = course.exercise(name)
    cells = list(_history() if history is None else history)
    parts = answers(chapter, cells)
    if exercise.name not in parts:
        say(
            f"{exercise.name}: not attempted, 0 of {exercise.points} points",
            f"  There is no answer yet: run the cell that begins with `# %% {exercise.name}`.",
        )
        return 0
    result = grade_parts(chapter, exercise, parts, "the answers of this notebook", course)
    say(*feedback.lines(result, course.root))
    return result.score


def grade_parts(
    chapter: ChapterSource, exercise: ExerciseSource, parts: dict[str, str], path: str, course: Course, **options: Any
) -> Grade:
    """Grade one answer among the answers of a notebook.

    They are graded as one file, since later exercises use earlier ones.  But cells are apart in a notebook: an answer
    that keeps the whole file from running is replaced by its starter, and costs the others nothing.
    """
    parts = dict(parts)
    while True:
        result = grade_text(exercise.name, chapter.assemble(parts), path, course, **options)
        culprit = CULPRIT.search(result.message)
        if culprit is None or parts.pop(culprit[1], None) is None:
            return result


def answers(chapter: ChapterSource, cells: Iterable[str]) -> dict[str, str]:
    """The answers to a chapter's exercises among cells, by exercise; the last cell of each counts.

    A cell is the answer that its first line names (`# %% ch05.truncate` or `%%exercise ch05.truncate`).  Without such a
    line, a cell counts that defines what the exercise asks for.
    """
    cells = list(cells)
    found: dict[str, str] = {}
    for exercise in chapter.exercises:
        named = [cell for cell in cells if _names(cell, exercise)]
        chosen = named or [cell for cell in cells if _defines(cell, exercise)]
        if chosen:
            found[exercise.name] = stripped(chosen[-1])
    return found


def stripped(cell: str) -> str:
    """A cell without the line that names its exercise."""
    rows = [row for row in cell.splitlines() if not MARKER.match(row) and not row.startswith("%%exercise")]
    return normalise("\n".join(rows)).strip("\n")


def _names(cell: str, exercise: ExerciseSource) -> bool:
    first = BEGIN.match(cell)
    return first is not None and first[1] in (exercise.name, exercise.name.split(".")[1])


def _defines(cell: str, exercise: ExerciseSource) -> bool:
    if BEGIN.match(cell):
        return False  # it says which exercise it answers, and it is another one
    names = "|".join(re.escape(definition.name) for definition in exercise.written)
    return re.search(rf"^(?:def|class)\s+(?:{names})\b|^(?:{names})\s*=", cell, re.MULTILINE) is not None


def _history() -> list[str]:
    """The cells that were run in this notebook, as they were typed."""
    if "IPython" not in sys.modules:
        return []
    from IPython import get_ipython

    shell = get_ipython()
    return [] if shell is None else list(shell.history_manager.input_hist_raw)
