"""The commands: check, hint, solution, list, watch, progress, reset, report; engine and race; export and grade for teachers; generate
and build for those who write chapters.

Exit codes: 0 everything that was asked for holds (for `check`: every exercise named is passed), 1 it does not,
2 the command itself makes no sense, 3 the course is broken (a fault of ours).
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Callable
from pathlib import Path

from course import lessons
from course.book.command import add_command as add_book
from course.book.command import run as build_book
from course.catalogue import Course, UnknownExercise
from course.files import FilesError
from course.generate import generate, stale
from course.grading import GradingFault, feedback, grade
from course.progress import Progress
from course.race import commands as racing
from course.score import tally, worth
from course.source import SourceError
from course.teaching import commands as teaching
from course.terminal import listing, paragraph, prose, record, say, show_grade, summary
from fucina.errors import InvalidOption

COMMANDS = (
    "check",
    "hint",
    "solution",
    "list",
    "watch",
    "progress",
    "reset",
    "report",
    "engine",
    "race",
    "export",
    "grade",
    "generate",
    "build",
    "book",
)
MAKING = ("generate", "build")  # for those who write exercises and chapters


def parser() -> argparse.ArgumentParser:
    """The command line of all learner's commands."""
    top = argparse.ArgumentParser(prog="python3 -m course", description="The exercises of the course.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")

    names = "an exercise (ch05.truncate, or just truncate), or a chapter (ch05)"
    check = add("check", "grade your code and say what is missing")
    check.add_argument("names", nargs="*", metavar="NAME", help=names + "; without a name, all")
    check.add_argument("--json", action="store_true", help="print the grades as JSON")
    hint = add("hint", "show the next hint of an exercise")
    hint.add_argument("name", metavar="NAME", help=names)
    hint.add_argument("number", nargs="?", type=int, metavar="N", help="show hint N instead of the next one")
    hint.add_argument("--all", action="store_true", help="show all of them")
    solution = add("solution", "show how we wrote an exercise, once you have passed it")
    solution.add_argument("name", metavar="NAME", help=names)
    solution.add_argument("--yes", action="store_true", help="show it before you have passed")
    add("list", "list all exercises and where you stand")
    watch = add("watch", "check an exercise each time you save it")
    watch.add_argument("name", nargs="?", metavar="NAME", help="the exercise to begin with")
    watch.add_argument("--manual", action="store_true", help="check when you press Enter, not when a file changes")
    progress = add("progress", "show points by chapter and what comes next")
    progress.add_argument("--json", action="store_true", help="print the progress file's entries as JSON")
    reset = add("reset", "bring starters back; your file is kept aside first")
    reset.add_argument("names", nargs="+", metavar="NAME", help=names)
    reset.add_argument(
        "--progress", action="store_true", help="forget that they were passed, too, and the guesses of a chapter"
    )
    report = add("report", "grade everything and write a table, JSON or one HTML page")
    report.add_argument("--json", metavar="FILE", type=Path, help="write the report as JSON ('-': print it)")
    report.add_argument("--html", metavar="FILE", type=Path, help="write the report as one HTML page")
    racing.add_commands(add)
    teaching.add_commands(add)
    making = add("generate", "make exercises/ from solutions/ (for those who write exercises)")
    making.add_argument("--check", action="store_true", help="write nothing, only compare with the manifest")
    making.add_argument("--force", action="store_true", help="overwrite files that were worked in, too")
    building = add("build", "execute and store the notebooks (for those who write chapters)")
    building.add_argument("names", nargs="*", metavar="NAME", help="notebooks, by the beginning of their name (05)")
    building.add_argument("--check", action="store_true", help="execute nothing, only look at what is stored")
    add_book(add("book", "build the whole course as a static site, to read without Jupyter"))
    return top


def main(argv: list[str], course: Course | None = None) -> int:
    """Run one command and return its exit code."""
    if argv and not argv[0].startswith("-") and argv[0] not in COMMANDS:
        return _unknown_command(argv[0])
    try:
        arguments = parser().parse_args(argv)
    except SystemExit as end:
        return int(end.code or 0)
    run: dict[str, Callable[[Course, argparse.Namespace], int]] = {
        "check": _check,
        "hint": _hint,
        "solution": _solution,
        "list": _list,
        "watch": _watch,
        "progress": _progress,
        "reset": _reset,
        "report": _report,
        "generate": _generate,
        "build": _build,
        "book": build_book,
        "engine": racing.run_engine,
        "race": racing.run_race,
        "export": teaching.run_export,
        "grade": teaching.run_grade,
    }
    try:
        return run[arguments.command](course or Course(), arguments)
    except (UnknownExercise, FilesError, InvalidOption) as error:
        say(*prose(str(error)), to=sys.stderr)
        return 2
    except (GradingFault, SourceError) as error:
        say(f"{error}", to=sys.stderr)
        return 3
    except KeyboardInterrupt:
        say("stopped", to=sys.stderr)
        return 130


