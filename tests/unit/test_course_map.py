"""The course map, the timetable and the figure of points: read off the notebooks and the progress, told in words as well."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from course import timetable
from course.catalogue import Course
from course.figures import course_map
from course.figures.points import points_figure
from course.files import ExerciseFiles
from course.grading import Grade
from course.progress import Progress
from course.score import worth
from course.source import ROOT
from course.standings import standings
from course.terminal import listing, next_line
from course.timetable import TO_COME, chapters_here, in_words
from tests.unit.course_kit import make_course


@pytest.fixture
def course(tmp_path: Path) -> Course:
    course = make_course(tmp_path)
    (tmp_path / "notebooks").mkdir()
    write_notebook(course, "00_welcome", words=300, cells=10)
    write_notebook(course, "05_the_loop_and_the_cache", words=1500, cells=40)
    return course


def write_notebook(course: Course, name: str, words: int, cells: int) -> None:
    document = [{"cell_type": "markdown", "source": ["word "] * words}]
    document += [{"cell_type": "code", "source": "x = 1"}] * cells + [{"cell_type": "code", "source": ""}]
    (course.root / "notebooks" / f"{name}.ipynb").write_text(json.dumps({"cells": document}), encoding="utf-8")


def solve(course: Course, name: str) -> None:
    for chapter, exercise in course.find([name]):
        ExerciseFiles(course).save(chapter, exercise, exercise.solution)
        part = ExerciseFiles(course).part(chapter, exercise)
        Progress(course).record(exercise, Grade.of(exercise, "passed", "", ""), part)


def test_minutes_follow_the_rule(course: Course) -> None:
    chapter = course.exercise("ch05.truncate")[0]
    (welcome, loop) = chapters_here(course)
    assert loop.name == "05 The loop and the cache"
    exact = 1500 / 150 + 40 / 2 + worth(chapter.exercises)
    assert abs(loop.minutes - exact) <= 2.5 and loop.minutes % 5 == 0
    assert welcome.minutes < loop.minutes
    assert "150 words and two cells per minute" in timetable.RULE


def test_a_chapter_that_gets_its_notebook_is_here(course: Course) -> None:
    assert {p.chapter for _, plans in timetable.timetable(course) for p in plans if not p.here} == set(TO_COME)
    write_notebook(course, "02_tokens", 100, 1)
    write_notebook(course, "21_something_new", 100, 1)
    plans = {p.chapter: p for _, plans in timetable.timetable(course) for p in plans}
    assert plans["02"].here and plans["21"].title == "Something new"
    assert list(plans) == sorted(plans)


def test_no_chapter_of_this_checkout_is_both_here_and_hand_kept_in_another_name() -> None:
    here = {plan.chapter: plan.title for plan in chapters_here(Course(ROOT))}
    assert here["00"] == "Welcome" and len(here) >= 9
    assert all(here[number] == title for number, title in TO_COME.items() if number in here)


def test_a_notebook_that_cannot_be_read_still_has_its_place(course: Course) -> None:
    (course.root / "notebooks" / "03_a_step.ipynb").write_text("{", encoding="utf-8")
    assert [plan.chapter for plan in chapters_here(course)] == ["00", "03", "05"]


@pytest.mark.parametrize(("minutes", "words"), [(5, "5 min"), (60, "1 h"), (75, "1 h 15 min"), (120, "2 h")])
def test_minutes_in_words(minutes: int, words: str) -> None:
    assert in_words(minutes) == words


def test_the_map_tells_what_is_here_what_is_next_and_what_is_to_come(course: Course) -> None:
    figure = course_map("00", course)
    assert "00 Welcome: " in figure.alt and "you are here, next to work in" in figure.alt
    assert "02 Tokens: still to come" in figure.alt
    assert figure.svg.count('stroke-dasharray="4 3"') == len(TO_COME) + 1  # and one in the legend
    solve(course, "ch00")
    solve(course, "ch05.truncate")
    said = dict(part.rsplit(": ", 1) for part in course_map("05", course).alt.split(". Times")[0].split("; "))
    points = sum(e.points for e in course.chapters()[0].exercises)
    assert f"{points} of {points} points" in said["Map of the course. 00 Welcome"]
    assert re.search(r"5 of \d+ points, you are here", said["05 The loop and the cache"])
    assert "\u2713 done" in course_map("05", course).svg
    assert course_map("05", course).svg == course_map("05", course).svg


def test_the_map_is_drawn_without_progress_that_cannot_be_read(course: Course) -> None:
    course.state.mkdir(parents=True)
    (course.state / "progress.json").write_text('{"version": 99, "exercises": {}}', encoding="utf-8")
    assert "still to come" in course_map("00", course).alt


def test_the_list_has_minutes(course: Course) -> None:
    rows = listing(course)
    assert any(row.startswith("ch05") and row.endswith(" min)") for row in rows)


def test_points_are_drawn_with_what_comes_next(course: Course) -> None:
    solve(course, "ch01")
    found = standings(course)
    figure = points_figure(found, next_line(found))
    assert "01 Model files and blocks: 50 of 50 points + 20 bonus, 6 of 6 passed" in figure.alt
    assert "Next: ch00.decode_ceiling" in figure.alt
    widths = [float(w) for w in re.findall(r'width="([\d.]+)" height="20.0"', figure.svg)]
    assert max(widths) <= 300
