"""Memory that is short: replies make room for others and go on to the same tokens; nobody is set aside for ever."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import fucina
from fucina.cache.memory import bytes_held
from fucina.cache.pool import Slot
from fucina.errors import InvalidOption, RequestTooLarge, ShuttingDown
from fucina.sampling import SamplerOptions
from fucina.serve import Done, Failed, GenerateRequest, Job, Observer, Worker
from fucina.serve.jobs import Cancelled
from fucina.serve.memory import AHEAD, STEP, TURNS, Memory, to_set_aside
from fucina.serve.vectors import VectorRequest
from tests.serving import KINDS, alone, collected, ended, models_of_all_kinds


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    with models_of_all_kinds(tmp_path_factory.mktemp("models")) as get:
        yield get


def size(model, rows):
    return bytes_held(model.new_cache(1).layout, model.cache_dtype, model.context, rows)


class Watch(Observer):
    """Counts, and holds the engine's thread after passes if asked to."""

    def __init__(self, worker=None):
        self.aside, self.most, self.worker, self.at_pass = [], 0, worker, None

    def passed(self, stats):
        memory = self.worker._memory
        self.most = max(self.most, memory.used(self.worker._replies.running, 0) + self.worker.pool.stats().bytes)
        if self.at_pass is not None:
            self.at_pass()

    def set_aside(self, job):
        self.aside.append(job)


def working(model, pool, watch, **options):
    worker = Worker(model, pool, observer=watch, **options)
    watch.worker = worker
    return worker


def long_request(generator, model, i):
    """A request whose reply takes several blocks of memory."""
    ids = generator.integers(0, 250, generator.integers(2, 60)).tolist()
    grammar = fucina.Grammar.regex("[a-f]{90,100}x") if i % 4 == 1 else None
    options = SamplerOptions(temperature=[0.0, 0.9][i % 2], seed=i, repeat_penalty=1.1)
    most = int(generator.integers(60, 200))
    room = model.context - len(ids)
    return GenerateRequest(
        ids, min(most, room), options, stops=("ee",) if i % 5 == 0 else (), ends=model.tokenizer.eog_ids, grammar=grammar,
        grammar_ends=model.tokenizer.eog_ids, biases={7: 2.0} if i % 3 == 0 else None,
        top_logprobs=1 if i % 3 == 1 else None, tenant=f"t{i % 2}", priority=int(generator.integers(-1, 2)),
    )  # fmt: skip


