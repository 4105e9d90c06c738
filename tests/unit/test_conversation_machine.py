"""Exactness: whatever is done to conversations, in whatever order, every reply is a fresh engine's.

A state machine sends, edits, makes replies again, cancels, batches, takes back, lets caches be adopted and copied, and
lets passes and samplers fail, in conversations that decode plainly and in such that draft.  After each step every
conversation is compared with an oracle: a loop of a few lines over a fresh cache.  Tokens, texts, draws and the bits of
every row must agree.

FUCINA_MACHINE_STEPS=50000 runs longer; FUCINA_MACHINE_MODEL=smollm2 takes a real model.
"""

import os
import threading
from contextlib import nullcontext

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import fucina
from fucina.chat import ChatFormat, ChatTemplate, Conversation, WarmState, send_batch, send_batch_tokens_reuse
from fucina.engine import common_prefix
from fucina.errors import ContextFull, NoSuchTurn, ReferencesUnsupported, SpeculationDisabled, UnknownMessages
from fucina.sampling import BanTokens, BiasTokens, Sampler, SamplerOptions, compose, reset_processor
from fucina.speculative import Options, SourceDrafter
from tests.chat_model import write_chat_model
from tests.conversations import check_state
from tests.models import need_smollm2
from tests.processors import Partition

STEPS = int(os.environ.get("FUCINA_MACHINE_STEPS", "2000"))
STEPS_A_RUN = 50
CAPACITY = 150
FORM = ChatFormat.CHATML


class Fuse:
    """A processor that passes everything on, and fails at a call that a test chooses."""

    def __init__(self, inner=None):
        self.inner, self.left = inner, 0

    def process(self, logits, history):
        self.left -= 1
        if self.left == 0:
            raise RuntimeError("fuse")
        if self.inner is not None:
            self.inner.process(logits, history)

    def commit(self, token):
        if self.inner is not None:
            self.inner.commit(token)

    def reset(self):
        reset_processor(self.inner)


KINDS = [
    {"template": "chatml", "max_tokens": 6},
    {
        "template": "chatml",
        "max_tokens": 9,
        "temperature": 1.1,
        "top_k": 40,
        "repeat_penalty": 1.1,
        "seed": 1,
        "stop": ["abb", "", "baa", "bé", "é["],
    },
    {"max_tokens": 5, "temperature": 0.9, "top_p": 0.9, "presence_penalty": 0.5, "seed": 2},
    {"template": "chatml", "max_tokens": 12, "temperature": 0.6, "min_p": 0.02, "seed": 3},
]


# how a conversation drafts: not at all, by default, whatever it can, what the oracle said with a mistake now and then
MODES = ("plain", "default", "eager", "knowing")
EAGER = Options(min_speedup=0.0, min_draft=1, adapt_budget=False)


class Knowing:
    """A draft source that has heard the oracle."""

    def __init__(self):
        self.text = []

    def suggest(self, context, limit):
        n = len(context)
        if self.text[:n] != list(context):
            return []
        draft = enumerate(self.text[n : n + limit], n)
        return [token if at % 5 else (token + 1) % 258 for at, token in draft]

    def observe(self, committed):
        pass


def processor_of(kind, model):
    likely = dict.fromkeys(model.tokenizer.encode("abé["), 6.0)  # so that stop texts happen, and almost happen
    return (None, BiasTokens(likely), BanTokens(range(60, 90)), compose(Partition(6), BanTokens([7])))[kind]


