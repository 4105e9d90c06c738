"""Adding points up: bonus points are earned on top, and count against no total."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Worth(Protocol):
    """What has points: an exercise, or a grade."""

    @property
    def points(self) -> int:
        """All that it can earn."""

    @property
    def bonus(self) -> bool:
        """Whether they are earned on top."""


def worth(items: Iterable[Worth]) -> int:
    """The points that count as all."""
    return sum(item.points for item in items if not item.bonus)


def tally(score: int, points: int, bonus: int = 0) -> str:
    """`45 of 50 points`; what of the score is a bonus is said: `60 of 50 points, 20 of them bonus`."""
    return f"{score} of {points} points" + (f", {bonus} of them bonus" if bonus else "")