def _unknown_command(name: str) -> int:
    public = ["start", "test", *(command for command in COMMANDS if command not in MAKING)]
    near = difflib.get_close_matches(name, [*public, *COMMANDS], 1, 0.5)
    meant = f" Did you mean `{near[0]}`?" if near else ""
    say(*prose(f"There is no command {name!r}.{meant} There are: {', '.join(public)}."), to=sys.stderr)
    return 2


def _check(course: Course, arguments: argparse.Namespace) -> int:
    pairs = course.find(arguments.names) if arguments.names else course.all()
    grades = []
    for _, exercise in pairs:
        result = grade(exercise.name, course)
        grades.append(result)
        first = record(course, result)
        if not arguments.json:
            brief = not arguments.names and result.outcome == "not attempted" and not result.message
            if brief:
                say(feedback.headline(result))
            else:
                show_grade(course, result, first=first)
    if arguments.json:
        say(json.dumps([result.to_json() for result in grades], indent=1))
    elif len(grades) > 1:
        passed = sum(result.passed for result in grades)
        score, bonus = sum(g.score for g in grades), sum(g.score for g in grades if g.bonus)
        say("", f"{passed} of {len(grades)} passed, {tally(score, worth(grades), bonus)}")
    return 0 if grades and all(result.passed for result in grades) else 1


def _hint(course: Course, arguments: argparse.Namespace) -> int:
    try:
        hints = lessons.take_hint(course, arguments.name, arguments.number, arguments.all)
    except ValueError as error:
        say(str(error), to=sys.stderr)
        return 2
    for number, text in hints.shown:
        say(f"{hints.name}, hint {number} of {hints.total}", *paragraph(text))
    if hints.note:
        say(*prose(hints.note, "  "), to=sys.stderr)
    if hints.more:
        following = f" {hints.total - hints.more + 1}" if hints.note else ""
        say(f"  One more: `python3 -m course hint {hints.name}{following}`")
    else:
        say(f"  No more. The solution: `python3 -m course solution {hints.name} --yes`")
    return 0


def _solution(course: Course, arguments: argparse.Namespace) -> int:
    _, exercise = course.exercise(arguments.name)
    if not arguments.yes and not lessons.passed(course, exercise.name):
        say(
            *prose(f"{exercise.name} is not passed yet. Try a hint first: `python3 -m course hint {exercise.name}`."),
            *prose(f"To read the solution all the same: `python3 -m course solution {exercise.name} --yes`."),
        )
        return 1
    say(f"# {exercise.name} - {exercise.title}", "", *lessons.solution_text(course, exercise.name).splitlines())
    return 0


def _list(course: Course, arguments: argparse.Namespace) -> int:
    say(*listing(course))
    return 0


def _watch(course: Course, arguments: argparse.Namespace) -> int:
    from course.watch import Watcher  # here: it needs the terminal's modules, which differ by system

    return Watcher(course, start=arguments.name, manual=arguments.manual).run()


def _progress(course: Course, arguments: argparse.Namespace) -> int:
    if arguments.json:
        say(json.dumps(Progress(course).read(), indent=1, sort_keys=True))
    else:
        say(*summary(course), f"kept in {Progress(course).path}")
    return 0


def _reset(course: Course, arguments: argparse.Namespace) -> int:
    for name, kept in lessons.reset(course, arguments.names):
        say(*prose(f"{name}: {kept}"))
    if arguments.progress:
        names = [exercise.name for _, exercise in course.find(arguments.names)]
        whole = [c.chapter[2:] for c in course.chapters() if {e.name for e in c.exercises} <= set(names)]
        kept_progress = Progress(course).forget(names, whole)
        say("progress forgotten" + (f"; the old file is kept as {kept_progress}" if kept_progress else ""))
    return 0


def _report(course: Course, arguments: argparse.Namespace) -> int:
    from course import report  # here: only this command needs it

    document = report.build(course)
    if arguments.json and str(arguments.json) == "-":
        say(report.as_json(document))
        return 0
    say(*report.table(document))
    for path, text in ((arguments.json, report.as_json), (arguments.html, report.page)):
        if path:
            report.write(path, text(document))
            say(f"written: {path}")
    return 0


def _build(course: Course, arguments: argparse.Namespace) -> int:
    from course import build  # here: the learner's commands need no Jupyter

    return build.build(arguments.names, arguments.check)


def _generate(course: Course, arguments: argparse.Namespace) -> int:
    if arguments.check:
        names = stale(course)
        say(
            *[f"not in step with solutions/: {name} (run `python3 -m course generate`)" for name in names]
            or ["exercises/ is in step with solutions/"]
        )
        return 1 if names else 0
    done = generate(course, force=arguments.force)
    for verb, files in (("written", done.written), ("removed", done.removed)):
        say(*[f"{verb}: exercises/{name}" for name in files])
    say(*[f"left alone, it was worked in: exercises/{name} (--force overwrites)" for name in done.kept])
    say(f"{len(done.unchanged)} unchanged")
    return 1 if done.kept else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
