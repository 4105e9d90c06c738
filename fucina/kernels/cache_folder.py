"""The folder on disk where compiled kernels are kept.

The compiled code of one version of the sources for one CPU lies in one folder, whose name is a hash of everything that
the code depends on; kernels compiled from other sources are never looked at, so that they cannot be stale.
"""

from __future__ import annotations

import hashlib
import os
import platform
import stat
import tempfile
import time
import warnings
from functools import cache
from pathlib import Path

import llvmlite
import numba
from llvmlite import binding
from numba.core import config
from numba.core.codegen import get_host_cpu_features

from ..userdirs import cache_home, foreign_folder, named_folder
from . import isa as isas

KEEP_DAYS = 60  # folders of other versions that were not used for so long are removed


@cache
def stamp() -> str:
    """A hash of all that compiled kernels depend on: the sources, the lowering, numba, llvmlite, the CPU."""
    h = hashlib.sha256()
    here = Path(__file__).parent
    for p in sorted([*here.glob("*.py"), *here.parent.glob("ops/native/*.py"), here.parent / "cache/parts.py"]):
        h.update(p.name.encode() + b"\0" + p.read_bytes() + b"\0")
    versions = (numba.__version__, llvmlite.__version__, platform.python_version(), platform.machine())
    settings = str(config.CPU_NAME), str(config.CPU_FEATURES)  # type: ignore[attr-defined]  # numba sets them at import
    cpu = (binding.get_host_cpu_name(), get_host_cpu_features(), *settings)
    h.update("\0".join((*versions, *cpu, isas.choose().name)).encode())
    return h.hexdigest()[:12]


@cache
def folder() -> Path:
    """Where compiled kernels are kept: the first of these that can be written.

    `FUCINA_CACHE_DIR`, `NUMBA_CACHE_DIR`, the user's cache folder; at last, with a warning, a private temporary folder.
    """
    tried = []
    for root in _roots():
        path = root / f"k-{stamp()}"
        if _usable(path):
            _forget_old(root, path)
            return path
        tried.append(str(root))
    path = Path(tempfile.gettempdir()) / f"fucina-{_user()}" / f"k-{stamp()}"
    if not _usable(path.parent) or not _private(path.parent) or not _usable(path):
        path = Path(tempfile.mkdtemp(prefix="fucina-"))
    warnings.warn(
        f"compiled kernels cannot be kept in {' or '.join(tried)} (not writable); keeping them in {path}. "
        "Set FUCINA_CACHE_DIR to a folder that can be written.",
        stacklevel=2,
    )
    return path


def _roots() -> list[Path]:
    home = cache_home()
    roots = [named_folder("FUCINA_CACHE_DIR"), foreign_folder("NUMBA_CACHE_DIR"), home and home / "fucina"]
    return [root for root in roots if root is not None]


def _usable(path: Path) -> bool:
    """Makes the folder (for its owner only) and tries to write in it."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return True
    except OSError:
        return False


def _private(path: Path) -> bool:
    """Nobody else can have put files there: what lies in the cache is executed."""
    if not hasattr(os, "getuid"):
        return True  # the temporary folder of Windows belongs to the user
    s = path.lstat()
    return stat.S_ISDIR(s.st_mode) and s.st_uid == os.getuid() and not s.st_mode & 0o022


def _user() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else "cache"


def _forget_old(root: Path, current: Path) -> None:
    """Marks this folder as used and removes those of other versions that were not used for long."""
    import shutil

    try:
        os.utime(current)
        for other in root.glob("k-*"):
            if other != current and time.time() - other.stat().st_mtime > KEEP_DAYS * 86400:
                shutil.rmtree(other, ignore_errors=True)
    except OSError:
        pass  # another process may be doing the same
