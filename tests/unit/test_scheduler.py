"""The scheduler: who has rows in a pass, and that nothing of it can be seen in any stream's tokens."""

import gc
import random
import threading
import time
from contextlib import closing

import pytest

from fucina.defaults import PREFILL_STRETCH
from fucina.engine import Scheduler
from fucina.engine.verify_cost import VerifyCost
from fucina.sampling import Sampler, SamplerOptions, compose
from fucina.speculative import Options, SourceDrafter
from tests.spec_toys import KINDS, Logged, ToyModel, decode, source_of, start
from tests.toy_families import toy_model

EAGER = Options(max_draft=5, min_draft=1, adapt_budget=False, min_speedup=0)


def prompt_of(seed, n, vocab=24):
    return [random.Random(seed).randrange(vocab) for _ in range(n)]


def watched(scheduler):
    """Each pass as {stream: rows}, whoever runs it."""
    passes, forward = [], scheduler.engine.forward_rows

    def forward_rows(requests):
        by_state = {id(s.state): s for s in scheduler.streams}
        passes.append({by_state[id(state)]: len(tokens) for state, tokens, _ in requests})
        return forward(requests)

    scheduler.engine.forward_rows = forward_rows
    return passes


def running(n, model=None, **ends):
    """A scheduler with n streams that decode."""
    scheduler = Scheduler(ToyModel() if model is None else model)
    for i in range(n):
        scheduler.add(start(scheduler.engine, prompt_of(i, 3), 4000, **ends))
    while not all(s.decoding for s in scheduler.streams):
        scheduler.step()
    return scheduler


# --- fairness ---------------------------------------------------------------------------------------------------------


def test_a_long_prompt_joins_seven_streams():
    scheduler = running(7)
    seven, passes = list(scheduler.streams), watched(scheduler)
    long = scheduler.add(start(scheduler.engine, prompt_of(99, 2000), 2100))
    while not long.decoding:
        curve = VerifyCost().curve(sum(s.state.len for s in seven) / 7)
        scheduler.step()
        rows = passes[-1]
        assert [rows[s] for s in seven] == [1] * 7  # everybody goes on
        assert rows[long] >= 1  # and so does the prompt
        assert curve[7 + rows[long]] <= PREFILL_STRETCH * curve[7] or rows[long] == 1
    assert len(passes) < 400


def test_a_short_prompt_does_not_wait_for_a_long_one():
    scheduler = running(7)
    long = scheduler.add(start(scheduler.engine, prompt_of(98, 2000), 2100))
    scheduler.step()
    short, passes = scheduler.add(start(scheduler.engine, prompt_of(97, 20), 2100)), watched(scheduler)
    while not short.decoding:
        scheduler.step()
    assert len(passes) <= 6 and not long.decoding


def test_a_cancelled_prompt_leaves_at_the_next_pass():
    scheduler = running(2)
    long = scheduler.add(start(scheduler.engine, prompt_of(96, 2000), 2100))
    scheduler.step()
    rows, passes = long.cached, watched(scheduler)
    long.cancel()
    scheduler.step()
    assert long not in passes[-1] and long.finish == "cancelled" and long.cached == rows > 0


def test_more_streams_than_rows_take_turns():
    scheduler = running(0)
    for i in range(150):
        scheduler.add(start(scheduler.engine, prompt_of(i, 2), 400))
    while not all(s.decoding for s in scheduler.streams):
        scheduler.step()
    passes = watched(scheduler)
    before = [s.committed for s in scheduler.streams]
    for _ in range(15):
        scheduler.step()
    gained = [s.committed - n for s, n in zip(scheduler.streams, before, strict=True)]
    assert all(sum(rows.values()) == 128 for rows in passes)
    assert max(gained) - min(gained) <= 1 and min(gained) >= 12
    late = scheduler.add(start(scheduler.engine, prompt_of(500, 10), 60))
    for _ in range(10):
        scheduler.step()
    assert late.decoding  # a prompt gets on beside them


def test_a_stream_that_lost_its_rows_holds_up_nobody():
    scheduler = running(3)
    lost = scheduler.add(start(scheduler.engine, prompt_of(95, 500), 600))
    while not lost.decoding:
        scheduler.step()
    lost.state.rewind(0)
    passes = watched(scheduler)
    while lost.pending > 1:
        scheduler.step()
        assert len(passes[-1]) == 4 and sum(passes[-1].values()) <= 128


# --- any order of joins and leaves ------------------------------------------------------------------------------------


def schedule(model, vocab, seed, streams, capacity=80):
    """Streams that join and leave at random; returns what each said, and what it says alone."""
    r = random.Random(seed)
    lengths = [r.choice([1, 2, 7, 30, 45]) for _ in range(streams)]
    options = [SamplerOptions(temperature=r.choice([0, 0.9]), seed=i, repeat_penalty=1.1) for i in range(streams)]
    prompts = [prompt_of(f"{seed} {i}", n, vocab) for i, n in enumerate(lengths)]
    limits = [r.randrange(1, 25) for _ in range(streams)]

    def stream(i, drafter=None):
        return start(model, prompts[i], capacity, Sampler(options[i], Logged()), drafter, max_tokens=limits[i])

    alone = [decode(model, stream(i)) for i in range(streams)]
    scheduler = Scheduler(model, row_budget=r.choice([2, 8, 128]), stretch=r.choice([1.0, 2.0]))
    waiting, joined = list(range(streams)), {}
    while waiting or scheduler.live:
        while waiting and r.random() < 0.5:
            i = waiting.pop()
            source = source_of(r.choice(KINDS), alone[i], vocab, i)
            source.strict = False
            drafter = r.choice([None, SourceDrafter(model, source, EAGER, timed=False)])
            joined[i] = scheduler.add(stream(i, drafter))
        if joined and r.random() < 0.1:
            joined[r.choice(list(joined))].cancel()
        for s in [s for s in scheduler.streams if s.finish is not None and r.random() < 0.5]:
            scheduler.remove(s)
        scheduler.step()
    return [(joined[i], alone[i], options[i]) for i in range(streams)]


