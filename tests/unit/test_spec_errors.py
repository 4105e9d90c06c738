"""Errors injected at every point of a step: history and cache stay consistent, and decoding goes on from there."""

import math
from dataclasses import replace

import pytest

from fucina.decoding import Decoder
from fucina.errors import SharedStream
from fucina.sampling import Sampler, SamplerOptions
from fucina.speculative import BatchDecoder, Options, SpeculationIndex, SpeculativeDecoder
from tests.spec_toys import Hungry, Logged, Replay, ToyModel, decode, prefilled

PROMPT = [3, 1, 4, 1, 5]
OPTIONS = Options(max_draft=5, adapt_budget=False, min_speedup=0)
N = 30


class Injected(Exception):
    pass


def failing(function, at, error=Injected):
    """The function, but its call number `at` raises instead."""
    calls = [0]

    def call(*arguments):
        calls[0] += 1
        if calls[0] == at:
            raise error(f"call {at}")
        return function(*arguments)

    return call


def after(function, at):
    """Likewise, but the call that fails has done its work."""
    calls = [0]

    def call(*arguments):
        calls[0] += 1
        out = function(*arguments)
        if calls[0] == at:
            raise Injected(f"after call {at}")
        return out

    return call


class Setup:
    """A sampled turn with everything that can fail in it."""

    def __init__(self, greedy=False):
        self.model = ToyModel()
        self.sampler = Sampler(
            SamplerOptions(temperature=0 if greedy else 0.8, top_k=20, seed=9, repeat_penalty=1.2), Logged()
        )
        self.sunk = []
        self.sink = self.sunk.append

    def stream(self):
        return prefilled(self.model, PROMPT, 60, self.sampler, max_tokens=N, sink=lambda token: self.sink(token))

    def text(self):
        stream, logits = self.stream()
        return decode(Decoder(self.model), stream, logits)


def consistent(stream):
    ended_by_stop = stream.stop_token is not None
    assert stream.cache.len == len(stream.history) - (not ended_by_stop)
    assert stream.cache.held() == stream.history[: stream.cache.len]


WHERE = [
    ("source.suggest", failing, 8),
    ("source.observe", failing, 8),
    ("source.observe", after, 8),
    ("source.observe_top_k", failing, 5),
    ("source.truncate_pending", failing, 3),
    ("source.odds", failing, 8),
    ("sampler.next", failing, 25),
    ("sampler.processor.process", failing, 25),
    ("sampler.processor.commit", failing, 25),
    ("sink", failing, 25),
    ("sink", after, 25),
    ("model.forward_rows", failing, 8),
    ("hook", failing, 25),
    ("on_step", failing, 5),
]


class OpenSampler:
    """A sampler whose `next` can be replaced."""

    def __init__(self, sampler):
        self._sampler, self.next = sampler, sampler.next

    def __getattr__(self, name):
        return getattr(self._sampler, name)


