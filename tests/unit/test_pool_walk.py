"""A long walk over slot pools: several models and tenants on one folder; after every request, every row is compared.

Rows of the toy model depend on the token and on who asks: each model and each tenant has numbers of its own for the same
tokens.  So a row that came from another tenant or model, from another place, or from a torn file is a wrong number.
"""

from __future__ import annotations

import gc
import os
import warnings
from pathlib import Path

import numpy as np
import pytest

from fucina.cache.pool import SlotPool
from tests.pool_kit import VOCAB, ToyModel, check, check_disk, take
from tests.state_models import KINDS, extend

MODELS = [
    ToyModel(KINDS["full"], b"model 0"),
    ToyModel(KINDS["full"], b"model 1"),  # the same geometry
    ToyModel(KINDS["rings"], b"model 2"),
    ToyModel(KINDS["recurrent"], b"model 3"),
    ToyModel(KINDS["all"], b"model 4"),
]
TENANTS = ["", "one", "two"]
MEMORY = [0, 4_000, 12_000, 40_000, 1 << 20]
DISK = [20_000, 60_000, 300_000]
MOST = 220  # tokens of a conversation


class Walk:
    """One pool per model at a time, conversations of all of them, and a folder that outlives every pool."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.folder = folder
        self.pools: dict[int, SlotPool] = {}
        self.disk = DISK[-1]
        self.systems = [self.words(n) for n in (5, 64, 70)]
        self.chats: list[tuple[int, int, list[int]]] = []
        self.open: list[tuple] = []
        self.reused = self.restores = self.evictions = self.spills = 0
        for model in range(len(MODELS)):
            self.start(model)

    def words(self, n: int) -> list[int]:
        return [int(t) for t in self.random.integers(0, 4 if self.random.random() < 0.2 else VOCAB, n)]

    def pick(self, items):
        return items[int(self.random.integers(len(items)))]

    # --- steps --------------------------------------------------------------------------------------------------------

    def start(self, model: int) -> None:
        """A pool with budgets of its own over the same folder."""
        self.disk = max(self.pick(DISK), 20_000)
        disk = None if self.random.random() < 0.1 else self.folder
        self.pools[model] = SlotPool(MODELS[model], self.pick(MEMORY), disk, self.disk)

    def step(self) -> None:
        acts = [self.send] * 12 + [self.edit] * 3 + [self.branch] * 2 + [self.begin] * 2
        acts += [self.finish] * 3 + [self.lie, self.restart, self.crash, self.tear]
        self.pick(acts)()

    def begin(self) -> None:
        """A new conversation, most after a system prompt that others have too."""
        model, tenant = int(self.random.integers(len(MODELS))), int(self.random.integers(len(TENANTS)))
        self.chats.append((model, tenant, [*self.pick([[], *self.systems])]))
        if len(self.chats) > 24:
            del self.chats[int(self.random.integers(len(self.chats)))]

    def branch(self) -> None:
        """A conversation that begins as another one did."""
        if self.chats:
            model, tenant, tokens = self.pick(self.chats)
            self.chats.append((model, tenant, tokens[: int(self.random.integers(len(tokens) + 1))]))

    def edit(self) -> None:
        """An earlier message is changed; what comes after it may be the same again."""
        if self.chats:
            at = int(self.random.integers(len(self.chats)))
            model, tenant, tokens = self.chats[at]
            if tokens:
                place = int(self.random.integers(len(tokens)))
                rest = tokens[place + 1 :] if self.random.random() < 0.5 else []
                self.chats[at] = model, tenant, [*tokens[:place], (tokens[place] + 1) % VOCAB, *rest]

    def send(self) -> None:
        """A message and its reply; sometimes the slot stays open while others go on."""
        if not self.chats:
            self.begin()
        at = int(self.random.integers(len(self.chats)))
        model, tenant, tokens = self.chats[at]
        ids = [*tokens, *self.words(int(self.random.integers(0 if tokens else 1, 25)))][:MOST]
        slot, shift = self.acquire(model, tenant, ids)
        extend(slot.state, self.shifted(ids, shift))
        slot.state.checkpoint()
        if self.random.random() < 0.2:
            slot.store(ids)
        text = [*ids, *self.words(int(self.random.integers(0, 20)))]
        if len(text) > len(ids) + 1:
            extend(slot.state, self.shifted(text[:-1], shift))  # the newest token has no row yet
        self.chats[at] = model, tenant, text[:MOST]
        self.open.append((slot, text))
        if self.random.random() < 0.8:
            self.finish()

    def finish(self) -> None:
        """Give one of the open slots back."""
        if self.open:
            slot, text = self.open.pop(int(self.random.integers(len(self.open))))
            if self.random.random() < 0.1:
                slot.discard()
            else:
                slot.release(text)
                self.watch(slot._pool)

    def lie(self) -> None:
        """Fewer rows than tokens, or fewer tokens than rows."""
        if self.open:
            slot, text = self.open.pop()
            if self.random.random() < 0.5:
                slot.state.truncate(slot.state.rewind_point(int(self.random.integers(len(text) + 1))))
                slot.release(text)
            else:
                slot.release(text[: int(self.random.integers(len(text) + 1))])
            self.watch(slot._pool)

    def restart(self) -> None:
        """A pool is closed in order, another one begins."""
        model = self.stop()
        pool = self.pools.pop(model)
        pool.close()
        if pool._disk is not None:
            check_disk(pool)
        self.start(model)

    def crash(self) -> None:
        """A process dies: what was in its memory is gone."""
        model = self.stop()
        del self.pools[model]
        self.start(model)

    def tear(self) -> None:
        """Something happens to a file."""
        found = list(self.folder.glob("kv-slot-*.fuxkv"))
        if not found:
            return
        path = self.pick(found)
        size = path.stat().st_size
        match int(self.random.integers(5)):
            case 0:
                path.unlink()
            case 1:
                os.truncate(path, int(self.random.integers(size + 1)))
            case 2 if size:
                with path.open("r+b") as file:
                    file.seek(int(self.random.integers(size)))
                    file.write(self.random.bytes(int(self.random.integers(1, 9))))
            case 3:  # the file of another model or tenant under this name
                os.replace(self.pick(found), path)
            case 4:
                os.truncate(path, size // 2)
                with path.open("ab") as file:
                    file.write(self.random.bytes(min(100, size // 2)))

    def stop(self) -> int:
        """A model whose pool ends; its open slots are lost with it."""
        model = int(self.random.integers(len(MODELS)))
        stats = self.pools[model].stats()
        self.reused += stats.rows_reused
        self.restores += stats.restores
        self.evictions += stats.evictions
        self.spills += stats.spills
        self.open = [item for item in self.open if item[0]._pool is not self.pools[model]]
        return model

    # --- checks -------------------------------------------------------------------------------------------------------

    def acquire(self, model: int, tenant: int, ids: list[int]) -> tuple:
        shift = 10_000 * model + 100_000 * tenant
        slot = take(self.pools[model], ids, tenant=TENANTS[tenant], shift=shift)
        return slot, shift

    @staticmethod
    def shifted(tokens: list[int], shift: int) -> list[int]:
        return [t + shift for t in tokens]

    def watch(self, pool: SlotPool) -> None:
        stats = pool.stats()
        assert stats.bytes <= stats.budget
        assert stats.disk_bytes <= stats.disk_budget
        if self.random.random() < 0.05:
            check(pool)
            if pool._disk is not None:
                check_disk(pool)


def walk(folder: Path, seed: int, steps: int) -> Walk:
    at = Walk(folder, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of torn files
        for _ in range(steps):
            at.step()
        for model in range(len(MODELS)):
            at.open.clear()
            at.pools[model].close()
    gc.collect()
    return at


@pytest.mark.parametrize("seed", range(3))
def test_warm_rows_are_cold_rows(tmp_path, seed):
    done = walk(tmp_path, seed, 500)
    assert min(done.reused, done.restores, done.evictions, done.spills) > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_warm_rows_are_cold_rows_for_20000_steps(tmp_path, seed):
    done = walk(tmp_path, seed, 2000)
    assert done.reused > 8_000
    assert min(done.restores, done.evictions, done.spills) > 20
