"""What a `tokenizer.json` does to a text before it cuts it into words.

The Unicode forms are those of Python's `unicodedata`.  It sorts the combining marks of a character by insertion, which
takes n * n steps for n marks in the wrong order; so long runs are sorted here first, by their class and otherwise in the
order in which they are, as Unicode defines it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal, cast

from ..errors import UnsupportedTokenizerFormat

if TYPE_CHECKING:
    import regex

Normalizer = Callable[[str], str]
_FORMS = ("NFC", "NFD", "NFKC", "NFKD")


def unicode_form(form: Literal["NFC", "NFD", "NFKC", "NFKD"], text: str) -> str:
    """The text in one of the four forms of Unicode, in time that grows with its length alone."""
    if text.isascii():
        return text
    return unicodedata.normalize(form, _long_runs().sub(lambda run: _in_order(run.group()), text))


def as_text(value: Any) -> str:
    """A text of the file: TypeError for anything else, UnicodeEncodeError for half a surrogate, which JSON can spell."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    value.encode()
    return value


def _in_order(marks: str) -> str:
    return "".join(sorted(marks, key=unicodedata.combining))


@cache
def _long_runs() -> regex.Pattern[str]:
    import regex

    return regex.compile(r"\P{ccc=0}{32,}")


def normalizers(described: Mapping[str, Any] | None) -> list[Normalizer]:
    """The steps of a `normalizer` of a `tokenizer.json`, in order.

    Raises
    ------
    UnsupportedTokenizerFormat
        A kind that is not implemented; it is named.
    """
    if described is None:
        return []
    kind = described.get("type")
    if kind == "Sequence":
        return [step for part in described["normalizers"] for step in normalizers(part)]
    if kind in _FORMS:
        return [partial(unicode_form, cast('Literal["NFC"]', kind))]
    if kind == "Replace" and isinstance(old := described["pattern"].get("String"), str) and old:
        new = as_text(described["content"])
        return [lambda text: text.replace(old, new)]
    if kind == "Prepend":
        first = as_text(described["prepend"])
        return [lambda text: first + text if text else text]
    what = f"{kind!r} with {described.get('pattern')!r}" if kind == "Replace" else repr(kind)
    raise UnsupportedTokenizerFormat(
        f"tokenizer.json has the normalizer {what}, which is not implemented; expected one of {', '.join(_FORMS)}, "
        "Replace of a string, Prepend, or a Sequence of them"
    )