@pytest.mark.parametrize(("place", "how", "most"), WHERE, ids=[f"{w[0]}-{w[1].__name__}" for w in WHERE])
@pytest.mark.parametrize("spoiled", [False, True])
def test_errors_leave_a_stream_that_goes_on(place, how, most, spoiled):
    greedy = place == "sampler.processor.commit"  # a draw is made before it: only greedy can be repeated
    text = Setup(greedy).text()
    failures = 0
    for at in range(1, most + 1):
        setup = Setup(greedy)
        setup.sampler = OpenSampler(setup.sampler)
        length = (lambda n: 9) if place == "source.truncate_pending" else None
        source = Hungry(text, (lambda i, t: (t + 1) % 24 if i == 2 else t) if spoiled else None, length)
        if place == "source.odds":
            source.odds = lambda n: [0.99] * n
        source.strict = (place, how) != ("source.observe", failing)  # what it refused it is not told again
        hooks = {"hook": lambda n, row: None, "on_step": lambda record: None}
        target, name = {"source": source, "sampler": setup.sampler, "model": setup.model}, place.split(".")[-1]
        if place in hooks:
            hooks[place] = how(hooks[place], at)
        elif place == "sink":
            setup.sink = how(setup.sink, at)
        stream, logits = setup.stream()
        if place == "sampler.processor.process" or place == "sampler.processor.commit":
            setattr(setup.sampler.processor, name, how(getattr(setup.sampler.processor, name), at))
        elif "." in place:
            owner = target[place.split(".")[0]]
            setattr(owner, name, how(getattr(owner, name), at))
        options = replace(OPTIONS, adapt_budget=place == "source.odds")
        decoder = SpeculativeDecoder(
            setup.model, source, options, vocab=24, timed=False, on_row=hooks["hook"], on_step=hooks["on_step"]
        )
        started = False
        while not started:
            try:
                decoder.bootstrap_step(stream, logits)
            except Injected:
                failures += 1
                started = len(stream.history) > len(PROMPT)
                assert stream.cache.held() == PROMPT[: stream.cache.len]
                if not started and stream.cache.len < len(PROMPT):  # its row has been dropped: run it again
                    logits = setup.model.forward_rows([(stream.cache, stream.history[stream.cache.len :], "last")])[0]
            else:
                started = True
        while not stream.ended:
            try:
                decoder.step(stream)
            except Injected:
                failures += 1
            consistent(stream)
            assert stream.history == text[: len(stream.history)]
            assert source.seen == text[: len(source.seen)] or not source.strict
        assert stream.history == text
        s = decoder.stats
        assert s.steps == s.spec_steps + s.fallback_steps + s.disabled_steps and s.committed == N
    assert failures >= min(most, 6) - 2


def test_an_index_whose_append_failed_drafts_nothing_more():
    setup = Setup()
    text = setup.text()
    setup = Setup()
    index = SpeculationIndex(24)
    decoder = SpeculativeDecoder(setup.model, index, OPTIONS, vocab=24)
    stream, logits = setup.stream()
    decoder.bootstrap_step(stream, logits)
    index.conversation.observe([-1])
    while not stream.ended:
        decoder.step(stream)
    assert stream.history == text and index.counts()["conversation"][1] == 0


def test_ctrl_c_in_the_middle_of_a_draft():
    setup = Setup()
    text = setup.text()
    setup = Setup()
    setup.sink = failing(setup.sink, 9, KeyboardInterrupt)
    stream, logits = setup.stream()
    decoder = SpeculativeDecoder(setup.model, Replay(text), OPTIONS, vocab=24)
    with pytest.raises(KeyboardInterrupt):
        decode(decoder, stream, logits)
    consistent(stream)
    assert len(stream.history) == len(PROMPT) + 9
    while not stream.ended:
        decoder.step(stream)
    assert stream.history == text


# --- batches ----------------------------------------------------------------------------------------------------------


def batch_of(n, spoil=None):
    """n streams of one model that each have a perfect source."""
    model = ToyModel()
    batch, texts, setups = BatchDecoder(model), [], []
    for i in range(n):
        setup = Setup()
        setup.model = model
        setup.sampler = OpenSampler(Sampler(SamplerOptions(temperature=0.8, seed=i), Logged()))
        text = setup.text()
        setup.sampler = OpenSampler(Sampler(SamplerOptions(temperature=0.8, seed=i), Logged()))
        stream, logits = setup.stream()
        decoder = SpeculativeDecoder(model, Hungry(text), OPTIONS, vocab=24, cost=batch.cost)
        decoder.bootstrap_step(stream, logits)
        batch.add(stream, decoder)
        texts.append(text)
        setups.append(setup)
    return batch, texts, setups


@pytest.mark.parametrize("place", ["suggest", "observe", "observe_top_k", "next", "sink"])
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_failing_stream_ends_alone(place, victim):
    batch, texts, setups = batch_of(3)
    member = batch.members[victim]
    owner = {"next": setups[victim].sampler, "sink": setups[victim]}.get(place, member.decoder.source)
    setattr(owner, place, failing(getattr(owner, place), 3))
    while batch.live:
        batch.step()
    for i, (m, text) in enumerate(zip(batch.members, texts, strict=True)):
        consistent(m.stream)
        if i == victim:
            assert isinstance(m.error, Injected) and m.stream.history == text[: len(m.stream.history)]
        else:
            assert m.error is None and m.stream.history == text


