"""What the set-up says: plain text that every terminal can show."""

from __future__ import annotations

import sys
import threading
import time

TYPE_CHECKING = False  # not imported from typing, which is slow to load
if TYPE_CHECKING:
    from typing import TextIO


class SetupError(Exception):
    """The environment cannot be made; the message says why and what to do.  Shown without a traceback.

    `kind` names the cause where it is known: one of the keys of `course.installer._ADVICE`.
    """

    def __init__(self, message: str, kind: str = "other"):
        super().__init__(message)
        self.kind = kind


def say(text: str = "", stream: TextIO | None = None, end: str = "\n") -> None:
    """Print a line at once; characters that the terminal's encoding lacks are shown as escapes."""
    stream = stream or sys.stdout
    encoding = getattr(stream, "encoding", None) or "ascii"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + end)
    stream.flush()


def shorten(line: str, width: int = 200) -> str:
    """Keep both ends of a long line: what failed stands at the start, why at the end."""
    return line if len(line) <= width else line[: width // 2 - 3] + " ... " + line[-width // 2 + 2 :]


def warn(text: str) -> None:
    """Print a line to standard error."""
    say(text, sys.stderr)


class Ticker:
    """Seconds that pass, on one line of a terminal, so that a silent download is seen to be alive.

    Writes nothing where output is not a terminal: in a log it would be noise.
    """

    def __init__(self, stream: TextIO | None = None, every: float = 1.0):
        self.stream = stream or sys.stdout
        self.live = self.stream.isatty()
        self._every = every
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._shown = 0

    def __enter__(self) -> Ticker:
        if self.live:
            threading.Thread(target=self._run, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        with self._lock:
            self._erase()

    def line(self, text: str) -> None:
        """Print a line above the seconds."""
        with self._lock:
            self._erase()
            say(text, self.stream)

    def _run(self) -> None:
        while not self._done.wait(self._every):
            with self._lock:
                if self._done.is_set():
                    return
                self._erase()
                text = f"  ... {time.monotonic() - self._started:.0f} s"
                say(text, self.stream, end="")
                self._shown = len(text)

    def _erase(self) -> None:
        if self._shown:
            say("\r" + " " * self._shown + "\r", self.stream, end="")
            self._shown = 0
