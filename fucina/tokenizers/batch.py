"""Byte-pair encoding of many words at once, by a compiled kernel.

Text repeats its words, so a tokenizer remembers their tokens and seldom has to join anything.  But a long text in Chinese
has hundreds of thousands of different words, and a megabyte of one letter is a single word of a million symbols.  There the
loop of `merging.merge` takes microseconds per byte, and this takes tenths of one.  Its tables take a moment to build, so
tokenizers begin to use it when a text is long enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .vocabulary import raw_bytes, spelling

_LUMP = 1 << 22  # symbols that are joined in one call, where words allow


class PairTable:
    """A vocabulary and its merges in tables for the kernel.

    Parameters
    ----------
    ranks
        `b"left right"` to its rank.
    ids
        Spelling to token.
    alphabet
        Spelling of the symbol of each byte; None: symbols are characters.
    """

    def __init__(
        self, ranks: Mapping[bytes, int], ids: Mapping[bytes, int], alphabet: Sequence[bytes] | None = None
    ) -> None:
        self._limit = 1 + max(ids.values(), default=-1)  # symbols from here on are no tokens
        numbers = dict(ids)
        free = self._limit
        pairs = np.empty((len(ranks), 2), np.int64)
        for place, (pair, rank) in enumerate(ranks.items()):
            left, _, right = pair.partition(b" ")
            three = []
            for part in (left, right, left + right):
                number = numbers.get(part)
                if number is None:
                    number = numbers[part] = free
                    free += 1
                three.append(number)
            pairs[place] = three[0] << 32 | three[1], rank << 32 | three[2]
        self._table = np.full((1 << (2 * len(ranks) + 1).bit_length(), 2), -1, np.int64)
        from ..kernels import merges  # here, so that short texts import no numba

        merges.filler()(self._table, pairs)
        self._bytes = alphabet is not None
        if alphabet is not None:
            self._symbol = np.array([numbers.get(part, -1) for part in alphabet], np.int32)
        else:
            self._symbol = np.full(0x110000, -1, np.int32)
            for part, number in numbers.items():
                if len(part) <= 4 and len(text := spelling(part)) == 1:
                    self._symbol[ord(text)] = number

    def encode(self, words: Sequence[str]) -> list[tuple[int, ...] | None]:
        """Tokens of each word; None for a word of which some symbol is no token in the end."""
        tokens: list[tuple[int, ...] | None] = []
        lump: list[str] = []
        size = 0
        for word in words:
            lump.append(word)
            size += len(word)
            if size >= _LUMP:
                tokens += self._encode_lump(lump)
                lump, size = [], 0
        return tokens + self._encode_lump(lump)

    def _encode_lump(self, words: list[str]) -> list[tuple[int, ...] | None]:
        if not words:
            return []
        if self._bytes:
            raw = list(map(raw_bytes, words))
            symbols = self._symbol[np.frombuffer(b"".join(raw), np.uint8)]
            lengths = np.fromiter(map(len, raw), np.int64, len(words))
        else:
            codes = "".join(words).encode("utf-32-le", "surrogatepass")
            symbols = self._symbol[np.frombuffer(codes, np.uint32)]
            lengths = np.fromiter(map(len, words), np.int64, len(words))
        longest = int(lengths.max())
        starts = np.zeros(len(words) + 1, np.int64)
        np.cumsum(lengths, out=starts[1:])
        ends = np.empty(len(words), np.int64)
        work = (np.empty(longest, np.int32), np.empty(longest, np.int32), np.empty(2 * longest, np.int64))
        from ..kernels import merges

        merges.merger()(self._table, symbols, starts, ends, *work)
        kept = np.zeros(len(symbols) + 1, np.int8)  # 1 from the start of each word to its new end
        kept[starts[:-1]] += 1
        kept[ends] -= 1
        symbols = symbols[np.cumsum(kept[:-1], dtype=np.int8).view(bool)]
        stops = np.cumsum(ends - starts[:-1])
        bad = (symbols < 0) | (symbols >= self._limit)
        failed = np.add.reduceat(bad, stops - (ends - starts[:-1]), dtype=np.int64) > 0
        found = symbols.tolist()
        tokens: list[tuple[int, ...] | None] = []
        begin = 0
        for stop, lost in zip(stops.tolist(), failed.tolist(), strict=True):
            tokens.append(None if lost else tuple(found[begin:stop]))
            begin = stop
        return tokens
