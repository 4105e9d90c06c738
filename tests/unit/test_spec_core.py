"""The decoder's step in detail: states, ends, feedback, cuts, counts, and errors injected everywhere."""

import math

import numpy as np
import pytest

from fucina.decoding import Decoder, DecodeStream
from fucina.errors import CannotRewind, InvalidDecodeState, InvalidOption, TopKFeedbackDisabled
from fucina.sampling import Sampler, SamplerOptions
from fucina.sampling.reference import penalise
from fucina.speculative import CostGate, Options, SpeculationIndex, SpeculativeDecoder, core
from tests.spec_toys import Hungry, Logged, Random, Replay, ToyModel, decode, prefilled

PROMPT = [3, 1, 4, 1, 5]
FREE = Options(adapt_budget=False, min_speedup=0)


def plain(model, n=40, sampler=None, **ends):
    stream, logits = prefilled(model, PROMPT, 100, sampler, max_tokens=n, **ends)
    decode(Decoder(model), stream, logits)
    return stream


def speculative(model, source, options=FREE, n=40, sampler=None, capacity=100, **ends):
    decoder = SpeculativeDecoder(model, source, options, vocab=model.vocab, timed=False)
    stream, logits = prefilled(model, PROMPT, capacity, sampler, max_tokens=n, **ends)
    decode(decoder, stream, logits)
    return stream, decoder


# --- states -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Decoder, lambda m: SpeculativeDecoder(m, Replay([]))])
def test_steps_need_their_state(make):
    model = ToyModel()
    stream, logits = prefilled(model, PROMPT, 20)
    decoder = make(model)
    with pytest.raises(InvalidDecodeState, match="one more than its 5"):
        decoder.step(stream)
    assert decoder.bootstrap_step(stream, logits) == 1
    with pytest.raises(InvalidDecodeState, match="as many as"):
        decoder.bootstrap_step(stream, logits)
    assert decoder.step(stream) == 1
    stream.ended = True
    with pytest.raises(InvalidDecodeState, match="ended"):
        decoder.step(stream)
    empty = DecodeStream(model.new_cache(4), Sampler(), [])
    with pytest.raises(InvalidDecodeState):
        decoder.bootstrap_step(empty, logits)


@pytest.mark.parametrize("bad", [0, -1, True])
def test_max_tokens_is_checked(bad):
    with pytest.raises(InvalidOption, match="max_tokens"):
        DecodeStream(None, Sampler(), [1], max_tokens=bad)


def test_a_state_that_cannot_rewind():
    model = ToyModel()
    stream, logits = prefilled(model, PROMPT, 20)
    stream.cache.can_truncate = False
    stream.cache.truncate = None  # plain decoding never calls it
    decoder = SpeculativeDecoder(model, Replay([]))
    decoder.bootstrap_step(stream, logits)
    with pytest.raises(CannotRewind):
        decoder.step(stream)
    assert Decoder(model).step(stream) == 1 and len(stream.history) == 7


def test_feedback_must_be_possible():
    with pytest.raises(TopKFeedbackDisabled):
        SpeculativeDecoder(ToyModel(), Hungry([]), Options(topk_feedback=0))
    SpeculativeDecoder(ToyModel(), Replay([]), Options(topk_feedback=0))


def test_rows_in_front_of_the_history():
    """A cache may hold rows that belong to no token of the history."""
    model = ToyModel()
    text = plain(model).history
    cache = model.new_cache(100)
    logits = model.forward_rows([(cache, [9, 9, *PROMPT], "last")])[0]
    stream = DecodeStream(cache, Sampler(), list(PROMPT), max_tokens=40, prefix_rows=2)
    decoder = SpeculativeDecoder(model, Replay(text), FREE, vocab=model.vocab)
    assert decode(decoder, stream, logits) == text
    assert cache.held() == [9, 9, *text[:-1]] and decoder.stats.accepted > 20


# --- what a step does -------------------------------------------------------------------------------------------------


def test_a_perfect_source_commits_whole_drafts():
    model = ToyModel()
    text = plain(model).history
    model.passes.clear()
    stream, decoder = speculative(model, Replay(text), Options(max_draft=4, adapt_budget=False, loss_credit=math.inf))
    assert stream.history == text
    assert model.passes == [5] + [5] * 7 + [4]  # prefill; 1 + 7 (4 + 1) tokens; the last pass has 3 drafts and a bonus
    s = decoder.stats
    assert (s.steps, s.spec_steps, s.drafted, s.accepted, s.bonus, s.rejected_steps, s.committed) == (
        8,
        8,
        31,
        31,
        8,
        0,
        40,
    )


