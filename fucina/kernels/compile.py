"""From a kernel's name to the address of compiled machine code, through numba's cache on disk.

`address("linear.q4_1")` compiles the kernel, or loads it, once a process.  The compiled code of one version of the
sources for one CPU lies in one folder, whose name is a hash of everything that the code depends on; kernels compiled
from other sources are never looked at, so that they cannot be stale.  Every kernel has a file of its own there, written
to a temporary name and renamed: any number of processes may compile at once.
"""

from __future__ import annotations

import hashlib
import os
import platform
import stat
import sys
import tempfile
import threading
import time
import warnings
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Callable, Iterator

import llvmlite
import numba
from llvmlite import binding, ir
from numba import cfunc, types
from numba.core import config
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic

from fucina.kernels import isa as isas
from fucina.kernels.lang import I8, Emitter, Kernel, resolve

VOID5 = types.void(*[types.int64] * 5)
KEEP_DAYS = 60  # folders of other versions that were not used for so long are removed

_lock = threading.RLock()
_compiled: dict[str, object] = {}
_listener: Callable[[str, float | None], None] | None = None


def on_compile(listener: Callable[[str, float | None], None] | None) -> None:
    """Sets what is told about compiling: `listener(name, None)` before a kernel that is not in the cache is compiled,
    `listener(name, seconds)` after it.  None: a single line on stderr, the first time."""
    global _listener
    _listener = listener


@intrinsic(prefer_literal=True)
def _emit(typingctx, name, rec, job, u0, u1, tid):
    plain, _, lowering = name.literal_value.partition("@")
    (kernel, args), isa = parse(plain), isas.choose(lowering)

    def codegen(context, builder, signature, words):
        kernel.emit(Emitter(builder, isa, words[1:]), *args)
        return ir.Constant(I8, 0)

    return types.int8(name, *[types.int64] * 5), codegen


@cache
def _load_kernels() -> None:
    """Importing these modules registers their kernels."""
    from fucina.kernels import attention, embed, linear, pack, quantise, rowops  # noqa: F401


def parse(name: str) -> tuple[Kernel, tuple]:
    """The kernel family and arguments of a full name; UnknownKernel if there is none."""
    _load_kernels()
    return resolve(name)


def address(name: str, isa: str | None = None) -> int:
    """The C address of kernel `name`, a `void(record, job, u0, u1, tid)` of five int64.

    Parameters
    ----------
    name : str
        As in the table of `fucina.kernels.record`, e.g. "linear.q4_1" or "attention.f16.3.64.64".
    isa : str, optional
        A lowering other than the one that `isa.choose()` gives, e.g. "generic".

    Raises
    ------
    UnknownKernel, IsaError
    """
    full = f"{name}@{isas.choose(isa).name}"
    with _lock:
        if full not in _compiled:
            parse(name)
            _compiled[full] = _compile(full)
        return _compiled[full].address


def _compile(full: str):
    def stage(rec, job, u0, u1, tid):
        _emit(full, rec, job, u0, u1, tid)

    # A file of its own a kernel: numba numbers the variants of one function, and two processes would pick one number.
    stage.__name__ = stage.__qualname__ = full.replace("@", "-")
    with cached_here(full):
        return cfunc(VOID5, cache=True)(stage)


@contextmanager
def cached_here(what: str) -> Iterator[None]:
    """Inside, whatever numba compiles with `cache=True` is kept in the stamped folder, and progress is told.

    `what` names it for the user.  Functions compiled so need a unique `__qualname__` each.
    """
    with _lock:
        before, config.CACHE_DIR = config.CACHE_DIR, str(folder())
        # sources are part of the folder's name; numba's own check of one file's contents stays on top of it
        pending = not any(folder().glob(f"*/*.{what.replace('@', '-')}-*.nbi"))
        started = time.perf_counter()
        try:
            if pending:
                _tell(what, None)
            yield
        finally:
            config.CACHE_DIR = before
        if pending:
            _tell(what, time.perf_counter() - started)


_announced = False


def _tell(what: str, seconds: float | None) -> None:
    global _announced
    if _listener is not None:
        _listener(what, seconds)
    elif not _announced:
        _announced = True
        print("fucina: compiling kernels for this CPU (once, some seconds) ...", file=sys.stderr, flush=True)


@cache
def stamp() -> str:
    """A hash of all that compiled kernels depend on: the sources, the lowering, numba, llvmlite, the CPU."""
    h = hashlib.sha256()
    here = Path(__file__).parent
    for p in sorted([*here.glob("*.py"), *here.parent.glob("ops/native/*.py")]):
        h.update(p.name.encode() + b"\0" + p.read_bytes() + b"\0")
    versions = (numba.__version__, llvmlite.__version__, platform.python_version(), platform.machine())
    cpu = (binding.get_host_cpu_name(), get_host_cpu_features(), str(config.CPU_NAME), str(config.CPU_FEATURES))
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
    given = [Path(os.environ[v]) for v in ("FUCINA_CACHE_DIR", "NUMBA_CACHE_DIR") if os.environ.get(v)]
    try:
        home = Path.home()
    except RuntimeError:  # no home at all
        return given
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = home / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    return [*given, base / "fucina"]


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
