"""A stream's state: what a forward pass leaves for the next one, so that nothing is computed twice.

A state holds `len` positions.  A call that computes more of them is a transaction:

    state.begin(rows)        the capacity is checked; from here on passes may write
    ... a pass ...
    state.next_pass()        after each pass in which the stream had rows (a long call is cut into several)
    state.commit(rows)       `len` moves; or state.rollback(), and everything is as before

What a pass writes is not part of the state until `commit`: rows at or past `len` are scratch, and of recurrent parts
another bank than the committed one is written.  A transaction that was never closed, because Ctrl-C came between the
lines, is rolled back by the next call for which it matters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .parts import MAX_ROWS, Area, Kv, Latent, Layout, Part, Recurrent, Slot
from .state import State, StateSnapshot

if TYPE_CHECKING:
    from .persist import KvFile, load, save

__all__ = [
    "MAX_ROWS",
    "Area",
    "Kv",
    "KvFile",
    "Latent",
    "Layout",
    "Part",
    "Recurrent",
    "Slot",
    "State",
    "StateSnapshot",
    "load",
    "save",
]

_PERSIST = ("KvFile", "load", "save")  # imported when first used: most programs keep no files


def __getattr__(name: str) -> Any:
    if name in _PERSIST:
        from . import persist

        return getattr(persist, name)
    raise AttributeError(f"module 'fucina.cache' has no attribute {name!r}")
