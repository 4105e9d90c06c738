"""What a learner has passed: one JSON file outside git, safe against two writers and a crash in the middle.

Every change reads the file, changes it and renames a new one into its place, all under a lock that the system gives
back when a process dies.  The state before the last change stays beside it, for the day a disk loses the newest.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from course.catalogue import Course
from course.files import FilesError, locked, write_text
from course.grading.outcome import NOT_ATTEMPTED, Grade
from course.source import ExerciseSource, normalise

VERSION = 1


def part_hash(text: str | None) -> str:
    """Content hash of one exercise's part of a file; blank lines around it and line ends do not count."""
    return hashlib.sha256(normalise(text or "").encode("utf-8")).hexdigest()[:16]


class Progress:
    """The progress file of one course folder."""

    def __init__(self, course: Course) -> None:
        self.path = course.state / "progress.json"

    def read(self) -> dict[str, dict[str, Any]]:
        """Entries by exercise name; a damaged file is put aside and the state before the last change is read."""
        for path in (self.path, self.path.with_suffix(".previous.json")):
            entries = self._load(path)
            if entries is not None:
                return entries
        return {}

    def _load(self, path: Path) -> dict[str, dict[str, Any]] | None:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            entries = data["exercises"]
            if data["version"] > VERSION:
                raise FilesError(f"{path} was written by a newer version of the course; update this checkout")
            return {str(name): dict(entry) for name, entry in entries.items()}
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise FilesError(f"cannot read {path}: {error.strerror or error}") from error
        except (ValueError, KeyError, TypeError, AttributeError):
            with contextlib.suppress(OSError):
                path.replace(path.with_suffix(f".damaged-{time.strftime('%Y%m%d-%H%M%S')}.json"))
            return None

    def change(self, update: Callable[[dict[str, dict[str, Any]]], None]) -> None:
        """Apply `update` to the entries under the lock, and write them.

        Raises
        ------
        FilesError
            When the state folder cannot be written to.
        """
        with locked(self.path.with_suffix(".lock")):
            entries = self.read()
            before = json.dumps(entries, sort_keys=True)
            update(entries)
            if json.dumps(entries, sort_keys=True) == before:
                return
            if self.path.exists():
                with contextlib.suppress(OSError):
                    write_text(self.path.with_suffix(".previous.json"), self.path.read_text(encoding="utf-8"))
            document = {"version": VERSION, "exercises": entries}
            write_text(self.path, json.dumps(document, indent=1, sort_keys=True) + "\n")

    def entry(self, name: str) -> dict[str, Any]:
        """The entry of one exercise; empty where there is none."""
        return self.read().get(name, {})

    def record(self, exercise: ExerciseSource, grade: Grade, part: str | None) -> None:
        """Keep a grade.  An untouched starter leaves no trace; a pass is never lost to a later attempt."""
        if grade.outcome == NOT_ATTEMPTED:
            return
        now = datetime.now(UTC).isoformat(timespec="seconds")

        def update(entries: dict[str, dict[str, Any]]) -> None:
            entry = entries.setdefault(exercise.name, {})
            if entry.get("hash") != part_hash(part):
                entry["attempts"] = entry.get("attempts", 0) + 1
            entry.update(
                outcome=grade.outcome,
                score=grade.score,
                points=grade.points,
                hash=part_hash(part),
                starter=part_hash(exercise.starter),
                best=max(grade.score, entry.get("best", 0)),
            )
            if grade.passed:
                entry.setdefault("passed_at", now)
                entry["passed_hash"] = part_hash(part)
            entry["checked_at"] = now

        self.change(update)

    def note(self, name: str, **fields: Any) -> None:
        """Keep a fact about one exercise (hints shown, solution seen, what a cell saved)."""
        self.change(lambda entries: entries.setdefault(name, {}).update(fields))

    def forget(self, names: list[str]) -> Path | None:
        """Drop entries; the file as it was is kept beside it."""
        kept = None
        if self.path.exists():
            kept = self.path.parent / "backups" / f"progress.{time.strftime('%Y%m%d-%H%M%S')}.json"
            write_text(kept, self.path.read_text(encoding="utf-8"))

        def drop(entries: dict[str, dict[str, Any]]) -> None:
            for name in names:
                entries.pop(name, None)

        self.change(drop)
        return kept


def standing(entry: dict[str, Any], exercise: ExerciseSource, part: str | None) -> str:
    """One word for lists: passed, changed (since the pass), updated (the exercise is new), not yet, not attempted."""
    if part is not None and part_hash(part) == part_hash(exercise.starter) and not entry.get("passed_at"):
        return NOT_ATTEMPTED
    if entry.get("passed_at"):
        if entry.get("passed_hash") == part_hash(part):
            return "passed" if entry.get("starter") == part_hash(exercise.starter) else "updated"
        return "changed"
    return entry.get("outcome") or NOT_ATTEMPTED
