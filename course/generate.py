"""Makes exercises/ out of solutions/, with a manifest of content hashes, and proves that nothing leaks.

`python3 -m course generate` writes; a file that somebody has worked in (its hash is not the manifest's) is left alone.
`python3 -m course generate --check` writes nothing: it compares what would be generated with the committed manifest.
"""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course.catalogue import Course
from course.files import write_text
from course.progress import part_hash
from course.source import NOT_PYTHON, ChapterSource, ExerciseSource, digest

MANIFEST = "manifest.json"
SHORT = 12  # characters: shorter lines (`else:`, `return got`) are nobody's secret


@dataclass(slots=True)
class Written:
    """What a run of `generate` did, by file name."""

    written: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)


def manifest(course: Course) -> dict[str, Any]:
    """The manifest that belongs to the solutions as they are now."""
    files = {}
    for chapter in course.chapters():
        files[chapter.file_name] = {
            "sha256": digest(chapter.starter()),
            "exercises": {exercise.name: part_hash(exercise.starter) for exercise in chapter.exercises},
        }
    return {"version": 1, "files": files}


def committed_manifest(course: Course) -> dict[str, Any]:
    """The manifest in exercises/; an empty one where there is none."""
    try:
        return json.loads((course.exercises / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"version": 1, "files": {}}


def generate(course: Course, into: Path | None = None, force: bool = False) -> Written:
    """Write starters and manifest.

    Parameters
    ----------
    course : Course
    into : Path, optional
        Another folder than exercises/.
    force : bool
        Overwrite files that were worked in too.
    """
    folder = into or course.exercises
    done = Written()
    old = committed_manifest(course)["files"] if into is None else {}
    for chapter in course.chapters():
        leaks = find_leaks(chapter)
        if leaks:
            raise AssertionError(f"{chapter.file_name}: the starter holds solution text: {leaks[0]!r}")
        path = folder / chapter.file_name
        if path.exists():
            now = digest(path.read_text(encoding="utf-8"))
            if now == digest(chapter.starter()):
                done.unchanged.append(path.name)
                continue
            if now != old.get(path.name, {}).get("sha256") and not force:
                done.kept.append(path.name)
                continue
        write_text(path, chapter.starter())
        done.written.append(path.name)
    names = {chapter.file_name for chapter in course.chapters()}
    for name in old.keys() - names:
        path = folder / name
        if path.exists() and digest(path.read_text(encoding="utf-8")) == old[name]["sha256"]:
            path.unlink()
            done.removed.append(name)
    text = json.dumps(manifest(course), indent=1, sort_keys=True) + "\n"
    if not (folder / MANIFEST).exists() or (folder / MANIFEST).read_text(encoding="utf-8") != text:
        write_text(folder / MANIFEST, text)
    return done


def stale(course: Course) -> list[str]:
    """Files whose committed manifest entry is not what the solutions give; empty when all is in step."""
    now, then = manifest(course)["files"], committed_manifest(course)["files"]
    return sorted(name for name in now.keys() | then.keys() if now.get(name) != then.get(name))


def find_leaks(chapter: ChapterSource, text: str | None = None) -> list[str]:
    """Lines of solutions, wrong solutions, hints or messages that `text` (the starter, unless given) shows.

    What the learner is meant to see is no leak: docstrings, given code, signatures.  A line counts from SHORT
    characters on; comments and quotes do not hide it.
    """
    text = chapter.starter() if text is None else text
    shown = {_squeezed(line) for line in text.splitlines()}
    found = [line for line in secret_lines(chapter) if _squeezed(line) in shown]
    prose = _squeezed(text)
    for exercise in chapter.exercises:
        words = [*exercise.hints, *(wrong.message for wrong in exercise.wrongs)]
        found += [hint for hint in words if _squeezed(hint) in prose]
    for node in ast.walk(ast.parse(text)) if _parses(text) else ():
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found += [f"import {name}" for name in names if name.split(".")[0] in ("solutions", "course")]
    return found


def secret_lines(chapter: ChapterSource) -> list[str]:
    """Body lines of everything that is replaced or left out in the starter."""
    public: set[str] = set()
    for exercise in chapter.exercises:
        for definition in exercise.definitions:
            if not definition.written:
                public |= {_squeezed(line) for line in definition.text.splitlines()}
    public |= {_squeezed(line) for line in chapter.head.splitlines()}
    secret = []
    for exercise in chapter.exercises:
        signatures = {_squeezed(line) for d in exercise.written for line in d.starter.splitlines()}
        secret += [line for line in _bodies(exercise) if _squeezed(line) not in public | signatures]
    return secret


def _bodies(exercise: ExerciseSource) -> list[str]:
    texts = [d.text for d in exercise.written] + [wrong.text for wrong in exercise.wrongs]
    lines = [line for text in texts for line in _without_docstrings(text).splitlines()]
    return [line for line in lines if len(_squeezed(line)) >= SHORT and not line.strip().startswith(("def ", "class "))]


def _without_docstrings(text: str) -> str:
    """Source without the docstrings of its definitions, which starters show."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node) is not None:
            doc = node.body[0]
            for i in range(doc.lineno - 1, doc.end_lineno or doc.lineno):
                lines[i] = ""
    return "\n".join(lines)


def _squeezed(text: str) -> str:
    return "".join(text.split()).lstrip("#>.")


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except NOT_PYTHON:
        return False
    return True
