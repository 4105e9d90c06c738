"""Reads what was handed in: sub-folders, zip archives and single files, none of which is trusted.

Nothing of a submission is executed or unpacked here.  Files are read as bytes, up to a size, and decoded; links are not
followed, special files are not opened, and of an archive only the members are read whose names stay inside it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath

from course.catalogue import Course
from course.files import Parts
from course.source import ChapterSource, normalise
from course.teaching.points import answers

SIZE = {".py": 1 << 20, ".ipynb": 32 << 20}  # bytes: a notebook carries its pictures
WHOLE = 64 << 20  # bytes of all the files of one submission that are looked at
DEPTH, ENTRIES = 8, 100_000
SKIPPED = {"solutions", "node_modules", "__MACOSX", "__pycache__"}  # when a whole checkout is handed in
CHAPTER = re.compile(r"(?<![a-z0-9])(ch[0-9][0-9])(?![0-9])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class HandedIn:
    """A chapter's exercises file as it is graded.

    `path` is where it was found, for people; `sha256` that of the bytes that were handed in; `text` the file, and
    `parts` the answers where they come from a notebook.
    """

    path: str
    sha256: str
    text: str
    parts: dict[str, str] | None = None


@dataclass(slots=True)
class Submission:
    """What one student handed in: a file for each chapter found, and what could not be used, in words."""

    name: str
    path: Path
    files: dict[str, HandedIn] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A file of a submission that may hold exercises; `read` gives its bytes."""

    path: PurePosixPath
    read: Callable[[], bytes]


class _Unusable(Exception):
    """One file of a submission cannot be used; the message says why."""


def find(folder: Path, course: Course) -> tuple[list[tuple[str, Path]], list[str]]:
    """The submissions of a folder, as (name, path) in order of names, and the entries that are none.

    Every sub-folder, .zip, .py and .ipynb is one, named after it.  A folder of chapter files and nothing else is itself
    a single submission.

    Raises
    ------
    OSError
        The folder cannot be read.
    """
    paths = sorted(
        (Path(entry.path) for entry in os.scandir(folder) if not entry.name.startswith(".")), key=lambda path: path.name
    )
    chosen = [p for p in paths if p.is_dir() or p.suffix.lower() in (".zip", *SIZE) or p.is_symlink()]
    chosen = [p for p in chosen if p.name not in SKIPPED]
    chapters = {chapter.file_name for chapter in course.chapters()}
    if any(p.name in chapters for p in chosen) and not any(p.is_dir() or p.suffix == ".zip" for p in chosen):
        return [(readable(folder.absolute().name), folder)], []
    stems = [p.name if p.is_dir() else p.stem for p in chosen]
    found = [(readable(stem if stems.count(stem) == 1 else p.name), p) for stem, p in zip(stems, chosen, strict=True)]
    return found, [readable(p.name) for p in paths if p not in chosen]


def read(name: str, path: Path, course: Course) -> Submission:
    """Read one submission; what is wrong with it ends up in `problems`, never in an exception."""
    submission = Submission(name, path)
    entries: list[_Entry] = []
    try:
        entries = list(_entries(path, submission.problems))
    except (_Unusable, OSError, zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        submission.problems.append(f"cannot be read: {getattr(error, 'strerror', None) or error}")
    texts: list[tuple[_Entry, str, str]] = []
    room = WHOLE
    for entry in entries:
        try:
            data = entry.read()
            room -= len(data)
            if room < 0:
                submission.problems.append(f"it holds more than {WHOLE >> 20} MB; what lies beyond that was not read")
                break
            texts.append((entry, _decoded(data), hashlib.sha256(data).hexdigest()))
        except Exception as error:  # a damaged archive ends in many ways (BadZipFile, zlib.error, struct.error, ...)
            shown = readable(str(entry.path))
            submission.problems.append(f"{shown} cannot be read: {getattr(error, 'strerror', None) or error}")
    for chapter in course.chapters():
        _choose(submission, chapter, texts)
    if not submission.files and not submission.problems:
        submission.problems.append("holds no exercises: neither a chNN_*.py nor a notebook with exercise cells")
    return submission


def readable(name: str) -> str:
    """A name from a file system in one line of text that can be stored as UTF-8."""
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


# --- where the files are ----------------------------------------------------------------------------------------------


def _entries(path: Path, problems: list[str]) -> Iterator[_Entry]:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        raise _Unusable("it is a link, and links are not followed")
    if stat.S_ISDIR(mode):
        yield from _folder(path, PurePosixPath(), problems, [0])
    elif not stat.S_ISREG(mode):
        raise _Unusable("it is neither a file nor a folder")
    elif path.suffix.lower() == ".zip":
        yield from _archive(path, problems)
    else:
        yield _Entry(PurePosixPath(path.name), partial(_bytes, path))


def _folder(folder: Path, inside: PurePosixPath, problems: list[str], seen: list[int]) -> Iterator[_Entry]:
    with os.scandir(folder) as scan:
        entries = sorted(scan, key=lambda entry: entry.name)
    for entry in entries:
        name = inside / entry.name
        seen[0] += 1
        if seen[0] > ENTRIES:
            raise _Unusable(f"more than {ENTRIES} files")
        wanted = _wanted(name)
        if entry.is_symlink():
            if wanted:
                problems.append(f"{readable(str(name))} is a link, and links are not followed")
        elif entry.is_dir(follow_symlinks=False):
            if len(name.parts) <= DEPTH and not _skipped(entry.name):
                try:
                    yield from _folder(Path(entry.path), name, problems, seen)
                except PermissionError as error:
                    problems.append(f"{readable(str(name))} cannot be read: {error.strerror}")
        elif wanted:
            yield _Entry(name, partial(_bytes, Path(entry.path)))


def _archive(path: Path, problems: list[str]) -> Iterator[_Entry]:
    archive = zipfile.ZipFile(path)  # held open by the entries that read from it
    members = archive.infolist()
    if len(members) > ENTRIES:
        raise _Unusable(f"more than {ENTRIES} files")
    for member in members:
        name = PurePosixPath(member.filename.replace("\\", "/"))
        if member.is_dir() or not _wanted(name) or any(_skipped(part) for part in name.parts[:-1] if part != ".."):
            continue
        shown = readable(member.filename)
        if name.is_absolute() or ".." in name.parts or ":" in name.parts[0]:
            problems.append(f"{shown} leads out of the archive, and is not read")
        elif stat.S_ISLNK(member.external_attr >> 16):
            problems.append(f"{shown} is a link, and links are not followed")
        elif len(name.parts) <= DEPTH + 1:
            yield _Entry(name, partial(_member, archive, member, SIZE[name.suffix.lower()]))


def _wanted(name: PurePosixPath) -> bool:
    return name.suffix.lower() in SIZE and not name.name.startswith(".")


def _skipped(folder: str) -> bool:
    return folder in SKIPPED or folder.startswith(".")


def _bytes(path: Path) -> bytes:
    """The content of a regular file, of bounded size; what became a link or a pipe meanwhile is refused."""
    flags = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(path, os.O_RDONLY | flags)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise _Unusable("it is no ordinary file")
        return _bounded(file.read, SIZE[path.suffix.lower()])


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, limit: int) -> bytes:
    with archive.open(member) as file:
        return _bounded(file.read, limit)


