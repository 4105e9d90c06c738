"""The commands `engine` and `race`."""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

from course.catalogue import Course
from course.files import FilesError, check_writable, write_bytes, write_text
from course.terminal import say
from fucina.errors import ModelNotFound, WorkerFailed

Add = Callable[[str, str], argparse.ArgumentParser]


def add_commands(add: Add) -> None:
    """Add the commands to the command line."""
    engine = add("engine", "assemble my_engine.py from the pieces that you have passed")
    engine.add_argument("--write", metavar="PATH", type=Path, help="write the file; without it, only say whose is what")
    race = add("race", "run your engine beside ours and llama.cpp's, and compare tokens and times")
    race.add_argument("--quick", action="store_true", help="fewer rounds and tokens: half a minute on a quiet machine")
    race.add_argument("--json", metavar="FILE", type=Path, help="write everything that was measured as JSON")


def run_engine(course: Course, arguments: argparse.Namespace) -> int:
    """Assemble, and write if asked to."""
    from course.my_engine import assemble  # here: only these commands need it

    path: Path | None = arguments.write and arguments.write.absolute()
    if path is not None and path.is_dir():
        path = path / "my_engine.py"
    if path is not None:
        check_writable(path)
    assembly = assemble(course, tell=lambda line: say(line, to=sys.stderr))
    say(*assembly.lines())
    if path is None:
        say('`python3 -m course engine --write my_engine.py` writes it; then `python my_engine.py "Once upon a time"`.')
    else:
        kept = keep_aside(course, path, assembly.text)
        assembly.write(path)
        say(f"written: {path}" + (f"; the file that was there is kept as {kept}" if kept else ""))
    return 0


def keep_aside(course: Course, path: Path, text: str) -> Path | None:
    """Copy a file that is about to be replaced by another text into the state folder; None where nothing is lost."""
    try:
        old = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FilesError(f"cannot read {path}: {error.strerror or error}") from error
    if old == text.encode("utf-8"):
        return None
    kept = course.state / "backups" / f"{path.stem}.{hashlib.sha256(old).hexdigest()[:12]}{path.suffix}"
    write_bytes(kept, old)
    return kept


def run_race(course: Course, arguments: argparse.Namespace) -> int:
    """0: all rows but llama.cpp's ran and their tokens are right; 1: some did not; 2: there is no model; 3: a fault of ours."""
    from course.race import FULL, QUICK, race

    if arguments.json:
        check_writable(arguments.json.absolute())
    command = "python3 -m course race" + " --quick" * arguments.quick
    try:
        plan = QUICK if arguments.quick else FULL
        result = race(plan, course=course, tell=lambda line: say(line, to=sys.stderr), command=command)
    except ModelNotFound as error:
        say(f"{error}", to=sys.stderr)
        return 2
    except WorkerFailed as error:
        say(f"our own engine failed, which is a fault of the course: {error}", to=sys.stderr)
        return 3
    say(*result.lines())
    if arguments.json:
        write_text(arguments.json.absolute(), result.as_json() + "\n")
        say(f"written: {arguments.json}", to=sys.stderr)
    return 1 if result.failed else 0
