"""Printing that no terminal can break: ASCII from us, escapes for what a learner's own text needs."""

from __future__ import annotations

import shutil
import sys
from typing import TextIO

from course.catalogue import Course
from course.files import ExerciseFiles, FilesError
from course.grading import feedback
from course.grading.outcome import Grade
from course.progress import Progress, standing
from course.prose import wrapped
from course.rules import RULES
from course.source import ChapterSource
from course.standings import Standings, standings
from course.timetable import chapters_here, in_words

WORDS = {"passed": "[x]", "not yet": "[.]", "not attempted": "[ ]", "changed": "[x]", "updated": "[x]"}
REMARKS = {"changed": "changed since it passed", "updated": "the exercise is newer than your pass: check again"}


def say(*lines: str, to: TextIO | None = None) -> None:
    """Print lines; characters that the stream's code page lacks become escapes."""
    stream = to or sys.stdout
    for line in lines:
        encoding = getattr(stream, "encoding", None) or "ascii"
        stream.write(line.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()


def columns(most: int = 96) -> int:
    """How wide prose may be here: as the terminal, and never wider than is comfortable to read."""
    return max(24, min(most, shutil.get_terminal_size((most + 1, 24)).columns - 1))


def prose(text: str, indent: str = "", later: str | None = None) -> list[str]:
    """A sentence or more, broken at the terminal's width."""
    return wrapped(indent + text, indent if later is None else later, columns())


def show_grade(course: Course, grade: Grade, to: TextIO | None = None, first: bool = False) -> None:
    """The feedback of one exercise, with the hint that comes next; `first`: and the rules, told once."""
    _, exercise = course.exercise(grade.exercise)
    shown = Progress(course).entry(exercise.name).get("hints", 0)
    say(*feedback.lines(grade, course.root, len(exercise.hints), shown, columns()), to=to)
    if first:
        say("", "  Rules for all exercises (told once):", to=to)
        for rule in RULES:
            say(*prose(f"- {rule}", "  ", "    "), to=to)


def record(course: Course, grade: Grade, to: TextIO | None = None) -> bool:
    """Keep a grade; True for the very first.  Where the state folder cannot be written to, say so and go on."""
    chapter, exercise = course.exercise(grade.exercise)
    try:
        return Progress(course).record(exercise, grade, ExerciseFiles(course).glance(chapter, exercise))
    except FilesError as error:
        say(*prose(f"Progress is not kept: {error}", "  "), to=to or sys.stderr)
        return False


def listing(course: Course) -> list[str]:
    """Every exercise with where the learner stands, and how long each chapter takes."""
    rows: list[str] = []
    entries, files = Progress(course).read(), ExerciseFiles(course)
    minutes = {plan.chapter: plan.minutes for plan in chapters_here(course)}
    for chapter in course.chapters():
        number = chapter.chapter.removeprefix("ch")
        long = f"  ({in_words(minutes[number])})" if number in minutes else ""
        rows += [*prose(f"{chapter.chapter}  {chapter.title}{long}", "", " " * 6), *unreadable(files, chapter)]
        for exercise in chapter.exercises:
            state = standing(entries.get(exercise.name, {}), exercise, files.glance(chapter, exercise))
            remark = f"   {REMARKS[state]}" if state in REMARKS else ""
            rows += prose(
                f"{WORDS[state]} {exercise.name:<24} {exercise.level:<7}{exercise.points:>3} "
                f"{'bonus ' if exercise.bonus else 'points'}   {exercise.title}{remark}",
                "  ",
                " " * 8,
            )
    return [*rows, "", "[x] passed   [.] not yet   [ ] not attempted"]


def summary(course: Course) -> list[str]:
    """One bar for each chapter, points and the exercise that comes next."""
    found = standings(course)
    rows = []
    for row in found.chapters:
        extra = f" ({row.bonus} bonus)" if row.bonus else ""
        rows.append(
            f"{row.chapter}  [{bar(row.score, row.points)}] {row.score:>3} of {row.points:>3} points{extra}, "
            f"{row.passed} of {row.exercises} passed"
        )
    extra = f" ({found.bonus} bonus)" if found.bonus else ""
    rows.append(f"all   [{bar(found.score, found.points)}] {found.score:>3} of {found.points:>3} points{extra}")
    return [*rows, *prose(next_line(found))]


def next_line(found: Standings) -> str:
    """What comes next, in a line."""
    if found.following is None:
        return "All exercises are passed."
    chapter, exercise = found.following
    return f"Next: {exercise.name} - {exercise.title} ({chapter.file_name})"


def unreadable(files: ExerciseFiles, chapter: ChapterSource) -> list[str]:
    """What is to say about a chapter's file that cannot be read."""
    try:
        files.read(chapter)
    except FilesError as error:
        return paragraph(feedback.ascii_only(str(error)))
    return []


def bar(part: int, whole: int, width: int = 24) -> str:
    """A bar of # and -."""
    filled = min(width, round(width * part / whole)) if whole else 0
    return "#" * filled + "-" * (width - filled)


def paragraph(text: str, indent: str = "  ") -> list[str]:
    """Prose at a readable width."""
    return prose(" ".join(text.split()), indent)
