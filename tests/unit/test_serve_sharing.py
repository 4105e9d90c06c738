"""Prompts that begin alike and are there at once: computed once, and each reply is the one that it gets alone."""

from __future__ import annotations

import numpy as np
import pytest

import fucina
from fucina.cache.pool import Slot
from fucina.sampling import SamplerOptions
from fucina.serve import Failed, GenerateRequest, Observer, Worker
from fucina.serve.sharing import SHARED
from tests.serving import KINDS, alone, collected, ended, models_of_all_kinds

BEGINNING = [(7 * i) % 250 for i in range(70)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    with models_of_all_kinds(tmp_path_factory.mktemp("models")) as get:
        yield get


class Rows(Observer):
    """Counts rows of prompts."""

    def __init__(self):
        self.prompt, self.then = 0, None

    def passed(self, stats):
        self.prompt += stats.prefill
        if self.then is not None:
            self.then()


def request(ids, most=5, tenant="", **options):
    return GenerateRequest(list(ids), most, SamplerOptions(**options), tenant=tenant)


@pytest.mark.parametrize("kind", KINDS)
def test_what_several_prompts_share_is_computed_once(models, kind):
    model, rows = models(kind), Rows()
    tails = [[1, 2, 3], [4, 5], [6, 7, 8], [9], [1, 2, 9, 9]]
    requests = [request([*BEGINNING, *tail], temperature=0.8, seed=i) for i, tail in enumerate(tails)]
    with fucina.SlotPool(model, "64MiB") as pool, Worker(model, pool, streams=8, observer=rows) as worker:
        replies = [collected(job) for job in worker.submit_all(requests)]
        assert pool.stats().in_use == 0
    assert [ended(r[2]).cached_tokens for r in replies] == [0, 70, 70, 70, 72]  # it shares two more with the first
    assert rows.prompt == 70 + sum(map(len, tails)) - 2
    for r, reply in zip(requests, replies, strict=True):
        assert reply[0] == alone(model, r)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_that_continue_one_another(models, kind):
    model, rows = models(kind), Rows()
    lengths = [40, 110, 110, 150, 151]
    text = [(3 * i) % 240 for i in range(151)]
    requests = [request(text[:n], seed=i, temperature=0.8) for i, n in enumerate(lengths)]
    with fucina.SlotPool(model, "64MiB") as pool, Worker(model, pool, streams=8, observer=rows) as worker:
        replies = [collected(job) for job in worker.submit_all(requests)]
    cached = [ended(r[2]).cached_tokens for r in replies]
    assert cached == [0, 40, 109, 110, 150]
    assert rows.prompt == sum(lengths) - sum(cached) == 151 + 1
    for r, reply in zip(requests, replies, strict=True):
        assert reply[0] == alone(model, r)[0]


def test_few_rows_are_not_waited_for_and_other_tenants_never(models):
    model = models("chat")
    short, seen = BEGINNING[: SHARED - 1], []
    cases = [
        [request([*short, 1, 2, 3]), request([*short, 4, 5, 6])],
        [request([*BEGINNING, 1], tenant="a"), request([*BEGINNING, 2], tenant="b")],
    ]
    for requests in cases:
        rows = Rows()
        with fucina.SlotPool(model, "64MiB") as pool, Worker(model, pool, observer=rows) as worker:
            rows.then = lambda: seen.append(len(worker._replies._followers))
            replies = [collected(job) for job in [worker.submit(r) for r in requests]]
        assert not any(seen)
        assert ended(replies[1][2]).cached_tokens < SHARED
        assert [reply[0] for reply in replies] == [alone(model, r)[0] for r in requests]
        assert requests[0].tenant == "" or [ended(r[2]).cached_tokens for r in replies] == [0, 0]


def test_a_prompt_that_is_given_up_holds_up_nobody(models):
    model, rows = models("chat"), Rows()
    requests = [request([*BEGINNING, *[i] * 50]) for i in range(4)]
    with fucina.SlotPool(model, "64MiB") as pool, Worker(model, pool, observer=rows, stretch=1) as worker:
        running = worker.submit(request([9], 100))
        next(iter(running))
        jobs = worker.submit_all(requests)
        rows.then = lambda: worker._replies._followers and jobs[0].cancel()
        replies = [collected(job) for job in jobs]
        running.cancel()
        assert pool.stats().in_use == 1 or not worker.busy
    assert isinstance(replies[0][2], Failed)
    for r, reply in zip(requests[1:], replies[1:], strict=True):
        assert reply[0] == alone(model, r)[0]


def test_a_prompt_whose_leader_is_set_aside(models):
    model, rows = models("recurrent"), Rows()
    requests = [request([*BEGINNING, i, i]) for i in range(3)]
    with fucina.SlotPool(model, "64MiB") as pool, Worker(model, pool, observer=rows, stretch=1) as worker:
        running = worker.submit(request([9], 60))
        next(iter(running))
        jobs, moved = worker.submit_all(requests), []

        def then():
            replies = worker._replies
            if replies._followers and not moved:
                leader = replies._followers[0][1]
                moved.append(leader)
                replies.running.remove(leader)
                replies.scheduler.remove(leader.stream)
                leader.set_aside()
                replies.aside[leader.job] = leader
                worker._line.put_back(leader.job)

        rows.then = then
        found = [collected(job) for job in jobs]
        running.cancel()
    assert moved
    for r, reply in zip(requests, found, strict=True):
        assert reply[0] == alone(model, r)[0]


def test_rows_of_a_reply_in_the_making_are_found(models):
    model = models("chat")
    with fucina.SlotPool(model, "64MiB") as pool, Worker(model, pool) as worker:
        first = worker.submit(request([*BEGINNING, 1], 100))
        next(iter(first))
        second = collected(worker.submit(request([*BEGINNING, 2])))
        first.cancel()
    assert ended(second[2]).cached_tokens == 70
    assert second[0] == alone(model, request([*BEGINNING, 2]))[0]


def test_nothing_is_stored_where_nobody_could_go_on(models, monkeypatch):
    """A recurrent state that has passed the common place cannot be stored there: no rows are copied for nothing."""
    model, stored = models("recurrent"), []
    monkeypatch.setattr(Slot, "store", lambda self, tokens: stored.append(len(tokens)))
    with fucina.SlotPool(model, "64MiB") as pool, Worker(model, pool) as worker:
        first = worker.submit(request([*BEGINNING, 1], 100))
        next(iter(first))
        second = collected(worker.submit(request([*BEGINNING, 2])))
        first.cancel()
    assert not stored and ended(second[2]).cached_tokens == 0
    assert second[0] == alone(model, request([*BEGINNING, 2]))[0]


@pytest.mark.parametrize("fault", ["no room", "store fails"])
def test_rows_that_cannot_be_stored_are_computed_again(models, fault, monkeypatch):
    model, rows = models("chat"), Rows()

    def fails(self, tokens):
        raise MemoryError

    if fault == "store fails":
        monkeypatch.setattr(Slot, "store", fails)
    requests = [request([*BEGINNING, i, i]) for i in range(3)]
    with (
        fucina.SlotPool(model, "64MiB" if fault == "store fails" else 100) as pool,
        Worker(model, pool, observer=rows) as worker,
    ):
        waited = []
        rows.then = lambda: waited.append(len(worker._replies._followers))
        replies = [collected(job) for job in worker.submit_all(requests)]
    assert rows.prompt == 3 * 72
    assert any(waited) == (fault == "store fails")
    for r, reply in zip(requests, replies, strict=True):
        assert reply[0] == alone(model, r)[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_random_prompts_of_one_tree(models, kind, seed):
    """Prompts that branch off each other anywhere, asked in any order, some given up."""
    model, generator = models(kind), np.random.default_rng(seed)
    texts = [generator.integers(0, 250, 40).tolist()]
    for _ in range(15):
        text = texts[generator.integers(len(texts))]
        text = [*text[: generator.integers(1, len(text) + 1)], *generator.integers(0, 250, generator.integers(1, 40))]
        texts.append([int(t) for t in text][: model.context - 10])
    requests = [request(text, 6, temperature=0.7, seed=i) for i, text in enumerate(texts)]
    with fucina.SlotPool(model, "64MiB") as pool, Worker(model, pool, queue=30, streams=7) as worker:
        jobs = worker.submit_all(requests[:8])
        jobs += [worker.submit(r) for r in requests[8:]]
        gone = set(generator.choice(16, 3, replace=False).tolist())
        for i in gone:
            jobs[i].cancel()
        replies = [collected(job) for job in jobs]
    for i, (r, reply) in enumerate(zip(requests, replies, strict=True)):
        if i not in gone or not isinstance(reply[2], Failed):
            assert reply[0] == alone(model, r)[0]
