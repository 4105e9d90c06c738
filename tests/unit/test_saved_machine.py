"""Whatever is done to a conversation with a file, and whenever it is closed or killed: it goes on as if nothing had been.

A state machine sends, cancels, edits, takes back and begins anew; it closes and opens, fills the disk, copies the file
in the middle of a write, cuts and damages it.  After each step the conversation is compared with a twin that has no
file.  What a copy gives must be the conversation after some event, exactly; from there a new twin goes on, which
computes all rows itself.

FUCINA_MACHINE_STEPS=20000 runs longer.
"""

from __future__ import annotations

import errno
import os
import warnings
from contextlib import contextmanager, nullcontext, suppress
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import fucina
from fucina.cache.persist.files import DiskFile
from fucina.chat import Conversation, send_batch
from fucina.chat.story import Story
from fucina.errors import ContextFull, KvFileInvalid, NoSuchTurn, NotASavedConversation, UnknownMessages
from fucina.sampling.sampler import SamplerState
from fucina.saving import SaveCut, SaveFailed
from tests.chat_model import write_chat_model
from tests.conversations import FailAt, check_state, same_rows
from tests.toy_families import toy_model

STEPS = int(os.environ.get("FUCINA_MACHINE_STEPS", "600"))
STEPS_A_RUN = 40
LEAVE_OUT = (Phase.shrink, Phase.explain) if os.environ.get("FUCINA_MACHINE_FAST") else ()
CAPACITY = 400
KINDS = [
    {"template": "chatml", "max_tokens": 6},
    {"template": "chatml", "max_tokens": 7, "temperature": 1.1, "top_k": 40, "seed": 1, "stop": ["abb", "é["]},
    {"max_tokens": 5, "temperature": 0.9, "top_p": 0.9, "presence_penalty": 0.5, "seed": 2},
    {"max_tokens": 5, "speculation": True},
]


class Moment(NamedTuple):
    """A conversation between two events."""

    story: Story
    draws: SamplerState

    @classmethod
    def of(cls, c):
        return cls(c._story._replace(latest=None, turn=None), c.sampler.state())


class Disk:
    """Records what is written, and can be full."""

    def __init__(self):
        self.writes, self.left = [], None

    @contextmanager
    def watched(self):
        write, cut = DiskFile.write_at, DiskFile.truncate

        def write_at(file, offset, data):
            data = bytes(data)
            if self.left is not None and len(data) > self.left:
                write(file, offset, data[: self.left])
                self.left = 0
                raise OSError(errno.ENOSPC, "no space left")
            if self.left is not None:
                self.left -= len(data)
            self.writes.append((offset, data))
            write(file, offset, data)

        def truncate(file, size):
            self.writes.append((size, None))
            cut(file, size)

        DiskFile.write_at, DiskFile.truncate = write_at, truncate
        self.writes, self.left = [], None
        try:
            yield
        finally:
            DiskFile.write_at, DiskFile.truncate = write, cut
            self.left = None

    def at(self, before, share):
        """The file after a part of the writes; share in [0, 1] of their bytes."""
        data, left = bytearray(before), int(share * sum(len(d or b"x") for _, d in self.writes))
        for offset, new in self.writes:
            if left <= 0:
                break
            if new is None:
                del data[offset:]
                left -= 1
                continue
            new = new[:left]
            left -= len(new)
            if len(data) < offset:
                data.extend(bytes(offset - len(data)))
            data[offset : offset + len(new)] = new
        return bytes(data)


TEXTS = st.text(st.sampled_from("ab<|im_end>é "), max_size=8)
SHARE = st.floats(0, 1)


