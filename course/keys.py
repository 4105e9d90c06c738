"""Single keys from a terminal, without Enter where the terminal can, by lines elsewhere."""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
from typing import TextIO


class Keys:
    """Keys typed by the learner.  Use as a context manager: the terminal is put back whatever happens.

    Attributes
    ----------
    single : bool
        True where one key press is enough; False where the learner presses Enter after it.
    """

    def __init__(self, stream: TextIO | None = None, lines: bool = False) -> None:
        self.stream = stream or sys.stdin
        self.single = not lines and self._can_single()
        self._typed: queue.Queue[str | None] = queue.Queue()
        self._saved: list | None = None

    def _can_single(self) -> bool:
        with contextlib.suppress(ValueError, OSError):
            if not self.stream.isatty():
                return False
            if os.name == "nt":
                return True
            import termios

            termios.tcgetattr(self.stream.fileno())
            return True
        return False

    def __enter__(self) -> Keys:
        if self.single and os.name != "nt":
            import termios
            import tty

            self._saved = termios.tcgetattr(self.stream.fileno())
            tty.setcbreak(self.stream.fileno())
        elif not self.single:
            threading.Thread(target=self._read_lines, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._saved is not None:
            import termios

            termios.tcsetattr(self.stream.fileno(), termios.TCSADRAIN, self._saved)
            self._saved = None

    def get(self, seconds: float) -> str | None:
        """The next key in lower case ('' for Enter alone), or None when none comes in time.

        Raises
        ------
        EOFError
            The input has ended.
        """
        if not self.single:
            try:
                line = self._typed.get(timeout=seconds)
            except queue.Empty:
                return None
            if line is None:
                raise EOFError
            return line.strip()[:1].lower()
        if os.name == "nt":
            return self._get_windows(seconds)
        import select

        ready, _, _ = select.select([self.stream], [], [], seconds)
        if not ready:
            return None
        key = os.read(self.stream.fileno(), 1)
        if not key:
            raise EOFError
        if key == b"\x1b":  # an arrow or function key: several bytes, none of which is meant as a letter
            while select.select([self.stream], [], [], 0)[0] and os.read(self.stream.fileno(), 64):
                pass
            return None
        return key.decode("ascii", "replace").lower().strip()

    @staticmethod
    def _get_windows(seconds: float) -> str | None:
        if sys.platform == "win32":
            import msvcrt

            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                if msvcrt.kbhit():
                    return msvcrt.getwch().lower().strip()
                time.sleep(0.02)
        return None

    def _read_lines(self) -> None:
        with contextlib.suppress(ValueError, OSError):
            for line in self.stream:
                self._typed.put(line)
        self._typed.put(None)
