"""Conversations under grammars that come and go: every turn is what a new conversation would say, whatever went before."""

import random
import threading
from pathlib import Path

import numpy as np
import pytest

import fucina
from fucina import Conversation, Grammar, send_batch
from fucina.errors import MatcherFailed
from fucina.sampling import BanTokens
from tests.chat_model import write_chat_model
from tests.conversations import check_state, fresh_reply
from tests.grammars import mask_of
from tests.interrupts import every_interrupt

PACKAGE = Path(fucina.__file__).parent
PLACES = [
    *(PACKAGE / "chat" / f"{name}.py" for name in ("conversation", "token_conversation", "constrained", "turn")),
    *(PACKAGE / "sampling" / f"{name}.py" for name in ("sampler", "processor", "grammar/constraint")),
    *(PACKAGE / "speculative" / f"{name}.py" for name in ("constrained", "drafter")),
]  # not llg.py: no signal comes between a lock and its `with`, but a raised exception does
WORD = Grammar.regex("(yes|no), [a-z]{2,4}\\.")
GRAMMARS = [
    None,
    WORD,
    Grammar.json_schema({"type": "array", "items": {"enum": ["é", 12, None]}, "maxItems": 3}),
    Grammar.regex("(😀|日本|é){1,9}"),
    Grammar.lark('start: "(" start ")" | "x"'),
    Grammar.lark('start: "ab" b | "ba"\nb: b'),  # one of its branches is a dead end
]
OPTIONS = {"template": "chatml", "capacity": 300, "temperature": 1.0, "top_k": 60, "seed": 5}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    model = fucina.load(write_chat_model(tmp_path_factory.mktemp("model") / "chat.gguf"), context=400, threads=1)
    yield model
    model.close()


def expected(c, ids, position, grammar):
    """The reply of a new conversation to the same tokens, its draws beginning at the same place; or None if it fails."""
    try:
        return fresh_reply(c, ids, position, grammar=grammar)
    except MatcherFailed:
        return None


@pytest.mark.parametrize("signalled", [False, True], ids=["raised", "signalled"])
@pytest.mark.parametrize("speculation", [False, True])
def test_an_interrupt_anywhere(model, speculation, signalled):
    """Ctrl-C in a constrained turn that follows another constrained one; then a turn under a third grammar, and a free one."""
    cs = []

    def scene():
        c = Conversation(model, max_tokens=7, speculation=speculation, processor=BanTokens([100]), **OPTIONS)
        c.send("a", grammar=GRAMMARS[4])
        cs[:] = [c]
        return lambda: c.send("b", grammar=WORD)

    seen = set()
    for _ in every_interrupt(scene, *PLACES, signalled=signalled, step=31):
        c = cs[0]
        c.undo(0)
        check_state(c, complete=False)
        state = (tuple(c.history), c.sampler.rng.position, len(c.sampler.processors))
        if state in seen:
            continue
        seen.add(state)
        for grammar in (GRAMMARS[2], None, WORD):
            position = c.sampler.rng.position
            reply = c.send("go on", grammar=grammar)
            ban = BanTokens([100])
            fresh = fresh_reply(c, c.history[: reply.prompt_tokens], position, ban, grammar=grammar)
            assert (reply.tokens, reply.complete) == (fresh.tokens, fresh.complete)
            assert len(c.sampler.processors) == (1 if grammar is None else 2)
        check_state(c)
    assert len(seen) > 2


