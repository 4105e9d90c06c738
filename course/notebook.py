"""The course in a notebook: `%%exercise NAME`, check(), hint(), solution(), progress(), mine(), predict(), truth().

One line in the first code cell of a notebook is enough::

    from course.notebook import check, hint, progress, solution

A cell that begins with `%%exercise ch05.truncate` saves itself into exercises/ (and only that part of the file),
defines what it holds in the notebook, and is graded.  Nothing here ever raises because an exercise is unsolved.
"""

from __future__ import annotations

import html
from typing import Any

from course import lessons
from course.cards import Card, code_line, shell, show_card, tell
from course.catalogue import Course, UnknownExercise
from course.cells import CONFLICT, KEPT, UNREADABLE, cell_text, save_cell
from course.files import ExerciseFiles, FilesError, Parts, read_text
from course.grading import GradingFault, feedback, grade, warm
from course.grading.learner import Unusable, parse, run_module
from course.grading.outcome import Grade
from course.predictions import guesses, predict, truth
from course.progress import Progress, part_hash
from course.source import SourceError
from course.terminal import bar, summary

__all__ = ["check", "guesses", "hint", "mine", "predict", "progress", "solution", "truth"]

_course = Course()
PROBLEMS = (UnknownExercise, FilesError, GradingFault, SourceError, Unusable, ValueError)


def check(*names: str) -> None:
    """Grade exercises: `check("ch05.truncate")`, or a whole chapter, `check("ch05")`."""
    try:
        for _, exercise in _course.find(list(names) or [e.name for _, e in _course.all()]):
            show_card(_graded(exercise.name))
    except PROBLEMS as error:
        tell(str(error))


def hint(name: str, number: int | None = None, all: bool = False) -> None:
    """Show the next hint of an exercise, hint `number`, or all of them."""
    try:
        hints = lessons.take_hint(_course, name, number, all)
    except PROBLEMS as error:
        return tell(str(error))
    rows = [f"{hints.name}, hint {i} of {hints.total}: {text}" for i, text in hints.shown]
    more = [f'One more: hint("{hints.name}")'] if hints.more else []
    page = "".join(f"<div><b>Hint {i} of {hints.total}.</b> {feedback.rich(text)}</div>" for i, text in hints.shown)
    return show_card(Card(page + "".join(map(code_line, more)), rows + more))


def solution(name: str, show: bool = False) -> None:
    """Show how we wrote an exercise: once it is passed, or with `show=True`."""
    try:
        _, exercise = _course.exercise(name)
        if not show and not lessons.passed(_course, exercise.name):
            return tell(
                f'{exercise.name} is not passed yet. Try hint("{exercise.name}") first; '
                f'solution("{exercise.name}", show=True) shows it all the same.'
            )
        text = lessons.solution_text(_course, exercise.name)
    except PROBLEMS as error:
        return tell(str(error))
    page = (
        f"<details open><summary>Solution of {html.escape(exercise.name)}</summary>"
        f"{feedback.preformatted(text.splitlines())}</details>"
    )
    return show_card(Card(page, [f"# {exercise.name}", *text.splitlines()]))


def progress() -> None:
    """Show points by chapter and what comes next."""
    try:
        rows = summary(_course)
        entries = Progress(_course).read()
        page = []
        for chapter in _course.chapters():
            points = sum(exercise.points for exercise in chapter.exercises)
            best = sum(entries.get(exercise.name, {}).get("best", 0) for exercise in chapter.exercises)
            title = html.escape(f"{chapter.chapter} {chapter.title}")
            page.append(
                f'<tr><td style="text-align:left">{title}</td>'
                f"<td><code>{bar(best, points)}</code></td><td>{best} of {points} points</td></tr>"
            )
    except PROBLEMS as error:
        return tell(str(error))
    return show_card(Card(f"<table>{''.join(page)}</table><div>{html.escape(rows[-1])}</div>", rows))


