"""Conversations: replies equal a fresh engine's, every end of a turn, and errors that change nothing."""

import threading

import numpy as np
import pytest

import fucina
from fucina.chat import ChatFormat, ChatTemplate, Conversation, WarmState, send_batch
from fucina.engine import common_prefix
from fucina.errors import (
    ChatTemplateError,
    ContextFull,
    ConversationClosed,
    EmptyMessages,
    InvalidOption,
    InvalidPrefix,
    InvalidSamplerOption,
    InvalidText,
    KvCacheShapeMismatch,
    NoSuchTurn,
    TokenOutOfRange,
    UnknownMessages,
)
from fucina.sampling import AllowTokens, BanTokens
from fucina.speculative import Options, SourceDrafter
from tests.chat_model import write_chat_model
from tests.conversations import FailAt, Script, check_state, fresh_reply

SAMPLED = {"temperature": 0.9, "top_p": 0.95, "repeat_penalty": 1.1, "seed": 5}
END = 257


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    model = fucina.load(write_chat_model(tmp_path_factory.mktemp("model") / "chat.gguf", words=("...", "User", "ab")))
    yield model
    model.close()


def letters(*texts):
    """Ids of a text, each text one word of the model or its bytes."""
    words = {"...": 258, "User": 259, "ab": 260}
    return [t for text in texts for t in ([words[text]] if text in words else [ord_id(b) for b in text.encode()])]


def ord_id(byte):
    """The tiny vocabulary has printable ASCII first, as GPT-2 orders its bytes."""
    order = [*range(33, 127), *range(161, 173), *range(174, 256)]
    order += [b for b in range(256) if b not in order]
    return order.index(byte)


def say(model, *texts, **options):
    """A conversation whose reply is a script."""
    return Conversation(model, template="chatml", processor=Script(letters(*texts)), **options)


# --- replies equal a fresh engine's -----------------------------------------------------------------------------


@pytest.mark.parametrize("template", [None, "chatml"])
@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_every_turn_equals_a_fresh_engine(model, template, sampling):
    c = Conversation(model, "be", template=template, max_tokens=6, **sampling)
    for turn, text in enumerate(["hi", "what?", "<|im_end|>", ""]):
        position = c.sampler.rng.position
        stream = c.send(text, stream=True)
        pieces = list(stream)
        reply = stream.result
        assert "".join(pieces) == reply.text == c.messages[-1]["content"] == str(reply)
        assert reply.tokens == c.history[len(c.history) - len(reply.tokens) :]
        ids = c.history[: reply.prompt_tokens]
        assert reply.tokens == fresh_reply(c, ids, position).tokens
        assert (reply.reused_prefix > 0) == (turn > 0) and c.reused_prefix == reply.reused_prefix
        check_state(c)
    assert [m["role"] for m in c.messages] == ["system"] + ["user", "assistant"] * 4
    assert c.sampler.rng.position == (0 if not sampling else sum(1 for _ in range(24)))


