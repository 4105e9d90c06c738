"""Turning a stream of tokens into text that can be shown at once.

A token is a run of *bytes*, and a character may take up to four of them: "🙂" is two tokens of SmolLM2, and neither is
text by itself.  A decoder that translated token by token would print two replacement characters instead.
"""

from __future__ import annotations

import codecs
from typing import Protocol


class Speller(Protocol):
    """What a stream needs of a tokenizer: the bytes of a token, in the middle of a text and at its beginning."""

    def piece(self, token: int, special: bool = True) -> bytes: ...

    def first_piece(self, token: int, special: bool = True) -> bytes: ...


class StreamDecoder:
    """Decodes one token at a time; made by `Tokenizer.stream`.

    `push` gives the characters that are complete by now and holds back the bytes of one that is not.  `flush` ends the
    text: held-back bytes become U+FFFD, exactly as `Tokenizer.decode` treats bytes that are not UTF-8.  So for any ids

        "".join(map(stream.push, ids)) + stream.flush() == tokenizer.decode(ids, special)

    What was given out is final: text is never taken back and never repeated.  After `flush` a new text begins.
    """

    __slots__ = ("_special", "_started", "_tokenizer", "_utf8")

    def __init__(self, tokenizer: Speller, special: bool = False, begins: bool = True) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._started = not begins

    def push(self, token: int) -> str:
        """Take the next token; give the text that is now complete (often, but not always, the token's own text).

        Raises
        ------
        TokenOutOfRange
            The id is not in [0, n_vocab); the decoder is unchanged.
        """
        if self._started:
            raw = self._tokenizer.piece(token, self._special)
        else:
            raw = self._tokenizer.first_piece(token, self._special)
            self._started = True
        return self._utf8.decode(raw)

    def flush(self) -> str:
        """End the text: give U+FFFD for a character that was cut off, or nothing."""
        rest = self._utf8.decode(b"", True)
        self._utf8.reset()
        self._started = False
        return rest
