"""The learner's files: their parts, saving one part, resetting it, and backups of everything that is overwritten."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from course.catalogue import Course
from course.grading.regions import MARKER
from course.locking import LockTimeout, exclusive
from course.source import ChapterSource, ExerciseSource, FilesError, normalise, not_utf8

__all__ = ["ExerciseFiles", "FilesError", "Parts", "check_writable", "locked", "read_text", "write_bytes", "write_text"]

LOCK_SECONDS = 30.0


def write_text(path: Path, text: str) -> None:
    """Write a text, as UTF-8 with LF; see `write_bytes`."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file whole or not at all: a temporary name in the same folder, then a rename.  A link stays a link.

    Raises
    ------
    FilesError
        When the folder cannot be written to.
    """
    path = Path(os.path.realpath(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix="." + path.name, suffix=".tmp")
    except OSError as error:
        raise FilesError(f"cannot write {path}: {error.strerror or error}. Is the folder read-only?") from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            os.chmod(temporary, path.stat().st_mode & 0o777)
        else:
            os.chmod(temporary, 0o644)
        _replace(temporary, path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise FilesError(f"cannot write {path}: {error.strerror or error}") from error
        raise


def read_text(path: Path) -> str:
    """The text of a learner's file, which is UTF-8, with or without the mark that some editors put before it.

    Raises
    ------
    FileNotFoundError
    FilesError
        When it cannot be read, or is no UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise FilesError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise FilesError(f"cannot read {path}: {not_utf8(error)}") from error


def salvage(path: Path) -> str:
    """The text of a file in whatever encoding an editor gave it; an empty string where there is no file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise FilesError(f"cannot read {path}: {error.strerror or error}") from error
    for encoding in ("utf-8-sig", *(["utf-16"] if data[:2] in (b"\xff\xfe", b"\xfe\xff") else [])):
        with contextlib.suppress(UnicodeDecodeError):
            return data.decode(encoding).replace("\r\n", "\n")
    return data.decode("latin-1").replace("\r\n", "\n")


def check_writable(path: Path) -> None:
    """See to it that `write_text(path, ...)` will not fail for want of a folder, before long work is done for it.

    Raises
    ------
    FilesError
        When the folder cannot be written to.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise FilesError(f"cannot write {path}: {error.strerror or error}. Is the folder read-only?") from error


def _replace(temporary: str, path: Path) -> None:
    """os.replace; on Windows another program may hold the file for a moment (an editor, a virus scanner)."""
    for attempt in range(20):
        try:
            os.replace(temporary, path)
            return
        except PermissionError:
            if os.name != "nt" or attempt == 19:
                raise
            time.sleep(0.05)


