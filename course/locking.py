"""One installation at a time: a lock on a file, released by the operating system however its holder ends."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

if os.name == "nt":
    import msvcrt
else:
    import fcntl


def _try_lock(descriptor: int) -> bool:
    """Take the lock if it is free.  A file system that knows no locks counts as free: the lock is a courtesy."""
    try:
        if os.name == "nt":
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # held by another; Windows says EACCES
        return False
    except OSError:
        return True
    return True


@contextlib.contextmanager
def exclusive(path: Path, waiting: Callable[[], None], poll: float = 0.2) -> Iterator[int]:
    """Hold the lock on `path` (made if need be); yields the descriptor that holds it.

    Parameters
    ----------
    waiting : called once when another process holds the lock.
    poll : seconds between two tries.

    Notes
    -----
    Hand the descriptor to child processes that write what the lock protects (`pass_fds`): if this process is killed, a
    child that lives on keeps the lock, and the next start waits for it instead of working against it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        told = False
        while not _try_lock(descriptor):
            if not told:
                waiting()
                told = True
            time.sleep(poll)
        yield descriptor
    finally:
        # On Windows closing releases it as well; an explicit unlock would fail if the lock was never supported.
        os.close(descriptor)
