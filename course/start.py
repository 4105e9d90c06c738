"""`python3 -m course`: JupyterLab, opened at the first chapter, with a kernel that has everything."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from course.console import say, warn
from course.environment import ROOT, VENV
from course.processes import become

FIRST = "notebooks/00_welcome.ipynb"


def main(arguments: list[str]) -> int:
    """Start JupyterLab and stay with it until it ends; returns its exit code."""
    options, extra = _parse(arguments)
    trust(sorted((ROOT / "notebooks").glob("*.ipynb")))
    command = jupyter_command(options.port, options.browser, extra)
    say("Starting JupyterLab. Leave this window open; stop with Ctrl-C.")
    os.chdir(ROOT)
    return become(command)


def _parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our options, and what comes after `--` for JupyterLab."""
    extra: list[str] = []
    if "--" in arguments:
        cut = arguments.index("--")
        arguments, extra = arguments[:cut], arguments[cut + 1 :]
    parser = argparse.ArgumentParser(prog="python3 -m course start", description=__doc__)
    parser.add_argument("--no-browser", dest="browser", action="store_false", help="open no browser, print the address")
    parser.add_argument("--port", type=_port, help="where JupyterLab listens (it takes the next free one)")
    return parser.parse_args(arguments), extra


def _port(text: str) -> int:
    """A TCP port, or an error that says so."""
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: a number from 1 to 65535")
    return int(text)


def jupyter_command(port: int | None, browser: bool, extra: list[str]) -> list[str]:
    """The command line of JupyterLab."""
    command = [sys.executable, "-m", "jupyterlab", "--ServerApp.root_dir=" + str(ROOT)]
    command += ["--ServerApp.answer_yes=True"]  # Ctrl-C means stop, without a question
    command += ["--LabApp.default_url=" + ("/lab/tree/" + FIRST if (ROOT / FIRST).exists() else "/lab")]
    command += ["--Application.log_level=ERROR"]  # the address is shown all the same
    if port is not None:
        command.append(f"--ServerApp.port={port}")
    if not browser:
        command.append("--no-browser")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")  # in a container everybody is root; the server listens on this machine alone
    return command + extra


def trust(notebooks: list[Path]) -> None:
    """Sign the course's notebooks, so that JupyterLab shows the figures stored in them before they are run.

    Files that have not changed since the last time are not read again.
    """
    marker = VENV / "trusted.json"
    now = {path.name: [path.stat().st_size, path.stat().st_mtime_ns] for path in notebooks}
    try:
        before = json.loads(marker.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        before = {}
    changed = [path for path in notebooks if before.get(path.name) != now[path.name]]
    if not changed:
        return
    import nbformat
    from nbformat.sign import NotebookNotary

    try:
        notary = NotebookNotary()
        for path in changed:
            notary.sign(nbformat.read(path, as_version=4))
        marker.write_text(json.dumps(now), encoding="utf-8")
    except Exception as error:  # an edited notebook may be anything; the figures then appear when it is run
        warn(f"(The stored figures may be hidden until a notebook is run: {error})")
