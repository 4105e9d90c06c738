"""Odds of drafted tokens, the draft that is worth most, and the bound on what drafts may cost."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fucina.engine import PassStats, Scheduler, Stream, Verified, VerifyCost
from fucina.errors import InvalidOption
from fucina.sampling import Sampler
from fucina.speculative import CascadeOptions, CostGate, CostTable, Options, SamIndex, SourceDrafter, SpeculationIndex
from fucina.speculative.ledger import MOST_RISKED, Ledger
from fucina.speculative.odds import (
    CHAIN_PRIOR,
    DECAY,
    MARGIN,
    MATCH_PRIOR,
    PRIOR_TRIALS,
    HitRates,
    best_draft,
    with_redone,
)
from tests.spec_toys import Replay, ToyModel, decode, start

PROMPT = [3, 1, 4]
chances = st.lists(st.floats(0, 1), max_size=16)


@given(chances, st.floats(0, 1), st.floats(0, 2), st.integers(1, 4))
def test_the_best_draft_is_the_best_of_all(odds, slope, step, least):
    def cost(n):
        return 1 + step * (n > 3) + slope * n

    def won(n):
        return 1 + sum(math.prod(odds[: i + 1]) for i in range(n)) - cost(n)

    found = best_draft(odds, [cost(n) for n in range(len(odds) + 1)], least)
    allowed = range(least, len(odds) + 1)
    if found:
        assert found in allowed and won(found) > MARGIN
        assert won(found) >= max(won(n) for n in allowed) - 1e-9
    else:
        assert all(won(n) <= MARGIN + 1e-9 for n in allowed)


def test_best_draft_of_nothing_and_of_nonsense():
    assert best_draft([], [1.0] * 5) == 0 and best_draft([1.0], [1.0]) == 0
    assert best_draft([math.nan] * 4, [1.0] * 5) == 0
    assert best_draft([1.0] * 4, [math.inf] * 5) == 0
    assert best_draft([1.0] * 8, [1.0] * 9) == 8
    assert best_draft(itertools.repeat(1.0), [1.0] * 4) == 3  # a source that says too much


def test_rates_begin_with_the_prior_and_follow_the_text():
    for prior in (MATCH_PRIOR, CHAIN_PRIOR):
        rates = HitRates(prior)
        for match, rate in prior:
            assert rates.rate(match) == pytest.approx(rate)
    rates = HitRates()
    assert rates.rate(7) == rates.rate(6) and rates.rate(10_000) == rates.rate(24)
    for _ in range(500):
        rates.record(2, hit=False)
    assert rates.rate(2) < 0.15 and rates.rate(3) == pytest.approx(0.7)
    for _ in range(500):
        rates.record(2, hit=True)
    assert rates.rate(2) > 0.85


@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=200))
def test_rates_are_decayed_counts_on_top_of_the_prior(trials):
    rates = HitRates()
    for match, hit in trials:
        rates.record(match, hit)
    edges = [match for match, _ in MATCH_PRIOR]
    for at, (edge, prior) in enumerate(MATCH_PRIOR):
        upper = edges[at + 1] if at + 1 < len(edges) else math.inf
        mine = [hit for match, hit in trials if max(match, edges[0]) >= edge and max(match, edges[0]) < upper]
        weights = [DECAY**i for i in range(len(mine))][::-1]
        hits = PRIOR_TRIALS * prior + sum(w for w, hit in zip(weights, mine, strict=True) if hit)
        assert rates.rate(edge) == pytest.approx(hits / (PRIOR_TRIALS + sum(weights)))
        assert 0 < rates.rate(edge) < 1


def test_a_proposal_teaches_up_to_its_first_error():
    rates, twin = HitRates(), HitRates()
    rates.learn(2, [5, 6, 7, 8], [5, 6, 9, 8])
    for match, hit in ((2, True), (3, True), (4, False)):
        twin.record(match, hit)
    assert [rates.rate(m) for m in range(2, 30)] == [twin.rate(m) for m in range(2, 30)]
    before = rates.rate(2)
    rates.learn(2, [5, 6], [5])  # the text went no further
    assert rates.rate(2) > before and rates.rate(3) == twin.rate(3)


# --- the index --------------------------------------------------------------------------------------------------------


def test_odds_of_the_index_grow_with_the_match_and_are_learned_without_verifying():
    index = SpeculationIndex(64, CascadeOptions(recycling_chain=0))
    assert index.odds(3) == []
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 2, 3]
    index.observe(text)
    assert index.suggest(text, 4) == [4, 5, 6, 7]
    odds = index.odds(4)
    assert odds == pytest.approx([0.5, 0.7, 0.78, 0.86])
    index.truncate_pending(0)  # nothing is verified
    index.observe([4])
    text.append(4)
    index.suggest(text, 4)
    assert index.odds(1) == pytest.approx([0.7])
    index.observe([60])  # the match of 3 went on differently
    index.observe([1, 2])
    assert index.suggest([*text, 60, 1, 2], 1) == [3]
    assert index.odds(1)[0] > 0.5  # the first time, a match of 2 was right
    index.restart()
    assert index.odds(1) == []


def test_recycled_chains_have_odds_of_their_own():
    index = SpeculationIndex(64)
    index.observe([7, 8])
    assert index.suggest([9, 7], 3) == [8]
    assert index.odds(1) == pytest.approx([0.2])
    index.clear_references()
    assert index.odds(1) == []


# --- the bound --------------------------------------------------------------------------------------------------------


def test_the_allowance_is_credit_and_a_part_of_the_steps_and_what_was_won():
    ledger = Ledger(Options(max_loss=0.01, loss_credit=1.0))
    assert ledger.allowance == 1.0
    for _ in range(99):
        ledger.enter(sampled=1, cost=1.0)
    ledger.enter(sampled=0, cost=1.0)  # a step that was broken off
    assert ledger.allowance == pytest.approx(1.0)
    ledger.enter(sampled=2, cost=1.0)
    assert ledger.allowance == pytest.approx(1.0 + 1.02)
    ledger.enter(sampled=1, cost=1.5)
    assert ledger.allowance == pytest.approx(1.0 + 1.03 - 0.5)
    for _ in range(9):
        ledger.enter(sampled=5, cost=1.5)
    assert ledger.allowance == pytest.approx(1.0 + 0.01 * 148 + MOST_RISKED)
    assert Ledger(Options(min_speedup=0)).allowance == math.inf
    assert Ledger(Options(loss_credit=math.inf)).allowance == math.inf


@pytest.mark.parametrize("field", ["max_loss", "loss_credit"])
@pytest.mark.parametrize("bad", [-0.1, math.nan, "1", None, True])
def test_bad_bounds_are_named(field, bad):
    with pytest.raises(InvalidOption, match=field):
        Options(**{field: bad})


class Odd:
    """A source whose drafts are wrong, or right, by a plan, and whose odds are what it likes."""

    def __init__(self, text, right, odds):
        self.text, self.right, self.chance = text, right, odds
        self.calls = 0

    def suggest(self, context, limit):
        self.calls += 1
        draft = self.text[len(context) : len(context) + limit]
        return draft if self.right(self.calls) else [(t + 1) % 24 for t in draft]

    def observe(self, committed):
        pass


class Boaster(Odd):
    def odds(self, n):
        return itertools.repeat(self.chance, n)


PLANS = {
    "never right": lambda call: False,
    "right once in four": lambda call: call % 4 == 0,
    "right at first, then never": lambda call: call < 30,
    "always right": lambda call: True,
}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("boasts", [True, False])
def test_whatever_a_source_does_little_is_lost(plan, boasts):
    model, n = ToyModel(), 400
    text = plain_text(n)
    source = (Boaster if boasts else Odd)(text, PLANS[plan], 0.99)
    log = []
    options = Options(cost_table=[(1, 1.0), (17, 5.0)])
    drafter = SourceDrafter(model, source, options, timed=False, on_step=log.append)
    assert decode(model, start(model, PROMPT, 500, None, drafter, max_tokens=n)) == text
    paid, worst, done = 0.0, 0.0, 1  # the first token comes with the prompt
    for record in log:
        paid, done = paid + record.cost, done + record.committed
        worst = max(worst, paid - (done - 1))
    assert done == n
    assert worst <= options.loss_credit + options.max_loss * n + 1e-9
    assert any(r.kind == "verify" for r in log)
    if plan == "always right":
        assert paid < n / 2


def test_odds_that_are_no_odds_draft_nothing():
    model = ToyModel()
    source = Boaster(list(range(20)) * 5, PLANS["always right"], math.nan)
    drafter = SourceDrafter(model, source, timed=False)
    decode(model, start(model, PROMPT, 500, None, drafter, max_tokens=8))
    assert drafter.stats.drafted == 0 and source.calls > 0


def test_a_gate_of_ones_own_sets_the_budget_even_where_odds_are_known():
    class Narrow(CostGate):
        def budget(self):
            return 3

    for gate, widest in ((Narrow(), 3), (None, 16)):
        model, log = ToyModel(), []
        source = Boaster([7] * 90, PLANS["always right"], 0.99)
        free = Options(cost_table=[(1, 1.0)])
        drafter = SourceDrafter(model, source, free, gate=gate, timed=False, on_step=log.append)
        decode(model, start(model, PROMPT, 100, None, drafter, max_tokens=40), steps=2)
        assert log[0].drafted == widest


def batch_of(sources, n, **options):
    """Run streams of one text together without a clock; return their steps, and the prices of the passes."""
    model = ToyModel()
    scheduler, logs = Scheduler(model), [[] for _ in sources]
    for source, log in zip(sources, logs, strict=True):
        drafter = SourceDrafter(model, source, Options(**options), timed=False, on_step=log.append)
        scheduler.add(start(model, PROMPT, n + 100, None, drafter, max_tokens=n))
    prices = []
    scheduler.step()  # the prompts
    while len(scheduler.live) == len(sources):
        prices.append(VerifyCost().price(scheduler.step()))
    return logs, prices


def plain_text(n):
    model = ToyModel()
    return decode(model, start(model, PROMPT, n + 10, max_tokens=n))


@pytest.mark.parametrize("n_streams", [2, 3, 4])
@pytest.mark.parametrize("least", [1, 2])
@pytest.mark.parametrize("boasts", [True, False])
def test_a_batch_loses_no_more_than_one_pass_beyond_its_price(n_streams, least, boasts):
    text = plain_text(600)
    plan = lambda call: call % 6 == 0
    logs, _ = batch_of([(Boaster if boasts else Odd)(text, plan, 0.99) for _ in range(n_streams)], 600, min_draft=least)
    for log in logs:
        lost, most = 0.0, 0.0
        for n, step in enumerate(log, 1):
            lost += step.cost - step.committed
            most = max(most, lost - 0.01 * n)
        assert any(step.kind == "verify" for step in log)
        assert most <= 1.0 + 0.7  # the credit, and once what drafts of several streams at once cost beyond their price


def test_the_first_pass_of_a_batch_is_priced_for_its_streams():
    text = plain_text(40)
    logs, _ = batch_of([Boaster(text, lambda call: False, 0.99), *(Odd([], bool, 0) for _ in range(3))], 20)
    assert all(step.cost <= 2.0 + 0.01 * n for n, step in enumerate(logs[0], 1))


def test_what_streams_pay_is_what_the_batch_took():
    text = plain_text(200)
    sources = [Odd(text, lambda call: call % 3 > 0, 0), Boaster(text, bool, 0.9), Odd([], bool, 0)]
    logs, prices = batch_of(sources, 100)
    assert any(price > 1 for price in prices)
    for steps, price in zip(zip(*logs, strict=True), prices, strict=True):
        assert sum(step.cost for step in steps) == pytest.approx(3 * price)


@pytest.mark.parametrize("knows_odds", [True, False])
def test_drafts_come_back_after_a_long_disturbance(knows_odds):
    words = [7 * i % 997 + 3 for i in range(300)]
    text = words * 10

    class Knows:
        processor = None

        def choose(self, row, history):
            return text[len(history)], 0

        def commit(self, token, position):
            pass

    drafter = SourceDrafter(ToyModel(1000), SpeculationIndex(1000) if knows_odds else SamIndex())
    state = ToyModel().new_cache(4000)
    stream = Stream(state, list(words), Knows(), drafter, max_tokens=2600)
    state.len = 299
    widths = []
    while not stream.check_end():
        draft = drafter.draft(stream, 100, 1).tokens
        context, before = state.len, len(stream.tokens)
        seconds = drafter.cost.curve(context)[len(draft) + 1] * (4 if draft and 5 <= len(widths) < 600 else 1)
        state.begin(1 + len(draft))
        rows = np.zeros((1 + len(draft), 1000), np.float32)
        sampled = stream.accept(rows, draft)
        stats = PassStats(1, len(draft) + 1, len(draft), context, seconds)
        drafter.learn(stream, Verified(draft, stream.tokens[before:], sampled, rows, stats))
        widths.append(len(draft))
    assert sum(map(bool, widths[-40:])) > 30  # it copies again, draft after draft


@settings(max_examples=200)
@given(st.lists(st.floats(0.0, 1.0), max_size=6), st.lists(st.floats(1.0, 9.0), min_size=1, max_size=7))
def test_what_is_computed_again_is_part_of_the_price(odds, costs):
    """Against every way in which a draft can end: its first rejection, if any, and the pass that follows."""
    for n, cost in enumerate(with_redone(costs, odds)):
        expected, together = costs[n], 1.0
        for accepted, chance in enumerate([*odds, *[0.0] * n][:n]):
            again = costs[accepted + 1]  # of a pass of accepted + 2 rows
            expected += together * (1 - chance) * (again - 1)
            together *= chance
        assert math.isclose(cost, expected, rel_tol=1e-9)
    assert with_redone(costs, [1.0] * 9) == costs  # what is never rejected is never computed again


def test_a_state_that_is_kept_whole_drafts_less():
    """The same source over the two kinds of state: where a rejection costs a second pass, fewer tokens are verified."""

    class Even:
        def observe(self, new):
            pass

        def suggest(self, text, n):
            return [5] * n

        def odds(self, n):
            return [0.3] * n

    def drafted(recurrent):
        state = SimpleNamespace(len=10, layout=SimpleNamespace(recurrent=recurrent))
        stream = SimpleNamespace(tokens=[1, 2, 3], state=state, stop_tokens=frozenset())
        options = Options(min_draft=1, cost_table=CostTable((1, 2, 16), (0,), ((1.0, 1.2, 6.0),)))
        return len(SourceDrafter(ToyModel(24), Even(), options).draft(stream, 16, 1).tokens)

    assert drafted(False) > 0 and drafted(True) == 0


@pytest.mark.parametrize("recurrent", [False, True])
def test_the_ledger_enters_what_is_computed_again(recurrent):
    """A pass of rows that a rejected draft left is no plain step."""
    model = ToyModel(24, 3, recurrent=recurrent)
    records = []
    options = Options(adapt_budget=False, min_speedup=0, min_draft=1, max_draft=4)
    drafter = SourceDrafter(model, Replay([5] * 400), options, timed=False, on_step=records.append)
    stream = Stream(model.new_cache(300), [1, 2, 3], Sampler(), drafter, max_tokens=60)
    decode(model, stream)
    rejected = [i for i, r in enumerate(records[:-1]) if r.drafted > r.accepted and r.kind == "verify"]
    again = [records[i + 1] for i in rejected if not records[i + 1].drafted]
    assert {r.cost > 1.0 for r in again} == {recurrent}
