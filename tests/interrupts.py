"""Ctrl-C at every bytecode instruction of some code, one after the other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any


def interrupted(function: Callable[[], Any], at: int, *places: Path) -> bool:
    """Call `function`, with a KeyboardInterrupt before the `at`-th instruction (from 0) in a file below `places`.

    Returns
    -------
    False if the function came to its end first.
    """
    left, inside = at, tuple(str(place) for place in places)

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(inside):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            if left == 0:
                left = -1
                raise KeyboardInterrupt
            left -= 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def every_interrupt(make: Callable[[], Callable[[], Any]], *places: Path) -> Iterator[int]:
    """For each instruction in turn: `make()` sets a scene and returns the call to interrupt; yields after the interrupt.

    Ends when the call has come to its end without one.
    """
    at = 0
    while interrupted(make(), at, *places):
        yield at
        at += 1
