"""Every face of the engine over every kind of state: what a plain loop over a new state gives, bit for bit.

The toys are a recurrence, latents, windows in rings, and routed experts; beside them are real families in the sizes of
a toy.  The plain loop computes the whole text anew
for each token, so that it uses nothing of what is tested: no cached row, no rewind, no batch, no draft.
"""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from fucina.chat import Conversation, TurnBatch, send_batch, send_batch_tokens_reuse
from fucina.engine import Scheduler, Stream
from fucina.sampling import Sampler, SamplerOptions
from fucina.speculative import Options, SourceDrafter
from tests.conversations import FailAt, check_state
from tests.spec_toys import Replay
from tests.toy_families import KINDS, VOCAB, toy_model

EAGER = Options(adapt_budget=False, min_speedup=0, min_draft=1, max_draft=5)
SAMPLING = ({}, {"temperature": 0.9, "top_k": 40, "repeat_penalty": 1.2, "seed": 3})
LONG = 200  # tokens: past the rings' 192 rows


CASES = [(kind, backend) for kind in KINDS for backend in ("native", "naive")] + [
    (kind, "native") for kind in ("qwen35", "gemma4")
]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def model(request):
    kind, backend = request.param
    m = toy_model(kind, backend, fmt="quantised" if backend == "native" else "f32")
    m.kind = kind
    yield m
    m.close()


@pytest.fixture(scope="module")
def texts():
    """The tokens of the plain loop, by model, prompt and sampling; longer texts are computed once."""
    return {}


def plain(model, texts, prompt, n, sampling, position=0):
    """The next n tokens of a prompt, each from the logits of a fresh state."""
    key = (id(model), tuple(prompt), tuple(sorted(sampling.items())), position)
    known = texts.setdefault(key, [])
    sampler = Sampler(SamplerOptions(**sampling))
    sampler.rng.position = position + (len(known) if sampling else 0)
    while len(known) < n:
        tokens = [*prompt, *known]
        known.append(sampler.next(model.logits(tokens)[-1, :VOCAB], tokens))
    return known[:n]


def prompt_of(seed, n):
    return np.random.default_rng(seed).integers(33, 120, n).tolist()


def wrong_at_times(text, seed=0):
    """A source that knows the text, and spoils a token of most drafts."""
    rng = np.random.default_rng(seed)
    return Replay(text, lambda i, t: (t + 1) % VOCAB if rng.random() < 0.25 else t)


@pytest.mark.parametrize("sampling", SAMPLING, ids=["greedy", "sampled"])
@pytest.mark.parametrize("length", [3, LONG])
def test_generate_and_speculation(model, texts, sampling, length):
    prompt = prompt_of(1, length)
    expected = plain(model, texts, prompt, 24, sampling)
    assert model.generate(prompt, max_tokens=24, ignore_eos=True, **sampling).tokens == expected
    for source in (True, Replay([*prompt, *expected]), wrong_at_times([*prompt, *expected])):
        drafter = source if source is True else SourceDrafter(model, source, EAGER)
        fast = model.generate(prompt, max_tokens=24, ignore_eos=True, speculative=drafter, **sampling)
        assert fast.tokens == expected
        assert source is True or fast.speculation.accepted > 5


@pytest.mark.parametrize("speculation", [False, True], ids=["plain", "drafts"])
@pytest.mark.parametrize("sampling", SAMPLING, ids=["greedy", "sampled"])
def test_conversations_reuse_undo_and_regenerate(model, texts, sampling, speculation):
    c = Conversation(model, max_tokens=9, speculation=EAGER if speculation else False, **sampling)
    c.stop_ids = frozenset()

    def check(reply):
        before = c.sampler.rng.position - (len(reply.tokens) if sampling else 0)
        prompt = c.history[: reply.prompt_tokens]
        assert reply.tokens == plain(model, texts, prompt, len(reply.tokens), sampling, before)
        check_state(c)

    ids = prompt_of(2, 150)
    check(c.send_tokens_reuse(ids))
    check(c.send_rendered("and on"))
    check(c.send_rendered("x" * 60))
    check(c.regenerate())
    c.undo(2)
    assert c.history[:150] == ids
    check_state(c, complete=False)
    check(c.send_rendered("again"))
    check(c.send_tokens_reuse([*ids[:140], *prompt_of(3, 30)]))
    assert c.reused_prefix <= 140
    check(c.send_tokens_reuse(list(c.history)))  # all of it is there already
    c.reset()
    check(c.send_tokens_reuse(ids))


