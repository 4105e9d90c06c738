"""Text on its way to a reader: a slow one delays no other stream."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any


class Mailbox:
    """Calls a writer with pieces of text, in order, on a thread of its own.

    Parameters
    ----------
    write : called with each piece; one that raises is not called again.
    failed : called, on that thread, when it has raised.

    Attributes
    ----------
    error : what the writer raised, or None.
    """

    def __init__(self, write: Callable[[str], Any], failed: Callable[[], Any]) -> None:
        self._write, self._failed = write, failed
        self._pieces: SimpleQueue[str | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.error: Exception | None = None

    def put(self, text: str) -> None:
        """Hand over a piece of text; returns at once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="fucina-writer", daemon=True)
            self._thread.start()
        self._pieces.put(text)

    def close(self, wait: bool) -> bool:
        """End the text, and return whether the writer has been given all of it; `wait` until it has."""
        thread = self._thread
        if thread is None:
            return True
        if not self._closed:
            self._closed = True
            self._pieces.put(None)
        if wait:
            thread.join()
        return not thread.is_alive()

    def _run(self) -> None:
        while (text := self._pieces.get()) is not None:
            if self.error is None:
                try:
                    self._write(text)
                except Exception as error:
                    self.error = error
                    self._failed()
