"""Makes my_engine.py: the learner's passed pieces, ours where one is missing, and the frame that joins them."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from course.catalogue import Course
from course.files import ExerciseFiles, FilesError, write_text
from course.grading import GradingFault, grade
from course.my_engine.linker import CannotLink, Linked, SourceFile, Statement, bound_imports, renamed
from course.my_engine.pieces import FRAME, PIECES, PROVIDED
from course.progress import Progress, part_hash, standing
from course.source import ChapterSource, ExerciseSource

YOURS, OURS = "yours", "ours"
WIDTH = 118

HEAD = '''"""A language-model engine in one file.

{who}

It reads a GGUF file of the llama family, runs the model in NumPy, and decodes: greedy or sampled, with a cache, with
drafts that are verified, one text or several together, one after the other with a pool of caches, or as a server.

    python my_engine.py "Once upon a time"                       # everything below, the forward in NumPy too
    python my_engine.py "Once upon a time" --forward fucina      # the same loop, drafts and gate on a compiled forward
    python my_engine.py "Once upon a time" "The capital of Italy is" --temperature 0.8
    python my_engine.py "One two three" "One two three four" --slots 2
    python my_engine.py --serve 8000 --forward fucina

It needs NumPy; and fucina for finding a model by its name, for vocabularies that are not SmolLM2's, and for the compiled
forward.  Made by `python3 -m course engine`; licence Apache-2.0.

{table}
"""
'''


@dataclass(frozen=True, slots=True)
class Piece:
    """One exercise in the engine: whose text it is, why, and its lines in the file (first and last, from 1)."""

    exercise: str
    who: str
    reason: str
    first: int = 0
    last: int = 0


@dataclass(frozen=True, slots=True)
class Assembly:
    """The file, and where its pieces come from."""

    text: str
    pieces: tuple[Piece, ...]
    course: Course

    def swapped(self, exercise: str) -> Assembly:
        """The same with our text for one exercise."""
        decided = {piece.exercise: (piece.who, piece.reason) for piece in self.pieces}
        return _Assembler(self.course, {**decided, exercise: (OURS, "by request")}).run()

    @property
    def yours(self) -> tuple[str, ...]:
        """Exercises whose text is the learner's."""
        return tuple(piece.exercise for piece in self.pieces if piece.who == YOURS)

    def at(self, line: int) -> Piece | None:
        """The piece that a line of the file belongs to; None where it is the frame's."""
        return next((piece for piece in self.pieces if piece.first <= line <= piece.last), None)

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all (FilesError where that is not possible)."""
        write_text(path, self.text)

    def lines(self) -> list[str]:
        """Who wrote what, for a terminal."""
        rows = [f"  {piece.exercise:<26} {piece.who:<6} {piece.reason}".rstrip() for piece in self.pieces]
        return [*rows, "", self.summary]

    @property
    def summary(self) -> str:
        """How much of it is the learner's, in one sentence."""
        return f"{len(self.yours)} of its {len(self.pieces)} pieces are yours."


def assemble(course: Course | None = None, tell: Callable[[str], None] = lambda line: None) -> Assembly:
    """Assemble my_engine.py from the learner's files.

    A piece is the learner's when it is passed, as it stands in the file now.  What has not been graded in its present
    state is graded.

    Parameters
    ----------
    tell : called with a line about each exercise that is graded.
    """
    course = course or Course()
    decided = {}
    for name in PIECES:
        chapter, exercise = course.exercise(name)
        decided[name] = _decide(course, chapter, exercise, tell)
    return _Assembler(course, decided).run()


def _decide(
    course: Course, chapter: ChapterSource, exercise: ExerciseSource, tell: Callable[[str], None]
) -> tuple[str, str]:
    """(whose, why) of one exercise."""
    until = f"until {exercise.name} passes"
    try:
        part = ExerciseFiles(course).part(chapter, exercise)
        entry = Progress(course).entry(exercise.name)
    except FilesError as error:
        return OURS, f"{until} ({error})"
    if part is None or part_hash(part) == part_hash(exercise.starter):
        return OURS, until
    if standing(entry, exercise, part) == "passed":
        return YOURS, ""
    tell(f"checking {exercise.name}")
    try:
        result = grade(exercise.name, course)
    except GradingFault as error:
        return OURS, f"{until} (it could not be graded: {str(error).splitlines()[0]})"
    with contextlib.suppress(FilesError):
        Progress(course).record(exercise, result, part)
    return (YOURS, "") if result.passed else (OURS, f"{until} (it is there: {result.outcome})")


