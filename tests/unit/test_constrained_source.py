"""Drafts under a grammar: forced spans, cuts before they are paid, odds, accounting, gates."""

import numpy as np
import pytest

import fucina
from bench.grammar import STORIES, TASKS
from bench.grammar_work import priced
from fucina import Grammar
from fucina.engine import Scheduler, Stream
from fucina.engine.cost_table import CostTable
from fucina.errors import SharedStream
from fucina.sampling import BanTokens, Sampler, SamplerOptions, compose, has_structure, structure_of
from fucina.speculative import ConstrainedSource, DraftSource, Options, SourceDrafter, make_drafter, wants_top_k
from tests.models import TINY, need_smollm2
from tests.spec_toys import Replay, ToyModel, decode, rows_of, start


class Script:
    """A structured processor over ids 0..23: position 3 to 5 are forced to 7, 8, 9; ids of 20 and more never follow."""

    def __init__(self, begin=0):
        self.log, self.begin = [], begin

    @property
    def at(self):
        return len(self.log)

    def _allowed(self, at, token):
        return token == 7 + at - 3 if 3 <= at < 6 else token < 20

    def process(self, logits, history):
        for token in range(len(logits)):
            if not self._allowed(self.at, token):
                logits[token] = -np.inf

    def commit(self, token):
        self.log.append(token)

    def reset(self):
        self.log.clear()

    def forced_tokens(self, limit):
        return [7, 8, 9][self.at - 3 :][:limit] if 3 <= self.at < 6 else []

    def valid_prefix(self, tokens):
        return next((i for i, t in enumerate(tokens) if not self._allowed(self.at + i, t)), len(tokens))


class Fixed:
    """Always drafts the same; notes what it is told."""

    def __init__(self, draft, odds=None):
        self.draft, self.told, self.asked, self.seen = draft, [], 0, []
        if odds is not None:
            self.odds = lambda n: [odds] * n

    def suggest(self, context, limit):
        self.asked += 1
        return self.draft

    def observe(self, committed):
        self.seen += committed

    def truncate_pending(self, n):
        self.told.append(n)


def test_forced_spans_come_first_and_other_drafts_are_cut():
    script, inner = Script(), Fixed([1, 5, 22, 3], odds=0.4)
    source = ConstrainedSource(script, inner)
    assert isinstance(source, DraftSource) and has_structure(script)
    assert source.suggest([0], 8) == [1, 5] and inner.told == [2] and source.odds(2) == [0.4, 0.4]
    source.truncate_pending(1)
    assert inner.told == [2, 1]
    script.log = [0, 0, 0]
    assert source.suggest([0, 0, 0], 8) == [7, 8, 9] and inner.asked == 1 and source.odds(3) == [1.0, 1.0, 1.0]
    source.truncate_pending(1)
    assert inner.told == [2, 1]  # that draft was not the inner source's
    assert source.suggest([0, 0, 0], 2) == [7, 8]
    source.observe([7, 8])
    assert inner.seen == [7, 8]


def test_a_source_without_odds_stays_one():
    source = ConstrainedSource(Script(), Fixed([1, 2]))
    source.suggest([0], 4)
    assert source.odds(2) is None
    assert not wants_top_k(source)
    inner = Replay([1, 2, 3])
    inner.observe_top_k = lambda rows: None
    assert wants_top_k(ConstrainedSource(Script(), inner))


def test_the_tail_of_a_forced_text_has_learned_odds():
    class Tailed(Script):
        def tail_token(self):
            return 11 if 3 <= self.at < 6 else None

    script = Tailed()
    source = ConstrainedSource(script, Fixed([]))
    script.log = [0, 0, 0]
    assert source.suggest([0], 8) == [7, 8, 9, 11]
    first = source.odds(4)
    assert first[:3] == [1.0] * 3 and 0.5 < first[3] < 1.0
    for _ in range(20):
        source.suggest([0], 8)
        source.observe([7, 8, 9, 12])
    source.suggest([0], 8)
    assert source.odds(4)[3] < 0.3 and source.odds(3) == [1.0] * 3
    for _ in range(40):
        source.observe([7, 8, 9, 11])
        source.suggest([0], 8)
    assert source.odds(4)[3] > 0.8
    assert source.suggest([0], 3) == [7, 8, 9]  # no room for it


def run(draft, speculative, seed=0, **options):
    script = Script()
    model = ToyModel(24, seed)
    sampler = Sampler(SamplerOptions(temperature=0.9, seed=seed), script)
    drafter = None
    if speculative:
        table = CostTable.of([(1, 1.0), (16, 2.0)])
        drafter = SourceDrafter(model, Fixed(draft), Options(cost_table=table, **options), timed=False)
        drafter.constrain(structure_of(sampler.processor))
    stream = start(model, [1, 2], 60, sampler, drafter, max_tokens=20)
    decode(model, stream)
    return stream, model


@pytest.mark.parametrize("seed", range(6))
def test_refused_tokens_are_never_verified_and_forced_ones_always_accepted(seed):
    plain, _ = run([], False, seed)
    stream, model = run([3, 21, 4], True, seed, min_speedup=0.0, adapt_budget=False, min_draft=1)
    assert stream.tokens == plain.tokens and rows_of(stream.state) == rows_of(plain.state)
    assert stream.sampler.rng.position == plain.sampler.rng.position
    assert stream.sampler.processor.log == plain.sampler.processor.log
    drafted = stream.drafter.stats.drafted
    assert drafted > 0 and max(model.passes[1:]) <= 4  # one row and at most the forced three; never [3, 21]
    inner = stream.drafter.source.inner
    assert inner.seen == stream.tokens and set(inner.told) == {1}


