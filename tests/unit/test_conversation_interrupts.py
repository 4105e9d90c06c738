"""Ctrl-C at every instruction of conversations: what is left agrees with itself, and goes on as a new one would."""

from copy import copy
from pathlib import Path

import pytest

import fucina
from fucina.chat import ChatTemplate, Conversation, WarmState, send_batch
from fucina.sampling import Sampler
from tests.chat_model import write_chat_model
from tests.conversations import check_state, fresh_reply
from tests.interrupts import every_interrupt
from tests.processors import Partition
from tests.unit.test_interrupts import text_of

PACKAGE = Path(fucina.__file__).parent
ENGINE = PACKAGE / "engine"
CHAT = [PACKAGE / "chat" / f"{name}.py" for name in ("conversation", "turn", "warm", "batch", "mailbox")]
WAYS = pytest.mark.parametrize("signalled", [False, True], ids=["raised", "signalled"])
SAMPLED = {"temperature": 0.9, "top_k": 30, "seed": 4}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    model = fucina.load(write_chat_model(tmp_path_factory.mktemp("model") / "chat.gguf"), context=256, threads=1)
    yield model
    model.close()


class Counting(Partition):
    """A processor with a memory that counts."""

    def __init__(self):
        super().__init__(3)
        self.commits = 0

    def commit(self, token):
        super().commit(token)
        self.commits += 1


def told(model, template, speculation=False, turns=2):
    """A sampled conversation of some turns."""
    c = Conversation(
        model, "be", template=template, capacity=250, max_tokens=3, processor=Counting(), speculation=speculation, **SAMPLED
    )  # fmt: skip
    for i in range(turns):
        c.send("ab"[i % 2])
    return c


def twin(c):
    """The same conversation once more, with a state, sampler and processor of its own."""
    other = copy(c)
    other._state = c.model.new_cache(c.cache.capacity)
    other._state.restore(c.cache.snapshot())
    other.sampler = Sampler(c.sampler.options, copy(c.sampler.processor))
    other.sampler.rng.position = c.sampler.rng.position
    return other


def read_and_close(c):
    stream = c.send("c", stream=True)
    next(stream)
    stream.close()


CALLS = {
    "send": lambda c: c.send("c"),
    "read and closed": read_and_close,
    "regenerate": lambda c: c.regenerate(),
    "undo": lambda c: c.undo(),
    "reset": lambda c: c.reset("so"),
    "reuse": lambda c: c.send_tokens_reuse([*c.history[:20], 7, 8]),
    "send after a reply that was left": lambda c: (c.send("c", stream=True), c.send("d")),
    "batch": lambda c: send_batch([c], ["c"], [lambda piece: None]),
}


@WAYS
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("template", [None, "chatml"], ids=["template", "format"])
def test_conversations(model, template, name, signalled):
    before, cs = told(model, template), []
    drawn = before.sampler.rng.position

    def scene():
        cs[:] = [twin(before)]
        return lambda: CALLS[name](cs[0])

    after = twin(before)
    CALLS[name](after)
    stories = [(c.history, c.messages, c.system) for c in (before, after)]
    steps = {"places": [*CHAT, ENGINE], "step": 5, "signalled": True} if signalled else {"places": CHAT, "step": 5}
    seen = set()
    for at in every_interrupt(scene, *steps.pop("places"), **steps):
        c = cs[0]
        c.undo(0)  # ends what was under way
        check_state(c, complete=False)
        position = c.sampler.rng.position
        assert c.sampler.processor.commits == position >= drawn, at
        agrees(c, stories)
        state = (tuple(c.history), position, c.cache.len, c.system)
        if state in seen:
            continue
        seen.add(state)
        if name != "reuse":
            reply = c.send("go on")
            ids = c.history[: reply.prompt_tokens]
            assert reply.tokens == fresh_reply(c, ids, position, Counting()).tokens
            check_state(c)
        warm = c.take_cache()
        assert [*warm.tokens, *([] if warm.newest is None else [warm.newest])] == c.history
    assert len(seen) > (0 if name in ("undo", "reset") else 1)


def agrees(c, stories):
    """History, messages and turns are those of before, of after, or of a reply that was broken off."""
    if c._story.turns:
        record, messages = c._story.turns[-1], c.messages
        if record.messages is not None and not isinstance(c._template, ChatTemplate):  # which may cut a reply otherwise
            assert messages[record.messages + 1]["content"] == text_of(c.model, c.history[record.prompt_end :])
            assert len(messages) == record.messages + 2
    known = sum(record.messages is not None for record in c._story.turns)
    assert len(c.messages) == 2 * known + (c._story.complete or known > 0)
    assert c.system in [system for _, _, system in stories]
    whole = [tokens for tokens, _, _ in stories]
    assert (
        any(c.history == tokens[: len(c.history)] for tokens in whole) or c._story.latest.finish_reason == "cancelled"
    )


def test_taking_a_cache_keeps_every_token(model):
    """Also where a turn was broken off and rows of the history are gone."""
    c = told(model, "chatml")
    c.cache.rewind(5)
    history = list(c.history)
    warm = c.take_cache()
    again = Conversation.init_warm(model, WarmState(warm.cache, warm.tokens, newest=warm.newest))
    assert again.history == history
    check_state(again)
