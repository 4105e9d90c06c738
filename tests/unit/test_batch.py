"""Several conversations in one pass: each reply is the one that it would be alone, and failures stay where they are."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fucina
from fucina.chat import Conversation, TurnBatch, send_batch, send_batch_tokens_reuse
from fucina.errors import (
    AllTokensMasked,
    BatchLengthMismatch,
    ChatTemplateError,
    ContextFull,
    DuplicateBatchConversation,
    DuplicateCache,
    EmptyBatch,
    EmptyMessages,
    InvalidOption,
    MixedBatchModels,
    SharedBatchProcessor,
    TokenOutOfRange,
)
from fucina.sampling import BanTokens, BiasTokens, compose
from tests.chat_model import write_chat_model
from tests.conversations import FailAt, Script, check_state, fresh_reply

TEXTS = ["hi", "a longer question than the first", "", "ab" * 80, "<|im_end|>", "z"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    model = fucina.load(write_chat_model(tmp_path_factory.mktemp("model") / "chat.gguf"))
    yield model
    model.close()


def streams(model, n=6):
    """Conversations that have little in common."""
    kinds = [
        {},
        {"temperature": 0.9, "top_p": 0.9, "seed": 3},
        {"temperature": 1.2, "top_k": 20, "repeat_penalty": 1.3, "seed": 4, "max_tokens": 3},
        {"processor": BanTokens(range(100, 200)), "stop": ["[", "a"]},
        {
            "temperature": 0.7,
            "min_p": 0.05,
            "seed": 5,
            "max_tokens": 25,
            "processor": compose(BiasTokens({5: 2.0}), BanTokens([257])),
        },
        {"speculation": True, "max_tokens": 30},
    ]
    return [
        Conversation(model, "be", **{"template": ("chatml", None)[i % 2], "max_tokens": 12, **k})
        for i, k in enumerate(kinds[:n])
    ]


def described(reply):
    return (
        reply.tokens,
        reply.text,
        reply.finish_reason,
        reply.stop_index,
        reply.prompt_tokens,
        reply.reused_prefix,
        reply.sampled,
    )


# --- equal to one after another ---------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 6])
def test_a_batch_equals_one_after_another(model, n):
    together, apart = streams(model, n), streams(model, n)
    for turn in range(3):
        texts = [TEXTS[(i + turn) % 6] for i in range(n)]
        said = [[] for _ in range(n)]
        replies = send_batch(together, texts, [s.append for s in said])
        alone = [c.send(text) for c, text in zip(apart, texts, strict=True)]
        assert [described(r) for r in replies] == [described(r) for r in alone]
        assert ["".join(s) for s in said] == [r.text for r in alone]
        for a, b in zip(together, apart, strict=True):
            assert (a.history, a.messages, a.used, a.sampler.rng.position) == (
                b.history,
                b.messages,
                b.used,
                b.sampler.rng.position,
            )
            check_state(a)


def test_reuse_in_a_batch_equals_fresh(model):
    cs = streams(model)
    generator = np.random.default_rng(0)
    prompts = [generator.integers(0, 256, n).tolist() for n in (5, 130, 64, 1, 300, 40)]
    for cut in (0, 3, 0):
        prompts = [[*p[: len(p) - cut], 7] for p in prompts]
        positions = [c.sampler.rng.position for c in cs]
        replies = send_batch_tokens_reuse(cs, prompts)
        for c, prompt, position, reply in zip(cs, prompts, positions, replies, strict=True):
            processor = c.sampler.processor
            assert reply.tokens == fresh_reply(c, prompt, position, processor).tokens and reply.error is None
            check_state(c)


def test_many_streams_of_one_text(model):
    """One unique text, whatever runs beside it; more streams than a pass has rows."""
    cs = [Conversation(model, template="chatml", max_tokens=4, capacity=48) for _ in range(130)]
    replies = send_batch(cs, ["hi"] * 130)
    assert {tuple(r.tokens) for r in replies} == {
        tuple(Conversation(model, template="chatml", max_tokens=4).send("hi").tokens)
    }


def test_streams_end_and_join_at_their_own_time(model):
    """1, 5 and 40 tokens, one that joins late, one that is cancelled; the others are unchanged."""
    limits = [1, 5, 40, 12, 40]

    def make():
        return [
            Conversation(
                model, template="chatml", max_tokens=n, temperature=1.0, seed=n + i, processor=BanTokens([257])
            )
            for i, n in enumerate(limits)
        ]

    alone = [c.send(text).tokens for c, text in zip(make(), TEXTS, strict=False)]
    cs = make()
    batch = TurnBatch(model)
    turns = [batch.send(c, text) for c, text in zip(cs[:3], TEXTS, strict=False)]
    for _ in range(8):
        batch.step()
    turns += [batch.send(c, text) for c, text in zip(cs[3:], TEXTS[3:], strict=False)]
    while batch.busy:
        batch.step()
        if turns[4].stream.committed == 5:
            cs[4].cancel()
    assert [t.reply.finish_reason for t in turns] == ["length"] * 4 + ["cancelled"]
    assert [t.reply.tokens for t in turns[:4]] == alone[:4]
    assert 0 < len(turns[4].reply.tokens) < 40 and turns[4].reply.tokens == alone[4][: len(turns[4].reply.tokens)]
    for c in cs:
        check_state(c)


def test_a_conversation_joins_once(model):
    a, b = (Conversation(model, template="chatml", max_tokens=3, processor=p) for p in (BanTokens([1]), None))
    batch = TurnBatch(model)
    turn = batch.send(a, "hi")
    with pytest.raises(DuplicateBatchConversation):
        batch.send(a, "again")
    b.sampler.processor = a.sampler.processor
    with pytest.raises(SharedBatchProcessor):
        batch.send_tokens_reuse(b, [1, 2])
    while batch.busy:
        batch.step()
    assert len(turn.settle().tokens) == 3 and b.history == []
    batch.send(a, "again")  # the first turn is over
    batch.step()
    batch.close()
    assert [t.reply.finish_reason for t in batch.turns] == ["length", "cancelled"] and not batch.busy
    check_state(a)


def test_a_stream_cancelled_before_its_first_token(model):
    cs = streams(model, 2)
    batch = TurnBatch(model)
    for c, text in zip(cs, ("hi", "x" * 200), strict=True):
        batch.send(c, text)
    cs[1].cancel()
    while batch.busy:
        batch.step()
    assert (
        [t.reply.finish_reason for t in batch.turns][1] == "cancelled"
        and cs[1].history == []
        and len(cs[1].messages) == 1
    )
    assert described(batch.turns[0].reply) == described(streams(model, 1)[0].send("hi"))


# --- failures ---------------------------------------------------------------------------------------------------


class Gone:
    """A client that leaves after some pieces."""

    def __init__(self, pieces):
        self.left, self.calls = pieces, 0

    def __call__(self, piece):
        self.calls += 1
        self.left -= 1
        if self.left < 0:
            raise BrokenPipeError("gone")


def test_failures_stay_where_they_are(model):
    prompts = [[65 + i] * (10 + 30 * i) for i in range(7)]

    def make(processors):
        return [
            Conversation(model, max_tokens=12, temperature=1.0, seed=i, capacity=300, processor=p)
            for i, p in enumerate(processors)
        ]

    banned = BanTokens([257])
    alone = [c.send_tokens_reuse(p) for c, p in zip(make([BanTokens([257]) for _ in range(7)]), prompts, strict=True)]
    cs = make(
        [
            banned,
            BanTokens(range(258)),
            FailAt(5),
            BanTokens([257]),
            BanTokens([257]),
            BanTokens([257]),
            BanTokens([257]),
        ]
    )
    gone, said = Gone(3), []
    given = list(prompts)
    given[4] = [1] * 301
    given[5] = [258]
    replies = send_batch_tokens_reuse(cs, given, [said.append, None, None, gone, None, None, None])
    assert [type(r.error) for r in replies] == [
        type(None), AllTokensMasked, RuntimeError, BrokenPipeError, ContextFull, TokenOutOfRange, type(None)
    ]  # fmt: skip
    assert [r.finish_reason for r in replies] == ["length", *["error"] * 5, "length"]
    assert (
        replies[0].tokens == alone[0].tokens and replies[6].tokens == alone[6].tokens and "".join(said) == alone[0].text
    )
    assert len(replies[2].tokens) == 4 and gone.calls == 4  # not called again
    assert cs[1].history == cs[4].history == cs[5].history == []
    for c, prompt in zip(cs, prompts, strict=True):  # all of them can go on
        check_state(c)
        if c is not cs[1] and c is not cs[2]:
            position = c.sampler.rng.position
            assert c.send_tokens_reuse(prompt).tokens == fresh_reply(c, prompt, position, BanTokens([257])).tokens
    assert isinstance(send_batch_tokens_reuse(cs[:1], [[]])[0].error, EmptyMessages)


@pytest.mark.parametrize("at", [1, 4])
def test_a_failure_is_raised_once_the_other_replies_have_ended(model, at):
    cs = [
        Conversation(model, template="chatml", max_tokens=8, processor=p)
        for p in (BanTokens([257]), FailAt(at), BanTokens([257]))
    ]
    with pytest.raises(RuntimeError, match="no"):
        send_batch(cs, ["a", "b", "c"])
    for i, c in enumerate(cs):
        assert len(c.messages) == (0 if at == 1 and i == 1 else 2)
        check_state(c)
        alone = Conversation(model, template="chatml", max_tokens=8, processor=BanTokens([257]))
        if i != 1:
            assert alone.send("abc"[i]).text == c.messages[1]["content"]
    replies = send_batch(cs, ["d", "e", "f"])
    for c, reply in zip(cs, replies, strict=True):
        assert (
            reply.tokens
            == fresh_reply(c, c.history[: reply.prompt_tokens], 0, BanTokens([257]) if c is not cs[1] else None).tokens
        )


def test_a_prompt_that_does_not_fit_leaves_all_as_they_were(model):
    cs = [Conversation(model, template="chatml", max_tokens=4, capacity=100) for _ in range(3)]
    send_batch(cs, ["a", "b", "c"])
    before = [(list(c.history), list(c.messages)) for c in cs]
    for bad, error in (("x" * 100, ContextFull), ("\ud83d", ChatTemplateError)):
        with pytest.raises(error):
            send_batch(cs, ["d", bad, "f"])
        assert [(c.history, c.messages) for c in cs] == before
    for c in cs:
        check_state(c)


@pytest.mark.parametrize("at", [1, 2, 5])
def test_the_shared_pass_fails(model, monkeypatch, at):
    """The one failure that ends them all."""
    cs = streams(model, 4)
    send_batch(cs, TEXTS[:4])
    before = [(list(c.history), list(c.messages)) for c in cs]
    forward, left = model.forward_rows, [at]

    def broken(requests, **options):
        left[0] -= 1
        if left[0] == 0:
            raise RuntimeError("no")
        return forward(requests, **options)

    monkeypatch.setattr(model, "forward_rows", broken)
    with pytest.raises(RuntimeError, match="no"):
        send_batch_tokens_reuse(cs, [[9] * (40 * (i + 1)) for i in range(4)]) if at == 2 else send_batch(cs, TEXTS[1:5])
    monkeypatch.undo()
    for c, (history, messages) in zip(cs, before, strict=True):
        check_state(c, complete=False)
        if at == 1:
            assert c.messages == messages and c.history == history
    for c in cs:
        position = c.sampler.rng.position
        reply = c.send_tokens_reuse([1, 2, 3])
        assert reply.tokens == fresh_reply(c, [1, 2, 3], position, c.sampler.processor).tokens


# --- what cannot be a batch -------------------------------------------------------------------------------------


def test_lists_of_a_batch_may_be_generators(model):
    a, b = (Conversation(model, template="chatml", max_tokens=2) for _ in range(2))
    text: list[str] = []
    replies = send_batch((c for c in (a, b)), (t for t in ("x", "y")), (w for w in (text.append, None)))
    assert [c.messages[0]["content"] for c in (a, b)] == ["x", "y"] and "".join(text) == replies[0].text
    ids = [[1, 2], [3]]
    replies = send_batch_tokens_reuse(iter((a, b)), ((i for i in stream) for stream in ids))
    assert [r.error for r in replies] == [None, None] and [c.history[: len(i)] for c, i in zip((a, b), ids)] == ids


def test_what_is_no_list_of_a_batch(model):
    a = Conversation(model, template="chatml", max_tokens=2)
    for go, prompts in ((send_batch, ["x"]), (send_batch_tokens_reuse, [[1]])):
        for arguments, name in (
            ((a, prompts), "conversations"),
            (([a], None), "prompts"),
            (([a], prompts, 5), "writers"),
        ):
            with pytest.raises(InvalidOption, match=f"{name} must be a sequence"):
                go(*arguments)
        with pytest.raises(InvalidOption, match="it holds a int"):
            go([5], prompts)
    reply = send_batch_tokens_reuse([a], [None])[0]
    assert isinstance(reply.error, InvalidOption) and "ids must be a sequence of token ids" in str(reply.error)


def test_errors_by_name(model, tmp_path):
    a, b = (Conversation(model, template="chatml", max_tokens=2) for _ in range(2))
    stranger = fucina.load(write_chat_model(tmp_path / "other.gguf"), backend="naive")
    for go, one, two in ((send_batch, "x", "y"), (send_batch_tokens_reuse, [1], [2])):
        with pytest.raises(EmptyBatch):
            go([], [])
        for prompts, writers in (([one], None), ([one, two, two], None), ([one, two], [print])):
            with pytest.raises(BatchLengthMismatch, match="each of 2 conversations"):
                go([a, b], prompts, writers)
        with pytest.raises(MixedBatchModels):
            go([a, Conversation(stranger)], [one, two])
        with pytest.raises(DuplicateBatchConversation):
            go([a, a], [one, two])
        shared = BanTokens([3])
        pair = compose(BanTokens([4]), shared)
        for others in ((shared, shared), (shared, pair), (shared, compose(pair, BanTokens([5])))):
            with pytest.raises(SharedBatchProcessor):
                go([Conversation(model, processor=p) for p in others], [one, two])
    with pytest.raises(BatchLengthMismatch):
        send_batch([a, b], "xy")
    warm = Conversation.init_warm(model, a.take_cache(), template="chatml")
    other = Conversation.init_warm(model, fucina.chat.WarmState(warm.cache, []), template="chatml")
    with pytest.raises(DuplicateCache):
        send_batch([warm, other], ["x", "y"])
    stranger.close()


# --- any batch --------------------------------------------------------------------------------------------------

OPTIONS = st.fixed_dictionaries(
    {
        "max_tokens": st.integers(1, 9),
        "temperature": st.sampled_from([0.0, 0.8, 1.5]),
        "top_p": st.sampled_from([1.0, 0.7]),
        "presence_penalty": st.sampled_from([0.0, 1.0]),
        "seed": st.integers(0, 3),
        "stop": st.lists(st.text("ab[", max_size=2), max_size=2),
    }
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(
    members=st.lists(st.tuples(OPTIONS, st.text("ab<>", max_size=5), st.booleans()), min_size=1, max_size=5),
    script=st.lists(st.integers(0, 257), max_size=6),
)
def test_any_batch_equals_one_after_another(model, members, script):
    def make():
        return [
            Conversation(model, template="chatml", processor=Script(script) if scripted else None, **options)
            for options, _, scripted in members
        ]

    texts = [text for _, text, _ in members]
    replies = send_batch(make(), texts)
    assert [described(r) for r in replies] == [described(c.send(t)) for c, t in zip(make(), texts, strict=True)]