def _bounded(reader: Callable[[int], bytes], limit: int) -> bytes:
    data = reader(limit + 1)
    if len(data) > limit:
        raise _Unusable(f"it is larger than {limit >> 20} MB")
    return data


def _decoded(data: bytes) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _Unusable("it is not UTF-8 text") from None
    if "\0" in text:
        raise _Unusable("it is not a text file")
    return text


# --- which of them is a chapter's -------------------------------------------------------------------------------------


def _choose(submission: Submission, chapter: ChapterSource, texts: list[tuple[_Entry, str, str]]) -> None:
    """Settle what is graded for a chapter.

    A Python file comes first, unless it is the untouched starter and a notebook holds answers.  Among several, the file
    with the chapter's own name wins, then the one nearest to the top, then the first by name; the others are told.
    """
    files = [
        (e, text, sha) for e, text, sha in texts if e.path.suffix.lower() == ".py" and _is_of(chapter, e.path, text)
    ]
    files.sort(key=lambda f: (f[0].path.name != chapter.file_name, len(f[0].path.parts), str(f[0].path)))
    books = [
        (e, parts, sha)
        for e, text, sha in texts
        if e.path.suffix.lower() == ".ipynb"
        if (parts := _notebook_parts(chapter, text))
    ]
    books.sort(key=lambda book: (len(book[0].path.parts), str(book[0].path)))
    touched = [f for f in files if normalise(f[1]) != normalise(chapter.starter())]
    answered = [
        b
        for b in books
        if any(normalise(part) != normalise(chapter.exercise(name).starter) for name, part in b[1].items())
    ]
    if touched or (files and not answered):
        entry, text, sha = (touched or files)[0]
        found = None
        others = [e for e, _, _ in touched[1:]] + [e for e, _, _ in answered]
    elif books:
        entry, parts, sha = (answered or books)[0]
        text, found = chapter.assemble(parts), parts
        others = [e for e, _, _ in answered[1:]]
    else:
        return
    submission.files[chapter.chapter] = HandedIn(readable(str(entry.path)), sha, text, found)
    if others:
        names = ", ".join(readable(str(e.path)) for e in others)
        submission.problems.append(f"{chapter.chapter}: graded is {readable(str(entry.path))}; also handed in: {names}")


def _is_of(chapter: ChapterSource, path: PurePosixPath, text: str) -> bool:
    """Whether a Python file holds a chapter's exercises: by its name, else by the marks of its parts."""
    if found := CHAPTER.search(path.name):
        return found[1].lower() == chapter.chapter
    return any(name.startswith(chapter.chapter + ".") for name in Parts.of(text).parts)


def _notebook_parts(chapter: ChapterSource, text: str) -> dict[str, str]:
    """The answers to a chapter's exercises in a notebook; what is no notebook holds none."""
    try:
        cells = json.loads(text)["cells"]
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    named = [source for source in sources if re.match(rf"\s*(?:# %%|%%exercise)[ \t]+{chapter.chapter}\.", source)]
    return answers(chapter, named)
