"""What a process keeps between two grades: all that a learner's file could leave behind, as a fingerprint.

A worker whose fingerprint differs after a grade is replaced.  That is simpler and surer than putting things back, with
two exceptions that cannot wait until the grade is written: `Anchor` puts back built-in names and trace functions, without
which the grader itself could not go on.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import decimal
import faulthandler
import gc
import locale
import logging
import multiprocessing
import os
import random
import signal
import socket
import sys
import threading
import time
import tracemalloc
import types
import warnings
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

# Modules that the grader and the checks work with: whoever replaces a name in one of them decides what passes.
TOOLS = ("builtins", "math", "numpy", "time", "os", "random", "operator", "itertools", "functools", "copy", "zlib")
OURS = ("course.", "_checks_")  # modules whose classes, functions and containers are looked into as well
MISSING = object()


class Anchor:
    """Puts back what the grader itself stands on: the built-in names, and that nothing traces it.

    It must work where any built-in name may be gone, so it uses none.
    """

    def __init__(self) -> None:
        self.names = builtins.__dict__
        self.saved = dict(builtins.__dict__)
        self.trace, self.profile = sys.gettrace(), sys.getprofile()
        self.set_trace, self.set_profile = sys.settrace, sys.setprofile
        self.get_trace, self.get_profile = sys.gettrace, sys.getprofile
        self.moved = False

    def hold(self) -> None:
        """Put it back; `moved` remembers that something was changed."""
        if self.get_trace() is not self.trace:
            self.set_trace(self.trace)
            self.moved = True
        if self.get_profile() is not self.profile:
            self.set_profile(self.profile)
            self.moved = True
        if self.names != self.saved:
            self.names.clear()
            self.names.update(self.saved)
            self.moved = True


def compare(before: Fingerprint) -> tuple[list[str], list[str]]:
    """What has changed since `before`, by name; and the names of `TOOLS` that were replaced, such as `math.exp`."""
    try:
        after = Fingerprint()
        return before.differences(after), patched(before, after)
    except BaseException as error:  # what was left behind cannot even be looked at
        return [f"what raises {type(error).__name__} when it is looked at"], []


def patched(before: Fingerprint, after: Fingerprint) -> list[str]:
    """Names of `TOOLS` that were replaced or removed."""
    found = []
    for module in TOOLS:
        old, new = before.modules.get(module), after.modules.get(module)
        if old is not None and new is not None:
            found += [f"{module}.{name}" for name in old if new.get(name, MISSING) is not old[name]]
    return [name for name in found if not name.split(".")[1].startswith("_")]


class Fingerprint:
    """The state of this process now.

    Attributes
    ----------
    modules : dict
        Module name -> its names and the objects that they mean.
    inner : dict
        What is inside the classes, functions and containers of our own modules.
    settings : dict
        Everything else, by name.
    """

    def __init__(self) -> None:
        loaded = {name: module for name, module in list(sys.modules.items()) if isinstance(module, types.ModuleType)}
        self.modules = {name: dict(vars(module)) for name, module in loaded.items()}
        self.inner = {name: _inner(name, names) for name, names in self.modules.items() if name.startswith(OURS)}
        self.settings = {name: _quietly(read) for name, read in READERS.items()}

    def differences(self, after: Fingerprint) -> list[str]:
        """What differs in `after`, by name; modules that were only loaded meanwhile are no difference."""
        found = [name for name, value in self.settings.items() if not _equal(value, after.settings[name])]
        for name, old in self.modules.items():
            new = after.modules.get(name)
            if new is None:
                found.append(f"module {name}")
            elif not _same_names(old, new):
                found.append(f"names of {name}")
        found += [f"inside {name}" for name, old in self.inner.items() if after.inner.get(name, old) != old]
        return found


def _same_names(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether a module's names mean what they meant.  Names that came later count, unless they are modules."""
    if any(new.get(name, MISSING) is not value for name, value in old.items() if name not in _OWN_TIME):
        return False
    later = new.keys() - old.keys()
    return all(isinstance(new[name], types.ModuleType) or name.startswith("_") for name in later)


# Names that the standard library itself binds anew as it works.
_OWN_TIME = frozenset({"last_exc", "last_type", "last_value", "last_traceback", "_name_sequence", "_filters_version"})


