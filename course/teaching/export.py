"""Chapters as nbgrader assignments: one source notebook a chapter, with solution regions and graded cells.

Cell metadata follow nbgrader's schema 3.  nbgrader itself is not needed to export; a graded cell calls
`course.teaching.points`, so that both ways of grading give the same points.
"""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course.catalogue import Course
from course.files import FilesError, write_text
from course.score import worth
from course.source import ChapterSource, Definition, ExerciseSource

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
STUB = 'raise NotImplementedError("your code here")'
SCHEMA = 3

CONFIG = f'''"""Settings of nbgrader for the exported chapters; yours to change."""

c = get_config()  # noqa: F821
c.CourseDirectory.course_id = "fucina"
# What stands in place of a solution: the words by which an untouched answer is told from a wrong one.
c.ClearSolutions.code_stub = {{"python": '{STUB}'}}
# Seconds a cell; the grader has stricter limits of its own.
c.Execute.timeout = 300
'''

README = """# Assignments

Made by `python3 -m course export --nbgrader`. One assignment per chapter; `source/` holds those that were exported, of these:

{table}

Run nbgrader in this folder, with the Python of the course's environment, which must have nbgrader installed. CHAPTER is
one of the names above:

    nbgrader generate_assignment CHAPTER
    nbgrader release_assignment CHAPTER     (or hand out release/CHAPTER in any other way)
    nbgrader autograde CHAPTER
    nbgrader generate_feedback CHAPTER

- `source/` holds solutions: it is for teachers. `release/`, which nbgrader makes, is for students.
- An answer stands in one cell, helpers included: what is graded is the text of that cell.
- Graded cells call `course.teaching.points`, so wherever the notebooks run, the course must be importable and must hold
  `solutions/`: the checks are read from there, with the solutions cut out.
- A half-right answer earns part of the points, and the feedback is in the cell's output.
- A bonus exercise shows what it is worth and is not counted: nbgrader would count it in its total. Enter it as extra credit.
- An export again leaves files alone that were changed since, unless `--force` is given.
"""


@dataclass(slots=True)
class Exported:
    """What an export did, by path within its folder."""

    written: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


def export(course: Course, folder: Path, names: list[str] | None = None, force: bool = False) -> Exported:
    """Write the assignments of chapters into `folder`.

    Parameters
    ----------
    course : Course
    folder : Path
        Made if needed: source/chNN/chNN_name.ipynb, nbgrader_config.py, README.md.
    names : list of str, optional
        Chapters, as `Course.find` knows them; all by default.
    force : bool
        Overwrite files that are not what this export would write.

    Raises
    ------
    FilesError
        The folder cannot be written to.
    UnknownExercise
        A name means nothing.
    """
    chapters = course.chapters()
    if names:
        wanted = {chapter.chapter for chapter, _ in course.find(names)}
        chapters = [chapter for chapter in chapters if chapter.chapter in wanted]
    table = "\n".join(
        f"- `{c.chapter}`: {c.title} ({len(c.exercises)} exercises, {worth(c.exercises)} points)"
        for c in course.chapters()
    )
    files = {f"source/{c.chapter}/{c.path.stem}.ipynb": as_text(assignment(c)) for c in chapters}
    files["nbgrader_config.py"] = CONFIG
    files["README.md"] = README.format(table=table)
    done = Exported()
    for name, text in files.items():
        path = folder / name
        if path.exists() and not force:
            (done.unchanged if _read(path) == text else done.kept).append(name)
            continue
        write_text(path.absolute(), text)
        done.written.append(name)
    return done


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "replace").replace("\r\n", "\n")
    except OSError as error:
        raise FilesError(f"cannot read {path}: {error.strerror or error}") from error


