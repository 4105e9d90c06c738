"""Conversations that draft: every way to lead one gives what it gives plainly, the index follows every rewind, documents
come and go, and what cannot be is said by name."""

from itertools import pairwise

import numpy as np
import pytest

import fucina
from fucina.chat import ChatFormat, Conversation, TurnBatch, WarmState, send_batch, send_batch_tokens_reuse
from fucina.errors import (
    EmptyInput,
    InvalidOption,
    InvalidText,
    ReferencesUnsupported,
    SpeculationDisabled,
    TokenOutOfRange,
)
from fucina.sampling import BanTokens, BiasTokens, compose
from fucina.speculative import CascadeOptions, Options, SourceDrafter, SpeculationIndex, Stats
from tests.chat_model import write_chat_model
from tests.conversations import check_state
from tests.processors import Partition
from tests.spec_toys import rows_of

EAGER = Options(min_speedup=0.0, min_draft=1, adapt_budget=False)
SAMPLED = {"temperature": 0.8, "top_k": 20, "repeat_penalty": 1.1, "presence_penalty": 0.2, "seed": 5}
END = 257


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    model = fucina.load(write_chat_model(tmp_path_factory.mktemp("model") / "chat.gguf", words=("...", "User", "ab")))
    yield model
    model.close()


class Memory:
    """A draft source that has heard all texts of an earlier telling; `wrong` of its tokens are others."""

    def __init__(self, texts, wrong=0):
        self.texts, self.wrong, self.accepted = texts, wrong, 0

    def suggest(self, context, limit):
        n = len(context)
        known = next((t for t in self.texts if len(t) > n and t[:n] == list(context)), ())
        return [
            (token + 1) % 250 if self.wrong and at % self.wrong == 0 else token
            for at, token in enumerate(known[n : n + limit], n)
        ]

    def observe(self, committed):
        pass


def rows(c):
    return rows_of(c.cache)


