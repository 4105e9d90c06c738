"""Hints and solutions: what is shown when, the same for every face."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from course.catalogue import Course
from course.files import ExerciseFiles, FilesError
from course.progress import Progress

_read_here: dict[tuple[Path, str], int] = {}  # hints read in this process that could not be kept


@dataclass(frozen=True, slots=True)
class Hints:
    """The hints to show: (number, text) pairs, how many there are, and what keeps us from remembering that."""

    name: str
    shown: list[tuple[int, str]]
    total: int
    note: str = ""

    @property
    def more(self) -> int:
        """How many are still unread."""
        return self.total - max((number for number, _ in self.shown), default=0)


def take_hint(course: Course, name: str, number: int | None = None, everything: bool = False) -> Hints:
    """The next unread hint of an exercise, a given one, or all of them; what was shown is remembered.

    Raises
    ------
    ValueError
        When `number` is not between 1 and the number of hints.
    """
    _, exercise = course.exercise(name)
    total = len(exercise.hints)
    if number is not None and not 1 <= number <= total:
        raise ValueError(f"{exercise.name} has hints 1 to {total}, there is no hint {number}")
    progress = Progress(course)
    here = (course.state, exercise.name)
    read = max(progress.entry(exercise.name).get("hints", 0), _read_here.get(here, 0))
    following = number if number is not None else min(read + 1, total)
    numbers = list(range(1, total + 1)) if everything else [following]
    note = ""
    try:
        progress.note(exercise.name, hints=max(read, *numbers))
        _read_here.pop(here, None)
    except FilesError as error:  # a read-only folder: hints are shown all the same, and remembered while we run
        note = f"That you have read it is not kept: {error}"
        _read_here[here] = max(read, *numbers)
    return Hints(exercise.name, [(i, exercise.hints[i - 1]) for i in numbers], total, note)


def passed(course: Course, name: str) -> bool:
    """Whether the exercise has been passed once."""
    return bool(Progress(course).entry(course.exercise(name)[1].name).get("passed_at"))


def solution_text(course: Course, name: str) -> str:
    """The solution of an exercise as source text: what the learner writes, and nothing that was given."""
    _, exercise = course.exercise(name)
    with contextlib.suppress(FilesError):
        Progress(course).note(exercise.name, solution_seen=True)
    return "\n\n\n".join(definition.text for definition in exercise.written)


def reset(course: Course, names: list[str]) -> list[tuple[str, str]]:
    """Bring starters back; (exercise, what was done) for each.  A file that changes is kept aside, once."""
    files = ExerciseFiles(course)
    kept: dict[str, Path | None] = {}
    done = []
    for chapter, exercise in course.find(names):
        if files.is_starter(chapter, exercise):
            done.append((exercise.name, "the starter is there already"))
            continue
        if chapter.chapter not in kept:
            kept[chapter.chapter] = files.backup(chapter)
        files.reset(chapter, exercise, keep=False)
        path = kept[chapter.chapter]
        done.append((exercise.name, "the starter is back" + (f"; your file is kept as {path}" if path else "")))
    return done
