"""The slot pool's files: `fucina.cache.pool` with `disk=`."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np
import pytest

from fucina.cache import KvFile, load
from fucina.cache.persist import read_tokens
from fucina.cache.pool import SlotPool
from fucina.cache.pool.scope import scope_of
from fucina.errors import InvalidOption, KvFileError, KvFileLocked
from tests.interrupts import every_interrupt
from tests.pool_kit import VOCAB, ToyModel, check, check_disk, files, serve, take
from tests.state_models import KINDS, extend

RANDOM = np.random.default_rng(131)
FULL = ToyModel(KINDS["full"])
ONE = 7_500  # bytes of memory: room for one text of 60 to 110 tokens
PACKAGE = Path(__file__).resolve().parents[2] / "fucina"


def text(n: int) -> list[int]:
    return [int(t) for t in RANDOM.integers(0, VOCAB, n)]


def texts(pool: SlotPool) -> list[list[int]]:
    """What the files hold, in the order of their numbers."""
    return [read_tokens(path) for path in files(pool)]


@pytest.fixture
def pool(tmp_path):
    """A pool whose memory holds nothing for long."""
    return SlotPool(FULL, memory=ONE, disk=tmp_path / "pool")


@pytest.mark.parametrize("parts", KINDS.values(), ids=KINDS)
def test_what_memory_drops_comes_back_from_disk(tmp_path, parts):
    """Windows and recurrent parts too (CASES E10): as many rows as were saved, less the last."""
    pool = SlotPool(ToyModel(parts), memory=6_000, disk=tmp_path)
    chats = [text(30) for _ in range(5)]
    for turn in range(4):
        for chat in chats:
            cached = serve(pool, chat, reply := text(8))
            assert cached == (0 if turn == 0 else len(chat) - 20)
            chat += [*reply[:-1], *text(20)]
            check(pool)
            check_disk(pool)
    stats = pool.stats()
    assert stats.restores > 5
    assert stats.files <= 5


@pytest.mark.parametrize("parts", KINDS.values(), ids=KINDS)
def test_a_pool_of_tomorrow_finds_the_texts_of_today(tmp_path, parts):
    chats = {tenant: text(90) for tenant in ("", "a", "b")}
    with SlotPool(ToyModel(parts), disk=tmp_path) as pool:
        for tenant, chat in chats.items():
            serve(pool, chat, tenant=tenant)
        assert files(pool) == []
    assert len(files(pool)) == 3
    pool = SlotPool(ToyModel(parts), disk=tmp_path)
    for tenant, chat in chats.items():
        with take(pool, [*chats["b"], 1], tenant=tenant) as slot:
            assert slot.cached == (90 if tenant == "b" else 0)
        assert serve(pool, [*chat, 5], tenant=tenant) == 90
    assert pool.stats().restores == 4
    check_disk(pool)
    pool.close()
    assert len(files(pool)) == 3, "each text went on in its file"
    assert sorted(map(len, texts(pool))) == [91, 91, 91]


def test_a_pool_that_was_never_closed_leaves_what_it_had_written(tmp_path):
    pool = SlotPool(FULL, memory=ONE, disk=tmp_path)
    first = text(50)
    serve(pool, first)
    serve(pool, text(90))
    del pool
    assert take(SlotPool(FULL, disk=tmp_path), [*first, 1]).cached == 50


def test_rules_of_the_spill(pool):
    """FACTS of the format's first server: empty, half shared, contained, extended."""
    a, b = text(60), text(60)
    serve(pool, a)
    serve(pool, b)  # pushes `a` out
    assert texts(pool) == [a]
    serve(pool, [*b[:30], *text(30)])  # shares half of `b`: that is not written
    assert texts(pool) == [a]
    serve(pool, text(60))
    assert len(texts(pool)) == 2
    serve(pool, a[:50])  # restored, and contained in the file
    serve(pool, text(60))
    before = texts(pool)
    assert a in before
    serve(pool, text(60))
    assert texts(pool)[:2] == before[:2]
    assert not any(found == a[:50] for found in texts(pool))
    longer = [*a, *text(10)]
    serve(pool, longer)
    for _ in range(2):
        serve(pool, text(60))
    assert texts(pool)[0] == longer, "the same file"
    assert a not in texts(pool)
    check_disk(pool)