def test_a_failing_pass_moves_nobody():
    batch, texts, _setups = batch_of(3)
    batch.step()
    before = [list(m.stream.history) for m in batch.members]
    batch.model.forward_rows = failing(batch.model.forward_rows, 1)
    with pytest.raises(Injected):
        batch.step()
    assert [m.stream.history for m in batch.members] == before and all(m.error is None for m in batch.members)
    while batch.live:
        batch.step()
    assert [m.stream.history for m in batch.members] == texts


def test_ctrl_c_in_a_batch_leaves_all_streams_whole():
    batch, texts, setups = batch_of(3)
    setups[1].sink = failing(setups[1].sink, 3, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        while batch.live:
            batch.step()
    for m in batch.members:
        consistent(m.stream)
    while batch.live:
        batch.step()
    assert [m.stream.history for m in batch.members] == texts


@pytest.mark.parametrize("what", ["cache", "sampler", "history", "processor", "decoder", "source"])
def test_streams_share_nothing(what):
    batch, _texts, _setups = batch_of(2)
    first = batch.members[0]
    setup = Setup()
    setup.model = batch.model
    stream, logits = setup.stream()
    decoder = SpeculativeDecoder(batch.model, Replay([]), vocab=24)
    decoder.bootstrap_step(stream, logits)
    if what == "processor":
        stream.sampler.processor = first.stream.sampler.processor
    elif what == "source":
        decoder.source = first.decoder.source
    elif what == "decoder":
        decoder = first.decoder
    else:
        setattr(stream, what, getattr(first.stream, what))
    with pytest.raises(SharedStream, match=what):
        batch.add(stream, decoder)
    assert len(batch.members) == 2


def test_a_pass_is_paid_by_those_who_draft():
    from fucina.speculative import CostTable

    model = ToyModel()
    table = CostTable.of([(1, 1.0), (3, 2.0), (12, 5.0)])
    batch = BatchDecoder(model, Options(cost_table=table), timed=False)
    records = []
    for drafts in (6, 3, 0):
        setup = Setup()
        setup.model = model
        text = setup.text()
        setup = Setup()
        setup.model = model
        stream, logits = setup.stream()
        seen = []
        records.append(seen)
        options = Options(max_draft=drafts, adapt_budget=False, loss_credit=math.inf)
        decoder = SpeculativeDecoder(model, Replay(text), options, vocab=24, cost=batch.cost, on_step=seen.append)
        decoder.bootstrap_step(stream, logits)
        batch.add(stream, decoder)
    batch.step()
    # 12 rows cost 5, three plain rows 2: the pass is 2.5 plain ones; 3 x 1.5 extra go 6 : 3 : 0
    assert [r[0].cost for r in records] == pytest.approx([1 + 3.0, 1 + 1.5, 1])
    assert [m.decoder.gate.speedup for m in batch.members[:2]] == pytest.approx([7 / 4, 4 / 2.5])


def test_decoders_of_a_batch_draft_by_the_prices_that_it_charges():
    model, table = ToyModel(), [(1, 1.0), (17, 5.0)]

    def drafting(**options):
        options = Options(cost_table=options.pop("table", table), **options)
        setup = Setup()
        setup.model = model
        stream, logits = setup.stream()
        decoder = SpeculativeDecoder(model, Replay([]), options, vocab=24)
        decoder.bootstrap_step(stream, logits)
        return stream, decoder

    batch = BatchDecoder(model, Options(cost_table=table))
    (first, one), (second, two), (third, other) = drafting(), drafting(), drafting(table=[(1, 1.0), (9, 2.0)])
    one.cost.scale, two.cost.scale = 2.0, 3.0
    for stream, decoder in ((first, one), (second, two), (third, other)):
        batch.add(stream, decoder)
    assert batch.cost is one.cost is two.cost and batch.cost.scale == 2.0  # what the first had learned
    assert other.cost is not batch.cost and other.cost.scale == 1.0  # another table
    assert two.cost.estimate(4, 64, 3) == batch.cost.estimate(4, 64, 3)
    untimed = BatchDecoder(model, Options(cost_table=table), timed=False)
    stream, decoder = drafting()
    untimed.add(stream, decoder)
    assert untimed.cost is not decoder.cost