class Oracle:
    """One conversation told again, plainly."""

    def __init__(self, model, kind):
        self.model, self.options, self.processor = model, KINDS[kind], processor_of(kind, model)
        sampling = {k: v for k, v in self.options.items() if k in SamplerOptions.__dataclass_fields__}
        self.sampling = SamplerOptions(**sampling)
        self.history, self.messages, self.position = [], [], 0
        self.marks = []  # history and messages before each turn
        self.told = True
        self.whole = True  # False if a turn that left nothing may have taken rows out of the cache
        self.knowing = Knowing()

    def prompt(self, text):
        """The whole prompt of a turn of `send`."""
        user = {"role": "user", "content": text}
        if "template" in self.options:
            return self.history + FORM.encode_turn(self.model.tokenizer, text, first=not self.history)
        return ChatTemplate.of(self.model).encode(self.model.tokenizer, [*self.messages, user])

    def answer(self, ids):
        """(tokens, text, reason, draws): of a fresh cache, one token at a time."""
        model, stops = self.model, [s for s in self.options.get("stop", ()) if s]
        sampler = Sampler(self.sampling, self.processor)
        sampler.rng.position = self.position
        reset_processor(self.processor)
        cache, tokens, reason, cut = model.new_cache(len(ids) + self.options["max_tokens"]), [], "length", None
        self.knowing.text = list(ids)
        logits = model.forward_rows([(cache, ids, "last")])[0]
        while len(tokens) < self.options["max_tokens"] and len(ids) + len(tokens) < CAPACITY:
            token = sampler.next(logits, ids + tokens)
            self.knowing.text.append(token)
            if token in model.tokenizer.eog_ids:
                reason = "stop"
                break
            stream = model.tokenizer.stream()
            text = "".join(map(stream.push, [*tokens, token]))
            cut = min(((text.find(s) + len(s), text.find(s)) for s in stops if s in text), default=None)
            if cut is not None:
                reason = "stop"
                break
            tokens.append(token)
            logits = model.forward_rows([(cache, [token], "last")])[0]
        text = text[: cut[1]] if cut else model.tokenizer.decode(tokens, special=False)
        return tokens, text, reason, sampler.rng.position - self.position

    def enter(self, ids, tokens, user=None, text=None, before=None, clear=False):
        """A turn has become part of the conversation."""
        self.whole = True
        self.marks = [] if clear else self.marks
        self.marks.append(before or (list(self.history), list(self.messages)))
        self.history = ids + tokens
        if user is None:
            self.told = False
        else:
            self.messages = [*self.messages, {"role": "user", "content": user}, {"role": "assistant", "content": text}]


TEXTS = st.text(st.sampled_from("ab<|im_end>é "), max_size=8)
WHO = st.integers(0, len(KINDS) - 1)
MODE = st.sampled_from(MODES)


