"""Ctrl-C at every instruction of some code, one after the other, in two ways.

`raised` puts the exception in front of any instruction, more places than Ctrl-C can reach.  `signalled` makes the signal
pending there, and CPython raises where it looks for signals next: after calls, and where loops go round.
"""

from __future__ import annotations

import _thread
import dis
import signal
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from fucina import interrupts

LOOKS = {"CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD", "RESUME"}  # instructions that look for signals


class _Signal(int):
    """Reading `pending` makes the signal pending, without a call: CPython looks for signals after every call."""

    pending = property(_thread.interrupt_main)


SIGINT = _Signal(signal.SIGINT)


def interrupted(function: Callable[[], Any], at: int, *places: Path, signalled: bool = False) -> bool:
    """Call `function`, with a KeyboardInterrupt before the `at`-th instruction (from 0) in a file below `places`.

    Where interrupts are held, it comes after that; `signalled` counts only instructions that look for signals.

    Returns
    -------
    False if the function came to its end first.
    """
    left, inside = at, tuple(str(place) for place in places)

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        code = frame.f_code
        if not code.co_filename.startswith(inside) or (code.co_filename == interrupts.__file__ and not signalled):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event != "opcode" or left < 0 or (signalled and frame.f_lasti not in _looks(code)):
            return trace
        left -= 1
        if left < 0:
            if signalled:
                SIGINT.pending
            elif _held():
                left = 0
            else:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    # A shell lets its background jobs ignore the signal: then there is nothing to hold, and `raised` comes anywhere.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.settrace(trace)
    try:
        function()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
        signal.signal(signal.SIGINT, handler)
    return False


def every_interrupt(
    make: Callable[[], Callable[[], Any]], *places: Path, signalled: bool = False, first: int = 0, step: int = 1
) -> Iterator[int]:
    """For each instruction in turn: `make()` sets a scene and returns the call to interrupt; yields after the interrupt.

    Ends when the call has come to its end without one.
    """
    at = first
    while interrupted(make(), at, *places, signalled=signalled):
        yield at
        at += step


def _held() -> bool:
    handler = signal.getsignal(signal.SIGINT)
    return isinstance(getattr(handler, "__self__", None), interrupts.HoldInterrupts)


@cache
def _looks(code: CodeType) -> frozenset[int]:
    return frozenset(i.offset for i in dis.get_instructions(code) if i.opname in LOOKS)
