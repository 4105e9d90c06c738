"""The slot pool under real engines: replies, draws and K/V bytes of warm requests are those of cold ones."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import fucina
from fucina.cache.pool import SlotPool
from fucina.chat import Conversation, Reply, WarmState
from tests.chat_model import write_chat_model
from tests.conversations import same_rows
from tests.models import need_gemma3, need_smollm2
from tests.toy_families import toy_model

SAMPLED = {"temperature": 0.9, "top_p": 0.95, "seed": 5}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The tiny llama with a chat template."""
    model = fucina.load(write_chat_model(tmp_path_factory.mktemp("model") / "chat.gguf"))
    yield model
    model.close()


@pytest.fixture(scope="module", params=["recurrent", "latent", "ring", "qwen3 in q8_0", "qwen35 in q8_0"])
def toy(request):
    """A toy of each kind of state, and two whose keys and values lie in blocks."""
    kind, _, dtype = request.param.partition(" in ")
    model = toy_model(kind, cache_dtype=dtype or None)
    yield model
    model.close()


def words(random: np.random.Generator, model, n: int) -> list[int]:
    return [int(t) for t in random.integers(3, min(model.n_tokens, 250), n)]


def cold(model, ids: list[int], max_tokens: int = 6, **options) -> tuple[Reply, Conversation]:
    """What a new conversation replies."""
    c = Conversation(model, template="chatml", max_tokens=max_tokens, capacity=512, **options)
    return c.send_tokens_reuse(ids), c


def warm(pool: SlotPool, ids: list[int], max_tokens: int = 6, tenant: str = "", system: int = 0, **options) -> tuple:
    """What a conversation on a slot replies, compared with a cold one; (tokens cached, all tokens).

    system : the state is stored when so many tokens are computed, unless they were cached.
    """
    model = pool.model
    with pool.acquire(ids, tenant=tenant, capacity=512) as slot:
        state, cached = slot.state, slot.cached
        if cached < system:
            model.forward_rows([(state, ids[cached:system], "none")])
            slot.store(ids[:system])
        known = WarmState(state, ids[: state.len], slot.prefix_rows)
        c = Conversation.init_warm(model, known, template="chatml", max_tokens=max_tokens, **options)
        reply = c.send_tokens_reuse(ids)
        assert c.cache is state, "no copy but the one from the tree"
        assert reply.reused_prefix == min(max(cached, system), len(ids) - 1)
        right, other = cold(model, ids, max_tokens, **options)
        assert reply.tokens == right.tokens
        assert c.sampler.rng.position == other.sampler.rng.position
        same_rows(state, other.cache)
        slot.release(c.history)
    return cached, c.history


def talk(model, folder, turns: int, seed: int, most: int = 300) -> list[int]:
    """Conversations of three tenants: sends, edits, branches, restarts, a small memory; what was cached each time."""
    random = np.random.default_rng(seed)
    system = words(random, model, 70)
    rows = 70 * 3 * model.new_cache(1).byte_size() // 64
    chats = [list(system) for _ in range(4)]
    found = []
    pool = SlotPool(model, memory=max(rows, 30_000), disk=folder)
    for turn in range(turns):
        i = int(random.integers(len(chats)))
        ids = [*chats[i], *words(random, model, int(random.integers(1, 30)))]
        if random.random() < 0.2:
            ids[int(random.integers(len(ids)))] = 7
        options = [{}, SAMPLED, {"speculation": True}][int(random.integers(3))]
        cached, chats[i] = warm(pool, ids[:most], tenant="ab"[i % 2], system=70 * (turn % 3 == 0), **options)
        found.append(cached)
        if len(chats[i]) > most - 40 or random.random() < 0.1:
            chats[i] = chats[int(random.integers(4))][: int(random.integers(71, 100))]
        if random.random() < 0.15:
            if random.random() < 0.7:
                pool.close()
            pool = SlotPool(model, memory=max(rows, 30_000), disk=folder)
    return found


def test_warm_replies_are_cold_replies(model, tmp_path):
    assert sum(found > 0 for found in talk(model, tmp_path, 40, seed=1)) > 20


def test_warm_replies_of_windows_latents_and_recurrent_parts(toy, tmp_path):
    assert sum(found > 0 for found in talk(toy, tmp_path, 25, seed=2)) > 8