def test_half_is_counted_of_the_text_that_goes(tmp_path):
    for shared, files_after in ((29, 1), (30, 0)):
        pool = SlotPool(FULL, memory=ONE, disk=tmp_path / str(shared))
        a = text(60)
        serve(pool, a)
        serve(pool, [*a[:shared], *text(80)])
        assert len(files(pool)) == files_after


def test_a_file_is_read_only_if_it_gives_more_than_memory_and_is_similar(tmp_path, monkeypatch):
    reads, a = [], text(300)
    monkeypatch.setattr(
        "fucina.cache.pool.disk.load", lambda *args, **options: reads.append(1) or load(*args, **options)
    )
    with SlotPool(FULL, disk=tmp_path) as pool:
        serve(pool, a[:30])
    pool = SlotPool(FULL, disk=tmp_path)
    assert take(pool, a).cached == 0, "30 are not more than a tenth of 300"
    assert take(pool, a[:299]).cached == 30
    assert pool.stats().restores == 1
    serve(pool, a[:30])
    assert take(pool, a[:299]).cached == 30
    assert pool.stats().restores == 2, "as long as what memory has: that is used"
    assert take(pool, a[:30]).cached == 29
    assert pool.stats().restores == len(reads) == 2


def test_of_a_longer_file_only_what_is_shared_is_taken(tmp_path):
    a = text(300)
    with SlotPool(FULL, disk=tmp_path) as pool:
        serve(pool, a)
    for capacity in (None, 120):
        pool = SlotPool(FULL, disk=tmp_path)
        with take(pool, [*a[:80], *text(20)], capacity=capacity) as slot:
            assert slot.cached == 80
    assert take(pool, a[:90]).cached == 89


def test_where_the_best_file_cannot_be_cut_another_one_serves(tmp_path):
    """Recurrent parts are kept at ends: the file that lies on the way whole is shorter, and can be used."""
    a = text(100)
    with SlotPool(ToyModel(KINDS["recurrent"]), disk=tmp_path) as pool:
        slot = pool.acquire(a[:60])
        extend(slot.state, a[:60])
        slot.release(a[:60])
    model = ToyModel(KINDS["recurrent"])
    state = model.new_cache()
    extend(state, other := [*a[:80], *text(30)])
    with KvFile.open(tmp_path / "kv-slot-7.fuxkv", model, salt=scope_of("")) as file:
        file.append(state, other)
    pool = SlotPool(model, disk=tmp_path)
    assert take(pool, a).cached == 60
    assert pool.stats().files == 2


# --- budget -----------------------------------------------------------------------------------------------------------


def test_the_budget_of_the_disk_is_kept_and_the_oldest_file_goes(tmp_path):
    pool = SlotPool(FULL, memory=ONE, disk=tmp_path, disk_bytes=50_000)
    chats = [text(60) for _ in range(12)]
    for chat in chats:
        serve(pool, chat)
        check_disk(pool)
    kept = [chat in texts(pool) for chat in chats]
    assert any(kept)
    assert kept == [*sorted(kept[:-1]), False], "the latest is in memory, the files are those before it"


def test_a_file_that_was_read_is_not_the_oldest(tmp_path):
    pool = SlotPool(FULL, memory=ONE, disk=tmp_path, disk_bytes=50_000)
    first = text(60)
    serve(pool, first)
    for _ in range(12):
        serve(pool, text(60))
        with take(pool, [*first, 1]) as slot:
            assert slot.cached == 60


def test_a_text_above_the_budget_of_the_disk_removes_nothing(tmp_path):
    pool = SlotPool(FULL, memory=ONE, disk=tmp_path, disk_bytes=20_000)
    serve(pool, a := text(40))
    serve(pool, text(150))
    serve(pool, text(90))
    assert texts(pool) == [a]


