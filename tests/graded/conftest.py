"""`pytest tests/graded` grades the solutions, with `--target exercises` what the learner wrote."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--target",
        choices=("solutions", "exercises"),
        default="solutions",
        help="whose code to grade: the course's solutions, or the learner's exercises/",
    )


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> str:
    """Whose code is graded; without this folder named on the command line pytest does not know the option."""
    return request.config.getoption("--target", default="solutions")