@pytest.mark.parametrize("length", [63, 64, 65, 127, 128, 129])
def test_block_borders(model, length):
    """CASES E16: restored blocks at a border, one position before it and one after."""
    pool, random = SlotPool(model), np.random.default_rng(length)
    prefix = words(random, model, length)
    warm(pool, prefix)
    for _ in range(2):
        assert warm(pool, [*prefix, *words(random, model, 5)])[0] == length
        assert warm(pool, prefix)[0] == length - 1


def test_a_reply_made_again(model):
    """CASES E2: the prompt is a prefix of what the pool holds."""
    pool, random = SlotPool(model), np.random.default_rng(2)
    prompt = words(random, model, 40)
    warm(pool, prompt, max_tokens=50)
    for _ in range(3):
        assert warm(pool, prompt, max_tokens=50)[0] == 39


def test_after_a_restart_all_rows_but_the_last_are_there(model, tmp_path):
    """CASES E10."""
    random = np.random.default_rng(10)
    with SlotPool(model, disk=tmp_path) as pool:
        _, text = warm(pool, words(random, model, 80))
    pool = SlotPool(model, disk=tmp_path)
    assert warm(pool, text)[0] == len(text) - 1
    assert pool.stats().restores == 1


def test_cancelled_and_asked_again(model):
    """CASES E4: fifty times, the same text."""
    pool, random = SlotPool(model), np.random.default_rng(4)
    prompt = words(random, model, 30)
    right, _ = cold(model, prompt)
    for i in range(50):
        with pool.acquire(prompt, capacity=128) as slot:
            c = Conversation.init_warm(model, WarmState(slot.state, slot.tokens), template="chatml", max_tokens=6)
            stream = c.send_tokens_reuse(prompt, stream=True)
            for _ in range(i % 4):
                next(stream, None)
            c.cancel()
            if i % 2:
                c.undo(0)  # ends the turn
                slot.release(c.history)
    assert pool.stats().in_use == 0
    with pool.acquire(prompt, capacity=128) as slot:
        c = Conversation.init_warm(model, WarmState(slot.state, slot.tokens), template="chatml", max_tokens=6)
        assert c.send_tokens_reuse(prompt).tokens == right.tokens


def test_no_clients_text_appears_in_anothers_answer(model):
    """CASES E6: 16 clients at once, memory for two, each prompt with a marker of its own."""
    random = np.random.default_rng(6)
    shared = words(random, model, 40)
    prompts = [[*shared, 100 + i, *words(random, model, 20)] for i in range(16)]
    right = [cold(model, prompt)[0].tokens for prompt in prompts]
    pool = SlotPool(model)
    warm(pool, prompts[0])
    pool._rows.clear()
    pool._rows.budget = 2 * (4096 + 70 * (4 + pool._rows._width))
    wrong: list = []

    def client(i: int) -> None:
        try:
            for _ in range(4):
                with pool.acquire(prompts[i], tenant="ab"[i % 2], capacity=128) as slot:
                    known = WarmState(slot.state, slot.tokens)
                    c = Conversation.init_warm(model, known, template="chatml", max_tokens=6)
                    reply = c.send_tokens_reuse(prompts[i])
                    if reply.tokens != right[i]:
                        wrong.append(i)
                    slot.release(c.history)
        except BaseException as error:
            wrong.append(error)

    clients = [threading.Thread(target=client, args=(i,)) for i in range(16)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    assert wrong == []
    stats = pool.stats()
    assert stats.evictions > 0
    assert stats.hits > 0


def test_a_stream_whose_slot_was_given_back_ends(model):
    """Its rows are the pool's: the stream must not go on writing over them."""
    pool = SlotPool(model)
    slot = pool.acquire([1, 2, 3], capacity=128)
    c = Conversation.init_warm(model, WarmState(slot.state, slot.tokens), template="chatml", max_tokens=20)
    stream = c.send_tokens_reuse([1, 2, 3, 4], stream=True)
    next(stream)
    slot.release([1, 2, 3, 4])
    with pytest.raises(fucina.errors.SharedStream):
        list(stream)


@pytest.mark.slow
@pytest.mark.parametrize("need", [need_smollm2, need_gemma3])
def test_real_models(need, tmp_path):
    real = fucina.load(need())
    try:
        assert sum(found > 0 for found in talk(real, tmp_path, 40, seed=3)) > 20
    finally:
        real.close()
