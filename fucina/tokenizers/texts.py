"""Texts that come in, and who gave them."""

from __future__ import annotations

import sys

from ..errors import InvalidText
from .vocabulary import spelling


def checked_text(text: str | bytes) -> str:
    """The text as a str in which a surrogate can only stand for a byte that is not UTF-8."""
    if isinstance(text, (bytes, bytearray, memoryview)):
        return spelling(bytes(text))
    if not isinstance(text, str):
        raise TypeError(f"a text is str or bytes, not {type(text).__name__}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidText(
            f"character {error.start} of the text is the unpaired surrogate U+{ord(text[error.start]):04X}; "
            "expected Unicode text (bytes that are not UTF-8 can be given as bytes)"
        ) from None
    return text


def outside() -> int:
    """How far up the caller of this package is, as `stacklevel` of a warning that the caller of this function issues."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__package__") == __package__:
        level, frame = level + 1, frame.f_back
    return level