@pytest.mark.parametrize("seed", range(6))
def test_turns_in_any_order(model, seed):
    """Sent, made again, taken back, cancelled after some pieces, batched, cut by a stop text or in the middle of a character."""
    r = random.Random(seed)
    stop = ["", "es", ", ", "(("][seed % 4]
    cs = [Conversation(model, max_tokens=n, stop=stop, speculation=n % 2 == 0, **OPTIONS) for n in (3, 6, 9)]
    turns = dict.fromkeys(range(3), ())  # the grammar of each turn
    for _ in range(30):
        i, grammar = r.randrange(3), r.choice(GRAMMARS)
        c, position = cs[i], cs[i].sampler.rng.position
        what = r.choice(["send", "send", "again", "undo", "cancel", "batch"])
        what = "reset" if len(c.history) > 200 else what
        try:
            if what == "send" or (what == "again" and not turns[i]):
                turn, reply = (*turns[i], grammar), c.send("hi", grammar=grammar)
            elif what == "again":
                turn, reply = turns[i], c.regenerate()
            elif what == "batch" and max(len(one.history) for one in cs) < 200:
                positions = [one.sampler.rng.position for one in cs]
                grammars = [r.choice(GRAMMARS[:5]) for _ in cs]
                for n, reply in enumerate(send_batch(cs, ["x", "y", "z"], grammars=grammars)):
                    turns[n] = (*turns[n], grammars[n])
                    same(cs[n], reply, positions[n], grammars[n])
                continue
            elif what == "cancel":
                stream = c.send("hi", stream=True, grammar=grammar)
                for _ in range(r.randrange(3)):
                    next(stream, None)
                stream.close()
                if len(c._story.turns) > len(turns[i]):
                    turns[i] = (*turns[i], grammar)
                check_state(c, complete=False)
                continue
            elif what == "undo":
                c.undo(n := r.randrange(min(2, len(turns[i])) + 1))
                turns[i] = turns[i][: len(turns[i]) - n]
                continue
            else:
                c.reset()
                turns[i] = ()
                continue
        except MatcherFailed:  # a dead end; the turn has what was said before it, as the same turn would elsewhere
            assert len(c._story.turns) - len(turns[i]) in (0, 1)
            turns[i] = tuple(record.grammar for record in c._story.turns)
            check_state(c, complete=False)
            continue
        turns[i] = turn
        same(c, reply, position, turn[-1])


def same(c, reply, position, grammar):
    fresh = expected(c, c.history[: reply.prompt_tokens], position, grammar)
    assert (reply.tokens, reply.text, reply.complete, reply.finish_reason) == (
        fresh.tokens, fresh.text, fresh.complete, fresh.finish_reason
    )  # fmt: skip
    if reply.complete:
        assert grammar.matches(reply.text)
    assert (reply.complete is None) == (grammar is None)
    check_state(c)


def test_threads_with_one_grammar_and_one_tokenizer(model):
    """Streams of threads have one grammar, which is compiled while they wait; each says what it says alone."""
    grammar = Grammar.json_schema(
        {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 4, "minItems": 4}
    )
    told, errors, barrier = {}, [], threading.Barrier(6)

    def work(n):
        try:
            r, said, constraint = random.Random(n % 2), [], None
            barrier.wait()
            constraint = grammar.constraint(model.tokenizer)
            while not constraint.complete:
                said += (
                    constraint.forced_tokens() or [int(r.choice(np.flatnonzero(mask_of(constraint, model.n_tokens))))]
                )[:1]
                constraint.commit(said[-1])
            told[n] = said
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert told[0] == told[2] == told[4] != told[1] == told[3] == told[5]
    for said in told.values():
        assert grammar.matches(
            b"".join(model.tokenizer.piece(token) for token in said if token not in model.tokenizer.eog_ids)
        )


def test_a_budget_that_ends_inside_a_character(model):
    """The text is whole characters, the tokens are all that was said; the next turn goes on from them."""
    kana = Grammar.regex("(😀|日本){1,9}")
    for n in range(1, 12):
        for speculation in (False, True):
            g = model.generate("x", max_tokens=n, grammar=kana, speculative=speculation)
            whole = b"".join(map(model.tokenizer.piece, g.tokens)).decode(errors="ignore")
            assert g.text.rstrip("\ufffd") == whole and len(g.tokens) <= n
            assert g.complete == (g.finish_reason == "stop")
            c = Conversation(model, max_tokens=n, speculation=speculation, **OPTIONS)
            first = c.send("x", grammar=kana)
            assert first.complete == (first.finish_reason == "stop")
            second = c.send("y", grammar=WORD)
            assert WORD.matches(second.text) or second.finish_reason == "length"
            check_state(c)