def mine(name: str, otherwise: Any = None) -> Any:
    """What the learner wrote for an exercise, once it passes; `otherwise` until then.

    A cell can use it without a thought for whether the exercise is solved::

        rewind = mine("ch05.truncate", otherwise=toy_truncate)

    Returns the learner's function or class, from the file, in its present state; of an exercise with several
    definitions, the module that holds them.
    """
    try:
        if not _graded(name).grade.passed:
            return otherwise
        chapter, exercise = _course.exercise(name)
        path = ExerciseFiles(_course).path(chapter)
        text = read_text(path)
        module = run_module(parse(text, str(path), exercise), text, str(path), f"_mine_{exercise.name}")
    except PROBLEMS as error:
        tell(str(error))
        return otherwise
    names = [definition.name for definition in exercise.written]
    return getattr(module, names[0]) if len(names) == 1 else module


class _Graded(Card):
    """The card of a grade."""

    def __init__(self, result: Grade, notes: list[str]) -> None:
        _, exercise = _course.exercise(result.exercise)
        shown = Progress(_course).entry(exercise.name).get("hints", 0)
        rows = feedback.lines(result, _course.root, len(exercise.hints), shown)
        super().__init__(
            feedback.as_html(result, _course.root, len(exercise.hints), shown, notes),
            rows[:1] + ["  " + note for note in notes] + rows[1:],
        )
        self.grade = result


def _graded(name: str, notes: list[str] | None = None) -> _Graded:
    """Grade the learner's file and keep the grade."""
    notes = list(notes or [])
    chapter, exercise = _course.exercise(name)
    result = grade(exercise.name, _course)
    try:
        Progress(_course).record(exercise, result, ExerciseFiles(_course).glance(chapter, exercise))
    except FilesError as error:
        notes.append(f"Progress is not kept: {error}")
    return _Graded(result, notes)


def exercise_cell(line: str, cell: str, shell: Any = None) -> None:
    """`%%exercise NAME [--save]`: save the cell into the learner's file, define it here, grade the file."""
    words = line.split()
    force = "--save" in words
    names = [word for word in words if not word.startswith("--")]
    if len(names) != 1 or set(words) - set(names) - {"--save"}:
        return tell("Write one exercise after %%exercise, like %%exercise ch05.truncate (and --save to overwrite).")
    try:
        chapter, exercise = _course.exercise(names[0])
        try:
            saved = save_cell(_course, exercise.name, cell, force)
            note, action = saved.note, saved.action
        except FilesError as error:
            note, action = f"Not saved: {error}", CONFLICT
        if action == UNREADABLE:
            return tell(f"{exercise.name}: {note}")
        if shell is not None:
            part = ExerciseFiles(_course).part(chapter, exercise) if action == KEPT else None
            _define(chapter, part or cell, shell)
        return show_card(_graded(exercise.name, [note] if note else []))
    except PROBLEMS as error:
        return tell(str(error))


def _define(chapter: Any, cell: str, shell: Any) -> None:
    """Run the cell in the notebook, with what the head of the exercises file gives (imports, toys) at hand."""
    scope: dict[str, Any] = {"__name__": "exercises_head"}
    head = Parts.of(ExerciseFiles(_course).read(chapter) or chapter.starter()).head
    try:
        exec(compile(head, f"exercises/{chapter.file_name}", "exec"), scope)
    except Exception:
        scope = {}  # the learner broke the head: grading says so
    for name, value in scope.items():
        if not name.startswith("__"):
            shell.user_ns.setdefault(name, value)
    shell.run_cell(cell, store_history=False)


def load_cell(line: str, shell: Any) -> None:
    """`%load_exercise NAME`: put the text that the learner's file holds into this cell."""
    try:
        _, exercise = _course.exercise(line.strip())
        part = cell_text(_course, exercise.name)
        Progress(_course).note(exercise.name, cell=part_hash(part.split("\n", 1)[1]))
        shell.set_next_input(part, replace=True)
    except PROBLEMS as error:
        tell(str(error))


def load_ipython_extension(shell: Any) -> None:
    """Register the magics (also done on import, inside IPython)."""
    shell.register_magic_function(lambda line, cell: exercise_cell(line, cell, shell), "cell", "exercise")
    shell.register_magic_function(lambda line: load_cell(line, shell), "line", "load_exercise")
    warm()


if shell() is not None:
    load_ipython_extension(shell())
