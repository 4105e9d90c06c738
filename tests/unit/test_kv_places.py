"""Where files of rows lie and who may write them: locks, folders, links, devices, full and read-only disks."""

from __future__ import annotations

import errno
import io
import os
import stat
import subprocess
import sys
import threading
import types

import pytest

from course.source import ROOT
from fucina.cache import Kv, KvFile, load, save
from fucina.cache.persist import append_plain, files, inspect, read_header, read_tokens
from fucina.errors import KvFileError, KvFileInvalid, KvFileLocked
from tests.kv_files import KINDS, TOKENS, ToyModel, filled

MODEL = ToyModel(KINDS["full"])
PLAIN = ToyModel((Kv(2, 4, 4),), "f16")
posix = pytest.mark.skipif(os.name != "posix", reason="needs what only POSIX systems have")


def state(rows=10):
    return filled(MODEL, rows)


# --- locks ----------------------------------------------------------------------------------------------------------

OTHER = """
import sys
from fucina.cache import KvFile, save
from fucina.errors import KvFileLocked
from tests.kv_files import KINDS, TOKENS, ToyModel, filled
model = ToyModel(KINDS["full"])
for write in (lambda: KvFile.open(sys.argv[1], model).close(), lambda: save(sys.argv[1], filled(model, 3), TOKENS[:3])):
    try:
        write()
        print("free")
    except KvFileLocked as error:
        print("locked" if "is being written by somebody else" in str(error) else error)
"""


