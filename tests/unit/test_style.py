"""The project's own text: laid out by ruff, without what ruff and mypy find.  Settings are in pyproject.toml.

Both come with the dependency group `style`, which `python3 -m course test` installs.  Where they are missing these tests
fail: a check that is skipped in silence is none.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from course.source import ROOT
from course.testing import cache_folder

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
INSTALL = "It comes with `python3 -m course test`; into another environment:\n  python -m pip install " + " ".join(
    f"'{entry}'" for entry in SETTINGS["dependency-groups"]["style"]
)


def ruff(*arguments: str) -> str:
    """Run ruff over the project; returns what it complains about, or an empty string."""
    program = shutil.which("ruff", path=sysconfig.get_path("scripts")) or shutil.which("ruff")
    if program is None:
        pytest.fail(f"ruff is not installed. {INSTALL}", pytrace=False)
    return run([program, *arguments, "--cache-dir", str(cache_folder() / "ruff"), "."])


def run(command: list[str]) -> str:
    """Run a checker in the project's folder; returns its output if it fails, else an empty string."""
    answer = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", check=False
    )
    return f"{answer.stdout.strip()}\n(exit code {answer.returncode})" if answer.returncode else ""


def complain(output: str, remedy: str) -> None:
    """Fail with the checker's own words and what to do."""
    if output:
        pytest.fail(f"{output}\n{remedy}", pytrace=False)


def test_the_text_is_laid_out() -> None:
    complain(ruff("format", "--check", "--quiet"), "`ruff format` puts it right.")


def test_the_linter_finds_nothing() -> None:
    complain(ruff("check", "--quiet", "--output-format=concise"), "`ruff check --fix` puts some of it right.")


def test_the_types_fit() -> None:
    if find_spec("mypy") is None:
        pytest.fail(f"mypy is not installed. {INSTALL}", pytrace=False)
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--cache-dir", str(cache_folder() / "mypy")]
    complain(run(command), "The call `mypy` alone, in the project's folder, checks the same.")


def test_lists_of_what_is_not_in_order_yet_name_files_that_exist() -> None:
    """They only ever get shorter: what was renamed or removed is in order."""
    files = [name for name in SETTINGS["tool"]["ruff"]["lint"]["per-file-ignores"] if "*" not in name]
    overrides = SETTINGS["tool"]["mypy"]["overrides"]
    modules = [name for override in overrides if override.get("ignore_errors") for name in override["module"]]
    paths = [Path(name) for name in files if "{" not in name]
    paths += [module_path(name) for name in modules]
    assert [str(path) for path in paths if not (ROOT / path).exists()] == []


def module_path(name: str) -> Path:
    """The file of a module, or the folder of a package."""
    path = Path(*name.removesuffix(".*").split("."))
    return path if (ROOT / path).is_dir() else path.with_suffix(".py")
