"""Text that records, character by character, who wrote it: the template, or somebody else.

A control token such as `<|im_end|>` may come from a template's own words alone.  Templates take texts apart and put them
together again, so each character carries its origin, in a `Text`, which templates use like any `str`.  A character is
the template's own only where that is recorded: an operation that is not written here gives a plain `str`, and a plain
`str` counts as written by somebody else.

Each operation takes its result from `str` and keeps origins only where they add up to the same text, so that a template
sees, and makes, exactly what it would with plain strings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from ..tokenizers.markers import ASSISTANT, TEMPLATE, USER

if TYPE_CHECKING:
    from ..tokenizers import Tokenizer

# Who wrote a character: somebody else; the template; the assistant, in a message; the same, in one that is to be continued.
FOREIGN, OWN, REPLY, BEGUN = range(4)

_FIELD = re.compile(r"%(?:\(([^)]*)\))?[-#0 +]*\d*(?:\.\d+)?[hlL]?([a-zA-Z%])")


class Text(str):
    """A string with the origins of its characters; made by `own`, `of_reply`, and by operations on such strings.

    Origins are bytes of the same length.  Operations give a plain `str` where all characters are foreign.
    """

    __slots__ = ("_origins",)
    _origins: bytes

    def __str__(self) -> str:
        return self

    def __format__(self, form: str) -> str:
        return str.__format__(self, form) if form else self

    def __add__(self, other: str) -> str:
        return joined((self, other)) if isinstance(other, str) and not hasattr(other, "__html__") else NotImplemented

    def __radd__(self, other: str) -> str:
        return joined((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, times: Any) -> str:
        text = str.__mul__(self, times)
        return _text(text, self._origins * times)

    __rmul__ = __mul__

    def __getitem__(self, place: Any) -> str:
        text = str.__getitem__(self, place)
        return _text(text, self._origins[place] if isinstance(place, slice) else bytes([self._origins[place]]))

    def __iter__(self) -> Iterator[str]:
        for character, origin in zip(str.__iter__(self), self._origins, strict=True):
            yield _text(character, bytes([origin]))

    # --- cutting --------------------------------------------------------------------------------------------------

    def _cut(self, pieces: Iterable[str], gap: int = 0) -> list[str]:
        """Give pieces of this text, which follow each other in it with `gap` characters between them, their origins."""
        found, start = [], 0
        for piece in pieces:
            found.append(_text(piece, self._origins[start : start + len(piece)]))
            start += len(piece) + gap
        return found

    def _words(self, pieces: list[str]) -> list[str]:
        """`_cut` for pieces with some white space between them, which none of them begins with."""
        found, end = [], 0
        for piece in pieces:
            start = self.index(piece, end)
            end = start + len(piece)
            found.append(_text(piece, self._origins[start:end]))
        return found

    def lstrip(self, characters: str | None = None) -> str:
        text = str.lstrip(self, characters)
        return _text(text, self._origins[len(self) - len(text) :])

    def rstrip(self, characters: str | None = None) -> str:
        text = str.rstrip(self, characters)
        return _text(text, self._origins[: len(text)])

    def strip(self, characters: str | None = None) -> str:
        text, start = str.strip(self, characters), len(self) - len(str.lstrip(self, characters))
        return _text(text, self._origins[start : start + len(text)])

    def removeprefix(self, prefix: str) -> str:
        text = str.removeprefix(self, prefix)
        return _text(text, self._origins[len(self) - len(text) :])

    def removesuffix(self, suffix: str) -> str:
        text = str.removesuffix(self, suffix)
        return _text(text, self._origins[: len(text)])

    def split(self, sep: str | None = None, maxsplit: Any = -1) -> list[str]:  # type: ignore[override]
        pieces = str.split(self, sep, maxsplit)
        return self._words(pieces) if sep is None else self._cut(pieces, len(sep))

    def rsplit(self, sep: str | None = None, maxsplit: Any = -1) -> list[str]:  # type: ignore[override]
        pieces = str.rsplit(self, sep, maxsplit)
        return self._words(pieces) if sep is None else self._cut(pieces, len(sep))

    def splitlines(self, keepends: bool = False) -> list[str]:
        lines = self._cut(str.splitlines(self, True))
        bare = lines if keepends else str.splitlines(self)
        return [line[: len(text)] for line, text in zip(lines, bare, strict=True)]

    def partition(self, sep: str) -> tuple[str, str, str]:
        return tuple(self._cut(str.partition(self, sep)))  # type: ignore[return-value]

    def rpartition(self, sep: str) -> tuple[str, str, str]:
        return tuple(self._cut(str.rpartition(self, sep)))  # type: ignore[return-value]

    # --- putting together -----------------------------------------------------------------------------------------

    def join(self, items: Iterable[str]) -> str:
        items = list(items)
        return _text(str.join(self, items), self._origins.join(map(origins, items)))

    def replace(self, old: str, new: str, count: Any = -1) -> str:  # type: ignore[override]
        text = str.replace(self, old, new, count)
        mine, size = self._origins, len(self)
        if old:
            kept, start = [], 0
            for piece in str.split(self, old, count):
                kept.append(mine[start : start + len(piece)])
                start += len(piece) + len(old)
        else:  # `new` goes before each of the first characters, and after the last one
            times = size + 1 if count < 0 else min(count, size + 1)
            kept = [b"", *(mine[i : i + 1] for i in range(times - 1)), mine[times - 1 :]] if times else [mine]
        return _text(text, origins(new).join(kept))

    def __mod__(self, values: Any) -> str:
        text = str.__mod__(self, values)
        rest = iter(values if isinstance(values, tuple) else (values,))
        pieces, end = [], 0
        for field in _FIELD.finditer(self):
            pieces.append(self[end : field.start()])
            end, (name, kind) = field.end(), field.groups()
            if kind == "%":
                pieces.append(self[end - 1 : end])
                continue
            value = values[name] if name is not None and isinstance(values, Mapping) else next(rest, None)
            plain = f"%{field[0].rpartition(')')[2][1:]}" if name is None else "%" + field[0].rpartition(")")[2]
            pieces.append(
                value if plain == "%s" and isinstance(value, (Text, SafeText)) else str.__mod__(plain, (value,))
            )
        return _same(text, [*pieces, self[end:]])

    # --- letters --------------------------------------------------------------------------------------------------

    def lower(self) -> str:
        return respelled(self, str.lower(self))

    def upper(self) -> str:
        return respelled(self, str.upper(self))

    def casefold(self) -> str:
        return respelled(self, str.casefold(self))

    def capitalize(self) -> str:
        return respelled(self, str.capitalize(self))

    def title(self) -> str:
        return respelled(self, str.title(self))

    def swapcase(self) -> str:
        return respelled(self, str.swapcase(self))


class SafeText(Markup):
    """What the filter `safe` makes of a text: it escapes what is added to it.  Few operations keep the origins here."""

    __slots__ = ("_origins",)
    _origins: bytes

    def __str__(self) -> str:
        return _text(plain(self), origins(self))

    def __add__(self, other: Any) -> Any:
        made = Markup(plain(self)) + other  # a TypeError, if it is no text
        return safe(_same(plain(made), [self, other]))

    def __radd__(self, other: Any) -> Any:
        made = other + Markup(plain(self)) if type(other) is Markup else Markup.escape(other) + Markup(plain(self))
        return safe(_same(plain(made), [other, self]))

    def __getitem__(self, place: Any) -> Any:
        return safe(str(self)[place])

    def strip(self, characters: str | None = None) -> Any:
        return safe(str(self).strip(characters))

    def lstrip(self, characters: str | None = None) -> Any:
        return safe(str(self).lstrip(characters))

    def rstrip(self, characters: str | None = None) -> Any:
        return safe(str(self).rstrip(characters))


def safe(value: Any) -> SafeText:
    """Return a value marked as safe, with the origins of its characters."""
    made = str.__new__(SafeText, plain(Markup(value)))
    found = origins(value) if isinstance(value, str) else b""
    made._origins = found if len(found) == len(made) else bytes(len(made))
    return made


def _text(text: str, origins: bytes) -> str:
    """Return `text` with the origins of its characters; a plain str if all are foreign, or there are not as many."""
    if origins.count(FOREIGN) == len(origins) or len(text) != len(origins):
        return text
    made = str.__new__(Text, text)
    made._origins = bytes(origins)
    return made


def _same(text: str, pieces: list[str]) -> str:
    """Return `pieces` joined, if that is `text`; otherwise `text` as a foreign one."""
    whole = joined(pieces)
    return whole if str.__eq__(whole, text) else text


def own(text: str) -> str:
    """Return a text that the template wrote."""
    return _text(text, bytes([OWN]) * len(text))


def of_reply(text: str, begun: bool = False) -> str:
    """Return a text that the assistant wrote; `begun`: it is to be found again in what a template makes of it."""
    return _text(text, bytes([BEGUN if begun else REPLY]) * len(text))


def traced(text: str) -> Text:
    """Return any string as a `Text`, whose operations keep the origins of what they are given."""
    if isinstance(text, Text):
        return text
    made = str.__new__(Text, text)
    made._origins = bytes(len(text))
    return made


def origins(text: str) -> bytes:
    """Return who wrote each character."""
    known = getattr(text, "_origins", b"") if isinstance(text, (Text, SafeText)) else b""
    return known or bytes(len(text))


def joined(pieces: Iterable[str]) -> str:
    """Return strings one after another; each keeps its origins."""
    pieces = list(pieces)
    text = "".join(pieces)
    return _text(text, b"".join(map(origins, pieces))) if any(isinstance(p, (Text, SafeText)) for p in pieces) else text


def respelled(before: str, after: str) -> str:
    """Return `after`, which has other letters than `before` in the same places; foreign if places may have moved."""
    return _text(str(after), origins(before)) if len(before) == len(after) else after


def plain(text: str) -> str:
    """Return a text as an ordinary `str`."""
    return str.__str__(text)


def encode(tokenizer: Tokenizer, text: str, template: str) -> list[int]:
    """Return the token ids of a rendered text; markers come from characters of its template alone.

    Parameters
    ----------
    tokenizer : of the model.
    text : what was rendered.
    template : source of the template, which shows what it uses as markers.
    """
    return tokenizer.encode_rendered(plain(text), origins(text).translate(_WRITERS), tokenizer.barred(template))


_WRITERS = bytes([USER, TEMPLATE, ASSISTANT, ASSISTANT]) + bytes(252)
