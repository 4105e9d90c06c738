"""Byte-level BPE: the tokenizer of GPT-2, Llama 3, Qwen, SmolLM and many others.

1. Markers (`<|im_end|>`) are cut out of the text.  2. Pre-tokenizer rules cut the rest into words.  3. Each word starts
as single bytes, and the pair of neighbours that comes first in the list of merges is joined, again and again, until no
neighbours are in the list.  What is left are tokens.

The vocabulary is stored as text, so each byte needs a printable stand-in: the bytes that print stand for themselves,
and the other 68 are shifted to U+0100 and above.  That is why a space shows as `Ġ` (U+0120) in such vocabularies.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from ..checks import shown
from ..errors import UnsupportedTokenizerFormat
from .base import Tokenizer
from .batch import PairTable
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
_LONG_TEXT = 1 << 17  # characters of new words for which the tables of the kernel are worth building
_SHORT_TEXT = 1 << 11  # and for which calling it is, once they are there


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
                    f"merge {place} of tokenizer.ggml.merges is {shown(pair)}; expected two symbols with a space between"
                )
        # Keyed by the entry as it is in the file: nothing to split at load.  No symbol holds a space (it shows as Ġ).
        self._rank = dict(zip(reversed(merges), range(len(merges) - 1, -1, -1), strict=True))
        # Control tokens are not reachable by merges, so that markers in ordinary text stay text.
        self._ids = vocabulary.index(self._HIDDEN, first_wins=True)
        self._rules = rules
        self._words: dict[str, tuple[int, ...]] = {}
        self._table: PairTable | None = None  # built when a text is long enough

    def _encode_raw(self, text: str, after_marker: bool, ids: list[int]) -> None:
        self._append(self._rules.cut(text), ids)

    def _append(self, words: list[str], ids: list[int]) -> None:
        """Append the ids of words, none empty."""
        known = self._words
        different = dict.fromkeys(words)
        new = [word for word in different if word not in known]
        if new:
            # `known` may forget while words are entered, so what this text needs is gathered first.
            tokens = {word: known[word] for word in different if word in known}
            tokens.update(self._encode_words(new))
            known = tokens
        ids.extend(chain.from_iterable(map(known.__getitem__, words)))

    def _encode_words(self, words: list[str]) -> dict[str, tuple[int, ...]]:
        """Tokens of words that are not remembered."""
        size = sum(map(len, words))
        if size < (_LONG_TEXT if self._table is None else _SHORT_TEXT):
            return {word: self._encode_word(word) for word in words}
        if self._table is None:
            self._table = self._pair_table()
        tokens: dict[str, tuple[int, ...]] = {}
        joined = [word for word in words if not self._is_whole(word)]
        for word, found in zip(joined, self._table.encode(joined), strict=True):
            if found is not None:
                tokens[word] = found
                self._remember(word, found)
        for word in words:
            if word not in tokens:
                tokens[word] = self._encode_word(word)
        return tokens

    def _pair_table(self) -> PairTable:
        return PairTable(self._rank, self._ids, BYTE_ALPHABET)

    def _encode_word(self, word: str) -> tuple[int, ...]:
        symbols = self._symbols(word)
        tokens: list[int] = []
        missing: list[int] = []
        if self._is_whole(word):
            tokens.append(self._ids[b"".join(symbols)])
        else:
            for piece in merge(symbols, self._cost):
                token = self._ids.get(piece)
                if token is None:  # a merge that leads to no token
                    self._spell_out(piece, tokens, missing)
                else:
                    tokens.append(token)
        if missing:  # not remembered, so that the next such text warns as well
            self._warn_unencodable(missing)
        else:
            self._remember(word, tuple(tokens))
        return tuple(tokens)

    def _remember(self, word: str, tokens: tuple[int, ...]) -> None:
        if len(word) <= _CACHED_LENGTH:
            if len(self._words) >= CACHED_WORDS:
                self._words.clear()
            self._words[word] = tokens

    def _is_whole(self, word: str) -> bool:
        """Whether the word becomes the token with its spelling, whatever the merges lead to."""
        return self._rules.ignore_merges and b"".join(self._symbols(word)) in self._ids

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
