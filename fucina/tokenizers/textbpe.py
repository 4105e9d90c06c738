"""BPE over characters, as Gemma 4 uses it: the vocabulary of SentencePiece, joined by a list of merges.

There are no stand-ins.  A space is written `▁` (U+2581), a character that no token spells becomes byte tokens
(`<0xE2>`), and merges may run over a whole line.  As in SentencePiece a line may be cut wherever no merge leads across;
nearly every place in front of a `▁` is one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .batch import PairTable
from .bpe import BytePairTokenizer
from .pretokenize import PreTokenizer
from .spm import SPACE, byte_tokens, byte_value, safe_cuts
from .vocabulary import TokenType, Vocabulary, raw_bytes


class TextPairTokenizer(BytePairTokenizer):
    """BPE over characters with byte tokens.

    Parameters
    ----------
    vocabulary
        Tokens with `▁` for a space.  Of equal spellings the first one counts.
    merges
        `b"left right"`, the merge of highest rank first.
    rules
        The pre-tokenizer; applied after spaces have become `▁`.
    pre
        See `Tokenizer`.
    space_prefix
        The text got a space in front before this; decoding drops one at the very beginning again.
    """

    # Byte tokens are not reachable by merges, so that the text "<0x0A>" does not become a line feed.
    _HIDDEN = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.BYTE)

    def __init__(
        self,
        vocabulary: Vocabulary,
        merges: Sequence[bytes],
        rules: PreTokenizer,
        pre: str = "",
        space_prefix: bool = False,
    ) -> None:
        super().__init__(vocabulary, merges, rules, pre)
        self._space_prefix = space_prefix
        self._byte_ids = byte_tokens(vocabulary)
        self._cut: re.Pattern[str] | None = None

    def _encode_raw(self, text: str, after_marker: bool, ids: list[int]) -> None:
        if self._cut is None:
            self._cut = safe_cuts(pair.replace(b" ", b"", 1) for pair in self._rank)
        lines = self._rules.cut(text.replace(" ", SPACE))
        self._append([word for line in lines for word in self._cut.split(line) if word], ids)

    def _is_whole(self, word: str) -> bool:
        if self._rules.whole_line_ends and not word.strip("\n") and word.encode() in self._ids:
            return True
        return super()._is_whole(word)

    def _pair_table(self) -> PairTable:
        return PairTable(self._rank, self._ids)

    def _symbols(self, word: str) -> list[bytes]:
        return list(map(raw_bytes, word))

    def _spell_out(self, piece: bytes, tokens: list[int], missing: list[int]) -> None:
        for byte in piece:
            token = self._byte_ids.get(byte, self.vocabulary.unk)
            if token is None:
                missing.append(byte)
            else:
                tokens.append(token)

    def _print(self, token: int) -> bytes:
        raw = self.vocabulary.tokens[token]
        kind = self.vocabulary.types[token]
        if kind == TokenType.BYTE:
            return bytes((byte_value(raw),))
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN):
            return raw
        return raw.replace(SPACE.encode(), b" ")

    def first_piece(self, token: int, special: bool = True) -> bytes:
        raw = self.piece(token, special)
        marker = self.vocabulary.types[token] in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
        return raw[1:] if self._space_prefix and raw[:1] == b" " and not marker else raw

    def _find_normal(self, text: str) -> int | None:
        return self._ids.get(raw_bytes(text.replace(" ", SPACE)))

    @property
    def unencodable(self) -> frozenset[int]:
        """Bytes that have no token of their own."""
        return frozenset(range(256)) - self._byte_ids.keys()
