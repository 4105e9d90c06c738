"""Drafts under a grammar: what must follow drafts itself, and what may not follow is never verified."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from .odds import HitRates
from .source import DraftSource, usable, wants_top_k

TAIL_PRIOR = ((0, 0.8),)
UNLIMITED = 1 << 62  # of token ids: the processor and the drafter know the vocabulary


class Structure(Protocol):
    """A processor that knows what may follow: `fucina.sampling.Constraint`, or one of your own."""

    # may have `tail_token() -> int | None`: after these, a token that spells the rest, which a longer one may replace

    def forced_tokens(self, limit: int) -> Sequence[int]:
        """Return at most `limit` tokens that spell what must follow; none where there is a choice."""

    def valid_prefix(self, tokens: Sequence[int]) -> int:
        """Return how many of `tokens`, from the first on, may follow."""


class ConstrainedSource:
    """Another source of drafts, under a grammar.

    Where the grammar leaves one text, that text is the draft, with odds of 1.  Its last token may be the beginning of a
    longer one; how often it is not is counted, and gives its odds.  Elsewhere the other source drafts, and its draft is
    cut at the first token that the grammar refuses, before it is paid for.  Neither can change a token: each row is still
    masked, sampled and compared.

    Parameters
    ----------
    processor : the one that the stream's sampler has.
    inner : DraftSource
    """

    def __init__(self, processor: Structure, inner: DraftSource) -> None:
        self.processor, self.inner = processor, inner
        self._certain, self._tail = 0, -1  # forced tokens of the latest draft, and the one after them
        self._tails = HitRates(TAIL_PRIOR)
        if wants_top_k(inner):
            self.observe_top_k = inner.observe_top_k  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> Any:
        """Whatever else the other source has: references, counts, `restart`."""
        if name in ("inner", "observe_top_k"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    def forced(self, limit: int) -> list[int]:
        """Return what must follow, as a draft; none where there is a choice."""
        tokens = list(self.processor.forced_tokens(limit))[:limit]
        self._certain, self._tail = len(tokens), -1
        tail = getattr(self.processor, "tail_token", None)
        if 0 < len(tokens) < limit and tail is not None and (token := tail()) is not None:
            self._tail = token
            tokens.append(token)
        return tokens

    def suggest(self, context: Sequence[int], limit: int) -> Sequence[int]:
        """See `DraftSource`; raises InvalidDraft where the other source returns no sequence of tokens."""
        if forced := self.forced(limit):
            return forced
        draft, length = usable(self.inner.suggest(context, limit), limit, UNLIMITED, (), self.inner)
        valid = self.processor.valid_prefix(draft) if draft else 0
        if valid < length:
            self.truncate_pending(valid)
        return draft[:valid]

    def odds(self, n: int) -> Sequence[float] | None:
        """See `DraftSource`; None where the other source does not know them."""
        if self._certain:
            return [*[1.0] * min(n, self._certain), *self._tails.rates(0, max(n - self._certain, 0))]
        return self.inner.odds(n) if callable(getattr(self.inner, "odds", None)) else None  # type: ignore[attr-defined]

    def truncate_pending(self, n: int) -> None:
        """See `DraftSource`: the other source is told if the draft was its own."""
        if not self._certain and callable(getattr(self.inner, "truncate_pending", None)):
            self.inner.truncate_pending(n)  # type: ignore[attr-defined]

    def observe(self, committed: Sequence[int]) -> None:
        """See `DraftSource`."""
        if self._tail >= 0 and len(committed) > self._certain:
            self._tails.record(0, committed[self._certain] == self._tail)
        self._certain, self._tail = 0, -1
        self.inner.observe(committed)


def inner_source(source: Any) -> Any:
    """Return the source inside a `ConstrainedSource`, or the source itself."""
    return source.inner if isinstance(source, ConstrainedSource) else source
