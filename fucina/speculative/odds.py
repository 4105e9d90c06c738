"""How likely drafted tokens are, learned from what happened to earlier ones, and how many of them to verify.

A continuation that follows a match of two tokens is right about every second time, one after twenty tokens nearly
always.  A source that counts this, by the length of the match, knows the odds of each drafted token; the number that
is verified is then the one that is expected to win most: committed tokens less the cost of the pass.  Counting needs no
verify: what a source proposed is compared with whatever was committed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from ..engine.cost_table import best_width
from ..engine.drafts import Draft

MARGIN = 0.1  # plain steps that a draft must be expected to win
DECAY = 0.97  # what earlier trials of a class still count when the next one comes
PRIOR_TRIALS = 8.0
# shortest match of a class, and the part of continuations that was right where nothing is known of the text yet:
# `python -m bench.odds`, rounded
MATCH_PRIOR = (
    (1, 0.2), (2, 0.5), (3, 0.7), (4, 0.78), (5, 0.86), (6, 0.88), (8, 0.92), (11, 0.95), (16, 0.96), (24, 0.97)
)  # fmt: skip
CHAIN_PRIOR = ((0, 0.2),)


class HitRates:
    """How often a source's next token was right, by the length of its match.

    Parameters
    ----------
    prior : (shortest match, rate) of each class of lengths, ascending.
    """

    __slots__ = ("_classes", "_hits", "_prior", "_rates", "_trials")

    def __init__(self, prior: Sequence[tuple[int, float]] = MATCH_PRIOR) -> None:
        edges = [match for match, _ in prior]
        # of every length up to that of the last class
        self._classes = [max(bisect_right(edges, match) - 1, 0) for match in range(edges[-1] + 1)]
        self._prior = [PRIOR_TRIALS * rate for _, rate in prior]
        self._hits = list(self._prior)
        self._trials = [PRIOR_TRIALS] * len(prior)
        self._rates = [rate for _, rate in prior]

    def rate(self, match: int) -> float:
        """Return the odds of a token after a match of `match` tokens: strictly between 0 and 1."""
        return self.rates(match, 1)[0]

    def rates(self, match: int, n: int) -> list[float]:
        """Return the odds of n tokens in a row: the match grows by one with each."""
        rates, classes, last = self._rates, self._classes, len(self._classes) - 1
        return [rates[classes[m if m < last else last]] for m in range(match, match + n)]

    def record(self, match: int, hit: bool) -> None:
        """Enter one trial.  The prior never fades; trials do, so that a text that changes is followed."""
        at = self._classes[min(match, len(self._classes) - 1)]
        prior = self._prior[at]
        self._hits[at] = prior + DECAY * (self._hits[at] - prior) + hit
        self._trials[at] = PRIOR_TRIALS + DECAY * (self._trials[at] - PRIOR_TRIALS) + 1.0
        self._rates[at] = self._hits[at] / self._trials[at]

    def learn(self, match: int, proposed: Sequence[int], committed: Sequence[int]) -> None:
        """Enter a proposal: each of its tokens up to the first that was wrong, as far as the text went."""
        for i, (token, real) in enumerate(zip(proposed, committed, strict=False)):
            self.record(match + i, token == real)
            if token != real:
                break


def best_draft(odds: Iterable[float], costs: Sequence[float], least: int = 1) -> int:
    """Return how many drafts to verify: the number that is expected to win most, or 0 if none wins enough.

    Parameters
    ----------
    odds : of each drafted token, given that those before it were accepted.
    costs : of verifies of 0, 1, 2, ... drafts, in plain steps; no more drafts than it has costs for.
    least : shortest draft that may be verified.
    """
    best, highest, expected, together = 0, MARGIN, 0.0, 1.0
    cheapest, longest = min(costs, default=0.0), len(costs) - 1
    for drafts, chance in zip(range(1, len(costs)), odds, strict=False):
        together *= chance
        expected += together
        won = expected + 1.0 - costs[drafts]
        if drafts >= least and won > highest:
            best, highest = drafts, won
        if expected + together * (longest - drafts) + 1.0 - cheapest <= highest:
            break  # not even if all the others were certain
    return best


def with_redone(costs: Sequence[float], odds: Sequence[float]) -> list[float]:
    """Return the costs of verifies where a state cannot be kept in part: those of rows that are computed again with them.

    A draft that is rejected after a tokens leaves their rows and that of the newest token to the next pass, which
    computes a + 2 rows in place of one.

    costs : of verifies of 0, 1, 2, ... drafts, in plain steps.
    odds : of each drafted token, given that those before it were accepted; those that are missing count as 0.
    """
    redone, together, found = 0.0, 1.0, [costs[0]]
    for accepted in range(len(costs) - 1):
        chance = odds[accepted] if accepted < len(odds) else 0.0
        redone += together * (1.0 - chance) * (costs[accepted + 1] - 1.0)
        together *= chance
        found.append(costs[accepted + 1] + redone)
    return found


def worth(draft: Draft, costs: Sequence[float], curve: Sequence[float], allowance: float, least: int) -> int:
    """Return how many tokens of a draft to verify: the one rule, for every kind of source.

    A draft that could lose more than the allowance is made shorter.  Of what is left, the number of tokens that is
    expected to win most is verified; where a source does not know its odds, the number that makes a row cheapest.

    Parameters
    ----------
    draft : tokens, and their odds if the source knows them.
    costs : of verifies of 0, 1, 2, ... tokens, in plain steps.
    curve : costs of passes of 0, 1, 2, ... rows.
    allowance : plain steps that may be lost.
    least : shortest draft that may be verified.
    """
    drafts = len(draft.tokens)
    while drafts and costs[drafts] + draft.cost > 1.0 + allowance:
        drafts -= 1
    if drafts < least:
        return 0
    if draft.odds is None:
        return best_width(curve, drafts, least)
    return best_draft(draft.odds, [cost + draft.cost for cost in costs[: drafts + 1]], least)
