"""Grammars in generate, conversations, batches and on the command line."""

import contextlib
import json
import warnings

import numpy as np
import pytest

import fucina
from fucina import Conversation, Grammar, send_batch
from fucina.chat.constrained import ReasoningOff
from fucina.errors import BatchLengthMismatch, InvalidDraft, InvalidGrammar, InvalidOption, MatcherFailed
from fucina.sampling import BanTokens
from fucina.sampling.grammar import UnboundedReply
from fucina.speculative import ConstrainedSource
from tests.chat_model import CHATML, write_chat_model
from tests.conversations import check_state
from tests.models import TINY

WORD = Grammar.regex("(yes|no), [a-z]{2,4}\\.")
NUMBER = Grammar.json_schema({"type": "integer", "minimum": 0, "maximum": 99})
DEAD = Grammar.lark('start: "a" b\nb: b')
SAMPLED = {"temperature": 1.0, "seed": 4}


@pytest.fixture(scope="module")
def model():
    m = fucina.load(TINY / "llama.gguf", threads=1)
    yield m
    m.close()


def talk(model, **options):
    return Conversation(model, **{"template": "chatml", "max_tokens": 30, **options})


# --- generate -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, SAMPLED])
def test_generate(model, options):
    g = model.generate("x", max_tokens=40, grammar=WORD, **options)
    assert WORD.matches(g.text) and g.complete is True and g.finish_reason == "stop"
    fast = model.generate("x", max_tokens=40, grammar=WORD, speculative=True, **options)
    assert (fast.tokens, fast.complete, fast.finish_reason) == (g.tokens, True, "stop")
    stream = model.generate("x", max_tokens=40, grammar=WORD, stream=True, **options)
    assert "".join(stream) == g.text and stream.result.complete
    assert model.generate("x", max_tokens=3).complete is None


def test_a_reply_that_is_cut_is_not_complete(model):
    cut = model.generate("x", max_tokens=3, grammar=WORD)
    assert cut.finish_reason == "length" and cut.complete is False
    digits = Grammar.regex("[0-9]{1,9}")
    g = model.generate("x", max_tokens=3, grammar=digits)  # `123` is a sentence, and the beginning of a longer one
    assert g.finish_reason == "length" and digits.matches(g.text) and g.complete is False
    exact = model.generate("x", max_tokens=2, grammar=Grammar.regex("[0-9]{2}"))
    assert exact.finish_reason == "length" and exact.complete is True  # nothing could follow


def test_a_stop_text_cuts_too(model):
    both = Grammar.regex("[0-9]{2}(,[0-9]{2})*")
    g = model.generate("x", max_tokens=40, grammar=both, stop=",", temperature=1.0, seed=2)
    assert g.finish_reason == "stop" and g.complete is both.matches(g.text)
    half = model.generate("x", max_tokens=40, grammar=Grammar.regex("[0-9]{2},[0-9]{2}"), stop=",")
    assert half.stop == "," and half.complete is False and len(half.text) == 2


def test_the_stream_shows_how_far_it_is(model):
    stream = model.generate("x", max_tokens=40, grammar=WORD, stream=True)
    next(stream)
    assert stream.result.complete is False
    stream.close()
    assert stream.result.finish_reason == "cancelled" and stream.result.complete is False


def test_with_a_processor(model):
    (n,) = model.tokenizer.encode("n", special=False)
    for speculative in (False, True):
        g = model.generate("x", max_tokens=40, grammar=WORD, processor=BanTokens([n]), speculative=speculative)
        assert g.text.startswith("yes") and g.complete


def test_dead_ends_and_wrong_arguments(model):
    stream = model.generate("x", max_tokens=10, grammar=DEAD, stream=True)
    assert next(stream) == "a"
    with pytest.raises(MatcherFailed, match="cannot go on"):
        next(stream)
    assert stream.result.finish_reason == "error" and stream.result.text == "a" and stream.result.complete is False
    with pytest.raises(InvalidOption, match="ignore_eos"):
        model.generate("x", grammar=WORD, ignore_eos=True)
    for wrong in ("[0-9]", {"type": "string"}, Grammar, WORD.constraint(model)):
        with pytest.raises(InvalidOption, match=r"must be a fucina\.Grammar"):
            model.generate("x", grammar=wrong)
        with pytest.raises(InvalidOption, match=r"must be a fucina\.Grammar"):
            talk(model, grammar=wrong)
        with pytest.raises(InvalidOption, match=r"must be a fucina\.Grammar"):
            talk(model).send("x", grammar=wrong)


