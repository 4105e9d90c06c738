"""SentencePiece with scores, as Llama 2 and Gemma use it.

There is no list of merges: any two neighbours whose concatenation is a token may be joined, and the pair with the
highest score goes first.  Symbols are characters, not bytes; a character outside the vocabulary is spelt by byte tokens
(`<0xE2>`).  A space is written `▁` (U+2581) and belongs to the word after it.

The score rule cares about neighbours only, so a text may be cut wherever no token could lie across the cut.  Nearly
every place in front of a `▁` is one, and the words between such cuts repeat: their ids are remembered, as in
byte-level BPE.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable

import numpy as np

from ..checks import shown
from ..errors import UnsupportedTokenizerFormat
from .base import Tokenizer
from .bpe import CACHED_WORDS
from .merging import merge
from .vocabulary import TokenType, Vocabulary, raw_bytes, spelling

SPACE = "\u2581"
_CACHED_LENGTH = 64  # characters


class SentencePieceTokenizer(Tokenizer):
    """Merging by score, as llama.cpp does it.

    Parameters
    ----------
    vocabulary
        Tokens with `▁` for a space.  Of equal spellings the last one counts.
    scores
        float32 [n_vocab]: the higher, the earlier.
    add_space_prefix
        Put a space in front of the text and after every marker, before tokenizing (Llama 2 does, Gemma does not).
        Decoding drops one space at the very beginning again.
    pre
        See `Tokenizer`; without effect here.

    Notes
    -----
    ``decode(encode(text)) == text.replace("\\u2581", " ")``: a `▁` in a text has the tokens of a space, whatever the
    settings.  With `add_space_prefix` there is one more exception: text after a marker (a user-defined token is one,
    too) gets a space in front, as llama.cpp does it.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        scores: np.ndarray,
        add_space_prefix: bool = True,
        pre: str = "",
    ) -> None:
        super().__init__(vocabulary, pre)
        if len(scores) != self.n_vocab:
            raise UnsupportedTokenizerFormat(
                f"tokenizer.ggml.scores has {len(scores)} entries; expected {self.n_vocab}, one per token"
            )
        if np.isnan(scores).any():
            raise UnsupportedTokenizerFormat("tokenizer.ggml.scores holds NaN; expected numbers that can be compared")
        self.add_space_prefix = add_space_prefix
        # Control tokens are not reachable by merging, so that markers in ordinary text stay text; nor are byte tokens,
        # so that the text "<0x0A>" does not become a line feed.
        hidden = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.BYTE)
        self._ids = vocabulary.index(hidden, first_wins=False)
        self._costs = array("f", (-scores.astype(np.float32)).tobytes())
        self._byte_ids = byte_tokens(vocabulary)
        self._cut: re.Pattern[str] | None = None
        self._words: dict[str, tuple[int, ...]] = {}

    def _encode_raw(self, text: str, after_marker: bool, ids: list[int]) -> None:
        if after_marker and self.add_space_prefix:
            text = " " + text
        if self._cut is None:
            self._cut = safe_cuts(self._ids)
        known = self._words
        for word in self._cut.split(text.replace(" ", SPACE)):
            if word:
                tokens = known.get(word)
                ids.extend(self._encode_word(word) if tokens is None else tokens)

    def _encode_word(self, word: str) -> tuple[int, ...]:
        tokens: list[int] = []
        missing: list[int] = []
        # Every joined piece is a token, so one that is not is a single character: it is spelt byte by byte.
        for piece in merge([raw_bytes(character) for character in word], self._cost):
            token = self._ids.get(piece)
            if token is not None:
                tokens.append(token)
                continue
            for byte in piece:
                token = self._byte_ids.get(byte)
                if token is None:  # no <0x41>: a token of that one byte, else the unknown token
                    token = self._ids.get(bytes((byte,)), self.vocabulary.unk)
                if token is None:
                    missing.append(byte)
                else:
                    tokens.append(token)
        result = tuple(tokens)
        if missing:  # not remembered, so that the next such text warns as well
            self._warn_unencodable(missing)
            return result
        if len(word) <= _CACHED_LENGTH:
            if len(self._words) >= CACHED_WORDS:
                self._words.clear()
            self._words[word] = result
        return result

    def _cost(self, left: bytes, right: bytes) -> float | None:
        token = self._ids.get(left + right)
        return None if token is None else self._costs[token]

    def _print(self, token: int) -> bytes:
        raw = self.vocabulary.tokens[token]
        kind = self.vocabulary.types[token]
        if kind == TokenType.BYTE:
            return bytes((byte_value(raw),))
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED):
            return raw
        return raw.replace(SPACE.encode(), b" ")

    def first_piece(self, token: int, special: bool = True) -> bytes:
        raw = self.piece(token, special)
        if self.add_space_prefix and raw[:1] == b" " and not self._is_marker(token):
            return raw[1:]
        return raw

    def _is_marker(self, token: int) -> bool:
        markers = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
        return self.vocabulary.types[token] in markers

    def _find_normal(self, text: str) -> int | None:
        return self._ids.get(raw_bytes(text.replace(" ", SPACE)))


def byte_value(raw: bytes) -> int:
    """0x41 of `<0x41>`."""
    if re.fullmatch(rb"<0x[0-9A-Fa-f]{2}>", raw) is None:
        raise UnsupportedTokenizerFormat(f"the byte token {shown(raw)} should be spelt like <0x41>")
    return int(raw[3:5], 16)


def byte_tokens(vocabulary: Vocabulary) -> dict[int, int]:
    """Byte -> id of its token `<0x41>`."""
    return {byte_value(vocabulary.tokens[token]): token for token in vocabulary.of_types(TokenType.BYTE)}


def safe_cuts(tokens: Iterable[bytes]) -> re.Pattern[str]:
    """Matches the (empty) places in front of a `▁` that no token lies across.

    These are all places but those after a character that some token has in front of an inner `▁`.
    """
    space = SPACE.encode()
    crossing = [spelling(raw) for raw in tokens if raw.find(space, 1) > 0]
    before = {text[at - 1] for text in crossing for at in range(1, len(text)) if text[at] == SPACE}
    look_behind = f"(?<![{''.join(map(re.escape, sorted(before)))}])" if before else ""
    return re.compile(f"{look_behind}(?={SPACE})")
