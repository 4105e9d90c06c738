"""What a `%%exercise` cell does to the learner's file, decided without any notebook in sight.

Cell and file are two views of one text.  The cell is saved where nothing can be lost by it; where the file was changed
elsewhere since the cell was last saved, the file is left alone and the learner is told both ways out.
"""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass

from course.catalogue import Course
from course.console import shorten
from course.files import ExerciseFiles
from course.grading.outcome import Grade
from course.grading.regions import MARKER, region_of_lines
from course.progress import Progress, part_hash
from course.source import NOT_PYTHON, ExerciseSource, normalise, why_unreadable

LINE = 80  # characters of a line that a message quotes
SAVED, SAME, KEPT, CONFLICT, UNREADABLE = "saved", "same", "kept", "conflict", "unreadable"


@dataclass(frozen=True, slots=True)
class Saved:
    """What happened to a cell's text, and the note for the learner (empty where there is nothing to say)."""

    action: str
    note: str


def same_code(a: str, b: str) -> bool:
    """Whether two texts are the same program, comments and layout aside."""
    try:
        return ast.dump(ast.parse(a)) == ast.dump(ast.parse(b))
    except NOT_PYTHON:
        return normalise(a) == normalise(b)


def save_cell(course: Course, name: str, cell: str, force: bool = False) -> Saved:
    """Bring the text of a cell into the learner's file, where that cannot lose anything.

    Parameters
    ----------
    course : Course
    name : str
        The exercise.
    cell : str
        The cell's text without its first line (the magic).
    force : bool
        Save although the file was changed elsewhere; the file is kept aside first.
    """
    chapter, exercise = course.exercise(name)
    files, progress = ExerciseFiles(course), Progress(course)
    text = code_of(cell)
    file_name = f"exercises/{chapter.file_name}"
    if not text.strip():
        return Saved(SAME, f"The cell is empty; this grades {file_name}.")
    if note := _unreadable(cell):
        return Saved(UNREADABLE, f"{note} Nothing was saved.")
    part = files.part(chapter, exercise)
    if part is not None and normalise(part) == normalise(text):
        return Saved(SAME, "")
    untouched = part is None or same_code(part, exercise.starter)
    if same_code(text, exercise.starter) and not force:
        if untouched:
            return Saved(SAME, "")
        return Saved(
            KEPT,
            f"The cell holds the untouched starter, {file_name} holds your work: the file was graded. "
            f"`%load_exercise {exercise.name}` brings it into a cell.",
        )
    if untouched or force or progress.entry(exercise.name).get("cell") == part_hash(part):
        if force and not untouched:
            files.backup(chapter)
        files.save(chapter, exercise, text)
        progress.note(exercise.name, cell=part_hash(text))
        return Saved(SAVED, f"Saved in {file_name}.")
    return Saved(
        CONFLICT,
        f"Not saved: {file_name} was changed elsewhere since this cell was saved. "
        f"`%%exercise {exercise.name} --save` overwrites it (it is kept aside), "
        f"`%load_exercise {exercise.name}` brings the file's text into a cell.",
    )


def code_of(cell: str) -> str:
    """What of a cell goes into the file: all but lines that look like the beginning of an exercise."""
    return "\n".join(line for line in cell.split("\n") if not MARKER.match(line)).strip("\n")


def hoisted(lines: list[str]) -> list[str]:
    """The lines of a cell with `%%exercise NAME` moved to the top, where IPython looks for it."""
    at = next((i for i, line in enumerate(lines) if line.startswith("%%exercise")), 0)
    return [lines[at].rstrip("\n") + "\n", *lines[:at], *lines[at + 1 :]] if at and lines[0][:2] != "%%" else lines


def in_cell(grade: Grade, text: str, cell: str) -> None:
    """Give line numbers as the learner sees them: those of the cell instead of those of the file."""
    regions = region_of_lines(text)
    if grade.exercise not in regions or code_of(cell) != cell.strip("\n"):
        return
    rows = text.splitlines()
    begin = next(i for i in range(regions.index(grade.exercise) + 1, len(regions)) if rows[i - 1].strip())
    blank = next((i for i, row in enumerate(cell.splitlines()) if row.strip()), 0)
    shift = begin - (blank + 2)  # line 1 of the cell is the magic

    def number(found: re.Match[str], words: str) -> str:
        line = int(found[1])
        return words.format(line - shift) if regions[min(line, len(regions) - 1)] == grade.exercise else found[0]

    def told(line: str) -> str:
        return re.sub(r"\bline (\d+)\b", lambda found: number(found, "line {} of this cell"), line)

    def traced(line: str) -> str:
        return re.sub(
            re.escape(grade.path) + r", line (\d+)", lambda found: number(found, "this cell, line {}"), line, count=1
        )

    grade.message, grade.notes = told(grade.message), list(map(told, grade.notes))
    grade.trace = list(map(traced, grade.trace))
    for check in grade.checks:
        check.trace = list(map(traced, check.trace))


def _unreadable(cell: str) -> str:
    """Why Python cannot read a cell, with the line as the learner counts it: the magic is line 1."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(ast.parse(cell), "cell", "exec")
    except NOT_PYTHON as error:
        number = getattr(error, "lineno", None)
        rows = cell.split("\n")
        line = f", line {number + 1} of this cell" if number else ""
        quoted = shorten(rows[number - 1].strip(), LINE) if number and number <= len(rows) else ""
        there = f": `{quoted}`" if quoted and "`" not in quoted else ""
        magic = re.search(r"^\s*[!%]", cell, re.MULTILINE)
        hint = " (An exercise cell holds plain Python: no % or ! commands.)" if magic else ""
        return f"Python cannot read this cell: {why_unreadable(error)}{line}{there}.{hint}"
    return ""


def cell_text(course: Course, name: str) -> str:
    """The text for a fresh cell: the magic, and what the learner's file holds now (else the starter)."""
    chapter, exercise = course.exercise(name)
    part = ExerciseFiles(course).part(chapter, exercise)
    return f"%%exercise {exercise.name}\n{part or exercise.starter}"


def starter_cell(exercise: ExerciseSource) -> str:
    """The cell that a notebook is written with."""
    return f"%%exercise {exercise.name}\n{exercise.starter}"
