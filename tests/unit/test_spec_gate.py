"""Cost table, prices and the gate's states, against numbers worked out by hand."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fucina.engine import PassStats
from fucina.engine.cost_table import best_width
from fucina.errors import (
    CostTableEmpty,
    InvalidOption,
    ProbeStepsZero,
    RateWindowTooSmall,
    ReprobeAfterZero,
)
from fucina.speculative import CostGate, CostTable, Options, Stats, VerifyCost, default_table

# by drafts; the package's table is by rows = drafts + 1
DOCUMENTED = [(d + 1, c) for d, c in ((2, 1.65), (4, 1.42), (8, 2.84), (16, 4.5))]


# --- table ------------------------------------------------------------------------------------------------------------


def test_lines_between_points_and_level_ends():
    table = CostTable.of(DOCUMENTED)
    of_drafts = {d: table.cost(d + 1) for d in range(1, 40)}
    assert of_drafts[1] == of_drafts[2] == 1.65
    assert of_drafts[3] == pytest.approx((1.65 + 1.42) / 2) and of_drafts[4] == 1.42
    assert of_drafts[6] == pytest.approx((1.42 + 2.84) / 2) and of_drafts[8] == 2.84
    assert of_drafts[12] == pytest.approx(3.67) and of_drafts[16] == of_drafts[39] == 4.5
    assert table.cost(5, 0) == table.cost(5, 1e6) == 1.42
    assert table.cost(5000) == 4.5


def test_lines_between_contexts():
    table = CostTable((1, 4), (100, 300), ((1.0, 2.0), (1.0, 3.0)))
    assert [table.cost(4, c) for c in (0, 100, 200, 300, 999)] == [2, 2, 2.5, 3, 3]
    assert table.cost(2, 200) == pytest.approx(1.5)


def test_default_table_is_ours_and_says_where_it_is_from():
    table = default_table()
    assert {1, 2, 4, 8, 16, 17} <= set(table.rows) and {1024, 4096} <= set(table.contexts)
    assert table.provenance
    for context in (0, 128, 700, 4096, 10**6):
        curve = table.curve(context)
        assert len(curve) == 129 and curve[1] == 1.0 and all(math.isfinite(c) for c in curve)
        assert all(0.9 <= curve[k] <= 1.1 * k for k in range(1, 129))  # hardly dearer than plain steps
    assert table.cost(16, 4096) > table.cost(16, 128)  # every row looks back


def test_table_file(tmp_path):
    table = CostTable((1, 2, 5), (0, 64), ((1, 1.5, 2), (1, 1.6, 2.5)), {"machine": "M"})
    path = tmp_path / "t.json"
    table.save(path)
    assert CostTable.load(path) == table and json.loads(path.read_text())["provenance"] == {"machine": "M"}
    assert [p.name for p in tmp_path.iterdir()] == ["t.json"]
    for text in (
        "{",
        "[]",
        "{}",
        '{"rows": [1], "contexts": [0], "costs": [["x"]]}',
        '{"rows": [1e999]}',
        "[" * 100_000,
    ):
        path.write_text(text)
        with pytest.raises(InvalidOption, match=r"t\.json"):
            CostTable.load(path)


@pytest.mark.parametrize(
    "points",
    [[(2, 1.0), (2, 1.0)], [(3, 1.0), (2, 1.0)], [(0, 1.0)], [(1, 0.0)], [(1, math.nan)], [(1, -1.0)], [(1, math.inf)]],
)
def test_bad_points(points):
    with pytest.raises(InvalidOption):
        CostTable.of(points)


@pytest.mark.parametrize("points", [None, 5, "x", [1], [(1, "a")], [(1, 1.0, 1.0)], [(math.inf, 1.0)]])
def test_what_is_no_table_is_named(points):
    with pytest.raises(InvalidOption, match="cost_table must be"):
        Options(cost_table=points)


def test_empty_and_ragged_tables():
    with pytest.raises(CostTableEmpty):
        CostTable.of([])
    with pytest.raises(CostTableEmpty):
        Options(cost_table=[])
    with pytest.raises(CostTableEmpty):
        CostTable((1,), (), ())
    with pytest.raises(InvalidOption):
        CostTable((1, 2), (0,), ((1.0,),))
    with pytest.raises(InvalidOption):
        CostTable((1,), (5, 5), ((1.0,), (1.0,)))


def test_widths_end_with_a_tile():
    tiles = [0.0] + [0.25 + 0.75 * -(-rows // 4) for rows in range(1, 40)]  # rows in fours
    assert [best_width(tiles, d, 2) for d in range(2, 17)] == [2, 3, 3, 3, 6, 7, 7, 7, 7, 11, 11, 11, 11, 15, 15]
    smooth = CostTable.of([(1, 1.0), (128, 40.0)]).curve()
    assert all(best_width(smooth, d, 2) == d for d in range(2, 100))
    assert best_width(tiles, 2, 2) == 2


# --- options ----------------------------------------------------------------------------------------------------------


def test_documented_defaults():
    o = Options()
    assert (o.max_draft, o.min_draft, o.enabled, o.topk_feedback) == (16, 2, True, 8)
    assert (o.rate_window, o.min_window_drafted, o.min_speedup, o.probe_margin) == (16, 8, 1.0, 0.10)
    assert (o.reprobe_after, o.reprobe_max, o.probe_steps, o.adapt_budget) == (128, 1024, 4, True)
    assert o.table == default_table()


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (RateWindowTooSmall, {"rate_window": 1}),
        (RateWindowTooSmall, {"rate_window": 0}),
        (ProbeStepsZero, {"probe_steps": 0}),
        (ReprobeAfterZero, {"reprobe_after": 0}),
        (InvalidOption, {"reprobe_after": 10, "reprobe_max": 9}),
        (InvalidOption, {"max_draft": -1}),
        (InvalidOption, {"max_draft": 128}),
        (InvalidOption, {"max_draft": True}),
        (InvalidOption, {"max_draft": 2.0}),
        (InvalidOption, {"min_draft": 0}),
        (InvalidOption, {"first_draft": -1}),
        (InvalidOption, {"topk_feedback": -1}),
        (InvalidOption, {"min_speedup": math.nan}),
        (InvalidOption, {"probe_margin": -0.1}),
    ],
)
def test_options_are_checked(error, options):
    with pytest.raises(error, match=list(options)[-1]):
        Options(**options)


def test_zero_is_a_value_not_a_default():
    assert Options(max_draft=0).max_draft == 0
    assert Options(min_window_drafted=0).min_window_drafted == 0
    assert Options(probe_margin=0).probe_margin == 0


# --- prices -----------------------------------------------------------------------------------------------------------


def priced():
    cost = VerifyCost(CostTable.of(DOCUMENTED))
    cost.note_plain(1.0)
    return cost


def test_without_a_clock_the_table_applies():
    cost = VerifyCost(CostTable.of(DOCUMENTED))
    assert cost.verify(5) == 1.42 and cost.scale == 1.0
    assert cost.verify(5, seconds=9.0) == 1.42 and cost.scale == 1.0  # no plain step to compare with yet


def test_one_sample_cannot_flip_the_estimate():
    cost = priced()
    assert cost.verify(9, seconds=2 * 2.84) == pytest.approx(1.2 * 2.84) and cost.scale == pytest.approx(1.2)
    cost = priced()
    assert cost.verify(9, seconds=1000 * 2.84) == pytest.approx(1.6 * 2.84) and cost.scale == pytest.approx(1.6)
    cost = priced()
    cost.verify(9, seconds=1e-9)  # a verify never costs less than a plain step
    assert cost.scale == pytest.approx(0.2 * (1 / 2.84) + 0.8)


def test_the_scale_learns_and_stays_clamped():
    cost = priced()
    for _ in range(200):
        cost.verify(9, seconds=3 * 2.84)
    assert cost.scale == pytest.approx(3.0)
    for _ in range(200):
        cost.verify(9, seconds=1e6)
    assert cost.scale == pytest.approx(4.0)
    steep = VerifyCost(CostTable.of([(1, 1.0), (9, 100.0)]))
    steep.note_plain(1.0)
    for _ in range(200):
        price = steep.verify(9, seconds=1.0)
    assert steep.scale == pytest.approx(0.25) and price == pytest.approx(25.0)
    cheap = VerifyCost(CostTable.of([(9, 1.0)]))
    cheap.scale = 0.25
    assert cheap.verify(9) == 1.0


def test_a_high_scale_that_nothing_confirms_fades():
    cost = VerifyCost(CostTable.of([(1, 1.0), (4, 1.5)]))
    cost.note_plain(1.0)
    for _ in range(30):
        cost.verify(4, seconds=6.0)  # a disturbance that lasts
    high = cost.scale
    assert high > 3.9
    for _ in range(128):
        cost.note_plain(1.0)
    assert cost.scale == high
    for _ in range(400):
        cost.note_plain(1.0)
    assert 1.0 < cost.scale < 1.1
    cost.verify(4, seconds=1.5)
    low = cost.scale
    for _ in range(128):
        cost.note_plain(1.0)
    assert cost.scale == low
    for _ in range(30):
        cost.verify(4, seconds=1.0)
    for _ in range(1000):
        cost.note_plain(1.0)
    assert cost.scale < 1.0  # what is cheap is tried, and so measured


def test_plain_time_is_smoothed():
    cost = VerifyCost(CostTable.of(DOCUMENTED))
    cost.note_plain(4.0)
    cost.note_plain(8.0)  # smoothed: 5.0
    cost.note_plain(100.0, context=10_000)  # that of a long context is another matter
    assert cost.verify(9, seconds=5.0 * 2.84) == pytest.approx(2.84) and cost.scale == pytest.approx(1.0)
    assert cost.verify(9, streams=2, seconds=1.0) and cost.scale == pytest.approx(1.0)  # of two streams none is known


def test_a_pass_that_computed_prompts_teaches_nothing():
    cost = VerifyCost(CostTable.of([(1, 1.0), (5, 2.0)]))
    plain = PassStats(1, 1, 0, 0.0, 1.0)
    assert cost.price(plain) == 1.0
    verify = PassStats(1, 5, 4, 0.0, 4.0)
    assert cost.price(verify) == pytest.approx(2.4) and cost.scale == pytest.approx(1.2)
    with_prompt = PassStats(1, 5, 4, 0.0, 50.0, prefill=60)
    assert cost.price(with_prompt) == pytest.approx(2.4) and cost.scale == pytest.approx(1.2)


def test_a_plain_pass_after_a_verify_does_not_make_verifies_look_cheap():
    """It may be slow because of what ran before it; it counts if it is all there is, or faster than what is known."""
    plain, verify = (lambda seconds: PassStats(1, 1, 0, 0.0, seconds)), PassStats(1, 5, 4, 0.0, 2.0)
    cost = VerifyCost(CostTable.of([(1, 1.0), (5, 2.0)]))
    for seconds in (1.0, 1.0):
        cost.price(plain(seconds))
    for _ in range(50):
        cost.price(verify)
        cost.price(plain(1.5))
    assert cost.scale == pytest.approx(1.0)
    cost.price(plain(1.5))  # after its own kind: 1.125
    cost.price(verify)
    assert cost.scale == pytest.approx(0.8 + 0.2 / 1.125)
    first = VerifyCost(CostTable.of([(1, 1.0), (5, 2.0)]))
    for stats in (verify, plain(1.0), verify, plain(0.5), verify):  # 0.5: the mean is 0.875
        first.price(stats)
    assert first.scale == pytest.approx(0.8 + 0.2 / 0.875)


def test_a_pass_of_several_streams_is_compared_with_a_plain_pass_of_them():
    cost = VerifyCost(CostTable.of([(1, 1.0), (4, 2.0), (12, 6.0)]))
    assert cost.verify(12, streams=4) == 3.0
    cost.note_plain(1.0, streams=4)
    cost.verify(12, streams=4, seconds=6.0)
    assert cost.scale == pytest.approx(1.2)


# --- gate -------------------------------------------------------------------------------------------------------------

SHORT = Options(reprobe_after=4, reprobe_max=16, probe_steps=2)


def lose(gate):
    gate.record(committed=1, accepted=0, drafted=8, cost=2.0)


def win(gate):
    gate.record(committed=9, accepted=8, drafted=8, cost=2.0)


def wait(gate):
    steps = 0
    while not gate.allows():
        steps += 1
    return steps + 1


def test_losing_forever_waits_longer_and_longer():
    gate = CostGate(SHORT)
    waits = []
    while len(waits) < 6:
        while gate.state != "off":
            assert gate.allows()
            lose(gate)
        waits.append(wait(gate))
        assert gate.state == "probing"
    assert waits == [4, 8, 16, 16, 16, 16]


def test_a_probe_that_wins_turns_it_on_again():
    gate = CostGate(SHORT)
    while gate.state == "on":
        lose(gate)
    assert gate.backoff == 4 and gate.speedup == math.inf  # the window is cleared
    assert wait(gate) == 4
    win(gate)
    assert gate.state == "probing"
    win(gate)
    assert gate.state == "on" and gate.speedup == pytest.approx(4.5)  # the window is kept
    while gate.state == "on":
        lose(gate)
    assert gate.backoff == 4  # a passed probe starts the waits again


def test_a_probe_needs_the_margin():
    gate = CostGate(SHORT)
    for _ in range(2):
        lose(gate)
    assert gate.state == "off" and wait(gate) == 4
    for _ in range(2):
        gate.record(committed=21, accepted=4, drafted=8, cost=20.0)  # 1.05: not losing, not 1.1 either
    assert gate.state == "off" and gate.backoff == 8


def test_one_verify_is_too_few_to_judge():
    gate = CostGate(Options())
    gate.record(committed=1, accepted=0, drafted=16, cost=5.0)
    assert gate.state == "on"
    gate.record(committed=1, accepted=0, drafted=2, cost=1.5)
    assert gate.state == "off"
    gate = CostGate(Options())
    for _ in range(3):
        gate.record(committed=1, accepted=0, drafted=2, cost=1.5)
    assert gate.state == "on"  # 6 drafted tokens are fewer than 8
    gate.record(committed=1, accepted=0, drafted=2, cost=1.5)
    assert gate.state == "off"


def test_the_window_forgets():
    gate = CostGate(Options(rate_window=4))
    for _ in range(50):
        win(gate)
    assert gate.speedup == pytest.approx(4.5)
    for _ in range(4):
        gate.record(committed=5, accepted=4, drafted=8, cost=4.0)
    assert gate.speedup == pytest.approx(1.25)


def test_budget_follows_acceptance():
    gate = CostGate(Options(first_draft=16))
    assert gate.budget() == 16  # nothing drafted yet
    assert CostGate(Options()).budget() == 3 and CostGate(Options(max_draft=2)).budget() == 2
    assert CostGate(Options(first_draft=0)).budget() == 2 and CostGate(Options(min_draft=5)).budget() == 5
    gate.record(committed=3, accepted=2, drafted=8, cost=1.0)
    assert gate.budget() == 6  # 2 + ceil(25 % of 16)
    for accepted, expected in ((0, 2), (8, 16)):
        gate = CostGate(Options())
        gate.record(committed=accepted + 1, accepted=accepted, drafted=8, cost=1.0)
        assert gate.budget() == expected
    gate = CostGate(Options(min_draft=5))
    gate.record(committed=1, accepted=0, drafted=8, cost=1.0)
    assert gate.budget() == 5
    gate = CostGate(Options(adapt_budget=False))
    gate.record(committed=1, accepted=0, drafted=8, cost=1.0)
    assert gate.budget() == 16


verifies = st.lists(st.tuples(st.integers(0, 16), st.integers(2, 16), st.floats(1, 6)), max_size=120)


@given(verifies, st.integers(2, 6))
def test_sums_equal_the_window(entries, window):
    gate = CostGate(Options(rate_window=window, min_speedup=0))
    kept = []
    for accepted, drafted, cost in entries:
        accepted = min(accepted, drafted)
        gate.record(accepted + 1, accepted, drafted, cost)
        kept = [*kept, (accepted + 1, accepted, drafted, cost)][-window:]
        assert gate.speedup == pytest.approx(sum(e[0] for e in kept) / sum(e[3] for e in kept))
        assert gate.evaluable == (len(kept) >= 2 and sum(e[2] for e in kept) >= 8)


def test_a_loser_is_off_most_of_the_time():
    """Whatever the drafts do, the time lost is bounded by probes: the floor that the gate promises."""
    gate = CostGate(Options())
    cost, verified, steps = 0.0, 0, 0
    while steps < 3000:
        steps += 1
        if gate.allows():
            gate.record(1, 0, 8, 2.0)
            cost, verified = cost + 2.0, verified + 1
        else:
            cost += 1.0
    assert verified <= 2 + 4 * 5 and steps / cost >= 0.98


# --- counts -----------------------------------------------------------------------------------------------------------


def test_stats_line():
    s = Stats(10, 6, 3, 1, 40, 30, 4, 2, 40)
    assert s.tokens_per_step == 4.0 and s.acceptance_rate == 0.75
    assert s.summary() == (
        "spec: steps=10 (verify 6, fallback 3, off 1) committed=40 (4.00 tok/step) drafted=40 accepted=30 (75.0% acc) "
        "bonus=2 rejected=4"
    )
    assert Stats().tokens_per_step == Stats().acceptance_rate == 0.0
    assert s.as_dict()["acceptance_rate"] == 0.75 and s.as_dict()["spec_steps"] == 6