def elsewhere(path):
    """What another process finds when it opens the file, and when it saves over it."""
    command = [sys.executable, "-c", OTHER, str(path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_a_second_process_is_refused_until_the_first_closes(tmp_path):
    path = tmp_path / "a"
    with KvFile.open(path, MODEL) as file:
        file.append(state(), TOKENS[:10])
        assert elsewhere(path) == ["locked", "locked"]
        assert file.restore(MODEL.new_cache()).tokens == TOKENS[:10]
    assert elsewhere(path) == ["free", "free"]
    assert read_tokens(path) == TOKENS[:3]


def test_a_second_object_and_a_second_thread_are_refused(tmp_path):
    path, found = tmp_path / "a", []

    def attempt(write):
        try:
            write()
            found.append("free")
        except KvFileLocked:
            found.append("locked")

    ways = (
        lambda: KvFile.open(path, MODEL).close(),
        lambda: save(path, state(), TOKENS[:10]),
        lambda: append_plain(path, filled(PLAIN, 3), TOKENS[:3]),
    )
    with KvFile.open(path, MODEL) as file:
        file.append(state(), TOKENS[:10])
        for way in ways:
            attempt(way)
            thread = threading.Thread(target=attempt, args=(way,))
            thread.start()
            thread.join()
        assert found == ["locked"] * 6
        # Reading needs no lock.
        assert load(path, MODEL).tokens == read_tokens(path) == TOKENS[:10]
        assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]
    for way in ways:
        attempt(way)
    assert found[6:] == ["free"] * 3


def test_calls_of_several_threads_wait_for_each_other(tmp_path):
    with KvFile.open(tmp_path / "a", MODEL) as file:
        states = [state(rows) for rows in range(5, 25)]
        threads = [threading.Thread(target=file.append, args=(s, TOKENS[: s.len])) for s in states]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        tokens = file.tokens
    assert load(tmp_path / "a", MODEL).tokens == tokens == TOKENS[: len(tokens)]


def test_a_file_that_cannot_be_used_does_not_stay_locked(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"my letters")
    for _ in range(2):
        with pytest.raises(KvFileInvalid, match="is no file of rows, it begins with b'my lette'"):
            KvFile.open(path, MODEL)
    assert path.read_bytes() == b"my letters"
    path.unlink()
    KvFile.open(path, MODEL).close()


@posix
def test_a_lock_on_a_file_that_was_replaced_is_no_lock(tmp_path, monkeypatch):
    path, real, calls = tmp_path / "a", files.lock, []
    KvFile.open(path, MODEL).close()

    def lock(file, name):
        real(file, name)
        calls.append(name)
        if len(calls) == 1:  # between opening and locking, somebody else saves
            (tmp_path / "b").write_bytes(b"")
            os.replace(tmp_path / "b", path)
        if len(calls) == 2:
            path.unlink()

    monkeypatch.setattr(files, "lock", lock)
    with KvFile.open(path, MODEL) as file:
        file.append(state(), TOKENS[:10])
        assert len(calls) == 3
    assert read_tokens(path) == TOKENS[:10]


@posix
def test_a_file_that_never_stays_is_given_up(tmp_path, monkeypatch):
    real = files.lock

    def lock(file, name):
        real(file, name)
        name.unlink()

    monkeypatch.setattr(files, "lock", lock)
    with pytest.raises(KvFileError, match="was replaced 100 times"):
        KvFile.open(tmp_path / "a", MODEL)


def test_a_closed_file_and_a_copy_of_the_process_are_refused(tmp_path, monkeypatch):
    file = KvFile.open(tmp_path / "a", MODEL)
    file.append(state(), TOKENS[:10])
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(KvFileError, match="opened by another process"):
            file.append(state(), TOKENS[:10])
    file.close()
    file.close()
    for call in (lambda: file.append(state(), TOKENS[:10]), lambda: file.restore(MODEL.new_cache()), lambda: file.size):
        with pytest.raises(KvFileError, match="was closed"):
            call()
    assert file.tokens == TOKENS[:10]


# --- places ---------------------------------------------------------------------------------------------------------


def every_way(path):
    """All that opens a file, each with whether it writes."""
    return (
        (True, lambda: KvFile.open(path, MODEL).close()),
        (True, lambda: save(path, state(), TOKENS[:10])),
        (True, lambda: append_plain(path, filled(PLAIN, 3), TOKENS[:3])),
        (False, lambda: load(path, MODEL)),
        (False, lambda: read_header(path)),
        (False, lambda: inspect(path)),
    )


def test_a_folder_is_refused(tmp_path):
    for _, way in every_way(tmp_path):
        with pytest.raises(KvFileError, match="is a folder; expected a file"):
            way()
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_named(tmp_path):
    for writes, way in every_way(tmp_path / "none" / "a"):
        if writes:
            with pytest.raises(KvFileError, match=r"none.*(there is no folder|No such file)"):
                way()
    assert load(tmp_path / "none" / "a", MODEL) is None
    for read in (read_header, read_tokens, inspect):
        with pytest.raises(KvFileError, match="cannot be read: No such file"):
            read(tmp_path / "none")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
def test_names_that_no_system_takes_are_named_errors(name, tmp_path):
    for _, way in every_way(f"{tmp_path}/{name}"):
        with pytest.raises(KvFileError, match=r"cannot be (written|read)"):
            way()
    assert list(tmp_path.iterdir()) == []


@posix
def test_links_are_not_written_through(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (outside / "canary").write_bytes(b"sings")
    link = inside / "link"
    for target in (outside / "canary", outside / "new"):
        link.symlink_to(target)
        for write in (lambda: KvFile.open(link, MODEL), lambda: append_plain(link, filled(PLAIN, 3), TOKENS[:3])):
            with pytest.raises(KvFileError, match="is a symbolic link; expected"):
                write()
        save(link, state(), TOKENS[:10])  # takes the link's place
        assert not link.is_symlink()
        assert load(link, MODEL).tokens == TOKENS[:10]
        link.unlink()
    assert [p.name for p in outside.iterdir()] == ["canary"]
    assert (outside / "canary").read_bytes() == b"sings"
    # Reading follows a link.
    save(outside / "real", state(), TOKENS[:10])
    (inside / "link").symlink_to(outside / "real")
    assert load(inside / "link", MODEL).tokens == TOKENS[:10]


@posix
def test_pipes_and_devices_are_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/null"):
        for _, way in every_way(path):
            with pytest.raises(KvFileError, match="is a pipe or a device"):
                way()
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)


@posix
def test_files_are_private(tmp_path):
    KvFile.open(tmp_path / "a", MODEL).close()
    save(tmp_path / "b", state(), TOKENS[:10])
    for name in "ab":
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) & 0o077 == 0