def test_a_wrong_source_commits_corrections():
    model = ToyModel()
    text = plain(model).history
    source = Replay(text, lambda i, t: (t + 1) % model.vocab)
    stream, decoder = speculative(model, source, Options(max_draft=4, adapt_budget=False, min_speedup=0))
    s = decoder.stats
    assert stream.history == text
    assert (s.steps, s.spec_steps, s.fallback_steps, s.accepted, s.bonus, s.rejected_steps) == (39, 37, 2, 0, 0, 37)


@pytest.mark.parametrize("drafts", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("at", range(1, 13))
def test_a_stop_token_at_every_place_of_a_draft(at, drafts):
    """No row behind it is sampled, the bonus row included, and it is not committed."""
    model = ToyModel(vocab=200, seed=5, memory=5)
    sampling = SamplerOptions(temperature=0.9, seed=at)
    text = plain(model, sampler=Sampler(sampling)).history
    stop = text[len(PROMPT) + at]
    expected = plain(model, sampler=Sampler(sampling), stop_tokens={stop})
    sampler = Sampler(sampling)
    options = Options(max_draft=drafts, min_draft=1, adapt_budget=False, min_speedup=0)
    stream, _decoder = speculative(model, Replay(text), options, sampler=sampler, stop_tokens={stop})
    assert stream.history == expected.history and stream.stop_token == stop and stream.ended
    assert sampler.rng.position == len(stream.history) - len(PROMPT) + 1  # the stop token was drawn, nothing else
    assert stream.cache.held() == stream.history == expected.cache.held()


def test_a_sink_ends_the_turn_inside_a_draft():
    model = ToyModel()
    text = plain(model).history
    for after in range(1, 12):
        sampler, seen = Sampler(SamplerOptions(), Logged()), []
        stop = lambda token, seen=seen, after=after: seen.append(token) or len(seen) == after
        want = plain(model, sampler=Sampler(SamplerOptions(), Logged()), sink=iter_stop(after))
        stream, _ = speculative(model, Replay(text), sampler=sampler, sink=stop)
        assert stream.history == want.history and len(seen) == after and stream.stop_token is None
        assert sampler.processor.log == want.sampler.processor.log == seen
        assert stream.cache.held() == stream.history[:-1]


def iter_stop(after):
    left = [after]

    def sink(_):
        left[0] -= 1
        return left[0] == 0

    return sink


def test_drafts_fit_the_cache_and_the_turn():
    model = ToyModel()
    text = plain(model).history
    for capacity in range(len(PROMPT) + 1, len(PROMPT) + 12):
        stream, _ = speculative(model, Replay(text), n=None, capacity=capacity)
        assert stream.history == text[: capacity + 1] and stream.cache.len == capacity


def test_feedback_is_the_best_of_raw_rows():
    model = ToyModel()
    sampler = Sampler(SamplerOptions(repeat_penalty=2.0))
    text = plain(model, sampler=Sampler(SamplerOptions(repeat_penalty=2.0))).history
    source = Hungry(text, lambda i, t: t if i < 3 else (t + 1) % model.vocab)
    stream, decoder = speculative(
        model, source, Options(max_draft=6, topk_feedback=3, adapt_budget=False), sampler=sampler
    )
    assert stream.history == text and len(source.feedback) == decoder.stats.spec_steps > 5
    at = len(PROMPT)  # place of the newest token in front of each verify
    for rows in source.feedback:
        # three accepted, one corrected; the turn's end cuts the last one
        assert [r.token for r in rows] == text[at : at + 4][: len(text) - 1 - at]
        for i, row in enumerate(rows):
            logits = model.row(text[: at + i + 1])
            assert row.top_k.tolist() == np.lexsort((np.arange(model.vocab), -logits))[:3].tolist()
        at += 4


def test_feedback_that_nobody_wants_is_not_computed(monkeypatch):
    monkeypatch.setattr(core, "top_ids", None)
    model = ToyModel()
    text = plain(model).history
    assert speculative(model, Replay(text))[0].history == text


def test_cuts_are_told():
    model = ToyModel()
    text = plain(model).history
    long = Hungry(text, length=lambda n: 30)
    speculative(model, long, Options(max_draft=6, adapt_budget=False, loss_credit=math.inf))
    assert long.cuts and set(long.cuts[:-1]) == {6}
    stop = text[len(PROMPT) + 4]
    cut = Hungry(text)
    options = Options(max_draft=16, adapt_budget=False, loss_credit=math.inf)
    stream, _ = speculative(model, cut, options, stop_tokens={stop})
    assert cut.cuts[0] == text[len(PROMPT) + 1 :].index(stop)
    outside = Hungry(text, lambda i, t: model.vocab if i == 1 else t)
    stream, decoder = speculative(model, outside)
    assert set(outside.cuts) == {0} and decoder.stats.spec_steps == 0  # one token is too short a draft
    assert stream.history == text


@pytest.mark.parametrize("seed", range(5))
def test_lying_sources(seed):
    """Too many, no integers, and ids outside of the vocabulary (case H16) are never verified."""
    model = ToyModel()
    text = plain(model).history
    stream, _decoder = speculative(
        model, Random(seed, model.vocab, lying=True), Options(max_draft=5, adapt_budget=False, min_speedup=0)
    )
    assert stream.history == text and max(model.passes) <= 6


def test_zero_drafts_is_off_and_not_the_default():
    """Case H22; the counts add up."""
    model = ToyModel()
    text = plain(model).history
    source = Replay(text)
    stream, decoder = speculative(model, source, Options(max_draft=0))
    assert stream.history == text and source.suggested == 0
    s = decoder.stats
    assert (s.steps, s.fallback_steps, s.drafted, s.committed) == (39, 39, 0, 40)
    stream, decoder = speculative(model, source := Replay(text), Options(enabled=False))
    assert stream.history == text and source.suggested == 0 and decoder.stats.disabled_steps == 39


def test_the_gate_trips_waits_and_probes_end_to_end():
    model = ToyModel()
    text = plain(model, n=90).history
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
    decoder = SpeculativeDecoder(
        model,
        source,
        options,
        gate=gate,
        timed=False,
        vocab=24,
        on_step=lambda r: (states.append(gate.state), kinds.append(r.kind)),
    )
    stream, logits = prefilled(model, PROMPT, 200, max_tokens=90)
    assert decode(decoder, stream, logits) == text
    assert states[0] == "on" and states[1] == "off" and states[-1] == "on" and "probing" in states
    assert kinds[:2] == ["verify"] * 2 and kinds[2:5] == ["off"] * 3 and kinds[5] == "verify"
    s = decoder.stats
    assert kinds.count("off") == s.disabled_steps > 3 and s.steps == len(kinds)


def test_times_of_passes_reach_the_cost():
    """Plain passes set the unit, verifies the scale; without a clock the table stays as it is."""
    model = ToyModel()
    text = plain(model).history
    for timed in (True, False):
        decoder = SpeculativeDecoder(model, Replay(text), Options(min_speedup=0), timed=timed, vocab=model.vocab)
        stream, logits = prefilled(model, PROMPT, 100, max_tokens=40)
        decoder.bootstrap_step(stream, logits)
        suggest, decoder.source.suggest = decoder.source.suggest, lambda context, limit: []
        decoder.step(stream)
        assert (decoder.cost.plain_seconds() is not None) is timed and decoder.cost.scale == 1.0
        decoder.source.suggest = suggest
        decoder.step(stream)
        assert decoder.stats.spec_steps == 1 and (decoder.cost.scale != 1.0) is timed


def test_a_gate_of_ones_own():
    """Anything with the three methods; it is told what was committed (a stop token counts), accepted, drafted and paid."""

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
    text = plain(model).history
    stop = max(text[len(PROMPT) :], key=text[len(PROMPT) :].index)  # the one that comes last
    text = text[: text.index(stop, len(PROMPT)) + 1]
    gate = Gate()
    options = Options(cost_table=[(1, 1.0), (5, 3.0)])
    source = Replay([*text, *text], lambda i, t: t if i < 2 else (t + 1) % model.vocab)
    decoder = SpeculativeDecoder(model, source, options, gate=gate, timed=False, vocab=model.vocab)
    stream, logits = prefilled(model, PROMPT, 100, stop_tokens={stop})
    decode(decoder, stream, logits)
    s = decoder.stats
    assert stream.history == text[:-1] and gate.asked == s.steps and s.disabled_steps == s.steps // 2
    assert len(gate.records) == s.spec_steps > 1 and gate.records[0] == (3, 2, 4, 3.0)
    assert sum(r[1] for r in gate.records) == s.accepted and sum(r[2] for r in gate.records) == s.drafted


@pytest.mark.parametrize(
    ("gate", "told"), [(object(), "allows is missing"), (CostGate, "must be an object"), (3, "record")]
)
def test_what_is_no_gate_is_refused(gate, told):
    with pytest.raises(InvalidOption, match=told):
        SpeculativeDecoder(ToyModel(), Replay([1, 2]), gate=gate, vocab=24)


def test_penalties_see_the_accepted_tokens():
    """A row's penalties hold for the tokens in front of it, not for those at the start of the step."""
    model = ToyModel(vocab=12)
    options = SamplerOptions(repeat_penalty=3.0, frequency_penalty=0.5)
    text = plain(model, sampler=Sampler(options)).history
    captured = {}
    decoder = SpeculativeDecoder(
        model, Replay(text), FREE, vocab=12, on_row=lambda n, row: captured.__setitem__(n, row.copy())
    )
    stream, logits = prefilled(model, PROMPT, 100, Sampler(options), max_tokens=40)
    assert decode(decoder, stream, logits) == text and decoder.stats.accepted > 20
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
    """Case H8."""
    model = ToyModel(vocab=10)
    options = SamplerOptions(**penalty)
    text = plain(model, 80, Sampler(options)).history
    assert text != plain(model, 80).history
    for source in (Replay(text), Replay(text, lambda i, t: t if i % 5 else (t + 1) % 10)):
        wide = Options(max_draft=drafts, adapt_budget=False, min_speedup=0)
        assert speculative(model, source, wide, 80, Sampler(options))[0].history == text


def test_another_text_starts_the_source_anew():
    model = ToyModel()
    index = SpeculationIndex(model.vocab)
    decoder = SpeculativeDecoder(model, index, FREE, vocab=model.vocab)
    stream, logits = prefilled(model, PROMPT, 100, max_tokens=5)
    decode(decoder, stream, logits)
    first = stream.history
    assert index.conversation.tokens().tolist() == first[:-1]  # the newest may still be dropped
    # a continuation: only what is new is told
    again = DecodeStream(stream.cache, Sampler(), [*first, 7, 8], max_tokens=3)
    logits = model.forward_rows([(again.cache, [first[-1], 7, 8], "last")])[0]
    decode(decoder, again, logits)
    assert index.conversation.tokens().tolist() == again.history[:-1] and again.history[: len(first) + 2] == [
        *first,
        7,
        8,
    ]
    # another text
    stream, logits = prefilled(model, [2, 2], 100, max_tokens=4)
    decode(decoder, stream, logits)
    assert index.conversation.tokens().tolist() == stream.history[:-1]


def test_a_turn_whose_last_token_is_dropped_costs_no_rebuild():
    """The token that completes a stop text leaves the history: the index has not heard of it."""
    model = ToyModel()
    index = SpeculationIndex(model.vocab)
    decoder = SpeculativeDecoder(model, index, FREE, vocab=model.vocab)
    stream, logits = prefilled(model, PROMPT, 100, sink=iter_stop(7))
    decode(decoder, stream, logits)
    before, kept = index.conversation, stream.history[:-1]
    again = DecodeStream(stream.cache, Sampler(), [*kept, 9, 9], max_tokens=3)
    logits = model.forward_rows([(again.cache, [9, 9], "last")])[0]
    decode(decoder, again, logits)
    assert index.conversation is before and before.tokens().tolist() == again.history[:-1]


WRITES = {
    "appends": lambda text: text.append(3),
    "drops": lambda text: text.pop(),
    "clears": lambda text: text.clear(),
    "overwrites": lambda text: text.__setitem__(0, text[0] + 1),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_source_that_writes_into_what_it_is_shown_changes_nothing(write):
    model = ToyModel()
    text = plain(model).history

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

    stream, decoder = speculative(model, Scribbler(text))
    assert stream.history == text and stream.cache.held() == text[:-1]
    assert decoder.stats.committed == 40 and decoder.stats.accepted > 0
