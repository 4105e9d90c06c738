"""The project's own environment, `.venv` in the checkout: where it is, what state it is in, what its children inherit.

Standard library only, and quick to import: every command of the course passes through here.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(os.path.abspath(__file__)).parent.parent
VENV = ROOT / ".venv"
STATE_NAME = "fucina-course.json"
FORMAT = 1  # raise it when an environment made by older code must be made anew

# What the surroundings must not pass on to the environment's Python, pip and uv: each of these would change where
# packages are looked for or put.
_FOREIGN = (
    "PYTHONHOME", "PYTHONPATH", "PYTHONPLATLIBDIR", "PYTHONEXECUTABLE", "__PYVENV_LAUNCHER__",
    "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "CONDA_PYTHON_EXE", "JUPYTER_PATH",
    "PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_REQUIRE_HASHES", "PIP_CONSTRAINT",
    "UV_PYTHON", "UV_SYSTEM_PYTHON", "UV_TARGET", "UV_PREFIX", "UV_PROJECT_ENVIRONMENT", "UV_CONSTRAINT",
    "UV_OVERRIDE", "UV_REQUIRE_HASHES", "UV_NO_BUILD", "UV_WORKING_DIRECTORY", "UV_PROJECT",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Status:
    """What the environment is like.

    kind is "ready", "missing", "outdated" (complete, but pyproject.toml asks for more), "broken" (ours, unusable) or
    "foreign" (made by something else); reason is for people; groups are those that it holds.
    """

    kind: str
    reason: str = ""
    groups: tuple[str, ...] = ()


def venv_python(venv: Path | None = None, windows: bool = os.name == "nt") -> Path:
    """The path of an environment's interpreter."""
    return scripts_folder(venv, windows) / ("python.exe" if windows else "python")


def scripts_folder(venv: Path | None = None, windows: bool = os.name == "nt") -> Path:
    """The folder of an environment's commands."""
    return (venv or VENV) / ("Scripts" if windows else "bin")


def fingerprint() -> str:
    """A hash of all that decides what is installed; line ends do not count, since git may change them."""
    text = (ROOT / "pyproject.toml").read_bytes().replace(b"\r\n", b"\n")
    return hashlib.sha256(b"%d\n" % FORMAT + text).hexdigest()


def write_state(state: str, groups: tuple[str, ...], stamp: str = "", python: str = "") -> None:
    """Record how far the environment has come; state is "installing" or "complete".

    stamp and python default to what pyproject.toml says now and to the running interpreter's version.
    """
    record = {
        "state": state,
        "stamp": stamp or fingerprint(),
        "groups": sorted(groups),
        "python": python or running_version(),
        "root": _place(),
    }
    target = VENV / STATE_NAME
    temporary = target.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(record), encoding="utf-8")
    os.replace(temporary, target)


def read_state() -> dict | None:
    """The record that `write_state` left, or None when there is none that can be read."""
    try:
        record = json.loads((VENV / STATE_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    keys = ("state", "stamp", "groups", "python", "root")
    return record if isinstance(record, dict) and all(key in record for key in keys) else None


def inspect(wanted: tuple[str, ...]) -> Status:
    """Tell the state of the environment without starting anything.

    Parameters
    ----------
    wanted : names of dependency groups that the command needs.
    """
    state = read_state()
    if state is None:
        if (VENV / "pyvenv.cfg").exists() and not (VENV / STATE_NAME).exists():
            return Status("foreign", "it was not made by this command")
        return Status("broken", "its set-up was interrupted") if os.path.lexists(VENV) else Status("missing")
    groups = tuple(state["groups"])
    if state["state"] != "complete":
        return Status("broken", "its set-up was interrupted", groups)
    if state["root"] != _place():
        return Status("broken", "the folder was moved or copied", groups)
    if not _interpreter_exists():
        return Status("broken", "the Python that it was made with is gone", groups)
    if inside() and state["python"] != running_version():
        return Status("broken", "the Python that it was made with was replaced", groups)
    if state["stamp"] != fingerprint():
        return Status("outdated", "pyproject.toml has changed", groups)
    if missing := sorted(set(wanted) - set(groups)):
        return Status("outdated", "more is needed: " + ", ".join(missing), groups)
    return Status("ready", groups=groups)


def _place() -> str:
    """Where the checkout is, the same text whatever encoding of file names the locale brings."""
    return os.fsencode(os.path.realpath(ROOT)).decode("utf-8", "backslashreplace")


def _interpreter_exists() -> bool:
    """Whether the environment's Python can start: its own file, and on Windows the base that it leads to."""
    if not venv_python().exists():  # follows the link to the base interpreter
        return False
    if os.name != "nt":
        return True
    try:
        lines = (VENV / "pyvenv.cfg").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    home = [line.partition("=")[2].strip() for line in lines if line.partition("=")[0].strip() == "home"]
    return bool(home) and Path(home[0]).exists()


def running_version() -> str:
    """The running interpreter's version, as 3.13."""
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


def inside() -> bool:
    """Whether the running interpreter is the environment's."""
    return os.path.realpath(sys.prefix) == os.path.realpath(VENV)


def base_python() -> str:
    """The interpreter that the running one was made from: itself, or the one that the active environment was made with."""
    return getattr(sys, "_base_executable", None) or sys.executable


def child_environment() -> dict[str, str]:
    """Environment variables for what runs in the environment: as if it had been activated from a clean shell."""
    variables = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    variables["VIRTUAL_ENV"] = str(VENV)
    variables["PATH"] = os.pathsep.join([str(scripts_folder()), variables.get("PATH", os.defpath)])
    variables["PYTHONNOUSERSITE"] = "1"
    variables["JUPYTER_PREFER_ENV_PATH"] = "1"  # this environment's kernels before those in the user's home
    return variables
