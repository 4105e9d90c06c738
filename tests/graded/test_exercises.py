"""One test an exercise.  With `--target exercises`, what is not attempted fails as well: nothing is skipped."""

from __future__ import annotations

import pytest

from course.catalogue import Course
from course.grading import feedback, grade

COURSE = Course()


@pytest.mark.parametrize("name", [exercise.name for _, exercise in COURSE.all()])
def test_exercise(name: str, target: str) -> None:
    result = grade(name, COURSE, target)
    if not result.passed:
        pytest.fail("\n".join(feedback.lines(result, COURSE.root)), pytrace=False)
    assert result.score == result.points > 0
