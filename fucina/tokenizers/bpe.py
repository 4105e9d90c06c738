"""Byte-level BPE: the tokenizer of GPT-2, Llama 3, Qwen, SmolLM and many others.

1. Markers (`<|im_end|>`) are cut out of the text.  2. Pre-tokenizer rules cut the rest into words.  3. Each word starts
as single bytes, and the pair of neighbours that comes first in the list of merges is joined, again and again, until no
neighbours are in the list.  What is left are tokens.

The vocabulary is stored as text, so each byte needs a printable stand-in: the bytes that print stand for themselves,
and the other 68 are shifted to U+0100 and above.  That is why a space shows as `Ġ` (U+0120) in such vocabularies.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UnsupportedTokenizerFormat
from .base import Tokenizer
from .merging import merge
from .pretokenize import PreTokenizer
from .vocabulary import TokenType, Vocabulary, raw_bytes, spelling

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in set(_PRINTABLE)]
_STAND_IN = {byte: chr(byte) for byte in _PRINTABLE} | {byte: chr(256 + n) for n, byte in enumerate(_OTHERS)}
_BYTE_OF = {stand_in: byte for byte, stand_in in _STAND_IN.items()}
BYTE_ALPHABET: tuple[bytes, ...] = tuple(_STAND_IN[byte].encode() for byte in range(256))  # the stand-in of each byte

CACHED_WORDS = 1 << 16  # words whose ids are remembered; text repeats its words, so nearly all are found
_CACHED_LENGTH = 64  # characters; longer words hardly ever come again


class BytePairTokenizer(Tokenizer):
    """Byte-level BPE with the rules of one pre-tokenizer.

    Parameters
    ----------
    vocabulary
        Tokens, spelt with stand-ins.  Of equal spellings the first one counts.
    merges
        `b"left right"`, the merge of highest rank first.
    rules
        The pre-tokenizer.
    pre
        See `Tokenizer`.
    """

    _HIDDEN: tuple[TokenType, ...] = (TokenType.CONTROL, TokenType.UNKNOWN)

    def __init__(
        self,
        vocabulary: Vocabulary,
        merges: Sequence[bytes],
        rules: PreTokenizer,
        pre: str = "",
    ) -> None:
        super().__init__(vocabulary, pre)
        for place, pair in enumerate(merges):
            if b" " not in pair:
                raise UnsupportedTokenizerFormat(
                    f"merge {place} of tokenizer.ggml.merges is {pair!r}; expected two symbols with a space between"
                )
        # Keyed by the entry as it is in the file: nothing to split at load.  No symbol holds a space (it shows as Ġ).
        self._rank = dict(zip(reversed(merges), range(len(merges) - 1, -1, -1), strict=True))
        # Control tokens are not reachable by merges, so that markers in ordinary text stay text.
        self._ids = vocabulary.index(self._HIDDEN, first_wins=True)
        self._rules = rules
        self._words: dict[str, tuple[int, ...]] = {}

    def _encode_raw(self, text: str, after_marker: bool, ids: list[int]) -> None:
        known = self._words
        for word in self._rules.cut(text):
            tokens = known.get(word)
            ids.extend(self._encode_word(word) if tokens is None else tokens)

    def _encode_word(self, word: str) -> tuple[int, ...]:
        symbols = self._symbols(word)
        whole = self._ids.get(b"".join(symbols)) if self._is_whole(word) else None
        tokens: list[int] = []
        missing: list[int] = []
        for piece in merge(symbols, self._cost) if whole is None else ():
            token = self._ids.get(piece)
            if token is None:  # a merge that leads to no token
                self._spell_out(piece, tokens, missing)
            else:
                tokens.append(token)
        if missing:  # not remembered, so that the next such text warns as well
            self._warn_unencodable(missing)
            return tuple(tokens)
        result = tuple(tokens) if whole is None else (whole,)
        if len(word) <= _CACHED_LENGTH:
            if len(self._words) >= CACHED_WORDS:
                self._words.clear()
            self._words[word] = result
        return result

    def _is_whole(self, word: str) -> bool:
        """Whether the word becomes the token with its spelling, if there is one, whatever the merges lead to."""
        return self._rules.ignore_merges

    def _symbols(self, word: str) -> list[bytes]:
        """What merging begins with."""
        return list(map(BYTE_ALPHABET.__getitem__, raw_bytes(word)))

    def _spell_out(self, piece: bytes, tokens: list[int], missing: list[int]) -> None:
        """Append the tokens of single bytes of a piece that is no token, and which bytes have none."""
        for stand_in in piece.decode():
            token = self._ids.get(stand_in.encode())
            if token is None:
                missing.append(_BYTE_OF[stand_in])
            else:
                tokens.append(token)

    def _cost(self, left: bytes, right: bytes) -> int | None:
        return self._rank.get(left + b" " + right)

    def _print(self, token: int) -> bytes:
        raw = self.vocabulary.tokens[token]
        if self.vocabulary.types[token] not in (TokenType.NORMAL, TokenType.UNDEFINED, TokenType.BYTE):
            return raw
        try:
            return bytes(map(_BYTE_OF.__getitem__, spelling(raw)))
        except KeyError:  # an added token that is spelt as plain text
            return raw

    def _find_normal(self, text: str) -> int | None:
        return self._ids.get(b"".join(self._symbols(text)))

    @property
    def unencodable(self) -> frozenset[int]:
        """Bytes that no token spells (SmolLM2 lacks 0x04, 0x06, … and the bytes that UTF-8 never uses)."""
        return frozenset(byte for byte in range(256) if BYTE_ALPHABET[byte] not in self._ids)