def test_a_gate_that_is_off_does_not_hold_up_forced_spans():
    class Off:
        def allows(self):
            return False

        def budget(self):
            return 16

        def record(self, *step):
            raise AssertionError("a forced span is no news for a gate")

    model, script = ToyModel(24), Script()
    sampler = Sampler(SamplerOptions(), script)
    drafter = SourceDrafter(model, Fixed([1]), gate=Off(), timed=False)
    drafter.constrain(script)
    stream = start(model, [1, 2], 60, sampler, drafter, max_tokens=12)
    decode(model, stream)
    assert drafter.stats.accepted == drafter.stats.drafted == 3 and drafter.stats.spec_steps == 1


def test_one_forced_token_is_worth_a_row():
    class One(Script):
        def forced_tokens(self, limit):
            return super().forced_tokens(1)

    model, script = ToyModel(24), One()
    drafter = SourceDrafter(model, Fixed([]), Options(cost_table=CostTable.of([(1, 1.0), (16, 2.0)])), timed=False)
    drafter.constrain(script)
    stream = start(model, [1, 2], 60, Sampler(SamplerOptions(), script), drafter, max_tokens=10)
    decode(model, stream)
    assert drafter.stats.drafted == drafter.stats.accepted == 2  # 7, then 8 as its bonus; then 9


def test_forced_stop_tokens_are_not_drafted():
    model, script = ToyModel(24), Script()
    drafter = SourceDrafter(model, Fixed([]), timed=False)
    drafter.constrain(script)
    stream = start(model, [1, 2], 60, Sampler(SamplerOptions(), script), drafter, stop_tokens={9}, max_tokens=20)
    decode(model, stream)
    assert stream.stop_token == 9 and stream.tokens[-2:] == [7, 8] and drafter.stats.accepted == 2


def test_the_same_drafter_with_and_without_a_grammar():
    model = ToyModel(24)
    inner = Fixed([1])
    drafter = SourceDrafter(model, inner)
    drafter.constrain(Script())
    first = drafter.source
    drafter.constrain(Script())
    assert drafter.source is not first and drafter.source.inner is inner
    drafter.constrain(None)
    assert drafter.source is inner


def test_two_streams_may_not_share_what_is_inside():
    model, inner = ToyModel(24), Fixed([1])
    scheduler = Scheduler(model)
    for last in (False, True):
        script = Script()
        drafter = SourceDrafter(model, inner)
        drafter.constrain(script)
        stream = Stream(model.new_cache(20), [1], Sampler(SamplerOptions(), script), drafter)
        if last:
            with pytest.raises(SharedStream, match="draft source"):
                scheduler.add(stream)
        else:
            scheduler.add(stream)


def test_a_structure_that_fails_fails_its_own_stream():
    class Broken(Script):
        def forced_tokens(self, limit):
            raise RuntimeError("no structure")

    model, scheduler = ToyModel(24), None
    scheduler = Scheduler(model)
    streams = []
    for kind in (Broken, Script):
        script = kind()
        drafter = SourceDrafter(model, Fixed([1]), timed=False)
        drafter.constrain(script)
        sampler = Sampler(SamplerOptions(), script)
        streams.append(scheduler.add(Stream(model.new_cache(40), [1], sampler, drafter, max_tokens=12)))
    while scheduler.step() is not None:
        pass
    assert "no structure" in str(streams[0].error) and streams[1].finish == "length" and streams[1].committed == 12


def test_it_is_turned_on_by_itself():
    model = fucina.load(TINY / "llama.gguf", threads=1)
    try:
        constraint = Grammar.regex("ab").constraint(model)
        both = compose(BanTokens([5]), constraint)
        assert structure_of(both) is constraint and structure_of(BanTokens([1])) is None and structure_of(None) is None
        drafter = make_drafter(model, True, ["abc"], structure_of(both))
        assert isinstance(drafter.source, ConstrainedSource) and drafter.source.processor is constraint
        assert len(drafter.source.references) == 1 and drafter.source.summary().startswith("spec sources")
        assert make_drafter(model, False, (), constraint) is None
        mine = Replay([])
        assert make_drafter(model, mine, (), constraint).source.inner is mine
        assert not isinstance(make_drafter(model, True).source, ConstrainedSource)
        # in generate, Conversation and batches: forced text is accepted although nothing repeats itself
        grammar = Grammar.regex("(one|two) words that must be said")
        for processor in (None, BanTokens([3])):
            g = model.generate("x", grammar=grammar, speculative=True, max_tokens=40, processor=processor)
            assert g.complete and g.speculation.accepted >= 20
    finally:
        model.close()


@pytest.mark.slow
def test_speculation_does_not_lose_where_text_is_new_and_wins_where_it_is_forced():
    """Tokens per plain step of work, by the cost table: plain decoding has 1."""
    model = fucina.load(need_smollm2())
    try:
        for prompt, schema, options in STORIES:
            g, cost = priced(model, prompt, Grammar.json_schema(schema), max_tokens=160, **options)
            assert len(g.tokens) >= 0.98 * cost, prompt
        prompt, schema = TASKS["ten fields"]
        g, cost = priced(model, prompt, Grammar.json_schema(schema), max_tokens=300)
        assert len(g.tokens) >= 1.6 * cost
    finally:
        model.close()
