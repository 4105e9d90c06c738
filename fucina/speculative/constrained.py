"""Drafts under a grammar: what must follow drafts itself, and what may not follow is never verified."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from .odds import HitRates
from .source import DraftSource, usable, wants_top_k

# How often a model spells forced text as its tokenizer would, by the number of tokens since the text began; and where it
# has just spelled some in another way.  Few schemas: the tokens of a text soon count for more.
AS_USUAL = ((0, 0.995), (1, 0.95), (2, 0.995))
OTHERWISE = ((0, 0.5), (1, 0.95))
TAIL = ((0, 0.8),)
LIKELY = 0.4  # odds of another source's draft from which on the grammar is asked what must follow it
UNLIMITED = 1 << 62  # of token ids: the processor and the drafter know the vocabulary


class Structure(Protocol):
    """A processor that knows what may follow: `fucina.sampling.Constraint`, or one of your own."""

    # may have `tail_token() -> int | None`: after these, a token that spells the rest, which a longer one may replace;
    # and `ahead(tokens) -> Structure | None`: itself as it would be after some tokens, None where they may not follow

    def forced_tokens(self, limit: int) -> Sequence[int]:
        """Return at most `limit` tokens that spell what must follow; none where there is a choice."""

    def valid_prefix(self, tokens: Sequence[int]) -> int:
        """Return how many of `tokens`, from the first on, may follow."""


class Span(NamedTuple):
    """Tokens that spell forced text.

    spelled : those that no longer token swallows.
    tail : one more, which may be the beginning of a longer token; or none.
    """

    spelled: list[int]
    tail: list[int]

    @classmethod
    def of(cls, structure: Structure | None, limit: int) -> Span:
        """What must follow, at most `limit` tokens."""
        if structure is None or limit < 1:
            return cls([], [])
        spelled = list(structure.forced_tokens(limit))[:limit]
        tail = getattr(structure, "tail_token", None)
        token = None if tail is None or len(spelled) == limit else tail()
        return cls(spelled, [] if token is None else [token])

    @property
    def tokens(self) -> list[int]:
        """All of them."""
        return self.spelled + self.tail


class ConstrainedSource:
    """Another source of drafts, under a grammar.

    Where the grammar leaves one text, that text is the draft.  The model may spell it in another way than the tokenizer;
    how often it does is counted, and gives the odds.  Elsewhere the other source drafts.  Its draft is cut at the first
    token that the grammar refuses, before it is paid for, and what must follow the rest is put after it.  Nothing here
    can change a token: each row is still masked, sampled and compared.

    Parameters
    ----------
    processor : the one that the stream's sampler has.
    inner : DraftSource
    """

    def __init__(self, processor: Structure, inner: DraftSource) -> None:
        self.processor, self.inner = processor, inner
        self._own, self._span = 0, Span([], [])  # of the latest draft: tokens of the other source, and forced ones
        self._spelling, self._otherwise, self._tails = HitRates(AS_USUAL), HitRates(OTHERWISE), HitRates(TAIL)
        self._differs = False  # whether the forced text before this was spelled in another way
        if wants_top_k(inner):
            self.observe_top_k = inner.observe_top_k  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> Any:
        """Whatever else the other source has: references, counts, `restart`."""
        if name in ("inner", "observe_top_k"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    def forced(self, limit: int) -> list[int]:
        """Return what must follow, as a draft; none where there is a choice."""
        self._own, self._span = 0, Span.of(self.processor, limit)
        return self._span.tokens

    def suggest(self, context: Sequence[int], limit: int) -> Sequence[int]:
        """See `DraftSource`; raises InvalidDraft where the other source returns no sequence of tokens."""
        if forced := self.forced(limit):
            return forced
        draft, length = usable(self.inner.suggest(context, limit), limit, UNLIMITED, (), self.inner)
        own = self._own = self.processor.valid_prefix(draft) if draft else 0
        if own < length and callable(getattr(self.inner, "truncate_pending", None)):
            self.inner.truncate_pending(own)  # type: ignore[attr-defined]
        ahead = getattr(self.processor, "ahead", None)
        if 0 < own < limit and ahead is not None and math.prod(self.odds(own) or (0.0,)) >= LIKELY:
            self._span = Span.of(ahead(draft[:own]), limit - own)
        return draft[:own] + self._span.tokens

    def odds(self, n: int) -> Sequence[float] | None:
        """See `DraftSource`; None where the other source does not know those of its tokens."""
        own, spelled = self._own, len(self._span.spelled)
        first: Sequence[float] = ()
        if own:
            if not callable(getattr(self.inner, "odds", None)):
                return None
            first = self.inner.odds(min(n, own))  # type: ignore[attr-defined]
        forced = self._rates.rates(0, min(max(n - own, 0), spelled))
        return [*first, *forced, *self._tails.rates(0, max(n - own - spelled, 0))]

    @property
    def _rates(self) -> HitRates:
        """Those that the forced tokens of the latest draft belong to."""
        return self._otherwise if self._differs and not self._own else self._spelling

    def truncate_pending(self, n: int) -> None:
        """See `DraftSource`: the other source is told of its own part."""
        if self._own and callable(getattr(self.inner, "truncate_pending", None)):
            self.inner.truncate_pending(min(n, self._own))  # type: ignore[attr-defined]

    def observe(self, committed: Sequence[int]) -> None:
        """See `DraftSource`."""
        forced = list(committed[self._own :])  # none unless all before was accepted
        spelled, tail = self._span
        if forced:
            self._rates.learn(0, spelled, forced)
            if tail and len(forced) > len(spelled) and forced[: len(spelled)] == spelled:
                self._tails.record(0, forced[len(spelled)] == tail[0])
            self._differs = forced[: len(spelled)] != spelled[: len(forced)]
        self._own, self._span = 0, Span([], [])
        self.inner.observe(committed)


def inner_source(source: Any) -> Any:
    """Return the source inside a `ConstrainedSource`, or the source itself."""
    return source.inner if isinstance(source, ConstrainedSource) else source
