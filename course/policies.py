"""Policies of drafting on made-up texts, where only time is of interest: chapter 09 compares them.

A made-up text says for each position whether a draft would be right there.  Several policies meet the same text, so that
what differs between them is their own doing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from fucina.engine.cost_table import CostTable
from fucina.engine.drafts import Draft
from fucina.errors import InvalidOption
from fucina.speculative.cost_gate import CostGate
from fucina.speculative.ledger import Ledger
from fucina.speculative.odds import HitRates, worth
from fucina.speculative.options import Options


class Policy(Protocol):
    """Decides how much each step drafts."""

    state: str

    def choose(self, match: int) -> int:
        """Return how many tokens to verify in this step; 0 is a plain step.

        `match` : how many of the latest tokens the source had right, one after the other.
        """

    def record(self, match: int, accepted: int, drafted: int, cost: float, right: Sequence[bool]) -> None:
        """Learn from the step.  `right` : for each token that it settled, whether the source had it right."""


class Always:
    """Drafts so many tokens in every step, whatever happens."""

    state = "on"

    def __init__(self, drafts: int = 3) -> None:
        self.drafts = drafts

    def choose(self, match: int) -> int:
        """See `Policy`."""
        return self.drafts

    def record(self, match: int, accepted: int, drafted: int, cost: float, right: Sequence[bool]) -> None:
        """See `Policy`."""


class Gated:
    """Drafts when a gate allows it, as much as the gate's budget says.

    Parameters
    ----------
    gate : CostGate
        Or anything with `allows`, `budget`, `record` and `state`.
    comes_back : bool
        Without, the gate is never asked again once it has turned off.
    """

    def __init__(self, gate: Any, comes_back: bool = True) -> None:
        self.gate, self.comes_back = gate, comes_back

    @property
    def state(self) -> str:
        """The gate's."""
        return self.gate.state

    def choose(self, match: int) -> int:
        """See `Policy`."""
        if self.state == "off" and not self.comes_back:
            return 0
        return self.gate.budget() if self.gate.allows() else 0

    def record(self, match: int, accepted: int, drafted: int, cost: float, right: Sequence[bool]) -> None:
        """See `Policy`."""
        if drafted:
            self.gate.record(accepted + 1, accepted, drafted, cost)


class ByOdds:
    """Drafts as the engine does for a source that knows its odds: the number expected to win most, within the ledger.

    Parameters
    ----------
    options : Options
        The cost table, the longest and shortest draft, and the terms of the ledger.
    claims : float, optional
        Odds that the source claims for every token, right or wrong; by default they are counted by the length of the match.
    """

    state = "on"

    def __init__(self, options: Options | None = None, claims: float | None = None) -> None:
        self.options = Options() if options is None else options
        self.claims = claims
        self.rates = HitRates()
        self.ledger = Ledger(self.options)
        self._curve = self.options.table.curve()

    def choose(self, match: int) -> int:
        """See `Policy`."""
        n = self.options.max_draft if self.claims else min(self.options.max_draft, 2 * (1 + match))
        if match < 2 and not self.claims:
            return 0
        odds = [self.claims] * n if self.claims else self.rates.rates(match, n)
        draft = Draft([0] * n, odds)
        return worth(draft, self._curve[1 : n + 2], self._curve, self.ledger.allowance, self.options.min_draft)

    def record(self, match: int, accepted: int, drafted: int, cost: float, right: Sequence[bool]) -> None:
        """See `Policy`."""
        self.ledger.enter(accepted + 1, cost)
        for i, hit in enumerate(right):
            self.rates.record(match + i, bool(hit))
            if not hit:
                break


@dataclass(slots=True)
class Run:
    """What a policy did on a text.

    Attributes
    ----------
    saved : for each token, plain steps saved when it was committed.
    turned_on : how often drafting was turned on again.
    verifies : (position, drafted, accepted, cost) of each.
    """

    saved: np.ndarray
    turned_on: int = 0
    verifies: list[tuple[int, int, int, float]] = field(default_factory=list)


def text_of(*parts: tuple[int, float]) -> np.ndarray:
    """A made-up text from parts (tokens, chance that a draft is right): the chance at each position."""
    return np.concatenate([np.full(tokens, chance) for tokens, chance in parts])


def simulate(chances: np.ndarray, policy: Policy, table: CostTable, seed: int) -> Run:
    """Decode a made-up text with a policy.  The same seed gives the same text to every policy.

    Parameters
    ----------
    chances : for each position, the chance that a draft is right there.
    policy : decides how much each step drafts.
    table : prices of passes, in plain steps.
    seed : of the text.

    Raises
    ------
    InvalidOption : the text is empty, or a chance is none.
    """
    chances = np.asarray(chances, float)
    if chances.ndim != 1 or not len(chances) or not ((chances >= 0) & (chances <= 1)).all():
        raise InvalidOption("a made-up text is a sequence of chances from 0 to 1, one per position")
    right = (np.random.default_rng(seed).random(len(chances)) < chances).tolist()
    curve, n = table.curve(), len(right)
    run = Run(np.zeros(n))
    at, paid, match = 0, 0.0, 0
    while at < n:
        before = policy.state
        drafted = min(policy.choose(match), n - at - 1)
        accepted = next((i for i in range(drafted) if not right[at + i]), drafted)
        cost = curve[drafted + 1] if drafted else 1.0
        settled = right[at : at + accepted + 1]
        paid += cost
        run.saved[at : at + accepted + 1] = at + accepted + 1 - paid
        if drafted:
            run.verifies.append((at, drafted, accepted, cost))
        policy.record(match, accepted, drafted, cost, settled)
        run.turned_on += before != "on" and policy.state == "on"
        for hit in settled:
            match = match + 1 if hit else 0
        at += accepted + 1
    return run


def gate_for(table: CostTable, **settings: Any) -> CostGate:
    """The engine's gate, with a table of its own and other settings of `Options`."""
    return CostGate(Options(cost_table=table, **settings))