def _inner(module: str, names: dict[str, Any]) -> dict[str, Any]:
    """Identities of what is inside a module's own classes, functions and containers."""
    found: dict[str, Any] = {}
    for name, value in names.items():
        if name.startswith("__"):
            continue
        if isinstance(value, type) and str(value.__module__).startswith(OURS):
            found[name] = {key: id(item) for key, item in vars(value).items() if key not in _BOOKKEEPING}
        elif isinstance(value, types.FunctionType) and str(value.__module__).startswith(OURS):
            found[name] = (id(value.__code__), id(value.__defaults__), id(value.__kwdefaults__))
        elif type(value) in (list, dict, set) and module.startswith("course."):  # checks keep what they computed
            found[name] = tuple(map(id, value.values() if isinstance(value, dict) else value))
    return found


_BOOKKEEPING = ("__doc__", "__annotations__", "_abc_impl", "__weakref__", "__dict__", "__slotnames__")


def _equal(a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except Exception:
        return False


def _quietly(read: Callable[[], Any]) -> Any:
    """A setting, or a word where this system does not have it."""
    try:
        return read()
    except Exception:
        return "not here"


def _decimal() -> tuple:
    found = []
    for context in (decimal.getcontext(), decimal.DefaultContext):
        traps = tuple(sorted(flag.__name__ for flag, on in context.traps.items() if on))
        found.append(
            (context.prec, context.rounding, context.Emin, context.Emax, context.capitals, context.clamp, traps)
        )
    return tuple(found)


def _handlers() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in signal.valid_signals()}


def _open_files() -> dict[str, str]:
    """Where every descriptor leads, those into /proc left out: the watchdog opens one at times, and so does this."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[number] = os.readlink(f"/proc/self/fd/{number}")
    return {number: target for number, target in found.items() if not target.startswith("/proc/")}


def _umask() -> int:
    mask = os.umask(0o22)
    os.umask(mask)
    return mask


def _limits() -> list:
    import resource

    kinds = ("RLIMIT_NOFILE", "RLIMIT_STACK", "RLIMIT_DATA", "RLIMIT_FSIZE", "RLIMIT_CORE")
    return [resource.getrlimit(getattr(resource, kind)) for kind in kinds]


def _numpy() -> list:
    return [np.geterr(), np.geterrcall(), np.getbufsize(), sorted(map(repr, np.get_printoptions().items()))]


def _numpy_draws() -> int:
    state = np.random.get_state(legacy=False)
    assert isinstance(state, dict)
    return zlib.crc32(repr((state["bit_generator"], state["state"]["pos"])).encode(), zlib.crc32(state["state"]["key"]))


def _collector() -> list:
    return [gc.isenabled(), gc.get_threshold(), gc.get_debug(), list(map(id, gc.callbacks)), gc.get_freeze_count()]


def _logging() -> list:
    root = logging.getLogger()
    return [root.level, list(root.handlers), list(root.filters), logging.root.manager.disable]


READERS: dict[str, Callable[[], Any]] = {
    "working folder": os.getcwd,
    "environment": lambda: dict(os.environ),
    "arguments": lambda: list(sys.argv),
    "import path": lambda: [list(sys.path), list(map(id, sys.meta_path)), list(map(id, sys.path_hooks))],
    "recursion limit": sys.getrecursionlimit,
    "switch interval": sys.getswitchinterval,
    "digits of integers": lambda: getattr(sys, "get_int_max_str_digits", int)(),
    "bytecode": lambda: sys.dont_write_bytecode,
    "tracing": lambda: [sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile()],
    "coroutine hooks": lambda: [sys.get_coroutine_origin_tracking_depth(), tuple(sys.get_asyncgen_hooks())],
    "streams": lambda: [id(sys.stdin), id(sys.stdout), id(sys.stderr), sys.stdout.closed, sys.stdin.closed],
    "threads": lambda: [threading.active_count(), threading.stack_size()],
    "children": lambda: len(multiprocessing.active_children()),
    "calls at exit": lambda: atexit._ncallbacks(),  # type: ignore[attr-defined]
    "open files": _open_files,
    "signal handlers": _handlers,
    "blocked signals": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()),
    "alarm": lambda: bool(signal.getitimer(signal.ITIMER_REAL)[0]),
    "umask": _umask,
    "priority": lambda: os.getpriority(os.PRIO_PROCESS, 0),
    "limits": _limits,
    "locale": lambda: locale.setlocale(locale.LC_ALL),
    "time zone": lambda: [time.tzname, time.timezone],
    "decimal context": _decimal,
    "random state": lambda: zlib.crc32(repr(random.getstate()).encode()),
    "numpy's settings": _numpy,
    "numpy's random state": _numpy_draws,
    "warning filters": lambda: [list(warnings.filters), list(sys.warnoptions)],
    "garbage collector": _collector,
    "logging": _logging,
    "memory tracing": lambda: [tracemalloc.is_tracing(), faulthandler.is_enabled()],
    "socket timeout": socket.getdefaulttimeout,
}
