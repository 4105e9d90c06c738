"""From a kernel's name to the address of compiled machine code, through numba's cache on disk.

`address("linear.q4_1")` compiles the kernel, or loads it, once per process.  Every kernel has a file of its own in the
cache folder (see `cache_folder`), written to a temporary name and renamed: any number of processes may compile at once.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from llvmlite import ir
from numba import cfunc, types
from numba.core import config
from numba.core.ccallback import CFunc
from numba.extending import intrinsic

from . import isa as isas
from .cache_folder import folder
from .catalogue import find
from .lang import I8, Emitter

VOID5 = types.void(*[types.int64] * 5)

_lock = threading.RLock()
_compiled: dict[str, CFunc] = {}
_listener: Callable[[str, float | None], None] | None = None


def on_compile(listener: Callable[[str, float | None], None] | None) -> None:
    """Sets who hears about compiling: `listener(name, None)` before a kernel that is not in the cache is compiled,
    `listener(name, seconds)` after it.  None: a single line on stderr, the first time."""
    global _listener
    _listener = listener


@intrinsic(prefer_literal=True)
def _emit(typingctx, name, rec, job, u0, u1, tid):
    plain, _, lowering = name.literal_value.partition("@")
    (kernel, args), isa = find(plain), isas.choose(lowering)

    def codegen(context, builder, signature, words):
        kernel.emit(Emitter(builder, isa, words[1:], kernel.params), *args)
        return ir.Constant(I8, 0)

    return types.int8(name, *[types.int64] * 5), codegen


def address(name: str, isa: str | None = None) -> int:
    """The C address of kernel `name`, a `void(record, job, u0, u1, tid)` of five int64.

    Parameters
    ----------
    name : str
        As `catalogue.describe` lists them, e.g. "linear.q4_1" or "attention.f16.3.64.64".
    isa : str, optional
        A lowering other than the one that `isa.choose()` gives, e.g. "generic".

    Raises
    ------
    UnknownKernel, IsaError
    """
    full = f"{name}@{isas.choose(isa).name}"
    with _lock:
        if full not in _compiled:
            find(name)
            _compiled[full] = _compile(full)
        at = _compiled[full].address
    assert at is not None  # numba has one as soon as it has compiled
    return at


def _compile(full: str) -> CFunc:
    def stage(rec, job, u0, u1, tid):
        _emit(full, rec, job, u0, u1, tid)  # type: ignore[call-arg]  # numba gives the typing context

    # A file of its own per kernel: numba numbers the variants of one function, and two processes would pick one number.
    stage.__name__ = stage.__qualname__ = full.replace("@", "-")
    with cached_here(full):
        return cfunc(VOID5, cache=True)(stage)


@contextmanager
def cached_here(what: str) -> Iterator[None]:
    """Inside, whatever numba compiles with `cache=True` is kept in the cache folder, and the listener hears of it.

    `what` names it for the user.  Functions compiled so need a unique `__qualname__` each.
    """
    with _lock:
        before, config.CACHE_DIR = config.CACHE_DIR, str(folder())  # type: ignore[attr-defined]  # set at import
        # sources are part of the folder's name; numba's own check of one file's contents stays on top of it
        pending = not any(folder().glob(f"*/*.{what.replace('@', '-')}-*.nbi"))
        started = time.perf_counter()
        try:
            if pending:
                _tell(what, None)
            yield
        finally:
            config.CACHE_DIR = before  # type: ignore[attr-defined]
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