def check(found):
    for stream, alone, options in found:
        assert stream.error is None, stream.error
        assert stream.tokens == alone[: len(stream.tokens)]
        assert stream.finish == "cancelled" or stream.tokens == alone
        assert stream.sampler.rng.position == (0 if options.greedy else stream.committed)
        assert stream.sampler.processor.log == stream.tokens[stream.prompt_end :]


@pytest.mark.parametrize("recurrent", [False, True])
def test_any_schedule_gives_each_stream_its_own_tokens(recurrent):
    for seed in range(40):
        check(schedule(ToyModel(recurrent=recurrent, memory=4), 24, seed, 6))


@pytest.mark.parametrize("kind", ["recurrent", "ring", "routed"])
def test_any_schedule_of_a_model(kind):
    with closing(toy_model(kind)) as model:
        for seed in range(4):
            check(schedule(model, 258, seed, 4))


# --- work beside a pass -----------------------------------------------------------------------------------------------


class Prepared(Logged):
    """A processor that prepares each row, and notes what happens when."""

    def __init__(self, model, fail_at=0, seconds=0.0):
        super().__init__()
        self.model, self.fail_at, self.seconds, self.events = model, fail_at, seconds, []

    def prepare(self):
        self.events.append(("prepare", threading.current_thread() is threading.main_thread(), self.model.busy.is_set()))
        self.preparing = True
        time.sleep(self.seconds)
        self.preparing = False
        if len([e for e in self.events if e[0] == "prepare"]) == self.fail_at:
            raise RuntimeError("no mask")

    def process(self, logits, history):
        self.events.append(("process",))
        super().process(logits, history)


class SlowToy(ToyModel):
    """Its passes take until the preparation has begun."""

    def __init__(self):
        super().__init__()
        self.busy, self.wait_for = threading.Event(), lambda: True

    def forward_rows(self, requests):
        self.busy.set()
        deadline = time.monotonic() + 2
        while not self.wait_for() and time.monotonic() < deadline:
            time.sleep(0.001)
        out = super().forward_rows(requests)
        self.busy.clear()
        return out


@pytest.mark.parametrize("composed", [False, True])
def test_prepare_runs_beside_the_pass_once_per_row(composed):
    model = SlowToy()
    processor = Prepared(model)
    model.wait_for = lambda: processor.events and processor.events[-1][0] == "prepare"
    whole = compose(processor, Logged()) if composed else processor
    stream = start(model, [1, 2, 3], 40, Sampler(SamplerOptions(), whole), max_tokens=6)
    assert len(decode(model, stream)) == 9
    assert [e[0] for e in processor.events] == ["prepare", "process"] * 6
    assert not any(event[1] for event in processor.events if event[0] == "prepare")  # on a thread of its own


def test_an_error_of_prepare_ends_its_stream_alone():
    model = SlowToy()
    alone = decode(ToyModel(), start(ToyModel(), [1, 2, 3], 40, Sampler(SamplerOptions(), Logged()), max_tokens=6))
    scheduler, processors = Scheduler(model), [Prepared(model, fail_at=3), Prepared(model, seconds=0.02)]
    for p in processors:
        scheduler.add(start(model, [1, 2, 3], 40, Sampler(SamplerOptions(), p), max_tokens=6))
    while scheduler.step() is not None:
        pass
    bad, good = scheduler.streams
    assert str(bad.error) == "no mask" and bad.tokens == alone[:5] and bad.state.held() == alone[:4]
    assert good.error is None and good.tokens == alone


def test_nothing_is_prepared_after_a_step_that_failed():
    model = ToyModel()
    model.busy = threading.Event()
    processor = Prepared(model, seconds=0.05)
    scheduler = Scheduler(model)
    scheduler.add(start(model, [1, 2], 40, Sampler(SamplerOptions(), processor), max_tokens=3))
    forward = model.forward_rows

    def failing(requests):
        time.sleep(0.01)
        raise RuntimeError("pass")

    model.forward_rows = failing
    with pytest.raises(RuntimeError, match="pass"):
        scheduler.step()
    assert processor.preparing is False  # begun, and ended
    model.forward_rows = forward
    while scheduler.step() is not None:
        pass
    assert [e[0] for e in processor.events] == ["prepare", *["prepare", "process"] * 3]


def test_schedulers_leave_no_threads():
    model = ToyModel()
    model.busy = threading.Event()
    before = threading.active_count()
    for _ in range(20):
        decode(model, start(model, [1, 2], 40, Sampler(SamplerOptions(), Prepared(model)), max_tokens=2))
    gc.collect()
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before
