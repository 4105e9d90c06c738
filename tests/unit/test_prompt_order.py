"""Prompts under load: how long they wait, counted in the costs that the table gives passes, by no clock.

A toy model runs behind the real scheduler, whose clock shows the cost of the passes so far.
"""

import random
from dataclasses import dataclass

import numpy as np
import pytest

import fucina.engine.scheduler as module
from fucina.defaults import PREFILL_STRETCH
from fucina.engine import PassStats, Scheduler
from fucina.engine.prefill import AGING, DEAREST, PrefillOrder, PrefillShare
from fucina.engine.verify_cost import VerifyCost
from tests.spec_toys import ToyModel, start

MOST = 2.5


@dataclass
class Asked:
    """A request: when it comes, rows to be computed of its prompt, tokens of its reply; and what became of it."""

    at: float
    prompt: int
    reply: int
    cached: int = 0
    first: float = 0.0
    began: int = 0  # rows of prompts given out when it joined, and until its first token
    given: int = 0
    there: int = 0  # rows that were left of other prompts when it joined
    passes: int = 0  # until its first token, from the beginning

    @property
    def waited(self):
        return self.first - self.at


class InTurns(PrefillOrder):
    """Every prompt comes first in turn."""

    turn = 0

    def sort(self, prompts):
        self.turn += 1
        at = self.turn % len(prompts) if prompts else 0
        return [*prompts[at:], *prompts[:at]]


class Shortest(PrefillOrder):
    """The fewest rows left come first, always."""

    def sort(self, prompts):
        return sorted(prompts, key=lambda s: s.pending)


class Machine(ToyModel):
    """Its clock goes on by the cost of each pass."""

    def __init__(self):
        super().__init__(memory=1)
        self.clock = 0.0
        self.costs, self.curve = VerifyCost(), []
        self.ratios = []  # of passes that prompts have joined: their cost beside that of the decode rows alone

    def forward_rows(self, requests):
        prompts = [state.len for state, tokens, wanted in requests if len(tokens) > 1 or not wanted]
        self.curve = self.costs.curve(max(prompts, default=0))  # a row looks back at every position of its own prompt
        self.clock += self.curve[sum(len(tokens) for _, tokens, _ in requests)]
        return super().forward_rows(requests)


@pytest.fixture
def simulate(monkeypatch):
    """A function that lets requests come, and runs passes until all have their replies."""

    def run(requests, order=None, slots=8):
        machine = Machine()
        monkeypatch.setattr(module, "perf_counter", lambda: machine.clock)
        scheduler = Scheduler(machine)
        if order is not None:
            scheduler._order = order()
        requests = sorted((Asked(r.at, r.prompt, r.reply, r.cached) for r in requests), key=lambda r: r.at)
        waiting, running, given = list(requests), [], 0
        while waiting or running:
            if not running:
                machine.clock = max(machine.clock, waiting[0].at)
            while waiting and waiting[0].at <= machine.clock and len(running) < slots:
                asked = waiting.pop(0)
                asked.began = given
                asked.there = sum(s.pending for _, s in running if s.filling)
                running.append((asked, scheduler.add(begin(machine, asked))))
            stats = scheduler.step()
            given += stats.prefill
            if stats.rows and stats.prefill > 1:  # one row always joins
                machine.ratios.append(machine.curve[stats.rows + stats.prefill] / machine.curve[stats.rows])
            for asked, stream in running:
                if stream.committed and not asked.first:
                    asked.first, asked.given = machine.clock, given - asked.began
                    asked.passes = len(machine.passes)
            for pair in [pair for pair in running if pair[1].finish is not None]:
                assert pair[1].error is None and pair[1].committed == pair[0].reply
                running.remove(pair)
                scheduler.remove(pair[1])
        assert not scheduler._order._since  # nothing of who has left
        return requests, machine

    return run


def begin(machine, asked):
    tokens = [i % 24 for i in range(asked.cached + asked.prompt)]
    stream = start(machine, tokens, len(tokens) + asked.reply, max_tokens=asked.reply)
    if asked.cached:
        stream.state.rows[: asked.cached] = tokens[: asked.cached]
        stream.state.len = asked.cached
    return stream


def poisson(seed, rate, count, make):
    r, at = random.Random(seed), 0.0
    for i in range(count):
        at += r.expovariate(rate)
        yield make(i, at, r)


def chat(i, at, r):
    return Asked(at, r.randrange(28, 45), r.randrange(40, 65))


def with_long(i, at, r):
    return Asked(at, 2000, 32) if i % 20 == 5 else chat(i, at, r)


def turns(i, at, r):
    return Asked(at, 14, 48, cached=120 + i % 200) if i % 4 else chat(i, at, r)


def waits(requests, those=lambda r: True):
    return np.array([r.waited for r in requests if those(r)])


MIXES = {"chat": (chat, 0.03), "long ones": (with_long, 0.008), "turns": (turns, 0.04)}


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("load", [0.5, 0.8, 1.1])
def test_first_tokens_come_sooner_than_in_turns(simulate, mix, load):
    make, full = MIXES[mix]
    requests = list(poisson(1, full * load, 150, make))
    (found, machine), (in_turns, _) = simulate(requests), simulate(requests, InTurns)
    assert max(machine.ratios) <= MOST
    assert waits(found).mean() < waits(in_turns).mean()
    if mix == "long ones":  # those pay nothing for it
        assert waits(found, is_long).mean() < 1.05 * waits(in_turns, is_long).mean()


