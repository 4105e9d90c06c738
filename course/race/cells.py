"""The race in a notebook: `race()` measures and shows a table, `race_figure()` draws it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from course.figures import Figure
    from course.race.report import Race

_latest: list[Race] = []


def race(quick: bool = True, numpy: bool = False, **options: Any) -> Race:
    """Run your engine beside ours, and beside llama.cpp's where it is installed.

    Parameters
    ----------
    quick : two rounds instead of five, and fewer tokens.
    numpy : also with the forward of chapter 03 in NumPy, which takes a few times as long.
    options : of `course.race.race`.

    Returns
    -------
    Race
        Shown as a table; `race_figure()` draws it.
    """
    from course.race import FULL, QUICK  # here: a notebook that does not race needs none of it
    from course.race import race as run

    plan = QUICK if quick else FULL
    plan = plan if numpy else replace(plan, numpy_rounds=0)
    words = ", ".join([f"quick={quick}"] * (not quick) + ["numpy=True"] * numpy)
    result = run(plan, command=f"race({words}) in a notebook", **options)
    _latest[:] = [result]
    return result


def race_figure(result: Race | None = None) -> Figure:
    """Draw a race: tokens per second of everybody on each text; by default the latest race of this notebook.

    Raises
    ------
    ValueError
        There was none.
    """
    from course.race.figure import race_figure as draw

    if result is None and not _latest:
        raise ValueError("nothing was raced yet: call race() first")
    return draw(_latest[0] if result is None else result)
