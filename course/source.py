"""What a chapter file says, as data: definitions, exercises, chapters, and the texts that are made of them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STUB = 'raise NotImplementedError("{name}: your code here")'


# What `ast.parse` raises for text that is no program: bytes of NUL, and what is nested too deeply, included.
NOT_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)


def why_unreadable(error: BaseException) -> str:
    """Why Python cannot read a text, for the learner."""
    if isinstance(error, (RecursionError, MemoryError)):
        return "an expression in it is nested too deeply (too many operators, brackets or blocks inside one another)"
    return getattr(error, "msg", None) or str(error)


class SourceError(Exception):
    """A chapter file does not follow the format; the message says where and what was expected."""


class FilesError(Exception):
    """A file of the learner cannot be read or written; the message says which and what to do."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A top-level definition of a chapter file: its text without decorators, and what the starter shows of it."""

    name: str
    text: str
    starter: str
    doc: str
    written: bool  # True where the learner writes it, False where it is given


@dataclass(frozen=True, slots=True)
class WrongSolution:
    """A known wrong solution: the name of its function, the definition that it stands for, and its message."""

    name: str
    replaces: str
    message: str
    text: str


@dataclass(frozen=True, slots=True)
class ExerciseSource:
    """Everything that a chapter file says about one exercise, as text."""

    name: str
    title: str
    points: int
    level: str
    section: str
    hints: tuple[str, ...]
    cpu_seconds: float
    memory_mb: int
    bonus: bool
    engine: bool
    definitions: tuple[Definition, ...]
    wrongs: tuple[WrongSolution, ...]
    checks: tuple[str, ...]

    @property
    def written(self) -> tuple[Definition, ...]:
        """The definitions that the learner writes."""
        return tuple(d for d in self.definitions if d.written)

    @property
    def marker(self) -> str:
        """The comment line that opens this exercise's part of a file."""
        return f"# %% {self.name} - {self.title} ({self.worth}, {self.level}, section {self.section})"

    @property
    def worth(self) -> str:
        """Its points in words."""
        return f"{self.points} {'bonus ' if self.bonus else ''}{'point' if self.points == 1 else 'points'}"

    @property
    def starter(self) -> str:
        """What the learner finds below the marker."""
        return "\n\n\n".join(d.starter for d in self.definitions)

    @property
    def solution(self) -> str:
        """The same part with the bodies in place."""
        return "\n\n\n".join(d.text for d in self.definitions)

    def mutant(self, wrong: WrongSolution) -> str:
        """The same part with `wrong` under the name that it replaces; after the solution, which it may build on."""
        text = re.sub(rf"^(def|class) {wrong.name}\b", rf"\1 {wrong.replaces}", wrong.text, count=1)
        return f"{self.solution}\n\n\n{text}"


@dataclass(frozen=True, slots=True)
class ChapterSource:
    """One chapter file, read."""

    chapter: str
    path: Path
    text: str
    doc: str
    head: str
    exercises: tuple[ExerciseSource, ...]

    @property
    def file_name(self) -> str:
        """The same in solutions/ and exercises/."""
        return self.path.name

    @property
    def title(self) -> str:
        """The first line of the docstring, without the chapter's number."""
        return re.sub(r"^Chapter \d\d - ", "", self.doc.strip().splitlines()[0].rstrip("."))

    @property
    def digest(self) -> str:
        """Content hash of the source."""
        return digest(self.text)

    def exercise(self, name: str) -> ExerciseSource:
        """The exercise called `name` (KeyError if it is not in this chapter)."""
        for exercise in self.exercises:
            if exercise.name == name:
                return exercise
        raise KeyError(name)

    def assemble(self, parts: dict[str, str] | None = None) -> str:
        """A whole exercises file; `parts` replaces the starters of the exercises that it names."""
        parts = parts or {}
        blocks = [self.head] + [f"{e.marker}\n\n{parts.get(e.name, e.starter)}" for e in self.exercises]
        return "\n\n\n".join(block.strip("\n") for block in blocks) + "\n"

    def starter(self) -> str:
        """The exercises file as a learner first finds it."""
        return self.assemble()

    def solved(self) -> str:
        """The exercises file with every solution in place."""
        return self.assemble({e.name: e.solution for e in self.exercises})


def normalise(text: str) -> str:
    """Text with LF line ends and no space at line ends: what hashes and comparisons look at."""
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n") + "\n"


def not_utf8(error: UnicodeDecodeError) -> str:
    """What to tell about a file that was saved in another encoding."""
    line = error.object[: error.start].count(b"\n") + 1
    return f"line {line} is not UTF-8 text. Save the file as UTF-8 in your editor."


def digest(text: str) -> str:
    """SHA-256 of the normalised text, so that a checkout with CRLF line ends hashes the same."""
    return hashlib.sha256(normalise(text).encode("utf-8")).hexdigest()
