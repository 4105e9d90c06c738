"""A grade in words: plain ASCII lines for terminals and the plain-text twin, HTML for notebooks."""

from __future__ import annotations

import html
import os
import re
import textwrap
from pathlib import Path

from course.grading.outcome import NOT_ATTEMPTED, NOT_YET, PASSED, CheckResult, Grade

MARKS = {"passed": "[ok]", "failed": "[no]", "not run": "[  ]"}
SYMBOLS = {"passed": "\u2713", "failed": "\u2717", "not run": "\u00b7"}
COLOURS = {PASSED: "#0072b2", NOT_YET: "#d55e00", NOT_ATTEMPTED: "#888888"}  # Okabe and Ito: apart for every eye


def short_path(path: str, root: Path) -> str:
    """A path relative to the course folder where it lies inside it."""
    try:
        return Path(path).relative_to(root).as_posix()
    except ValueError:
        return path


def ascii_only(text: str) -> str:
    """Text that any terminal can show."""
    return text.encode("ascii", "backslashreplace").decode("ascii")


def where(grade: Grade, root: Path) -> str:
    """`exercises/ch05_x.py:12`, the place of the graded definition."""
    return short_path(grade.path, root) + (f":{grade.line}" if grade.line else "")


def headline(grade: Grade) -> str:
    """One line: name, outcome, points."""
    return f"{grade.exercise}: {grade.outcome}, {grade.score} of {grade.points} points"


def hint_line(total: int, shown: int) -> str:
    """Which hint comes next."""
    if shown >= total:
        return f"all {total} hints read" if total else ""
    return f"hint {shown + 1} of {total}"


def lines(grade: Grade, root: Path, hints: int = 0, shown: int = 0) -> list[str]:
    """The whole feedback as text.

    Parameters
    ----------
    grade : Grade
    root : Path
        Paths are shown relative to it.
    hints, shown : int
        How many hints there are, and how many the learner has read.
    """
    out = [headline(grade), f"  graded: {where(grade, root)}"]
    if grade.message:
        out += _wrapped(f"  {grade.message}")
    out += ["    " + _relative(line, root) for line in grade.trace]
    if grade.outcome == NOT_ATTEMPTED and not grade.message:
        out.append("  The starter is untouched. Write your code in place of the line that says `your code here`.")
    out += [f"  {MARKS[check.status]} {check.text}" for check in grade.checks]
    if first := first_failure(grade):
        out += ["", f"  What went wrong: {first.text}"]
        out += ["    " + line for line in first.case]
        out += _wrapped(f"    -> {first.what}", "       ")
        out += ["       " + _relative(line, root) for line in first.trace]
        if first.printed.strip():
            out.append("    Your code printed: " + " / ".join(first.printed.strip().splitlines()[:4])[:200])
    if grade.misconception:
        out += ["", *_wrapped(("  Known mistake: " if grade.sure else "  Perhaps: ") + grade.misconception, "    ")]
    out += [f"  Note: {note}" for note in grade.notes]
    if not grade.passed and hints:
        command = f"python3 -m course hint {grade.exercise}"
        text = hint_line(hints, shown)
        out.append(f"  Next: {text}" + (f" (`{command}`)" if shown < hints else f" (`{command} --all`)"))
    elif grade.passed:
        out.append(f"  Read how we wrote it: `python3 -m course solution {grade.exercise}`")
    return [ascii_only(line) for line in out]


def first_failure(grade: Grade) -> CheckResult | None:
    """The check that the feedback explains: the first that failed."""
    return next((check for check in grade.checks if check.status == "failed"), None)


def as_html(grade: Grade, root: Path, hints: int = 0, shown: int = 0, notes: list[str] | None = None) -> str:
    """The same feedback for a notebook: no colour carries a meaning that a word does not carry too."""
    say = html.escape
    colour = COLOURS[grade.outcome]
    parts = [
        f'<div style="border-left:4px solid {colour};padding:2px 0 2px 12px;margin:4px 0">',
        f'<div><b>{say(grade.exercise)}</b> <span style="color:{colour};font-weight:bold">{say(grade.outcome)}</span>',
        f" &middot; {grade.score} of {grade.points} points &middot; <code>{say(where(grade, root))}</code></div>",
    ]
    parts += [f"<div>{rich(note)}</div>" for note in notes or []]
    if grade.message:
        parts.append(f"<div>{rich(grade.message)}</div>")
    if grade.trace:
        parts.append(preformatted([_relative(line, root) for line in grade.trace]))
    if grade.outcome == NOT_ATTEMPTED and not grade.message:
        parts.append("<div>Write your code in place of the line that says <code>your code here</code>.</div>")
    if grade.checks:
        items = "".join(
            f'<li style="list-style:none">{SYMBOLS[c.status]} {rich(c.text)}'
            + {"failed": " &mdash; not yet", "not run": " &mdash; not run", "passed": ""}[c.status]
            + "</li>"
            for c in grade.checks
        )
        parts.append(f'<ul style="margin:4px 0;padding-left:0">{items}</ul>')
    if first := first_failure(grade):
        parts.append(f"<div><b>What went wrong:</b> {rich(first.text)}</div>")
        parts.append(preformatted([*first.case, f"-> {first.what}", *(_relative(line, root) for line in first.trace)]))
        if first.printed.strip():
            parts.append(f"<div>Your code printed:</div>{preformatted(first.printed.strip().splitlines()[:4])}")
    if grade.misconception:
        label = "Known mistake:" if grade.sure else "Perhaps:"
        parts.append(f"<div><b>{label}</b> {rich(grade.misconception)}</div>")
    parts += [f"<div>Note: {rich(note)}</div>" for note in grade.notes]
    if not grade.passed and hints:
        call = f'hint("{grade.exercise}")' if shown < hints else f'hint("{grade.exercise}", all=True)'
        parts.append(f"<div>Next: {hint_line(hints, shown)}, <code>{say(call)}</code></div>")
    elif grade.passed:
        call = f'solution("{grade.exercise}")'
        parts.append(f"<div>Read how we wrote it: <code>{say(call)}</code></div>")
    return "".join(parts) + "</div>"


def preformatted(rows: list[str]) -> str:
    """Lines of code, as HTML."""
    return '<pre style="margin:4px 0 4px 12px;font-family:monospace">' + html.escape("\n".join(rows)) + "</pre>"


def rich(text: str) -> str:
    """Prose with `code` in it, as HTML."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _relative(line: str, root: Path) -> str:
    """A traceback line with its path relative to the course folder."""
    return line.replace(str(root) + os.sep, "").replace("exercises\\", "exercises/")


def _wrapped(text: str, later: str = "  ", width: int = 112) -> list[str]:
    """Break long prose at spaces; code in a message is never cut inside a word."""
    indent = text[: len(text) - len(text.lstrip())]
    whole = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", "\0"), text.strip())  # code stays on one line
    rows = textwrap.wrap(
        whole, width, initial_indent=indent, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    )
    return [row.replace("\0", " ") for row in rows]
