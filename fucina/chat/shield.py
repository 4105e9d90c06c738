"""Keeps control markers that message text spells from becoming control tokens.

Before rendering, a noncharacter is put into every marker inside message text, and into the ends of a text that could
become one beside what the template writes.  After rendering, whatever marker is still whole was written by the
template; the noncharacter is dropped from the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ..errors import ChatTemplateError
from ..tokenizers.markers import MarkerMatcher
from .messages import map_strings

if TYPE_CHECKING:
    from ..tokenizers import Tokenizer

_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]  # never assigned, never in proper text


class ControlMarkers:
    """The control markers of one tokenizer, indexed for looking at the ends of a text; made once by `of`."""

    def __init__(self, tokenizer: Tokenizer):
        markers = tokenizer.control_markers
        self._matcher = MarkerMatcher(markers)
        self._text_of = {token: text for text, token in markers.items()}
        self._heads = {text[:n] for text in markers for n in range(1, len(text))}
        self._tails = {text[n:] for text in markers for n in range(1, len(text))}
        self._longest = max(map(len, markers), default=0)

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> ControlMarkers:
        """Return the markers of a tokenizer; kept for as long as it lives."""
        known = _INDEXED.get(tokenizer)
        if known is None:
            known = _INDEXED[tokenizer] = cls(tokenizer)
        return known

    def split(self, text: str, mark: str) -> str:
        """Return `text` with `mark` inside every marker, and inside what may be the head or the tail of one."""
        parts = self._matcher.split(text)
        while any(isinstance(part, int) for part in parts):  # again, since overlapping markers are found in turn
            text = "".join(
                part if isinstance(part, str) else self._text_of[part][0] + mark + self._text_of[part][1:]
                for part in parts
            )
            parts = self._matcher.split(text)
        for n in range(1, min(self._longest, len(text) + 1)):
            if text[-n:] in self._heads:  # the template may write the rest of it
                text = text[: len(text) - n + 1] + mark + text[len(text) - n + 1 :]
                break
        if any(text[:n] in self._tails for n in range(1, min(self._longest, len(text) + 1))):
            text = mark + text
        return text

    def encode(self, tokenizer: Tokenizer, text: str, mark: str) -> list[int]:
        """Return the ids of a rendered text: whole markers are control tokens, everything else is plain text."""
        ids: list[int] = []
        for part in self._matcher.split(text):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids.extend(tokenizer.encode(part.replace(mark, ""), special=False))
        return ids


_INDEXED: WeakKeyDictionary[Tokenizer, ControlMarkers] = WeakKeyDictionary()


def unused_character(*values: Any) -> str:
    """Return a noncharacter that occurs in none of the strings inside `values`."""
    seen: set[str] = set()

    def look(text: str) -> str:
        seen.update(c for c in _NONCHARACTERS if c in text)
        return text

    map_strings(look, list(values))
    for character in _NONCHARACTERS:
        if character not in seen:
            return character
    raise ChatTemplateError("the messages use all 32 noncharacters U+FDD0 to U+FDEF; at least one must be left")


def with_bos(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """Return `ids` with BOS in front if the tokenizer wants one and it is not there yet."""
    if tokenizer.add_bos and tokenizer.bos is not None and ids[:1] != [tokenizer.bos]:
        return [tokenizer.bos, *ids]
    return ids
