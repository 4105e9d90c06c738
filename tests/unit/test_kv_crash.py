"""Whatever happens in the middle of an append, the file opens to a true prefix of what it held or should hold.

A *scene* is a file after a few turns and the append that comes next.  It is run once to learn what it writes, and then
many times more: it stops at every call, at any byte, with an error or without a word; sectors are lost or torn.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import dataclass, field, replace
from weakref import ref

import numpy as np
import pytest

from fucina.cache import State
from fucina.cache.persist.identity import identity_of
from fucina.cache.persist.kvfile import KvFile
from fucina.errors import KvFileError, KvFileInvalid
from tests.kv_files import (
    KINDS,
    Crash,
    DyingFile,
    MemoryFile,
    ToyModel,
    after_power_loss,
    effort,
)
from tests.state_models import check_claims, extend


@dataclass
class Text:
    """What a file should hold: a state, its tokens (perhaps one more), and notes."""

    state: State
    tokens: list[int] = field(default_factory=list)
    notes: list[bytes] = field(default_factory=list)
    prefix: int = 0

    @property
    def rows(self):
        """Tokens of all positions."""
        return self.tokens[: self.state.len]

    def append(self, file):
        return file.append(self.state, self.tokens[self.prefix :], self.prefix, self.notes)


def turn(text, rng):
    """The next state of a conversation: longer, shorter, another branch, other notes."""
    state, tokens, notes = text.state, text.rows, list(text.notes)
    if rng.random() < 0.4 and state.len:
        state.rewind(state.rewind_point(int(rng.integers(text.prefix, state.len + 1))))
        tokens = [5] * text.prefix if state.len < text.prefix else tokens[: state.len]
        extend(state, tokens)
        notes = notes[: int(rng.integers(len(notes) + 1))]
    if rng.random() < 0.3:
        state.checkpoint()
    for _ in range(int(rng.integers(0, 3))):
        tokens = [*tokens, *(int(t) for t in rng.integers(0, 1000, rng.integers(1, 30)))]
        tokens = tokens[: state.capacity]
        extend(state, tokens)
    for _ in range(int(rng.integers(0, 3))):
        notes.append(rng.bytes(int(rng.integers(0, 60))))
    if rng.random() < 0.4:
        tokens = [*tokens, int(rng.integers(1000))]
    return Text(state, tokens, notes, text.prefix)


@dataclass
class Scene:
    model: ToyModel
    before: bytes  # the file
    old: Text  # what it holds; its state has gone on
    new: Text  # what is appended
    log: list  # what that writes
    old_rows: int
    fsync: bool
    earlier: list  # all texts that it has held, `old` the last

    def file(self, storage):
        return KvFile(storage, identity_of(self.model), fsync=self.fsync)

    def owned(self, storage):
        """The file as the session has it that wrote what is in it."""
        file = self.file(storage)
        file._content = replace(file._content, owner=ref(self.new.state))
        return file


def scene(seed):
    rng = np.random.default_rng(seed)
    kind = list(KINDS)[seed % len(KINDS)]
    model, storage = ToyModel(KINDS[kind]), MemoryFile()
    fsync, prefix = bool(rng.random() < 0.3), int(rng.choice([0, 0, 3]))
    text = Text(model.new_cache(160), [], [], prefix)
    extend(text.state, [5] * prefix)
    text.tokens = [5] * prefix
    file = KvFile(storage, identity_of(model), fsync=fsync)
    earlier = [text]
    for _ in range(int(rng.integers(0, 4))):
        text = turn(text, rng)
        earlier.append(text)
        text.append(file)
    old, old_rows, before = text, file.len, bytes(storage.data)
    new = turn(text, rng)
    copy = MemoryFile(before)
    found = Scene(model, before, old, new, copy.log, old_rows, fsync, earlier)
    new.append(found.owned(copy))
    return found


def agree(a, b):
    """Length of the common prefix."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def check(scene, data, least=0, exact=False):
    """A file opens to a true prefix, of at least so many positions; returns the opened file, its state and the text.

    It may be one of an earlier text: what was undone comes back if the crash comes before that is written.
    """
    file = scene.file(MemoryFile(data))
    state = scene.model.new_cache()
    restored = file.restore(state)
    prefix = [5] * restored.prefix_rows
    tokens = prefix + restored.tokens if state.len else restored.tokens
    assert any(
        text.tokens[: len(tokens)] == tokens and text.notes[: len(restored.notes)] == restored.notes
        for text in [*scene.earlier, scene.new]
    ), (tokens, restored)
    assert len(tokens) - state.len in (0, 1)
    check_claims(state, tokens)
    assert file.len >= least, (file.len, least, restored.why)
    if exact and len(scene.new.rows) > scene.new.prefix:
        assert tokens == scene.new.tokens or state.len < len(scene.new.rows)
        assert file.len == scene.new.state.len
        assert file.notes == scene.new.notes
        assert restored.why == "" or state.len < file.len or file.len <= file.prefix_rows
    return file, state, tokens


