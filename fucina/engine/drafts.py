"""What the engine and its drafters exchange.

A drafter proposes tokens that may come next; the scheduler verifies them in the pass that computes the newest token's
row anyway.  A draft changes how many tokens are committed by a pass, never which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .stream import Stream


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that may come next.

    Attributes
    ----------
    tokens : token ids, the next one first.
    odds : how likely each token is right, given that those before it are; None where that is not known.
    cost : what making the draft took, in plain steps (a draft model's passes; 0 for a look into an index).
    """

    tokens: Sequence[int] = ()
    odds: Sequence[float] | None = None
    cost: float = 0.0


NO_DRAFT = Draft()


@dataclass(frozen=True, slots=True)
class PassStats:
    """What one pass was made of, and how long it took.

    Attributes
    ----------
    streams : streams that decoded in it.
    rows : rows of these streams.
    drafted : how many of the rows were drafted tokens.
    context : positions before these rows, averaged over the streams.
    seconds : wall time of the pass.
    prefill : further rows, of prompts; with any, the price of drafts cannot be learned from the seconds.
    """

    streams: int
    rows: int
    drafted: int
    context: float
    seconds: float
    prefill: int = 0


@dataclass(frozen=True, slots=True)
class Verified:
    """What became of a stream in a pass: given to its drafter after the tokens are committed.

    Attributes
    ----------
    draft : tokens that were verified; empty in a plain step.
    committed : tokens that the stream gained, the correction or bonus included.
    sampled : rows that were sampled: those of the committed tokens, and that of a stop token.
    rows : float32 [1 + len(draft), vocab], logits after the newest token and after each drafted one.
    stats : of the pass.
    redone : rows of tokens that an earlier pass had accepted and could not keep, computed again.
    of_prompt : the row is the last one of a prompt: prefill computes it anyway, so it is no step of decoding.
    whole : False if an exception broke off the sampling.
    """

    draft: Sequence[int]
    committed: Sequence[int]
    sampled: int
    rows: np.ndarray
    stats: PassStats
    redone: int = 0
    of_prompt: bool = False
    whole: bool = True

    @property
    def accepted(self) -> int:
        """Drafted tokens that were committed."""
        return common_prefix(self.committed, self.draft)


class Drafter:
    """Drafts for one stream.  This one never does; others override what they need.

    The calls of one step: `draft` before the pass, `learn` after it.  A step whose pass fails has no `learn`.
    """

    def draft(self, stream: Stream, limit: int, streams: int) -> Draft:
        """Return what the next pass should verify.

        Parameters
        ----------
        stream : whose text goes on; not to be changed.
        limit : at most this many tokens.
        streams : how many streams decode in the pass.
        """
        return NO_DRAFT

    @classmethod
    def draft_many(cls, asked: Sequence[tuple[Drafter, Stream, int]], streams: int) -> list[Draft | Exception]:
        """Draft for several streams of one pass; a class whose drafters share work (a draft model) overrides this.

        Parameters
        ----------
        asked : (drafter, stream, limit) of each, all drafters of this class.
        streams : how many streams decode in the pass, these included.

        Returns
        -------
        Per stream its draft, or the error that ends this stream alone.
        """
        drafts: list[Draft | Exception] = []
        for drafter, stream, limit in asked:
            try:
                drafts.append(drafter.draft(stream, limit, streams))
            except Exception as error:
                drafts.append(error)
        return drafts

    def learn(self, stream: Stream, verified: Verified) -> None:
        """Learn from a step of the stream."""

    def shared_with(self, other: Drafter) -> str | None:
        """Return what this drafter shares with another stream's although it belongs to one stream; None if nothing."""
        return "drafter" if self is other else None


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many leading items of two sequences are equal."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next((i for i in range(n) if a[i] != b[i]), n)
