"""The slot pool under threads, and under Ctrl-C at every instruction."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import numpy as np
import pytest

import fucina.cache
from fucina.cache.pool import SlotPool
from fucina.errors import SlotReleased
from tests.interrupts import every_interrupt
from tests.pool_kit import VOCAB, ToyModel, check, check_disk, serve, take
from tests.state_models import KINDS, check_claims, extend

CACHE = Path(fucina.cache.__file__).parent


def _race(workers: int, work) -> None:
    """Run `work(i)` on several threads; an error of any of them is an error here."""
    errors: list[BaseException] = []
    start = threading.Barrier(workers)

    def run(i: int) -> None:
        try:
            start.wait()
            work(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("disk", [None, 60_000, 1 << 30])
@pytest.mark.parametrize("budget", [0, 8_000, 60_000, 1 << 30])
def test_threads_find_their_own_rows_only(tmp_path, budget, disk):
    """Unique markers and shared beginnings, tiny budgets, many evictions, files (CASES E6)."""
    model = ToyModel()
    pool = SlotPool(model, budget, None if disk is None else tmp_path, disk or 0)
    system = [int(t) for t in np.random.default_rng(1).integers(0, VOCAB, 70)]

    def work(i: int) -> None:
        random = np.random.default_rng(i)
        tenant = "ab"[i % 2]
        chat = [*system, i]
        for _ in range(20):
            slot = take(pool, chat, tenant=tenant)
            extend(slot.state, chat)
            if random.random() < 0.3:
                slot.store(chat)
            if random.random() < 0.2:
                slot.discard()
            else:
                slot.release(chat)
            chat += [int(t) for t in random.integers(0, VOCAB, random.integers(1, 30))]
            if len(chat) > 300 or random.random() < 0.2:
                chat = chat[: int(random.integers(71, len(chat)))]

    _race(8, work)
    check(pool)
    if disk is not None:
        check_disk(pool)
    stats = pool.stats()
    assert stats.in_use == 0
    assert stats.requests == 8 * 20


def test_two_threads_cannot_both_give_a_slot_back():
    pool = SlotPool(ToyModel())
    for _ in range(50):
        slot = pool.acquire([1, 2, 3])
        extend(slot.state, [1, 2, 3])
        done, refused = [], []

        def work(i: int, slot=slot, done=done, refused=refused) -> None:
            try:
                slot.discard() if i % 2 else slot.release([1, 2, 3])
                done.append(i)
            except SlotReleased:
                refused.append(i)

        _race(4, work)
        assert (len(done), len(refused)) == (1, 3)
    check(pool)


def _scene(parts, budget: int):
    """A pool that has a text to extend, one to branch from and one to evict; and the request to interrupt."""
    random = np.random.default_rng(2)
    system, first, second = ([int(t) for t in random.integers(0, VOCAB, n)] for n in (40, 50, 30))
    pool = SlotPool(ToyModel(parts), memory=budget)
    serve(pool, second, tenant="other")
    serve(pool, system)
    serve(pool, [*system, *first])
    asked = [*system, *first[:20], *second]

    def request() -> None:
        with pool.acquire(asked) as slot:
            extend(slot.state, asked)
            slot.store(asked[:70])
            slot.release(asked)

    return pool, request, asked


@pytest.mark.parametrize(
    ("step", "signalled"),
    [
        pytest.param(197, False, id="raised"),
        pytest.param(61, True, id="signalled"),
        pytest.param(1, False, id="raised-all", marks=pytest.mark.slow),
        pytest.param(1, True, id="signalled-all", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("budget", [24_000, 1 << 30])
def test_ctrl_c_at_any_instruction_leaves_a_pool_that_goes_on(budget, step, signalled):
    pools = []

    def make():
        pool, request, asked = _scene(KINDS["all"], budget)
        pools[:] = [pool, asked]
        return request

    count = 0
    for _ in every_interrupt(make, CACHE / "pool", CACHE / "rows.py", signalled=signalled, step=step):
        pool, asked = pools
        count += 1
        check(pool)
        assert not pool._lock.locked()
        if pool.stats().in_use:
            gc.collect()  # frames of the interrupted call
        assert pool.stats().in_use == 0, "the slot was lost or given back"
        with take(pool, asked) as slot:
            extend(slot.state, asked)
            check_claims(slot.state, asked)
            slot.release(asked)
        check(pool)
    assert count > 8


def test_a_slot_whose_release_was_interrupted_is_still_its_owners():
    left = []

    def make():
        pool, _, asked = _scene(KINDS["all"], 1 << 30)
        slot = pool.acquire(asked)
        extend(slot.state, asked)
        left[:] = [pool, slot, asked]
        return lambda: slot.release(asked)

    outcomes = set()
    for _ in every_interrupt(make, CACHE / "pool", step=83):
        pool, slot, asked = left
        in_use = pool.stats().in_use
        if in_use:
            slot.release(asked)
        with pytest.raises(SlotReleased):
            slot.discard()
        with take(pool, [*asked, 1]) as again:
            assert again.cached == len(asked)
        outcomes.add(in_use)
        check(pool)
    assert outcomes == {0, 1}
