"""Policies of drafting on made-up texts: prices add up, the same text for every policy, and what chapter 09 says of them."""

from __future__ import annotations

import numpy as np
import pytest

from course.policies import Always, ByOdds, Gated, Policy, gate_for, simulate, text_of
from fucina.errors import InvalidOption
from fucina.speculative import CostGate, CostTable, Options

TABLE = CostTable.of([(1, 1.0), (2, 1.25), (4, 1.6), (5, 2.2), (8, 2.8), (9, 3.3), (17, 5.2)])
OPTIONS = Options(cost_table=TABLE)
QUOTATION = text_of((500, 0.10), (600, 0.95), (500, 0.10))


def test_a_text_that_is_always_right_by_hand() -> None:
    """Nine tokens: a verify of three commits four, twice; one token is left and needs no draft."""
    run = simulate(np.ones(9), Always(3), TABLE, seed=0)
    assert run.verifies == [(0, 3, 3, 1.6), (4, 3, 3, 1.6)]
    assert run.saved.tolist() == pytest.approx([2.4] * 4 + [4.8] * 5)


def test_a_text_that_is_never_right_by_hand() -> None:
    run = simulate(np.zeros(5), Always(3), TABLE, seed=0)
    assert [accepted for _, _, accepted, _ in run.verifies] == [0, 0, 0, 0]
    assert run.saved[-1] == pytest.approx(5 - (1.6 + 1.6 + TABLE.cost(3) + 1.25 + 1.0))


def test_every_policy_meets_the_same_text() -> None:
    """Where two policies verify at the same place, one sees at least as many right tokens as the shorter draft allows."""
    short, long = (simulate(QUOTATION, Always(n), TABLE, seed=3) for n in (2, 7))
    at = {where: accepted for where, _, accepted, _ in long.verifies}
    both = [(accepted, at[where]) for where, _, accepted, _ in short.verifies if where in at]
    assert len(both) > 50
    assert all(a == min(b, 2) for a, b in both[:-5])


@pytest.mark.parametrize(
    "policy", [Always(3), Gated(CostGate(OPTIONS)), Gated(CostGate(OPTIONS), comes_back=False), ByOdds(OPTIONS)]
)
def test_the_account_of_a_run_is_that_of_its_verifies(policy: Policy) -> None:
    run = simulate(QUOTATION, policy, TABLE, seed=1)
    verified = sum(accepted + 1 for _, _, accepted, _ in run.verifies)
    paid = sum(cost for *_, cost in run.verifies) + len(QUOTATION) - verified
    assert run.saved[-1] == pytest.approx(len(QUOTATION) - paid)
    assert len(run.saved) == len(QUOTATION)


@pytest.mark.parametrize("seed", range(5))
def test_whatever_a_source_claims_the_ledger_holds(seed: int) -> None:
    for chance in (0.0, 0.05, 0.3):
        run = simulate(text_of((3000, chance)), ByOdds(OPTIONS, claims=0.99), TABLE, seed)
        assert (-run.saved <= 1 + 0.01 * np.arange(1, 3001) + 1e-6).all()


def test_what_chapter_09_says_of_the_four_policies() -> None:
    """Averages over twenty texts: always loses, the gate finds the quotation late and leaves it late, odds do neither."""
    ends: dict[str, list[float]] = {}
    at_end_of_quotation = []
    for seed in range(20):
        policies: dict[str, Policy] = {
            "always": Always(),
            "once": Gated(CostGate(OPTIONS), comes_back=False),
            "gate": Gated(CostGate(OPTIONS)),
            "odds": ByOdds(OPTIONS),
        }
        for name, policy in policies.items():
            run = simulate(QUOTATION, policy, TABLE, seed)
            ends.setdefault(name, []).append(float(run.saved[-1]))
            if name == "gate":
                at_end_of_quotation.append(float(run.saved[1099]))
    means = {name: float(np.mean(values)) for name, values in ends.items()}
    assert means["always"] < means["once"] < 0 < means["gate"] < means["odds"]
    assert means["gate"] < 0.8 * np.mean(at_end_of_quotation)
    assert 0 < sum(end < 0 for end in ends["gate"]) < 6  # "in a few of the twenty texts it never finds it"


def test_the_gate_gives_up_most_of_a_small_win() -> None:
    text = text_of((20_000, 0.45))
    same_length = {"adapt_budget": False, "max_draft": 3}
    gate, always = (
        np.mean([simulate(text, make(), TABLE, seed).saved[-1] for seed in range(5)])
        for make in (lambda: Gated(gate_for(TABLE, **same_length)), Always)
    )
    assert 0 < gate < 0.2 * always


@pytest.mark.parametrize("chances", [[], [[0.5]], [0.5, 1.5], [float("nan")]])
def test_a_text_that_is_none_is_refused(chances: list) -> None:
    with pytest.raises(InvalidOption, match="chances"):
        simulate(np.array(chances), Always(), TABLE, seed=0)