def test_a_circle_of_one_token_is_told(model):
    endless = Grammar.regex("7{2,}")
    with pytest.warns(UnboundedReply, match="repeated token"):
        g = model.generate("x", max_tokens=30, grammar=endless, processor=BanTokens([2]))
    assert g.finish_reason == "length" and len(g.tokens) == 30
    with pytest.warns(UnboundedReply):
        talk(model, grammar=endless, processor=BanTokens([2])).send("x")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model.generate("x", max_tokens=30, grammar=Grammar.regex("7{20}")).complete  # many, but it ended
        model.generate("x", max_tokens=30, processor=BanTokens([2]))  # no grammar


# --- conversations ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("speculation", [False, True])
def test_a_conversation(model, speculation):
    c = talk(model, grammar=WORD, speculation=speculation, **SAMPLED)
    plain = talk(model, speculation=speculation, **SAMPLED)
    for text in ("one", "two"):
        r = c.send(text)
        assert WORD.matches(r.text) and r.complete and r.finish_reason == "stop"
        check_state(c)
    number = c.send("three", grammar=NUMBER)
    assert 0 <= json.loads(number.text) <= 99
    free = c.send("four", grammar=None)
    assert free.complete is None and not WORD.matches(free.text)
    assert WORD.matches(c.send("five").text)
    assert plain.send("six").complete is None and plain.send("seven", grammar=NUMBER).complete
    assert plain.send("eight").complete is None
    check_state(c)


def test_regenerating_keeps_the_grammar_of_its_turn(model):
    c = talk(model, **SAMPLED)
    c.send("a", grammar=WORD)
    texts = {c.regenerate().text for _ in range(6)}
    assert len(texts) > 1 and all(map(WORD.matches, texts))
    assert c.send("b").complete is None
    assert c.regenerate().complete is None
    c.undo()
    assert WORD.matches(c.regenerate().text)
    again = talk(model, grammar=WORD)
    assert again.send("x", grammar=None).complete is None and again.regenerate().complete is None


def test_processors_of_the_caller_stay(model):
    ban = BanTokens(model.tokenizer.encode("n", special=False))
    c = talk(model, processor=ban)
    for grammar in (WORD, None, WORD, NUMBER, None):
        r = c.send("x", grammar=grammar)
        assert c.sampler.processors[0] is ban and len(c.sampler.processors) == (1 if grammar is None else 2)
        assert "n" not in r.text
    mine = WORD.constraint(model)
    c = talk(model, processor=mine)
    assert WORD.matches(c.send("x").text) and WORD.matches(c.send("y").text) and c.sampler.processors == (mine,)


def test_rendered_turns_and_reuse_follow_the_conversation_s_grammar(model):
    c = talk(model, grammar=WORD)
    assert WORD.matches(c.send_rendered("hello").text)
    assert WORD.matches(c.send_tokens_reuse([5, 6, 7]).text) and WORD.matches(c.send_rendered_reuse("other").text)


def test_a_dead_end_leaves_a_conversation_that_goes_on(model):
    c = talk(model)
    before = c.send("hello").text
    with pytest.raises(MatcherFailed):
        c.send("x", grammar=DEAD)
    assert c.messages[1]["content"] == before
    assert WORD.matches(c.send("y", grammar=WORD).text)
    check_state(c)


