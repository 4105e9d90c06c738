"""Ctrl-C between two changes that must go together.

Most of the engine needs no protection: what it keeps is derived, or changes by one assignment.  A drawn token is the
exception: the random draw, the processor's `commit`, the token's place among the tokens and the text that it spells are
things in four objects.
"""

from __future__ import annotations

import threading
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import signal as signals
else:
    import _signal as signals  # what `signal` wraps: three calls per token should not each make an enum member


class HoldInterrupts:
    """Inside the `with`, the first Ctrl-C waits for the end of the block.  A second one does not wait.

    Only the main thread is ever interrupted by Ctrl-C; elsewhere this does nothing.
    """

    __slots__ = ("_before", "_held")

    def __enter__(self) -> None:
        self._held: FrameType | None | bool = False
        self._before = None
        if threading.get_ident() == threading.main_thread().ident:
            before = signals.getsignal(signals.SIGINT)
            if callable(before):
                self._before = before
                signals.signal(signals.SIGINT, self._hold)

    def _hold(self, number: int, frame: FrameType | None) -> None:
        if self._held is not False and callable(self._before):
            self._before(number, frame)
        self._held = frame

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        before = self._before
        if before is not None:
            signals.signal(signals.SIGINT, before)
            if self._held is not False:
                before(signals.SIGINT, self._held)  # type: ignore[arg-type]
