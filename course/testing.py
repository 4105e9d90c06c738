"""`python3 -m course test`: every test of the project in one run of pytest, notebooks included."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path

from course.console import say
from course.environment import ROOT, VENV
from course.processes import become

NBVAL = ["--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=120"]
MOST_PROCESSES = 4  # each has a model in memory, and a team of threads
ALONE = {"-s", "--capture=no", "--pdb", "--trace", "--collect-only", "--co"}


def main(arguments: list[str]) -> int:
    """Run pytest with these extra arguments; returns its exit code, which is 0 only if all tests passed."""
    command = pytest_command(arguments)
    say("Tests: " + " ".join(command[3:]))
    os.chdir(ROOT)
    # Started in the background, a process has Ctrl-C ignored, and so would all that it starts; some tests send it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return become(command, environment_for_tests())


def pytest_command(arguments: list[str], root: Path = ROOT) -> list[str]:
    """The command line of pytest: all tests and notebooks, unless the arguments name files of their own."""
    command = [sys.executable, "-m", "pytest", f"--rootdir={root}", "-o", f"cache_dir={cache_folder() / 'pytest'}"]
    command += NBVAL
    sanitize = root / "tests" / "nbval_sanitize.cfg"
    if sanitize.exists():
        command += ["--nbval-sanitize-with", str(sanitize)]
    if not any(names_a_file(argument, root) for argument in arguments):
        command += ["tests"]
        command += [f"notebooks/{path.name}" for path in sorted((root / "notebooks").glob("*.ipynb"))]
        command += side_by_side(arguments)
    return command + arguments


def side_by_side(arguments: list[str], cores: int | None = None) -> list[str]:
    """Options for pytest-xdist: a process per core, at most 4; the tests of a file, the cells of a notebook, stay together.

    None where an option wants one process: `-n`, a debugger, output that is not captured.
    """
    processes = min(cores or os.cpu_count() or 1, MOST_PROCESSES)
    if processes == 1 or any(a in ALONE or a.startswith(("-n", "--numprocesses", "--dist")) for a in arguments):
        return []
    return ["-n", str(processes), "--dist", "loadfile"]


def names_a_file(argument: str, root: Path = ROOT) -> bool:
    """Whether an argument is a test file, a folder or a test's id, and not an option."""
    return not argument.startswith("-") and (root / argument.partition("::")[0]).exists()


def cache_folder() -> Path:
    """Where the tests keep what they write for themselves: in the environment, or in a temporary folder."""
    try:
        folder = VENV / "cache"
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        folder = Path(tempfile.gettempdir()) / f"fucina-tests-{os.getpid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def environment_for_tests() -> dict[str, str]:
    """Environment variables for the tests."""
    cache = cache_folder()
    variables = dict(os.environ)
    variables["HYPOTHESIS_STORAGE_DIRECTORY"] = str(cache / "hypothesis")
    variables["IPYTHONDIR"] = str(cache / "ipython")
    variables["MPLCONFIGDIR"] = str(cache / "matplotlib")
    return variables
