"""Errors injected at every point of a step: history and cache stay consistent, and decoding goes on from there."""

import math
from dataclasses import replace

import pytest

from fucina.engine import Scheduler
from fucina.errors import SharedStream
from fucina.sampling import Sampler, SamplerOptions
from fucina.speculative import CostTable, Options, SourceDrafter, SpeculationIndex
from tests.spec_toys import Hungry, Logged, Replay, ToyModel, decode, resume, start

PROMPT = [3, 1, 4, 1, 5]
OPTIONS = Options(max_draft=5, adapt_budget=False, min_speedup=0)
N = 30


class Injected(Exception):
    pass


def failing(function, at, error=Injected):
    """The function, but its call number `at` raises instead."""
    calls = [0]

    def call(*arguments, **named):
        calls[0] += 1
        if calls[0] == at:
            raise error(f"call {at}")
        return function(*arguments, **named)

    return call


def after(function, at):
    """Likewise, but the call that fails has done its work."""
    calls = [0]

    def call(*arguments, **named):
        calls[0] += 1
        out = function(*arguments, **named)
        if calls[0] == at:
            raise Injected(f"after call {at}")
        return out

    return call


class Setup:
    """A sampled turn with everything that can fail in it."""

    def __init__(self, greedy=False, model=None, seed=9):
        self.model = ToyModel() if model is None else model
        options = SamplerOptions(temperature=0 if greedy else 0.8, top_k=20, seed=seed, repeat_penalty=1.2)
        self.sampler = OpenSampler(Sampler(options, Logged()))
        self.taken = []
        self.on_token = self.taken.append
        self.on_row = lambda n, row: None

    def stream(self, drafter=None):
        return start(
            self.model, PROMPT, 60, self.sampler, drafter,
            max_tokens=N, on_token=lambda token: self.on_token(token), on_row=lambda n, row: self.on_row(n, row),
        )  # fmt: skip

    def text(self):
        return decode(self.model, self.stream())


class OpenSampler:
    """A sampler whose methods can be replaced."""

    def __init__(self, sampler):
        self._sampler, self.choose, self.commit = sampler, sampler.choose, sampler.commit

    def __getattr__(self, name):
        return getattr(self._sampler, name)


def consistent(stream):
    """The state holds rows of the tokens, of all but the newest where the stream goes on."""
    assert stream.state.held() == stream.tokens[: stream.state.len]
    if stream.committed:
        assert stream.state.len == len(stream.tokens) - (stream.stop_token is None)


WHERE = [
    ("source.suggest", failing, 8),
    ("source.observe", failing, 8),
    ("source.observe", after, 8),
    ("source.observe_top_k", failing, 5),
    ("source.truncate_pending", failing, 3),
    ("source.odds", failing, 8),
    ("sampler.choose", failing, 25),
    ("sampler.commit", failing, 25),
    ("sampler.processor.process", failing, 25),
    ("sampler.processor.commit", failing, 25),
    ("on_token", failing, 25),
    ("on_token", after, 25),
    ("model.forward_rows", failing, 8),
    ("on_row", failing, 25),
    ("on_step", failing, 5),
]


@pytest.mark.parametrize(("place", "how", "most"), WHERE, ids=[f"{w[0]}-{w[1].__name__}" for w in WHERE])
@pytest.mark.parametrize("spoiled", [False, True])
def test_errors_leave_a_stream_that_goes_on(place, how, most, spoiled):
    text = Setup().text()
    failures = 0
    for at in range(1, most + 1):
        setup = Setup()
        length = (lambda n: 9) if place == "source.truncate_pending" else None
        source = Hungry(text, (lambda i, t: (t + 1) % 24 if i == 2 else t) if spoiled else None, length)
        if place == "source.odds":
            source.odds = lambda n: [0.99] * n
        source.strict = (place, how) != ("source.observe", failing)  # what it refused it is not given again
        options = replace(OPTIONS, adapt_budget=place == "source.odds")
        on_step = how(lambda record: None, at) if place == "on_step" else None
        drafter = SourceDrafter(setup.model, source, options, timed=False, on_step=on_step)
        *path, name = place.split(".")
        owner = {"source": source, "sampler": setup.sampler, "model": setup.model}.get(path[0] if path else "", setup)
        owner = getattr(owner, path[1]) if len(path) > 1 else owner
        if place != "on_step":
            setattr(owner, name, how(getattr(owner, name), at))
        stream = setup.stream(drafter)
        while stream.finish is None:
            try:
                decode(setup.model, stream)
            except Injected:
                failures += 1
                consistent(stream)
                assert stream.tokens == text[: len(stream.tokens)]
                assert setup.sampler.rng.position == stream.committed  # one draw per token
                assert (
                    setup.sampler.processor.log == stream.tokens[len(PROMPT) :] or place == "sampler.processor.commit"
                )
                assert source.seen == text[: len(source.seen)] or not source.strict
                if place != "model.forward_rows":
                    assert isinstance(stream.error, Injected) and stream.finish == "error"
                    left, stream = stream.remaining, resume(stream)
                    stream.max_tokens = max(left, 1)
                else:
                    assert stream.error is None and stream.finish is None
        assert stream.tokens == text
        s = drafter.stats
        assert s.steps == s.spec_steps + s.fallback_steps + s.disabled_steps and s.committed == N
    assert failures >= min(most, 6) - 2


