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

    Attributes
    ----------
    failed : called, on that thread, when the writer has raised.
    error : what the writer raised, or None.
    """

    def __init__(self, write: Callable[[str], Any]) -> None:
        self._write = write
        self.failed: Callable[[], Any] = lambda: None
        self._pieces: SimpleQueue[str | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.error: Exception | None = None

    def put(self, text: str) -> None:
        """Hand over a piece of text; returns at once."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="fucina-writer", daemon=True)
            thread.start()
            self._thread = thread
        self._pieces.put(text)

    def close(self, seconds: float = 0.0) -> bool:
        """End the text; return whether the writer has been given all of it, after `seconds` at the latest."""
        thread = self._thread
        if thread is None:
            return True
        if not self._closed:
            self._pieces.put(None)
            self._closed = True
        thread.join(seconds)
        return not thread.is_alive()

    def _run(self) -> None:
        while (text := self._pieces.get()) is not None:
            if self.error is None:
                try:
                    self._write(text)
                except Exception as error:
                    self.error = error
                    self.failed()
