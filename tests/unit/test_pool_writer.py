"""Files of a pool that a thread writes: whoever gives rows back does not wait, what waits is bounded, errors are told."""

from __future__ import annotations

import logging
import threading

import numpy as np
import pytest

from fucina.cache.pool import SlotPool
from fucina.cache.pool.disk import DiskTier
from fucina.cache.pool.writer import Writer
from tests.pool_kit import ToyModel, check, check_disk, serve


class Held:
    """Holds the thread that writes until it may go on."""

    def __init__(self, monkeypatch):
        self.go, self.at, self.threads, spill = threading.Event(), threading.Event(), set(), DiskTier.spill

        def held(tier, victim, new=b""):
            self.threads.add(threading.current_thread().name)
            self.at.set()
            assert self.go.wait(60)
            spill(tier, victim, new)

        monkeypatch.setattr(DiskTier, "spill", held)


def texts(n, length=60, seed=0):
    return np.random.default_rng(seed).integers(0, 900, (n, length)).tolist()


def size_of(model, length=60):
    with SlotPool(model) as pool:
        serve(pool, texts(1, length)[0])
        return pool.stats().bytes


def test_who_gives_rows_back_does_not_wait(tmp_path, monkeypatch):
    held, model = Held(monkeypatch), ToyModel()
    one = size_of(model)
    with SlotPool(model, 4 * one, tmp_path, background=True) as pool:
        for ids in texts(6):
            serve(pool, ids)  # the fifth pushes out the first: this returns all the same
        assert held.at.wait(60)
        stats = pool.stats()
        assert stats.writing > 0 and stats.spills == 0 and stats.files == 0
        held.go.set()
        pool.flush()
        stats = pool.stats()
        assert stats.writing == 0 and stats.spills >= 1 and stats.lost + stats.spills == stats.evictions
        check(pool)
        check_disk(pool)
    assert held.threads == {"fucina-writer"} or held.threads == {"fucina-writer", "MainThread"}
    assert not [t for t in threading.enumerate() if t.name == "fucina-writer"]


def test_close_waits_and_nothing_is_lost_that_was_to_be_written(tmp_path, monkeypatch):
    held, model, asked = Held(monkeypatch), ToyModel(), texts(8)
    one = size_of(model)
    pool = SlotPool(model, 8 * one - 1, tmp_path, background=True)
    for ids in asked:
        serve(pool, ids)
    assert held.at.wait(60)
    closing = threading.Thread(target=pool.close)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive()
    held.go.set()
    closing.join(60)
    assert not closing.is_alive() and pool.stats().spills == 8 and pool.stats().lost == 0
    with SlotPool(model, 0, tmp_path) as again:
        assert [serve(again, [*ids, 1]) for ids in asked] == [60] * 8


def test_what_waits_is_bounded(tmp_path, monkeypatch):
    held, model = Held(monkeypatch), ToyModel()
    one = size_of(model)
    with SlotPool(model, 4 * one, tmp_path, background=True) as pool:
        most = 0
        for ids in texts(30):
            serve(pool, ids)
            most = max(most, pool.stats().writing)
        assert most <= one and pool.stats().lost > 20
        held.go.set()
        pool.flush()
        assert pool.stats().lost + pool.stats().spills == pool.stats().evictions


def test_errors_are_counted_and_told(tmp_path, monkeypatch, caplog):
    model = ToyModel()
    one = size_of(model)

    def fails(tier, victim, new=b""):
        raise MemoryError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(DiskTier, "spill", fails)
        with SlotPool(model, one, tmp_path, background=True) as pool, caplog.at_level(logging.ERROR, "fucina.cache"):
            for ids in texts(2):
                serve(pool, ids)
            pool.flush()
            assert pool.stats().disk_errors == 1 and "MemoryError: no room" in caplog.text
            patched.undo()
            for ids in texts(2, seed=1):
                serve(pool, ids)
            pool.flush()
            assert pool.stats().spills >= 1  # the thread has gone on


def test_a_folder_that_is_gone_is_counted(tmp_path):
    model = ToyModel()
    one = size_of(model)
    with SlotPool(model, one, tmp_path / "rows", background=True) as pool:
        (tmp_path / "rows").rmdir()
        with pytest.warns(UserWarning, match="not stored on disk"):
            for ids in texts(2):
                serve(pool, ids)
            pool.flush()
        assert pool.stats().disk_errors == 1
        pool.resize(1 << 20)
        (tmp_path / "rows").mkdir()


def test_threads_that_give_back_at_once(tmp_path):
    model = ToyModel()
    one = size_of(model)
    with SlotPool(model, 3 * one, tmp_path, background=True) as pool:

        def work(seed):
            for ids in texts(30, 50, seed):
                serve(pool, ids)
                serve(pool, [*ids, 5, 6])

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        pool.flush()
        check(pool)
        check_disk(pool)
        assert pool.stats().disk_errors == 0


def test_a_budget_that_changes(tmp_path):
    model = ToyModel()
    one = size_of(model)
    with SlotPool(model, 10 * one, tmp_path) as pool:
        for ids in texts(6):
            serve(pool, ids)
        for budget in (6 * one, 3 * one, one - 1, 0, 10 * one):
            pool.resize(budget)
            assert pool.stats().bytes <= pool.stats().budget == budget
            check(pool)
        assert pool.stats().entries == 0 and pool.stats().spills == 6
        assert [serve(pool, [*ids, 1]) for ids in texts(6)] == [60] * 6


def test_a_writer_in_the_foreground_raises():
    writer, done = Writer(0, False), []
    assert writer.put(5, lambda: done.append(1)) and done
    with pytest.raises(ZeroDivisionError):
        writer.put(5, lambda: 1 / 0)
    writer.flush()
    writer.close()
    writer.close()
