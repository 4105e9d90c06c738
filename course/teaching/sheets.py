"""Results of a cohort as a table for a spreadsheet, as JSON, and as one HTML page."""

from __future__ import annotations

import csv
import html
import io
import json
from typing import Any

from course.report import STYLE, exercise_html, meter, told

COLUMNS = (
    "student",
    "chapter",
    "exercise",
    "outcome",
    "score",
    "points",
    "bonus",
    "checks_passed",
    "checks",
    "file",
    "file_sha256",
    "graded_sha256",
    "message",
    "problems",
)
MORE = (
    "td.n{font-variant-numeric:tabular-nums}th{border-bottom:1px solid #888}.problem{color:#b04a00}"
    "@media(prefers-color-scheme:dark){.problem{color:#f0a050}}"
)


def as_json(document: dict[str, Any]) -> str:
    """The whole document."""
    return json.dumps(document, indent=1) + "\n"


def as_csv(document: dict[str, Any]) -> str:
    """One row per student and exercise, with a byte order mark, by which spreadsheets know that it is UTF-8.

    A student of whom nothing could be graded has one row without an exercise.  No cell can be taken for a formula.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    for entry in document["submissions"]:
        problems = "; ".join(entry["problems"])
        rows = [(chapter, grade) for chapter in entry["chapters"] for grade in chapter["exercises"]]
        for chapter, grade in rows:
            checks = grade["checks"]
            message = (
                grade["message"]
                or grade["misconception"]
                or next((f"{check['text']}: {check['what']}" for check in checks if check["status"] == "failed"), "")
            )
            writer.writerow(
                [
                    plain(value)
                    for value in (
                        entry["student"],
                        chapter["chapter"],
                        grade["exercise"],
                        grade["outcome"],
                        grade["score"],
                        grade["points"],
                        "yes" if grade["bonus"] else "",
                        sum(check["status"] == "passed" for check in checks),
                        len(checks),
                        chapter["file"],
                        chapter["sha256"],
                        grade["digest"],
                        message,
                        problems,
                    )
                ]
            )
        if not rows:
            blank = ["" for _ in COLUMNS[1:-1]]
            writer.writerow([plain(value) for value in (entry["student"], *blank, problems)])
    return "\ufeff" + out.getvalue()


def plain(value: Any) -> Any:
    """A value that no spreadsheet takes for a formula: text that begins like one gets a quote in front."""
    if not isinstance(value, str):
        return value
    text = "".join(c if c.isprintable() else " " for c in value)
    return "'" + text if text.lstrip()[:1] in tuple("=+-@|%") and text.strip() else text


def page(document: dict[str, Any]) -> str:
    """The document as one HTML page that needs nothing beside it."""
    say = html.escape
    chapters = document["chapters"]
    versions = ", ".join(f"{name} {value}" for name, value in document["versions"].items())
    head = "".join(f"<th>{say(c['chapter'])}<br>of {c['points']}</th>" for c in chapters)
    parts = [
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>fucina: submissions</title>'
            '<meta name="viewport" content="width=device-width,initial-scale=1">'
            f"<style>{STYLE}{MORE}</style></head><body><h1>Submissions</h1>"
        ),
        f"<p>Graded {say(document['written_at'])} with {say(versions)}.</p>",
        f"<table><thead><tr><th>student</th>{head}<th>points</th><th>passed</th><th></th></tr></thead><tbody>",
    ]
    for number, entry in enumerate(document["submissions"]):
        scores = {c["chapter"]: c["score"] for c in entry["chapters"]}
        cells = "".join(f'<td class="n">{scores.get(c["chapter"], "")}</td>' for c in chapters)
        problems = f'<span class="problem">{len(entry["problems"])} to look at</span>' if entry["problems"] else ""
        parts.append(
            f'<tr><td><a href="#s{number}">{say(entry["student"])}</a></td>{cells}'
            f'<td class="n">{told(entry).replace(" points", "")}</td>'
            f'<td class="n">{entry["passed"]} of {entry["exercises"]}</td><td>{problems}</td></tr>'
        )
    parts.append("</tbody></table>")
    if document["ignored"]:
        parts.append(f"<p>Not submissions: {say(', '.join(document['ignored']))}.</p>")
    parts += [_student(number, entry) for number, entry in enumerate(document["submissions"])]
    return "".join(parts) + "</body></html>\n"


def _student(number: int, entry: dict[str, Any]) -> str:
    say = html.escape
    parts = [
        (
            f'<section id="s{number}"><h2>{say(entry["student"])}</h2><p>{told(entry)} '
            f"{meter(entry['score'], entry['points'])}</p>"
        )
    ]
    parts += [f'<p class="problem">{say(problem)}</p>' for problem in entry["problems"]]
    for chapter in entry["chapters"]:
        where = (
            f"<code>{say(chapter['file'])}</code>, SHA-256 <code>{chapter['sha256']}</code>"
            if chapter["file"]
            else "not handed in"
        )
        parts.append(f"<h3>{say(chapter['chapter'])}: {told(chapter)}</h3><p>{where}</p>")
        parts += [exercise_html(grade, opened=False) for grade in chapter["exercises"]]
    return "".join(parts) + "</section>"
