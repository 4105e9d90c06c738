"""Exercises in which the learner writes the test: what is said of checks that never answer, answer nonsense or cry at all."""

from __future__ import annotations

import functools

import pytest

from course.catalogue import Course
from course.grading import proving
from course.grading.core import ChapterChecks
from course.grading.outcome import NOT_YET, PASSED, Grade
from course.grading.state import Fingerprint, compare
from course.grading.tools import Failed, Tools
from course.grading.worker import report_time


@pytest.fixture
def t() -> Tools:
    return Tools("a check")


def right() -> int:
    return 1


def test_a_right_one_is_spared_and_a_wrong_one_found(t: Tools) -> None:
    proving.spares(t, lambda f: None, right, shown="prove(f)", style="plain")
    proving.finds(t, lambda f: "it is 1", right, shown="prove(f)", hint="look")
    with pytest.raises(Failed, match=r"takes it for a right one\. Look at the end"):
        proving.finds(t, lambda f: None, right, shown="prove(f)", hint="Look at the end.")
    assert t.story == ["prove(f)      # a wrong one"]


def test_a_claim_against_a_right_one_names_its_style_and_the_claim(t: Tools) -> None:
    with pytest.raises(Failed, match=r"Its style: recursive\. Your claim was: row 3 is missing"):
        proving.spares(t, lambda f: "row 3 is missing", right, shown="prove(f)", style="recursive")


def test_who_calls_the_plain_one_wrong_finds_nothing(t: Tools) -> None:
    def suspicious(f: object) -> str:
        return "hm"

    proving.finds(t, suspicious, right, shown="prove(f)", hint="")
    with pytest.raises(Failed):
        proving.spares(t, suspicious, right, shown="prove(f)", style="plain", vital=True)
    with pytest.raises(Failed, match="calls the plainest right one wrong as well"):
        proving.finds(t, suspicious, right, shown="prove(f)", hint="")
    proving.finds(t, lambda f: "another check is heard", right, shown="prove(f)", hint="")


def test_what_the_grader_remembers_is_not_laid_to_the_learners_code(t: Tools) -> None:
    def suspicious(f: object) -> str:
        return "hm"

    before = Fingerprint()
    with pytest.raises(Failed):
        proving.spares(t, suspicious, right, shown="prove(f)", style="plain", vital=True)
    found, rest = compare(before)
    # A warm worker holds no test runner; here hypothesis may fill its own tables meanwhile.
    assert ([f for f in found if "hypothesis" not in f], rest) == ([], [])


@pytest.mark.parametrize(
    ("name", "wrong"), [("ch05.prove", "never_content"), ("ch07.prove", "never_content"), ("ch07.drafter", "Searches")]
)
def test_a_failed_grade_does_not_accuse_the_code_of_changes_that_the_checks_made(name: str, wrong: str) -> None:
    chapter, exercise = Course().exercise(name)
    text = chapter.assemble({name: exercise.mutant(next(w for w in exercise.wrongs if w.name == wrong))})
    checks = ChapterChecks(chapter)
    before = Fingerprint()
    grade = checks.grade(exercise, text, "learner.py")
    assert not grade.passed
    assert [change for change in compare(before)[0] if "course" in change or "_checks" in change] == []


@pytest.mark.parametrize("answer", [True, False, 0, "", "  ", [], ["row 3"]])
def test_other_answers_are_told_what_is_expected(t: Tools, answer: object) -> None:
    with pytest.raises(Failed, match="expected None or a text"):
        proving.verdict(t, lambda f: answer, right, shown="prove(f)")


def test_an_error_is_no_answer(t: Tools) -> None:
    def raises(f: object) -> None:
        raise AssertionError("row 3")

    with pytest.raises(Failed, match=r"ended with AssertionError: row 3 instead of an answer"):
        proving.verdict(t, raises, right, shown="prove(f)")


def test_a_loop_without_end_is_stopped_even_where_all_is_caught(t: Tools) -> None:
    def waits(f: object) -> None:
        while True:
            try:
                f()  # type: ignore[operator]
            except Exception:
                continue

    with pytest.raises(Failed, match=r"called it more than 4000 times .* give your loops a bound"):
        proving.verdict(t, waits, proving.counted(lambda: 1 / 0), shown="prove(f)")
    with pytest.raises(Failed, match=r"called `append` of one cache more than 7 times .* raise an error count as well"):
        proving.verdict(t, waits, proving.counted(lambda: 1 / 0, 7, "`append` of one cache"), shown="prove(f)")


def test_the_names_of_a_learners_file_are_found() -> None:
    class Callable:
        def __call__(self) -> None: ...

    @functools.wraps(right)
    def wrapped() -> int:
        return right()

    for function in (right, functools.partial(right), wrapped, Callable(), Callable().__call__):
        assert proving.home(function)["Failed"] is Failed
    assert proving.home(len) == {}


@pytest.mark.parametrize(
    ("outcome", "busy", "warned"), [(PASSED, 1.0, False), (PASSED, 4.1, True), (NOT_YET, 7.9, False)]
)
def test_a_pass_near_the_limit_of_time_is_noted(outcome: str, busy: float, warned: bool) -> None:
    _, exercise = Course().exercise("ch07.prove")
    grade = Grade.of(exercise, outcome, "learner.py", "")
    report_time(grade, busy, 8.0)
    assert [note.startswith("This took 4.1 s of processor time, and at 8 s it is ended") for note in grade.notes] == (
        [True] * warned
    )
