"""Speculation changes nothing but the number of passes: tokens, draws, commits, rows of the cache, logits, ends."""

import random

import pytest

import fucina
from fucina.engine import Scheduler, Stream
from fucina.ops.rows import MAX_ROWS
from fucina.sampling import Sampler, SamplerOptions
from fucina.speculative import CostTable, Options, SourceDrafter
from tests.models import TINY
from tests.spec_toys import KINDS, Logged, ToyModel, decode, rows_of, source_of, start

SAMPLERS = (
    {},
    {"temperature": 0.8, "top_k": 20, "repeat_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": 0.1},
    {"temperature": 0.7, "top_p": 0.9},
    {"repeat_penalty": 1.5, "repeat_last_n": 8},
    {"temperature": 1.0, "min_p": 0.05, "frequency_penalty": -0.5},
)


@pytest.fixture(scope="module", params=["f32", "f16", "q8_0"])
def tiny(request):
    name = "qwen3" if request.param == "q8_0" else "llama"  # q8_0 needs heads of a multiple of 32
    m = fucina.load(TINY / f"{name}.gguf", threads=1 if request.param == "f32" else 2, cache_dtype=request.param)
    yield m
    m.close()


class Case:
    """Two turns of one stream, decided by a seed; `run` decodes them with any decoder."""

    def __init__(self, seed, vocab, longest=40):
        r = self.r = random.Random(seed)
        self.seed, self.vocab = seed, vocab
        self.prompt = [r.randrange(vocab) for _ in range(r.randrange(1, 12))]
        self.second = [r.randrange(vocab) for _ in range(r.randrange(1, 6))]
        self.max_tokens = r.choice([1, 2, 3, 17, longest, None])
        self.stop_tokens = {r.randrange(vocab) for _ in range(r.choice([0, 0, 1, 2]))}
        self.sink_stops = r.choice([None, None, r.randrange(1, longest)])
        self.capacity = len(self.prompt) + r.randrange(1, 2 * longest + 20)
        self.sampling = {**r.choice(SAMPLERS), "seed": seed}
        self.processor = r.random() < 0.4
        self.kind = r.choice(KINDS)
        self.options = Options(
            max_draft=r.choice([0, 1, 2, 3, 7, 15, 16, 16, 48]),
            min_draft=r.choice([1, 2, 2, 4]),
            enabled=r.random() < 0.95,
            topk_feedback=r.choice([1, 8]),
            adapt_budget=r.random() < 0.6,
            min_window_drafted=r.choice([0, 8]),
            reprobe_after=r.choice([1, 4]),
            reprobe_max=8,
            probe_steps=r.choice([1, 2]),
            min_speedup=r.choice([0, 1.0, 2.0]),
            cost_table=r.choice(
                [CostTable.of([(1, 1.0), (17, 5.0)]), CostTable.of([(1, 1.0), (4, 1.2), (5, 2.0), (8, 2.1)])]
            ),
        )

    def start(self, model, drafter=None, on_row=None):
        self.committed = []
        sampler = Sampler(SamplerOptions(**self.sampling), Logged() if self.processor else None)
        return start(model, self.prompt, self.capacity, sampler, drafter, on_row=on_row, **self.ends())

    def ends(self):
        def on_token(token):
            self.committed.append(token)
            return self.sink_stops is not None and len(self.committed) % self.sink_stops == 0

        return {"stop_tokens": self.stop_tokens, "max_tokens": self.max_tokens, "on_token": on_token}

    def more(self, stream):
        """The second turn over the same state and sampler; None if it does not fit."""
        tokens = [*stream.tokens, *self.second]
        if len(tokens) > stream.state.capacity:
            return None
        return Stream(stream.state, tokens, stream.sampler, stream.drafter, on_row=stream.on_row, **self.ends())

    def run(self, model, drafter=None):
        seen = []
        stream = self.start(model, drafter, lambda n, row: seen.append((n, row.tobytes())))
        parts = []
        while stream is not None and len(parts) < 2:
            text = decode(model, stream)
            parts.append(self.outcome(stream))
            stream = self.more(stream)
        return parts, seen, list(text)

    def outcome(self, stream):
        sampler, rows = stream.sampler, stream.cached
        if rows < len(stream.tokens) - (stream.stop_token is None):  # a state that keeps a pass whole or not at all
            assert stream.state.recurrent
        return {
            "tokens": list(stream.tokens),
            "committed": list(self.committed),
            "draws": sampler.rng.position,
            "commits": list(sampler.processor.log) if sampler.processor else None,
            "rows": rows_of(stream.state),
            "ended": (stream.finish, stream.stop_token),
        }