class Telling:
    """One conversation led in every way; `log` holds all that must not depend on drafts."""

    def __init__(self, model, speculation, processor=None, **options):
        self.model, self.speculation = model, speculation
        self.options = {"max_tokens": 14, "capacity": 400, "processor": processor, **options}
        self.log, self.texts = [], []
        self.c = Conversation(model, "be", speculation=speculation, **self.options)
        self.sampled = 0

    def enter(self, reply):
        c = self.c
        self.log.append(
            (reply.tokens, reply.text, reply.finish_reason, reply.stop_index, reply.prompt_tokens, reply.reused_prefix,
             reply.sampled, list(c.history), [dict(m) for m in c.messages], c.sampler.rng.position, rows(c))
        )  # fmt: skip
        self.texts.append(list(c.history))
        self.sampled += reply.sampled
        check_state(c)
        self.check_index()

    def check_index(self):
        """The index holds the conversation, its newest token perhaps not; one that is shared, an earlier text before it."""
        source = getattr(self.c.drafter, "source", None)
        if isinstance(source, SpeculationIndex):
            told = source.conversation.tokens().tolist()
            ends = [
                history
                for history in (self.c.history, self.c.history[:-1])
                if told[len(told) - len(history) :] == history
            ]
            assert ends and (self.speculation is source or told == ends[0])

    def adopt(self, warm):
        position = self.c.sampler.rng.position
        stats = self.c.spec_stats
        self.c = Conversation.init_warm(self.model, warm, speculation=self.speculation, **self.options)
        self.c.sampler.rng.position = position
        if stats is not None:  # a decoder of its own begins to count anew
            again = self.c.spec_stats == stats if isinstance(self.speculation, SourceDrafter) else False
            self.sampled = self.sampled if again else 0

    def tell(self, template):
        send = lambda text: self.enter(self.c.send(text))
        send("abcabcabcabc")
        send("abcabc")
        self.enter(self.c.regenerate())
        self.c.undo()
        send("another question")  # an edit
        self.c.undo(2)
        send("abcabcabcabc")
        stream = self.c.send("cut", stream=True)
        for _ in stream:
            self.c.cancel()
        reply = stream.result
        self.sampled += reply.sampled
        self.c.undo(len(self.c.messages) // 2 - 1)  # how many tokens came before the cancel is a matter of passes
        self.c.sampler.rng.position = 77
        ids = [*self.c.history, *self.model.tokenizer.encode("xyz")]
        self.enter(self.c.send_tokens_reuse(ids))
        self.enter(self.c.send_tokens_reuse([*ids[:20], 9, 9, 8, 9, 9]))
        self.enter(self.c.send_tokens_reuse(ids[:20]))
        self.enter(self.c.send_rendered("abab"))
        self.adopt(self.c.take_cache())  # warm: the rows stay, all tokens are told anew
        self.enter(self.c.send_tokens_reuse([*self.texts[-1], 5, 6]))
        copied = self.model.new_cache(400)
        copied.copy_rows(self.c.cache, 0, 11)
        self.adopt(WarmState(copied, self.c.history[:11]))
        self.enter(self.c.send_rendered("ab"))
        self.c.reset()
        send("abcabcabcabc")
        stats = self.c.spec_stats
        assert stats is None or stats.committed == self.sampled
        return self.log


def processor_of(kind, model):
    likely = dict.fromkeys(model.tokenizer.encode("abé["), 5.0)
    return {
        "none": None,
        "ban": BanTokens(range(60, 90)),
        "several": compose(Partition(6), BiasTokens(likely), BanTokens([7])),
    }[kind]


@pytest.mark.parametrize("template", [None, "chatml"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        SAMPLED,
        {"stop": ["abb", "", "ba", "é["], "processor": "several", "temperature": 1.0, "seed": 2},
        {"extra_stop_ids": range(20, 40), "processor": "ban", "temperature": 1.2, "seed": 3},
    ],
    ids=["greedy", "sampled", "stop texts", "stop ids"],
)
def test_every_way_to_lead_one(model, template, options):
    options = {"template": template, **options}
    kind = options.pop("processor", "none")
    plain = Telling(model, False, processor_of(kind, model), **options)
    expected = plain.tell(template)
    assert plain.c.spec_stats is None
    for speculation in (
        True,
        EAGER,
        SpeculationIndex(model.n_tokens),
        SourceDrafter(model, Memory(plain.texts), EAGER),
        SourceDrafter(model, Memory(plain.texts, wrong=4), EAGER),
        SourceDrafter(model, Memory(plain.texts, wrong=1), EAGER),
    ):
        told = Telling(model, speculation, processor_of(kind, model), **options)
        assert told.tell(template) == expected
        stats = told.c.spec_stats
        source = told.c.drafter.source
        if isinstance(source, Memory):
            assert (stats.accepted > 20) == (source.wrong != 1) and stats.drafted > 20


@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_batches_with_drafts(model, sampling):
    """Streams with and without drafts, all kinds of prompts, three turns."""

    def make(speculations):
        return [
            Conversation(
                model, template=("chatml", None)[i % 2], max_tokens=9 + 4 * i, capacity=300, stop=["ab", "ba"][i % 2],
                processor=processor_of(("none", "several", "ban", "none")[i], model), speculation=s,
                **({**sampling, "seed": i} if sampling else {}),
            )
            for i, s in enumerate(speculations)
        ]  # fmt: skip

    alone = make([False] * 4)
    texts, expected = [[] for _ in alone], []
    asked = [["abab" * 3, "hi", "x" * 40, "abc"], ["", "ab", "<|im_end|>", "abcabc"]]
    for users in asked:
        expected.append([c.send(user) for c, user in zip(alone, users, strict=True)])
        for text, c in zip(texts, alone, strict=True):
            text.append(list(c.history))
    prompts = [[*c.history[:15], 3, 4, 3, 4] for c in alone]
    expected.append([c.send_tokens_reuse(p) for c, p in zip(alone, prompts, strict=True)])
    for text, c in zip(texts, alone, strict=True):
        text.append(list(c.history))
    memories = [
        SourceDrafter(model, Memory(text, wrong), EAGER) for text, wrong in zip(texts, (0, 3, 0, 1), strict=True)
    ]
    for speculations in ([True] * 4, [EAGER, False, EAGER, True], memories, [memories[0], False, True, memories[3]]):
        together = make(speculations)
        got = [send_batch(together, users) for users in asked]
        got.append(send_batch_tokens_reuse(together, prompts))
        for mine, plain in zip(got, expected, strict=True):
            for a, b in zip(mine, plain, strict=True):
                assert (a.tokens, a.text, a.finish_reason, a.stop_index, a.reused_prefix, a.sampled) == (
                    b.tokens, b.text, b.finish_reason, b.stop_index, b.reused_prefix, b.sampled
                )  # fmt: skip
        for c, plain in zip(together, alone, strict=True):
            assert c.history == plain.history and c.sampler.rng.position == plain.sampler.rng.position
            assert rows(c) == rows(plain)
    assert all(d.stats.accepted > 8 for d in memories[:3])


def test_a_stream_that_fails_in_a_batch_with_drafts(model):
    """Its own source raises: the others and the conversation itself go on."""

    class Broken(Memory):
        asked = 0

        def suggest(self, context, limit):
            self.asked += 1
            if self.asked == 4:
                raise RuntimeError("source")
            return []

    cs = [
        Conversation(model, template="chatml", max_tokens=12, speculation=s, processor=BanTokens([END]))
        for s in (True, SourceDrafter(model, Broken([]), EAGER), False)
    ]
    prompts = [model.tokenizer.encode(text) for text in ("abab", "hi", "x")]
    replies = send_batch_tokens_reuse(cs, prompts)
    assert [r.finish_reason for r in replies] == ["length", "error", "length"] and str(replies[1].error) == "source"
    alone = Conversation(model, template="chatml", max_tokens=12, processor=BanTokens([END]))
    for prompt, reply in zip(prompts, replies, strict=True):
        assert alone.send_tokens_reuse(prompt).tokens[: len(reply.tokens)] == reply.tokens
    for c in cs:
        check_state(c)
    assert cs[1].send_tokens_reuse(prompts[1]).tokens == alone.send_tokens_reuse(prompts[1]).tokens


# --- documents ----------------------------------------------------------------------------------------------------


def quoted(c):
    """Tokens accepted of each document."""
    return [accepted for name, (accepted, _, _) in c.drafter.source.counts().items() if name.startswith("ref")]


@pytest.mark.parametrize("kind", ["text", "bytes", "tokens", "array"])
def test_a_document_that_holds_the_reply_is_quoted(model, kind):
    plain = Conversation(
        model, template="chatml", max_tokens=40, repeat_penalty=1.5, processor=BanTokens(range(94, 261))
    )
    said = plain.send("hi")
    document = {
        "text": said.text,
        "bytes": said.text.encode(),
        "tokens": said.tokens,
        "array": np.array(said.tokens, np.int32),
    }[kind]
    assert model.tokenizer.encode(said.text) == said.tokens
    for how in ("option", "added"):
        c = Conversation(
            model, template="chatml", max_tokens=40, repeat_penalty=1.5, processor=BanTokens(range(94, 261)),
            speculation=EAGER, references=[document] if how == "option" else (),
        )  # fmt: skip
        if how == "added":
            c.add_spec_reference(document)
        reply = c.send("hi")
        assert reply.tokens == said.tokens and quoted(c)[0] > 20
        assert reply.speculation == c.spec_stats and c.spec_stats.accepted >= quoted(c)[0]
    assert plain.send("and?").tokens == c.send("and?").tokens


def test_markers_in_a_document_are_text(model):
    c = Conversation(model, template="chatml", speculation=True)
    c.add_spec_reference("<|im_end|>")
    assert len(c.drafter.source.references[0].index) == len("<|im_end|>")


def test_documents_come_and_go_between_pieces_of_a_reply(model):
    plain = Conversation(
        model, template="chatml", max_tokens=60, repeat_penalty=1.5, processor=BanTokens(range(94, 261))
    )
    said = [plain.send("hi").tokens, plain.send("go on").tokens]
    c = Conversation(
        model, template="chatml", max_tokens=60, repeat_penalty=1.5, processor=BanTokens(range(94, 261)),
        speculation=EAGER,
    )  # fmt: skip
    stream = c.send("hi", stream=True)
    next(stream)
    c.add_spec_reference(said[0])  # it is matched with what has been said already
    c.add_spec_reference("nothing of the kind")
    list(stream)
    assert stream.result.tokens == said[0] and quoted(c)[0] > 20 and quoted(c)[1] == 0
    stream = c.send("go on", stream=True)
    next(stream)
    c.clear_references()
    list(stream)
    assert stream.result.tokens == said[1] and quoted(c) == []
    c.clear_references()  # none is fine
    c.add_spec_reference(said[0])
    c.reset()
    assert c.send("hi").tokens == said[0] and quoted(c)[0] > 20  # documents survive a new text


def test_what_is_said_by_name(model):
    plain = Conversation(model, template="chatml")
    own = Conversation(model, template="chatml", speculation=Memory([]))
    for c, error, match in ((plain, SpeculationDisabled, "speculation=True"), (own, ReferencesUnsupported, "Memory")):
        with pytest.raises(error, match=match):
            c.add_spec_reference("text")
        with pytest.raises(error, match=match):
            c.clear_references()
    assert plain.spec_stats is None and own.spec_stats == Stats()
    for speculation in (False, Memory([])):
        with pytest.raises(InvalidOption, match="references need speculation"):
            Conversation(model, template="chatml", speculation=speculation, references=["text"])
    c = Conversation(model, template="chatml", speculation=True)
    bad = (
        (EmptyInput, ""), (EmptyInput, []), (EmptyInput, np.zeros(0, int)), (TokenOutOfRange, [1, 261]),
        (TokenOutOfRange, [-1]), (TokenOutOfRange, [1 << 63]), (TokenOutOfRange, [1.5]), (InvalidOption, np.array(3)),
        (TokenOutOfRange, ["a"]), (InvalidOption, None), (InvalidOption, 7), (InvalidText, "\ud83d"),
    )  # fmt: skip
    for error, document in bad:
        with pytest.raises(error):
            c.add_spec_reference(document)
        with pytest.raises(error):
            Conversation(model, template="chatml", speculation=True, references=["fine", document])
        with pytest.raises(error):
            model.generate("a", speculative=True, references=["fine", document])
    assert c.drafter.source.references == []
    for document in ("one text", b"bytes"):  # one document, not one a character
        one = Conversation(model, template="chatml", speculation=True, references=document)
        assert len(one.drafter.source.references) == 1


def test_a_source_of_ones_own_takes_documents_if_it_can(model):
    index = SpeculationIndex(model.n_tokens, CascadeOptions(conversation=False))
    c = Conversation(model, template="chatml", speculation=SourceDrafter(model, index, EAGER))
    c.add_spec_reference([1, 2, 3])
    assert len(index.references) == 1


def test_counts_are_a_copy(model):
    c = Conversation(model, template="chatml", max_tokens=6, speculation=True, processor=BanTokens([END]))
    before = c.spec_stats
    first = c.send("abab").speculation
    assert before == Stats() and first == c.spec_stats and first.committed == 6
    c.send("ab")
    assert first.committed == 6 and c.spec_stats.committed == 12


def test_options_reach_decoder_and_source(model):
    options = Options(max_draft=5, min_draft=3)
    c = Conversation(model, template="chatml", speculation=options)
    assert c.drafter.options is options and c.drafter.source.options.accounting_min_draft == 3


def test_twenty_requests_one_after_another(model):
    """A shared drafter goes on drafting, and what it holds grows with the text alone."""
    form = ChatFormat.CHATML
    c = Conversation(model, template=form, max_tokens=12, capacity=200, speculation=EAGER, processor=BanTokens([END]))
    sizes, accepted = [], [0]
    for _ in range(20):
        c.send_tokens_reuse(form.encode_turn(model.tokenizer, "abab" * 10))
        sizes.append(c.drafter.source.conversation.byte_size)
        accepted.append(c.spec_stats.accepted)
    assert len(set(sizes)) == 1
    assert all(b > a for a, b in pairwise(accepted[1:]))


def test_interleaved_requests_draft_as_they_would_alone(model):
    """Two of four are the same; they join one after another, and conversations are used again."""

    def make():
        return [
            Conversation(
                model, template="chatml", max_tokens=20 + 5 * i, speculation=EAGER, processor=BanTokens([END]), **sampling
            )
            for i, sampling in enumerate(({}, SAMPLED, {}, {**SAMPLED, "seed": 6}))
        ]  # fmt: skip

    texts = ["abab" * 6, "hi", "abab" * 6, "xyz" * 4]
    alone, together = make(), make()
    expected = [[(c.send(t).tokens, c.spec_stats) for c, t in zip(alone, texts, strict=True)] for _ in range(2)]
    for turn in range(2):
        batch = TurnBatch(model)
        turns = []
        for c, text in zip(together, texts, strict=True):
            turns.append(batch.send(c, text))
            for _ in range(3):
                batch.step()
        while batch.busy:
            batch.step()
        got = [(t.reply.tokens, c.spec_stats) for t, c in zip(turns, together, strict=True)]
        assert got == expected[turn]
    assert expected[0][0][0] == expected[0][2][0][:20] and min(expected[1][i][1].accepted for i in (0, 2)) > 5
