"""Ctrl-C at every instruction of streams: what is left could be a fresh one's, and goes on as if nothing had been."""

from pathlib import Path

import numpy as np
import pytest

import fucina
from fucina.engine import Scheduler, Stream
from fucina.engine.text import StreamText
from fucina.sampling import Sampler, SamplerOptions
from fucina.speculative import Options, SourceDrafter, SpeculationIndex
from tests.chat_model import write_chat_model
from tests.conversations import same_rows
from tests.interrupts import every_interrupt
from tests.spec_toys import Hungry, Logged, ToyModel, decode, start

PACKAGE = Path(fucina.__file__).parent
ENGINE, SPECULATIVE = PACKAGE / "engine", PACKAGE / "speculative"
STEP = [ENGINE / "scheduler.py", ENGINE / "stream.py", PACKAGE / "sampling" / "sampler.py"]
WAYS = pytest.mark.parametrize("signalled", [False, True], ids=["raised", "signalled"])
EAGER = Options(max_draft=4, min_draft=1, adapt_budget=False, min_speedup=0)
SAMPLED = {"temperature": 0.9, "top_k": 30, "seed": 4}
PROMPT = [3, 1, 4, 1, 5]


# --- streams of the toy -----------------------------------------------------------------------------------------------


class ToyRun:
    """A sampled stream of the toy model, with a source that knows its text and spoils the third token of each draft."""

    def __init__(self, recurrent=False, text=(), index=False, **ends):
        self.model, self.told = ToyModel(recurrent=recurrent), []
        self.sampler = Sampler(SamplerOptions(temperature=0.8, top_k=20, seed=9), Logged())
        source = Hungry(text, lambda i, t: (t + 1) % 24 if i == 2 else t)
        source.strict = False
        drafter = SourceDrafter(self.model, SpeculationIndex(24) if index else source, EAGER, timed=False)
        self.stop_at = ends.pop("stop_at", None)
        self.stream = start(self.model, PROMPT, 60, self.sampler, drafter if text else None, on_token=self.tell, **ends)
        self.scheduler = Scheduler(self.model)
        self.scheduler.add(self.stream)

    def tell(self, token):
        self.told.append(token)
        return len(self.told) == self.stop_at

    def steps(self, n=10**6):
        while n > 0 and self.scheduler.step() is not None:
            n -= 1
        return self

    def result(self):
        s = self.stream
        return list(s.tokens), s.finish, s.stop_token, self.sampler.rng.position, self.sampler.processor.log, self.told

    def check(self):
        s, said = self.stream, self.stream.tokens[len(PROMPT) :]
        drawn = said if s.stop_token is None else [*said, s.stop_token]
        assert s.state.held() == s.tokens[: s.state.len] and s.error is None
        assert self.sampler.processor.log == drawn and self.sampler.rng.position == len(drawn)
        assert self.told == said


TOY = {
    # name: (options of the run, steps before the one that is interrupted)
    "prompt": ({"max_tokens": 6}, 0),
    "rejected draft": ({"max_tokens": 12}, 2),
    "last token": ({"max_tokens": 7}, 2),
    "ended by on_token": ({"stop_at": 5}, 2),
    "stop token": ({"stop": 8}, None),
    "recurrent": ({"recurrent": True, "max_tokens": 12}, 2),
    "index": ({"index": True, "max_tokens": 25}, 8),
}


@WAYS
@pytest.mark.parametrize("name", TOY)
def test_a_step_of_a_stream(name, signalled):
    options, steps = dict(TOY[name][0]), TOY[name][1]
    recurrent = options.get("recurrent", False)
    text = ToyRun(recurrent, max_tokens=40).steps().stream.tokens
    if "stop" in options:
        options["stop_tokens"] = {text[len(PROMPT) + options.pop("stop")]}
    want = ToyRun(text=text, **options).steps().result()
    assert want == (plain := ToyRun(**{k: v for k, v in options.items() if k != "index"}).steps().result()), plain
    if steps is None:  # the last one
        counted = ToyRun(text=text, **options)
        steps = sum(counted.scheduler.step() is not None for _ in range(30)) - 1
    runs = []

    def scene():
        runs[:] = [ToyRun(text=text, **options).steps(steps)]
        return runs[0].scheduler.step

    count = 0
    for _ in every_interrupt(scene, *STEP, *([SPECULATIVE, ENGINE] if signalled else ()), signalled=signalled):
        count += 1
        runs[0].check()
        assert runs[0].steps().result() == want
        runs[0].check()
    assert count > (40 if signalled else 150)


# --- streams of a model -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    model = fucina.load(write_chat_model(tmp_path_factory.mktemp("model") / "chat.gguf"), context=256, threads=1)
    yield model
    model.close()


