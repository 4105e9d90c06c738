"""The learner's engine beside ours and llama.cpp's: `python3 -m course race`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from course.race.contest import race
    from course.race.figure import race_figure
    from course.race.plan import FULL, QUICK, Entry, Plan
    from course.race.report import Race, Row

__all__ = ["FULL", "QUICK", "Entry", "Plan", "Race", "Row", "race", "race_figure"]

_HOME = {"race": "contest", "race_figure": "figure", "Race": "report", "Row": "report"}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: commands that do not race stay quick."""
    if name not in __all__:
        raise AttributeError(f"module 'course.race' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"course.race.{_HOME.get(name, 'plan')}"), name)