@pytest.mark.parametrize("disk", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_replies_that_were_set_aside_are_the_same(models, kind, disk, tmp_path, monkeypatch):
    monkeypatch.setattr("fucina.serve.memory.AHEAD", STEP)  # so that it happens often
    model, generator = models(kind), np.random.default_rng(len(kind))
    requests = [long_request(generator, model, i) for i in range(10)]
    budget = size(model, 128) + size(model, min(256, model.context))
    watch = Watch()
    with (
        fucina.SlotPool(model, budget, tmp_path if disk else None, background=True) as pool,
        working(model, pool, watch, queue=20, streams=6, speculation=True, memory=budget) as worker,
    ):
        jobs = [worker.submit(r) for r in requests]
        replies = [collected(job) for job in jobs]
        assert worker.set_aside == worker.busy == worker.waiting == 0 and not worker._line._passed
        assert pool.stats().in_use == 0
    for r, (tokens, text, end, logprobs) in zip(requests, replies, strict=True):
        assert (tokens, text, ended(end).finish) == alone(model, r)
        assert len(logprobs) == (0 if r.top_logprobs is None else len(tokens))
        assert ended(end).prompt_tokens == len(r.ids)
    assert watch.aside, "memory was never short: the test shows nothing"
    assert watch.most <= budget + size(model, 64)  # a pass may begin one more block, before the next one makes room
    assert max(job.set_aside for job in jobs) <= 12


def test_a_reply_goes_on_with_the_rows_that_the_pool_kept(models):
    """Set aside, and resumed at once: what is computed again is counted."""
    model = models("chat")
    request = GenerateRequest(list(range(1, 41)), 60, SamplerOptions(temperature=0.8, seed=3))
    watch = Watch()
    with fucina.SlotPool(model, "64MiB") as pool, working(model, pool, watch) as worker:
        passes, seen = [], []

        def at_pass():  # what it raises is dropped
            passes.append(1)
            if len(passes) in (5, 20, 21):
                (running,) = worker._replies.running
                rows = running.stream.cached
                running.set_aside()
                aside = running.stream.cached, pool.stats().in_use
                running.resume()
                seen.append((*aside, rows - running.stream.cached))

        watch.at_pass = at_pass
        assert collected(worker.submit(request))[:2] == alone(model, request)[:2]
    assert seen == [(0, 0, 0)] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_are_lost_are_computed_again(models, kind, monkeypatch):
    model = models(kind)
    request = GenerateRequest(list(range(1, 41)), 20, SamplerOptions(temperature=0.8, seed=3))
    monkeypatch.setattr(Slot, "release", lambda self, tokens: self.discard())
    watch, passes, seen = Watch(), [], []
    with fucina.SlotPool(model, 0) as pool, working(model, pool, watch, speculation=True) as worker:

        def at_pass():
            passes.append(1)
            if len(passes) in (1, 2, 4, 9):
                (running,) = worker._replies.running
                running.set_aside()
                running.resume()
                seen.append(running.stream.cached)

        watch.at_pass = at_pass
        assert collected(worker.submit(request))[:2] == alone(model, request)[:2]
    assert seen == [0] * 4


def test_what_can_never_fit_is_refused_before_it_starts(models):
    model = models("chat")
    with fucina.SlotPool(model, "64MiB") as pool, Worker(model, pool, memory=size(model, 128)) as worker:
        assert worker.longest == 128
        with pytest.raises(RequestTooLarge, match="a prompt of 100 tokens with a reply of up to 29 .* for 128 tokens"):
            worker.submit(GenerateRequest([1] * 100, 29))
        with pytest.raises(RequestTooLarge):  # all or none
            worker.submit_all([GenerateRequest([1], 1), GenerateRequest([1] * 300, 29)])
        assert worker.busy == worker.waiting == 0
        request = GenerateRequest([1] * 100, 28)
        assert collected(worker.submit(request))[0] == alone(model, request)[0]
    for wrong in (-1, "much", 1.5, 0, size(model, 64) - 1):
        with pytest.raises(InvalidOption), fucina.SlotPool(model) as pool:
            Worker(model, pool, memory=wrong)


def test_the_pool_gets_what_streams_leave(models):
    model = models("chat")
    budget = size(model, 256)
    with fucina.SlotPool(model, budget) as pool, Worker(model, pool, streams=1, memory=budget) as worker:
        texts = [GenerateRequest([i] * 60, 3) for i in range(4)]
        for r in texts:
            collected(worker.submit(r))
        stored = pool.stats().entries
        assert stored >= 2
        collected(worker.submit(GenerateRequest([9] * 180, 60)))
        assert pool.stats().evictions >= 2
        assert pool.stats().budget == budget  # nobody runs: all of it


def test_who_is_set_aside():
    class One:
        def __init__(self, arrival, tenant="", priority=0, times=0):
            self.job = Job(GenerateRequest([1], 1, tenant=tenant, priority=priority))
            self.job.arrival, self.job.set_aside = arrival, times

    old, mid, new = One(1), One(2), One(3)
    assert to_set_aside([old, mid, new]) is new
    low = One(1, priority=-1)
    assert to_set_aside([low, mid, new]) is low
    assert to_set_aside([One(1, "a", -5), One(2, "b", 3), one := One(4, "b", 2), One(3, "b", 2)]) is one
    often = One(3, times=TURNS)
    assert to_set_aside([old, mid, often]) is mid
    assert to_set_aside([One(1, times=TURNS), often]) is often


def test_cancelled_while_set_aside(models):
    model = models("chat")
    budget = size(model, 256)
    watch = Watch()
    with (
        fucina.SlotPool(model, budget) as pool,
        working(model, pool, watch, streams=3, memory=budget) as worker,
    ):
        requests = [GenerateRequest([i] * 20, 200) for i in range(3)]
        jobs = [worker.submit(r) for r in requests]
        watch.at_pass = lambda: [job.cancel() for job in watch.aside[:1]]
        replies = [collected(job) for job in jobs]
    gone = jobs.index(watch.aside[0])
    for i, (r, reply) in enumerate(zip(requests, replies, strict=True)):
        expected = alone(model, r)
        if i == gone:
            assert isinstance(reply[2].error, Cancelled)
            assert reply[0] == expected[0][: len(reply[0])]
        else:
            assert reply[:2] == expected[:2]
    assert pool.stats().in_use == 0


@pytest.mark.parametrize("grace", [0.0, 60.0])
def test_shutting_down_while_some_are_set_aside(models, grace):
    """Those that have begun may end within the grace time, those that only wait are refused."""
    model = models("chat")
    budget = size(model, 256)
    watch, reached, go = Watch(), threading.Event(), threading.Event()
    with fucina.SlotPool(model, budget) as pool:
        worker = working(model, pool, watch, streams=3, memory=budget)
        jobs = [worker.submit(GenerateRequest([i] * 20, 200)) for i in range(2)]  # for three there is no room

        def at_pass():
            if watch.aside and not reached.is_set():
                reached.set()
                go.wait(60)

        watch.at_pass = at_pass
        assert reached.wait(60)
        late = worker.submit(GenerateRequest([9], 3))
        closing = threading.Thread(target=worker.close, args=(grace,))
        closing.start()
        while worker._deadline is None:
            pass
        go.set()
        closing.join(60)
        assert not worker.alive
        ends = [collected(job)[2] for job in jobs]
        assert isinstance(collected(late)[2].error, ShuttingDown)
        for end in ends:
            assert isinstance(end, Done) if grace else isinstance(end.error, ShuttingDown)
        assert pool.stats().in_use == 0


def test_a_reply_that_cannot_be_set_aside_fails_alone(models, monkeypatch):
    model = models("chat")
    budget = size(model, 256)
    release, watch, failed = Slot.release, Watch(), []

    def fails(self, tokens):
        if not failed:
            failed.append(1)
            raise MemoryError
        release(self, tokens)

    monkeypatch.setattr(Slot, "release", fails)
    with (
        fucina.SlotPool(model, budget) as pool,
        working(model, pool, watch, streams=3, memory=budget) as worker,
    ):
        requests = [GenerateRequest([i] * 20, 200) for i in range(3)]
        replies = [collected(job) for job in [worker.submit(r) for r in requests]]
        assert pool.stats().in_use == 0
    wrong = [i for i, r in enumerate(replies) if isinstance(r[2], Failed)]
    assert len(wrong) == 1 and isinstance(replies[wrong[0]][2].error, MemoryError)
    for i in {0, 1, 2} - set(wrong):
        assert replies[i][:2] == alone(model, requests[i])[:2]


def test_counted_bytes_are_those_that_rows_touch(models):
    """The arithmetic against the arrays: what a state has written after so many rows, in blocks of 64."""
    for kind in KINDS:
        model = models(kind)
        for rows in (1, 64, 65, 100):
            state = model.new_cache(128)
            model.forward_rows([(state, [1] * rows, "none")])
            blocks = -(-rows // 64) * 64
            planes = {plane.ctypes.data: plane[:, :blocks].nbytes for p in state._planes.values() for plane in p.stored}
            banks = state._banks.byte_size() if state._banks is not None else 0
            assert bytes_held(state.layout, state.dtype, 128, rows) == sum(planes.values()) + banks


def test_texts_for_vectors_are_never_set_aside(models, monkeypatch):
    """They have their memory from the beginning; replies make room beside them, and both are what they are alone."""
    monkeypatch.setattr("fucina.serve.memory.AHEAD", STEP)
    model, generator, watch = models("chat"), np.random.default_rng(2), Watch()
    budget = size(model, 128) + size(model, 256)
    texts = [[int(t) for t in generator.integers(0, 256, n)] for n in (70, 3, 120, 64, 1, 100)]
    requests = [long_request(generator, model, i) for i in range(6)]
    with (
        fucina.SlotPool(model, budget) as pool,
        working(model, pool, watch, queue=30, streams=6, memory=budget) as worker,
    ):
        jobs, vectors = [], []
        for i, request in enumerate(requests):
            jobs.append(worker.submit(request))
            vectors.append(worker.submit(VectorRequest.of(texts, ["last", "mean"][i % 2], f"t{i % 3}")))
        replies, ends = [collected(job) for job in jobs], [collected(job)[2] for job in vectors]
        assert pool.stats().in_use == worker.set_aside == worker.busy == 0 and not worker._line._passed
    assert watch.aside and not any(isinstance(job.request, VectorRequest) for job in watch.aside)
    assert watch.most <= budget + size(model, 64)
    for r, (tokens, text, end, _) in zip(requests, replies, strict=True):
        assert (tokens, text, ended(end).finish) == alone(model, r)
    for i, end in enumerate(ends):
        assert np.stack(end.vectors).tobytes() == model.embed(texts, ["last", "mean"][i % 2]).tobytes()


def test_texts_for_vectors_that_can_never_fit_are_refused(models):
    model = models("chat")
    with fucina.SlotPool(model, "64MiB") as pool, Worker(model, pool, memory=size(model, 128)) as worker:
        with pytest.raises(RequestTooLarge, match="a text of 129 tokens .* for 128 tokens"):
            worker.submit(VectorRequest.of([[1], [1] * 129]))
        assert isinstance(collected(worker.submit(VectorRequest.of([[1] * 128] * 5)))[2], Done)  # one after another


def test_memory_counts_prompts_that_are_not_computed_yet(models):
    model = models("chat")
    with fucina.SlotPool(model, "64MiB") as pool:
        memory = Memory(model, pool, size(model, 512))

        class One:
            job = Job(GenerateRequest([1] * 200, 100))

            class stream:
                tokens = [1] * 200

        assert memory.used([One], 0) == size(model, 200)
        assert memory.fits(One.job, 200, [])
        assert not memory.fits(One.job, 200, [One])
        assert 200 + AHEAD > 256
