"""A course folder of its own for each test: solutions copied, starters generated, state inside."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path

from course.catalogue import Course
from course.files import ExerciseFiles
from course.generate import generate
from course.grading import Grade, grade
from course.source import ROOT, ChapterSource, ExerciseSource

REAL = Course(ROOT)
EXERCISES = [exercise.name for _, exercise in REAL.all()]
FILES = [chapter.file_name for chapter in REAL.chapters()]


@lru_cache
def _generated() -> Path:
    """A folder with generated exercises, made once."""
    folder = Path(tempfile.mkdtemp(prefix="fucina-exercises-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    generate(REAL, into=folder)
    return folder


def make_course(folder: Path) -> Course:
    """A fresh course in `folder`, as a learner finds it."""
    shutil.copytree(ROOT / "solutions", folder / "solutions", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(_generated(), folder / "exercises")
    return Course(folder)


class Desk:
    """A learner's desk for one exercise: write the file, grade it."""

    def __init__(self, course: Course, name: str) -> None:
        self.course = course
        self.chapter: ChapterSource
        self.exercise: ExerciseSource
        self.chapter, self.exercise = course.exercise(name)
        self.path = ExerciseFiles(course).path(self.chapter)

    def write(self, text: str) -> Path:
        """Replace the whole file."""
        self.path.write_text(text, encoding="utf-8")
        return self.path

    def grade(self, text: str | None = None, **limits: float) -> Grade:
        """Grade the file, with `text` as its content if given."""
        if text is not None:
            self.write(text)
        return grade(self.exercise.name, self.course, **limits)

    def with_part(self, part: str) -> str:
        """The whole file with this exercise's part replaced."""
        return self.chapter.assemble({self.exercise.name: part})
