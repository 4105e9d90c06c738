"""Conversations whose rows come from a pool: warm equals cold, with drafts, grammars, windows, tenants, files and threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import fucina
from fucina.chat import Conversation, send_batch
from fucina.errors import (
    ChatTemplateError,
    ContextFull,
    ConversationClosed,
    EmptyMessages,
    PoolClosed,
    TrailingAssistantMessage,
)
from tests.chat_model import write_chat_model
from tests.conversations import FailAt, check_state
from tests.interrupts import every_interrupt
from tests.toy_families import toy_model

FUCINA = Path(fucina.__file__).parent
SYSTEM = {"role": "system", "content": "be very brief, " * 6}
KINDS = ("chat", "ring", "recurrent", "latent")
OPTIONS = [
    {},
    {"template": "chatml"},
    {"speculation": True},
    {"temperature": 0.9, "top_k": 40, "seed": 4, "template": "chatml", "speculation": True},
]


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


@pytest.fixture(scope="module", params=KINDS)
def model(request, tmp_path_factory):
    if request.param == "chat":
        model = fucina.load(write_chat_model(tmp_path_factory.mktemp("model") / "chat.gguf"))
    else:
        model = toy_model(request.param)
    yield model
    model.close()


@pytest.fixture
def pool(model):
    with fucina.SlotPool(model, memory="64MiB") as pool:
        yield pool
        assert pool.stats().in_use == 0


def cold(model, messages, **options):
    """The reply to messages without a pool."""
    with Conversation(model, max_tokens=6, **options) as c:
        return c.send_messages_reuse(messages)


@pytest.mark.parametrize("options", OPTIONS)
def test_conversations_over_one_system_message(model, pool, options):
    cached = []
    for i in range(4):
        twin = Conversation(model, SYSTEM["content"], max_tokens=6, **options)
        with pool.conversation([SYSTEM], max_tokens=6, **options) as c:
            for text in (f"hello {i}", "and?", "x" * 30):
                reply = c.send(text)
                expected = twin.send(text)
                assert (reply.tokens, reply.text, reply.prompt_tokens) == (
                    expected.tokens, expected.text, expected.prompt_tokens
                )  # fmt: skip
                check_state(c)
                cached.append(reply.cached_tokens)
            assert (c.messages, c.history, c.system) == (twin.messages, twin.history, twin.system)
            assert c.sampler.state() == twin.sampler.state()
            c.undo()
            twin.undo()
            assert c.regenerate().tokens == twin.regenerate().tokens
            check_state(c, complete=False)
    assert cached[0] == 0 and min(cached[3::3]) >= 85  # of 97 tokens that are common


@pytest.mark.parametrize("options", OPTIONS)
def test_stateless_requests(model, pool, options):
    """Each request brings all messages; windows and recurrent parts find what the others left as well."""
    messages = [SYSTEM]
    for turn in range(4):
        messages.append(user(f"say {turn}"))
        expected = cold(model, messages, **options)
        first = pool.send(messages, max_tokens=6, **options)
        again = pool.send(messages, stream=True, max_tokens=6, **options)
        assert "".join(again) == expected.text and again.result.tokens == first.tokens == expected.tokens
        assert again.result.cached_tokens >= first.cached_tokens
        messages.append(assistant(first.text))
    assert first.cached_tokens > 85 and pool.stats().hits >= 6


def test_a_conversation_that_was_said_elsewhere(model, pool):
    said = [SYSTEM, user("hi"), assistant("oh"), user("and?"), assistant("yes")]
    for options in OPTIONS:
        expected = cold(model, [*said, user("more")], **options)
        with pool.conversation(said, max_tokens=6, **options) as c:
            assert c.messages == said
            reply = c.send("more")
            check_state(c)
            assert c.messages == [*said, user("more"), assistant(reply.text)]
            c.undo()
            assert c.messages == said
            again = c.send("more")
            assert again.prompt_tokens == reply.prompt_tokens
            c.reset()
            assert c.messages == [SYSTEM]
            assert c.send("x").text == Conversation(model, SYSTEM["content"], max_tokens=6, **options).send(
                "x"
            ).text or ("seed" in options)
        if "template" not in options:
            assert reply.tokens == expected.tokens


def test_rows_of_a_request_are_there_for_the_next_at_once(model, pool):
    messages = [user("what a long question this is, and it has no system message " * 2)]
    first = pool.send(messages, stream=True, max_tokens=6)
    for _ in first:
        pass
    assert pool.stats().in_use == 0 and first.result.cached_tokens == 0  # while somebody still holds the stream
    more = [*messages, assistant(first.result.text), user("and?")]
    assert pool.send(more, max_tokens=6).cached_tokens >= 100
    with pool.conversation(more[:2]) as c:
        assert c.system is None
        c.reset()
        assert c.messages == []


def test_tenants_share_nothing(model, pool):
    messages = [SYSTEM, user("hi")]
    assert pool.send(messages, tenant="a", max_tokens=3).cached_tokens == 0
    assert pool.send(messages, tenant="b", max_tokens=3).cached_tokens == 0
    assert pool.send(messages, tenant="a", max_tokens=3).cached_tokens > 85
    with pool.conversation(messages[:1], tenant="c", max_tokens=3) as c:
        assert c.send("hi").cached_tokens == 0


def test_grammars(model, pool):
    pytest.importorskip("llguidance")
    grammar = fucina.Grammar.regex("[ab]{4}")
    for _ in range(2):
        reply = pool.send([SYSTEM, user("hi")], grammar=grammar, max_tokens=9, speculation=True)
        assert reply.tokens == cold(model, [SYSTEM, user("hi")], grammar=grammar).tokens and reply.complete
    assert reply.cached_tokens > 85


def test_batches(model, pool):
    for _ in range(2):
        cs = [pool.conversation([SYSTEM], max_tokens=5, template="chatml") for _ in range(3)]
        told = send_batch(cs, ["a", "b", "c"])
        for text, reply, c in zip("abc", told, cs, strict=True):
            assert (
                reply.tokens
                == Conversation(model, SYSTEM["content"], max_tokens=5, template="chatml").send(text).tokens
            )
            check_state(c)
            c.close()
    assert min(r.cached_tokens for r in told) > 85


def test_with_a_file(model, pool, tmp_path):
    """Rows of the pool, a file of its own."""
    pool.send([SYSTEM, user("hi")], max_tokens=4)
    with pool.conversation([SYSTEM], max_tokens=4, save=tmp_path / "a.fuxkv") as c:
        assert c.send("hi").cached_tokens > 85
        messages = list(c.messages)
    with Conversation(model, save=tmp_path / "a.fuxkv", max_tokens=4) as c:
        assert c.messages == messages and c.restored > 90
        check_state(c)


def test_a_restart(model, tmp_path):
    with fucina.SlotPool(model, memory="64MiB", disk=tmp_path) as pool:
        pool.send([SYSTEM, user("hi")], max_tokens=4)
    with fucina.SlotPool(model, memory="64MiB", disk=tmp_path) as pool:
        reply = pool.send([SYSTEM, user("hi")], max_tokens=4)
        assert reply.cached_tokens > 85 and reply.tokens == cold(model, [SYSTEM, user("hi")]).tokens[:4]
        assert pool.stats().restores == 1


def test_what_cannot_be_sent(model, pool):
    with pytest.raises(TrailingAssistantMessage, match="expected one to answer"):
        pool.send([user("hi"), assistant("oh")])
    with pytest.raises(EmptyMessages):
        pool.send([])
    with pytest.raises(ChatTemplateError):
        pool.send([{"role": "nobody", "content": "hi"}])
    with pytest.raises(ContextFull):
        pool.send([user("a" * 300)], capacity=200)
    with pytest.raises(TrailingAssistantMessage, match="nothing answers it"):
        pool.conversation([user("hi")])
    call = {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": {}}]}
    with pytest.raises(TrailingAssistantMessage, match="results"):
        pool.conversation([user("hi"), call])
    assert pool.stats().in_use == 0


def test_the_end_of_a_conversation(model, pool):
    c = pool.conversation([SYSTEM], max_tokens=9)
    assert pool.stats().in_use == 0  # the pool is asked with the first prompt
    stream = c.send("hi", stream=True)
    next(stream)
    assert pool.stats().in_use == 1
    c.close()
    c.close()
    with pytest.raises(ConversationClosed):
        c.send("x")
    rows = pool.stats().rows_stored
    c = pool.conversation([SYSTEM], max_tokens=3)
    c.send("hi")
    warm = c.take_cache()  # not the pool's any more
    assert pool.stats().in_use == 0 and pool.stats().rows_stored <= rows + 10
    assert Conversation.init_warm(model, warm, SYSTEM["content"]).cache is warm.cache
    c = pool.conversation([SYSTEM], max_tokens=3)
    c.sampler.processor = FailAt(1)
    with pytest.raises(RuntimeError):
        c.send("hi")
    c.sampler.processor = None
    assert c.send("hi").cached_tokens > 85
    c.close()


def test_a_pool_that_is_closed(model):
    pool = fucina.SlotPool(model, memory="1MiB")
    c = pool.conversation([SYSTEM], max_tokens=3)
    c.send("hi")
    pool.close()
    with pytest.raises(PoolClosed):
        c.close()
    c.close()
    with pytest.raises(PoolClosed):
        pool.send([user("x")])


def test_threads(model):
    """16 clients, each with its own text, few bytes, evictions: nobody gets what is another's."""
    texts = [f"client {i} " + chr(97 + i) * 12 for i in range(8)]
    expected = {t: cold(model, [SYSTEM, user(t)]).tokens for t in texts}
    lock = threading.Lock()
    with fucina.SlotPool(model, memory=200_000) as pool:

        def run(text):
            with lock:  # a model runs one pass at a time
                return text, pool.send(
                    [SYSTEM, user(text)], max_tokens=6, tenant=text[7] if len(text) % 2 else ""
                ).tokens

        with ThreadPoolExecutor(8) as workers:
            for text, tokens in workers.map(run, texts * 4):
                assert tokens == expected[text]
        assert pool.stats().in_use == 0


