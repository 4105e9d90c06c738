"""A long walk of conversations over pools and files: several models and tenants in one folder, compared with cold twins.

Each conversation has a twin without any store.  Some are kept in a file of their own, some are requests that bring all
their messages, some hold a slot for several turns.  Files of conversations lie in the folder of the pools too.  After
each event, messages, tokens, draws and rows are those of the twin.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

import fucina
from fucina.cache.rows import row_bytes
from fucina.chat import Conversation
from fucina.errors import ContextFull, NoSuchTurn, UnknownMessages
from tests.chat_model import write_chat_model
from tests.conversations import check_state, same_rows
from tests.toy_families import toy_model

TENANTS = ("", "one", "two")
CAPACITY = 320
OPTIONS = (
    {"template": "chatml", "max_tokens": 6},
    {"template": "chatml", "max_tokens": 7, "temperature": 1.1, "top_k": 40, "seed": 1, "stop": ["abb", "é["]},
    {"max_tokens": 5, "temperature": 0.9, "top_p": 0.9, "presence_penalty": 0.5, "seed": 2},
    {"template": "chatml", "max_tokens": 5, "speculation": True},
)
SYSTEMS = (None, "be", "be very brief, " * 5, "be very brief, " * 4 + "and kind")
REFUSED = (ContextFull, NoSuchTurn, UnknownMessages)


@dataclass
class Chat:
    """A conversation, and its twin.

    c : it, while it is open; None if the next request brings all messages.
    path : its file; None for one over a pool.
    """

    model: int
    tenant: str
    options: dict
    twin: Conversation
    path: Path | None = None
    c: Conversation | None = None


@dataclass
class Walk:
    """Pools that come and go over a folder that stays."""

    models: list
    folder: Path
    seed: int
    pools: dict = field(default_factory=dict)
    chats: list[Chat] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    files: int = 0

    def __post_init__(self):
        self.random = np.random.default_rng(self.seed)
        for model in range(len(self.models)):
            self.start(model)

    def pick(self, items):
        return items[int(self.random.integers(len(items)))]

    def count(self, name, n=1):
        self.counts[name] = self.counts.get(name, 0) + n

    def words(self):
        return "".join(self.pick("ab é<|im_end|>") for _ in range(int(self.random.integers(1, 12))))

    def start(self, model):
        state = self.models[model].new_cache(1)
        memory = self.pick([0, 60, 400, 4000]) * max(row_bytes(state.layout, state.dtype), 64)
        self.pools[model] = fucina.SlotPool(
            self.models[model], memory, self.folder, self.pick([200_000, 1_000_000, 8_000_000])
        )

    # --- events -------------------------------------------------------------------------------------------------------

    def step(self):
        acts = [self.send] * 10 + [self.begin] * 3 + [self.edit] * 3 + [self.branch] * 2 + [self.undo, self.regenerate]
        acts += [self.close] * 3 + [self.restart, self.crash, self.cancel, self.killed]
        act = self.pick(acts)
        self.count(act.__name__)
        act()

    def begin(self):
        model, tenant, options = int(self.random.integers(len(self.models))), self.pick(TENANTS), self.pick(OPTIONS)
        system = self.pick(SYSTEMS)
        twin = Conversation(self.models[model], system, capacity=CAPACITY, **options)
        chat = Chat(model, tenant, options, twin)
        if self.random.random() < 0.3:
            self.files += 1
            chat.path = self.folder / f"chat-{self.files}.fuxkv"
        self.chats.append(chat)
        if len(self.chats) > 12:
            old = self.chats.pop(int(self.random.integers(len(self.chats))))
            self.shut(old)
            if old.path is not None:
                old.path.unlink(missing_ok=True)

    def chat(self):
        if not self.chats:
            self.begin()
        return self.pick(self.chats)

    def opened(self, chat):
        """The conversation; opened again with what its store has."""
        if chat.c is None:
            twin = chat.twin
            if chat.path is not None:
                system = None if chat.path.exists() else twin.system
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    chat.c = Conversation(
                        self.models[chat.model], system, capacity=CAPACITY, save=chat.path, **chat.options
                    )
                self.count("rows restored", chat.c.restored)
            else:
                chat.c = self.pools[chat.model].conversation((), tenant=chat.tenant, capacity=CAPACITY, **chat.options)
                chat.c._story = twin._story
                chat.c.sampler.restore(twin.sampler.state())
        return chat.c

    def both(self, chat, event):
        results = []
        for c in (self.opened(chat), chat.twin):
            try:
                results.append(event(c))
            except REFUSED as error:
                results.append(type(error))
        told = [(r.tokens, r.text, r.prompt_tokens, r.finish_reason) if hasattr(r, "tokens") else r for r in results]
        assert told[0] == told[1]
        self.count("tokens cached", getattr(results[0], "cached_tokens", 0))
        self.compare(chat)

    def compare(self, chat):
        c, twin = chat.c, chat.twin
        assert (c.history, c.messages, c.system) == (twin.history, twin.messages, twin.system)
        assert c.sampler.state() == twin.sampler.state()
        if self.random.random() < 0.2:
            check_state(c, complete=False)
        elif c.cache.len == twin.cache.len:
            same_rows(c.cache, twin.cache)

    def send(self):
        chat, text = self.chat(), self.words()
        self.both(chat, lambda c: c.send(text))
        if self.random.random() < 0.3:
            self.shut(chat)

    def cancel(self):
        """A reply that is ended after some of its pieces."""
        chat, text, pieces = self.chat(), self.words(), int(self.random.integers(4))
        if "speculation" in chat.options:
            return

        def event(c):
            stream = c.send(text, stream=True)
            for _ in zip(range(pieces), stream, strict=False):
                pass
            stream.close()
            return stream.result

        self.both(chat, event)

    def edit(self):
        """All messages again, one of them another."""
        chat = self.chat()
        messages = [dict(m) for m in chat.twin.messages]
        users = [i for i, m in enumerate(messages) if m["role"] == "user"]
        if users:
            at = self.pick(users)
            messages = [*messages[:at], {"role": "user", "content": self.words()}]
            self.both(chat, lambda c: c.send_messages_reuse(messages))

    def branch(self):
        """Another conversation that begins with messages of this one."""
        chat = self.chat()
        if chat.path is None and chat.twin.messages:
            twin = Conversation(self.models[chat.model], capacity=CAPACITY, **chat.options)
            twin._story = chat.twin._story
            self.chats.append(other := Chat(chat.model, self.pick(TENANTS), chat.options, twin))
            text = self.words()
            self.both(other, lambda c: c.send(text))

    def undo(self):
        turns = int(self.random.integers(3))
        self.both(self.chat(), lambda c: c.undo(turns))

    def regenerate(self):
        self.both(self.chat(), lambda c: c.regenerate())

    # --- what happens to stores ---------------------------------------------------------------------------------------

    def shut(self, chat):
        if chat.c is not None:
            chat.c.close()
            chat.c = None

    def close(self):
        self.shut(self.chat())

    def stop(self, closed):
        """Everything of one model ends; in a crash, nothing is given back and no file is closed in order."""
        model = int(self.random.integers(len(self.models)))
        stats = self.pools[model].stats()
        for name in ("rows_reused", "restores", "evictions", "spills"):
            self.count(name, getattr(stats, name))
        for chat in self.chats:
            if chat.model == model and chat.c is not None:
                if not closed and chat.path is not None:
                    data = chat.path.read_bytes()  # what a killed process would leave
                    chat.c.close()
                    chat.path.write_bytes(data)
                elif closed:
                    chat.c.close()
                chat.c = None
        if closed:
            self.pools[model].close()
        return model

    def restart(self):
        self.start(self.stop(True))

    def crash(self):
        self.start(self.stop(False))

    def killed(self):
        """The file of a pool is left as in the middle of a write, or is gone."""
        found = sorted(self.folder.glob("kv-slot-*.fuxkv"))
        if found:
            path = self.pick(found)
            if self.random.random() < 0.3:
                path.unlink()
            else:
                os.truncate(path, int(self.random.integers(path.stat().st_size + 1)))


def walk(models, folder, seed, steps):
    at = Walk(models, folder, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of torn files
        for _ in range(steps):
            at.step()
        for chat in at.chats:
            at.shut(chat)
        for pool in at.pools.values():
            pool.close()
            assert pool.stats().in_use == 0
    return at


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    found = [fucina.load(write_chat_model(path / "chat.gguf"))]
    found += [toy_model(kind) for kind in ("ring", "recurrent", "latent")]
    yield found
    for model in found:
        model.close()


@pytest.mark.parametrize("seed", range(2))
def test_warm_conversations_are_cold_conversations(models, tmp_path, seed):
    counts = walk(models, tmp_path, seed, 300).counts
    assert min(counts["tokens cached"], counts["rows_reused"], counts["rows restored"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_warm_conversations_are_cold_conversations_for_20000_steps(models, tmp_path, seed):
    counts = walk(models, tmp_path, seed, 2000).counts
    print(counts)
    assert counts["rows_reused"] > 1000
    assert (
        min(counts[name] for name in ("restores", "evictions", "spills", "crash", "restart", "killed", "branch")) > 10
    )
