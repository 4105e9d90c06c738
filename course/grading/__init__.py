"""The one grading core of notebook, terminal, pytest and report."""

from __future__ import annotations

from typing import Any

from course.catalogue import Course
from course.grading.client import GradingFault, WorkerClient, grade_text, warm
from course.grading.outcome import NOT_ATTEMPTED, NOT_YET, PASSED, CheckResult, Grade
from course.source import digest, not_utf8

__all__ = [
    "NOT_ATTEMPTED",
    "NOT_YET",
    "PASSED",
    "CheckResult",
    "Grade",
    "GradingFault",
    "WorkerClient",
    "grade",
    "grade_text",
    "warm",
]


def grade(name: str, course: Course | None = None, target: str = "exercises", **options: Any) -> Grade:
    """Grade one exercise.

    Parameters
    ----------
    name : str
        An exercise, as `course.catalogue` finds it.
    course : Course, optional
        Another checkout than this one.
    target : {"exercises", "solutions"}
        The learner's file, or the same file with the solutions in place (what the project's own tests grade).

    Returns
    -------
    Grade
        Its `path` and `digest` are those of the text that was executed.
    """
    course = course or Course()
    chapter, exercise = course.exercise(name)
    if target == "solutions":
        return grade_text(exercise.name, chapter.solved(), str(chapter.path), course, **options)
    path = course.exercises / chapter.file_name
    try:
        text = path.read_text(encoding="utf-8-sig")  # Windows editors put a mark before it
    except FileNotFoundError:
        message = f"there is no file exercises/{path.name}; `python3 -m course reset {exercise.name}` brings it back"
    except OSError as error:
        message = f"exercises/{path.name} cannot be read: {error.strerror or error}"
    except UnicodeDecodeError as error:
        message = f"exercises/{path.name} cannot be read: {not_utf8(error)}"
    else:
        return grade_text(exercise.name, text, str(path), course, **options)
    missing = not path.exists()
    return Grade.of(exercise, NOT_ATTEMPTED if missing else NOT_YET, str(path), digest(""), message=message)
