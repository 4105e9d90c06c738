"""Speculation of real models changes nothing: tokens, draws, commits, bits of keys and values, bits of every sampled row."""

import hashlib
import random

import pytest

import fucina
from fucina.chat import Conversation, send_batch
from fucina.engine import Scheduler
from fucina.errors import TokenOutOfRange
from fucina.sampling import BanTokens, BiasTokens, Sampler, SamplerOptions
from fucina.speculative import Options, SourceDrafter
from tests.conversations import check_state
from tests.models import need_gemma3, need_smollm2
from tests.spec_toys import KINDS, Logged, decode, rows_of, source_of, start

N = 32
TEXTS = (
    "def add(a, b):\n    return a + b\n\ndef add(a, b):\n    return a + b\n\ndef add(a, b",
    "The capital of Italy is",
    "one two three one two three one two",
    "<|im_start|>user\nRepeat: the cat sat on the mat<|im_end|>\n<|im_start|>assistant\n",
)
GREEDY = {"repeat_penalty": 1.1}
SAMPLED = {
    "temperature": 0.8,
    "top_k": 20,
    "repeat_penalty": 1.1,
    "frequency_penalty": 0.2,
    "presence_penalty": 0.1,
    "seed": 11,
}


@pytest.fixture(scope="module")
def model():
    model = fucina.load(need_smollm2())
    yield model
    model.close()


@pytest.fixture(scope="module")
def plain(model):
    """What plain decoding does, once for each text and sampling."""
    known = {}

    def run(text, sampled):
        if (text, sampled) not in known:
            stream, seen = begin(model, text, sampled)
            decode(model, stream)
            known[text, sampled] = outcome(stream, seen)
        return known[text, sampled]

    return run


def begin(model, text, sampled, drafter=None):
    """A stream, and the list of all rows that are sampled in it."""
    seen = []
    hook = lambda n, row: seen.append((n, hashlib.sha256(row.tobytes()).digest()))
    sampler = Sampler(SamplerOptions(**(SAMPLED if sampled else GREEDY)), Logged() if sampled else None)
    ids = model.tokenizer.encode(text)
    return start(model, ids, len(ids) + N, sampler, drafter, max_tokens=N, on_row=hook), seen


def outcome(stream, seen):
    sampler = stream.sampler
    return {
        "tokens": list(stream.tokens),
        "draws": sampler.rng.position,
        "commits": sampler.processor and list(sampler.processor.log),
        "len": stream.state.len,
        "rows": [hashlib.sha256(plane).digest() for plane in rows_of(stream.state)],
        "logits": list(seen),
    }


@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_source(model, plain, kind, sampled):
    """Drafts of up to 16 tokens, with and without gate and adaptive budget."""
    for i, text in enumerate(TEXTS[:2]):
        expected = plain(text, sampled)
        source = source_of(kind, expected["tokens"], model.config.vocab_size, i)
        free = {"min_speedup": 0.0, "adapt_budget": False, "min_draft": 1, "topk_feedback": 4}
        drafter = SourceDrafter(model, source, Options(**(free if i == 0 else {})))
        stream, seen = begin(model, text, sampled, drafter)
        decode(model, stream)
        assert outcome(stream, seen) == expected
        if kind in ("perfect", "hungry") and i == 0:
            assert drafter.stats.accepted > 24 and drafter.stats.steps < 5


@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("streams", [1, 2, 3, 4])
def test_batches(model, plain, streams, sampled):
    """Streams of all kinds in one pass, some of them plain, some joining late."""
    r = random.Random(streams)
    scheduler = Scheduler(model)
    expected, started = [], []
    for text in TEXTS[:streams]:
        expected.append(plain(text, sampled))
        kind = r.choice(KINDS)
        source = source_of(kind, expected[-1]["tokens"], model.config.vocab_size, streams)
        options = Options(max_draft=r.choice([3, 7, 16]), min_speedup=0.0, adapt_budget=False)
        drafter = None if r.random() < 0.2 else SourceDrafter(model, source, options)
        started.append(begin(model, text, sampled, drafter))
        scheduler.add(started[-1][0])
        for _ in range(r.choice([0, 2])):
            scheduler.step()
    while scheduler.step() is not None:
        pass
    assert all(stream.error is None for stream in scheduler.streams)
    assert [outcome(stream, seen) for stream, seen in started] == expected