def test_the_first_prompt_is_the_same_however_it_is_given(model):
    form = ChatFormat.CHATML
    text = form.render_turn("hi", "be")
    ids = form.encode_turn(model.tokenizer, "hi", "be")
    replies = []
    for go in (
        lambda c: c.send("hi"),
        lambda c: c.send_rendered(text),
        lambda c: c.send_rendered_reuse(text),
        lambda c: c.send_tokens_reuse(ids),
        lambda c: c.send_tokens_reuse(np.array(ids)),
        lambda c: c.send([{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]),
    ):
        c = Conversation(model, "be", template=form, max_tokens=8, **SAMPLED)
        reply = go(c)
        assert c.history[: len(ids)] == ids and reply.prompt_tokens == len(ids) and reply.reused_prefix == 0
        replies.append(reply.tokens)
    assert replies == replies[:1] * 6


def test_turns_of_a_format_equal_the_whole_conversation_rendered(model):
    """The opening of the next turn closes the reply: text and tokens are those of a stateless render."""
    c = say(model, "yes", "...", system="be")
    for text in ("hi", "and?", "so"):
        c.send(text)
    whole = ChatFormat.CHATML.encode_messages(model.tokenizer, c.messages[:-1])
    assert model.tokenizer.decode(c.history[: len(c.history) - 4]) == model.tokenizer.decode(whole)


def test_reuse(model):
    c = Conversation(model, template="chatml", max_tokens=5)
    prompt = letters("a question")
    first = c.send_tokens_reuse(prompt)
    rows = list(c.history)
    again = c.send_tokens_reuse(prompt)  # the prompt is a prefix of what is there
    assert again.reused_prefix == len(prompt) - 1 and again.tokens == first.tokens
    longer = c.send_tokens_reuse([*rows, *letters("x")])
    assert longer.reused_prefix >= len(rows) - 1
    assert longer.tokens == fresh_reply(c, [*rows, *letters("x")], 0).tokens
    other = c.send_tokens_reuse([*prompt[:3], 5, *prompt])
    assert other.reused_prefix == 3 and other.tokens == fresh_reply(c, [*prompt[:3], 5, *prompt], 0).tokens
    nothing = c.send_tokens_reuse([7])
    assert nothing.reused_prefix == 0
    check_state(c)


def test_speculation_changes_nothing_but_the_passes(model):
    """The seam: another decoder, the same replies, draws and rows."""
    plain, spec = (
        Conversation(model, template="chatml", max_tokens=24, speculation=s, stop=["zz"], **SAMPLED)
        for s in (False, True)
    )
    for text in ("abcabcabcabc", "abcabc", "x"):
        a, b = plain.send(text), spec.send(text)
        assert (a.tokens, a.text, a.finish_reason) == (b.tokens, b.text, b.finish_reason)
        assert plain.sampler.rng.position == spec.sampler.rng.position and plain.history == spec.history
        check_state(spec)
    assert a.speculation is None and b.speculation.committed > 0


class Prophet:
    """A draft source that is given the reply beforehand."""

    def __init__(self, tokens):
        self.tokens = tokens

    def suggest(self, context, limit):
        n = next(n for n in range(len(self.tokens), -1, -1) if n == 0 or context[-n:] == self.tokens[:n])
        return self.tokens[n : n + limit]

    def observe(self, committed):
        pass


@pytest.mark.parametrize("how", ["cancel", "stop"])
def test_a_turn_that_ends_inside_an_accepted_draft(model, monkeypatch, how):
    """No later row is sampled: draws, processor and rows are those of a plain turn."""
    said = "abcdefghijklmno"
    script = Script(letters(said))
    c = Conversation(
        model, template="chatml", speculation=Prophet(letters(said)), processor=script, temperature=1.0,
        stop=["hij"] if how == "stop" else (),
    )  # fmt: skip
    if how == "cancel":
        monkeypatch.setattr(model, "forward_rows", Passes(model, 2, c.cancel))  # prefill, then the first draft
    reply = c.send("hi")
    monkeypatch.undo()
    if how == "cancel":
        assert (reply.text, reply.finish_reason) == ("ab", "cancelled")
    else:
        assert (reply.text, reply.finish_reason, reply.tokens) == ("abcdefg", "stop", letters("abcdefghi"))
        assert reply.speculation.accepted > 5
    assert script.commits == c.sampler.rng.position == reply.sampled
    check_state(c)
    script.tokens = [*letters("more"), END]
    assert c.send("and?").text == "more"
    check_state(c)


# --- ends of a turn ---------------------------------------------------------------------------------------------


def test_end_token_is_dropped(model):
    c = say(model, "ok")
    for _ in range(2):
        reply = c.send("hi")
        assert (reply.text, reply.finish_reason, reply.stop, reply.sampled) == ("ok", "stop", None, 2)
        assert c.used == len(c.history)  # nothing is left to compute
        check_state(c)
    extra = say(model, "okay", extra_stop_ids=letters("a"))
    assert extra.send("hi").text == "ok"


def test_an_empty_reply_is_a_turn(model):
    c = Conversation(model, template="chatml", processor=AllowTokens([END]))
    for n in (1, 2):
        reply = c.send("hi")
        assert (reply.text, reply.tokens, reply.finish_reason) == ("", [], "stop")
        assert len(c.messages) == 2 * n and c.messages[-1] == {"role": "assistant", "content": ""}
        check_state(c)


STOPS = [
    (["\nUser:"], ("hello", "\n", "User", ": more"), "hello", 0, 7),  # split over tokens
    ([".."], ("wait", "..."), "wait", 0, 4),  # it ends inside a token
    (["ab", "b"], ("x", "ab"), "x", 0, 1),  # of two that end together the longest
    (["abc", "b"], ("xabc",), "xa", 1, 2),  # the earliest end
    (["", "lo"], ("hello",), "hel", 1, 4),  # an empty one never matches
    (["h"], ("hello",), "", 0, 0),
    (["nope", "hello!"], ("hello",), "hello", None, 5),  # what was held back comes out at the end
]


@pytest.mark.parametrize("stops, said, text, index, kept", STOPS)
def test_stop_texts(model, stops, said, text, index, kept):
    """Nothing of the stop is shown, nothing before it is lost; the token that completed it is not in the history."""
    c = say(model, *said, stop=stops)
    for _ in range(2):
        stream = c.send("hi", stream=True)
        assert "".join(stream) == stream.result.text == text
        reply = stream.result
        assert reply.stop == (None if index is None else stops[index])
        assert reply.stop_index == c.fired_stop == index and reply.finish_reason == "stop"
        assert reply.tokens == letters(*said)[:kept] == c.history[len(c.history) - kept :][:kept]
        assert reply.sampled == kept + (index is not None)
        assert c.used == len(c.history)
        check_state(c)
    assert say(model, "plain", stop=stops).send("hi").stop_index is None


def test_a_stop_is_held_back_only_as_far_as_it_may_be_one(model):
    c = say(model, "some text and a stump", stop="a stop of thirty characters...")
    pieces = list(c.send("hi", stream=True))
    assert "".join(pieces) == "some text and a stump" and len(pieces) > 12


def test_text_is_never_half_a_character(model):
    """Every piece is text, joined they are the whole."""
    text = "A 歪世界🙂b\u200d👩‍👧"
    c = say(model, text, max_tokens=200)
    stream = c.send("hi", stream=True)
    pieces = list(stream)
    assert "".join(pieces) == text == stream.result.text and "\ufffd" not in text
    assert all(piece and piece.encode() for piece in pieces)
    for stop in ("世", "🙂", "界🙂", "\u200d👩"):
        cut = say(model, text, stop=stop, max_tokens=200)
        assert "".join(cut.send("hi", stream=True)) == text[: text.index(stop)]


@pytest.mark.parametrize("n, text", [(1, "\ufffd"), (2, "\ufffd"), (3, "歪"), (4, "歪\ufffd")])
def test_a_reply_may_end_within_a_character(model, n, text):
    """One U+FFFD, streamed or not; the next turn goes on from the bytes that were sampled."""
    whole = say(model, "歪世", max_tokens=n)
    assert whole.send("hi").text == text and whole.messages[-1]["content"] == text
    streamed = say(model, "歪世", max_tokens=n).send("hi", stream=True)
    assert "".join(streamed) == text and streamed.result.finish_reason == "length"
    assert streamed.result.tokens == letters("歪世")[:n]
    whole.send("more")
    check_state(whole)


def test_a_stop_that_only_the_last_cut_character_completes(model):
    c = say(model, "x歪", stop="\ufffd", max_tokens=2)
    reply = c.send("hi")
    assert (reply.text, reply.finish_reason, reply.stop_index, reply.sampled) == ("x", "stop", 0, 2)
    check_state(c)


def test_max_tokens_and_a_full_context(model):
    """A prompt that does not fit is refused at once; a full context ends a reply with "length"."""
    prompt = ChatFormat.CHATML.encode_turn(model.tokenizer, "hi")
    c = Conversation(model, template="chatml", max_tokens=3)
    reply = c.send("hi")
    assert (len(reply.tokens), reply.finish_reason) == (3, "length")
    with pytest.raises(ContextFull, match=f"holds {len(prompt)}"):  # not one token of a reply would fit
        Conversation(model, template="chatml", capacity=len(prompt)).send("hi")
    for room in (1, 4):
        c = Conversation(model, template="chatml", capacity=len(prompt) + room, max_tokens=50)
        reply = c.send("hi")
        assert len(reply.tokens) == room and reply.finish_reason == "length" and len(c.history) == c.capacity
        check_state(c)
        before = (list(c.history), c.used, list(c.messages))
        with pytest.raises(ContextFull, match=f"holds {c.capacity}"):
            c.send("more")
        assert (c.history, c.used, c.messages) == before
        c.undo()
        assert len(c.send("hi").tokens) == room


def test_a_full_context_gives_generate_one_token_more(model):
    """A reply's last token has a place in the cache for the next turn; that of a generation needs none."""
    ids = letters("hi")
    prompt = (ids * model.context)[: model.context - 6]
    alone = model.generate(prompt, max_tokens=50, ignore_eos=True)
    c = Conversation(model, max_tokens=50)
    c.stop_ids = frozenset()
    reply = c.send_tokens_reuse(prompt)
    assert (len(alone.tokens), len(reply.tokens)) == (7, 6) and alone.tokens[:6] == reply.tokens
    assert len(c.history) == c.capacity and (alone.finish_reason, reply.finish_reason) == ("length", "length")


# --- what is refused changes nothing ----------------------------------------------------------------------------


@pytest.mark.parametrize("template", [None, "chatml"])
def test_errors_change_nothing(model, template):
    processor = FailAt(1000)
    c = Conversation(model, "be", template=template, max_tokens=4, capacity=120, processor=processor, **SAMPLED)
    c.send("hi")
    resets = processor.resets
    before = (list(c.history), c.used, list(c.messages), c.sampler.rng.position)
    for error, go in (
        (ContextFull, lambda: c.send("x" * 200)),
        (ContextFull, lambda: c.send_rendered("x" * 200)),
        (ContextFull, lambda: c.send_tokens_reuse([1] * 121)),
        (ChatTemplateError, lambda: c.send("\ud83d")),
        (ChatTemplateError, lambda: c.send(None)),
        (ChatTemplateError, lambda: c.send([{"type": "image"}])),
        (InvalidText, lambda: c.send_rendered("\ud83d")),
        (EmptyMessages, lambda: c.send_rendered("")),
        (EmptyMessages, lambda: c.send_tokens_reuse([])),
        (EmptyMessages, lambda: c.send_rendered_reuse("")),
        *(
            (TokenOutOfRange, lambda bad=bad: c.send_tokens_reuse([1, bad]))
            for bad in (-1, 261, 1 << 31, 1 << 63, 1.5, True, "a")
        ),
        (NoSuchTurn, lambda: c.undo(2)),
        (NoSuchTurn, lambda: c.undo(-1)),
        *((InvalidOption, lambda bad=bad: c.undo(bad)) for bad in ("x", None, 1.0, True)),
        *((InvalidOption, lambda bad=bad: c.send_tokens_reuse(bad)) for bad in (None, 5, "ab", np.ones((2, 2), int))),
        *((InvalidOption, lambda bad=bad: c.send_rendered(bad)) for bad in (None, 5, b"ab")),
        *((InvalidOption, lambda bad=bad: c.send_rendered_reuse(bad)) for bad in (None, 5, b"ab")),
    ):
        with pytest.raises(error):
            go()
        assert (c.history, c.used, c.messages, c.sampler.rng.position) == before and processor.resets == resets
    check_state(c)
    assert c.send("more").tokens


@pytest.mark.parametrize(
    "error, match, options",
    [
        *((InvalidOption, "max_tokens", {"max_tokens": bad}) for bad in (0, -1, 1.5, True)),
        *((InvalidOption, "stop must", {"stop": bad}) for bad in ([1], 5, b"x", ["a", None])),
        *((InvalidOption, "template must be one of chatml", {"template": bad}) for bad in ("chatm", 5, ChatTemplate)),
        (InvalidOption, "unknown option 'topk'", {"topk": 3}),
        (InvalidOption, "speculative", {"speculation": 3}),
        (InvalidSamplerOption, "top_p must", {"top_p": 7}),
        (TokenOutOfRange, "outside the vocabulary", {"extra_stop_ids": [261]}),
        *((InvalidOption, "extra_stop_ids must be a sequence", {"extra_stop_ids": bad}) for bad in (5, None, "ab")),
        (ChatTemplateError, "content must be text", {"system": 5}),
        (fucina.FucinaError, "capacity", {"capacity": 0}),
    ],
)
def test_bad_options(model, error, match, options):
    with pytest.raises(error, match=match):
        Conversation(model, **options)


def test_no_stop_text_may_be_said_as_none(model):
    c = Conversation(model, stop=None, max_tokens=2)
    assert c.stop == () and c.send("hi").tokens == Conversation(model, max_tokens=2).send("hi").tokens
    assert model.generate("ab", stop=None, max_tokens=2).tokens
    for bad in (5, [None], b"x"):
        with pytest.raises(InvalidOption, match="stop must"):
            model.generate("ab", stop=bad, max_tokens=2)


def test_a_model_without_a_template(tmp_path, model):
    """`send` raises; rendered text and a format chosen by hand work."""
    bare = fucina.load(write_chat_model(tmp_path / "bare.gguf", template=None), backend="naive")
    c = Conversation(bare, max_tokens=3)
    with pytest.raises(ChatTemplateError, match="no chat template"):
        c.send("hi")
    assert len(c.send_rendered("hi").tokens) == 3
    assert len(Conversation(bare, template="chatml", max_tokens=3).send("hi").tokens) == 3
    bare.close()


@pytest.mark.parametrize("template", [None, "chatml"])
def test_an_empty_system_message(model, template):
    """It is a message like any other, not the absence of one."""
    c = Conversation(model, "", template=template, max_tokens=2)
    c.send("hi")
    assert model.tokenizer.decode(c.history).startswith(
        "<|im_start|>system\n<|im_end|>\n<|im_start|>user\nhi<|im_end|>"
    )
    assert c.messages[0] == {"role": "system", "content": ""} and c.system == ""


def test_the_template_needs_all_messages(model):
    c = Conversation(model, max_tokens=3)
    c.send("hi")
    c.send_rendered("more")
    with pytest.raises(UnknownMessages, match="send_rendered"):
        c.send("and?")
    c.undo(2)
    assert c.send("hi").reused_prefix == 0
    c.send_tokens_reuse([1, 2])
    with pytest.raises(UnknownMessages):
        c.send("and?")
    c.reset()
    assert c.messages == [] and len(c.send("hi").tokens) == 3


def test_a_template_that_refuses_the_system_message(model):
    picky = ChatTemplate("{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}x")
    with pytest.raises(ChatTemplateError, match="no system"):
        Conversation(model, "be", template=picky)


def test_think_off(model):
    c = Conversation(model, template="chatml", think_off=True, max_tokens=2)
    c.send("hi")
    assert model.tokenizer.decode(c.history).split("assistant\n")[1].startswith("<think>\n\n</think>\n\n")
    template = ChatTemplate(
        "{{ messages[-1]['content'] }}{% if enable_thinking is defined and not enable_thinking %} quick{% endif %}"
    )
    c = Conversation(model, template=template, think_off=True, max_tokens=2)
    c.send("hi")
    assert model.tokenizer.decode(c.history[:8]) == "hi quick"


# --- undo, regenerate, reset ------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", [None, "chatml"])
def test_undo_and_regenerate(model, template):
    c = Conversation(model, "be", template=template, max_tokens=5)
    first, second = c.send("hi"), c.send("and?")
    again = c.regenerate()
    assert again.tokens == second.tokens and again.reused_prefix == again.prompt_tokens - 1  # greedy
    assert [m["content"] for m in c.messages] == ["be", "hi", first.text, "and?", second.text]
    c.undo()
    assert [m["content"] for m in c.messages] == ["be", "hi", first.text]
    check_state(c)
    assert c.send("and?").tokens == second.tokens
    c.undo(2)
    assert c.messages == [{"role": "system", "content": "be"}]
    with pytest.raises(NoSuchTurn):
        c.regenerate()
    with pytest.raises(NoSuchTurn):
        c.undo()
    assert c.send("hi").tokens == first.tokens
    c.reset()
    assert c.used == 0 and c.history == [] and len(c.messages) == 1
    assert c.send("hi").tokens == first.tokens


def test_regenerate_draws_on(model):
    c = Conversation(model, template="chatml", max_tokens=8, **SAMPLED)
    reply = c.send("hi")
    position = c.sampler.rng.position
    other = c.regenerate()
    assert other.tokens != reply.tokens
    assert other.tokens == fresh_reply(c, c.history[: other.prompt_tokens], position).tokens
    check_state(c)


def test_regenerate_of_rendered_text(model):
    c = Conversation(model, template="chatml", max_tokens=4)
    reply = c.send_rendered("hi")
    assert c.regenerate().tokens == reply.tokens and c.messages == []
    c.undo()
    assert c.history == []


# --- cancelling and failing -------------------------------------------------------------------------------------


class Passes:
    """Stands in for `model.forward_rows`: does something before the n-th pass."""

    def __init__(self, model, at, do):
        self.forward, self.left, self.do = type(model).forward_rows.__get__(model), at, do

    def __call__(self, requests):
        self.left -= 1
        if self.left == 0:
            self.do()
        return self.forward(requests)


def fail():
    raise RuntimeError("no")


LONG = "x" * 300  # three passes of prefill


@pytest.mark.parametrize("template", [None, "chatml"])
@pytest.mark.parametrize("how", ["cancel", "fail", "interrupt"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_turn_that_ends_in_prefill_never_was(model, monkeypatch, template, how, at):
    c = Conversation(model, "be", template=template, max_tokens=4, **SAMPLED)
    c.send("hi")
    before = (list(c.history), list(c.messages), c.sampler.rng.position)

    def interrupt():
        raise KeyboardInterrupt

    do = {"cancel": c.cancel, "fail": fail, "interrupt": interrupt}[how]
    monkeypatch.setattr(model, "forward_rows", Passes(model, at, do))
    if how == "cancel":
        reply = c.send(LONG)
        assert (reply.finish_reason, reply.tokens, reply.text) == ("cancelled", [], "")
    else:
        with pytest.raises((RuntimeError, KeyboardInterrupt)):
            c.send(LONG)
    monkeypatch.undo()
    assert (list(c.messages), c.sampler.rng.position) == before[1:]
    assert c.history == before[0]
    check_state(c, complete=template is not None)  # a template renders all anew: rows of what was shared are left
    position = c.sampler.rng.position
    reply = c.send("again")
    assert reply.tokens == fresh_reply(c, c.history[: reply.prompt_tokens], position).tokens


@pytest.mark.parametrize("how", ["cancel", "fail"])
def test_a_reused_prompt_that_ends_in_prefill(model, monkeypatch, how):
    c = Conversation(model, template="chatml", max_tokens=4)
    ids = letters(LONG)
    c.send_tokens_reuse([*ids[:50], 7, 8])
    monkeypatch.setattr(model, "forward_rows", Passes(model, 2, c.cancel if how == "cancel" else fail))
    if how == "cancel":
        c.send_tokens_reuse(ids)
    else:
        with pytest.raises(RuntimeError):
            c.send_tokens_reuse(ids)
    monkeypatch.undo()
    check_state(c, complete=False)
    assert c.history[:52] == [*ids[:50], 7, 8] and len(c.history) > 52
    reply = c.send_tokens_reuse(ids)
    assert reply.reused_prefix >= 50 and reply.tokens == fresh_reply(c, ids, 0).tokens


@pytest.mark.parametrize("template", [None, "chatml"])
def test_a_reused_prompt_that_leaves_nothing(model, template):
    """Messages, turns and tokens are those of before; only rows may be gone."""
    c, other = (Conversation(model, template=template, max_tokens=4) for _ in range(2))
    for conversation in (c, other):
        conversation.send("hi")
        conversation.send("ho")
    history, messages = list(c.history), list(c.messages)
    c.send_tokens_reuse([*c.history[:9], 7], stream=True).close()
    assert c.history == history and c.messages == messages
    check_state(c, complete=False)
    assert c.send("hm").tokens == other.send("hm").tokens
    c.undo(3)
    assert c.history == [] and c.messages == []


@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize("template", [None, "chatml"])
def test_a_processor_that_fails(model, at, template):
    processor = FailAt(at)
    c = Conversation(model, template=template, max_tokens=6, processor=processor)
    with pytest.raises(RuntimeError, match="no"):
        c.send("hi")
    assert processor.commits == at - 1 and len(c.messages) == (0 if at == 1 else 2)
    check_state(c)
    reply = c.send("again")
    assert reply.tokens == fresh_reply(c, c.history[: reply.prompt_tokens], 0).tokens
    assert processor.resets == 2


def test_a_pass_that_fails_between_tokens(model, monkeypatch):
    c = Conversation(model, template="chatml", max_tokens=6, **SAMPLED)
    monkeypatch.setattr(model, "forward_rows", Passes(model, 4, fail))
    stream, pieces = c.send("hi", stream=True), []
    with pytest.raises(RuntimeError):
        for piece in stream:
            pieces.append(piece)
    monkeypatch.undo()
    assert stream.result.finish_reason == "error" and len(stream.result.tokens) == 3
    assert "".join(pieces) == stream.result.text == c.messages[-1]["content"]  # what was decided came before the error
    check_state(c)
    assert c.send("more").tokens


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("speculation", [False, True])
@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_ctrl_c_between_a_pass_and_its_tokens(model, monkeypatch, at, speculation, batch):
    """The pass has written rows, also those of a draft, and its logits are not sampled yet."""
    if speculation:
        speculation = SourceDrafter(model, Prophet([7] * 9), Options(min_speedup=0.0, min_draft=1, adapt_budget=False))
    c = Conversation(model, template="chatml", max_tokens=12, speculation=speculation)
    c.send("hi")
    real, passes = model.forward_rows, []

    def forward_rows(requests):
        out = real(requests)
        passes.append(sum(len(tokens) for _, tokens, _ in requests))
        if len(passes) == at + 1:
            raise KeyboardInterrupt
        return out

    monkeypatch.setattr(model, "forward_rows", forward_rows)
    with pytest.raises(KeyboardInterrupt):
        send_batch([c], ["and?"]) if batch else c.send("and?")
    monkeypatch.undo()
    assert at == 0 or (passes[-1] > 1) == bool(speculation)  # there was a draft
    check_state(c)
    ids = [*c.history, *ChatFormat.CHATML.encode_turn(model.tokenizer, "ab", first=False)]
    assert c.send("ab").tokens == fresh_reply(c, ids, 0).tokens
    check_state(c)


def test_cancelling_from_another_thread(model):
    """At the next token, fifty times; the same request again gives the same text."""
    c = Conversation(
        model, template="chatml", max_tokens=300, capacity=512, extra_stop_ids=(), processor=BanTokens([END])
    )
    whole = (
        Conversation(model, template="chatml", max_tokens=300, capacity=512, processor=BanTokens([END]))
        .send("hi")
        .tokens
    )
    for n in range(50):
        stream = c.send("hi", stream=True)
        got = 0
        for _ in stream:
            got += 1
            if got == 1 + n % 3:
                thread = threading.Thread(target=stream.cancel if n % 2 else c.cancel)
                thread.start()
                thread.join()
        reply = stream.result
        assert reply.finish_reason == "cancelled" and reply.tokens == whole[: len(reply.tokens)]
        assert got <= 2 + n % 3  # the rest of a character that was held back
        check_state(c)
        c.undo()
    assert c.send("hi").tokens == whole


def test_cancelling_in_the_middle_of_a_pass(model, monkeypatch):
    c = Conversation(model, template="chatml", max_tokens=50, capacity=512)
    monkeypatch.setattr(model, "forward_rows", Passes(model, 5, c.cancel))
    reply = c.send("hi")
    assert (reply.finish_reason, len(reply.tokens)) == ("cancelled", 5)  # the token of that pass, and no more
    c.cancel()  # no reply is being made: nothing happens
    monkeypatch.undo()
    assert c.send("more").finish_reason != "cancelled"


def test_a_reply_that_its_reader_leaves(model):
    c = Conversation(model, template="chatml", max_tokens=10)
    unread = c.send("forgotten", stream=True)
    assert c.send("hi").prompt_tokens == Conversation(model, template="chatml", max_tokens=10).send("hi").prompt_tokens
    assert unread.result.finish_reason == "cancelled" and list(unread) == []
    left = c.send("more", stream=True)
    next(left)
    left.close()
    assert left.result.finish_reason == "cancelled" and len(left.result.tokens) >= 1
    assert c.messages[-1]["content"] == left.result.text
    check_state(c)
    untouched = c.send("never", stream=True)
    untouched.close()
    assert untouched.result.tokens == [] and c.messages[-1]["content"] == left.result.text
    done = c.send("more", stream=True)
    list(done)
    tokens = list(done.result.tokens)
    done.close()
    c.send("further")
    assert done.result.tokens == tokens and done.result.finish_reason == "length"


def test_a_reply_that_is_read_on_after_the_next_one(model):
    c = Conversation(model, template="chatml", max_tokens=30, processor=BanTokens([END]), capacity=512)
    left = c.send("hi", stream=True)
    pieces = [next(left), next(left)]
    reply = c.send("more")
    pieces += list(left)  # what was held back, nothing more
    assert "".join(pieces) == left.result.text and left.result.finish_reason == "cancelled"
    assert reply.tokens == fresh_reply(c, c.history[: reply.prompt_tokens], 0, BanTokens([END])).tokens
    check_state(c)


# --- warm starts, prefixes --------------------------------------------------------------------------------------


def test_warm_equals_cold(model):
    cold = Conversation(model, template="chatml", max_tokens=5, **SAMPLED)
    cold.send("hi")
    giver = Conversation(model, template="chatml", max_tokens=5, **SAMPLED)
    giver.send("hi")
    state = giver.take_cache()
    assert len(state.tokens) == state.cache.len == len(cold.history) - 1
    for go in (giver.take_cache, lambda: giver.send("x"), giver.undo, giver.reset, lambda: giver.used):
        with pytest.raises(ConversationClosed, match="taken away"):
            go()
    giver.cancel()
    warm = Conversation.init_warm(model, state, template="chatml", max_tokens=5, **SAMPLED)
    assert warm.cache is state.cache and warm.history == [*state.tokens, state.newest] == cold.history
    warm.sampler.rng.position = cold.sampler.rng.position
    ids = [*cold.history, *ChatFormat.CHATML.encode_turn(model.tokenizer, "and?", first=False)]
    reply = warm.send_tokens_reuse(ids)
    assert reply.reused_prefix == len(state.tokens)
    assert reply.tokens == cold.send("and?").tokens
    check_state(warm)


@pytest.mark.parametrize("max_tokens", [1, 5])
def test_a_warm_start_keeps_the_last_token_of_a_reply_that_was_cut_off(model, max_tokens):
    """Its row has not been computed: the next turn computes it with its prompt, as in a conversation that stays."""
    cold = Conversation(model, template="chatml", max_tokens=max_tokens, **SAMPLED)
    cold.send("hi")
    giver = Conversation(model, template="chatml", max_tokens=max_tokens, **SAMPLED)
    giver.send("hi")
    for _ in range(2):
        warm = Conversation.init_warm(model, giver.take_cache(), template="chatml", max_tokens=max_tokens, **SAMPLED)
        warm.sampler.rng.position = cold.sampler.rng.position
        giver = warm
    assert warm.history == cold.history
    for go in (lambda c: c.send("and?"), lambda c: c.send_rendered("!")):
        mine, theirs = go(warm), go(cold)
        assert mine.tokens == theirs.tokens
        assert (mine.prompt_tokens, mine.reused_prefix) == (theirs.prompt_tokens, theirs.reused_prefix)
        assert warm.history == cold.history
        check_state(warm)


def test_warm_start_continues_in_a_format(model):
    giver = say(model, "ok")
    giver.send("hi")
    warm = Conversation.init_warm(model, giver.take_cache(), template="chatml", max_tokens=4)
    warm.send("and?")
    assert model.tokenizer.decode(warm.history).startswith(
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nok<|im_end|>\n<|im_start|>user\nand?"
    )
    with pytest.raises(UnknownMessages):
        Conversation.init_warm(model, warm.take_cache(), max_tokens=4).send("x")


def test_warm_states_are_cut_to_what_fits_together(model):
    cache = model.new_cache(50)
    model.forward_rows([(cache, [1, 2, 3, 4, 5], "none")])
    c = Conversation.init_warm(model, WarmState(cache, [1, 2, 3]), max_tokens=2)
    assert (c.history, c.used) == ([1, 2, 3], 3)
    c = Conversation.init_warm(model, WarmState(c.take_cache().cache, [1, 2, 3, 9, 9]), max_tokens=2)
    assert (c.history, c.used) == ([1, 2, 3], 3)
    check_state(c)
    c = Conversation.init_warm(model, WarmState(c.take_cache().cache, [1, 2], newest=9), max_tokens=2)
    assert (c.history, c.used) == ([1, 2, 9], 2)  # a row too many is dropped
    c = Conversation.init_warm(model, WarmState(c.take_cache().cache, [1, 2, 3], newest=9), max_tokens=2)
    assert (c.history, c.used) == ([1, 2], 2)  # what came after a token that is cut off goes with it
    check_state(c)
    with pytest.raises(TokenOutOfRange):
        Conversation.init_warm(model, WarmState(c.take_cache().cache, [1, 2], newest=999))
    with pytest.raises(InvalidPrefix):
        Conversation.init_warm(model, WarmState(cache, [1], prefix_rows=4))
    with pytest.raises(TokenOutOfRange):
        Conversation.init_warm(model, WarmState(cache, [999]))
    stranger = fucina.load(fucina_other(model), backend="naive")
    with pytest.raises(KvCacheShapeMismatch):
        Conversation.init_warm(model, WarmState(stranger.new_cache(10), []))
    stranger.close()


def fucina_other(model):
    from tests.models import TINY

    return TINY / "llama.gguf"


def test_prefix_rows(model):
    """Rows in front that belong to no token: attention reads them, they are never dropped and never counted."""
    first = ChatFormat.CHATML.encode_turn(model.tokenizer, "hi")
    prefix = letters("a long memory")
    c = Conversation(model, template="chatml", max_tokens=4, capacity=100)
    with pytest.raises(InvalidPrefix):
        c.note_prefix_rows(3)
    model.forward_rows([(c.cache, prefix, "none")])
    with pytest.raises(InvalidPrefix, match="holds 13"):
        c.note_prefix_rows(12)
    c.note_prefix_rows(13)
    reply = c.send("hi")
    assert reply.prompt_tokens == len(first) and c.used == 13 + len(c.history) - 1
    assert reply.tokens == fresh_reply(c, [*prefix, *first], 0).tokens
    check_state(c)
    with pytest.raises(InvalidPrefix):
        c.note_prefix_rows(c.used)
    again = c.send_tokens_reuse(first)
    assert again.reused_prefix == len(first) - 1 and again.tokens == reply.tokens
    other = c.send_tokens_reuse([1, 2])
    assert other.tokens == fresh_reply(c, [*prefix, 1, 2], 0).tokens
    with pytest.raises(ContextFull, match="after 13 rows of prefix"):
        c.send_tokens_reuse([1] * 87)
    assert c.send_tokens_reuse([1] * 86).finish_reason == "length"
    c.reset()
    assert c.used == 13
    c.send("hi")
    state = c.take_cache()
    assert state.prefix_rows == 13 and len(state.tokens) == state.cache.len - 13
    warm = Conversation.init_warm(model, state, template="chatml", max_tokens=4)
    assert warm.send_tokens_reuse(first).tokens == reply.tokens


def test_prefix_rows_with_speculation(model):
    """Rows of a preloaded prefix have no tokens, so the number of a token is not the number of its row."""
    replies = []
    for speculation in (False, True):
        c = Conversation(model, template="chatml", max_tokens=20, speculation=speculation)
        model.forward_rows([(c.cache, letters("memory"), "none")])
        c.note_prefix_rows(6)
        replies.append([c.send(text).tokens for text in ("abababab", "ab")])
        assert c.used - 6 in (len(c.history), len(c.history) - 1)
    assert replies[0] == replies[1]


@pytest.mark.parametrize("length", [63, 64, 65, 127, 128, 129])
def test_warm_equals_cold_at_the_edges_of_blocks(model, length):
    ids = [(i * 7) % 250 for i in range(length + 5)]
    c = Conversation(model, template="chatml", max_tokens=4)
    c.send_tokens_reuse(ids[:length])
    reply = c.send_tokens_reuse(ids)
    assert reply.tokens == fresh_reply(c, ids, 0).tokens
    check_state(c)


def test_common_prefix():
    assert (
        common_prefix([], [1]) == 0 and common_prefix([1, 2, 3], [1, 2]) == 2 and common_prefix([1, 9], [1, 2, 3]) == 1
    )
