"""Looking at drafts while the gate is off: what is compared, when it wakes the gate, and that it changes no token."""

import math

import pytest

from fucina.decoding import Decoder
from fucina.sampling import Sampler, SamplerOptions
from fucina.speculative import CostGate, Options, SpeculationIndex, SpeculativeDecoder, VerifyCost
from fucina.speculative.watch import Watch
from tests.spec_toys import Hungry, Replay, ToyModel, decode, prefilled

PROMPT = [3, 1, 4, 1, 5]
TABLE = [(1, 1.0), (17, 5.0)]


def looked(watch, draft, committed, cost=2.0):
    """Propose a draft, then commit tokens one at a time; return after how many the comparison ended."""
    history = [0] * 10
    watch.propose(draft, len(history), cost)
    for n, token in enumerate(committed, 1):
        history.append(token)
        watch.look(history)
        if not watch.waiting:
            return n
    return None


@pytest.mark.parametrize(
    ("committed", "ends"), [([9], 1), ([5, 9], 2), ([5, 6, 9], 3), ([5, 6, 7, 8], 4), ([5, 6, 7], None), ([5], None)]
)
def test_a_comparison_ends_where_a_verify_would(committed, ends):
    """With the correction, or with the bonus behind a whole draft."""
    assert looked(Watch(Options()), [5, 6, 7], committed) == ends


def test_what_is_promising():
    watch = Watch(Options())
    assert not watch.promising and not watch.waiting
    looked(watch, [5, 6, 7, 8], [5, 6, 7, 8, 1])
    assert not watch.promising  # one is too few
    looked(watch, [5, 6, 7, 8], [5, 6, 7, 8, 1])
    assert watch.promising  # 10 tokens for 4 plain steps
    for _ in range(3):
        looked(watch, [5, 6, 7, 8], [1])
    assert not watch.promising  # 8 tokens for 8: the margin is missing
    looked(watch, [5, 6, 7, 8], [1])
    assert not watch.promising
    watch.clear()
    looked(watch, [5, 6], [5, 6, 7])
    looked(watch, [5, 6], [5, 6, 7])
    assert not watch.promising  # 4 drafted tokens are fewer than 8


def test_a_comparison_can_be_forgotten():
    watch = Watch(Options())
    watch.propose([5, 6], 3, 1.0)
    watch.clear()
    assert not watch.waiting
    watch.propose([], 3, 1.0)
    assert not watch.waiting


def test_wake_ends_a_pause():
    gate = CostGate(Options(reprobe_after=100, reprobe_max=100))
    gate.wake()
    assert gate.state == "on"  # nothing to end
    for _ in range(2):
        gate.record(1, 0, 8, 3.0)
    assert gate.state == "off" and not gate.allows()
    gate.wake()
    assert gate.allows() and gate.state == "probing"


def test_estimates_learn_nothing():
    cost = VerifyCost(Options(cost_table=TABLE))
    cost.note_plain(1.0)
    assert cost.estimate(16, 0) == 5.0 and cost.estimate(8, 0) == 3.0 and cost.estimate(0, 0) == 1.0
    assert cost.estimate(8, 0, streams=4) == pytest.approx(1 + 4 * ((1 + 11 / 4) / (1 + 3 / 4) - 1))
    cost.scale = 2.0
    assert cost.estimate(16, 0) == 10.0 and cost.scale == 2.0


def late_bloomer(model, watch, n=150):
    """A source that is wrong for the first tokens and right afterwards, and a gate that waits long."""
    stream, logits = prefilled(model, PROMPT, 400, max_tokens=n)
    text = list(decode(Decoder(model), stream, logits))
    source = Hungry(text, lambda i, t: t if len(source.seen) > 40 else (t + 1) % model.vocab)
    options = Options(cost_table=TABLE, reprobe_after=1000, reprobe_max=1000, watch=watch, loss_credit=math.inf)
    kinds = []
    decoder = SpeculativeDecoder(
        model, source, options, timed=False, vocab=model.vocab, on_step=lambda r: kinds.append(r.kind)
    )
    stream, logits = prefilled(model, PROMPT, 400, max_tokens=n)
    assert decode(decoder, stream, logits) == text
    return kinds, decoder, source


def test_a_source_that_becomes_good_is_noticed_without_a_probe():
    model = ToyModel()
    kinds, decoder, source = late_bloomer(model, watch=True)
    first = kinds.index("off")
    woken = kinds.index("verify", first)
    assert len(PROMPT) + woken < 65  # three proposals of three were right, and cost nothing
    assert "off" not in kinds[woken:] and decoder.gate.state == "on"
    assert (
        set(kinds[first:woken]) == {"off"} and source.cuts.count(0) > 10
    )  # what is only looked at is no pending draft
    without, other, _ = late_bloomer(model, watch=False)
    assert "verify" not in without[first:] and decoder.stats.steps < other.stats.steps
    assert decoder.stats.committed == other.stats.committed == 150


def test_a_bad_source_is_not_woken():
    model = ToyModel()
    stream, logits = prefilled(model, PROMPT, 400, max_tokens=150)
    text = decode(Decoder(model), stream, logits)
    source = Replay(text, lambda i, t: (t + 1) % model.vocab)
    options = Options(cost_table=TABLE, reprobe_after=1000, reprobe_max=1000, loss_credit=math.inf)
    decoder = SpeculativeDecoder(model, source, options, timed=False, vocab=model.vocab)
    stream, logits = prefilled(model, PROMPT, 400, max_tokens=150)
    assert decode(decoder, stream, logits) == text
    assert decoder.stats.spec_steps == 4 and decoder.gate.state == "off"  # 3 + 2 + 2 + 2 drafted tokens were enough


def test_a_gate_without_wake_is_left_alone():
    class Gate:
        def allows(self):
            return False

        def budget(self):
            return 16

        def record(self, committed, accepted, drafted, cost):
            pass

    model = ToyModel()
    source = Replay([])
    decoder = SpeculativeDecoder(model, source, gate=Gate(), vocab=model.vocab)
    stream, logits = prefilled(model, PROMPT, 100, max_tokens=10)
    decode(decoder, stream, logits)
    assert source.suggested == 0 and decoder.stats.disabled_steps == 9


def test_accounts_of_sources_hold_only_what_was_verified():
    model = ToyModel(vocab=8, memory=2)
    index = SpeculationIndex(8)
    table = [(1, 1.0), (17, 17.0)]
    options = Options(cost_table=table, reprobe_after=20, reprobe_max=20, adapt_budget=False, loss_credit=math.inf)
    decoder = SpeculativeDecoder(model, index, options, timed=False, vocab=8)
    stream, logits = prefilled(model, PROMPT, 600, Sampler(SamplerOptions(temperature=1.0)), max_tokens=500)
    decode(decoder, stream, logits)
    assert decoder.stats.disabled_steps > 100 and decoder.stats.accepted > 10
    drafted = sum(d for _, d, _ in index.counts().values())
    accepted = sum(a for a, _, _ in index.counts().values())
    assert (drafted, accepted) == (decoder.stats.drafted, decoder.stats.accepted)