@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_conversations(model, sampling):
    """As users have them: documents, a second turn, another reply, one pass for several."""
    document = "The quick brown fox jumps over the lazy dog. Then the dog sleeps."
    told = []
    for speculation in (False, True):
        c = Conversation(model, max_tokens=24, capacity=300, speculation=speculation, stop=["\n\n"], **sampling)
        if speculation:
            c.add_spec_reference(document)
        replies = [c.send(f"Copy this text: {document}"), c.send("Once more."), c.regenerate()]
        c.undo()
        others = [Conversation(model, max_tokens=24, capacity=300, speculation=speculation, **sampling) for _ in "ab"]
        replies += send_batch([c, *others], ["And again.", "Count to five.", "Name a river."])
        check_state(c)
        told.append([(r.tokens, r.text, r.finish_reason, r.reused_prefix) for r in replies])
        told[-1].append((c.history, c.sampler.rng.position))
    assert told[0] == told[1] and c.spec_stats.committed > 15


@pytest.mark.parametrize("penalty", [-2.0, 2.0])
def test_penalties_reach_every_token(model, penalty):
    """The same with and without drafts, and not what the other penalty gives."""
    options = {"max_tokens": 32, "frequency_penalty": penalty, "ignore_eos": True}
    plain, other = (
        model.generate("Repeat hello: hello", **{**options, "frequency_penalty": p}) for p in (penalty, -penalty)
    )
    fast = model.generate("Repeat hello: hello", **options, speculative=True)
    eager = model.generate("Repeat hello: hello", **options, speculative=Options(min_speedup=0, adapt_budget=False))
    assert fast.tokens == eager.tokens == plain.tokens != other.tokens


def test_twenty_requests_go_on_drafting(model):
    """Later requests draft, too, and what the source holds does not grow."""
    c = Conversation(model, max_tokens=8, capacity=120, speculation=Options(min_speedup=0.0), template="chatml")
    sizes, accepted = set(), [0]
    for _ in range(20):
        c.reset()
        c.send("Repeat: the cat sat on the mat, the cat sat on the mat, the cat sat on the mat.")
        sizes.add(c.drafter.source.conversation.byte_size)
        accepted.append(c.spec_stats.accepted)
    assert len(sizes) == 1 and accepted[1] < accepted[10] < accepted[20]


@pytest.mark.parametrize("token", [-1, 49152, 1 << 31, 1 << 63])
def test_ids_outside_the_vocabulary(model, token):
    """On the vocabulary of 49152: prompts, stop ids, biases, drafts; other streams are not affected."""
    healthy = Conversation(model, max_tokens=4, capacity=64, template="chatml")
    expected = healthy.send_tokens_reuse([504, 28]).tokens
    for go in (
        lambda: model.generate([504, token], max_tokens=2),
        lambda: Conversation(model, extra_stop_ids=[token]),
        lambda: Conversation(model, capacity=64, speculation=True, references=[[504, token]]),
        lambda: Conversation(model, capacity=64).send_tokens_reuse([504, token]),
        lambda: Conversation(model, capacity=64, processor=BiasTokens({token: -1.0})).send("hi"),
        lambda: Conversation(model, capacity=64, processor=BanTokens([token])).send("hi"),
    ):
        with pytest.raises(TokenOutOfRange):
            go()
    replies = fucina.send_batch_tokens_reuse([healthy, Conversation(model, capacity=64)], [[504, 28], [504, token]])
    assert replies[0].tokens == expected and isinstance(replies[1].error, TokenOutOfRange)


def test_drafts_across_the_edge_of_the_window():
    """Gemma's window layers look back 512 positions; a prompt of 505, drafts of 8, 20 tokens."""
    model = fucina.load(need_gemma3(), context=640)
    try:
        ids = [2] + [(7 * i * i + 100) % 5000 + 1000 for i in range(504)]
        plain = model.generate(ids, max_tokens=20, ignore_eos=True)
        for kind in ("perfect", "part"):
            source = source_of(kind, ids + plain.tokens, model.config.vocab_size, 1)
            options = Options(max_draft=8, min_speedup=0.0, adapt_budget=False)
            drafter = SourceDrafter(model, source, options)
            fast = model.generate(ids, max_tokens=20, ignore_eos=True, speculative=drafter)
            assert fast.tokens == plain.tokens and (kind != "perfect" or fast.speculation.accepted > 15)
    finally:
        model.close()
