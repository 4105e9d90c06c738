"""Grades a folder of submissions, one after another or a few at a time, each in worker processes of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from course.catalogue import Course
from course.grading import NOT_ATTEMPTED, NOT_YET, Grade, GradingFault, WorkerClient, grade_text
from course.report import versions
from course.score import worth
from course.source import ChapterSource, digest, normalise
from course.teaching.points import grade_parts
from course.teaching.submissions import HandedIn, Submission, find, read

AGAIN = 1.0  # CPU seconds for the later exercises of a file that had to be stopped while it was merely run


class NoSubmissions(Exception):
    """The folder holds nothing to grade; the message says what was expected."""


def grade_folder(
    course: Course,
    folder: Path,
    names: list[str] | None = None,
    jobs: int = 1,
    told: Callable[[dict[str, Any]], None] = lambda entry: None,
) -> dict[str, Any]:
    """Grade every submission of a folder.

    Parameters
    ----------
    course : Course
    folder : Path
        Sub-folders, .zip archives, .py files and notebooks; see `course.teaching.submissions`.
    names : list of str, optional
        Chapters that count; by default those that anybody handed in.
    jobs : int
        How many submissions at a time, 1 or more.
    told : callable
        Called with the result of each submission, in order.

    Returns
    -------
    dict
        Plain data: when and with what it was graded, and `submissions`, each with its problems, its points and a
        grade for every exercise of every chapter.  A submission that breaks has problems, and stops nothing.

    Raises
    ------
    NoSubmissions
        There is nothing to grade, or the folder cannot be read.
    UnknownExercise
        A name means nothing.
    """
    try:
        found, ignored = find(folder, course)
    except OSError as error:
        raise NoSubmissions(f"cannot read {folder}: {error.strerror or error}") from error
    if not found:
        raise NoSubmissions(f"{folder} holds no submissions: expected sub-folders, .zip archives or chNN_*.py files")
    submissions = [read(name, path, course) for name, path in found]
    wanted = {c.chapter for c, _ in course.find(names)} if names else {c for s in submissions for c in s.files}
    chapters = [chapter for chapter in course.chapters() if chapter.chapter in wanted]
    results = []
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        for entry in pool.map(lambda submission: grade_one(course, submission, chapters), submissions):
            told(entry)
            results.append(entry)
    return {
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "chapters": [
            {
                "chapter": c.chapter,
                "title": c.title,
                "points": worth(c.exercises),
                "solutions_sha256": c.digest,
            }
            for c in chapters
        ],
        "submissions": results,
        "ignored": ignored,
    }


def grade_one(course: Course, submission: Submission, chapters: list[ChapterSource]) -> dict[str, Any]:
    """Grade one submission in a worker of its own, which works in a temporary folder; never raises for its sake."""
    graded: list[dict[str, Any]] = []
    fault = False
    with tempfile.TemporaryDirectory(prefix="fucina-grade-", ignore_cleanup_errors=True) as box:
        client = WorkerClient(box=Path(box))
        try:
            for chapter in chapters:
                file = submission.files.get(chapter.chapter)
                grades = (
                    _missing(submission, chapter) if file is None else _grade(course, client, submission, chapter, file)
                )
                graded.append(
                    {
                        "chapter": chapter.chapter,
                        "file": file.path if file else "",
                        "sha256": file.sha256 if file else "",
                        "score": sum(g.score for g in grades),
                        "bonus": sum(g.score for g in grades if g.bonus),
                        "points": worth(chapter.exercises),
                        "exercises": [g.to_json() for g in grades],
                    }
                )
        except Exception as error:  # ours, or something that nobody has thought of: the others go on
            fault = True
            submission.problems.append(f"the grader broke here: {error}")
        finally:
            client.close()
    return {
        "student": submission.name,
        "problems": submission.problems,
        "fault": fault,
        "score": sum(c["score"] for c in graded),
        "bonus": sum(c["bonus"] for c in graded),
        "points": sum(worth(c.exercises) for c in chapters),
        "passed": sum(g["outcome"] == "passed" for c in graded for g in c["exercises"]),
        "exercises": sum(len(c.exercises) for c in chapters),
        "chapters": graded,
    }


def _missing(submission: Submission, chapter: ChapterSource) -> list[Grade]:
    message = f"no file of {chapter.chapter} was handed in" + (" that can be read" if submission.problems else "")
    return [Grade.of(e, NOT_ATTEMPTED, "", digest(""), message=message) for e in chapter.exercises]


def _grade(
    course: Course, client: WorkerClient, submission: Submission, chapter: ChapterSource, file: HandedIn
) -> list[Grade]:
    """Grade the exercises of one file."""
    grades: list[Grade] = []
    limits: dict[str, float] = {}
    path = f"{submission.name}/{file.path}" if file.path != submission.path.name else file.path
    for exercise in chapter.exercises:
        try:
            if file.parts is None:
                grade = grade_text(exercise.name, file.text, path, course, client=client, **limits)
            else:
                grade = grade_parts(chapter, exercise, file.parts, path, course, client=client, **limits)
        except GradingFault as error:
            grade = Grade.of(exercise, NOT_YET, path, digest(file.text), message=str(error))
            submission.problems.append(f"{exercise.name}: {str(error).splitlines()[0]}")
        if grade.message.startswith("your code was stopped"):  # the file itself does not come to an end
            limits = {"cpu_seconds": min(AGAIN, exercise.cpu_seconds)}
        if grade.passed and normalise(exercise.solution) in normalise(file.text):
            grade.notes.append("The text is the course's own solution.")
        grades.append(grade)
    return grades