def as_text(notebook: dict[str, Any]) -> str:
    """A notebook as the text of its file."""
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def assignment(chapter: ChapterSource) -> dict[str, Any]:
    """The source notebook of a chapter (nbformat 4.5), with the solutions in it."""
    cells = [
        _cell("markdown", f"{chapter.chapter}-text", _introduction(chapter), locked=True),
        _cell("code", f"{chapter.chapter}-given", _given(chapter), locked=True),
    ]
    for exercise in chapter.exercises:
        grade_id = exercise.name.replace(".", "-")
        cells += [
            _cell("markdown", f"{grade_id}-text", _task(exercise), locked=True),
            _cell("code", grade_id, f"{exercise.marker}\n\n{answer(exercise)}", solution=True),
            _cell("code", f"{grade_id}-points", f'points("{exercise.name}")', locked=True, points=marks(exercise)),
        ]
    return {
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _cell(
    kind: str, grade_id: str, source: str, locked: bool = False, solution: bool = False, points: int | None = None
) -> dict[str, Any]:
    nbgrader: dict[str, Any] = {
        "schema_version": SCHEMA,
        "grade_id": grade_id,
        "grade": points is not None,
        "locked": locked,
        "solution": solution,
        "task": False,
    }
    if points is not None:
        nbgrader["points"] = points
    cell: dict[str, Any] = {
        "cell_type": kind,
        "id": grade_id,
        "metadata": {"nbgrader": nbgrader},
        "source": source.splitlines(keepends=True),
    }
    if locked:
        cell["metadata"] |= {"editable": False, "deletable": False}
    if kind == "code":
        cell |= {"execution_count": None, "outputs": []}
    return cell


def marks(exercise: ExerciseSource) -> int | None:
    """What nbgrader counts for an exercise: nothing for a bonus, since all that it counts is part of its total."""
    return None if exercise.bonus else exercise.points


def _introduction(chapter: ChapterSource) -> str:
    """The chapter's own words, and how an assignment is worked."""
    paragraphs = chapter.doc.strip().split("\n\n")[1:]
    number = chapter.chapter.removeprefix("ch")
    return "\n\n".join(
        [
            f"# Chapter {number}: {chapter.title}",
            *paragraphs,
            (
                f"Read the chapter itself first: the notebook of `notebooks/` that begins with {number}. Write each answer "
                "into its own cell, below the docstring, and run the cell; helpers that you need go into the same cell. The "
                "cell after it says what the answer is worth. Run the cells from top to bottom before you hand in."
            ),
        ]
    )


def _given(chapter: ChapterSource) -> str:
    """The head of the exercises file: imports and what the chapter gives."""
    lines = chapter.head.splitlines()
    tree = ast.parse(chapter.head)
    return "from course.teaching import points\n\n" + "\n".join(lines[tree.body[0].end_lineno :]).strip("\n")


def _task(exercise: ExerciseSource) -> str:
    return f"## {exercise.title}\n\n{exercise.worth}, {exercise.level}. Taught in section {exercise.section}."


def answer(exercise: ExerciseSource) -> str:
    """The part of an exercise, solved; everything that the learner is to write stands inside solution regions."""
    return "\n\n\n".join(_with_regions(d) if d.written else d.text for d in exercise.definitions)


def _with_regions(definition: Definition) -> str:
    """A definition whose bodies, from below the docstring, are enclosed by the marks of a solution region."""
    lines = definition.text.splitlines()
    node = ast.parse(definition.text).body[0]
    written = [node] if isinstance(node, ast.FunctionDef) else _written_methods(node, definition)
    for function in reversed(written):  # from the end: line numbers before it stay true
        documented = ast.get_docstring(function, clean=False) is not None
        first = function.body[0].end_lineno if documented else function.body[0].lineno - 1
        indent = " " * (function.col_offset + 4)
        body = lines[first : function.end_lineno]
        lines[first : function.end_lineno] = [indent + BEGIN, *body, indent + END]
    return "\n".join(lines)


def _written_methods(node: ast.stmt, definition: Definition) -> list[ast.FunctionDef]:
    """The methods of a class whose bodies the starter leaves out."""
    starter = ast.parse(definition.starter).body[0]
    pairs = zip(_methods(node), _methods(starter), strict=True)
    return [mine for mine, shown in pairs if ast.dump(mine) != ast.dump(shown)]


def _methods(node: ast.stmt) -> list[ast.FunctionDef]:
    return [item for item in getattr(node, "body", []) if isinstance(item, ast.FunctionDef)]
