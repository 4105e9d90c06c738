"""A processor given to `generate`: reset first, every row, every token once, plainly and under speculation."""

import numpy as np
import pytest

import fucina
from fucina.chat import Conversation
from fucina.errors import InvalidOption
from fucina.sampling import BanTokens, Sampler, SamplerOptions
from tests.models import TINY

PROMPT = "the the cat the the cat the"
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "seed": 11}


class NotTwice:
    """Forbids each token that it has committed since the last reset, and notes its calls."""

    def __init__(self):
        self.said, self.rows, self.resets = [], 0, 0

    def process(self, logits, history):
        self.rows += 1
        logits[self.said] = -np.inf

    def commit(self, token):
        self.said.append(token)

    def reset(self):
        self.said, self.resets = [], self.resets + 1


@pytest.fixture(scope="module")
def model():
    m = fucina.load(TINY / "llama.gguf", threads=1)
    yield m
    m.close()


@pytest.mark.parametrize("options", [{}, SAMPLED])
def test_every_token_is_committed_once_and_each_call_starts_anew(model, options):
    mine = NotTwice()
    first = model.generate(PROMPT, max_tokens=20, ignore_eos=True, processor=mine, **options)
    assert mine.said == first.tokens and mine.rows == 20 and mine.resets == 1
    assert len(set(first.tokens)) == 20
    again = model.generate(PROMPT, max_tokens=20, ignore_eos=True, processor=mine, **options)
    assert again.tokens == first.tokens and mine.resets == 2
    plain = model.generate(PROMPT, max_tokens=20, ignore_eos=True, **options)
    assert plain.tokens != first.tokens


@pytest.mark.parametrize("options", [{}, SAMPLED])
@pytest.mark.parametrize("make", [NotTwice, lambda: BanTokens(range(0, 256, 3))])
def test_speculation_changes_nothing(model, options, make):
    plain, drafted = make(), make()
    want = model.generate(PROMPT, max_tokens=60, ignore_eos=True, processor=plain, **options)
    got = model.generate(
        PROMPT, max_tokens=60, ignore_eos=True, processor=drafted, speculative=True, references=[PROMPT], **options
    )
    assert got.tokens == want.tokens
    assert getattr(drafted, "said", None) == getattr(plain, "said", None)


def test_a_processor_without_reset_will_do(model):
    class Third:
        def process(self, logits, history):
            logits[np.arange(len(logits)) != 3] = -np.inf

        def commit(self, token):
            assert token == 3

    stream = model.generate(PROMPT, max_tokens=4, ignore_eos=True, processor=Third(), stream=True)
    assert "".join(stream) == stream.result.text and stream.result.tokens == [3] * 4


class NoCommit:
    """Half a processor."""

    def process(self, logits, history):
        """Do nothing."""


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        (BanTokens, "the class BanTokens"),
        (NoCommit(), "NoCommit without commit"),
        ([1, 2], "list without process and commit"),
        (lambda logits, history: None, "function without process and commit"),
    ],
)
def test_what_is_no_processor_is_refused_by_name(model, processor, message):
    with pytest.raises(InvalidOption, match=message):
        model.generate(PROMPT, processor=processor)
    with pytest.raises(InvalidOption, match=message):
        Conversation(model, template="chatml", processor=processor)
    with pytest.raises(InvalidOption, match=message):
        Sampler(SamplerOptions(), processor)


def test_a_refused_call_does_not_reset(model):
    mine = NotTwice()
    for refused in ({"max_tokens": 0}, {"temperature": float("nan")}, {"references": ["a"]}):
        with pytest.raises(ValueError):
            model.generate(PROMPT, processor=mine, **refused)
    assert mine.resets == 0
