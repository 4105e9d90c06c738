"""What running replies feel of others: counted in passes, rows and the costs that the table gives them, by no clock."""

from __future__ import annotations

import threading
from contextlib import suppress

import numpy as np
import pytest

import fucina
from fucina.defaults import PREFILL_STRETCH
from fucina.engine import PassStats, default_table
from fucina.engine.prefill import PrefillShare
from fucina.errors import InvalidOption, QueueFull
from fucina.serve import GenerateRequest, Observer, TextDelta, Worker
from tests.chat_model import write_chat_model
from tests.serving import alone, collected
from tests.toy_families import toy_model

MOST = 2.5  # so many times as long may a token of a running reply take when prompts join it


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = write_chat_model(tmp_path_factory.mktemp("model") / "chat.gguf")
    with pytest.warns(UserWarning, match="longer than"):
        model = fucina.load(path, context=2304)
    yield model
    model.close()


class Passes(Observer):
    """Each pass: who decoded in it (by their prompt's first token), and its cost beside that of its decode rows alone."""

    def __init__(self):
        self.worker, self.found, self.tokens = None, [], []
        self.then = None

    def passed(self, stats):
        curve = default_table().curve(stats.context)
        ratio = curve[min(stats.rows + stats.prefill, 128)] / curve[stats.rows] if stats.rows else None
        self.found.append((stats, ratio))
        gained = {(r.job.request.ids[0], id(r.job)): len(r.stream.tokens) for r in self.worker._replies.running}
        self.tokens.append(gained)
        if self.then is not None:
            self.then(len(self.found))

    @property
    def worst(self):
        """The dearest pass that a reply took part in, but for those that had one row of a prompt: less is impossible."""
        return max(ratio for stats, ratio in self.found if ratio is not None and stats.prefill != 1)


def working(model, pool, passes, **options):
    worker = Worker(model, pool, observer=passes, **options)
    passes.worker = worker
    return worker


def request(name, n=3, most=20):
    return GenerateRequest([name, *[(name + i) % 250 for i in range(n - 1)]], most)


def test_no_measurement_lets_prompts_take_more_than_they_may():
    """Whatever passes took: the corrected number of rows stays below the factor, by the table."""
    generator = np.random.default_rng(0)
    table = default_table()
    for _ in range(300):
        share, context = PrefillShare(PREFILL_STRETCH), int(generator.integers(4096))
        for _ in range(40):
            own, prefill = int(generator.integers(0, 60)), int(generator.choice([0, 5]))
            share.learn(PassStats(own, own, 0, context, float(generator.choice([1e-4, 1e-2, 1.0])), prefill))
        own = int(generator.integers(1, 100))
        rows = share.rows(own, 128, [context])
        curve = table.curve(context)
        assert rows >= 1
        assert rows == 1 or curve[own + rows] <= MOST * curve[own], (own, rows, context)


@pytest.mark.parametrize("streams", [1, 4, 8])
def test_a_prompt_of_2000_tokens_arrives(model, streams):
    passes = Passes()
    with fucina.SlotPool(model, "64MiB") as pool, working(model, pool, passes, streams=10) as worker:
        running = [worker.submit(request(i + 1, most=2000)) for i in range(streams)]
        for job in running:
            next(iter(job))
        long = worker.submit(request(200, 2000, 2))
        collected(long)
        for job in running:
            job.cancel()
        replies = [collected(job) for job in running]
    joined = [i for i, (stats, _) in enumerate(passes.found) if stats.prefill and stats.rows >= streams]
    assert sum(passes.found[i][0].prefill for i in joined) >= 1900
    assert passes.worst <= MOST
    for i in joined[1:]:  # everybody had a token in each of these passes
        before, after = passes.tokens[i - 1], passes.tokens[i]
        assert all(after[name] == before[name] + 1 for name in before if name[0] != 200 and name in after)
    for i, reply in enumerate(replies):
        assert reply[0]
        expected = alone(model, request(i + 1, most=len(reply[0]) + 1))[0]
        assert expected[1 : 1 + len(reply[0])] == reply[0]  # the first was read before