class ConversationMachine(RuleBasedStateMachine):
    """The rules; `model` is set by the test."""

    model = None
    steps = 0

    def __init__(self):
        super().__init__()
        self.oracles = [Oracle(self.model, kind) for kind in range(len(KINDS))]
        self.modes = ["plain"] * len(KINDS)
        self.conversations = [self.make(kind) for kind in range(len(KINDS))]

    @initialize(modes=st.tuples(*[MODE] * len(KINDS)))
    def begin(self, modes):
        self.conversations = [self.make(kind, mode=mode) for kind, mode in enumerate(modes)]

    def make(self, kind, warm=None, mode="plain"):
        self.modes[kind] = mode
        drafts = {
            "plain": False,
            "default": True,
            "eager": EAGER,
            "knowing": SourceDrafter(self.model, self.oracles[kind].knowing, EAGER),
        }
        processor = Fuse(processor_of(kind, self.model))
        options = {**KINDS[kind], "processor": processor, "speculation": drafts[mode]}
        if warm is None:
            return Conversation(self.model, capacity=CAPACITY, **options)
        c = Conversation.init_warm(self.model, warm, **options)
        c.sampler.rng.position = self.oracles[kind].position
        return c

    # --- helpers ----------------------------------------------------------------------------------------------------

    def refused(self, ids):
        """Whether a turn with this prompt leaves no room for a reply, which is then checked by the caller."""
        return len(ids) >= CAPACITY

    def agree(self, who, reply, expected):
        tokens, text, reason, draws = expected
        assert (reply.tokens, reply.text, reply.finish_reason) == (tokens, text, reason)
        self.oracles[who].position += draws

    def cut_short(self, who, reply, expected):
        """A reply that was broken off: a beginning of what it would have been."""
        n = len(reply.tokens)
        assert reply.tokens == expected[0][:n]
        if reply.finish_reason in ("cancelled", "error"):
            self.oracles[who].position += n if not self.oracles[who].sampling.greedy else 0
            assert self.conversations[who].sampler.rng.position == self.oracles[who].position
        else:
            self.agree(who, reply, expected)
        left = n > 0 or reply.finish_reason not in ("cancelled", "error")
        self.oracles[who].whole = left
        return left

    def can_send(self, who):
        o, c = self.oracles[who], self.conversations[who]
        if "template" not in o.options and not o.told:
            with pytest.raises(UnknownMessages):
                c.send("x")
            return False
        return True

    # --- rules ------------------------------------------------------------------------------------------------------

    @rule(who=WHO, text=TEXTS, streamed=st.booleans())
    def send(self, who, text, streamed):
        o, c = self.oracles[who], self.conversations[who]
        if not self.can_send(who):
            return
        ids = o.prompt(text)
        if self.refused(ids):
            with pytest.raises(ContextFull):
                c.send(text)
            return
        expected = o.answer(ids)
        if streamed:
            stream = c.send(text, stream=True)
            assert "".join(stream) == expected[1]
            reply = stream.result
        else:
            reply = c.send(text)
        self.agree(who, reply, expected)
        o.enter(ids, reply.tokens, text, reply.text)

    @rule(who=WHO, back=st.integers(0, 3), text=TEXTS)
    def edit(self, who, back, text):
        """Another message in the place of an earlier one."""
        self.take_back(who, back)
        self.send(who, text, False)

    @rule(who=WHO, back=st.integers(0, 3))
    def take_back(self, who, back):
        o, c = self.oracles[who], self.conversations[who]
        if back > len(o.marks):
            with pytest.raises(NoSuchTurn):
                c.undo(back)
            return
        c.undo(back)
        if back:
            o.history, o.messages = o.marks[-back]
            del o.marks[-back:]
        if not c.history:
            o.told, o.messages = True, []

    @rule(who=WHO, left=st.booleans())
    def regenerate(self, who, left):
        """The latest reply again; left unread, the earlier one stays."""
        o, c = self.oracles[who], self.conversations[who]
        if not o.marks:
            with pytest.raises(NoSuchTurn):
                c.regenerate()
            return
        if left:
            c.regenerate(stream=True).close()
            o.whole = False
            return
        before = (history, messages) = o.marks[-1]
        user = o.messages[len(messages)]["content"] if len(o.messages) > len(messages) else None
        prompt_end, whole = c._story.turns[-1].prompt_end, o.whole
        if user is not None and "template" not in o.options:
            o.messages = list(messages)
            ids = o.prompt(user)
        else:
            ids = o.history[:prompt_end]
        del o.marks[-1]
        o.history, o.messages = list(history), list(messages)
        expected = o.answer(ids)
        reply = c.regenerate()
        self.agree(who, reply, expected)
        assert reply.reused_prefix >= len(ids) - 1 or "template" not in o.options or not whole
        o.enter(ids, reply.tokens, user, reply.text, before)

    @rule(who=WHO, text=TEXTS, pieces=st.integers(0, 4), how=st.sampled_from(["cancel", "close", "thread"]))
    def cancel(self, who, text, pieces, how):
        o, c = self.oracles[who], self.conversations[who]
        if not self.can_send(who):
            return
        ids = o.prompt(text)
        if self.refused(ids):
            return
        expected = o.answer(ids)
        stream, said = c.send(text, stream=True), []
        for _, piece in zip(range(pieces), stream, strict=False):
            said.append(piece)
        if how == "close":
            stream.close()
        else:
            thread = threading.Thread(target=stream.cancel if how == "cancel" else c.cancel)
            thread.start()
            thread.join()
            said += list(stream)
            assert "".join(said) == stream.result.text
        if self.cut_short(who, stream.result, expected):
            o.enter(ids, stream.result.tokens, text, stream.result.text)

    @rule(who=WHO, text=TEXTS, at=st.integers(1, 6), where=st.sampled_from(["sampler", "pass"]))
    def fail(self, who, text, at, where):
        o, c = self.oracles[who], self.conversations[who]
        if not self.can_send(who):
            return
        ids = o.prompt(text)
        if self.refused(ids):
            return
        expected = o.answer(ids)
        forward, left = type(self.model).forward_rows.__get__(self.model), [at]

        def broken(requests):
            left[0] -= 1
            if left[0] == 0:
                raise RuntimeError("pass")
            return forward(requests)

        stream = c.send(text, stream=True)
        try:
            if where == "pass":
                self.model.forward_rows = broken
            else:
                c.sampler.processor.left = at
            list(stream)
        except RuntimeError as error:
            assert str(error) in ("pass", "fuse")
            assert stream.result.finish_reason == "error"
        finally:
            vars(self.model).pop("forward_rows", None)
            c.sampler.processor.left = 0
        if self.cut_short(who, stream.result, expected):
            o.enter(ids, stream.result.tokens, text, stream.result.text)

    @rule(who=WHO, keep=st.integers(0, CAPACITY), more=st.lists(st.integers(0, 255), max_size=20))
    def reuse(self, who, keep, more):
        """A prompt that shares its beginning with what is there."""
        o, c = self.oracles[who], self.conversations[who]
        ids = (o.history[:keep] + more) or [3]
        rows = c.cache.len
        if self.refused(ids):
            with pytest.raises(ContextFull):
                c.send_tokens_reuse(ids)
            return
        expected = o.answer(ids)
        reply = c.send_tokens_reuse(ids)
        self.agree(who, reply, expected)
        if "template" in o.options:
            assert reply.reused_prefix >= min(keep, rows, len(ids) - 1, len(o.history))
        self.enter_reuse(who, ids, reply, c)

    def enter_reuse(self, who, ids, reply, c):
        o = self.oracles[who]
        kept = ids[: common_prefix(o.history, ids[:-1])]
        o.messages = []
        o.enter(ids, reply.tokens, before=(kept, []), clear=True)

    @rule(who=WHO, text=TEXTS.filter(bool))
    def rendered(self, who, text):
        o, c = self.oracles[who], self.conversations[who]
        more = self.model.tokenizer.encode(text)
        ids = list(c.history) + more
        if self.refused(ids):
            return
        expected = o.answer(ids)
        reply = c.send_rendered(text)
        self.agree(who, reply, expected)
        o.history = ids[: len(ids) - len(more)]
        o.enter(ids, reply.tokens)

    @rule(members=st.lists(st.tuples(WHO, TEXTS), min_size=1, max_size=4, unique_by=lambda m: m[0]))
    def batch(self, members):
        members = [(who, text) for who, text in members if self.can_send(who)]
        prompts = [self.oracles[who].prompt(text) for who, text in members]
        if not members:
            return
        if any(map(self.refused, prompts)):
            with pytest.raises(ContextFull):
                send_batch([self.conversations[who] for who, _ in members], [text for _, text in members])
            for who, _ in members:  # those before the refused one had begun
                self.oracles[who].whole = False
            return
        expected = [self.oracles[who].answer(ids) for (who, _), ids in zip(members, prompts, strict=True)]
        replies = send_batch([self.conversations[who] for who, _ in members], [text for _, text in members])
        for (who, text), ids, reply, wanted in zip(members, prompts, replies, expected, strict=True):
            self.agree(who, reply, wanted)
            self.oracles[who].enter(ids, reply.tokens, text, reply.text)

    @rule(
        members=st.lists(
            st.tuples(WHO, st.integers(0, CAPACITY), st.lists(st.integers(0, 255), max_size=20), st.integers(0, 5)),
            min_size=1, max_size=4, unique_by=lambda m: m[0],
        )
    )  # fmt: skip
    def batch_reuse(self, members):
        """Prompts of all kinds together; some samplers fail, some prompts do not fit."""
        cs = [self.conversations[m[0]] for m in members]
        prompts = [self.oracles[who].history[:keep] + more for who, keep, more, _ in members]
        expected = [
            self.oracles[m[0]].answer(ids) if ids and not self.refused(ids) else None
            for m, ids in zip(members, prompts, strict=True)
        ]
        for c, (_, _, _, fuse) in zip(cs, members, strict=True):
            c.sampler.processor.left = fuse
        replies = send_batch_tokens_reuse(cs, prompts)
        for (who, _, _, fuse), c, ids, reply, wanted in zip(members, cs, prompts, replies, expected, strict=True):
            c.sampler.processor.left = 0
            if wanted is None:
                assert reply.finish_reason == "error" and reply.tokens == []
                continue
            assert reply.error is None or (fuse and str(reply.error) == "fuse")
            if self.cut_short(who, reply, wanted):
                self.enter_reuse(who, ids, reply, c)

    @rule(who=WHO, mode=MODE)
    def adopt(self, who, mode):
        """The cache goes to another conversation, as between requests to a server."""
        o = self.oracles[who]
        self.conversations[who] = self.make(who, self.conversations[who].take_cache(), mode)
        self.adopted(o, self.conversations[who])

    @rule(giver=WHO, taker=WHO, rows=st.integers(0, CAPACITY), mode=MODE)
    def copy(self, giver, taker, rows, mode):
        """Rows that another conversation has computed."""
        source = self.conversations[giver]
        rows = min(rows, source.cache.len)
        cache = self.model.new_cache(CAPACITY)
        cache.copy_rows(source.cache, 0, rows)
        self.conversations[taker] = self.make(taker, WarmState(cache, source.history[:rows]), mode)
        self.adopted(self.oracles[taker], self.conversations[taker])

    def adopted(self, o, c):
        o.history, o.messages, o.marks = list(c.history), [], []
        o.told, o.whole = not c.history, True

    @rule(
        who=WHO,
        document=st.lists(st.integers(0, 257), min_size=1, max_size=30),
        own=st.booleans(),
        clear=st.booleans(),
    )
    def quote(self, who, document, own, clear):
        """A document to draft from comes or goes: only where drafts are looked up, and no reply shows it."""
        c = self.conversations[who]
        error = {"plain": SpeculationDisabled, "knowing": ReferencesUnsupported}.get(self.modes[who])
        document = list(self.conversations[who - 1].history) or document if own else document
        with pytest.raises(error) if error else nullcontext():
            if clear:
                c.clear_references()
            else:
                c.add_spec_reference(document)
        assert (c.spec_stats is None) == (self.modes[who] == "plain")

    @rule(who=WHO)
    def reset(self, who):
        o, c = self.oracles[who], self.conversations[who]
        c.reset()
        o.history, o.messages, o.marks, o.told, o.whole = [], [], [], True, True

    # --- after every step -------------------------------------------------------------------------------------------

    @invariant()
    def everything_agrees(self):
        type(self).steps += 1
        for o, c in zip(self.oracles, self.conversations, strict=True):
            check_state(c, complete=o.whole)
            assert c.sampler.rng.position == o.position and c.messages == o.messages
            if "template" in o.options:
                assert c.history == o.history
            else:
                o.history = list(c.history)


def run_machine(model, steps, steps_a_run):
    machine = type("Machine", (ConversationMachine,), {"model": model})
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    while machine.steps < steps:
        runs = -(-(steps - machine.steps) // steps_a_run)
        options = settings(
            max_examples=runs, stateful_step_count=steps_a_run, deadline=None, suppress_health_check=checks
        )
        run_state_machine_as_test(machine, settings=options)
    print(f"{machine.steps} steps")


def test_any_order_of_events(tmp_path):
    name = os.environ.get("FUCINA_MACHINE_MODEL")
    model = fucina.load(name or write_chat_model(tmp_path / "chat.gguf"))
    run_machine(model, STEPS, STEPS_A_RUN)
    model.close()


def test_any_order_of_events_on_a_real_model():
    """A few steps; FUCINA_MACHINE_MODEL=smollm2 makes them all."""
    model = fucina.load(need_smollm2())
    run_machine(model, 40, 20)
    model.close()
