"""Cutting special markers such as `<|im_end|>` out of a text before it is tokenized.

The rule is llama.cpp's: the longest marker claims all of its places first, from left to right, then the next longest
claims places in what is left, and so on (equal lengths: the lower id first).  This is not the same as scanning once
from the left: with the markers `<ab` and `bcdef`, the text `<abcdef` is `<a` and `bcdef`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Set

TEMPLATE, USER, ASSISTANT = range(3)  # who wrote a character of a rendered conversation
_IN_REPLIES = frozenset(
    ["answer", "function_call", "reasoning", "think", "thinking", "thought", "tool_call", "tool_calls"]
)
_BRACKETS = ("<>", "[]", "{}")
NO_WRITERS: Mapping[int, bytes] = {}
_ASCII_SPACES = " \t\n\v\f\r"
_WINDOW = 12  # characters that are looked at to learn which markers can occur in a text at all


def barred_writers(marker: str, template: str) -> bytes:
    """Who may not write a user-defined token in a conversation: some of USER, ASSISTANT.

    Vocabularies call many kinds of tokens user-defined.  Of those that mark turns, no message may contain any: they have
    the shape `<|…|>`, or half of it (`<|turn>`), or are bracketed words that the template spells (`[INST]`, `</user>`).
    Those that enclose a part of a reply (`<think>`, `</think>`) may occur in replies.  Everything else (runs of spaces,
    `<table>`) is ordinary text.

    Parameters
    ----------
    marker
        Text of the token.
    template
        Source of the chat template.
    """
    if len(marker) > 3 and (marker[:2] in ("<|", "<｜") or marker[-2:] in ("|>", "｜>")):
        return bytes([USER, ASSISTANT])
    if len(marker) < 3 or marker[0] + marker[-1] not in _BRACKETS:
        return b""
    name = marker.strip("</>")
    if name in _IN_REPLIES and (f"<{name}>" in template or f"</{name}>" in template):
        return bytes([USER])
    return bytes([USER, ASSISTANT]) if marker in template else b""


class MarkerMatcher:
    """Finds markers in texts.

    Parameters
    ----------
    markers
        Text of each marker (not empty) and its token id.
    strip_right
        Those that take the white space after them along (that of ASCII, as far as no marker has claimed it).
    """

    __slots__ = ("_by_start", "_lengths", "_order", "_starts", "_strip_right")

    def __init__(self, markers: Mapping[str, int], strip_right: Set[int] = frozenset()) -> None:
        self._strip_right = strip_right

        def longest_first(item: tuple[str, int]) -> tuple[int, int]:
            return -len(item[0].encode("utf-8", "surrogateescape")), item[1]

        self._order = sorted(markers.items(), key=longest_first)
        self._by_start: dict[str, list[int]] = defaultdict(list)
        for place, (text, _) in enumerate(self._order):
            self._by_start[text[:_WINDOW]].append(place)
        self._lengths = sorted({len(start) for start in self._by_start})
        first = "".join(re.escape(c) for c in sorted({text[0] for text in markers}))
        # A look-ahead, so that windows may overlap: every place where a marker could begin is seen.
        self._starts = re.compile(f"(?=([{first}].{{0,{_WINDOW - 1}}}))", re.DOTALL) if first else None

    def split(self, text: str, writers: bytes = b"", barred: Mapping[int, bytes] = NO_WRITERS) -> list[str | int]:
        """The text as a list of raw pieces (str, none empty) and token ids (int) of the markers between them.

        Parameters
        ----------
        text
            Text.
        writers
            Who wrote each character; b"" if that does not matter.
        barred
            By token id the writers of whom no character may be part of that marker.
        """
        places = self._possible(text)
        if not places:
            return [text] if text else []
        claimed = bytearray(len(text))
        claims: list[tuple[int, int, int]] = []  # start, stop, token id
        for place in places:
            marker, token = self._order[place]
            at = text.find(marker)
            while at >= 0:
                stop = at + len(marker)
                foreign = max((writers.rfind(who, at, stop) for who in barred.get(token, b"")), default=-1)
                if foreign >= 0:
                    at = text.find(marker, foreign + 1)
                    continue
                clash = claimed.find(1, at, stop)
                if clash < 0:
                    if token in self._strip_right:
                        while stop < len(text) and not claimed[stop] and text[stop] in _ASCII_SPACES:
                            stop += 1
                    claimed[at:stop] = b"\1" * (stop - at)
                    claims.append((at, stop, token))
                else:
                    stop = claimed.find(0, clash)
                    if stop < 0:
                        break
                at = text.find(marker, stop)
        claims.sort()
        parts: list[str | int] = []
        done = 0
        for start, stop, token in claims:
            if start > done:
                parts.append(text[done:start])
            parts.append(token)
            done = stop
        if done < len(text):
            parts.append(text[done:])
        return parts

    def _possible(self, text: str) -> list[int]:
        """Places in the order (ascending) of the markers that may occur in the text; usually none or a few.

        A vocabulary can hold thousands of markers (Gemma: 6,414), far too many to search a long text for each.
        """
        if self._starts is None:
            return []
        found: set[int] = set()
        for window in set(self._starts.findall(text)):
            for length in self._lengths:
                found.update(self._by_start.get(window[:length], ()))
        return sorted(found)
