"""Writes texts to disk: at once, or on a thread of its own, so that whoever gives rows back need not wait for a disk."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

LOG = logging.getLogger("fucina.cache")


class Writer:
    """Does one piece of work after another; what waits for it is bounded.

    Parameters
    ----------
    limit : bytes of rows that may wait.  A single text may be larger.
    background : use a thread; else `put` does the work itself, and raises what it raises.

    Attributes
    ----------
    lost : texts that were not written because too many waited.
    errors : those whose writing failed in an unexpected way; the log says how.
    waiting : bytes of rows that wait, those that are being written included.
    """

    def __init__(self, limit: int, background: bool) -> None:
        self.limit = limit
        self.lost = self.errors = self.waiting = 0
        self._work: deque[tuple[int, Callable[[], object]]] = deque()
        self._changed = threading.Condition()
        self._background = background
        self._thread: threading.Thread | None = None

    def put(self, size: int, work: Callable[[], object]) -> bool:
        """Let something be written; False, and nothing happens, if too much waits already.

        Parameters
        ----------
        size : bytes that are kept in memory until it is written.
        """
        if not self._background:
            work()
            return True
        with self._changed:
            if self.waiting and self.waiting + size > self.limit:
                self.lost += 1
                return False
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fucina-writer", daemon=True)
                self._thread.start()
            self._work.append((size, work))
            self.waiting += size
            self._changed.notify_all()
        return True

    def flush(self) -> None:
        """Wait until everything that was put is written."""
        with self._changed:
            self._changed.wait_for(lambda: not self._work and not self.waiting)

    def close(self) -> None:
        """Wait until everything is written, and end the thread; what is put later is written at once."""
        with self._changed:
            self._background = False
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._work or not self._background)
                if not self._work:
                    return
                size, work = self._work.popleft()
            try:
                work()
            except BaseException as error:
                self.errors += 1
                LOG.error("a text was not stored on disk: %s: %s", type(error).__name__, error)
            finally:
                del work  # the rows in it
                with self._changed:
                    self.waiting -= size
                    self._changed.notify_all()
