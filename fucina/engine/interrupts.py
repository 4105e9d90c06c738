"""Ctrl-C between two changes that must go together.

Most of the engine needs no protection: what it keeps is derived, or changes by one assignment.  A drawn token is the
exception: the random draw, the processor's `commit`, the token's place among the tokens and the text that it spells are
things in four objects.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class HoldInterrupts:
    """Inside the `with`, the first Ctrl-C waits for the end of the block.  A second one does not wait.

    Only the main thread is ever interrupted by Ctrl-C; elsewhere this does nothing.
    """

    __slots__ = ("_before", "_held")

    def __enter__(self) -> None:
        self._held: FrameType | None | bool = False
        self._before = None
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            if callable(before):
                self._before = before
                signal.signal(signal.SIGINT, self._hold)

    def _hold(self, number: int, frame: FrameType | None) -> None:
        if self._held is not False and callable(self._before):
            self._before(number, frame)
        self._held = frame

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        before = self._before
        if before is not None:
            signal.signal(signal.SIGINT, before)
            if self._held is not False:
                before(signal.SIGINT, self._held)  # type: ignore[arg-type]
