"""The engine's thread of the server: everybody gets the tokens that they would get alone, whatever runs beside them."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import numpy as np
import pytest

import fucina
from fucina.cache.pool import Slot
from fucina.errors import InvalidOption, QueueFull, ShuttingDown
from fucina.sampling import SamplerOptions
from fucina.serve import Done, Failed, GenerateRequest, Job, Observer, TextDelta, Worker
from fucina.serve.jobs import Cancelled
from fucina.serve.line import Line
from fucina.serve.running import FLOOR, logprob_of
from tests.chat_model import write_chat_model
from tests.serving import alone, collected, ended, random_request
from tests.toy_families import toy_model

PREFIXES = [[1, 2, 3] * 10, [5] * 20, [7]]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    model = fucina.load(write_chat_model(tmp_path_factory.mktemp("model") / "chat.gguf"), context=128)
    yield model
    model.close()


@pytest.fixture
def pool(model):
    with fucina.SlotPool(model, memory="64MiB") as pool:
        yield pool
        assert pool.stats().in_use == 0


class Gate(Observer):
    """Lets the engine's thread run one pass for each `go`, once `hold` was called."""

    def __init__(self):
        self.steps, self.held, self.at = threading.Semaphore(0), False, threading.Semaphore(0)
        self.passes = []

    def passed(self, stats):
        self.passes.append(stats)
        if self.held:
            self.at.release()
            assert self.steps.acquire(timeout=60)

    def hold(self):
        """Hold the thread after its next pass; returns once it stands there."""
        self.held = True

    def go(self, passes=1):
        for _ in range(passes):
            self.steps.release()
            assert self.at.acquire(timeout=60)

    def free(self):
        self.held = False
        self.steps.release()


def request(model, ids=(1, 2, 3), most=6, **options):
    fields = {k: options.pop(k) for k in list(options) if k in GenerateRequest.__dataclass_fields__}
    return GenerateRequest(list(ids), most, SamplerOptions(**options), **fields)


# --- exactness --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("speculation", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_each_reply_is_the_one_its_request_gets_alone(model, pool, seed, speculation):
    generator = np.random.default_rng(seed)
    grammars = (None, None, fucina.Grammar.json_schema({"type": "array", "items": {"type": "integer"}, "maxItems": 3}))
    requests = [random_request(generator, model, PREFIXES, grammars, tenant=f"t{i % 3}") for i in range(24)]
    gone = set(generator.choice(24, 6, replace=False).tolist())
    with Worker(model, pool, queue=64, streams=5, speculation=speculation) as worker:
        jobs = []
        for i, r in enumerate(requests):
            jobs.append(worker.submit(r))
            if i in gone:
                threading.Timer(float(generator.random()) / 20, jobs[-1].cancel).start()
        replies = [collected(job) for job in jobs]
    for i, (r, (tokens, text, end, logprobs)) in enumerate(zip(requests, replies)):
        expected = alone(model, r)
        if i in gone and isinstance(end, Failed):
            assert isinstance(end.error, Cancelled)
            assert tokens == expected[0][: len(tokens)]
            continue
        assert (tokens, text, ended(end).finish) == expected
        assert end.completion_tokens == len(tokens) and end.prompt_tokens == len(r.ids)
        assert len(logprobs) == (0 if r.top_logprobs is None else len(tokens))
    assert pool.stats().in_use == 0


def test_a_request_joins_while_others_run(model, pool):
    gate = Gate()
    gate.hold()
    with Worker(model, pool, streams=4, observer=gate) as worker:
        first = worker.submit(request(model, most=40))
        assert gate.at.acquire(timeout=60)
        gate.go(3)
        second = worker.submit(request(model, (9, 9), most=4))
        gate.go(2)
        third = worker.submit(request(model, (4,), most=4))
        gate.free()
        replies = [collected(job) for job in (first, second, third)]
    assert max(stats.streams for stats in gate.passes) > 1
    for r, reply in zip(((1, 2, 3), (9, 9), (4,)), replies):
        assert reply[0] == alone(model, request(model, r, most=40 if len(r) == 3 else 4))[0]