@WAYS
def test_a_step_of_a_model_and_its_lock(model, signalled):
    """The exceptions are kept alive, as notebooks keep them: nothing stays locked."""
    ids, kept = list(b"The cap"), []
    options = SamplerOptions(**SAMPLED)
    text = decode(model, Stream(model.new_cache(64), list(ids), Sampler(options), max_tokens=20))
    streams = []

    def scene():
        source = Hungry(text, lambda i, t: (t + 1) % 250 if i == 2 else t)
        source.strict = False
        drafter = SourceDrafter(model, source, EAGER, timed=False)
        streams[:] = [Stream(model.new_cache(64), list(ids), Sampler(options), drafter, max_tokens=9)]
        scheduler = Scheduler(model)
        scheduler.add(streams[0])
        scheduler.step()

        def step():
            try:
                scheduler.step()
            except KeyboardInterrupt as error:
                kept[:] = [error]
                raise

        return step

    # Between the end of a `with` and the call of __exit__ CPython looks for no signal: the lock is tried by signals.
    places = [ENGINE / "scheduler.py", ENGINE / "stream.py", PACKAGE / "cache"]
    for _ in every_interrupt(
        scene, ENGINE if signalled else places[0], *places[1:], signalled=signalled, step=1 if signalled else 3
    ):
        stream = streams[0]
        rows = stream.state.len
        if rows:
            fresh = model.new_cache(64)
            model.forward_rows([(fresh, stream.tokens[:rows], "none")])
            same_rows(stream.state, fresh)
        assert stream.sampler.rng.position == stream.committed
        assert decode(model, stream) == text[: len(ids) + 9]
        assert stream.sampler.rng.position == 9


@WAYS
def test_forward_rows_and_accept(model, signalled):
    ids = list(range(40, 50))
    want = model.logits([*ids, 1, 2])[-2:]
    states = []

    def scene():
        state = model.new_cache(64)
        model.forward_rows([(state, ids, "none")])
        states[:] = [state]
        return lambda: model.forward_rows([(state, [1, 2], "all")])

    places = [PACKAGE / "cache"] + ([ENGINE] if signalled else [])
    for _ in every_interrupt(scene, *places, signalled=signalled):
        state = states[0]
        assert state.len in (10, 12)
        state.rewind(10)
        assert np.array_equal(model.forward([1, 2], state), want)


# --- generate ---------------------------------------------------------------------------------------------------------


@WAYS
@pytest.mark.parametrize("stop", ["", "two tokens"])
def test_generate_read_and_closed(model, stop, signalled):
    whole = model.generate(b"The cap", max_tokens=6, ignore_eos=True, **SAMPLED)
    stops = (whole.text[3:5],) if stop else ()
    want = model.generate(b"The cap", max_tokens=6, ignore_eos=True, stop=stops, **SAMPLED)
    streams, shown = [], []

    def scene():
        shown.clear()
        streams[:] = [model.generate(b"The cap", max_tokens=6, ignore_eos=True, stop=stops, stream=True, **SAMPLED)]

        def read():
            for piece in streams[0]:
                shown.append(piece)
                if len(shown) == 3:
                    streams[0].close()

        return read

    places = [ENGINE / "text.py", ENGINE / "stream.py", PACKAGE / "generation.py"]
    for _ in every_interrupt(scene, *places, signalled=signalled, step=2 if signalled else 5):
        result = streams[0].result
        assert result.tokens == want.tokens[: len(result.tokens)] and result.text.startswith("".join(shown))
        streams[0].close()
        result = streams[0].result
        assert result.text == text_of(model, result.tokens, stops), (result, want, stops, shown)
        assert result.text.startswith("".join(shown))
        assert result.finish_reason in ("cancelled", want.finish_reason)
        assert (result.finish_reason == "cancelled") == (result.tokens != want.tokens)


def text_of(model, tokens, stops=()):
    """What tokens of a continuation spell."""
    text = StreamText(model.tokenizer, stops)
    for token in tokens:
        text.take(token)
    text.finish()
    return text.text


@WAYS
def test_the_end_of_a_text_that_is_held_back(model, signalled):
    texts, got = [], []

    def scene():
        got.clear()
        texts[:] = [StreamText(model.tokenizer, ["bx"], got.append)]
        for token in model.tokenizer.encode("ab"):
            texts[0].take(token)
        assert texts[0].text == "a"
        return texts[0].finish

    for _ in every_interrupt(scene, ENGINE / "text.py", signalled=signalled):
        texts[0].finish()
        assert texts[0].text == "".join(got) == "ab"
