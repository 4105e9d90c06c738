"""Where this user's caches belong on each system."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_home() -> Path | None:
    """Return the folder that holds the caches of all programs, or None where the user has no home.

    Linux: XDG_CACHE_HOME or ~/.cache.  macOS: ~/Library/Caches.  Windows: LOCALAPPDATA.
    """
    try:
        if sys.platform == "win32":
            return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches"
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
