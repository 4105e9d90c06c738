"""What the slot pool costs: look-ups, bytes, copies.  Counted, not timed."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest

from fucina.cache import Kv
from fucina.cache.pool import SlotPool
from tests.pool_kit import VOCAB, ToyModel, check, serve, take
from tests.state_models import KINDS, extend

RANDOM = np.random.default_rng(31)
WIDE = ToyModel((Kv(4, 64, 64),) * 4, context=2000)  # 8 KiB per position


def text(n: int) -> list[int]:
    return [int(t) for t in RANDOM.integers(0, VOCAB, n)]


def visits(pool: SlotPool, ids: list[int], **options) -> int:
    """Nodes that a look-up compares with."""
    before = pool.stats().visits
    pool.acquire(ids, **options).discard()
    return pool.stats().visits - before


@pytest.mark.parametrize("length", [1, 64, 300])
def test_a_look_up_costs_the_length_of_the_match_not_the_number_of_entries(length):
    """10,000 entries: as many nodes as among 10, whether they share the beginning or not."""
    pool, wanted = SlotPool(ToyModel(KINDS["full"])), text(length)
    state = pool.model.new_cache()
    extend(state, wanted)
    pool.store(state, wanted)
    counts = []
    for entries in (10, 10_000):
        state = pool.model.new_cache(8)
        while len(pool._rows) < entries:
            state.reset()
            other = [*(wanted[:1] if RANDOM.random() < 0.5 else text(1)), *text(3)]
            extend(state, other)
            pool.store(state, other)
        counts.append(visits(pool, [*wanted, 1]))
    few, many = counts
    assert many <= few + 3, "others have split the first node, no more"
    assert many <= 4 + length // 64
    assert take(pool, [*wanted, 1]).cached == length
    check(pool)


def test_nothing_that_one_tenant_sees_depends_on_what_another_has(tmp_path):
    """Hits and the nodes compared are the same, whatever the others store; only the common budget is shared."""
    requests = [text(n) for n in (40, 80, 120)] + [[1, 2, 3, *text(30)]]
    requests += [[*ids, *text(9)] for ids in requests] * 2
    seen = []
    for others in (0, 30):
        pool = SlotPool(ToyModel())
        found = []
        for ids in requests:
            for i in range(others):
                serve(pool, [*ids, i], tenant="other")
            before = pool.stats().visits
            cached = serve(pool, ids, tenant="mine")
            found.append((cached, pool.stats().visits - before))
        seen.append(found)
    assert seen[0] == seen[1]
    assert any(cached for cached, _ in seen[0])


def own(pool: SlotPool) -> int:
    """Bytes of all arrays in the trees, each counted once."""
    arrays: dict[int, int] = {}
    for tree in pool._rows._trees.values():
        todo = [tree.root]
        while todo:
            node = todo.pop()
            todo += node.children.values()
            for array in (node.rows, node.bank):
                if array is not None:
                    assert array.base is None
                    arrays[array.ctypes.data] = array.nbytes
    return sum(arrays.values())


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "found"])
def test_eight_conversations_over_one_system_prompt_take_one_cache_of_it(stored):
    """At most 1.25 times the rows of the prompt, besides each conversation's own turns; by three counts."""
    system = text(1000)
    one = 1000 * 8192
    turns = 20  # positions of each conversation after the prompt
    gc.collect()
    tracemalloc.start()
    try:
        start, _ = tracemalloc.get_traced_memory()
        pool = SlotPool(WIDE)
        if stored:
            state = WIDE.new_cache(1000)
            extend(state, system)
            pool.store(state, system)
            del state
        for i in range(8):
            cached = serve(pool, [*system, *text(turns)])
            assert cached == (1000 if stored or i else 0)
        gc.collect()
        traced, _ = tracemalloc.get_traced_memory()
        stats = pool.stats()
        mine = 8 * turns * 8192
        assert own(pool) == one + mine
        assert stats.bytes - mine <= 1.25 * one
        assert traced - start - mine <= 1.25 * one
        assert stats.bytes - mine <= 1.01 * one
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("parts", [KINDS["full"], KINDS["all"], KINDS["recurrent"], (Kv(4, 64, 64),) * 4])
def test_bytes_are_what_is_really_allocated(parts):
    """Never less than `tracemalloc` finds; at rows of a usual size, no more than 5 % above."""
    gc.collect()
    tracemalloc.start()
    try:
        start, _ = tracemalloc.get_traced_memory()
        pool = SlotPool(ToyModel(parts))
        empty, _ = tracemalloc.get_traced_memory()
        chats = [text(20) for _ in range(10)]
        for _ in range(6):
            for i, chat in enumerate(chats):
                serve(pool, chat)
                chats[i] = [*chat[: int(RANDOM.integers(1, len(chat) + 1))], *text(25)]
        gc.collect()
        traced, _ = tracemalloc.get_traced_memory()
        counted = pool.stats().bytes
        assert traced - empty <= counted + 50_000  # the lists of this test, caches of NumPy
        if pool._rows._width > 4000:
            assert counted <= 1.05 * (traced - empty)
        assert empty - start < 100_000
    finally:
        tracemalloc.stop()


def test_a_release_copies_what_is_new_alone():
    """The rows that it found are there already; `rows_stored` counts those that were copied."""
    pool, chat = SlotPool(ToyModel(KINDS["full"])), text(200)
    for n in (200, 230, 260):
        before = pool.stats().rows_stored
        chat += text(n - len(chat))
        cached = serve(pool, chat)
        assert pool.stats().rows_stored - before == n - cached


@pytest.mark.parametrize("parts", [KINDS["full"], KINDS["all"]], ids=["full", "all"])
def test_the_budget_is_kept_after_every_release(parts):
    for budget in (0, 1_500, 5_000, 9_000, 30_000):
        pool = SlotPool(ToyModel(parts), memory=budget)
        for _ in range(60):
            ids = text(int(RANDOM.integers(1, 90)))
            serve(pool, ids if RANDOM.random() < 0.5 else [*([5] * len(ids)), *ids])
            check(pool)
