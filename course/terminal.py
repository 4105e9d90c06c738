"""Printing that no terminal can break: ASCII from us, escapes for what a learner's own text needs."""

from __future__ import annotations

import sys
import textwrap
from typing import TextIO

from course.catalogue import Course
from course.files import ExerciseFiles, FilesError
from course.grading import feedback
from course.grading.outcome import Grade
from course.progress import Progress, standing
from course.source import ChapterSource

WORDS = {"passed": "[x]", "not yet": "[.]", "not attempted": "[ ]", "changed": "[x]", "updated": "[x]"}
REMARKS = {"changed": "changed since it passed", "updated": "the exercise is newer than your pass: check again"}


def say(*lines: str, to: TextIO | None = None) -> None:
    """Print lines; characters that the stream's code page lacks become escapes."""
    stream = to or sys.stdout
    for line in lines:
        encoding = getattr(stream, "encoding", None) or "ascii"
        stream.write(line.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()


def show_grade(course: Course, grade: Grade, to: TextIO | None = None) -> None:
    """The feedback of one exercise, with the hint that comes next."""
    _, exercise = course.exercise(grade.exercise)
    shown = Progress(course).entry(exercise.name).get("hints", 0)
    say(*feedback.lines(grade, course.root, len(exercise.hints), shown), to=to)


def record(course: Course, grade: Grade, to: TextIO | None = None) -> None:
    """Keep a grade; where the state folder cannot be written to, say so once per call and go on."""
    chapter, exercise = course.exercise(grade.exercise)
    try:
        Progress(course).record(exercise, grade, ExerciseFiles(course).glance(chapter, exercise))
    except FilesError as error:
        say(f"  Progress is not kept: {error}", to=to or sys.stderr)


def listing(course: Course) -> list[str]:
    """Every exercise with where the learner stands."""
    rows: list[str] = []
    entries, files = Progress(course).read(), ExerciseFiles(course)
    for chapter in course.chapters():
        rows += [f"{chapter.chapter}  {chapter.title}", *unreadable(files, chapter)]
        for exercise in chapter.exercises:
            state = standing(entries.get(exercise.name, {}), exercise, files.glance(chapter, exercise))
            remark = f"   {REMARKS[state]}" if state in REMARKS else ""
            rows.append(
                f"  {WORDS[state]} {exercise.name:<24} {exercise.level:<7}{exercise.points:>3} points   "
                f"{exercise.title}{remark}"
            )
    return [*rows, "", "[x] passed   [.] not yet   [ ] not attempted"]


def summary(course: Course) -> list[str]:
    """One bar a chapter, points and the exercise that comes next."""
    entries, files = Progress(course).read(), ExerciseFiles(course)
    rows, following, done, total = [], "", 0, 0
    for chapter in course.chapters():
        best = 0
        for exercise in chapter.exercises:
            entry = entries.get(exercise.name, {})
            best += entry.get("best", 0)
            state = standing(entry, exercise, files.glance(chapter, exercise))
            if not following and state not in ("passed", "changed", "updated"):
                following = f"Next: {exercise.name} - {exercise.title} ({files.path(chapter).name})"
        points = sum(exercise.points for exercise in chapter.exercises)
        passed = sum(bool(entries.get(e.name, {}).get("passed_at")) for e in chapter.exercises)
        rows.append(
            f"{chapter.chapter}  [{bar(best, points)}] {best:>3} of {points:>3} points, "
            f"{passed} of {len(chapter.exercises)} passed"
        )
        done, total = done + best, total + points
    rows.append(f"all   [{bar(done, total)}] {done:>3} of {total:>3} points")
    return [*rows, following or "All exercises are passed."]


def unreadable(files: ExerciseFiles, chapter: ChapterSource) -> list[str]:
    """What is to say about a chapter's file that cannot be read."""
    try:
        files.read(chapter)
    except FilesError as error:
        return paragraph(feedback.ascii_only(str(error)))
    return []


def bar(part: int, whole: int, width: int = 24) -> str:
    """A bar of # and -."""
    filled = round(width * part / whole) if whole else 0
    return "#" * filled + "-" * (width - filled)


def paragraph(text: str, indent: str = "  ") -> list[str]:
    """Prose at a readable width."""
    return textwrap.wrap(text, 96, initial_indent=indent, subsequent_indent=indent)