def test_equal_prompts_asked_together_are_computed_once(model, pool):
    ids = list(range(1, 41))
    seen = Gate()
    with Worker(model, pool, queue=16, streams=3, observer=seen) as worker:
        jobs = worker.submit_all([request(model, ids, temperature=0.9, seed=i) for i in range(5)])
        replies = [collected(job) for job in jobs]
        assert max(stats.streams for stats in seen.passes) == 3
    assert [ended(r[2]).cached_tokens for r in replies] == [0, 39, 39, 39, 39]
    for i, reply in enumerate(replies):
        assert reply[0] == alone(model, request(model, ids, temperature=0.9, seed=i))[0]
    assert len({tuple(r[0]) for r in replies}) > 1


def test_a_repeated_prompt_is_cached_but_for_its_last_token(model, pool):
    ids = list(range(1, 31))
    with Worker(model, pool) as worker:
        first = collected(worker.submit(request(model, ids)))
        again = collected(worker.submit(request(model, ids)))
        other = collected(worker.submit(request(model, ids, tenant="other")))
    assert first[0] == again[0] == other[0]
    assert [r[2].cached_tokens for r in (first, again, other)] == [0, 29, 0]


def test_cancel_and_ask_again_many_times(model, pool):
    with Worker(model, pool) as worker:
        expected = alone(model, request(model, most=20))[0]
        threads = threading.active_count()
        for _ in range(50):
            job = worker.submit(request(model, most=20))
            next(iter(job))
            job.cancel()
        assert collected(worker.submit(request(model, most=20)))[0] == expected
        assert threading.active_count() <= threads + 1  # the one that prepares masks
        while worker.busy:
            pass
        assert worker._replies.scheduler.streams == []
    assert pool.stats().in_use == 0


@pytest.mark.parametrize("kind", ["ring", "recurrent", "latent", "routed"])
def test_a_beginning_that_many_share_is_stored_where_it_ends(kind):
    model, beginning = toy_model(kind), [(7 * i) % 250 for i in range(70)]
    with fucina.SlotPool(model, memory="64MiB") as pool, Worker(model, pool, streams=2) as worker:
        requests = [request(model, [*beginning, *tail]) for tail in ([1, 2, 3], [4, 5], [6, 7, 8], [9])]
        replies = [collected(worker.submit(r)) for r in requests]
        assert [ended(r[2]).cached_tokens for r in replies[2:]] == [70, 70]
        together = [collected(job) for job in [worker.submit(r) for r in requests]]
        gone = worker.submit(request(model, [*beginning[:50], 3, 3]))
        gone.cancel()
        assert isinstance(collected(gone)[2], Failed)
    for r, reply, again in zip(requests, replies, together):
        assert reply[0] == again[0] == alone(model, r)[0]
    model.close()


def test_a_beginning_that_cannot_be_computed_fails_alone(monkeypatch):
    model, beginning = toy_model("recurrent"), list(range(50))
    with fucina.SlotPool(model, memory="64MiB") as pool, Worker(model, pool) as worker:
        collected(worker.submit(request(model, [*beginning, 1])))
        forward = model.forward_rows

        def fails(requests):
            if requests[0][2] == 0 and len(requests) == 1 and requests[0][0].len + len(requests[0][1]) == 50:
                raise MemoryError
            return forward(requests)

        monkeypatch.setattr(model, "forward_rows", fails)
        assert isinstance(collected(worker.submit(request(model, [*beginning, 2])))[2].error, MemoryError)
        monkeypatch.undo()
        assert (
            collected(worker.submit(request(model, [*beginning, 3])))[0]
            == alone(model, request(model, [*beginning, 3]))[0]
        )
        assert pool.stats().in_use == 0
    model.close()


# --- failures ---------------------------------------------------------------------------------------------------------


def test_a_request_that_cannot_start_fails_alone(model, pool):
    with Worker(model, pool) as worker:
        good = worker.submit(request(model))
        bad = worker.submit(request(model, [10**6]))
        long = worker.submit(request(model, [1] * 1000))
        assert collected(good)[0] == alone(model, request(model))[0]
        for job in (bad, long):
            assert isinstance(collected(job)[2], Failed)