# --- disks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", [errno.EACCES, errno.EROFS])
def test_a_read_only_folder_is_named_and_can_be_read(reason, tmp_path, monkeypatch):
    save(tmp_path / "a", state(), TOKENS[:10])

    def refuse(*_):
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(os, "open", refuse)
    for path in (tmp_path / "a", tmp_path / "new"):
        for writes, way in every_way(path):
            if writes:
                with pytest.raises(KvFileError, match=f"cannot be written: {os.strerror(reason)}") as caught:
                    way()
                assert caught.value.errno == reason
    assert load(tmp_path / "a", MODEL).tokens == TOKENS[:10]
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("step", range(6))
def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(version, step, tmp_path, monkeypatch):
    model = MODEL if version == 3 else PLAIN
    path, calls = tmp_path / "a", []
    save(path, filled(model, 5), TOKENS[:5], version=version)
    before = path.read_bytes()

    def failing(name):
        real = getattr(files.DiskFile, name)

        def call(self, *arguments):
            calls.append(name)
            if len(calls) > step:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(self, *arguments)

        monkeypatch.setattr(files.DiskFile, name, call)

    for name in ("write_at", "truncate", "sync", "size"):
        failing(name)
    try:
        save(path, filled(model, 9), TOKENS[:9], version=version, fsync=True)
    except KvFileError as error:
        assert "cannot be written" in str(error)
        assert error.errno == errno.ENOSPC
        assert path.read_bytes() == before
    else:
        assert step == 5
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_errors_of_reading_are_named(tmp_path, monkeypatch):
    path = tmp_path / "a"
    save(path, state(), TOKENS[:10])
    file = KvFile.open(path, MODEL)

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(files.DiskFile, "read_at", fail)
    cache = MODEL.new_cache()
    with pytest.raises(KvFileError, match="cannot be read: Input/output error"):
        file.restore(cache)
    assert cache.len == 0
    file.close()
    for writes, way in every_way(path):
        if not writes:
            with pytest.raises(KvFileError, match="cannot be read: Input/output error"):
                way()
    with pytest.raises(KvFileError, match="cannot be read: Input/output error"):
        KvFile.open(path, MODEL)


def test_short_reads_and_writes_of_the_system_are_completed(tmp_path):
    class Slow(io.FileIO):
        def read(self, size=-1):
            return super().read(min(size, 7))

        def write(self, data):
            return super().write(memoryview(data)[:5])

    with Slow(tmp_path / "a", "w+b") as slow:
        file = files.DiskFile(slow)
        file.write_at(3, b"0123456789" * 3)
        assert file.read_at(0, 100) == bytes(3) + b"0123456789" * 3
        assert (file.read_at(30, 3), file.read_at(33, 5), file.size()) == (b"789", b"", 33)


# --- Windows, as far as its calls can be played ---------------------------------------------------------------------


def test_the_lock_of_windows(tmp_path, monkeypatch):
    calls, taken = [], set()

    def locking(handle, mode, count):
        place = os.lseek(handle, 0, os.SEEK_CUR)
        calls.append((mode, place, count))
        name = os.fstat(handle).st_ino
        if mode == "lock":
            if name in taken:
                raise OSError(errno.EACCES, "Permission denied")
            taken.add(name)
        else:
            taken.remove(name)

    fake = types.SimpleNamespace(LK_NBLCK="lock", LK_UNLCK="unlock", locking=locking)
    monkeypatch.setitem(sys.modules, "msvcrt", fake)
    monkeypatch.setattr(sys, "platform", "win32")
    path, real = tmp_path / "a", os.replace

    def replace(source, target):  # Windows replaces no file that is open
        assert not taken
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with KvFile.open(path, MODEL) as file:
        file.append(state(), TOKENS[:10])
        for write in (lambda: KvFile.open(path, MODEL), lambda: save(path, state(), TOKENS[:10])):
            with pytest.raises(KvFileLocked):
                write()
        assert load(path, MODEL).tokens == TOKENS[:10]
    assert taken == set()
    save(path, state(7), TOKENS[:7])
    assert taken == set()
    assert load(path, MODEL).tokens == TOKENS[:7]
    assert {(place, count) for _, place, count in calls} == {(1 << 40, 1)}
