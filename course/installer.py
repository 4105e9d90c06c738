"""Making the environment: `venv`, then uv into it by pip, then everything else by uv.

Each step is one child process whose output is shown in short, kept, and explained when it fails.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import deque
from pathlib import Path

from course.console import SetupError, Ticker, say, shorten
from course.environment import ROOT, VENV, child_environment, running_version, venv_python
from course.pip_settings import ForUv, for_uv, parse

UV = "uv>=0.8,<1"
_SHOWN = ("Resolved", "Downloading", "Prepared", "Installed", "Bytecode compiled")

# What a failed step printed, and what it means.  The first kind that matches is the one that is told.
_CAUSES = {
    "disk": r"no space left|os error 28\b|errno 28\b|not enough space|os error 112\b|disk quota exceeded",
    "certificate": r"certificate|ssl(error|:)|invalid peer",
    "network": r"dns error|name resolution|getaddrinfo|failed to establish a new connection|connection (refused|reset)"
    r"|timed out|error sending request|tcp connect|network is unreachable|could not connect"
    r"|proxyerror|client error",
    "permission": r"permission denied|os error 13\b|access is denied|read-only file system|os error 5\b",
    "platform": r"no usable wheels|no wheels with a matching|no matching distribution|no solution found",
}
_ADVICE = {
    "disk": "The disk is full. Free some space (about {need} is needed) and run the same command again.",
    "certificate": "A secure connection could not be made: its certificate was refused. Where traffic is inspected,\n"
    "set SSL_CERT_FILE to your organisation's certificates, or try UV_SYSTEM_CERTS=1.",
    "network": "The package index could not be reached. Check the network (and HTTPS_PROXY, if you need a proxy),\n"
    "then run the same command again: what was already downloaded is kept.",
    "permission": "A file could not be written. Close programs that use this folder (JupyterLab, an editor),\n"
    "check that the folder and your home are yours to write in, and run the same command again.",
    "platform": "Some package has no ready-made build for this machine and Python. fucina needs 64-bit Linux\n"
    "(glibc 2.28 or newer), macOS on Apple silicon, or Windows, with CPython 3.11 to 3.15.",
    "other": "Run the same command again; if it stops in the same way, the lines above say why.",
}


def cause_of(output: str) -> str:
    """Name the kind of failure that the output of pip, uv or venv describes."""
    text = output.lower()
    return next((kind for kind, pattern in _CAUSES.items() if re.search(pattern, text)), "other")


def advice_for(kind: str, need: str = "2 GB") -> str:
    """What to do about a kind of failure."""
    return _ADVICE[kind].format(need=need)


def step(title: str, command: list[str], lock: int | None = None, variables: dict[str, str] | None = None) -> None:
    """Run one step of the set-up.

    Parameters
    ----------
    title : what it does, printed first.
    command : program and arguments.
    lock : descriptor that the child keeps open, so that the lock outlives this process if the child does.
    variables : environment variables on top of those that every step gets.

    Raises
    ------
    SetupError
        The step failed; the message holds its last lines and what to do.
    """
    say(title)
    last: deque[str] = deque(maxlen=60)
    keep = (lock,) if lock is not None and os.name != "nt" else ()
    try:
        child = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**_variables(), **(variables or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            pass_fds=keep,
        )
    except OSError as error:
        raise SetupError(f"{command[0]} could not be started: {error}") from error
    with child, Ticker() as ticker:
        try:
            assert child.stdout is not None
            for line in child.stdout:
                last.append(line.rstrip())
                if line.strip().startswith(_SHOWN):
                    ticker.line("  " + line.strip())
            code = child.wait()
        except BaseException:
            child.terminate()
            raise
    if code:
        kind = cause_of("\n".join(last))
        shown = "\n".join("  | " + shorten(line) for line in list(last)[-12:] if line)
        raise SetupError(f"This step failed (exit code {code}):\n{shown}\n{advice_for(kind)}", kind)


def _variables() -> dict[str, str]:
    """For venv, pip and uv: they read and write paths in any letters, also where the locale knows ASCII only."""
    return {**child_environment(), "PYTHONUTF8": "1"}


def check_interpreter() -> None:
    """Refuse interpreters that could not hold the project, with the reason.

    Raises
    ------
    SetupError
        Not CPython, not 64-bit, without the GIL, or without the modules `venv` and `ensurepip`.
    """
    from importlib.util import find_spec

    if sys.implementation.name != "cpython":
        raise SetupError(f"This Python is {sys.implementation.name}; the compiled kernels need CPython 3.11 to 3.15.")
    if sys.maxsize < 2**32:
        raise SetupError("This is a 32-bit Python; fucina needs a 64-bit one.")
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise SetupError("This Python is free-threaded; fucina is tested with the ordinary build only.")
    missing = [name for name in ("venv", "ensurepip") if find_spec(name) is None]
    if missing:
        raise SetupError(
            f"This Python ({sys.executable}) lacks the standard module {' and '.join(missing)},\n"
            "which is needed to make an environment.\n"
            f"  Debian, Ubuntu:  sudo apt install python{running_version()}-venv\n"
            "  elsewhere:       install Python from python.org, or with 'uv python install 3.13'\n"
            "Then run the same command again."
        )


def check_disk(need_gb: float, folder: Path = ROOT) -> None:
    """Refuse to begin what cannot end.

    Raises
    ------
    SetupError
        Fewer than `need_gb` are free.
    """
    free = shutil.disk_usage(folder).free / 1e9
    if free < need_gb:
        raise SetupError(
            f"Only {free:.1f} GB are free at {folder}; the set-up needs {need_gb:.1f} GB.\n"
            "Free some space and run the same command again.",
            "disk",
        )


def make(lock: int | None = None) -> None:
    """Make the empty environment, with pip and uv in it."""
    step("1/3 Making an environment in .venv", [sys.executable, "-m", "venv", str(VENV)], lock)
    pip = [str(venv_python()), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--retries", "2"]
    step("2/3 Installing uv, which installs the rest", [*pip, UV], lock)


def install(groups: tuple[str, ...], lock: int | None = None) -> None:
    """Install the project, editable, with dependency groups; what is there already and fits is left alone."""
    python = str(venv_python())
    settings = settings_of_pip()
    if settings.left_out:
        say("(Settings of pip that uv has no word for, left aside: " + ", ".join(settings.left_out) + ".)")
    # Bytecode is written now, for all packages: where Python may not write it later, every start would compile again.
    command = [python, "-m", "uv", "pip", "install", "--python", python, "--no-progress", "--compile-bytecode"]
    command += [f"--group={group}" for group in groups] + settings.arguments + ["--editable", str(ROOT)]
    if "UV_CACHE_DIR" not in os.environ and not os.access(os.environ.get("XDG_CACHE_HOME", Path.home()), os.W_OK):
        command.append("--no-cache")  # a home that cannot be written
    title = "3/3 Installing packages and the model (" + ", ".join(groups) + ")"
    step(title, command, lock, {"UV_COMPILE_BYTECODE_TIMEOUT": "0", **settings.variables})
    _write_settings()
    compile_own()


def settings_of_pip() -> ForUv:
    """What pip is configured with (indexes, proxy, certificates), as arguments and variables for uv."""
    command = [str(venv_python()), "-m", "pip", "config", "list"]
    variables = _variables()
    found = subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, encoding="utf-8", errors="replace", check=False
    )
    return for_uv(parse(found.stdout), variables)


def compile_own() -> None:
    """Write the bytecode of the project's own modules, which the environment imports from the checkout.

    A checkout that cannot be written stays as it is: Python then compiles at each start.
    """
    folders = [str(ROOT / name) for name in ("fucina", "course")]
    command = [str(venv_python()), "-m", "compileall", "-q", *folders]
    subprocess.run(command, cwd=ROOT, env=_variables(), stdin=subprocess.DEVNULL, capture_output=True, check=False)


def _write_settings() -> None:
    """Small files in the environment: the checkout on the path in any encoding, and a quiet JupyterLab."""
    # Found by looking: the environment's Python cannot be asked before this is done.
    sites = [VENV / "Lib" / "site-packages"] if os.name == "nt" else sorted(VENV.glob("lib/python3*/site-packages"))
    for site in sites:
        put_on_path(site)
    # The kernel warns in every terminal that it talks over TCP, which is this machine's own loopback.
    kernel = VENV / "etc" / "ipython" / "ipython_kernel_config.py"
    kernel.parent.mkdir(parents=True, exist_ok=True)
    kernel.write_text("c.IPKernelApp.log_level = 40\n", encoding="ascii")
    settings = VENV / "share" / "jupyter" / "lab" / "settings"
    settings.mkdir(parents=True, exist_ok=True)
    quiet = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}}
    (settings / "overrides.json").write_text(json.dumps(quiet), encoding="utf-8")


def put_on_path(site: Path) -> None:
    """Let the environment import from the checkout, by .pth files that every Python reads in every locale.

    A plain path in such a file is read in the locale's encoding by some Pythons, and bytes that it cannot decode keep
    Python from starting at all.  So what the editable install wrote is replaced, too, where it is not ASCII.
    """
    root = ascii(os.fsencode(ROOT)) if os.name != "nt" else ascii(str(ROOT))
    line = f"import os, sys; p = os.fsdecode({root}); p in sys.path or sys.path.append(p)\n"
    for path in [site / "fucina_checkout.pth", *site.glob("*fucina*.pth")]:
        if not path.exists() or not path.read_bytes().isascii():
            path.write_text(line, encoding="ascii")