def test_a_text_too_large_for_memory_goes_to_disk_at_once(tmp_path):
    pool = SlotPool(FULL, memory=ONE, disk=tmp_path)
    serve(pool, a := text(350))
    assert texts(pool) == [a]
    assert serve(pool, [*a, 1], text(9)) == 350
    check(pool)
    check_disk(pool)
    pool = SlotPool(FULL, memory=0, disk=tmp_path)
    assert serve(pool, [*a, 1]) == 350


def test_files_of_other_models_are_left_alone_and_not_counted(tmp_path):
    a = text(60)
    models = [FULL, ToyModel(KINDS["full"], b"another"), ToyModel(KINDS["rings"]), ToyModel(KINDS["full"], dtype="f16")]
    for model in models:
        with SlotPool(model, disk=tmp_path) as pool:
            slot = pool.acquire(a)
            assert slot.cached == 0
            extend(slot.state, a)
            slot.release(a)
    assert len(files(pool)) == 4
    before = {path: path.read_bytes() for path in files(pool)}
    pool = SlotPool(FULL, memory=ONE, disk=tmp_path, disk_bytes=50_000)
    assert pool.stats().files == 1
    assert pool.stats().disk_bytes == len(before[tmp_path / "kv-slot-1.fuxkv"])
    for _ in range(12):
        serve(pool, text(60))
        check_disk(pool)
    for path in list(before)[1:]:
        assert path.read_bytes() == before[path]


# --- files that are not as they should be ------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [0, 7, 300, 5000, 9000, -10, -3000])
def test_a_damaged_file_gives_a_true_prefix_or_goes(tmp_path, cut):
    a = text(60)
    with SlotPool(FULL, disk=tmp_path) as pool:
        serve(pool, a)
    pool = SlotPool(FULL, disk=tmp_path)
    assert take(pool, a).cached == 59
    (path,) = files(pool)
    os.truncate(path, cut if cut >= 0 else path.stat().st_size + cut)
    if cut == -10:
        assert 40 < take(pool, a).cached < 60
        return
    if cut == -3000:
        assert 10 < take(pool, a).cached < 55
        return
    with pytest.warns(UserWarning, match=r"kv-slot-1\.fuxkv was removed, a request goes on without it"):
        assert take(pool, a).cached == 0
    assert files(pool) == []
    assert take(pool, a).cached == 0


def test_flipped_bits_never_become_rows(tmp_path):
    a = text(60)
    with SlotPool(FULL, disk=tmp_path) as pool:
        serve(pool, a)
    (path,) = files(pool)
    good = path.read_bytes()
    for _ in range(60):
        bad = bytearray(good)
        bad[int(RANDOM.integers(len(bad)))] ^= 1 << int(RANDOM.integers(8))
        path.write_bytes(bad)
        fresh = SlotPool(FULL, disk=tmp_path)
        take(fresh, [*a, 1]).discard()  # its rows are checked


def test_files_that_vanish_are_missed_and_no_more(tmp_path):
    a = text(60)
    with SlotPool(FULL, disk=tmp_path) as pool:
        serve(pool, a)
    pool = SlotPool(FULL, memory=ONE, disk=tmp_path)
    assert take(pool, a).cached == 59
    for path in files(pool):
        path.unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # somebody else's right
        assert take(pool, a).cached == 0
    for _ in range(3):
        serve(pool, text(60))
    check_disk(pool)


@pytest.mark.parametrize("tenant", ["", "other"])
def test_a_name_that_another_process_gave_to_its_own_file_is_left_alone(tmp_path, tenant):
    """Neither as damaged, nor to make room."""
    a, other = text(60), ToyModel(KINDS["full"], b"another")
    with SlotPool(FULL, disk=tmp_path) as pool:
        serve(pool, a)
    pools = [SlotPool(FULL, memory=ONE, disk=tmp_path) for _ in range(2)]
    for pool in pools:
        assert take(pool, a).cached == 59
    (path,) = files(pools[0])
    before = path.stat().st_ino
    path.rename(tmp_path / "kept")  # so that the number of the file is not used again
    with SlotPool(FULL if tenant else other, disk=tmp_path) as theirs:
        serve(theirs, a, tenant=tenant)
    (new,) = files(theirs)
    new.rename(path)
    data = path.read_bytes()
    assert path.stat().st_ino != before
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert take(pools[0], a).cached == 0
        pools[1]._disk._folder.trim(0)
    assert path.read_bytes() == data
    (tmp_path / "kept").write_bytes(data)
    os.replace(tmp_path / "kept", path)


