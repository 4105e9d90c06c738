"""What `course.parity` shows: a table with a plain-text twin, and where a function comes from."""

from __future__ import annotations

import html
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course.figures.svg import printable
from course.grading.learner import show_line, trimmed
from course.grading.tools import describe
from course.source import ROOT
from fucina.errors import ModelError

HEADER = ("engine", "same next token", "RMS logit error", "largest", "tokens/s")


@dataclass(frozen=True, slots=True)
class Row:
    """One engine.

    agree, positions : how many next tokens are the reference's, of how many.  different : the first one that is not.
    rms, largest : of the differences of all logits.  rate : tokens per second of the fastest decode step; 0.0 where nothing
    ran.
    """

    who: str
    agree: int = 0
    positions: int = 0
    different: str = ""
    rms: float = 0.0
    largest: float = 0.0
    rate: float = 0.0

    @property
    def ran(self) -> bool:
        """Whether there is anything to show."""
        return self.positions > 0

    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        if not self.ran:
            return (self.who, "did not run", "", "", "")
        return (
            self.who,
            f"{self.agree} of {self.positions}",
            f"{self.rms:.2g}",
            f"{self.largest:.2g}",
            f"{self.rate:.1f}" if self.rate < 100 else f"{self.rate:.0f}",
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """Engines side by side.

    title : whose code it is.  text : prompt and the reference's continuation.  rows : one an engine.
    notes : what went wrong, what is missing.
    """

    title: str
    text: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def row(self, beginning: str) -> Row:
        """The row of the engine whose name begins so (KeyError if there is none)."""
        for row in self.rows:
            if row.who.startswith(beginning):
                return row
        raise KeyError(beginning)

    def lines(self) -> list[str]:
        """The plain-text form, ASCII."""
        table = [HEADER, *(row.cells() for row in self.rows)] if self.rows else []
        widths = [max(len(row[i]) for row in table) for i in range(len(HEADER))] if table else []
        out = [self.title]
        for i, row in enumerate(table):
            padded = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
            out.append("  ".join(padded).rstrip())
            if i == 0:
                out.append("  ".join("-" * w for w in widths))
        out += [f"text: {printable(self.text)}"] if self.text else []
        return [line.encode("ascii", "backslashreplace").decode("ascii") for line in [*out, *self._remarks()]]

    def _remarks(self) -> list[str]:
        parted = [f"{r.who}: where it first differs, it would say {r.different!r}." for r in self.rows if r.different]
        return parted + self.notes

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        say = html.escape
        parts = [f"<div><b>{say(self.title)}</b></div>"]
        if self.rows:
            head = "".join(
                f'<th style="text-align:{"right" if i else "left"}">{say(h)}</th>' for i, h in enumerate(HEADER)
            )
            body = "".join(
                "<tr>"
                + "".join(
                    f'<td style="text-align:{"right" if i else "left"}">{say(c)}</td>'
                    for i, c in enumerate(row.cells())
                )
                + "</tr>"
                for row in self.rows
            )
            parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
        if self.text:
            parts.append(f"<div>text: <code>{say(printable(self.text))}</code></div>")
        parts += [f"<div>{say(remark)}</div>" for remark in self._remarks()]
        return {"text/html": "".join(parts), "text/plain": repr(self)}


def origin(function: Callable[..., Any]) -> str:
    """`rms_norm() of exercises/ch03_a_transformer_step.py`: whose code is at work."""
    name = getattr(function, "__name__", type(function).__name__)
    try:
        path = Path(inspect.getfile(inspect.unwrap(function)))
    except TypeError:
        return f"{name}(), built in"
    try:
        place = path.relative_to(ROOT).as_posix()
    except ValueError:
        place = "a cell" if "ipykernel" in str(path) or str(path).startswith("<") else path.name
    ours = " (ours; yours takes its place when it passes)" if place.startswith("fucina/") else ""
    return f"{name}() of {place}{ours}"


def blame(function: Callable[..., Any], error: BaseException) -> str:
    """One message that names the learner's function and what it did."""
    if isinstance(error, ModelError):
        return str(error)
    name = getattr(function, "__name__", type(function).__name__)
    try:
        path = inspect.getfile(inspect.unwrap(function))
    except TypeError:
        path = ""
    trace = trimmed(error, path)
    at = f", at `{show_line(trace[-1])}`" if len(trace) > 1 else ""
    return f"{name}() raises {describe(error)}{at}"