def test_reasoning_is_off_and_that_is_told(tmp_path):
    thinks = CHATML.replace(
        "assistant\n' }}",
        "assistant\n' }}{% if enable_thinking is not defined or enable_thinking %}{{ 'Hm' }}{% endif %}",
    )
    m = fucina.load(write_chat_model(tmp_path / "thinks.gguf", template=thinks), threads=1)
    try:
        c = Conversation(m, max_tokens=30, grammar=WORD)
        with pytest.warns(ReasoningOff, match="not to reason"):
            r = c.send("x")
        off = Conversation(m, max_tokens=30, think_off=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert r.prompt_tokens == off.send("x", grammar=WORD).prompt_tokens
            c.send("y")  # told once
            free = Conversation(m, max_tokens=30)
            assert free.send("x").prompt_tokens == r.prompt_tokens + 2
    finally:
        m.close()


class Offers:
    """A source of drafts with one answer to everything."""

    def __init__(self, answer):
        self.answer, self.asked, self.cut = answer, 0, []

    def suggest(self, context, limit):
        self.asked += 1
        return self.answer

    def observe(self, committed):
        pass

    def truncate_pending(self, n):
        self.cut.append(n)


@pytest.mark.parametrize(
    "answer", [np.array([5, 6]), np.array([], int), (5, 6), ["x"], [5, 1.5], None, [-1], [1 << 70]], ids=repr
)
def test_whatever_a_source_offers_is_treated_as_without_a_grammar(model, answer):
    letters = Grammar.regex("[a-z]{12}")
    plain = model.generate("x", max_tokens=20, grammar=letters)
    source = Offers(answer)
    fast = model.generate("x", max_tokens=20, grammar=letters, speculative=source)
    assert fast.tokens == plain.tokens and source.asked > 0
    assert model.generate("x", max_tokens=9, speculative=source).tokens == model.generate("x", max_tokens=9).tokens
    for wrong in ("text", 5, {"a": 1}):
        with pytest.raises(InvalidDraft, match="Offers"):
            model.generate("x", max_tokens=9, grammar=letters, speculative=Offers(wrong))


def test_a_source_is_told_where_its_draft_was_cut(model):
    (a,) = model.tokenizer.encode("a", special=False)
    constraint = Grammar.regex("a*|b*").constraint(model)
    for answer, draft in (([a, a, "x"], [a, a]), (np.array([a, 0]), [a]), ([a, a, a, a], [a, a, a])):
        inner = Offers(answer)
        assert list(ConstrainedSource(constraint, inner).suggest([], 3)) == draft and inner.cut == [len(draft)]
    inner = Offers(np.array([a, a]))
    assert ConstrainedSource(constraint, inner).suggest([], 3) == [a, a] and inner.cut == []


# --- batches ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("speculation", [False, True])
def test_batches(model, speculation):
    grammars = [WORD, None, NUMBER, WORD, ..., WORD, NUMBER, None]

    def make():
        return [
            talk(model, temperature=1.0, seed=i, speculation=speculation, grammar=NUMBER if i == 4 else None)
            for i in range(8)
        ]

    users = [f"message {i}" for i in range(8)]
    expected = [c.send(u, grammar=g) for c, u, g in zip(make(), users, grammars, strict=True)]
    cs = make()
    replies = send_batch(cs, users, grammars=grammars)
    assert [(r.tokens, r.complete) for r in replies] == [(r.tokens, r.complete) for r in expected]
    assert [r.complete for r in replies] == [True, None, True, True, True, True, True, None]
    for c in cs:
        check_state(c)
    assert all(WORD.matches(r.text) for r in send_batch(cs, users, grammars=WORD))
    with pytest.raises(BatchLengthMismatch, match="grammar"):
        send_batch(cs, users, grammars=[WORD])
    with pytest.raises(InvalidOption, match="Grammar"):
        send_batch(cs, users, grammars=["x"] * 8)


def test_a_matcher_that_fails_fails_its_own_request(model):
    from fucina.chat import send_batch_tokens_reuse

    cs = [talk(model, grammar=g) for g in (WORD, DEAD, NUMBER)]
    replies = send_batch_tokens_reuse(cs, [[5, 6], [7, 8], [9, 10]])
    assert [r.finish_reason for r in replies] == ["stop", "error", "stop"]
    assert isinstance(replies[1].error, MatcherFailed) and replies[1].text == "a"
    assert replies[0].complete and not replies[1].complete and replies[2].complete
    alone = talk(model, grammar=WORD).send_tokens_reuse([5, 6])
    assert alone.tokens == replies[0].tokens


@pytest.mark.parametrize("speculation", [False, True])
def test_a_batch_raises_a_dead_end_once_the_others_have_ended(model, speculation):
    dead = Grammar.lark('start: "x" /[a&&b]/')
    cs = [talk(model, speculation=speculation) for _ in range(3)]
    with pytest.raises(MatcherFailed, match="no token may follow") as caught:
        send_batch(cs, list("abc"), grammars=[Grammar.regex("(abc|xyz){2}"), dead, None])
    assert "NoExtension" not in str(caught.value)
    for c, user, grammar in zip(cs, "abc", (Grammar.regex("(abc|xyz){2}"), dead, None), strict=True):
        alone = talk(model, speculation=speculation)
        with pytest.raises(MatcherFailed) if grammar is dead else contextlib.nullcontext():
            alone.send(user, grammar=grammar)
        assert (c.messages, c.history) == (alone.messages, alone.history)
        check_state(c)
    assert Grammar.regex("(abc|xyz){2}").matches(cs[0].messages[-1]["content"])
    assert [r.complete for r in send_batch(cs, list("def"), grammars=WORD)] == [True] * 3


# --- the command line ---------------------------------------------------------------------------------------------------


def test_command_line(cli, tmp_path):
    model = ("--model", TINY / "llama.gguf", "--threads", 1)
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    (tmp_path / "schema.json").write_text(json.dumps(schema), encoding="utf-8")
    (tmp_path / "grammar.lark").write_text('start: "<" /[a-z]{3}/ ">"', encoding="utf-8")
    for given in (json.dumps(schema), tmp_path / "schema.json"):
        arguments = ("--json-schema", given, "--max-field", 5, "-n", 60)
        status, out, _ = cli("generate", "x", *model, *arguments)
        assert status == 0 and set(json.loads(out)) == {"a"} and len(json.loads(out)["a"]) <= 5
        status, out, _ = cli("generate", "x", *model, *arguments, "--json", "--spec")
        assert status == 0 and json.loads(out)["complete"] is True
    for option, value, like in (
        ("--regex", "[a-c]{4}", "[a-c]{4}"),
        ("--lark", 'start: "<" /[a-z]{3}/ ">"', "<[a-z]{3}>"),
        ("--lark", tmp_path / "grammar.lark", "<[a-z]{3}>"),
    ):
        status, out, _ = cli("generate", "x", *model, option, value, "-n", 20)
        assert status == 0 and Grammar.regex(like).matches(out.strip())
        status, out, _ = cli("chat", "x", *model, "--format", "chatml", option, value, "-t", 0, "-n", 20)
        assert status == 0 and Grammar.regex(like).matches(out.strip())
    status, out, _ = cli("generate", "x", *model, "--json-reply", "-n", 200, "-t", 1, "--seed", 3, "--json")
    reply = json.loads(out)
    assert status == 0 and reply["complete"] == (reply["finish_reason"] == "stop")
    assert Grammar.json().matches(reply["text"]) or not reply["complete"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--regex", "[a"), "unclosed"),
        (("--json-schema", "false"), "false"),
        (("--json-schema", "no/such/file.json"), "No such file"),
        (("--lark", "no/such/file.lark"), "No such file"),
        (("--json-schema", ""), "--json-schema '': expected the name of a file, or the text itself"),
        (("--json-schema", "-"), "stdin is not read"),
        (("--lark", " "), "--lark ' ': expected"),
        (("--max-field", "3"), "needs --json-schema"),
        (("--json-schema", "{}", "--max-field", "0"), "max_field"),
        (("--json-schema", '{"not": {}}'), "not"),
    ],
)
def test_command_line_refuses_before_a_model_is_loaded(cli, arguments, message):
    for command in ("generate", "chat"):
        status, out, err = cli(command, "x", "--model", "/no/such/model.gguf", *arguments)
        assert status != 0 and out == "" and message in err


def test_only_one_grammar(cli):
    status, out, err = cli("generate", "x", "--regex", "a", "--json-reply")
    assert status == 2 and out == "" and "not allowed with" in err


def test_a_bad_grammar_in_a_conversation_changes_nothing(model):
    c = talk(model)
    c.send("x")
    before = list(c.history)
    with pytest.raises(InvalidGrammar):
        c.send("y", grammar=Grammar.regex("[a"))
    assert c.history == before
