"""Which chapters and exercises there are, and which one a name typed by a learner means."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from course.parser import load_chapter
from course.source import ROOT, ChapterSource, ExerciseSource, FilesError


class UnknownExercise(Exception):
    """A name means no exercise, or more than one; the message lists what it could have been."""


@dataclass(frozen=True, slots=True)
class Course:
    """The folders that the platform works in: a checkout, and where the learner's state is kept."""

    root: Path = ROOT

    @property
    def solutions(self) -> Path:
        """The chapter sources."""
        return self.root / "solutions"

    @property
    def exercises(self) -> Path:
        """The learner's files."""
        return self.root / "exercises"

    @property
    def state(self) -> Path:
        """Progress and backups: `.fucina/course`, outside git, or the folder that FUCINA_COURSE_STATE names.

        `~` is the home folder; a relative path begins at the course's folder, wherever the command is called from.

        Raises
        ------
        FilesError
            The variable begins with the home folder of a user whom this system does not know.
        """
        named = os.environ.get("FUCINA_COURSE_STATE")
        if not named:
            return self.root / ".fucina" / "course"
        try:
            return self.root / Path(named).expanduser()
        except RuntimeError as error:
            raise FilesError(f"FUCINA_COURSE_STATE is {named!r}: {error}") from None

    def chapters(self) -> list[ChapterSource]:
        """Every chapter that has exercises, in order."""
        return [load_chapter(path) for path in sorted(self.solutions.glob("ch[0-9][0-9]_*.py"))]

    def all(self) -> list[tuple[ChapterSource, ExerciseSource]]:
        """Every exercise with its chapter, in course order."""
        return [(chapter, exercise) for chapter in self.chapters() for exercise in chapter.exercises]

    def find(self, names: list[str]) -> list[tuple[ChapterSource, ExerciseSource]]:
        """The exercises that `names` mean: `ch05.truncate`, `truncate`, `ch05`, or a file of exercises/.

        Raises
        ------
        UnknownExercise
            For a name that means nothing, or several exercises of different chapters.
        """
        found: list[tuple[ChapterSource, ExerciseSource]] = []
        for name in names:
            found += [pair for pair in self._one(name) if pair not in found]
        return found

    def exercise(self, name: str) -> tuple[ChapterSource, ExerciseSource]:
        """The single exercise that `name` means."""
        found = self._one(name)
        if len(found) != 1:
            raise UnknownExercise(f"{name!r} means {len(found)} exercises ({_names(found)}); name one of them")
        return found[0]

    def _one(self, name: str) -> list[tuple[ChapterSource, ExerciseSource]]:
        pairs = self.all()
        key = name.strip().lower()
        if key.endswith(".py"):
            key = Path(key.replace("\\", "/")).name[:4]
        exact = [p for p in pairs if p[1].name == key]
        chapter = [p for p in pairs if p[0].chapter == key or p[0].chapter == f"ch{key:0>2}"]
        suffix = [p for p in pairs if p[1].name.split(".")[1] == key]
        if not exact and not chapter and len(suffix) > 1:
            raise UnknownExercise(f"{name!r} means several exercises: {_names(suffix)}")
        found = exact or chapter or suffix
        if not found:
            chapters = [c.chapter for c in self.chapters()]
            known = [p[1].name for p in pairs] + chapters
            words = {k.split(".")[-1]: k for k in known}
            if re.fullmatch(r"(ch)?\d{1,2}", key):
                raise UnknownExercise(f"there is no chapter {name!r} with exercises; there are {', '.join(chapters)}")
            near = difflib.get_close_matches(key, known, 3, 0.5)
            near = near or [words[w] for w in difflib.get_close_matches(key.split(".")[-1], list(words), 3, 0.5)]
            hint = f"; near: {', '.join(near)}" if near else ""
            raise UnknownExercise(f"no exercise or chapter {name!r}{hint} (`python3 -m course list` shows all)")
        return found


def _names(pairs: list[tuple[ChapterSource, ExerciseSource]]) -> str:
    return ", ".join(exercise.name for _, exercise in pairs)
