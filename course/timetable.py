"""The chapters that are here, read off the notebooks, those that are still to come, and how long each takes."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from course.catalogue import Course
from course.score import worth

# One rule for all chapters: reading, running, and a minute for each point of its exercises (a bonus is extra).
WORDS_PER_MINUTE, MINUTES_PER_CELL, MINUTES_PER_POINT = 150, 0.5, 1
RULE = "150 words and two cells per minute, and one minute per point of the exercises"

# (title, number of the first chapter) of each part; a part ends where the next one begins.
PARTS = (
    ("0 Start", 0),
    ("I The machine", 1),
    ("II Inference tricks", 5),
    ("III Memory, learning", 16),
    ("IV Kernels", 20),
)
# Chapters without a notebook.  One that gets its notebook is taken from there, whatever stands here.
TO_COME = {
    "02": "Tokens",
    "10": "A draft model",
    "11": "Constrained decoding",
    "12": "Reuse across requests",
    "13": "Experts from disk",
    "14": "The GPU seam",
    "15": "A server that batches",
    "16": "Cartridges",
    "17": "Engram",
    "18": "Fine-tuning",
    "19": "Low-bit frontier",
    "20": "A kernel of your own",
}


@dataclass(frozen=True, slots=True)
class Planned:
    """A chapter: its two digits, a short title, whether it is here, and the minutes that it takes (0 where it is not)."""

    chapter: str
    title: str
    here: bool
    minutes: int = 0

    @property
    def name(self) -> str:
        """`05 The loop and the cache`."""
        return f"{self.chapter} {self.title}"


def chapters_here(course: Course | None = None) -> list[Planned]:
    """Every chapter that has a notebook."""
    course = course or Course()
    worths = {chapter.chapter: worth(chapter.exercises) for chapter in course.chapters()}
    found = []
    for path in sorted((course.root / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        number, _, words = path.stem.partition("_")
        status = path.stat()
        read, cells = _counted(path, (status.st_mtime_ns, status.st_size))
        minutes = read / WORDS_PER_MINUTE + cells * MINUTES_PER_CELL + worths.get(f"ch{number}", 0) * MINUTES_PER_POINT
        title = words.replace("_", " ")
        found.append(Planned(number, title[:1].upper() + title[1:], True, max(5, 5 * round(minutes / 5))))
    return found


def timetable(course: Course | None = None) -> list[tuple[str, list[Planned]]]:
    """All chapters by part, those that are still to come included."""
    here = {plan.chapter: plan for plan in chapters_here(course)}
    coming = {number: Planned(number, title, False) for number, title in TO_COME.items()}
    every = sorted({**coming, **here}.values(), key=lambda plan: plan.chapter)
    ends = [first for _, first in PARTS[1:]] + [100]
    parts = []
    for (title, first), end in zip(PARTS, ends, strict=True):
        parts.append((title, [plan for plan in every if first <= int(plan.chapter) < end]))
    return [(title, plans) for title, plans in parts if plans]


def in_words(minutes: int) -> str:
    """Minutes as a reader says them: 25 min, 1 h 10 min."""
    hours, rest = divmod(minutes, 60)
    return " ".join([*([f"{hours} h"] if hours else []), *([f"{rest} min"] if rest or not hours else [])])


@lru_cache(maxsize=64)
def _counted(path: Path, stamp: tuple[int, int]) -> tuple[int, int]:
    """(words of prose, code cells) of a notebook; zeros where it cannot be read."""
    try:
        cells: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError, KeyError):
        return 0, 0
    prose = [_text(cell) for cell in cells if cell.get("cell_type") == "markdown"]
    words = sum(len(re.findall(r"\w+", text)) for text in prose)
    return words, sum(cell.get("cell_type") == "code" and bool(_text(cell).strip()) for cell in cells)


def _text(cell: dict[str, Any]) -> str:
    source = cell.get("source", "")
    return source if isinstance(source, str) else "".join(source)
