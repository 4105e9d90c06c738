"""The teacher's commands: export and grade."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from course.catalogue import Course
from course.files import check_writable, write_text
from course.report import told
from course.terminal import say

Add = Callable[[str, str], argparse.ArgumentParser]


def add_commands(add: Add) -> None:
    """Add the commands to the command line."""
    export = add("export", "write chapters as assignments (for teachers)")
    export.add_argument(
        "--nbgrader",
        metavar="FOLDER",
        type=Path,
        required=True,
        help="where to write: source notebooks in the format of nbgrader, its settings, a README",
    )
    export.add_argument("names", nargs="*", metavar="NAME", help="chapters (ch05); without a name, all")
    export.add_argument("--force", action="store_true", help="overwrite files that were changed since the last export")
    grade = add("grade", "grade a folder of submissions (for teachers)")
    grade.add_argument(
        "folder", metavar="FOLDER", type=Path, help="holds one sub-folder, .zip, .py or notebook for each student"
    )
    grade.add_argument(
        "--chapter",
        metavar="NAME",
        action="append",
        default=[],
        help="a chapter that counts (may be given again); by default all that anybody handed in",
    )
    grade.add_argument("--csv", metavar="FILE", type=Path, help="write a table, one row per student and exercise")
    grade.add_argument("--json", metavar="FILE", type=Path, help="write everything as JSON ('-': print it)")
    grade.add_argument("--html", metavar="FILE", type=Path, help="write one HTML page")
    grade.add_argument("--jobs", metavar="N", type=int, default=1, help="submissions at a time (default: 1)")


def run_export(course: Course, arguments: argparse.Namespace) -> int:
    """0 when everything is as exported, 1 when files were left alone."""
    from course.teaching.export import export  # here: only this command needs it

    done = export(course, arguments.nbgrader, arguments.names, arguments.force)
    say(*[f"written: {arguments.nbgrader / name}" for name in done.written])
    say(*[f"left alone, it was changed: {arguments.nbgrader / name} (--force overwrites)" for name in done.kept])
    say(
        f"{len(done.written)} written, {len(done.unchanged)} unchanged; "
        f"{arguments.nbgrader / 'README.md'} says what comes next"
    )
    return 1 if done.kept else 0


def run_grade(course: Course, arguments: argparse.Namespace) -> int:
    """0: all submissions were graded; 1: some have problems; 2: there is nothing to grade; 3: a fault of ours."""
    from course.teaching import sheets
    from course.teaching.cohort import NoSubmissions, grade_folder

    if arguments.jobs < 1:
        say(f"--jobs must be 1 or more, got {arguments.jobs}", to=sys.stderr)
        return 2
    printing = arguments.json is not None and str(arguments.json) == "-"
    for path in (arguments.csv, arguments.html, None if printing else arguments.json):
        if path:
            check_writable(path.absolute())
    try:
        document = grade_folder(
            course,
            arguments.folder,
            arguments.chapter,
            arguments.jobs,
            told=lambda entry: None if printing else say(*lines(entry)),
        )
    except NoSubmissions as error:
        say(str(error), to=sys.stderr)
        return 2
    if printing:
        say(json.dumps(document, indent=1))
    for path, text in ((arguments.csv, sheets.as_csv), (arguments.json, sheets.as_json), (arguments.html, sheets.page)):
        if path and not (printing and path is arguments.json):
            write_text(path.absolute(), text(document))
            say(f"written: {path}", to=sys.stderr if printing else None)
    entries = document["submissions"]
    broken = [entry for entry in entries if entry["problems"]]
    if not printing:
        ignored = f"; not submissions: {', '.join(document['ignored'])}" if document["ignored"] else ""
        say("", f"{len(entries)} submissions, {len(broken)} with something to look at{ignored}")
    return 3 if any(entry["fault"] for entry in entries) else 1 if broken else 0


def lines(entry: dict[str, Any]) -> list[str]:
    """One submission for a terminal."""
    head = f"{entry['student']}: {told(entry)}, {entry['passed']} of {entry['exercises']} exercises passed"
    return [head, *(f"  ! {problem}" for problem in entry["problems"])]