def test_a_stretch_of_ones_own(model):
    found = {}
    for stretch in (1, PREFILL_STRETCH, 50):
        passes = Passes()
        with fucina.SlotPool(model, "64MiB") as pool, working(model, pool, passes, stretch=stretch) as worker:
            running = worker.submit(request(1, most=600))
            next(iter(running))
            collected(worker.submit(request(200, 300, 2)))
            running.cancel()
        found[stretch] = max(stats.prefill for stats, ratio in passes.found if ratio is not None)
    assert found[1] == 1 < found[PREFILL_STRETCH] < found[50]
    with fucina.SlotPool(model) as pool:
        for wrong in (0, 0.5, float("nan"), "2"):
            with pytest.raises(InvalidOption):
                Worker(model, pool, stretch=wrong)


def test_admitted_requests_keep_their_speed_when_far_too_many_ask(model):
    """Ten times as many requests as there are places: who is admitted has a token in every pass, as alone."""
    passes, admitted, refused, asking = Passes(), [], [], threading.Event()
    with fucina.SlotPool(model, "64MiB") as pool, working(model, pool, passes, queue=4, streams=4) as worker:

        def ask(n):  # between any two passes ten more ask, from three tenants
            if asking.is_set() or n > 200:
                return
            for i in range(10):
                r = request(1 + (10 * n + i) % 240, 3 + (n + i) % 40, 12)
                try:
                    admitted.append((r, worker.submit(r)))
                except QueueFull:
                    refused.append(r)

        passes.then = ask
        collected(worker.submit(request(0)))
        while len(admitted) < 30:
            assert worker.alive
        asking.set()
        replies = [collected(job) for _, job in admitted]
    assert len(refused) > 5 * len(admitted) / 2
    assert passes.worst <= MOST
    assert all(stats.streams <= 4 for stats, _ in passes.found)
    for (r, _), (tokens, text, end, _) in zip(admitted, replies, strict=True):
        assert (tokens, text, end.finish) == alone(model, r)
    # No pass leaves out a reply that decodes: the tokens of each grow by one from pass to pass.
    seen: dict[int, list[int]] = {}
    for gained in passes.tokens:
        for name in set(seen) - set(gained):
            lengths = seen.pop(name)
            started = [n for n in lengths if n > lengths[0]]
            assert started == list(range(lengths[0] + 1, lengths[0] + 1 + len(started)))
        for name, n in gained.items():
            seen.setdefault(name, []).append(n)


def test_rows_that_were_given_up_come_back_beside_the_others(model):
    """A stream of 1,000 tokens that lost its rows is no longer pass for the others than a prompt."""
    passes = Passes()
    with fucina.SlotPool(model, 0) as pool, working(model, pool, passes) as worker:
        long = worker.submit(request(200, 1000, 400))
        next(iter(long))
        running = worker.submit(request(1, most=800))
        next(iter(running))

        lost = []

        def lose(n):
            found = next((r for r in worker._replies.running if r.job is long), None)
            if found is not None and not lost and found.stream.committed > 100:
                found.set_aside()
                found.resume()
                lost.append((n, found.stream.pending))

        passes.then = lose
        replies = [collected(job) for job in (long, running)]
    (at, pending), *_ = lost
    assert pending > 1100
    assert all(stats.rows for stats, _ in passes.found[at : at + 200])  # the other one goes on meanwhile
    assert passes.worst <= MOST
    assert sum(stats.prefill for stats, _ in passes.found[at:]) == pending  # all of them, also the last few
    for r, reply in zip((request(200, 1000, 400), request(1, most=800)), replies, strict=True):
        assert alone(model, r)[0][1:] == reply[0]


@pytest.mark.parametrize("kind", ["ring", "recurrent"])
def test_a_beginning_that_is_stored_on_the_way_costs_no_pass_of_its_own(kind):
    """Every row of a prompt runs in a pass of the scheduler, beside the others."""
    model, beginning, passes = toy_model(kind), [(7 * i) % 250 for i in range(70)], Passes()
    calls, forward = [], model.forward_rows

    def counted(requests):
        calls.append(sum(len(tokens) for _, tokens, _ in requests))
        return forward(requests)

    model.forward_rows = counted
    with fucina.SlotPool(model, "64MiB") as pool, working(model, pool, passes) as worker:
        running = worker.submit(request(9, most=100))
        next(iter(running))
        for tail in ([1], [2], [3]):
            collected(worker.submit(GenerateRequest([*beginning, *tail], 2)))
        running.cancel()
        with suppress(StopIteration):
            while isinstance(next(iter(running)), TextDelta):
                pass
    assert calls == [stats.rows + stats.prefill for stats, _ in passes.found]
    assert passes.worst <= MOST
    model.close()
