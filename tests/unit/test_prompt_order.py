"""Prompts under load: how long they wait, counted in the costs that the table gives passes, by no clock.

A toy model runs behind the real scheduler, whose clock shows the cost of the passes so far.
"""

import random
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

import fucina.engine.scheduler as module
from fucina.defaults import PREFILL_STRETCH
from fucina.engine import PassStats, Scheduler, default_table
from fucina.engine.verify_cost import VerifyCost
from fucina.engine.prefill import AGING, DEAREST, PrefillOrder, PrefillShare
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


class ByArrival(PrefillOrder):
    def sort(self, prompts):
        return list(prompts)


class Machine(ToyModel):
    """Its clock goes on by the cost of each pass; a busy machine takes longer now and then."""

    def __init__(self, busy=0.0, seed=0):
        super().__init__(memory=1)
        self.clock, self.busy, self.random, self.slow = 0.0, busy, random.Random(seed), 1.0
        self.costs, self.curve = VerifyCost(), []
        self.ratios, self.widths = [], []  # of passes that prompts have joined: their cost beside that of the decode rows alone

    def forward_rows(self, requests):
        if self.random.random() < 0.1:
            self.slow = self.random.choice([2, 4, 8]) if self.random.random() < self.busy else 1.0
        self.curve = self.costs.curve(max(state.len for state, _, _ in requests))
        self.clock += self.slow * self.curve[sum(len(tokens) for _, tokens, _ in requests)]
        return super().forward_rows(requests)


@pytest.fixture
def simulate(monkeypatch):
    """A function that lets requests come, and runs passes until all have their replies."""

    def run(requests, order=None, slots=8, busy=0.0, stretch=PREFILL_STRETCH):
        machine = Machine(busy)
        monkeypatch.setattr(module, "perf_counter", lambda: machine.clock)
        scheduler = Scheduler(machine, stretch=stretch)
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
            if stats.rows and stats.prefill:
                machine.ratios.append(machine.curve[stats.rows + stats.prefill] / machine.curve[stats.rows])
                machine.widths.append((stats.rows, stats.prefill))
            for asked, stream in running:
                if stream.committed and not asked.first:
                    asked.first, asked.given = machine.clock, given - asked.began
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
@pytest.mark.parametrize("load", [0.4, 0.7, 1.0])
def test_first_tokens_come_sooner_than_in_turns(simulate, mix, load):
    make, most = MIXES[mix]
    requests = list(poisson(1, most * load, 150, make))
    found, machine = simulate(requests)
    in_turns, _ = simulate(requests, InTurns)
    short = [waits(rs, lambda r: r.prompt < 100) for rs in (found, in_turns)]
    print(mix, load, [f"{w.mean():.0f} {np.quantile(w, 0.95):.0f}" for w in short], end=" ")
    print([f"{w.mean():.0f} {w.max():.0f}" for rs in (found, in_turns) if len(w := waits(rs, lambda r: r.prompt > 100))])
    assert max(machine.ratios) <= MOST
