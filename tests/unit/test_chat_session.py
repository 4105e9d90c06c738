"""Conversations of several turns: reuse of the cache changes nothing but the time, and no turn leaves half a state."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fucina
from fucina.chat import ChatSession, ChatTemplate
from fucina.chat.session import common_prefix
from fucina.errors import ChatTemplateError, ContextFull, InvalidOption
from fucina.sampling import BanTokens, SamplerOptions
from tests.chat_model import write_chat_model

SAMPLED = SamplerOptions(temperature=0.9, top_p=0.95, seed=5)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    model = fucina.load(write_chat_model(tmp_path_factory.mktemp("model") / "chat.gguf"))
    yield model
    model.close()


def fresh_tokens(model, messages, options, position, max_tokens):
    """What a new session would answer: the whole conversation prefilled at once, draws from `position` on."""
    from fucina.generation import GenerationStream
    from fucina.sampling import Sampler

    sampler = Sampler(options)
    sampler.rng.position = position
    ids = ChatTemplate.of(model).encode(model.tokenizer, messages)
    stream = GenerationStream(model, ids, max_tokens, sampler, (), model.tokenizer.eog_ids)
    for _ in stream:
        pass
    return stream.result.tokens


@pytest.mark.parametrize("options", [SamplerOptions(), SAMPLED], ids=["greedy", "sampled"])
def test_reuse_equals_fresh(model, options):
    session = ChatSession(model, system="be", options=options, max_tokens=6)
    for turn, text in enumerate(["hi", "what?", "<|im_end|>", ""]):
        position = session._sampler.rng.position
        reply = session.send(text)
        assert "".join(reply) == reply.result.text == session.messages[-1]["content"]
        assert (reply.reused > 10) == (turn > 0)
        assert reply.result.tokens == fresh_tokens(model, session.messages[:-1], options, position, 6)
    assert [m["role"] for m in session.messages] == ["system"] + ["user", "assistant"] * 4


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["send", "break", "reset"]), st.text("ab<|im_end>", max_size=6), st.integers(0, 3)),
        max_size=6,
    )
)
def test_any_history_of_turns_equals_fresh(model, steps):
    """Turns that end, are broken off after some pieces, or follow a reset."""
    session = ChatSession(model, options=SAMPLED, max_tokens=4)
    for action, text, pieces in steps:
        if action == "reset":
            session.reset()
            assert session.messages == []
            continue
        position = session._sampler.rng.position
        reply = session.send(text)
        asked = list(session.messages)
        if action == "break":
            for _, _ in zip(range(pieces), reply, strict=False):
                pass
            reply.close()
        else:
            list(reply)
        tokens = reply.result.tokens
        assert tokens == fresh_tokens(model, asked, SAMPLED, position, 4)[: len(tokens)]
        answered = action == "send" or bool(tokens)
        assert len(session.messages) == len(asked) + (1 if answered else -1)


def test_a_message_that_was_never_answered_is_dropped(model):
    session = ChatSession(model, max_tokens=4)
    session.send("forgotten")
    assert session.messages[-1]["content"] == "forgotten"
    list(session.send("hi"))
    assert [m["content"] for m in session.messages][:1] == ["hi"]


def test_context_full_changes_nothing(model):
    session = ChatSession(model, max_tokens=4, context=80)
    list(session.send("hi"))
    before, used = list(session.messages), session.used
    with pytest.raises(ContextFull, match=r"\d+ tokens with this message, the context holds 80"):
        session.send("x" * 100)
    assert session.messages == before and session.used == used
    with pytest.raises(ChatTemplateError, match="surrogate"):
        session.send("\ud800")
    assert session.messages == before
    assert list(session.send("a")) and session.messages[-1]["role"] == "assistant"


def test_a_full_cache_ends_a_reply(model):
    prompt = len(ChatTemplate.of(model).encode(model.tokenizer, [{"role": "user", "content": "hi"}]))
    session = ChatSession(model, max_tokens=50, context=prompt + 3)
    reply = session.send("hi")
    list(reply)
    assert reply.result.finish_reason == "length" and session.used == session.capacity
    assert len(reply.result.tokens) == 4  # the last one needs no row any more


class FailOnce:
    """A processor that fails at its n-th call."""

    def __init__(self, at):
        self.left, self.commits, self.resets = at, 0, 0

    def process(self, logits, history):
        self.left -= 1
        if self.left == 0:
            raise RuntimeError("no")

    def commit(self, token):
        self.commits += 1

    def reset(self):
        self.resets += 1


@pytest.mark.parametrize("at", [1, 3])
def test_a_turn_that_fails_leaves_a_usable_conversation(model, at):
    processor = FailOnce(at)
    session = ChatSession(model, max_tokens=6, processor=processor)
    with pytest.raises(RuntimeError, match="no"):
        list(session.send("hi"))
    assert processor.commits == at - 1
    assert len(session.messages) == (0 if at == 1 else 2)
    reply = session.send("again")
    list(reply)
    assert reply.result.tokens == fresh_tokens(model, session.messages[:-1], SamplerOptions(), 0, 6)
    assert processor.resets == 2


def test_stop_text_and_processor(model):
    plain = ChatSession(model, max_tokens=6)
    text = "".join(plain.send("hi"))
    session = ChatSession(model, max_tokens=6, stop=[text[2:4]])
    reply = session.send("hi")
    assert "".join(reply) == text[: text.find(text[2:4])] and reply.result.finish_reason == "stop"
    banned = plain._tokens[-1]
    other = ChatSession(model, max_tokens=6, processor=BanTokens([banned])).send("hi")
    list(other)
    assert banned not in other.result.tokens


def test_end_of_turn_ends_a_reply_and_is_not_shown(model):
    """Only <|im_end|> is allowed: the reply is empty, and the next turn works."""
    from fucina.sampling import AllowTokens

    session = ChatSession(model, processor=AllowTokens([257]))
    for n in (1, 2):
        assert list(session.send("hi")) == []
        assert len(session.messages) == 2 * n and session.messages[-1]["content"] == ""


def test_bad_settings(model, tmp_path):
    for max_tokens in (0, -1, 1.5, True):
        with pytest.raises(InvalidOption, match="max_tokens"):
            ChatSession(model, max_tokens=max_tokens)
    with pytest.raises(ChatTemplateError, match="content must be text"):
        ChatSession(model, system=5)
    with pytest.raises(fucina.FucinaError):
        ChatSession(model, context=0)


def test_common_prefix():
    assert common_prefix([], [1]) == 0 and common_prefix([1, 2, 3], [1, 2]) == 2 and common_prefix([1, 9], [1, 2, 3]) == 1
