"""The course in a notebook: `%%exercise NAME`, check(), hint(), solution(), progress(), mine(), predict(), truth().

One line in the first code cell of a notebook is enough::

    from course.notebook import check, hint, progress, solution

A cell that begins with `%%exercise ch05.truncate` saves itself into exercises/ (and only that part of the file),
defines what it holds in the notebook, and is graded.  Nothing here ever raises because an exercise is unsolved.
"""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from course import lessons
from course.cards import Card, code_line, shell, show_card, tell
from course.catalogue import Course, UnknownExercise
from course.cells import CONFLICT, KEPT, UNREADABLE, cell_text, code_of, hoisted, in_cell, save_cell
from course.figures.points import points_figure
from course.files import ExerciseFiles, FilesError, Parts, read_text
from course.grading import NOT_ATTEMPTED, GradingFault, feedback, grade, grade_text, warm
from course.grading.learner import Unusable, parse, run_module
from course.grading.outcome import Grade
from course.predictions import guesses, predict, truth
from course.progress import Progress, part_hash
from course.questions import announce
from course.race.cells import race, race_figure
from course.rules import RULES, known_in_the_notebook, unknown_name
from course.source import SourceError
from course.standings import standings
from course.terminal import next_line

__all__ = [
    "board",
    "check",
    "guesses",
    "hint",
    "mine",
    "predict",
    "progress",
    "race",
    "race_figure",
    "solution",
    "truth",
]

_course = Course()
PROBLEMS = (UnknownExercise, FilesError, GradingFault, SourceError, Unusable, ValueError)


def board(name: str | None = None, entry: Any = None) -> None:
    """Show a board: `board("drafter", MyDrafter)`; without a name, what boards there are and where you stand."""
    from course.board_faces import board as show  # here: it brings in the engine's compiled parts

    show(name, entry)


def check(*names: Any) -> None:
    """Grade exercises: `check("ch05.truncate")`, or a whole chapter, `check("ch05")`, or all."""
    try:
        pairs = _course.find([_name(name) for name in names]) if names else _course.all()
        untouched = []
        for _, exercise in pairs:
            card = _graded(exercise.name)
            if len(pairs) > 1 and card.grade.outcome == NOT_ATTEMPTED and not card.grade.message:
                untouched.append(exercise.name)
            else:
                _show_grade(card)
        if untouched:
            tell(f"Not attempted: {', '.join(untouched)}.")
    except PROBLEMS as error:
        tell(str(error))


def hint(name: Any, number: int | None = None, all: bool = False) -> None:
    """Show the next hint of an exercise, hint `number`, or all of them."""
    try:
        hints = lessons.take_hint(_course, _name(name), number, all)
    except PROBLEMS as error:
        return tell(str(error))
    rows = [f"{hints.name}, hint {i} of {hints.total}: {text}" for i, text in hints.shown]
    more = [f'One more: hint("{hints.name}")'] if hints.more else [f'No more. solution("{hints.name}", show=True)']
    page = "".join(f"<div><b>Hint {i} of {hints.total}.</b> {feedback.rich(text)}</div>" for i, text in hints.shown)
    return show_card(Card(page + "".join(map(code_line, more)), rows + more))


def solution(name: Any, show: bool = False) -> None:
    """Show how we wrote an exercise: once it is passed, or with `show=True`."""
    try:
        _, exercise = _course.exercise(_name(name))
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
    """Show points by chapter and what comes next, as a figure."""
    try:
        found = standings(_course)
    except PROBLEMS as error:
        return tell(str(error))
    return show_card(points_figure(found, next_line(found)))


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
    """The card of a grade; `first` where it is the first attempt that was ever kept."""

    def __init__(self, result: Grade, notes: list[str], first: bool = False) -> None:
        _, exercise = _course.exercise(result.exercise)
        try:
            shown = Progress(_course).entry(exercise.name).get("hints", 0)
        except FilesError:
            shown = 0
        of = (result, _course.root, len(exercise.hints), shown)
        super().__init__(feedback.as_html(*of, notes=notes), feedback.lines(*of, notes=notes))
        self.grade, self.first = result, first


def _graded(name: str, notes: list[str] | None = None, cell: str = "", names: Any = ()) -> _Graded:
    """Grade the learner's file and keep the grade.  `cell`: its part was typed there; `names`: what the notebook knows."""
    notes = list(notes or [])
    chapter, exercise = _course.exercise(name)
    result = grade(exercise.name, _course)
    first = False
    try:
        files = ExerciseFiles(_course)
        first = Progress(_course).record(exercise, result, files.glance(chapter, exercise))
        _suit_the_cell(result, files.read(chapter), cell, names)
    except FilesError as error:
        notes.append(f"Progress is not kept: {error}")
    return _Graded(result, notes, first)


def _graded_cell(name: str, note: str, cell: str, names: Any) -> _Graded:
    """Grade a cell that could not be saved, in the place of its part of the file; the grade is not kept."""
    chapter, exercise = _course.exercise(name)
    files = ExerciseFiles(_course)
    try:
        whole = files.read(chapter)
    except FilesError:
        whole = ""
    text = Parts.of(whole or chapter.starter()).replaced(exercise, code_of(cell))
    result = grade_text(exercise.name, text, str(files.path(chapter)), _course)
    _suit_the_cell(result, text, cell, names)
    return _Graded(result, [note, "What is graded here is this cell, and the grade is not kept."])


def _suit_the_cell(result: Grade, text: str, cell: str, names: Any) -> None:
    """Speak of the cell's lines, and of what only the notebook knows, where the code was typed in a cell."""
    if result.unknown in names:
        file = f"exercises/{Path(result.path).name}"
        told = unknown_name(result.unknown, file)
        better = known_in_the_notebook(result.unknown, file)
        result.notes = [better if note == told else note for note in result.notes]
    if cell:
        in_cell(result, text, cell)


def _show_grade(card: _Graded) -> None:
    show_card(card)
    if card.first:
        tell("Rules for all exercises (told once):", *(f"- {rule}" for rule in RULES))


def _name(thing: Any) -> str:
    """The name of an exercise; a function or class of the learner's stands for the exercise that it answers."""
    if isinstance(thing, str):
        return thing
    name = getattr(thing, "__name__", str(thing))
    answered = [e.name for _, e in _course.all() if name in (definition.name for definition in e.written)]
    return answered[0] if len(answered) == 1 else name


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
        known = shell.user_ns if shell is not None else ()
        if action == CONFLICT:
            return _show_grade(_graded_cell(exercise.name, note, cell, known))
        typed = "" if action == KEPT else cell
        return _show_grade(_graded(exercise.name, [note] if note else [], typed, known))
    except PROBLEMS as error:
        return tell(str(error))


def _define(chapter: Any, cell: str, shell: Any) -> None:
    """Run the cell in the notebook, with what the head of the exercises file gives (imports, toys) at hand."""
    scope: dict[str, Any] = {"__name__": "exercises_head"}
    try:
        head = Parts.of(ExerciseFiles(_course).read(chapter) or chapter.starter()).head
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
    if hoisted not in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.append(hoisted)
    shell.events.register("pre_run_cell", announce)  # a second time changes nothing
    warm()


if shell() is not None:
    load_ipython_extension(shell())