def test_a_file_that_another_process_writes_is_not_removed(tmp_path):
    a = text(60)
    with SlotPool(FULL, disk=tmp_path) as pool:
        serve(pool, a)
    pool = SlotPool(FULL, memory=ONE, disk=tmp_path)
    (path,) = files(pool)
    stored = pool._disk._folder.files[path.name]
    with KvFile.open(path, FULL, salt=scope_of("", "", 0)):
        assert not pool._disk._folder.trim(0)
        with pytest.raises(KvFileLocked):
            pool._disk._folder.remove(stored)
        assert path.exists()
    assert pool._disk._folder.trim(0)
    assert not path.exists()


def test_a_file_that_could_not_be_continued_goes(tmp_path, monkeypatch):
    """A failed write removes the entry: the disk is full, and nobody asks twice for what cannot be kept."""
    pool = SlotPool(FULL, memory=ONE, disk=tmp_path)
    serve(pool, a := text(60))
    serve(pool, text(60))
    assert texts(pool) == [a]
    serve(pool, [*a, *text(10)])

    def full(self, offset, data):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("fucina.cache.persist.files.DiskFile.write_at", full)
        with pytest.warns(UserWarning, match="a text was not stored on disk"):
            serve(pool, text(60))
    assert a not in texts(pool)
    check_disk(pool)


def test_a_full_disk_costs_the_text_and_nothing_else(tmp_path, monkeypatch):
    pool = SlotPool(FULL, memory=ONE, disk=tmp_path)
    serve(pool, a := text(60))

    def full(self, offset, data):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("fucina.cache.persist.files.DiskFile.write_at", full)
        with pytest.warns(UserWarning, match="a text was not stored on disk: .*No space left"):
            serve(pool, b := text(60))
    assert files(pool) == []
    check(pool)
    check_disk(pool)
    assert [take(pool, [*t, 1]).cached for t in (a, b)] == [0, 60]


def test_a_file_that_somebody_writes_is_left_to_him(tmp_path):
    a = text(60)
    with SlotPool(FULL, disk=tmp_path) as pool:
        serve(pool, a)
    (path,) = files(pool)
    pool = SlotPool(FULL, memory=ONE, disk=tmp_path)
    with KvFile.open(path, FULL, salt=scope_of("")):
        assert serve(pool, longer := [*a, *text(10)]) == 60, "reading needs no lock"
        serve(pool, text(60))
    assert sorted(map(len, texts(pool))) == [60, 70]
    assert longer in texts(pool)
    check_disk(pool)


def test_two_pools_share_a_folder(tmp_path):
    one, two = (SlotPool(FULL, memory=ONE, disk=tmp_path, disk_bytes=60_000) for _ in range(2))
    for _ in range(10):
        for pool in (one, two):
            serve(pool, text(60))
            check(pool)
    check_disk(one)
    assert len({path.name for path in files(one)}) == len(files(one))


# --- names (CASES E14) --------------------------------------------------------------------------------------------------

NAMES = ["../x", "..", "a/b", "a\\b", "/etc/x", "C:x", "a" * 300, "\ud800", "nul", " ", "kv-slot-1.fuxkv"]


