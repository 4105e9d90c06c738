"""One holder at a time: a lock on a file, released by the operating system however its holder ends.

Standard library only: the set-up needs it before anything is installed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

if sys.platform == "win32":  # not os.name: type checkers know this one
    import msvcrt
else:
    import fcntl


class LockTimeout(Exception):
    """Another process held the lock for longer than the caller would wait; the message names the file."""


def _try_lock(descriptor: int) -> bool:
    """Take the lock if it is free.  A file system that knows no locks counts as free: the lock is a courtesy."""
    try:
        if sys.platform == "win32":
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # held by another; Windows says EACCES
        return False
    except OSError:
        return True
    return True


@contextlib.contextmanager
def exclusive(
    path: Path, waiting: Callable[[], None] | None = None, poll: float = 0.2, seconds: float | None = None
) -> Iterator[int]:
    """Hold the lock on `path` (made if need be); yields the descriptor that holds it.

    Parameters
    ----------
    path : Path
    waiting : callable, optional
        Called once when another process holds the lock.
    poll : float
        Seconds between two tries.
    seconds : float, optional
        Give up after so long; None waits for ever.

    Raises
    ------
    LockTimeout
        Another process held the lock all the while.
    OSError
        The file cannot be opened.

    Notes
    -----
    Hand the descriptor to child processes that write what the lock protects (`pass_fds`): if this process is killed, a
    child that lives on keeps the lock, and the next start waits for it instead of working against it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        deadline = None if seconds is None else time.monotonic() + seconds
        told = False
        while not _try_lock(descriptor):
            if deadline is not None and time.monotonic() > deadline:
                raise LockTimeout(f"another process holds {path}")
            if waiting is not None and not told:
                waiting()
                told = True
            time.sleep(poll)
        yield descriptor
    finally:
        # On Windows closing releases it as well; an explicit unlock would fail if the lock was never supported.
        os.close(descriptor)
