"""The tool that changes solutions mechanically: what it makes, what it finds, and its list of equivalent mutants."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from course import mutants
from course.catalogue import Course
from course.grading import WorkerClient
from course.mutants import Mutant
from course.parser import parse_chapter
from tests.unit.course_kit import REAL

SMALL = ["ch00.decode_ceiling", "ch04.penalties", "ch05.truncate", "ch09.break_even"]


def changes_of(body: str) -> list[str]:
    """The changes of a function with this body."""
    function = ast.parse(f"def f(a, b):\n    {body}").body[0]
    assert isinstance(function, ast.FunctionDef)
    before = ast.dump(function)
    found = []
    for change, restore in mutants.changes(function):
        assert ast.dump(function) != before
        restore()
        assert ast.dump(function) == before
        found.append(change.partition(" in ")[0])
    return found


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("return a < b", {"a < b -> a <= b", "a < b -> a > b"}),
        ("return a + 1", {"a + 1 -> a - 1", "1 -> 2", "1 -> 0"}),
        ("return a and b", {"a and b -> a or b", "a and b -> a", "a and b -> b"}),
        ("return a[1:]", {"1: -> :", "1 -> 2", "1 -> 0"}),
        ("a.append(b)", {"a.append(b) -> pass"}),
        ("a -= b", {"a -= b -> pass", "a -= b -> a += b"}),
        ("return f(a, b)", {"f(a, b) -> f(b, a)"}),
        ("return max(a, b)", {"max(a, b) -> min(a, b)"}),
        ("return list(a)", {"list(a) -> a"}),
        ("if a: return b", {"if a: -> if True:"}),
        ("raise ValueError(f'got {a + 1}')", {"raise ValueError(f'got {a + 1}') -> pass"}),
        ("return True", {"True -> False"}),
    ],
)
def test_each_kind_of_change(body: str, wanted: set[str]) -> None:
    assert set(changes_of(body)) == wanted


def test_only_what_learners_write_is_changed() -> None:
    """In a class, given methods stay; every mutant is a program, and differs from the solution."""
    _, exercise = REAL.exercise("ch08.append")
    found = mutants.mutants(exercise)
    assert all(mutant.change.startswith(("append: ", "walk: ")) for mutant in found)
    assert len({mutant.text for mutant in found}) == len(found) > 50
    for mutant in found:
        ast.parse(mutant.text)


def test_the_list_of_equivalent_mutants_names_mutants() -> None:
    for name, entries in mutants.equivalent().items():
        _, exercise = REAL.exercise(name)
        known = {mutant.change for mutant in mutants.mutants(exercise)}
        assert set(entries) <= known, name
        assert all(len(why) > 10 for why in entries.values())


@pytest.mark.parametrize("name", SMALL)
def test_the_checks_let_nothing_wrong_pass(name: str) -> None:
    """A few exercises each time; `-m slow` does all."""
    assert mutants.survivors([REAL.exercise(name)]) == []


def test_a_hole_in_the_checks_is_found(tmp_path: Path) -> None:
    chapter, exercise = REAL.exercise("ch05.truncate")
    text = chapter.text
    for check in exercise.checks[1:]:
        text = text.replace(f'@ex.check("{check}")', "")
    path = tmp_path / "solutions" / chapter.file_name
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    weak = replace(parse_chapter(text, path), path=path)
    assert len(weak.exercise(exercise.name).checks) == 1
    found = mutants.survivors([(weak, weak.exercise(exercise.name))])
    assert len(found) > 1


def test_a_mutant_that_never_ends_has_not_passed() -> None:
    chapter, exercise = REAL.exercise("ch05.truncate")
    client = WorkerClient()
    try:
        endless = Mutant(exercise.name, "", "def truncate(cache, keep):\n    while True:\n        pass")
        assert not mutants.passes(client, chapter, replace(exercise, cpu_seconds=0.2), endless)
    finally:
        client.close()


@pytest.mark.slow
def test_no_exercise_lets_a_wrong_mutant_pass() -> None:
    assert mutants.survivors(Course().all(), jobs=2) == []


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert mutants.main(["ch05.truncate", "--list"]) == 0
    assert "ch05.truncate  truncate: " in capsys.readouterr().out
    assert mutants.main(["ch09.break_even"]) == 0
    assert " mutants, 0 pass" in capsys.readouterr().out
