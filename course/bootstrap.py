"""From a bare Python to a command that runs inside the project's environment.

`main` is the whole story: which groups does the command need, is the environment ready, if not make it, then start
again inside.  Standard library only, and of that only what the quick path needs.
"""

from __future__ import annotations

import os

from course import environment
from course.console import SetupError, say, warn
from course.environment import ROOT, VENV, Status
from course.processes import become

LEARN = ("course", "model")
TEST = ("book", "course", "gemma", "model", "style")
BOOK = ("book", "course", "model")
GROUPS = {"test": TEST, "book": BOOK}  # all other commands: LEARN
NEED_GB = 2.0  # free space asked for: the environment takes 0.7 GB, downloads and their copies as much again

USAGE = """\
usage: python3 -m course [COMMAND] [OPTIONS]

The first run sets everything up in the folder .venv (a minute or two); after that commands start at once.

  start       open the course in JupyterLab (this is what no command means)
                --no-browser   do not open a browser, print the address
                --port N       where JupyterLab listens
                -- OPTIONS     handed to JupyterLab
  test        run all tests; options are handed to pytest
  list        the exercises and where you stand
  check       grade an exercise, or all:  check [NAME ...]
  hint        the next hint of an exercise
  solution    the solution of an exercise
  watch       grade whenever a file is saved
  progress    how far you have come
  reset       put a starter back; a copy of yours is kept
  report      a report as table, JSON and HTML
  board       exercises with more than one right answer: our attempts, yours, and what they earn
  engine      one file of everything that you have passed, which runs the real model:  engine [--write PATH]
  race        your engine, ours and llama.cpp's, side by side:  race [--quick]
  book        the whole course as a static site, to read without Jupyter:  book [--out DIR] [--open]

For teachers (docs/teaching.md):

  export      chapters as assignments:  export --nbgrader FOLDER [NAME ...]
  grade       a folder of submissions:  grade FOLDER [--csv FILE] [--json FILE] [--html FILE]

COMMAND --help tells more.
"""


def main(arguments: list[str]) -> int:
    """Run one command of the course inside its environment, which is made or brought up to date first."""
    command, rest = split_command(arguments)
    if command == "help" or (command == "start" and ("-h" in rest or "--help" in rest)):
        say(USAGE, end="")
        return 0
    try:
        groups = GROUPS.get(command, LEARN)
        if not environment.inside():
            ensure(groups)
            return run_inside(arguments)
        status = environment.inspect(groups)
        if status.kind != "ready":
            return from_outside(arguments, status)
    except SetupError as error:
        warn(f"\n{error}")
        return 1
    except KeyboardInterrupt:
        warn("\nStopped. The same command goes on from here.")
        return 130
    return dispatch(command, rest)


def split_command(arguments: list[str]) -> tuple[str, list[str]]:
    """Take the command's name off the arguments; options alone mean `start`."""
    if arguments[:1] in (["-h"], ["--help"], ["help"]):
        return "help", []
    if not arguments or arguments[0].startswith("-"):
        return "start", list(arguments)
    return arguments[0], list(arguments[1:])


def dispatch(command: str, rest: list[str]) -> int:
    """Run a command, now that everything that it imports is installed."""
    if command == "start":
        from course import start

        return start.main(rest)
    if command == "test":
        from course import testing

        return testing.main(rest)
    from course import platform

    return platform.main([command, *rest])


def run_inside(arguments: list[str]) -> int:
    """Start the course again with the environment's Python."""
    command = [str(environment.venv_python()), str(ROOT / "course"), *arguments]
    return become(command, environment.child_environment())


def from_outside(arguments: list[str], status: Status) -> int:
    """The environment's own Python was asked, and the environment is not ready: its base Python sees to it."""
    if status.kind == "broken":
        environment.write_state("installing", status.groups)  # so that the base sees it as broken too
    return become([environment.base_python(), str(ROOT / "course"), *arguments])


def ensure(groups: tuple[str, ...]) -> None:
    """Bring the environment to hold these groups; quick, and without starting anything, if it does.

    Raises
    ------
    SetupError
        It could not be done; the message says why and what to do.
    """
    if environment.inspect(groups).kind == "ready":
        return
    from course import installer
    from course.locking import exclusive

    installer.check_interpreter()
    try:
        (ROOT / ".fucina").mkdir(exist_ok=True)
        with exclusive(ROOT / ".fucina" / "install.lock", _waiting) as lock:
            status = environment.inspect(groups)
            if status.kind != "ready":  # another start may have done it meanwhile
                _install(status, groups, lock)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise SetupError(_explain(error)) from error


def _waiting() -> None:
    say("Another start is installing at this moment; waiting for it ...")


def _install(status: Status, groups: tuple[str, ...], lock: int) -> None:
    """Make or update the environment, the lock being held."""
    from course import installer

    wanted = tuple(sorted({*groups, *status.groups}))
    python = ""
    if status.kind == "outdated":
        say(f"Bringing .venv up to date ({status.reason}).")
        before = environment.read_state()
        assert before is not None
        python = before["python"]  # which need not be the running one
        environment.write_state("installing", wanted, python=python)
        try:
            installer.install(wanted, lock)
        except SetupError as error:
            if error.kind in ("network", "certificate", "platform"):
                # uv changes nothing before it has everything: what was there is whole, and is kept for the next try
                environment.write_state("complete", status.groups, stamp=before["stamp"], python=python)
            raise
    else:
        if status.kind == "broken":
            say(f"The environment in .venv cannot be used ({status.reason}); making it again.")
        else:
            say("Setting up: this happens once and takes a minute or two.")
        _clear(status)
        installer.check_disk(NEED_GB)
        VENV.mkdir()
        environment.write_state("installing", wanted)
        installer.make(lock)
        installer.install(wanted, lock)
    environment.write_state("complete", wanted, python=python)
    say("Ready.\n")


def _clear(status: Status) -> None:
    """Take an unusable environment out of the way: remove ours, put somebody else's aside."""
    import shutil

    trash = ROOT / ".venv-removing"
    if status.kind == "foreign":
        number = next(n for n in range(1, 1000) if not (ROOT / f".venv-old-{n}").exists())
        VENV.rename(ROOT / f".venv-old-{number}")
        say(f"The folder .venv was not made by this command: it is now called .venv-old-{number}.")
    elif os.path.islink(VENV):
        VENV.unlink()
    elif VENV.exists():
        # Renamed first: a removal that is interrupted then leaves no half environment behind under the real name.
        if trash.exists():
            shutil.rmtree(trash)
        VENV.rename(trash)
    if trash.exists():
        shutil.rmtree(trash)


def _explain(error: OSError) -> str:
    """What an operating-system error during the set-up means for the learner."""
    import errno

    from course.installer import advice_for

    if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)):
        return f"{error}\n{advice_for('disk')}"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return (
            f"The folder of the course cannot be written: {error}\n"
            "The environment is made inside it. Copy the whole folder to a place of your own and start from there."
        )
    return f"The set-up met an error: {error}"
