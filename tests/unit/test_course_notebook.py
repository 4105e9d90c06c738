"""Cells and files are one text: what a `%%exercise` cell saves, what it never overwrites, and what is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import course.notebook as notebook
from course.catalogue import Course
from course.cells import CONFLICT, KEPT, SAME, SAVED, UNREADABLE, cell_text, save_cell, starter_cell
from course.files import ExerciseFiles
from course.progress import Progress
from course.source import ROOT, normalise
from tests.unit.course_kit import EXERCISES, REAL, make_course

NAME = "ch05.truncate"
GOOD = (
    "def truncate(cache, keep):\n    if keep < 0:\n        raise ValueError(keep)\n"
    "    cache.len = min(keep, cache.len)\n"
)
WEAK = "def truncate(cache, keep):\n    cache.len = keep\n"


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    course = make_course(tmp_path)
    monkeypatch.setattr(notebook, "_course", course)
    return course


def part(course: Course, name: str = NAME) -> str | None:
    chapter, exercise = course.exercise(name)
    return ExerciseFiles(course).part(chapter, exercise)


class Shell:
    """As much of IPython as the magics use."""

    def __init__(self) -> None:
        self.user_ns: dict[str, Any] = {}
        self.next = ""

    def run_cell(self, text: str, store_history: bool = True) -> None:
        exec(text, self.user_ns)

    def set_next_input(self, text: str, replace: bool = False) -> None:
        self.next = text


def test_a_cell_saves_only_its_part(course: Course) -> None:
    chapter = course.exercise(NAME)[0]
    before = ExerciseFiles(course).read(chapter)
    assert save_cell(course, NAME, GOOD).action == SAVED
    after = ExerciseFiles(course).read(chapter)
    assert part(course) == GOOD.strip()
    starter = course.exercise(NAME)[1].starter
    assert after == before.replace(starter, GOOD.strip())


def test_later_versions_of_a_cell_follow(course: Course) -> None:
    for text in (WEAK, GOOD, WEAK):
        assert save_cell(course, NAME, text).action == SAVED
    assert save_cell(course, NAME, WEAK).action == SAME


def test_the_starter_in_a_cell_never_overwrites_work(course: Course) -> None:
    save_cell(course, NAME, GOOD)
    saved = save_cell(course, NAME, course.exercise(NAME)[1].starter)
    assert saved.action == KEPT and "holds your work" in saved.note
    assert part(course) == GOOD.strip()


def test_work_done_in_an_editor_is_not_overwritten(course: Course) -> None:
    chapter, exercise = course.exercise(NAME)
    save_cell(course, NAME, WEAK)
    ExerciseFiles(course).save(chapter, exercise, GOOD)  # meanwhile, in an editor
    saved = save_cell(course, NAME, WEAK.replace("keep\n", "keep + 0\n"))
    assert saved.action == CONFLICT and "--save" in saved.note
    assert part(course) == GOOD.strip()
    assert save_cell(course, NAME, WEAK, force=True).action == SAVED
    assert part(course) == WEAK.strip()
    backups = list((course.state / "backups").iterdir())
    assert len(backups) == 1 and GOOD.strip() in backups[0].read_text(encoding="utf-8")


def test_what_python_cannot_read_is_not_saved(course: Course) -> None:
    before = part(course)
    for text, told in (
        ("\ndef truncate(:\n", "line 3 of this cell: `def truncate(:`. Nothing"),
        ("%time x\n", "no % or ! commands"),
        ("", "empty"),
    ):
        saved = save_cell(course, NAME, text)
        assert saved.action in (UNREADABLE, SAME) and told in saved.note
    assert part(course) == before


@pytest.mark.parametrize("name", EXERCISES)
def test_unsolved_cells_define_their_stub_and_raise_nothing(
    course: Course, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = Shell()
    chapter, exercise = course.exercise(name)
    line, cell = starter_cell(exercise).split("\n", 1)
    notebook.exercise_cell(line.removeprefix("%%exercise"), cell, shell)
    assert "not attempted" in capsys.readouterr().out
    for definition in exercise.written:
        assert definition.name in shell.user_ns
    assert ExerciseFiles(course).read(chapter) == chapter.starter()
    assert not Progress(course).path.exists()


def test_magic_saves_defines_and_grades(course: Course, capsys: pytest.CaptureFixture[str]) -> None:
    shell = Shell()
    notebook.exercise_cell(NAME, WEAK, shell)
    out = capsys.readouterr().out
    assert "not yet" in out and "Saved in exercises/" in out and "What went wrong" in out
    notebook.exercise_cell(NAME, GOOD, shell)
    assert "passed, 5 of 5 points" in capsys.readouterr().out
    cache = shell.user_ns["ToyCache"](4)  # what the head of the file gives is at hand
    cache.append(1)
    shell.user_ns["truncate"](cache, 0)
    assert cache.len == 0
    assert Progress(course).entry(NAME)["passed_at"]
    notebook.load_cell(NAME, shell)
    assert shell.next == f"%%exercise {NAME}\n{GOOD.strip()}" == cell_text(course, NAME)
    other = Shell()
    notebook.exercise_cell(NAME, course.exercise(NAME)[1].starter, other)  # a notebook run again, from its first state
    assert "holds your work" in capsys.readouterr().out
    other.user_ns["truncate"](cache, 0)


def test_mine_is_the_learners_once_it_passes(course: Course) -> None:
    assert notebook.mine(NAME, otherwise="ours") == "ours"
    save_cell(course, NAME, WEAK)
    assert notebook.mine(NAME) is None
    save_cell(course, NAME, GOOD)
    assert notebook.mine(NAME).__name__ == "truncate"


def test_hints_and_solution(course: Course, capsys: pytest.CaptureFixture[str]) -> None:
    exercise = course.exercise(NAME)[1]
    for i in (1, 2, 3, 3):
        notebook.hint(NAME)
        assert f"hint {i} of 3: {exercise.hints[i - 1]}" in capsys.readouterr().out
    notebook.hint(NAME, all=True)
    assert all(hint in capsys.readouterr().out for hint in exercise.hints[:1])
    notebook.hint(NAME, 9)
    assert "there is no hint 9" in capsys.readouterr().out
    notebook.solution(NAME)
    assert "not passed yet" in capsys.readouterr().out
    notebook.solution(NAME, show=True)
    assert "min(cache.len, keep)" in capsys.readouterr().out
    notebook.progress()
    assert "0 of 5 passed" in capsys.readouterr().out
    notebook.check("no.such")
    notebook.exercise_cell("", "", None)
    assert "no exercise or chapter" in capsys.readouterr().out


def test_cards_have_a_plain_twin_and_escape_what_learners_write(course: Course) -> None:
    save_cell(course, NAME, WEAK.replace("cache.len = keep", "raise ValueError('<b>\\u00e9</b>')"))
    card = notebook._graded(NAME)
    bundle = card._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"}
    assert "<b>\u00e9" not in bundle["text/html"] and "&lt;b&gt;" in bundle["text/html"]
    assert bundle["text/plain"].isascii()
    for word in ("not yet", "hint 1 of 3"):
        assert word in bundle["text/html"] and word in bundle["text/plain"]


def test_a_read_only_folder_still_grades(
    course: Course, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("course.files.tempfile.mkstemp", refuse)
    notebook.exercise_cell(NAME, GOOD, Shell())
    out = capsys.readouterr().out
    assert "Not saved" in out and "read-only" in out.lower()
    assert "passed, 5 of 5" in out and "What is graded here is this cell, and the grade is not kept." in " ".join(
        out.split()
    )
    assert not Progress(course).path.exists()


def test_exercise_cells_of_notebooks_hold_the_starters_as_they_are_now() -> None:
    for path in sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            text = "".join(cell["source"])
            if text.startswith("%%exercise "):
                exercise = REAL.exercise(text.split("\n", 1)[0].split()[1])[1]
                assert normalise(text) == normalise(starter_cell(exercise)), f"{path.name}: {exercise.name}"