@pytest.mark.parametrize("end", [63, 64, 65, 127, 128, 129])
def test_borders_of_blocks(model, end):
    """Prefixes that end around multiples of the pool's block."""
    ids = np.random.default_rng(end).integers(33, 120, end + 9).tolist()
    with fucina.SlotPool(model, memory="64MiB") as pool:
        for tail in ([], [1, 2, 3], [4] * 70):
            prompt = [*ids[:end], *tail, 5]
            with pool.conversation(max_tokens=5, template="chatml") as c:
                c.stop_ids = frozenset()
                reply = c.send_tokens_reuse(prompt)
                check_state(c)
            plain = Conversation(model, max_tokens=5, template="chatml")
            plain.stop_ids = frozenset()
            assert reply.tokens == plain.send_tokens_reuse(prompt).tokens


def test_ctrl_c_gives_the_slot_back(model):
    """At instructions of a turn: the conversation goes on, and closing leaves the pool without a slot in use."""
    pool = fucina.SlotPool(model, memory="64MiB")
    pool.send([SYSTEM, user("hi")], max_tokens=2, template="chatml")
    expected = Conversation(model, SYSTEM["content"], template="chatml", max_tokens=2)
    tokens = expected.send("hi").tokens
    made = []

    def make():
        made.append(pool.conversation([SYSTEM], template="chatml", max_tokens=2))
        return lambda: made[-1].send("hi")

    places = (FUCINA / "chat", FUCINA / "cache" / "pool")
    for _ in every_interrupt(make, *places, first=5, step=173):
        c = made.pop()
        check_state(c, complete=False)
        c._end_turn()  # as the next event does with a reply whose reader has left
        if not c.history:
            assert c.send("hi").tokens == tokens
        check_state(c)
        c.close()
    made.pop().close()
    assert pool.stats().in_use == 0
    pool.close()