@contextlib.contextmanager
def locked(path: Path, seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """Hold the lock on the file `path` (made if needed, its folder too).

    Raises
    ------
    FilesError
        The file cannot be opened, or another process holds the lock for longer than `seconds`.
    """
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(exclusive(path, poll=0.01, seconds=seconds))
        except LockTimeout as error:
            raise FilesError(f"{error}; close other course commands and try again") from None
        except OSError as error:
            raise FilesError(
                f"cannot write {path}: {error.strerror or error}. "
                "FUCINA_COURSE_STATE can name another folder for what the course keeps."
            ) from error
        yield


@dataclass(frozen=True, slots=True)
class Parts:
    """A file of exercises cut at its `# %% chNN.name` lines; `head` is what stands before the first."""

    head: str
    order: tuple[str, ...]
    parts: dict[str, tuple[str, str]]  # name -> (marker line, text below it)

    @classmethod
    def of(cls, text: str) -> Parts:
        """Cut a text.  Of two parts with one name, the last counts, as in Python."""
        head: list[str] = []
        order: list[str] = []
        parts: dict[str, tuple[str, list[str]]] = {}
        lines = head
        for line in text.split("\n"):  # not splitlines: a form feed in a string is the learner's
            found = MARKER.match(line)
            if found:
                lines = []
                order = [name for name in order if name != found[1]] + [found[1]]
                parts[found[1]] = (line, lines)
            else:
                lines.append(line)
        return cls("\n".join(head), tuple(order), {n: (m, "\n".join(t)) for n, (m, t) in parts.items()})

    def get(self, name: str) -> str | None:
        """The text of one part, without blank lines around it; None if there is no such part."""
        return normalise(self.parts[name][1]).strip("\n") if name in self.parts else None

    def replaced(self, exercise: ExerciseSource, text: str) -> str:
        """The whole file with the part of `exercise` replaced, or added at the end."""
        blocks = [self.head.strip("\n")] if self.head.strip() else []
        for name in self.order:
            marker, body = self.parts[name]
            body = text if name == exercise.name else body
            blocks.append(f"{marker}\n\n{body.strip(chr(10))}")
        if exercise.name not in self.parts:
            blocks.append(f"{exercise.marker}\n\n{text.strip(chr(10))}")
        return "\n\n\n".join(blocks) + "\n"


class ExerciseFiles:
    """Reads and writes the learner's files of one course folder."""

    def __init__(self, course: Course) -> None:
        self.course = course

    def path(self, chapter: ChapterSource) -> Path:
        """The learner's file of a chapter."""
        return self.course.exercises / chapter.file_name

    def read(self, chapter: ChapterSource) -> str:
        """Its text; an empty string where there is no file."""
        try:
            return read_text(self.path(chapter))
        except FileNotFoundError:
            return ""

    def part(self, chapter: ChapterSource, exercise: ExerciseSource) -> str | None:
        """The text of one exercise in the learner's file."""
        return Parts.of(self.read(chapter)).get(exercise.name)

    def glance(self, chapter: ChapterSource, exercise: ExerciseSource) -> str | None:
        """The same, for lists; None where the file cannot be read."""
        try:
            return self.part(chapter, exercise)
        except FilesError:
            return None

    def save(self, chapter: ChapterSource, exercise: ExerciseSource, text: str) -> Path:
        """Replace the part of one exercise; what other programs save into other parts meanwhile stays."""
        with self._alone():
            self._replace(chapter, exercise, text, self.read(chapter))
        return self.path(chapter)

    def _replace(self, chapter: ChapterSource, exercise: ExerciseSource, text: str, whole: str) -> None:
        whole = Parts.of(whole).replaced(exercise, text) if whole.strip() else chapter.assemble({exercise.name: text})
        write_text(self.path(chapter), whole)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """The only one of our commands that changes the files; where the state folder holds no lock, one of several."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(FilesError):
                stack.enter_context(locked(self.course.state / "files.lock"))
            yield

    def backup(self, chapter: ChapterSource) -> Path | None:
        """Copy the learner's file into the state folder; None where there is nothing to keep."""
        if not salvage(self.path(chapter)).strip():
            return None
        stamp = time.strftime("%Y%m%d-%H%M%S")
        folder = self.course.state / "backups"
        path = folder / f"{self.path(chapter).stem}.{stamp}.py"
        number = 1
        while path.exists():
            number += 1
            path = folder / f"{self.path(chapter).stem}.{stamp}-{number}.py"
        try:
            write_bytes(path, self.path(chapter).read_bytes())
        except FilesError as error:
            raise FilesError(f"{error} FUCINA_COURSE_STATE can name another folder for copies.") from None
        return path

    def is_starter(self, chapter: ChapterSource, exercise: ExerciseSource) -> bool:
        """Whether the part of an exercise is as we wrote it."""
        part = self.glance(chapter, exercise)
        return part is not None and normalise(part) == normalise(exercise.starter)

    def reset(self, chapter: ChapterSource, exercise: ExerciseSource | None = None, keep: bool = True) -> Path | None:
        """Bring the starter of one exercise, or of the whole file, back; returns where the old file is kept.

        It is the way out of a file that Python cannot read, so it takes any encoding; what it leaves is UTF-8.
        """
        with self._alone():
            kept = self.backup(chapter) if keep else None
            text = salvage(self.path(chapter))
            if exercise is None or not text.strip():
                write_text(self.path(chapter), chapter.starter())
            else:
                self._replace(chapter, exercise, exercise.starter, text)
        return kept
