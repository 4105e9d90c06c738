"""Passes of several models, one at a time: together their threads would be more than the machine has cores."""

from __future__ import annotations

import threading
from collections import deque


class Turns:
    """A lock that is given in the order in which it was asked for, for `with`.

    An ordinary lock may be taken again by the thread that has just given it back, and then one model would starve the
    others.  For threads that Ctrl-C does not reach, which those of workers are.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()
        self._taken = False

    def __enter__(self) -> None:
        mine = threading.Lock()
        with self._guard:
            if not self._taken:
                self._taken = True
                return
            mine.acquire()
            self._waiting.append(mine)
        mine.acquire()  # until it is handed over

    def __exit__(self, *error: object) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False
