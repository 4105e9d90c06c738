"""A slider where moving it teaches something, and a still figure where no kernel listens."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from course.figures.svg import Figure


def slider(draw: Callable[..., Figure], **ranges: tuple[float, float, float]) -> Any:
    """Show `draw(**values)` with a slider for each argument.

    In a live notebook the figure follows the sliders.  While notebooks are built or tested (FUCINA_STATIC is set), and
    where ipywidgets is missing, the figure for the starting values is shown: a stored notebook never holds a widget
    that cannot live without its kernel.

    Parameters
    ----------
    draw : callable returning a Figure
    **ranges : (low, high, start)
        Whole numbers give a slider of whole numbers.
    """
    start = {name: values[2] for name, values in ranges.items()}
    for name, (low, high, value) in ranges.items():
        if not low <= value <= high:
            raise ValueError(f"{name} must start between {low} and {high}, got {value}")
    if os.environ.get("FUCINA_STATIC") or not _live():
        return draw(**start)
    import ipywidgets
    from IPython.display import display

    out = ipywidgets.Output()
    controls = {}
    for name, (low, high, value) in ranges.items():
        whole = all(isinstance(v, int) for v in (low, high, value))
        kind = ipywidgets.IntSlider if whole else ipywidgets.FloatSlider
        controls[name] = kind(
            value=value,
            min=low,
            max=high,
            description=name.replace("_", " "),
            step=1 if whole else (high - low) / 100,
            style={"description_width": "initial"},
        )

    def redraw(change: Any = None) -> None:
        out.clear_output(wait=True)
        with out:
            display(draw(**{name: control.value for name, control in controls.items()}))

    for control in controls.values():
        control.observe(redraw, "value")
    redraw()
    return ipywidgets.VBox([*controls.values(), out])


def _live() -> bool:
    """Whether a notebook kernel and ipywidgets are here."""
    try:
        import ipywidgets  # noqa: F401
        from IPython import get_ipython
    except ImportError:
        return False
    return hasattr(get_ipython(), "kernel")
