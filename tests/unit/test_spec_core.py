"""The decoder's step in detail: states, ends, feedback, cuts, counts, and errors injected everywhere."""

import math

import numpy as np
import pytest

from fucina.engine import Stream
from fucina.errors import InvalidDecodeState, InvalidDraft, InvalidOption, KvCacheOverflow, TopKFeedbackDisabled
from fucina.sampling import Sampler, SamplerOptions
from fucina.sampling.reference import penalise
from fucina.speculative import CostGate, Options, SourceDrafter, SpeculationIndex, Stats
from fucina.speculative import drafter as drafter_module
from tests.spec_toys import Hungry, Logged, Random, Replay, ToyModel, decode, start

PROMPT = [3, 1, 4, 1, 5]
FREE = Options(adapt_budget=False, min_speedup=0)


def plain(model, n=40, sampler=None, **ends):
    stream = start(model, PROMPT, 100, sampler, max_tokens=n, **ends)
    decode(model, stream)
    return stream


def speculative(model, source, options=FREE, n=40, sampler=None, capacity=100, **ends):
    drafter = SourceDrafter(model, source, options, timed=False)
    stream = start(model, PROMPT, capacity, sampler, drafter, max_tokens=n, **ends)
    decode(model, stream)
    return stream, drafter


# --- states -----------------------------------------------------------------------------------------------------------


def test_a_stream_needs_a_token_its_prefix_and_room():
    model = ToyModel()
    for tokens, prefix in ([], 0), ([1], 1):
        with pytest.raises(InvalidDecodeState):
            Stream(model.new_cache(4), tokens, Sampler(), prefix_rows=prefix)
    with pytest.raises(KvCacheOverflow, match="5 tokens"):
        Stream(model.new_cache(4), list(PROMPT), Sampler())
    stream = start(model, PROMPT, 20)
    assert (stream.pending, stream.cached, stream.decoding) == (5, 0, False)
    decode(model, stream, steps=1)
    assert (stream.pending, stream.cached, stream.decoding) == (1, 5, True)
    stream.finish = "ended"
    assert decode(model, stream) == stream.tokens and len(stream.tokens) == 6


@pytest.mark.parametrize("bad", [0, -1, True, 2.0, "3"])
def test_max_tokens_is_checked(bad):
    with pytest.raises(InvalidOption, match="max_tokens"):
        start(ToyModel(), [1], 4, max_tokens=bad)


def test_a_state_that_keeps_a_pass_whole_or_not_at_all():
    """After a rejected draft the rows of accepted tokens are computed again; a draft waits until they are."""
    plainly = plain(ToyModel()).tokens
    model = ToyModel(recurrent=True)
    wrong = Replay(plainly, lambda i, t: t if i < 2 else (t + 1) % model.vocab)
    stream, drafter = speculative(model, wrong, Options(max_draft=4, adapt_budget=False, min_speedup=0))
    assert stream.tokens == plainly and stream.state.held() == plainly[: stream.state.len]
    assert drafter.stats.spec_steps > 5 and drafter.stats.accepted == 2 * drafter.stats.spec_steps


def test_feedback_must_be_possible():
    with pytest.raises(TopKFeedbackDisabled):
        SourceDrafter(ToyModel(), Hungry([]), Options(topk_feedback=0))
    SourceDrafter(ToyModel(), Replay([]), Options(topk_feedback=0))


def test_rows_before_the_tokens():
    """A state may hold rows that belong to no token of the text."""
    model = ToyModel()
    text = plain(model).tokens
    state = model.new_cache(100)
    model.forward_rows([(state, [9, 9], "none")])
    drafter = SourceDrafter(model, Replay(text), FREE)
    stream = Stream(state, list(PROMPT), Sampler(), drafter, max_tokens=40, prefix_rows=2)
    assert decode(model, stream) == text
    assert state.held() == [9, 9, *text[:-1]] and drafter.stats.accepted > 20