def test_an_error_of_the_pass_ends_those_that_run_and_the_next_request_is_answered(model, pool, monkeypatch):
    gate = Gate()
    gate.hold()
    with Worker(model, pool, streams=2, observer=gate) as worker:
        jobs = [worker.submit(request(model, (i,), most=30)) for i in range(1, 4)]
        assert gate.at.acquire(timeout=60)
        forward = model.forward_rows

        def fails(requests):
            monkeypatch.setattr(model, "forward_rows", forward)
            raise MemoryError("no room")

        monkeypatch.setattr(model, "forward_rows", fails)
        gate.free()
        ends = [collected(job) for job in jobs]
    failed = [i for i, r in enumerate(ends) if isinstance(r[2], Failed)]
    assert failed and all(isinstance(ends[i][2].error, MemoryError) for i in failed)
    assert ends[2][0] == alone(model, request(model, (3,), most=30))[0]


def test_an_observer_that_fails_changes_nothing(model, pool):
    class Bad(Observer):
        def passed(self, stats):
            raise ValueError("no")

        def ended(self, job, end, running):
            raise ValueError("no")

    with Worker(model, pool, observer=Bad()) as worker:
        assert isinstance(collected(worker.submit(request(model, [10**6])))[2], Failed)
        assert collected(worker.submit(request(model)))[0] == alone(model, request(model))[0]


def test_rows_of_a_prompt_that_cannot_be_shared_are_computed_again(model, pool, monkeypatch):
    def fails(self, tokens):
        raise MemoryError

    monkeypatch.setattr(Slot, "store", fails)
    with Worker(model, pool) as worker:
        jobs = worker.submit_all([request(model, seed=i, temperature=0.7) for i in range(3)])
        replies = [collected(job)[0] for job in jobs]
    assert replies == [alone(model, request(model, seed=i, temperature=0.7))[0] for i in range(3)]


def test_a_fault_of_the_worker_ends_its_requests_and_not_its_thread(model, pool, monkeypatch):
    with Worker(model, pool) as worker:

        def fails():
            monkeypatch.undo()
            raise SystemError("a fault")

        monkeypatch.setattr(worker._replies, "admit", fails)
        first = collected(worker.submit(request(model)))  # waits in the line, and is answered in the next round
        assert first[0] == alone(model, request(model))[0] and worker.alive


# --- the line ---------------------------------------------------------------------------------------------------------


def test_the_line_is_bounded(model, pool):
    gate = Gate()
    gate.hold()
    with Worker(model, pool, queue=2, streams=1, observer=gate) as worker:
        running = worker.submit(request(model, most=50))
        assert gate.at.acquire(timeout=60)
        waiting = [worker.submit(request(model)) for _ in range(2)]
        with pytest.raises(QueueFull, match="limit is 2"):
            worker.submit(request(model))
        assert (worker.busy, worker.waiting) == (1, 2)
        waiting[0].cancel()
        running.cancel()
        gate.free()
        assert isinstance(collected(waiting[0])[2].error, Cancelled)
        assert isinstance(collected(waiting[1])[2], Done)


def test_tenants_take_turns_and_priority_counts_within_one():
    line = Line(20)

    def jobs(tenant, *names, priority=0):
        return [Job(GenerateRequest([name], 1, tenant=tenant, priority=priority)) for name in names]

    line.add(jobs("a", 0, 1, 2, 3))
    line.add(jobs("b", 10))
    line.add(jobs("b", 11, priority=1))
    line.add(jobs("a", 4, priority=5))
    order = [job.request.ids[0] for job in iter(line.next, None)]
    assert order == [4, 11, 0, 10, 1, 2, 3]
    assert len(line) == 0


