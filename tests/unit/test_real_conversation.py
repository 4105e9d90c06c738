"""Conversations of SmolLM2: the streaming cases on its vocabulary, batches, and the same text however often it is asked."""

import pytest

import fucina
from fucina.chat import Conversation, send_batch
from tests.conversations import Script, check_state
from tests.models import need_smollm2


@pytest.fixture(scope="module")
def model():
    model = fucina.load(need_smollm2())
    yield model
    model.close()


@pytest.mark.parametrize(
    "tokens, text",
    [
        ([34978, 120, 7906, 240, 178, 239, 230], "歪世界"),  # characters of two and three tokens
        ([33662], " hello"),  # a first token that begins with a space
        ([28120, 7906, 240], "hello世"),  # a word, then half a character
        ([10813, 38887], "🙂"),
        ([10813], "\ufffd"),  # half a character and no more
        ([], ""),
    ],
)
def test_replies_are_text(model, tokens, text):
    for cut in range(len(tokens) + 1):
        c = Conversation(model, processor=Script(tokens, end=2), max_tokens=max(cut, 1))
        stream = c.send("hi", stream=True)
        pieces = list(stream)
        assert "".join(pieces) == stream.result.text == model.tokenizer.decode(stream.result.tokens, special=False)
    c = Conversation(model, processor=Script(tokens, end=2))
    assert c.send("hi").text == text and c.messages[-1]["content"] == text


def test_turns_and_batches(model):
    """Alone, together, again; greedy and sampled; with drafts."""
    texts = ["What is 2 + 2?", "Name a river.", "What is 2 + 2?"]
    options = [{}, {"temperature": 0.8, "top_p": 0.9, "seed": 7}, {"speculation": True}]

    def make():
        return [Conversation(model, max_tokens=12, capacity=256, **o) for o in options]

    together, apart = make(), make()
    for _ in range(2):
        replies = send_batch(together, texts)
        assert [r.tokens for r in replies] == [c.send(t).tokens for c, t in zip(apart, texts, strict=True)]
        assert replies[0].tokens == replies[2].tokens
    for c in together:
        check_state(c)
    first = apart[0].messages[-1]["content"]
    assert apart[0].regenerate().text == first


def test_cancelled_and_asked_again(model):
    c = Conversation(model, max_tokens=8, template="chatml")
    whole = Conversation(model, max_tokens=8, template="chatml").send("Count to ten.").tokens
    for n in range(5):
        stream = c.send("Count to ten.", stream=True)
        next(stream)
        stream.cancel() if n % 2 else stream.close()
        list(stream)
        assert stream.result.finish_reason == "cancelled"
        c.undo()
    assert c.send("Count to ten.").tokens == whole
