"""Handing the terminal over to another program."""

from __future__ import annotations

import os
import sys


def become(command: list[str], variables: dict[str, str] | None = None) -> int:
    """Run a program in the place of this one: same terminal, same signals, its exit code.

    On POSIX this process turns into it and the call does not return.  Windows has no exec that keeps the console:
    there the call waits, leaves Ctrl-C to the child, and returns the child's exit code.
    """
    variables = dict(os.environ) if variables is None else variables
    sys.stdout.flush()
    sys.stderr.flush()
    if os.name != "nt":
        os.execve(command[0], command, variables)
    import subprocess

    with subprocess.Popen(command, env=variables) as child:
        while True:
            try:
                return child.wait()
            except KeyboardInterrupt:  # the child had it too, and is ending
                continue