def test_all_of_several_jobs_or_none_may_wait():
    line = Line(3)
    line.add([Job(GenerateRequest([1], 1))])
    with pytest.raises(QueueFull):
        line.add([Job(GenerateRequest([1], 1)) for _ in range(3)])
    assert len(line) == 1
    line.add([Job(GenerateRequest([1], 1)) for _ in range(3)], free=1)
    assert len(line) == 4


# --- shutdown ---------------------------------------------------------------------------------------------------------


def test_refuse_lets_what_runs_go_on(model, pool):
    gate = Gate()
    gate.hold()
    with Worker(model, pool, streams=1, observer=gate) as worker:
        running, waiting = (worker.submit(request(model, most=30)) for _ in range(2))
        assert gate.at.acquire(timeout=60)
        worker.refuse()
        with pytest.raises(ShuttingDown):
            worker.submit(request(model))
        gate.free()
        assert collected(running)[0] == alone(model, request(model, most=30))[0]
        assert isinstance(collected(waiting)[2].error, ShuttingDown)
        worker.close()
        assert not worker.alive


def test_close_without_grace_ends_what_runs(model, pool):
    gate = Gate()
    gate.hold()
    worker = Worker(model, pool, observer=gate)
    running = worker.submit(request(model, most=100))
    assert gate.at.acquire(timeout=60)
    closing = threading.Thread(target=worker.close, args=(0.0,))
    closing.start()
    while not worker._deadline:
        pass
    gate.free()
    closing.join(60)
    assert not worker.alive
    tokens, _, end, _ = collected(running)
    assert isinstance(end.error, ShuttingDown)
    assert tokens == alone(model, request(model, most=100))[0][: len(tokens)]


def test_numbers_out_of_range(model, pool):
    for wrong in ({"queue": -1}, {"streams": 0}, {"streams": 1.5}):
        with pytest.raises(InvalidOption):
            Worker(model, pool, **wrong)


# --- events -----------------------------------------------------------------------------------------------------------


def test_events_reach_an_event_loop(model, pool):
    async def read(worker, r):
        text, tokens = "", []
        async for event in worker.submit(r):
            if isinstance(event, TextDelta):
                text, tokens = text + event.text, [*tokens, *event.tokens]
            else:
                return tokens, text, ended(event).finish

    async def both(worker):
        return await asyncio.gather(*(read(worker, request(model, (i,), most=9)) for i in range(6)))

    with Worker(model, pool, streams=3) as worker:
        replies = asyncio.run(both(worker))
    assert replies == [alone(model, request(model, (i,), most=9)) for i in range(6)]


def test_a_loop_that_is_gone_does_not_disturb_the_engine(model, pool):
    async def one(job):
        async for _ in job:
            return

    with Worker(model, pool) as worker:
        job = worker.submit(request(model, most=60))
        asyncio.run(one(job))
        expected = alone(model, request(model, (5,)))[0]
        assert collected(worker.submit(request(model, (5,))))[0] == expected


def test_logprobs_are_finite_and_those_of_the_model(model, pool):
    with Worker(model, pool) as worker:
        plain = collected(worker.submit(request(model, top_logprobs=3)))
        forced = collected(worker.submit(replace(request(model, top_logprobs=0), biases={7: 100.0})))
    assert [entry.token for entry in plain[3]] == plain[0]
    for entry in plain[3]:
        assert entry.top[0] == (entry.token, entry.logprob)  # greedy
        assert len(entry.top) == 3 and list(entry.top) == sorted(entry.top, key=lambda t: (-t[1], t[0]))
    assert set(forced[0]) == {7} and all(FLOOR <= e.logprob < -0.01 and e.top == () for e in forced[3])


def test_logprobs_of_odd_rows():
    row = np.array([0.0, -np.inf, 2.0, 2.0], np.float32)
    found = logprob_of(row, 1, 9)
    assert found.logprob == FLOOR
    assert [t for t, _ in found.top] == [2, 3, 0, 1]
    assert abs(sum(np.exp(p) for _, p in found.top) - 1) < 1e-12
    huge = logprob_of(np.array([3e38, -3e38], np.float32), 1, 2)
    assert huge.top == ((0, 0.0), (1, FLOOR))
