"""Showing a reply as it comes; noticing Ctrl-C, and a reply that runs in a circle."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from . import text

if TYPE_CHECKING:
    from ..chat import ReplyStream
    from ..chat.circles import Circle

INTERRUPTED = "interrupted"
CIRCLE = "circle"
_EVERY = 16  # pieces between two looks for a circle


def play(stream: ReplyStream, show: bool, stop_circles: bool) -> str | None:
    """Run a reply to its end.

    Parameters
    ----------
    stream : ReplyStream
    show : bool
        Print the text as it comes.
    stop_circles : bool
        End a reply that runs in a circle; otherwise one line on stderr reports it.

    Returns
    -------
    str or None
        Why the reply was ended from here: INTERRUPTED (Ctrl-C) or CIRCLE; None if it ended by itself.
    """
    from ..chat.circles import find_circle

    noticed = False
    try:
        for count, piece in enumerate(stream, 1):
            if show:
                text.show(piece)
            if noticed or count % _EVERY:
                continue
            circle = find_circle(stream.result.tokens)
            if circle is not None:
                noticed = True
                _notice(circle, stop_circles)
                if stop_circles:
                    stream.close()
                    return CIRCLE
    except KeyboardInterrupt:
        stream.close()
        return INTERRUPTED
    return None


def _notice(circle: Circle, stop_circles: bool) -> None:
    what = "1 token" if circle.period == 1 else f"{circle.period} tokens"
    line = f"the reply runs in a circle (the same {what} {circle.repeats} times); "
    line += "it was ended" if stop_circles else "Ctrl-C ends it, --stop-circles would"
    on_a_terminal = sys.stdout.isatty() and sys.stderr.isatty()  # where it would be printed in the middle of a line
    text.tell(f"\n[{line}]" if on_a_terminal else line)
