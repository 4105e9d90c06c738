"""What a learner has passed and predicted: one JSON file outside git, safe against two writers and a crash in the middle.

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
EXERCISES, PREDICTIONS = SECTIONS = ("exercises", "predictions")
Entries = dict[str, dict[str, Any]]


def part_hash(text: str | None) -> str:
    """Content hash of one exercise's part of a file; blank lines around it and line ends do not count."""
    return hashlib.sha256(normalise(text or "").encode("utf-8")).hexdigest()[:16]


class Progress:
    """The progress file of one course folder."""

    def __init__(self, course: Course) -> None:
        self.path = course.state / "progress.json"

    def read(self, section: str = EXERCISES) -> Entries:
        """Entries of one section by name; of a damaged file, which is put aside, the state before the last change."""
        return self._document()[section]

    def _document(self) -> dict[str, Entries]:
        for path in (self.path, self.path.with_suffix(".previous.json")):
            document = self._load(path)
            if document is not None:
                return document
        return {section: {} for section in SECTIONS}

    def _load(self, path: Path) -> dict[str, Entries] | None:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["version"] > VERSION:
                raise FilesError(f"{path} was written by a newer version of the course; update this checkout")
            found = {EXERCISES: data[EXERCISES], PREDICTIONS: data.get(PREDICTIONS, {})}
            return {
                section: {str(name): dict(entry) for name, entry in entries.items()}
                for section, entries in found.items()
            }
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise FilesError(f"cannot read {path}: {error.strerror or error}") from error
        except (ValueError, KeyError, TypeError, AttributeError):
            with contextlib.suppress(OSError):
                path.replace(path.with_suffix(f".damaged-{time.strftime('%Y%m%d-%H%M%S')}.json"))
            return None

    def change(self, update: Callable[[Entries], object], section: str = EXERCISES) -> None:
        """Apply `update` to the entries of a section under the lock, and write them.

        Raises
        ------
        FilesError
            When the state folder cannot be written to.
        """
        with locked(self.path.with_suffix(".lock")):
            document = self._document()
            before = json.dumps(document, sort_keys=True)
            update(document[section])
            if json.dumps(document, sort_keys=True) == before:
                return
            if self.path.exists():
                with contextlib.suppress(OSError):
                    write_text(self.path.with_suffix(".previous.json"), self.path.read_text(encoding="utf-8"))
            whole = {"version": VERSION, **document}
            write_text(self.path, json.dumps(whole, indent=1, sort_keys=True) + "\n")

    def entry(self, name: str) -> dict[str, Any]:
        """The entry of one exercise; empty where there is none."""
        return self.read().get(name, {})

    def record(self, exercise: ExerciseSource, grade: Grade, part: str | None) -> bool:
        """Keep a grade.  An untouched starter leaves no trace; a pass is never lost to a later attempt.

        Returns
        -------
        bool
            Whether this is the first attempt that is kept, at any exercise.
        """
        if grade.outcome == NOT_ATTEMPTED:
            return False
        first = False
        now = datetime.now(UTC).isoformat(timespec="seconds")

        def update(entries: Entries) -> None:
            nonlocal first
            first = not any("checked_at" in entry for entry in entries.values())
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
        return first

    def note(self, name: str, **fields: Any) -> None:
        """Keep a fact about one exercise (hints shown, solution seen, what a cell saved)."""
        self.change(lambda entries: entries.setdefault(name, {}).update(fields))

    def forget(self, names: list[str], chapters: list[str] | None = None) -> Path | None:
        """Drop the entries of exercises, and all predictions of `chapters` ("05"); the file as it was is kept aside."""
        kept = None
        if self.path.exists():
            kept = self.path.parent / "backups" / f"progress.{time.strftime('%Y%m%d-%H%M%S')}.json"
            write_text(kept, self.path.read_text(encoding="utf-8"))

        def drop(entries: Entries) -> None:
            for name in names:
                entries.pop(name, None)

        self.change(drop)
        if chapters:
            self.change(lambda said: [said.pop(name) for name in list(said) if name[:2] in chapters], PREDICTIONS)
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
