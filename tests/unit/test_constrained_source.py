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
from tests.grammars import allowed_ids, case
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
    assert source.suggest([0, 0, 0], 8) == [7, 8, 9] and inner.asked == 1
    assert len(source.odds(3)) == 3 and min(source.odds(3)) > 0.9
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


class Tailed(Script):
    """After the forced tokens 11 may stand, or a longer token in its place; `tails` says where."""

    tails = (3, 4, 5)

    def tail_token(self):
        return 11 if self.at in self.tails else None

    def ahead(self, tokens):
        if self.valid_prefix(tokens) < len(tokens):
            return None
        other = type(self)()
        other.log = [*self.log, *tokens]
        return other


def test_the_tail_of_a_forced_text_has_learned_odds():
    script = Tailed()
    source = ConstrainedSource(script, Fixed([]))
    script.log = [0, 0, 0]
    assert source.suggest([0], 8) == [7, 8, 9, 11]
    first = source.odds(4)
    assert min(first[:3]) > 0.9 and 0.5 < first[3] < 0.9
    for _ in range(20):
        source.suggest([0], 8)
        source.observe([7, 8, 9, 12])
    source.suggest([0], 8)
    assert source.odds(4)[3] < 0.3 and min(source.odds(3)) > 0.9
    for _ in range(40):
        source.observe([7, 8, 9, 11])
        source.suggest([0], 8)
    assert source.odds(4)[3] > 0.8
    assert source.suggest([0], 3) == [7, 8, 9]  # no room for it
    for short in ([7, 8, 5], [7, 8], [6], [7, 5, 5, 5]):  # a text that does not get to it says nothing of it
        before = source._tails.rate(0)
        source.suggest([0], 8)
        source.observe(short)
        assert source._tails.rate(0) == before


def test_a_tail_alone_is_a_draft():
    script = Tailed()
    script.tails = (1,)
    source = ConstrainedSource(script, Fixed([1, 2], odds=0.9))
    script.log = [0]
    assert source.suggest([0], 8) == [11] and 0.5 < source.odds(1)[0] < 0.9
    for _ in range(20):
        source.suggest([0], 8)
        source.observe([12])
    source.suggest([0], 8)
    assert source.odds(1)[0] < 0.3


def test_how_forced_text_is_spelled_is_counted():
    source = ConstrainedSource(script := Script(), Fixed([]))
    script.log = [0, 0, 0]

    def odds():
        source.forced(8)
        return source.odds(3)

    usual = odds()
    source.observe([7, 5])  # begins as the tokenizer would spell it, goes on in another way
    after = odds()
    assert after[0] < usual[0] and after[1] >= usual[1]  # odds of what follows a text that was spelled otherwise
    source.observe([7, 8, 9, 1])  # and this one was not
    again = odds()
    assert again[0] >= usual[0] and again[1] < usual[1] and again[2] >= usual[2] - 1e-9
    for _ in range(20):
        source.observe([7, 8, 9])
        source.forced(8)
    assert source.odds(3)[1] > again[1]
    for _ in range(30):
        source.observe([5])
        source.forced(8)
    assert source.odds(3)[0] < 0.2  # otherwise, every time
    script.log = []
    source.suggest([0], 8)
    source.observe([4])  # a choice lies between
    script.log = [0, 0, 0]
    assert odds()[0] > 0.5


def test_what_must_follow_a_draft_is_put_after_it():
    script, inner = Tailed(), Fixed([1, 5], odds=0.8)
    source = ConstrainedSource(script, inner)
    script.log = [0]
    assert source.suggest([0], 8) == [1, 5, 7, 8, 9, 11]
    odds = source.odds(6)
    assert odds[:2] == [0.8, 0.8] and min(odds[2:5]) > 0.9 and 0.5 < odds[5] < 0.9
    assert [len(source.odds(n)) for n in range(7)] == list(range(7)) and source.odds(3) == odds[:3]
    source.truncate_pending(4)
    source.truncate_pending(1)
    assert inner.told == [2, 1]  # the inner source is told of its own tokens alone
    assert source.suggest([0], 4) == [1, 5, 7, 8] and source.suggest([0], 2) == [1, 5]
    inner.draft = [1, 22, 4]  # cut, and the rest of it forces nothing
    assert source.suggest([0], 8) == [1] and source.odds(1) == [0.8]
    inner.draft, script.log = [1], [0, 0]
    assert source.suggest([0], 8) == [1, 7, 8, 9, 11]
    # what was not accepted teaches nothing about what would have come after it
    before = source.odds(5)
    source.observe([2])
    source.suggest([0], 8)
    assert source.odds(5) == before
    source.observe([1])
    source.suggest([0], 8)
    assert source.odds(5) == before
    source.observe([1, 7, 8, 4])
    source.suggest([0], 8)
    assert source.odds(5)[3] < before[3] and source.odds(5)[4] == before[4]
    inner.odds = lambda n: [0.3] * n  # unlikely: the grammar is not asked
    assert source.suggest([0], 8) == [1]
    assert ConstrainedSource(script, Fixed([1])).suggest([0], 8) == [1]  # nor where odds are not known


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
def test_drafts_that_go_on_into_forced_text_change_nothing(seed):
    model = ToyModel(24, seed)
    outcomes = []
    for speculative in (False, True):
        sampler = Sampler(SamplerOptions(temperature=0.9, seed=seed), Tailed())
        drafter = None
        if speculative:
            options = Options(min_speedup=0.0, adapt_budget=False, min_draft=1)
            drafter = SourceDrafter(model, Fixed([3, 4], odds=0.9), options, timed=False)
            drafter.constrain(structure_of(sampler.processor))
        stream = start(model, [1, 2], 60, sampler, drafter, max_tokens=20)
        decode(model, stream)
        outcomes.append((stream.tokens, rows_of(stream.state), sampler.rng.position, sampler.processor.log))
    assert outcomes[0] == outcomes[1] and drafter.stats.drafted > 0


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


@pytest.mark.parametrize("seed", range(12))
def test_ahead_is_what_comes_after_the_tokens(seed):
    model = fucina.load(TINY / "llama.gguf", threads=1)
    r = np.random.default_rng(seed)
    try:
        constraint, text = case(seed)[0].constraint(model), []
        for _ in range(12):
            other, tokens = constraint.clone(), []
            for token in text:
                other.commit(token)
            for _ in range(int(r.integers(1, 5))):
                ids = [i for i in allowed_ids(other) if i not in model.tokenizer.eog_ids]
                if not ids:
                    break
                tokens.append(int(r.choice(ids)))
                other.commit(tokens[-1])
            if not tokens:
                assert constraint.ahead([0]) is None and constraint.ahead([]) is None
                break
            before = allowed_ids(constraint), constraint.forced_tokens(), constraint.tail_token()
            ahead = constraint.ahead(tokens)
            assert ahead.forced_tokens() == other.forced_tokens() and ahead.tail_token() == other.tail_token()
            assert ahead.accepting == other.accepting
            assert allowed_ids(ahead) == allowed_ids(other)
            wrong = next((i for i in range(model.n_tokens) if i not in allowed_ids(constraint)), None)
            assert wrong is None or constraint.ahead([wrong]) is None
            constraint._ready = constraint._spelled = None  # asked anew
            assert (allowed_ids(constraint), constraint.forced_tokens(), constraint.tail_token()) == before
            text.append(tokens[0])
            constraint.commit(tokens[0])
    finally:
        model.close()


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