def test_an_index_whose_append_failed_drafts_nothing_more():
    text = Setup().text()
    setup = Setup()
    index = SpeculationIndex(24)
    stream = setup.stream(SourceDrafter(setup.model, index, OPTIONS))
    decode(setup.model, stream, steps=1)
    index.conversation.observe([-1])
    assert decode(setup.model, stream) == text and index.counts()["conversation"][1] == 0


def test_ctrl_c_in_the_middle_of_a_draft():
    text = Setup().text()
    setup = Setup()
    setup.on_token = failing(setup.on_token, 9, KeyboardInterrupt)
    stream = setup.stream(SourceDrafter(setup.model, Replay(text), OPTIONS))
    with pytest.raises(KeyboardInterrupt):
        decode(setup.model, stream)
    consistent(stream)
    assert len(stream.tokens) == len(PROMPT) + 9 and stream.finish is None
    assert decode(setup.model, stream) == text


# --- batches ----------------------------------------------------------------------------------------------------------


def batch_of(n):
    """n streams of one model that each have a perfect source, their prompts computed."""
    model = ToyModel()
    scheduler, texts, setups = Scheduler(model), [], []
    for i in range(n):
        texts.append(Setup(model=model, seed=i).text())
        setups.append(Setup(model=model, seed=i))
        scheduler.add(setups[-1].stream(SourceDrafter(model, Hungry(texts[-1]), OPTIONS)))
    scheduler.step()
    return scheduler, texts, setups


@pytest.mark.parametrize("place", ["suggest", "observe", "observe_top_k", "choose", "on_token"])
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_failing_stream_ends_alone(place, victim):
    scheduler, texts, setups = batch_of(3)
    setup, source = setups[victim], scheduler.streams[victim].drafter.source
    owner = {"choose": setup.sampler, "on_token": setup}.get(place, source)
    setattr(owner, place, failing(getattr(owner, place), 3))
    while scheduler.step() is not None:
        pass
    for i, (stream, text) in enumerate(zip(scheduler.streams, texts, strict=True)):
        consistent(stream)
        if i == victim:
            assert isinstance(stream.error, Injected) and stream.tokens == text[: len(stream.tokens)]
        else:
            assert stream.error is None and stream.tokens == text


def test_a_failing_pass_moves_nobody():
    scheduler, texts, _ = batch_of(3)
    scheduler.step()
    before = [list(s.tokens) for s in scheduler.streams]
    scheduler.engine.forward_rows = failing(scheduler.engine.forward_rows, 1)
    with pytest.raises(Injected):
        scheduler.step()
    assert [s.tokens for s in scheduler.streams] == before and all(s.error is None for s in scheduler.streams)
    while scheduler.step() is not None:
        pass
    assert [s.tokens for s in scheduler.streams] == texts


def test_ctrl_c_in_a_batch_leaves_all_streams_whole():
    scheduler, texts, setups = batch_of(3)
    setups[1].on_token = failing(setups[1].on_token, 3, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        while scheduler.step() is not None:
            pass
    for stream in scheduler.streams:
        consistent(stream)
    while scheduler.step() is not None:
        pass
    assert [s.tokens for s in scheduler.streams] == texts


@pytest.mark.parametrize("what", ["state", "sampler", "tokens", "processor", "drafter", "draft source"])
def test_streams_share_nothing(what):
    scheduler, _, _ = batch_of(2)
    first = scheduler.streams[0]
    drafter = SourceDrafter(scheduler.engine, first.drafter.source if what == "draft source" else Replay([]))
    stream = Setup(model=scheduler.engine).stream(drafter)
    if what == "processor":
        stream.sampler._sampler.processor = first.sampler.processor
    elif what != "draft source":
        setattr(stream, what, getattr(first, what))
    with pytest.raises(SharedStream, match=what):
        scheduler.add(stream)
    assert len(scheduler.streams) == 2
    first.finish = "length"  # what a stream that has ended had may be used again
    scheduler.add(stream)


def test_a_pass_is_paid_by_those_who_draft():
    model = ToyModel()
    table = CostTable.of([(1, 1.0), (3, 2.0), (12, 5.0)])
    scheduler, records = Scheduler(model), []
    for drafts in (6, 3, 0):
        records.append([])
        options = Options(max_draft=drafts, adapt_budget=False, loss_credit=math.inf, cost_table=table)
        source = Replay(Setup(model=model).text())
        drafter = SourceDrafter(model, source, options, timed=False, on_step=records[-1].append)
        scheduler.add(Setup(model=model).stream(drafter))
    scheduler.step()
    scheduler.step()
    # 12 rows cost 5, three plain rows 2: the pass is 2.5 plain ones; 3 x 1.5 extra go 6 : 3 : 0
    assert [r[0].cost for r in records] == pytest.approx([1 + 3.0, 1 + 1.5, 1])
    assert [s.drafter.gate.speedup for s in scheduler.streams[:2]] == pytest.approx([7 / 4, 4 / 2.5])
