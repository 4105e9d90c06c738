"""Added tokens as a `tokenizer.json` describes them: found in the text before anything else is done to it.

Of the tokens that begin at the same place the longest counts, and what begins further left counts first.  (GGUF files do
not say how; there the order is that of llama.cpp, see `markers.py`.)  Then three rules of each token's own:

- `single_word`: not inside a word, so that no letter, digit or underscore touches it;
- `lstrip`, `rstrip`: white space on that side is taken along.

Tokens with `normalized` are looked for in what the normalizer has made of the text, all others in the text itself.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from .markers import NO_WRITERS
from .normalize import Normalizer

if TYPE_CHECKING:
    import regex


@dataclass(frozen=True, slots=True)
class AddedToken:
    """One entry of `added_tokens`."""

    text: str
    token: int
    special: bool = False
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


@dataclass(frozen=True, slots=True)
class AddedTokens:
    """The added tokens of a file, and how it normalizes text."""

    tokens: Sequence[AddedToken] = ()
    normalizers: Sequence[Normalizer] = field(default=())

    def matcher(self, special: bool) -> AddedMatcher:
        """What finds all of them, or with `special` False all but the special ones."""
        return AddedMatcher([t for t in self.tokens if special or not t.special], self.normalizers)


class AddedMatcher:
    """Finds added tokens in texts and normalizes what is between them."""

    __slots__ = ("_in_normalized", "_in_text", "_normalizers")

    def __init__(self, tokens: Sequence[AddedToken], normalizers: Sequence[Normalizer]) -> None:
        self._normalizers = normalizers
        self._in_text = _Finder([(t.text, t) for t in tokens if not t.normalized])
        self._in_normalized = _Finder([(self._normal(t.text), t) for t in tokens if t.normalized])

    def split(self, text: str, writers: bytes = b"", barred: Mapping[int, bytes] = NO_WRITERS) -> list[str | int]:
        """As `MarkerMatcher.split`; the raw pieces are normalized.

        Where normalizing changes a piece, it is no longer known who wrote which character of it: then no character of
        the whole piece may have been written by one of whom the token is barred.
        """
        parts: list[str | int] = []
        done = 0
        for start, stop, token in [*self._in_text.find(text, writers, barred), (len(text), len(text), None)]:
            if start > done:
                raw = text[done:start]
                normal = self._normal(raw)
                wrote = writers[done:start]
                if normal != raw and wrote:
                    wrote = bytes(set(wrote))
                    refused = {t for t, who in barred.items() if any(w in wrote for w in who)}
                    parts += self._in_normalized.pieces(normal, b"", {}, refused)
                else:
                    parts += self._in_normalized.pieces(normal, wrote, barred)
            if token is not None:
                parts.append(token)
            done = stop
        return parts

    def _normal(self, text: str) -> str:
        for step in self._normalizers:
            text = step(text)
        return text


class _Finder:
    __slots__ = ("_by_text", "_lengths", "_starts")

    def __init__(self, tokens: Sequence[tuple[str, AddedToken]]) -> None:
        self._by_text = {text: token for text, token in tokens if text}
        lengths: dict[str, set[int]] = defaultdict(set)
        for text in self._by_text:
            lengths[text[0]].add(len(text))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        first = "".join(re.escape(c) for c in sorted(lengths))
        self._starts = re.compile(f"[{first}]") if first else None

    def pieces(
        self, text: str, writers: bytes, barred: Mapping[int, bytes], refused: set[int] | None = None
    ) -> list[str | int]:
        parts: list[str | int] = []
        done = 0
        for start, stop, token in self.find(text, writers, barred, refused):
            if start > done:
                parts.append(text[done:start])
            parts.append(token)
            done = stop
        if done < len(text):
            parts.append(text[done:])
        return parts

    def find(
        self, text: str, writers: bytes, barred: Mapping[int, bytes], refused: set[int] | None = None
    ) -> list[tuple[int, int, int]]:
        """Start, stop and id of every token in the text, from left to right, with the white space that it takes along."""
        if self._starts is None:
            return []
        found: list[tuple[int, int, int]] = []
        at = 0  # where matching goes on
        done = 0  # where the last token ended, with its white space
        while match := self._starts.search(text, at):
            at = match.start()
            token, stop = self._longest(text, at)
            if token is None:
                at += 1
                continue
            start = at
            if refused and token.token in refused:
                at += 1
                continue
            if writers and any(writers.find(who, start, stop) >= 0 for who in barred.get(token.token, b"")):
                at += 1
                continue
            at = stop
            if token.single_word and (_is_word(text[start - 1 : start]) or _is_word(text[stop : stop + 1])):
                continue
            if token.lstrip:
                while start > done and _is_space(text[start - 1]):
                    start -= 1
            if token.rstrip:
                while stop < len(text) and _is_space(text[stop]):
                    stop += 1
            found.append((start, stop, token.token))
            at = done = stop
        return found

    def _longest(self, text: str, at: int) -> tuple[AddedToken | None, int]:
        """The longest token that begins there, and where it ends."""
        for length in self._lengths[text[at]]:
            token = self._by_text.get(text[at : at + length])
            if token is not None:
                return token, at + length
        return None, at


def _is_space(character: str) -> bool:
    return character.isspace() and character not in "\x1c\x1d\x1e\x1f"


@cache
def _word_characters() -> regex.Pattern[str]:
    import regex

    return regex.compile(r"[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]")  # what the library's \w means


def _is_word(character: str) -> bool:
    return _word_characters().match(character) is not None