class SavedMachine(RuleBasedStateMachine):
    """The rules; `model` and `folder` are set by the test."""

    model = folder = None
    steps = files = 0

    def __init__(self):
        super().__init__()
        self.disk, self.c, self.twin = Disk(), None, None

    @initialize(kind=st.integers(0, len(KINDS) - 1), system=st.sampled_from([None, "be"]))
    def begin(self, kind, system):
        self.kind, self.system = kind, system
        self.path = self.new_path()
        self.c, self.twin = self.open(system), self.make(system)
        self.moments = [Moment.of(self.twin)]
        self.repaired = True
        self.before = b""

    def teardown(self):
        if self.c is not None:
            self.c.close()
            self.path.unlink()

    # --- helpers ----------------------------------------------------------------------------------------------------

    def new_path(self):
        type(self).files += 1
        return self.folder / f"{self.files}.fuxkv"

    def make(self, system=None, **more):
        return Conversation(self.model, system, capacity=CAPACITY, **KINDS[self.kind], **more)

    def open(self, system=None):
        return self.make(system, save=self.path)

    def both(self, event):
        """An event for the conversation and its twin: the same result or the same error."""
        self.before = self.path.read_bytes()
        results = []
        for c in (self.c, self.twin):
            with self.disk.watched() if c is self.c else nullcontext():
                try:
                    results.append(event(c))
                except (ContextFull, NoSuchTurn, UnknownMessages) as error:
                    results.append(type(error))
        told = [getattr(r, "tokens", r) for r in results]
        assert told[0] == told[1]
        self.repaired |= self.moments[-1] != Moment.of(self.twin)
        self.moments.append(Moment.of(self.twin))

    def switch(self, data, opens=False):
        """Go on with a file of these bytes, if it can be opened, as it must where a process was killed."""
        path = self.new_path()
        path.write_bytes(data)
        try:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                c = self.make(save=path)
        except (KvFileInvalid, NotASavedConversation) as error:
            assert not opens and str(path) in str(error) and path.read_bytes() == data
            path.unlink()
            return None
        assert bool(c.save_lost) == any(w.category is SaveCut for w in told)
        found = Moment.of(c)
        first = found.story  # without a turn it may be as before the first one, or as after taking all of them back
        told = [m.story.opening for m in self.moments]
        anew = first == Story(first.opening, [], first.opening) and (first.opening in told or not data)
        assert found in self.moments or anew, "a conversation that never was"
        self.c.close()
        self.path.unlink()
        self.c, self.path = c, path
        self.twin = self.make()
        self.twin._story = found.story
        self.twin.sampler.restore(found.draws)
        self.moments.append(found)
        self.repaired = False
        return found

    # --- events -----------------------------------------------------------------------------------------------------

    @rule(text=TEXTS, pieces=st.none() | st.integers(0, 3))
    def send(self, text, pieces):
        def event(c):
            if pieces is None or "speculation" in KINDS[self.kind]:  # a piece of text may be of several tokens there
                return c.send(text)
            stream = c.send(text, stream=True)
            for _ in zip(range(pieces), stream, strict=False):
                pass
            stream.close()
            return stream.result

        self.both(event)

    @rule(text=TEXTS.filter(bool))
    def rendered(self, text):
        self.both(lambda c: c.send_rendered(text))

    @rule(keep=st.integers(0, 200), more=st.lists(st.integers(0, 255), min_size=1, max_size=20))
    def reuse(self, keep, more):
        self.both(lambda c: c.send_tokens_reuse([*c.history[:keep], *more]))

    @rule(texts=st.lists(TEXTS, min_size=1, max_size=3), system=st.booleans())
    def messages(self, texts, system):
        roles = ("user", "assistant", "user")[-len(texts) if len(texts) != 2 else -1 :]
        said = [{"role": r, "content": t} for r, t in zip(roles, texts, strict=False)]
        opening = [{"role": "system", "content": "told"}] if system else []
        self.both(lambda c: c.send_messages_reuse([*opening, *said]))

    @rule()
    def regenerate(self):
        self.both(lambda c: c.regenerate())

    @rule(turns=st.integers(0, 3))
    def undo(self, turns):
        self.both(lambda c: c.undo(turns))

    @rule(system=st.sampled_from([..., None, "be brief"]))
    def reset(self, system):
        self.both(lambda c: c.reset(system))

    @rule(text=TEXTS, at=st.integers(1, 5))
    def fail(self, text, at):
        """A sampler that fails in the middle of a reply."""

        def event(c):
            before, c.sampler.processor = c.sampler.processor, FailAt(at)
            try:
                stream = c.send(text, stream=True)
                with suppress(RuntimeError):
                    list(stream)
            finally:
                c.sampler.processor = before
            return stream.result

        if self.twin._story.complete or "template" in KINDS[self.kind]:
            with suppress(ContextFull):
                self.both(event)

    @rule(text=TEXTS)
    def batch(self, text):
        def event(c):
            other = self.make()
            return send_batch([other, c], ["x", text])[1]

        self.both(event)

    @rule(text=TEXTS, room=st.integers(0, 4000))
    def full_disk(self, text, room):
        """No reply is lost where a disk is full, and the next event writes all."""

        def event(c):
            self.disk.left = room if c is self.c else None
            return c.send(text)

        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            self.both(event)
        failed = [w for w in told if w.category is SaveFailed]
        if self.moments[-1] != self.moments[-2]:  # not refused
            assert len(failed) == (self.c.save_error is not None)

    # --- closed, killed, damaged --------------------------------------------------------------------------------------

    @rule()
    def close_and_open(self):
        self.c.close()
        latest, lost = self.moments[-1], self.c.save_lost and not self.repaired
        with warnings.catch_warnings():
            warnings.simplefilter("ignore" if lost else "error", SaveCut)  # a damaged file stays so until an event
            self.c = self.open()
        assert Moment.of(self.c) == latest._replace(draws=self.c.sampler.state()) and bool(self.c.save_lost) == bool(
            lost
        )
        if latest.story.tokens or latest.draws.position:
            assert self.c.sampler.state() == latest.draws
        if self.c.cache.len == self.twin.cache.len:
            same_rows(self.c.cache, self.twin.cache)

    @rule()
    def killed_between_events(self):
        if self.c.save_error is None and self.repaired:
            latest = self.moments[-1]
            found = self.switch(self.path.read_bytes(), opens=True)
            assert found in (None, latest) or not latest.story.tokens
            assert not self.c.save_lost

    @rule(share=SHARE)
    def killed_in_the_middle(self, share):
        self.switch(self.disk.at(self.before, share), opens=self.repaired)

    @rule(share=SHARE)
    def cut(self, share):
        data = self.path.read_bytes()
        self.switch(data[: int(share * len(data))])

    @rule(share=SHARE, bit=st.integers(0, 7))
    def flipped(self, share, bit):
        data = bytearray(self.path.read_bytes())
        if data:
            data[int(share * (len(data) - 1))] ^= 1 << bit
            self.switch(bytes(data))

    # --- after every step -------------------------------------------------------------------------------------------

    @invariant()
    def everything_agrees(self):
        if self.c is None:
            return
        type(self).steps += 1
        c, twin = self.c, self.twin
        assert (c.history, c.messages, c._story.turns) == (twin.history, twin.messages, twin._story.turns)
        assert c.sampler.state() == twin.sampler.state() and c._story.complete == twin._story.complete
        assert c.system == twin.system
        check_state(c, complete=False)


def run_machine(model, folder, steps):
    machine = type("Machine", (SavedMachine,), {"model": model, "folder": folder})
    checks = list(HealthCheck)
    while machine.steps < steps:
        runs = -(-(steps - machine.steps) // STEPS_A_RUN)
        options = settings(
            max_examples=runs,
            stateful_step_count=STEPS_A_RUN,
            deadline=None,
            suppress_health_check=checks,
            report_multiple_bugs=False,
            phases=tuple(p for p in Phase if p not in LEAVE_OUT),
        )
        run_state_machine_as_test(machine, settings=options)
    print(f"{machine.steps} steps, {machine.files} files")


def test_any_order_of_events(tmp_path):
    model = fucina.load(write_chat_model(tmp_path / "chat.gguf"))
    run_machine(model, tmp_path, STEPS)
    model.close()


@pytest.mark.parametrize("kind", ["ring", "recurrent", "latent"])
def test_every_kind_of_state(kind, tmp_path):
    model = toy_model(kind)
    run_machine(model, tmp_path, STEPS // 3)
    model.close()