def is_long(asked):
    return asked.prompt > 100


def test_equal_prompts_end_one_after_another(simulate):
    requests = [Asked(0, 3, 400), *(Asked(5, 30, 2) for _ in range(6))]
    ends = []
    for order in (None, InTurns):
        found, _ = simulate(requests, order)
        ends.append([r.passes for r in found[1:]])
    assert ends[0] == sorted(ends[0]) and ends[0][0] < ends[0][-1] / 3
    assert sum(ends[0]) < 0.7 * sum(ends[1]) and max(ends[0]) <= max(ends[1])


def test_a_second_turn_comes_before_new_prompts(simulate):
    requests = [Asked(0, 3, 400), *(Asked(5, 200, 2) for _ in range(3)), Asked(20, 6, 2, cached=900)]
    found, _ = simulate(requests)
    assert found[-1].first < min(r.first for r in found[1:-1])
    assert found[-1].given <= 6 + 8


def flood(seed):
    """Short prompts without end, with replies of one token, and long ones among them."""
    return poisson(seed, 0.2, 150, lambda i, at, r: Asked(at, r.choice([100, 300, 900]) if i % 12 == 3 else 30, 1))


@pytest.mark.parametrize("seed", range(8))
def test_nobody_waits_for_more_rows_than_promised(simulate, seed):
    requests = [Asked(0, 2, 3000), *(flood(seed) if seed % 2 else poisson(seed, 0.03, 100, with_long))]
    found, machine = simulate(requests)
    assert max(machine.ratios) <= MOST
    for asked in found:
        assert asked.given - asked.prompt <= asked.there + (AGING + 8) * asked.prompt


def test_always_the_shortest_would_let_a_long_one_wait_longer(simulate):
    requests = [Asked(0, 2, 3000), Asked(1, 300, 1), *(Asked(1 + i * 8, 30, 1) for i in range(300))]
    (found, _), (shortest, _) = simulate(requests), simulate(requests, Shortest)
    long, starved = found[1], shortest[1]
    assert long.prompt == starved.prompt == 300
    assert long.given <= long.there + (AGING + 9) * 300 < starved.given


def test_nothing_is_kept_of_a_prompt_that_leaves():
    scheduler = Scheduler(ToyModel())
    left, ended = (scheduler.add(start(scheduler.engine, [1] * n, 400, max_tokens=1)) for n in (300, 5))
    scheduler.step()
    assert left.filling and ended.finish == "length"
    for stream in (left, ended):
        scheduler.remove(stream)
        assert stream not in scheduler._order._since


# --- how many rows ----------------------------------------------------------------------------------------------------


def test_what_passes_take_has_its_limits():
    r = random.Random(0)
    for _ in range(300):
        share, least, most = (PrefillShare(s) for s in (PREFILL_STRETCH, PREFILL_STRETCH / DEAREST, MOST))
        context = r.randrange(4096)
        for _ in range(r.randrange(80)):
            share.rows(own := r.randrange(1, 60), 128, [context])
            share.learn(PassStats(own, own, 0, context, r.choice([1e-4, 1e-2, 1.0]), r.choice([0, 5])))
        own = r.randrange(1, 100)
        curve = VerifyCost().curve(context)
        rows, low, high = (s.rows(own, 128, [context]) for s in (share, least, most))
        assert rows >= 1 and rows / curve[own + rows] >= low / curve[own + low] - 1e-9
        assert rows == 1 or rows / curve[own + rows] <= high / curve[own + high] + 1e-9


def test_a_row_is_as_cheap_as_the_stretch_allows():
    for context in (0, 1000, 4000):
        curve = VerifyCost().curve(context)
        for own in range(1, 100):
            rows = PrefillShare(PREFILL_STRETCH).rows(own, 128, [context])
            allowed = [n for n in range(1, 129 - own) if curve[own + n] <= PREFILL_STRETCH * curve[own]] or [1]
            assert rows in allowed and rows / curve[own + rows] == max(n / curve[own + n] for n in allowed)
    assert PrefillShare(PREFILL_STRETCH).rows(0, 128, [0]) == 128


def test_some_slow_passes_change_nothing_and_a_dear_machine_is_learned():
    share, curve = PrefillShare(PREFILL_STRETCH), VerifyCost().curve(0)
    r = random.Random(1)
    usual = share.rows(2, 128, [0])
    for dear in (1.0, 1.3):
        for i in range(200):
            prefill = usual * (i % 2)
            seconds = 1e-3 * curve[2 + prefill] * (dear if prefill else 1) * (10 if r.random() < 0.2 else 1)
            share.learn(PassStats(2, 2, 0, 0, seconds, prefill))
            assert i < 40 or share.dearness == pytest.approx(dear)
    assert curve[2 + share.rows(2, 128, [0])] * 1.3 <= PREFILL_STRETCH * curve[2]