class _Assembler:
    """Joins frame and pieces; keeps which names are taken, and by what."""

    def __init__(self, course: Course, decided: dict[str, tuple[str, str]]) -> None:
        self.course, self.decided = course, dict(decided)
        self.imports: dict[str, str] = {}
        self.taken: dict[str, str] = {}  # name -> text of the statement that binds it
        self.blocks: list[tuple[str, str]] = []  # (exercise or "", text)
        self.files: dict[tuple[str, str], SourceFile] = {}
        self.frame = {
            name: Path(__file__).with_name("frame").joinpath(f"{name}.py").read_text("utf-8") for name in FRAME
        }

    def run(self) -> Assembly:
        for text in self.frame.values():
            for node in ast.parse(text).body:
                if isinstance(node, (ast.Import, ast.ImportFrom)):
                    self.imports.update(bound_imports(node))
                else:
                    for name in _bound(node):
                        self.taken.setdefault(name, "frame")
        for text in self.frame.values():
            self._section(text)
        return self._joined()

    def _section(self, text: str) -> None:
        """The text of a frame file, its imports and settings left out, pieces in their places."""
        lines = text.splitlines()
        imports = {
            line
            for node in ast.parse(text).body
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        run: list[str] = []
        for number, line in enumerate(lines, start=1):
            if number in imports or line.startswith(("# ruff:", "# mypy:")):
                continue
            if line.startswith("#: "):
                self._put("", "\n".join(run))
                run = []
                words = line[3:].split()
                if words[0] == "given":
                    self._given(words[1], words[2])
                else:
                    self._piece(words[0])
            else:
                run.append(line)
        self._put("", "\n".join(run))

    def _put(self, owner: str, text: str) -> None:
        if text.strip():
            self.blocks.append((owner, text.strip("\n")))

    def _given(self, chapter: str, name: str) -> None:
        """A definition that the chapter gives to everybody."""
        (source,) = [c for c in self.course.chapters() if c.chapter == chapter]
        linked = self._file(source, OURS).link((name,), PROVIDED, "")
        self.imports.update(linked.imports)
        self._put("", "\n\n\n".join(s.text for s in linked.statements))

    def _piece(self, name: str) -> None:
        chapter, exercise = self.course.exercise(name)
        who, reason = self.decided[name]
        for attempt in dict.fromkeys((who, OURS)):
            try:
                linked = self._file(chapter, attempt).link(PIECES[name], PROVIDED, name)
                kept = self._fit(linked, name)
            except CannotLink as error:
                if attempt == OURS:
                    raise
                reason = f"yours is passed, but cannot join the others: {error}"
            else:
                self.decided[name] = (attempt, reason)
                head = f"# --- {name}, {exercise.title}: {attempt}" + (f", {reason}" if attempt == OURS else "") + " "
                self._put(name, head.ljust(WIDTH, "-") + "\n\n" + "\n\n\n".join(s.text for s in kept))
                return

    def _file(self, chapter: ChapterSource, who: str) -> SourceFile:
        key = chapter.chapter, who
        if key not in self.files:
            text = ExerciseFiles(self.course).read(chapter) if who == YOURS else chapter.solved()
            self.files[key] = SourceFile(text)
        return self.files[key]

    def _fit(self, linked: Linked, exercise: str) -> list[Statement]:
        """The statements that are not there yet, helpers renamed where their name is taken; nothing is noted on error."""
        for bound, text in linked.imports.items():
            if text.split()[1].split(".")[0] in ("solutions", "course"):
                raise CannotLink(f"it needs `{text}`, which exists in the course alone")
            if bound in self.taken or self.imports.get(bound, text) != text:
                raise CannotLink(f"its import of `{bound}` means something else in another piece")
        wanted = set(PIECES[exercise])
        new = [s for s in linked.statements if not all(self.taken.get(n) == s.text for n in s.binds) or not s.binds]
        clashes = {n for s in new for n in s.binds - wanted if n in self.taken or n in self.imports or n in PROVIDED}
        for name in sorted(clashes):
            fresh = f"{name}_{exercise.replace('.', '_')}"
            new = [renamed(s, name, fresh) if name in s.uses | s.binds else s for s in new]
        for statement in new:
            self.taken.update(dict.fromkeys(statement.binds, statement.text))
        self.imports.update(linked.imports)
        return new

    def _joined(self) -> Assembly:
        pieces = {name: Piece(name, *self.decided[name]) for name in PIECES}
        rows = [f"    {name:<26} {p.who}{', ' + p.reason if p.reason else ''}" for name, p in pieces.items()]
        yours = sum(p.who == YOURS for p in pieces.values())
        rest = " The others are ours, until yours pass." if yours < len(pieces) else ""
        who = f"{yours} of its {len(pieces)} pieces are yours, from the exercises of the course.{rest}"
        straight = sorted(text for text in set(self.imports.values()) if text.startswith("import numpy"))
        standard = sorted(set(self.imports.values()) - set(straight), key=lambda t: (t.startswith("from"), t))
        head = HEAD.format(who=who, table="\n".join(rows)) + "\n" + "\n".join([*standard, "", *straight])
        text, line = head.rstrip("\n") + "\n", 0
        for owner, block in self.blocks:
            text += "\n\n"
            line = text.count("\n") + 1
            text += block + "\n"
            if owner:
                p = pieces[owner]
                pieces[owner] = Piece(owner, p.who, p.reason, line, text.count("\n"))
        compile(text, "my_engine.py", "exec")
        return Assembly(text, tuple(pieces.values()), self.course)


def _bound(node: ast.stmt) -> set[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return {node.name}
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
