"""One stream's part of a pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from .call import Hidden
from .hidden import HiddenStream
from .stream import Stream


@dataclass(slots=True)
class Work:
    """One stream's part of a pass: its next `rows` pending tokens, and a draft after the last of them.

    first : the first of these tokens, as an index into the stream's; the state was read once, when this was planned.
    joins : the rows are a chunk of many, a prompt's: they take what the others leave.
    """

    stream: Stream
    first: int
    rows: int
    draft: Sequence[int] = ()
    joins: bool = False

    @classmethod
    def next_of(cls, stream: Stream, most: int, joins: bool = False) -> Self:
        """The next pending tokens of a stream, at most so many, and not past its cut."""
        first = stream.cached
        end = stream.cut if first < stream.cut else len(stream.tokens)
        return cls(stream, first, min(end - first, most), joins=joins)

    @property
    def tokens(self) -> list[int]:
        """Tokens whose rows the pass computes."""
        return [*self.stream.tokens[self.first : self.first + self.rows], *self.draft]

    @property
    def wanted(self) -> int:
        """Of how many rows, the last ones, the logits are wanted, or the hidden states of a `HiddenStream`."""
        last = self.first + self.rows == len(self.stream.tokens)
        if isinstance(self.stream, HiddenStream):
            return self.stream.wanted(self.rows, last)
        return 1 + len(self.draft) if last else 0

    @property
    def want(self) -> int | Hidden:
        """What the engine is asked for."""
        return Hidden(self.wanted) if isinstance(self.stream, HiddenStream) else self.wanted

    @property
    def in_place(self) -> bool:
        """Whether the pass has put the rows where they belong: nobody has rewound the state since the planning."""
        return self.stream.cached == self.first
