"""One report of everything that is graded: a table, JSON, or a single HTML page that needs nothing beside it."""

from __future__ import annotations

import html
import json
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from course.catalogue import Course
from course.files import write_text
from course.grading import feedback, grade
from course.grading.outcome import Grade
from course.score import tally, worth
from course.terminal import bar, record


def build(course: Course, target: str = "exercises") -> dict[str, Any]:
    """Grade every exercise and gather the report as plain data.

    Every grade carries the path, relative to the course folder, and the SHA-256 of the text that was executed.
    """
    chapters = []
    for chapter in course.chapters():
        grades = []
        for exercise in chapter.exercises:
            result = grade(exercise.name, course, target)
            if target == "exercises":
                record(course, result)
            grades.append({**result.to_json(), "path": feedback.short_path(result.path, course.root)})
        chapters.append(
            {
                "chapter": chapter.chapter,
                "title": chapter.title,
                "score": sum(g["score"] for g in grades),
                "bonus": sum(g["score"] for g in grades if g["bonus"]),
                "points": worth(chapter.exercises),
                "exercises": grades,
            }
        )
    return {
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "score": sum(c["score"] for c in chapters),
        "bonus": sum(c["bonus"] for c in chapters),
        "points": sum(c["points"] for c in chapters),
        "passed": sum(g["outcome"] == "passed" for c in chapters for g in c["exercises"]),
        "exercises": sum(len(c["exercises"]) for c in chapters),
        "chapters": chapters,
    }


def versions() -> dict[str, str]:
    """Versions of Python, the system and the packages that decide a grade."""
    found = {"python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    for package in ("fucina", "numpy", "numba"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def table(document: dict[str, Any]) -> list[str]:
    """The report for a terminal."""
    rows = []
    for chapter in document["chapters"]:
        rows.append(f"{chapter['chapter']}  {chapter['title']}")
        for result in chapter["exercises"]:
            checks = result["checks"]
            passed = sum(check["status"] == "passed" for check in checks)
            of = f"{passed} of {len(checks)} checks" if checks else ""
            rows.append(
                f"  {result['exercise']:<24} {result['outcome']:<14} {result['score']:>3} of "
                f"{result['points']:>3} {'bonus' if result['bonus'] else '     '}  {of:<16} {result['path']}  {result['digest'][:12]}"
            )
    rows.append(
        f"[{bar(document['score'], document['points'])}] {told(document)}, "
        f"{document['passed']} of {document['exercises']} exercises passed"
    )
    rows.append(", ".join(f"{name} {value}" for name, value in document["versions"].items()))
    return [feedback.ascii_only(row) for row in rows]


def as_json(document: dict[str, Any]) -> str:
    """The report as JSON text."""
    return json.dumps(document, indent=1) + "\n"


STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.25rem .75rem .25rem 0;vertical-align:top}
.passed{color:#0072b2;font-weight:bold}.notyet{color:#b04a00;font-weight:bold}.notattempted{color:#666}
code,pre{font-family:ui-monospace,monospace;font-size:.9em}pre{overflow-x:auto;margin:.25rem 0 .5rem 1rem}
summary{cursor:pointer}section{margin:2rem 0}meter{width:16rem}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}.passed{color:#56b4e9}.notyet{color:#f0a050}
.notattempted{color:#aaa}}
"""


def page(document: dict[str, Any]) -> str:
    """The report as one HTML page."""
    say = html.escape
    versions = ", ".join(f"{name} {value}" for name, value in document["versions"].items())
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>fucina: report</title>',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<style>{STYLE}</style></head><body><h1>Report</h1>",
        f"<p>{told(document)}, {document['passed']} of {document['exercises']} ",
        f"exercises passed. {meter(document['score'], document['points'])}</p>",
        f"<p>Graded {say(document['written_at'])} with {say(versions)}.</p>",
    ]
    for chapter in document["chapters"]:
        parts.append(
            f"<section><h2>{say(chapter['chapter'])} {say(chapter['title'])}</h2>"
            f"<p>{told(chapter)} "
            f"{meter(chapter['score'], chapter['points'])}</p>"
        )
        parts += [exercise_html(result) for result in chapter["exercises"]]
        parts.append("</section>")
    return "".join(parts) + "</body></html>\n"


def told(part: dict[str, Any]) -> str:
    """What was earned in a chapter, or in all."""
    return tally(part["score"], part["points"], part["bonus"])


def meter(value: int, top: int) -> str:
    """A bar of HTML with its words."""
    return f'<meter min="0" max="{top}" value="{value}">{value} of {top}</meter>'


def exercise_html(data: dict[str, Any], opened: bool = True) -> str:
    """One grade, as `Grade.to_json` gives it, to unfold; `opened`: what is not passed yet is unfolded already."""
    say = html.escape
    result = Grade.from_json(data)
    kind = result.outcome.replace(" ", "")
    parts = [
        f"<details{' open' if opened and result.outcome == 'not yet' else ''}><summary><b>{say(result.exercise)}</b> ",
        f'{say(result.title)}: <span class="{kind}">{say(result.outcome)}</span>, {feedback.earned(result)}',
        f"</summary><p><code>{say(result.path)}</code>, SHA-256 <code>{say(result.digest)}</code></p>",
    ]
    if result.message:
        parts.append(f"<p>{say(result.message)}</p>")
    if result.checks:
        rows = "".join(f"<tr><td>{say(check.status)}</td><td>{say(check.text)}</td></tr>" for check in result.checks)
        parts.append(f"<table>{rows}</table>")
    if first := feedback.first_failure(result):
        parts.append(f"<pre>{say(chr(10).join([*first.case, '-> ' + first.what]))}</pre>")
    if result.misconception:
        parts.append(f"<p>{say(result.misconception)}</p>")
    return "".join(parts) + "</details>"


def write(path: Path, text: str) -> None:
    """Write the report, whole or not at all."""
    write_text(path.absolute(), text)


if __name__ == "__main__":
    sys.stdout.write("\n".join(table(build(Course()))) + "\n")
