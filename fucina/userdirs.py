"""Folders that belong to this user: those that environment variables name, and where the system keeps caches.

Standard library only: the course reads its own variables here before anything is installed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from .errors import InvalidOption


def named_folder(variable: str) -> Path | None:
    """Return the folder that one of our environment variables names, or None where it is not set or empty.

    `~` and `~user` at the beginning are expanded: a `~` that came quoted, from a Dockerfile or a service's settings was
    expanded by no shell.

    Raises
    ------
    InvalidOption
        The path is relative: it would be another folder in every working directory.
    """
    value = os.environ.get(variable)
    if not value:
        return None
    path = _expanded(value)
    if path is None:
        raise InvalidOption(
            f"the environment variable {variable} is {value!r}; expected the full path of a folder, or one that begins with ~/"
        )
    return path


def foreign_folder(variable: str) -> Path | None:
    """Return the folder that another program's variable names, or None: a relative path is ignored, not an error."""
    value = os.environ.get(variable)
    return _expanded(value) if value else None


def _expanded(value: str) -> Path | None:
    """The full path, `~` expanded; None for a relative one."""
    try:
        path = Path(value).expanduser()
    except RuntimeError:  # ~ where there is no home, or of somebody who does not exist
        return None
    return path if path.is_absolute() else None


def cache_home() -> Path | None:
    """Return the folder that holds the caches of all programs, or None where the user has no home.

    Linux: XDG_CACHE_HOME or ~/.cache.  macOS: ~/Library/Caches.  Windows: LOCALAPPDATA.
    """
    try:
        if sys.platform == "win32":
            return foreign_folder("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches"
        return foreign_folder("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        return None