@pytest.mark.parametrize("name", [*NAMES, "a\0b"])
def test_no_name_leads_out_of_the_folder(tmp_path, name):
    folder, canary = tmp_path / "pool", tmp_path / "canary"
    canary.write_text("alive")
    with SlotPool(FULL, memory=ONE, disk=folder) as pool:
        for i in range(3):
            serve(pool, text(60), tenant=name, selection=name * i)
    assert sorted(p.name for p in folder.iterdir()) == [f"kv-slot-{i}.fuxkv" for i in (1, 2, 3)]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["canary", "pool"]
    assert canary.read_text() == "alive"


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="there are no symbolic links here")
def test_links_and_strange_files_in_the_folder_are_left_alone(tmp_path):
    folder, canary = tmp_path / "pool", tmp_path / "canary.fuxkv"
    folder.mkdir()
    a = text(60)
    with SlotPool(FULL, disk=tmp_path / "other") as pool:
        serve(pool, a)
    (tmp_path / "other" / "kv-slot-1.fuxkv").rename(canary)
    before = canary.read_bytes()
    os.symlink(canary, folder / "kv-slot-1.fuxkv")
    (folder / "kv-slot-2.fuxkv").mkdir()
    (folder / "kv-slot-3.fuxkv").write_text("a letter")
    (folder / "kv-slot-4.fuxkv").write_bytes(b"")
    (folder / "notes.txt").write_text("mine")
    with SlotPool(FULL, memory=ONE, disk=folder, disk_bytes=40_000) as pool:
        assert take(pool, a).cached == 0
        for _ in range(6):
            serve(pool, [*a[:10], *text(60)])
        assert pool.stats().files <= 3
    assert canary.read_bytes() == before
    assert (folder / "kv-slot-3.fuxkv").read_text() == "a letter"
    assert (folder / "kv-slot-4.fuxkv").read_bytes() == b""
    assert (folder / "notes.txt").read_text() == "mine"
    assert (folder / "kv-slot-1.fuxkv").is_symlink()


def test_a_folder_that_is_none_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(KvFileError, match="file: cannot be made"):
        SlotPool(FULL, disk=tmp_path / "file")


# --- Ctrl-C -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "signalled"),
    [
        pytest.param(397, False, id="raised"),
        pytest.param(131, True, id="signalled"),
        pytest.param(7, False, id="raised-most", marks=pytest.mark.slow),
        pytest.param(3, True, id="signalled-most", marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore:Exception ignored in.*FileIO")  # opened, then Ctrl-C: the collector closes it
def test_ctrl_c_while_files_are_read_and_written(tmp_path, step, signalled):
    """A restore, a spill to a new file and one that continues a file; afterwards everything is a true prefix."""
    scene: list = []
    count = 0

    def make():
        nonlocal count
        count += 1
        pool = SlotPool(FULL, memory=ONE, disk=tmp_path / str(count), disk_bytes=60_000)
        a, b, c = (text(60) for _ in range(3))
        serve(pool, a)
        serve(pool, b)
        longer = [*a, *text(20)]
        scene[:] = [pool, (a, b, c, longer)]

        def requests() -> None:
            for ids in (longer, c):
                with pool.acquire(ids) as slot:
                    extend(slot.state, ids)
                    slot.release(ids)

        return requests

    # `raised` comes between a lock and its `with` too, where Ctrl-C cannot: KvFile's own lock would stay locked.
    places = [PACKAGE / "cache" / "pool", *([PACKAGE / "cache" / "persist"] if signalled else [])]
    for _ in every_interrupt(make, *places, step=step, signalled=signalled):
        pool, asked = scene
        check(pool)
        check_disk(pool)
        for again in (pool, SlotPool(FULL, memory=ONE, disk=pool._disk._folder.path, disk_bytes=60_000)):
            for ids in asked:
                serve(again, ids)
            check(again)
            check_disk(again)
    assert count > 10


@pytest.mark.parametrize("folder", ["", 5, b"", "nul\0", "half\ud800"])
def test_names_that_are_no_folder(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((InvalidOption, KvFileError)):
        SlotPool(FULL, disk=folder)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_becomes_read_only_costs_no_request(tmp_path, monkeypatch):
    """Neither the new file nor the removal of a damaged one."""
    pool = SlotPool(FULL, memory=ONE, disk=tmp_path)
    serve(pool, a := text(60))
    serve(pool, text(60))
    (path,) = files(pool)
    os.truncate(path, 300)
    system = os.open

    def refuse(name, flags, *more, **options):
        if flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT):
            raise OSError(30, "Read-only file system", str(name))
        return system(name, flags, *more, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.warns(UserWarning, match="Read-only file system"):
            assert take(pool, a).cached == 0
        with pytest.warns(UserWarning, match="a text was not stored on disk.*Read-only file system"):
            serve(pool, text(60))
            serve(pool, text(60))
    assert path.stat().st_size == 300
