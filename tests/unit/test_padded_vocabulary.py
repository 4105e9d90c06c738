"""An embedding with more rows than there are tokens: the last ids are no tokens, whatever their logits are."""

import numpy as np
import pytest

from fucina.chat import Conversation, WarmState, send_batch_tokens_reuse
from fucina.errors import TokenOutOfRange
from fucina.sampling import Sampler, SamplerOptions
from fucina.speculative import Options, SourceDrafter
from tests.conversations import check_state
from tests.toy_families import ROWS, VOCAB, toy_model

EAGER = Options(adapt_budget=False, min_speedup=0, min_draft=1, max_draft=5)
PROMPT = list(b"one two one two one")
SAMPLED = {"temperature": 1.5, "seed": 5}


@pytest.fixture(scope="module", params=["native", "naive"])
def model(request):
    m = toy_model("routed", request.param)
    yield m
    m.close()


class Padding:
    """A source that drafts what is true, then ids that are no tokens."""

    def __init__(self, text):
        self.text, self.asked, self.best = list(text), 0, []

    def suggest(self, context, limit):
        self.asked += 1
        return [*self.text[len(context) : len(context) + 2], VOCAB, VOCAB + 1]

    def observe(self, committed):
        """Do nothing."""

    def observe_top_k(self, rows):
        self.best += [row.top_k for row in rows]


def plain(model, prompt, n, sampling):
    """The next tokens by a loop over whole texts, and how often a row without a token had the highest logit."""
    sampler, tokens, padded = Sampler(SamplerOptions(**sampling)), list(prompt), 0
    for _ in range(n):
        row = model.logits(tokens)[-1]
        padded += int(row.argmax()) >= VOCAB
        tokens.append(sampler.next(row[:VOCAB], tokens))
    return tokens[len(prompt) :], padded


def test_sizes(model):
    assert model.config.vocab_size == ROWS["routed"] > VOCAB == model.n_tokens
    assert model.logits(PROMPT).shape == (len(PROMPT), ROWS["routed"])


@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_no_face_says_what_is_no_token(model, sampling):
    expected, padded = plain(model, PROMPT, 24, sampling)
    assert padded > 3  # without a limit they would be said
    options = {"ignore_eos": True, "max_tokens": 24, **sampling}
    assert model.generate(PROMPT, **options).tokens == expected
    assert model.generate(PROMPT, speculative=True, **options).tokens == expected
    source = Padding([*PROMPT, *expected])
    fast = model.generate(PROMPT, speculative=SourceDrafter(model, source, EAGER), **options)
    assert fast.tokens == expected and fast.speculation.accepted == fast.speculation.drafted > 10
    assert source.best and max(np.max(ids) for ids in source.best) < VOCAB
    cs = [Conversation(model, max_tokens=24, speculation=s, **sampling) for s in (False, EAGER, False)]
    for c in cs:
        c.stop_ids = frozenset()
    assert [r.tokens for r in send_batch_tokens_reuse(cs[:2], [PROMPT, PROMPT])] == [expected, expected]
    assert cs[2].send_tokens_reuse(PROMPT).tokens == expected
    for c in cs:
        check_state(c)


@pytest.mark.parametrize("token", [VOCAB, ROWS["routed"] - 1])
def test_ids_that_are_no_tokens_are_refused(model, token):
    cache = model.new_cache(8)
    c = Conversation(model, capacity=64, speculation=True)
    for go in (
        lambda: model.logits([1, token]),
        lambda: model.forward_rows([(cache, np.array([token]), "last")]),
        lambda: model.generate([1, token]),
        lambda: model.generate("a", speculative=True, references=[[1, token]]),
        lambda: c.send_tokens_reuse([1, token]),
        lambda: c.add_spec_reference(np.array([token])),
        lambda: Conversation(model, extra_stop_ids=[token]),
        lambda: Conversation.init_warm(model, WarmState(cache, [], newest=token)),
    ):
        with pytest.raises(TokenOutOfRange, match=f"{token} is outside the vocabulary of {VOCAB}"):
            go()
    assert cache.len == 0 and c.history == []
