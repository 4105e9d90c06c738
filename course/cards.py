"""What the course shows in a notebook: HTML where a front end can, the same in plain text everywhere else."""

from __future__ import annotations

import html
import sys
from typing import Any

from course.grading import feedback


class Card:
    """Something to show: HTML where a front end can, the same in plain text everywhere else."""

    def __init__(self, page: str, lines: list[str]) -> None:
        self.page = page
        self.lines = lines

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.page, "text/plain": "\n".join(self.lines)}

    def __repr__(self) -> str:
        return "\n".join(self.lines)


def message(*lines: str, edge: str = "") -> Card:
    """A card of prose, a line each; `code` in it is set as code.  `edge` is the colour of a line at its left, if any."""
    page = "".join(f"<div>{feedback.rich(line)}</div>" for line in lines)
    if edge:
        page = f'<div style="border-left:4px solid {edge};padding:2px 0 2px 12px;margin:4px 0">{page}</div>'
    return Card(page, [feedback.ascii_only(line) for line in lines])


def tell(*lines: str) -> None:
    """Show prose."""
    show_card(message(*lines))


def code_line(text: str) -> str:
    """A line of code, as HTML."""
    return f"<div><code>{html.escape(text)}</code></div>"


def show_card(card: Any) -> None:
    """Display a card or a figure in the notebook; print it where there is none."""
    if shell() is None:
        print(repr(card))
    else:
        from IPython.display import display  # here: outside a notebook nothing of IPython is needed

        display(card)


def shell() -> Any:
    """The IPython shell that runs this, or None."""
    if "IPython" not in sys.modules:
        return None
    from IPython import get_ipython

    return get_ipython()
