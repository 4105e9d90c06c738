"""A grade in words: plain ASCII lines for terminals and the plain-text twin, HTML for notebooks."""

from __future__ import annotations

import html
import os
import re
from pathlib import Path

from course.grading.outcome import NOT_ATTEMPTED, NOT_YET, PASSED, CheckResult, Grade
from course.prose import wrapped

MARKS = {"passed": "[ok]", "failed": "[no]", "not run": "[  ]"}
SYMBOLS = {"passed": "\u2713", "failed": "\u2717", "not run": "\u00b7"}
# The ground of white letters, so that they can be read on light and dark pages alike; apart for every eye (Okabe and Ito).
COLOURS = {PASSED: "#0072b2", NOT_YET: "#b04a00", NOT_ATTEMPTED: "#5f5f5f"}
WIDTH = 112  # columns of the plain text in a notebook
STUB_LINE = "The starter is untouched. Write your code in place of the line that says `your code here`."


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


def earned(grade: Grade) -> str:
    """`5 of 10 points`, in the plural and the kind that is right."""
    return (
        f"{grade.score} of {grade.points} {'bonus ' if grade.bonus else ''}{'point' if grade.points == 1 else 'points'}"
    )


def headline(grade: Grade) -> str:
    """One line: name, outcome, points."""
    return f"{grade.exercise}: {grade.outcome}, {earned(grade)}"


def what_next(grade: Grade, hints: int, shown: int, notebook: bool) -> tuple[str, list[str]]:
    """What the learner can do now, and the commands for it."""
    name = grade.exercise

    def command(word: str, more: str = "") -> str:
        options = {"all": (", all=True", " --all"), "show": (", show=True", " --yes"), "": ("", "")}[more]
        return f'{word}("{name}"{options[0]})' if notebook else f"python3 -m course {word} {name}{options[1]}"

    if grade.passed:
        return "Read how we wrote it:", [command("solution")]
    if not hints:
        return "", []
    if shown < hints:
        return f"Next: hint {shown + 1} of {hints},", [command("hint")]
    return f"All {hints} hints read: see them again, or read the solution,", [
        command("hint", "all"),
        command("solution", "show"),
    ]


def lines(
    grade: Grade, root: Path, hints: int = 0, shown: int = 0, width: int = WIDTH, notes: list[str] | None = None
) -> list[str]:
    """The whole feedback as text.

    Parameters
    ----------
    grade : Grade
    root : Path
        Paths are shown relative to it.
    hints, shown : int
        How many hints there are, and how many the learner has read.
    width : int
        Prose is broken at this column; code is not.
    notes : list of str, optional
        Remarks that go before everything else.
    """

    def prose(text: str, later: str = "  ") -> list[str]:
        return wrapped(text, later, width)

    out = [headline(grade)]
    for note in notes or []:
        out += prose(f"  {note}")
    out.append(f"  graded: {where(grade, root)}")
    if grade.message:
        out += prose(f"  {grade.message}")
    out += ["    " + _relative(line, root) for line in grade.trace]
    if grade.outcome == NOT_ATTEMPTED and not grade.message:
        out += prose(f"  {STUB_LINE}")
    for check in grade.checks:
        out += prose(f"  {MARKS[check.status]} {check.text}", "       ")
    if first := first_failure(grade):
        out += ["", *prose(f"  What went wrong: {first.text}", "    ")]
        out += ["    " + line for line in first.case]
        out += prose(f"    -> {first.what}", "       ")
        out += ["       " + _relative(line, root) for line in first.trace]
        if first.printed.strip():
            out.append("    Your code printed: " + " / ".join(first.printed.strip().splitlines()[:4])[:200])
    if grade.misconception:
        out += ["", *prose(("  Known mistake: " if grade.sure else "  Perhaps: ") + grade.misconception, "    ")]
    for note in grade.notes:
        out += prose(f"  Note: {note}", "    ")
    words, commands = what_next(grade, hints, shown, notebook=False)
    if words:
        out += prose(f"  {words} " + ", ".join(f"`{command}`" for command in commands), "    ")
    return [ascii_only(line) for line in out]


def first_failure(grade: Grade) -> CheckResult | None:
    """The check that the feedback explains: the first that failed."""
    return next((check for check in grade.checks if check.status == "failed"), None)


def badge(outcome: str) -> str:
    """The outcome as a word on its own ground."""
    return (
        f'<span style="background:{COLOURS[outcome]};color:#fff;font-weight:bold;border-radius:3px;padding:0 6px">'
        f"{html.escape(outcome)}</span>"
    )


def as_html(grade: Grade, root: Path, hints: int = 0, shown: int = 0, notes: list[str] | None = None) -> str:
    """The same feedback for a notebook: no colour carries a meaning that a word does not carry too."""
    say = html.escape
    parts = [
        f'<div style="border-left:4px solid {COLOURS[grade.outcome]};padding:2px 0 2px 12px;margin:4px 0">',
        f"<div><b>{say(grade.exercise)}</b> {badge(grade.outcome)}",
        f" &middot; {earned(grade)} &middot; <code>{say(where(grade, root))}</code></div>",
    ]
    parts += [f"<div>{rich(note)}</div>" for note in notes or []]
    if grade.message:
        parts.append(f"<div>{rich(grade.message)}</div>")
    if grade.trace:
        parts.append(preformatted([_relative(line, root) for line in grade.trace]))
    if grade.outcome == NOT_ATTEMPTED and not grade.message:
        parts.append(f"<div>{rich(STUB_LINE)}</div>")
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
    words, commands = what_next(grade, hints, shown, notebook=True)
    if words:
        parts.append(f"<div>{say(words)} {', '.join(f'<code>{say(command)}</code>' for command in commands)}</div>")
    return "".join(parts) + "</div>"


def preformatted(rows: list[str]) -> str:
    """Lines of code, as HTML."""
    style = (
        "margin:4px 0 4px 12px;font-family:monospace;white-space:pre-wrap;word-break:normal;overflow-wrap:break-word"
    )
    return f'<pre style="{style}">{html.escape(chr(10).join(rows))}</pre>'


def rich(text: str) -> str:
    """Prose with `code` in it, as HTML."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _relative(line: str, root: Path) -> str:
    """A traceback line with its path relative to the course folder."""
    return line.replace(str(root) + os.sep, "").replace("exercises\\", "exercises/")