def without_rows(parts):
    return [{name: value for name, value in part.items() if name != "rows"} for part in parts]


def check(case, model):
    plain_parts, plain_rows, text = case.run(model)
    source = source_of(case.kind, text, case.vocab, case.seed)
    drafter = SourceDrafter(model, source, case.options, vocab=case.vocab, timed=case.seed % 2 == 0)
    parts, rows, _ = case.run(model, drafter)
    if getattr(model, "recurrent", False):
        for part in parts:
            assert part["rows"] == part["tokens"][: len(part["rows"])]
        parts, plain_parts = without_rows(parts), without_rows(plain_parts)
    assert parts == plain_parts
    assert rows == plain_rows  # every row sampled, and no other, with the same bits
    s = drafter.stats
    assert s.steps == s.spec_steps + s.fallback_steps + s.disabled_steps
    assert s.committed == len(case.committed)
    assert s.accepted <= s.drafted and s.bonus + s.rejected_steps <= s.spec_steps
    return s


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("block", range(10))
def test_scenarios_on_a_toy(block, recurrent):
    accepted = verified = 0
    for seed in range(100 * block, 100 * block + (30 if recurrent else 100)):
        r = random.Random(-seed - 1)
        vocab = r.choice([3, 24])
        model = ToyModel(vocab, seed, memory=r.choice([1, 2, 5]), recurrent=recurrent)
        s = check(Case(seed, vocab), model)
        accepted, verified = accepted + s.accepted, verified + s.spec_steps
    assert min(accepted, verified) > (3 if recurrent else 60)  # the scenarios do speculate


def test_scenarios_on_the_real_engine(tiny):
    """Keys, values and logits come from the compiled forward here, at 1 to 49 rows."""
    first = {"f32": 5000, "f16": 5050, "q8_0": 5100}[tiny.cache_dtype]
    assert sum(check(Case(seed, 256, longest=24), tiny).accepted for seed in range(first, first + 50)) > 100


@pytest.mark.parametrize("family", ["gemma3", "llama3rope", "gemma4", "gemma4_kvshare", "gemma4_moe"])
def test_scenarios_of_other_families(family):
    """Windows of 8 positions, drafts across their edge and longer than they are."""
    model = fucina.load(TINY / f"{family}.gguf", threads=1)
    assert sum(check(Case(seed, 256, longest=24), model).accepted for seed in range(6000, 6025)) > 50
    model.close()


@pytest.mark.parametrize("real", [False, True])
def test_batches(tiny, real):
    """1 to 4 streams with decoders of every kind in one pass: each is what it is alone."""
    first = {"f32": 0, "f16": 1000, "q8_0": 2000}[tiny.cache_dtype]
    for seed in range(first, first + (10 if real else 50)):
        r = random.Random(seed)
        vocab = 256 if real else 24
        model = tiny if real else ToyModel(vocab, seed)
        cases = [Case(10 * seed + i, vocab, longest=20) for i in range(r.randrange(1, 5))]
        plain = []
        for case in cases:
            seen = []
            stream = case.start(model, on_row=lambda n, row, seen=seen: seen.append((n, row.tobytes())))
            decode(model, stream)
            plain.append((case.outcome(stream), seen))
        scheduler = Scheduler(model, row_budget=r.choice([MAX_ROWS, 9]), stretch=r.choice([1.0, 2.0, 9.0]))
        rows = []
        for case, (outcome, _) in zip(cases, plain, strict=True):
            rows.append([])
            hook = lambda n, row, seen=rows[-1]: seen.append((n, row.tobytes()))
            drafter = None
            if r.random() < 0.8:
                source = source_of(case.kind, outcome["tokens"], vocab, case.seed)
                drafter = SourceDrafter(model, source, case.options, vocab=vocab, timed=r.random() < 0.5)
            scheduler.add(case.start(model, drafter, hook))
            for _ in range(r.choice([0, 0, 3])):  # streams join while others run
                scheduler.step()
        while (stats := scheduler.step()) is not None:
            assert stats.rows + stats.prefill <= scheduler.row_budget
        for stream, case, (outcome, seen), mine in zip(scheduler.streams, cases, plain, rows, strict=True):
            assert stream.error is None
            assert case.outcome(stream) == outcome and mine == seen
        if not real:
            assert max(model.passes) <= MAX_ROWS