def goes_on(scene, file, state, tokens):
    """A file that was opened after a crash takes the next turn, and gives it back."""
    rows = [*tokens[: state.len], *([3, 1, 4] if state.len + 3 <= state.capacity else [])]
    extend(state, rows)
    prefix = file.prefix_rows if state.len > file.prefix_rows else 0
    file.append(state, rows[prefix:], prefix, [b"after"])
    other = scene.model.new_cache()
    again = scene.file(MemoryFile(file._file.data))
    restored = again.restore(other)
    assert restored.tokens == rows[prefix:]
    assert restored.notes == [b"after"]
    check_claims(other, rows)


def crashes(scene, rng, most):
    """Where to stop: at each call, and at random bytes."""
    borders = effort(scene.log)
    inside = rng.integers(0, borders[-1] + 1, most).tolist()
    return [*borders, *inside][: most + len(borders)]


def run_scene(seed, most):
    """Crash a scene in all ways; returns how many crashes that were."""
    s, rng = scene(seed), np.random.default_rng(seed)
    common = agree(s.old.tokens[: s.old_rows], s.new.rows)
    done = check(s, _run(s, MemoryFile(s.before)), exact=True)
    goes_on(s, *done)
    count = 0
    for left in crashes(s, rng, most):
        for error in (Crash(), None):
            dying = DyingFile(s.before, left, error)
            with suppress(Crash):
                s.new.append(s.owned(dying))
            # What agrees with the new text was there before, and is never written over.
            file, state, tokens = check(s, dying.data, common)
            count += 1
            if rng.random() < 0.1:
                goes_on(s, file, state, tokens)
        for garbage in (False, True):
            done = s.log[: int(rng.integers(len(s.log) + 1))]
            data = after_power_loss(s.before, done, rng, int(rng.choice([512, 4096])), garbage)
            try:
                check(s, data)
            except KvFileInvalid:  # torn where it says what it is, while that was written
                assert garbage
                assert any(at == 0 for _, at, _ in s.log)
            count += 1
        torn = bytearray(dying.data)
        page = int(rng.choice([512, 4096]))
        at = 4096 * int(rng.choice([1, 2]))  # one of the counters
        if len(torn) > at:
            torn[at : at + page] = rng.bytes(len(torn[at : at + page]))
            check(s, torn)
            count += 1
    return count


def _run(s, storage):
    s.new.append(s.owned(storage))
    return storage.data


def test_crashes_leave_a_true_prefix():
    assert sum(run_scene(seed, 6) for seed in range(84)) > 4000


@pytest.mark.slow
def test_ten_thousand_crashes_leave_a_true_prefix():
    total = sum(run_scene(seed, 12) for seed in range(1000, 1140))
    print(f"{total} crashes")
    assert total > 9700


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_full_disk_the_same_object_goes_on(kind):
    for seed in range(list(KINDS).index(kind), 70, len(KINDS)):
        s = scene(seed)
        for left in effort(s.log)[:-1]:
            dying = DyingFile(s.before, left, OSError(errno.ENOSPC, "No space left on device"))
            file = s.owned(dying)
            with pytest.raises(KvFileError, match="No space left on device") as caught:
                s.new.append(file)
            assert caught.value.errno == errno.ENOSPC
            dying.left = 1 << 30
            s.new.append(file)
            check(s, dying.data, exact=True)
            assert s.new.append(file) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_failure_the_old_text_can_be_written_again(kind):
    for seed in range(list(KINDS).index(kind), 70, len(KINDS)):
        s = scene(seed)
        rows = s.old.tokens[: s.old_rows]
        if len(rows) <= s.old.prefix:
            continue
        state = s.model.new_cache()
        extend(state, rows)
        for left in effort(s.log)[:-1]:
            dying = DyingFile(s.before, left, OSError(errno.ENOSPC, "No space left on device"))
            file = s.owned(dying)
            with pytest.raises(KvFileError):
                s.new.append(file)
            dying.left = 1 << 30
            file.append(state, rows[s.old.prefix :], s.old.prefix, s.old.notes)
            later, other = s.file(MemoryFile(dying.data)), s.model.new_cache()
            restored = later.restore(other)
            assert later.tokens == rows[s.old.prefix :]
            assert later.notes == s.old.notes
            assert restored.why == ""
            check_claims(other, rows[: other.len])