# --- what a step does -------------------------------------------------------------------------------------------------


def test_a_perfect_source_commits_whole_drafts():
    model = ToyModel()
    text = plain(model).tokens
    model.passes.clear()
    stream, drafter = speculative(model, Replay(text), Options(max_draft=4, adapt_budget=False, loss_credit=math.inf))
    assert stream.tokens == text
    assert model.passes == [5] + [5] * 7 + [4]  # prefill; 1 + 7 (4 + 1) tokens; the last pass has 3 drafts and a bonus
    assert drafter.stats == Stats(steps=8, spec_steps=8, drafted=31, accepted=31, bonus=8, committed=40)


def test_a_wrong_source_commits_corrections():
    model = ToyModel()
    text = plain(model).tokens
    source = Replay(text, lambda i, t: (t + 1) % model.vocab)
    stream, drafter = speculative(model, source, Options(max_draft=4, adapt_budget=False, min_speedup=0))
    s = drafter.stats
    assert stream.tokens == text
    assert (s.steps, s.spec_steps, s.fallback_steps, s.accepted, s.bonus, s.rejected_steps) == (39, 37, 2, 0, 0, 37)


@pytest.mark.parametrize("drafts", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("at", range(1, 13))
def test_a_stop_token_at_every_place_of_a_draft(at, drafts):
    """No row after it is sampled, the bonus row included, and it is not committed."""
    model = ToyModel(vocab=200, seed=5, memory=5)
    sampling = SamplerOptions(temperature=0.9, seed=at)
    text = plain(model, sampler=Sampler(sampling)).tokens
    stop = text[len(PROMPT) + at]
    expected = plain(model, sampler=Sampler(sampling), stop_tokens={stop})
    sampler = Sampler(sampling)
    options = Options(max_draft=drafts, min_draft=1, adapt_budget=False, min_speedup=0)
    stream, _drafter = speculative(model, Replay(text), options, sampler=sampler, stop_tokens={stop})
    assert stream.tokens == expected.tokens and stream.stop_token == stop and stream.finish == "stop_token"
    assert sampler.rng.position == len(stream.tokens) - len(PROMPT) + 1  # the stop token was drawn, nothing else
    assert stream.state.held() == stream.tokens == expected.state.held()


def test_on_token_ends_the_turn_inside_a_draft():
    model = ToyModel()
    text = plain(model).tokens
    for after in range(1, 12):
        sampler, seen = Sampler(SamplerOptions(), Logged()), []
        stop = lambda token, seen=seen, after=after: seen.append(token) or len(seen) == after
        want = plain(model, sampler=Sampler(SamplerOptions(), Logged()), on_token=iter_stop(after))
        stream, _ = speculative(model, Replay(text), sampler=sampler, on_token=stop)
        assert stream.tokens == want.tokens and len(seen) == after and stream.stop_token is None
        assert sampler.processor.log == want.sampler.processor.log == seen
        assert stream.state.held() == stream.tokens[:-1]


def iter_stop(after):
    left = [after]

    def on_token(_):
        left[0] -= 1
        return left[0] == 0

    return on_token


def test_drafts_fit_the_cache_and_the_turn():
    model = ToyModel()
    text = plain(model).tokens
    for capacity in range(len(PROMPT) + 1, len(PROMPT) + 12):
        stream, _ = speculative(model, Replay(text), n=None, capacity=capacity)
        assert stream.tokens == text[: capacity + 1] and stream.state.len == capacity


def test_feedback_is_the_best_of_raw_rows():
    model = ToyModel()
    sampler = Sampler(SamplerOptions(repeat_penalty=2.0))
    text = plain(model, sampler=Sampler(SamplerOptions(repeat_penalty=2.0))).tokens
    source = Hungry(text, lambda i, t: t if i < 3 else (t + 1) % model.vocab)
    stream, drafter = speculative(
        model, source, Options(max_draft=6, topk_feedback=3, adapt_budget=False), sampler=sampler
    )
    assert stream.tokens == text and len(source.feedback) == drafter.stats.spec_steps > 5
    at = len(PROMPT)  # place of the newest token in front of each verify
    for rows in source.feedback:
        # three accepted, one corrected; the turn's end cuts the last one
        assert [r.token for r in rows] == text[at : at + 4][: len(text) - 1 - at]
        for i, row in enumerate(rows):
            logits = model.row(text[: at + i + 1])
            assert row.top_k.tolist() == np.lexsort((np.arange(model.vocab), -logits))[:3].tolist()
        at += 4


def test_feedback_that_nobody_wants_is_not_computed(monkeypatch):
    monkeypatch.setattr(drafter_module, "top_ids", None)
    model = ToyModel()
    text = plain(model).tokens
    assert speculative(model, Replay(text))[0].tokens == text


def test_cuts_are_told():
    model = ToyModel()
    text = plain(model).tokens
    long = Hungry(text, length=lambda n: 30)
    speculative(model, long, Options(max_draft=6, adapt_budget=False, loss_credit=math.inf))
    assert long.cuts and set(long.cuts[:-1]) == {6}
    stop = text[len(PROMPT) + 4]
    cut = Hungry(text)
    options = Options(max_draft=16, adapt_budget=False, loss_credit=math.inf)
    stream, _ = speculative(model, cut, options, stop_tokens={stop})
    assert cut.cuts[0] == text[len(PROMPT) + 1 :].index(stop)
    outside = Hungry(text, lambda i, t: model.vocab if i == 1 else t)
    stream, drafter = speculative(model, outside)
    assert set(outside.cuts) == {0} and drafter.stats.spec_steps == 0  # one token is too short a draft
    assert stream.tokens == text


@pytest.mark.parametrize("seed", range(5))
def test_lying_sources(seed):
    """Too many, no integers, and ids outside of the vocabulary are never verified."""
    model = ToyModel()
    text = plain(model).tokens
    stream, _drafter = speculative(
        model, Random(seed, model.vocab, lying=True), Options(max_draft=5, adapt_budget=False, min_speedup=0)
    )
    assert stream.tokens == text and max(model.passes) <= 6


def test_zero_drafts_is_off_and_not_the_default():
    """The counts add up."""
    model = ToyModel()
    text = plain(model).tokens
    source = Replay(text)
    stream, drafter = speculative(model, source, Options(max_draft=0))
    assert stream.tokens == text and source.suggested == 0
    s = drafter.stats
    assert (s.steps, s.fallback_steps, s.drafted, s.committed) == (39, 39, 0, 40)
    stream, drafter = speculative(model, source := Replay(text), Options(enabled=False))
    assert stream.tokens == text and source.suggested == 0 and drafter.stats.disabled_steps == 39


def test_the_gate_trips_waits_and_probes_end_to_end():
    model = ToyModel()
    text = plain(model, n=90).tokens
    # wrong for a while, then perfect
    source = Replay(text, lambda i, t: t if len(source.seen) > 60 else (t + 1) % model.vocab)
    options = Options(
        loss_credit=math.inf,
        cost_table=[(1, 1.0), (17, 4.0)],
        reprobe_after=4,
        reprobe_max=8,
        probe_steps=2,
        adapt_budget=False,
    )
    gate, states, kinds = CostGate(options), [], []
    note = lambda record: (states.append(gate.state), kinds.append(record.kind))
    drafter = SourceDrafter(model, source, options, gate=gate, timed=False, on_step=note)
    assert decode(model, start(model, PROMPT, 200, None, drafter, max_tokens=90)) == text
    assert states[0] == "on" and states[1] == "off" and states[-1] == "on" and "probing" in states
    assert kinds[:2] == ["verify"] * 2 and kinds[2:5] == ["off"] * 3 and kinds[5] == "verify"
    s = drafter.stats
    assert kinds.count("off") == s.disabled_steps > 3 and s.steps == len(kinds)


def test_times_of_passes_reach_the_cost():
    """Plain passes set the unit, verifies the scale; without a clock the table stays as it is."""
    model = ToyModel()
    text = plain(model).tokens
    for timed in (True, False):
        model = ToyModel()
        source = Replay(text)
        drafter = SourceDrafter(model, source, Options(min_speedup=0), timed=timed)
        stream = start(model, PROMPT, 100, None, drafter, max_tokens=40)
        suggest, source.suggest = source.suggest, lambda context, limit: []
        decode(model, stream, steps=2)  # the prompt, and a plain step
        assert drafter.cost.scale == 1.0
        source.suggest = suggest
        decode(model, stream, steps=1)
        assert drafter.stats.spec_steps == 1 and (drafter.cost.scale != 1.0) is timed


def test_a_gate_of_ones_own():
    """Anything with the three methods; it is given the tokens committed (with a stop token), accepted, drafted, and the cost."""

    class Gate:
        def __init__(self):
            self.asked, self.records = 0, []

        def allows(self):
            self.asked += 1
            return self.asked % 2 == 1

        def budget(self):
            return 4

        def record(self, committed, accepted, drafted, cost):
            self.records.append((committed, accepted, drafted, cost))

    model = ToyModel()
    text = plain(model).tokens
    stop = max(text[len(PROMPT) :], key=text[len(PROMPT) :].index)  # the one that comes last
    text = text[: text.index(stop, len(PROMPT)) + 1]
    gate = Gate()
    options = Options(cost_table=[(1, 1.0), (5, 3.0)])
    source = Replay([*text, *text], lambda i, t: t if i < 2 else (t + 1) % model.vocab)
    drafter = SourceDrafter(model, source, options, gate=gate, timed=False)
    stream = start(model, PROMPT, 100, None, drafter, stop_tokens={stop})
    decode(model, stream)
    s = drafter.stats
    assert stream.tokens == text[:-1] and gate.asked == s.steps and s.disabled_steps == s.steps // 2
    assert len(gate.records) == s.spec_steps > 1 and gate.records[0] == (3, 2, 4, 3.0)
    assert sum(r[1] for r in gate.records) == s.accepted and sum(r[2] for r in gate.records) == s.drafted


@pytest.mark.parametrize(
    ("gate", "told"), [(object(), "allows is missing"), (CostGate, "must be an object"), (3, "record")]
)
def test_what_is_no_gate_is_refused(gate, told):
    with pytest.raises(InvalidOption, match=told):
        SourceDrafter(ToyModel(), Replay([1, 2]), gate=gate)


def test_penalties_see_the_accepted_tokens():
    """A row's penalties hold for the tokens in front of it, not for those at the start of the step."""
    model = ToyModel(vocab=12)
    options = SamplerOptions(repeat_penalty=3.0, frequency_penalty=0.5)
    text = plain(model, sampler=Sampler(options)).tokens
    captured = {}
    drafter = SourceDrafter(model, Replay(text), FREE)
    note = lambda n, row: captured.__setitem__(n, row.copy())
    stream = start(model, PROMPT, 100, Sampler(options), drafter, max_tokens=40, on_row=note)
    assert decode(model, stream) == text and drafter.stats.accepted > 20
    stale = 0
    for n, row in captured.items():
        fresh, old = row.copy(), row.copy()
        penalise(fresh, text[:n], options)
        penalise(old, text[: max(n - 8, 1)], options)
        assert int(fresh.argmax()) == text[n]
        stale += int(old.argmax()) != text[n]
    assert stale > 0


@pytest.mark.parametrize("drafts", [2, 8, 48])
@pytest.mark.parametrize("penalty", [{"presence_penalty": 1.0}, {"frequency_penalty": 0.7}, {"repeat_penalty": 1.6}])
def test_each_penalty_at_each_width(penalty, drafts):
    model = ToyModel(vocab=10)
    options = SamplerOptions(**penalty)
    text = plain(model, 80, Sampler(options)).tokens
    assert text != plain(model, 80).tokens
    for source in (Replay(text), Replay(text, lambda i, t: t if i % 5 else (t + 1) % 10)):
        wide = Options(max_draft=drafts, adapt_budget=False, min_speedup=0)
        assert speculative(model, source, wide, 80, Sampler(options))[0].tokens == text


def test_another_text_starts_the_source_anew():
    model = ToyModel()
    index = SpeculationIndex(model.vocab)
    drafter = SourceDrafter(model, index, FREE)
    stream = start(model, PROMPT, 100, None, drafter, max_tokens=5)
    first = decode(model, stream)
    assert index.conversation.tokens().tolist() == first
    # a continuation: the source is given only what is new
    before = index.conversation
    again = Stream(stream.state, [*first, 7, 8], Sampler(), drafter, max_tokens=3)
    decode(model, again)
    assert index.conversation is before and before.tokens().tolist() == again.tokens
    assert again.tokens[: len(first) + 2] == [*first, 7, 8]
    # another text
    stream = start(model, [2, 2], 100, None, drafter, max_tokens=4)
    decode(model, stream)
    assert index.conversation.tokens().tolist() == stream.tokens


def test_a_turn_whose_last_token_is_dropped_costs_no_rebuild():
    """The token that completes a stop text leaves the history: the index has not heard of it."""
    model = ToyModel()
    index = SpeculationIndex(model.vocab)
    drafter = SourceDrafter(model, index, FREE)
    stream = start(model, PROMPT, 100, None, drafter, on_token=iter_stop(7))
    kept = decode(model, stream)[:-1]
    before = index.conversation
    assert before.tokens().tolist() == kept
    again = Stream(stream.state, [*kept, 9, 9], Sampler(), drafter, max_tokens=3)
    decode(model, again)
    assert index.conversation is before and before.tokens().tolist() == again.tokens


@pytest.mark.parametrize(
    "proposal", [{1, 2}, {1: 2}, 3, np.array(3), "12", object()], ids=["set", "dict", "int", "0-d", "text", "object"]
)
def test_what_is_no_draft_is_named(proposal):
    model = ToyModel()
    source = Replay([])
    source.suggest = lambda context, limit: proposal
    with pytest.raises(InvalidDraft, match="Replay"):
        speculative(model, source)


@pytest.mark.parametrize("odds", [None, "0.5", 3, ["x"], [None]])
def test_odds_that_are_no_numbers_are_named(odds):
    model = ToyModel()
    source = Replay(plain(model).tokens)
    source.odds = lambda n: odds
    with pytest.raises(InvalidDraft, match="odds"):
        speculative(model, source, Options())


def test_a_generator_is_a_draft():
    model = ToyModel()
    text = plain(model).tokens
    source = Replay(text)
    suggest = source.suggest
    source.suggest = lambda context, limit: (token for token in suggest(context, limit + 50))
    stream, drafter = speculative(model, source, Options(max_draft=4, adapt_budget=False, min_speedup=0))
    assert stream.tokens == text and drafter.stats.accepted == 31


WRITES = {
    "appends": lambda text: text.append(3),
    "drops": lambda text: text.pop(),
    "clears": lambda text: text.clear(),
    "overwrites": lambda text: text.__setitem__(0, text[0] + 1),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_source_that_writes_into_what_it_is_shown_changes_nothing(write):
    model = ToyModel()
    text = plain(model).tokens

    class Scribbler(Hungry):
        def suggest(self, context, limit):
            draft = self.text[len(context) : len(context) + limit]
            WRITES[write](context)
            return draft

        def observe(self, committed):
            super().observe(committed)
            committed.clear()

        def observe_top_k(self, rows):
            for row in rows:
                row.top_k[:] = 0

    stream, drafter = speculative(model, Scribbler(text))
    assert stream.tokens == text and stream.state.held() == text[:-1]
    assert drafter.stats.committed == 40 and drafter.stats.accepted > 0
