"""A quicker start of the `fucina` command; importing numba takes most of it.

Only for the command, which is a process of its own: a library must not change how its host imports or collects.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# numba imports these where they are installed, to support programs that use them.  The kernels do not, and cffi brings a
# parser of C with it: with all of them a start takes a sixth longer.
UNUSED = ("cffi", "coverage", "scipy", "yaml")


@contextmanager
def quick_start() -> Iterator[None]:
    """Inside, garbage is not collected until `started` is called, and modules that nothing here uses are not found."""
    hidden = [name for name in UNUSED if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # as if it were not installed
    gc.disable()  # imports make many objects and little garbage: collecting takes another eighth
    try:
        yield
    finally:
        gc.enable()
        for name in hidden:
            sys.modules.pop(name, None)


def started() -> None:
    """Collect garbage from now on; objects that the start made stay, and later collections skip them."""
    if not gc.isenabled():
        gc.enable()
        gc.freeze()


def show_all() -> None:
    """Let modules be found that `quick_start` hides: other packages of the command need them."""
    for name in UNUSED:
        if name in sys.modules and sys.modules[name] is None:
            del sys.modules[name]
