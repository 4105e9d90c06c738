"""Finds reasoning and tool calls in the text of a reply, piece by piece, wherever a marker is cut in two."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

OPEN_THINK, CLOSE_THINK = "<think>", "</think>"
OPEN_CALL, CLOSE_CALL = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of the reasoning before a reply."""

    text: str


@dataclass(frozen=True, slots=True)
class Text:
    """Text of the reply."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call; `arguments` is JSON text of an object."""

    name: str
    arguments: str


Piece = Reasoning | Text | Call


def begun(text: str, marker: str) -> int:
    """How many characters at the end of a text may be the beginning of a marker."""
    return next((k for k in range(min(len(marker) - 1, len(text)), 0, -1) if marker.startswith(text[-k:])), 0)


class ThinkScanner:
    """Tells a leading `<think>` block from the rest.

    White space after the block is skipped, a stray leading close is dropped; later tags are text like any other.

    Parameters
    ----------
    inside : the prompt has opened the block already.
    """

    def __init__(self, inside: bool = False) -> None:
        self._place = "inside" if inside else "start"  # then "opened", "inside", "skip", "after"
        self._held = ""

    def push(self, text: str) -> Iterator[Piece]:
        """What is decided by more text."""
        self._held += text
        if self._place == "start":
            self._start()
        if self._place == "opened" and self._held:
            self._held, self._place = self._held.removeprefix("\n"), "inside"
        if self._place == "inside":
            yield from self._inside()
        if self._place == "skip":
            self._held = self._held.lstrip()
            self._place = "after" if self._held else "skip"
        if self._place == "after" and self._held:
            held, self._held = self._held, ""
            yield Text(held)

    def flush(self) -> Iterator[Piece]:
        """What was held back, once no more text will come."""
        held, self._held = self._held, ""
        if held and self._place != "skip":
            yield Reasoning(held) if self._place == "inside" else Text(held)

    def _start(self) -> None:
        body = self._held.lstrip()
        if body.startswith(OPEN_THINK):
            self._held, self._place = body[len(OPEN_THINK) :], "opened"
        elif body.startswith(CLOSE_THINK):
            self._held, self._place = body[len(CLOSE_THINK) :], "skip"
        elif body and not OPEN_THINK.startswith(body) and not CLOSE_THINK.startswith(body):
            self._place = "after"

    def _inside(self) -> Iterator[Piece]:
        at = self._held.find(CLOSE_THINK)
        if at >= 0:
            text, self._held, self._place = self._held[:at], self._held[at + len(CLOSE_THINK) :], "skip"
        else:
            cut = len(self._held) - begun(self._held, CLOSE_THINK)
            text, self._held = self._held[:cut], self._held[cut:]
        if text:
            yield Reasoning(text)


class CallScanner:
    """Tells `<tool_call>` regions from text.

    What stands in one and is no call (an object with a name, and arguments that are an object, null or absent) is text,
    with its markers; so is a region without an end.
    """

    def __init__(self) -> None:
        self._held, self._inside = "", False

    def push(self, text: str) -> Iterator[Piece]:
        """What is decided by more text."""
        self._held += text
        while True:
            marker = CLOSE_CALL if self._inside else OPEN_CALL
            at = self._held.find(marker)
            if at < 0:
                break
            region, self._held = self._held[:at], self._held[at + len(marker) :]
            if self._inside:
                yield call_of(region) or Text(f"{OPEN_CALL}{region}{CLOSE_CALL}")
            elif region:
                yield Text(region)
            self._inside = not self._inside
        if not self._inside:
            cut = len(self._held) - begun(self._held, OPEN_CALL)
            text, self._held = self._held[:cut], self._held[cut:]
            if text:
                yield Text(text)

    def flush(self) -> Iterator[Piece]:
        """What was held back, once no more text will come."""
        held, self._held = self._held, ""
        if self._inside or held:
            yield Text((OPEN_CALL if self._inside else "") + held)
        self._inside = False


def call_of(region: str) -> Call | None:
    """The call that stands between the markers, or None."""
    try:
        found: Any = json.loads(region.strip())
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return None
    arguments = found.get("arguments")
    if arguments is not None and not isinstance(arguments, dict):
        return None
    try:
        return Call(found["name"], json.dumps(arguments or {}, ensure_ascii=False, allow_nan=False))
    except ValueError:
        return None