def test_stop_texts_and_cancel(model, texts):
    prompt = prompt_of(4, 180)
    expected = plain(model, texts, prompt, 20, {})
    text = model.generate(prompt, max_tokens=20, ignore_eos=True).text
    stop = text[8:10]
    for speculative in (False, SourceDrafter(model, Replay([*prompt, *expected]), EAGER)):
        c = Conversation(model, stop=stop, max_tokens=20, speculation=speculative)
        c.stop_ids = frozenset()
        reply = c.send_tokens_reuse(prompt)
        assert reply.text == text[: text.index(stop)] and reply.finish_reason == "stop"
        assert reply.tokens == expected[: len(reply.tokens)]
        check_state(c)
        c.stop = ()
        more = c.send_rendered("so")
        assert more.tokens == plain(model, texts, c.history[: more.prompt_tokens], len(more.tokens), {})
        stream = c.send_rendered("go on", stream=True)
        shown = "".join(islice(stream, 2))
        stream.cancel()
        shown += "".join(stream)
        assert stream.result.text == shown and stream.result.finish_reason == "cancelled"
        check_state(c)
        last = c.send_rendered("end")
        assert last.tokens == plain(model, texts, c.history[: last.prompt_tokens], len(last.tokens), {})


def test_batches(model, texts):
    """Streams of different lengths join and leave; some draft, one fails, one is cancelled."""
    prompts = [prompt_of(10 + i, n) for i, n in enumerate((5, 190, 64, 130))]
    samplings = [SAMPLING[i % 2] for i in range(4)]
    expected = [plain(model, texts, p, 12, s) for p, s in zip(prompts, samplings, strict=True)]

    def make():
        sources = [False, EAGER, SourceDrafter(model, wrong_at_times([*prompts[2], *expected[2]]), EAGER), False]
        cs = [
            Conversation(model, template="chatml", max_tokens=12, speculation=d, **s)
            for d, s in zip(sources, samplings, strict=True)
        ]
        for c in cs:
            c.stop_ids = frozenset()
        return cs

    cs = make()
    assert [r.tokens for r in send_batch_tokens_reuse(cs, prompts)] == expected
    for c in cs:
        check_state(c)
    cs = make()
    cs[0].sampler.processor = FailAt(4)
    batch = TurnBatch(model)
    turns = [batch.send_tokens_reuse(cs[0], prompts[0])]
    for i in (1, 2, 3):
        for _ in range(2):
            batch.step()
        turns.append(batch.send_tokens_reuse(cs[i], prompts[i]))
    while batch.busy:
        batch.step()
        if turns[3].stream.committed == 3:
            cs[3].cancel()
    assert [t.reply.finish_reason for t in turns] == ["error", "length", "length", "cancelled"]
    assert [t.reply.tokens for t in turns] == [expected[0][:3], expected[1], expected[2], expected[3][:3]]
    for c in cs:
        check_state(c, complete=False)
    more = send_batch(cs[1:], ["a", "b" * 40, "c"])
    for c, reply, sampling in zip(cs[1:], more, samplings[1:], strict=True):
        before = c.sampler.rng.position - (len(reply.tokens) if sampling else 0)
        assert reply.tokens == plain(
            model, texts, c.history[: reply.prompt_tokens], len(reply.tokens), sampling, before
        )


def test_a_failure_in_mid_pass_moves_nobody(model, texts):
    """An op that raises somewhere in a pass: every stream goes on as if nothing had been."""
    prompts = [prompt_of(20, 30), prompt_of(21, 170)]
    expected = [plain(model, texts, p, 8, {}) for p in prompts]
    scheduler = Scheduler(model)
    for p in prompts:
        scheduler.add(Stream(model.new_cache(400), list(p), Sampler(), max_tokens=8))
    calls = [0]

    def broken(x, weight, eps):
        calls[0] += 1
        if calls[0] % 97 == 0:
            raise RuntimeError("no")
        return x / np.sqrt(np.mean(x * x) + eps) * weight

    failures = 0
    for _ in range(3):
        with model.override("rms_norm", broken), pytest.raises(RuntimeError, match="no"):
            while True:
                before = [(list(s.tokens), s.state.len) for s in scheduler.streams]
                scheduler.step()
                break_after = scheduler.live
                assert break_after
                # rows of the overridden op are not those of the model: forget them
                for s, (tokens, rows) in zip(scheduler.streams, before, strict=True):
                    s.tokens[:] = tokens
                    s.keep_rows(min(rows, s.cached))
        failures += 1
        assert [s.tokens for s in scheduler.streams] == [tokens for tokens, _ in before]
        assert all(s.finish is None for s in scheduler.streams)
        for s in scheduler.streams:
            s.state.rewind(0)
        scheduler.step()
    while scheduler.step() is not None:
        pass
    assert failures == 3
    for s, p, e in zip(scheduler.streams, prompts, expected, strict=True):
        assert s.tokens == [*p, *e] and s.finish == "length"
