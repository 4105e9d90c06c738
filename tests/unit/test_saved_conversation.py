"""Conversations and texts in files: what is refused, what is warned of, what a failed write and Ctrl-C leave.

That a conversation goes on exactly, whatever was done to it, is tested in `test_saved_machine.py`.
"""

import errno
import os
import subprocess
import sys
import warnings
from itertools import pairwise
from pathlib import Path

import pytest

import fucina
from fucina.cache import KvFile
from fucina.cache.persist import inspect, read_tokens
from fucina.cache.persist.files import DiskFile
from fucina.chat import Conversation, WarmState, send_batch
from fucina.chat.notes import Notes
from fucina.errors import (
    ContextFull,
    ConversationClosed,
    InvalidOption,
    KvFileError,
    KvFileInvalid,
    KvFileLocked,
    NotASavedConversation,
    NotASavedText,
    SystemMismatch,
)
from fucina.saving import SaveCut, SaveFailed
from tests.chat_model import write_chat_model
from tests.conversations import check_state, same_rows
from tests.interrupts import every_interrupt
from tests.models import TINY

FUCINA = Path(fucina.__file__).parent
OPTIONS = {"max_tokens": 5, "capacity": 400}
CHATML = {"template": "chatml", **OPTIONS}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_chat_model(tmp_path_factory.mktemp("model") / "chat.gguf")


@pytest.fixture(scope="module")
def model(path):
    model = fucina.load(path)
    yield model
    model.close()


@pytest.fixture
def file(tmp_path):
    return tmp_path / "talk.fuxkv"


@pytest.fixture
def talk(model, file):
    """A file with two turns; its bytes, and the conversation that it holds, without a file."""
    twin = Conversation(model, "be", **CHATML)
    with Conversation(model, "be", save=file, **CHATML) as c:
        for text in ("hi", "and?"):
            assert c.send(text).tokens == twin.send(text).tokens
    return file, twin


class Full:
    """A disk without room for a while."""

    def __init__(self, monkeypatch):
        self.full, write = False, DiskFile.write_at

        def write_at(file, offset, data):
            if self.full:
                write(file, offset, bytes(data)[: len(data) // 2])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            write(file, offset, data)

        monkeypatch.setattr(DiskFile, "write_at", write_at)


# --- it goes on -----------------------------------------------------------------------------------------------------


def test_what_is_restored(model, talk):
    file, twin = talk
    with Conversation(model, save=file, **CHATML) as c:
        assert (c.system, c.messages, c.history) == ("be", twin.messages, twin.history)
        assert c.restored == c.cache.len == twin.cache.len and c.save_path == file and c.save_lost == ""
        same_rows(c.cache, twin.cache)
        reply = c.send("more")
        assert reply.tokens == twin.send("more").tokens and reply.cached_tokens >= c.restored - 10
        assert c.regenerate().tokens == twin.regenerate().tokens
        c.undo(3)
        twin.undo(3)
        assert c.messages == twin.messages and c.history == []


@pytest.mark.parametrize("seeded", [True, False])
def test_draws_go_on(model, file, seeded):
    options = {"temperature": 1.3, "top_k": 50, **OPTIONS}
    twin = Conversation(model, seed=7, **options)
    first = Conversation(model, seed=7, save=file, **options)
    for text in ("a", "b"):
        assert first.send(text).tokens == twin.send(text).tokens
        first.close()
        first = Conversation(model, save=file, **options, **({"seed": 7} if seeded else {}))
        assert first.sampler.state() == twin.sampler.state() and first.sampler.options.seed == 7
    first.close()
    with Conversation(model, save=file, seed=8, **options) as other:  # other draws are wanted
        assert (other.sampler.state().seed, other.sampler.state().position) == (8, 0)


def test_what_is_appended_is_what_is_new(model, file):
    with Conversation(model, save=file, **CHATML) as c:
        sizes = [file.stat().st_size]
        for _ in range(12):
            c.send("abc")
            sizes.append(file.stat().st_size)
    grown = [b - a for a, b in pairwise(sizes)]
    assert max(grown[2:]) <= min(grown[2:]) * 1.2
    before = file.read_bytes()
    Conversation(model, save=file, **CHATML).close()
    assert file.read_bytes() == before  # nothing happened


def test_undone_turns_leave_the_disk(model, file):
    with Conversation(model, save=file, **OPTIONS) as c:
        c.send("hi")
        c.send("a secret")
        assert b"a secret" in file.read_bytes()
        c.undo()
        assert b"a secret" not in file.read_bytes()
        c.reset()
        assert b'"hi"' not in file.read_bytes() and read_tokens(file) == []


def test_batches(model, tmp_path):
    twins = [Conversation(model, **OPTIONS) for _ in range(3)]
    for _ in range(2):
        cs = [Conversation(model, save=tmp_path / f"{i}.fuxkv", **OPTIONS) for i in range(3)]
        told = send_batch(cs, ["a", "b", "c"])
        assert [r.tokens for r in told] == [r.tokens for r in send_batch(twins, ["a", "b", "c"])]
        for c in cs:
            c.close()
    for i, twin in enumerate(twins):
        with Conversation(model, save=tmp_path / f"{i}.fuxkv", **OPTIONS) as c:
            assert c.history == twin.history
            check_state(c)


def test_a_grammar_is_part_of_a_turn(model, file):
    pytest.importorskip("llguidance")
    grammar = fucina.Grammar.regex("[ab]{3}")
    twin = Conversation(model, **OPTIONS)
    with Conversation(model, save=file, **OPTIONS) as c:
        assert c.send("x", grammar=grammar).text == twin.send("x", grammar=grammar).text
    with Conversation(model, save=file, **OPTIONS) as c:
        assert c._story.turns == twin._story.turns and c.regenerate().text == twin.regenerate().text


def test_rows_before_the_first_token(model, file):
    with Conversation(model, template="chatml", save=file, **OPTIONS) as c:
        model.forward_rows([(c.cache, [3, 1, 4, 1, 5], "none")])
        c.note_prefix_rows(5)
    with Conversation(model, template="chatml", save=file, **OPTIONS) as c:
        assert (c.prefix_rows, c.cache.len, c.history) == (5, 5, [])
        reply = c.send("hi")
    with Conversation(model, template="chatml", save=file, **OPTIONS) as c:
        assert c.prefix_rows == 5 and c.history[-len(reply.tokens) :] == reply.tokens
        assert c.regenerate().tokens == reply.tokens


def test_a_cache_that_was_taken_goes_to_a_file(model, file, tmp_path):
    twin = Conversation(model, **CHATML)
    twin.send("hi")
    warm = twin.take_cache()
    copy = model.new_cache(300)
    copy.copy_rows(warm.cache, 0, warm.cache.len)
    with Conversation.init_warm(model, warm, template="chatml", max_tokens=5, save=file) as c:
        reply = c.send("and?")
    again = Conversation.init_warm(model, WarmState(copy, warm.tokens, 0, warm.newest), template="chatml", max_tokens=5)
    assert again.send("and?").tokens == reply.tokens
    with Conversation(model, template="chatml", save=file, **OPTIONS) as c:
        assert c.history == again.history and not c._story.complete
        check_state(c)
    with pytest.raises(InvalidOption, match="needs a new file"):
        Conversation.init_warm(model, again.take_cache(), save=file)


# --- the end ----------------------------------------------------------------------------------------------------------


def test_close_and_take_cache(model, file):
    c = Conversation(model, save=file, **OPTIONS)
    stream = c.send("hi", stream=True)
    next(stream)
    c.close()  # ends the reply, and keeps what there is
    c.close()
    assert stream.result.finish_reason == "cancelled"
    with pytest.raises(ConversationClosed):
        c.send("x")
    with Conversation(model, save=file, **OPTIONS) as c:
        assert c.messages[-1]["content"] == stream.result.text
        c.send("y")
        history = list(c.history)
        warm = c.take_cache()
        with KvFile.open(file, model) as free:  # no longer locked
            assert free.tokens == history == [*warm.tokens, *([] if warm.newest is None else [warm.newest])]
    Conversation(model).close()  # one without a file ends too


def test_two_on_one_file(model, file, tmp_path, path):
    with Conversation(model, save=file, **OPTIONS) as c:
        with pytest.raises(KvFileLocked):
            Conversation(model, save=file)
        with pytest.raises(KvFileLocked):
            model.generate("a", save=file)
        code = f"import fucina; fucina.Conversation(fucina.load({str(path)!r}, backend='naive'), save={str(file)!r})"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and "KvFileLocked" in done.stderr
        c.send("hi")
    with pytest.raises(SystemMismatch):
        Conversation(model, "other", save=file)
    Conversation(model, save=file).close()  # a refusal leaves no lock


# --- refusals -----------------------------------------------------------------------------------------------------------


def test_another_system_message(model, talk):
    file, _ = talk
    before = file.read_bytes()
    with pytest.raises(SystemMismatch, match=r"is 'be', and 'be brief' was given"):
        Conversation(model, "be brief", save=file)
    assert file.read_bytes() == before
    Conversation(model, "be", save=file, **OPTIONS).close()


def test_files_of_others_stay_as_they_are(model, talk, tmp_path):
    file, _ = talk
    before = file.read_bytes()
    other = fucina.load(TINY / "llama.gguf")
    with pytest.raises(KvFileInvalid, match="another model"):
        Conversation(other, template="chatml", save=file)
    with pytest.raises(KvFileInvalid, match="another model"):
        other.generate("a", save=file)
    other.close()
    with pytest.raises(NotASavedText, match="holds a conversation"):
        model.generate("a", save=file)
    with pytest.raises(ContextFull, match="capacity is 20"):
        Conversation(model, save=file, capacity=20)
    assert file.read_bytes() == before
    text = tmp_path / "text.fuxkv"
    model.generate("abc", max_tokens=2, save=text)
    before = text.read_bytes()
    with pytest.raises(NotASavedConversation, match="tokens of a text"):
        Conversation(model, save=text)
    assert text.read_bytes() == before
    plain = tmp_path / "plain.fuxkv"
    for content in (b"{}", b"FUXKV001" + bytes(100), before[:40] + b"x" + before[41:]):
        plain.write_bytes(content)
        with pytest.raises(KvFileInvalid):
            Conversation(model, save=plain)
        assert plain.read_bytes() == content


@pytest.mark.parametrize("save", ["", 3, b"x\0", "none/such/file"])
def test_names_that_are_none(model, save):
    with pytest.raises((InvalidOption, KvFileError, KvFileInvalid)):
        Conversation(model, save=save)


# --- damage -------------------------------------------------------------------------------------------------------------


def test_a_torn_tail_is_told(model, talk, tmp_path):
    file, twin = talk
    data = file.read_bytes()
    twin.undo()
    file.write_bytes(data[:-100])
    with pytest.warns(SaveCut, match=r"goes on as it was after 1 turn, \d+ tokens") as told:
        c = Conversation(model, save=file, **CHATML)
    assert c.save_lost == str(told[0].message) and str(file) in c.save_lost
    assert (c.messages, c.history) == (twin.messages, twin.history)
    check_state(c)
    assert file.read_bytes() == data[:-100]  # until something is said
    assert c.send("again").tokens == twin.send("again").tokens
    c.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Conversation(model, save=file, **CHATML).close()


def test_notes_of_another_moment_are_passed_over(model):
    """Notes that were written again after the text before them had changed, and only a part of them can be read."""
    c = Conversation(model, "be", **CHATML)
    notes, draws = Notes(), c.sampler.state()
    moments = [c._story]
    for text in ("a", "b"):
        c.send(text)
        raw = notes.of(c._story, draws)
        moments.append(c._story)
    assert len(raw) == 3 and Notes.read(raw, c.history)[1] == moments[2]._replace(latest=None)
    assert Notes.read(raw[:2], c.history)[1] == moments[1]._replace(latest=None)
    changed = [*c.history]
    changed[len(moments[1].tokens) - 1] ^= 1  # the end of the first reply: neither turn is of this text
    for known in (raw, raw[:2], raw[:1]):
        assert Notes.read(known, changed)[1] == moments[0]
    late = Notes().of(c._story, draws)  # the first turn was never noted by itself
    assert Notes.read(late, c.history)[1] == moments[2]._replace(latest=None)
    assert Notes.read(late[:2], c.history)[1] == moments[0]
    again, story, _ = Notes.read(raw[:2], c.history)
    assert again.of(story, draws) == raw[:2] and again.of(moments[0], draws) == raw[:1]


@pytest.mark.parametrize(
    "raw",
    [b"{}", b"[]", b"\xff", b"3", b'{"fucina":"conversation","version":2}', b'{"fucina":"conversation","version":1}'],
)
def test_notes_that_are_none(raw):
    with pytest.raises(NotASavedConversation):
        Notes.read([raw], [1, 2])


# --- files that somebody else changes while they are open ---------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 100, 9_000, 13_000])
def test_a_file_that_is_cut_while_it_is_open_is_written_again(model, tmp_path, size):
    twin = Conversation(model, **CHATML)
    with Conversation(model, save=tmp_path / "a.fuxkv", **CHATML) as c:
        c.send("one"), twin.send("one")
        os.truncate(tmp_path / "a.fuxkv", size)
        assert c.send("two").tokens == twin.send("two").tokens
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Conversation(model, save=tmp_path / "a.fuxkv", **CHATML) as again:
            assert (again.messages, again.history) == (twin.messages, twin.history)
            check_state(again)


@pytest.mark.skipif(os.name == "nt", reason="an open file can be neither removed nor replaced there")
@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_removed_while_it_is_open_is_missed(model, tmp_path, replaced, monkeypatch):
    """The reply is there, the warning too; a file that has taken its place stays."""
    monkeypatch.chdir(tmp_path)
    twin = Conversation(model, **CHATML)
    c = Conversation(model, save="a.fuxkv", **CHATML)
    monkeypatch.chdir("/")  # a relative name means what it meant
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert c.send("one").tokens == twin.send("one").tokens
    os.rename(tmp_path / "a.fuxkv", tmp_path.parent / "moved")
    if replaced:
        (tmp_path / "a.fuxkv").write_bytes(b"mine")
    with pytest.warns(SaveFailed, match="removed or replaced"):
        assert c.send("two").tokens == twin.send("two").tokens
    assert isinstance(c.save_error, KvFileError)
    with pytest.warns(SaveFailed, match="removed or replaced"):
        c.close()
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"mine"] * replaced


# --- writes that fail ---------------------------------------------------------------------------------------------------


def test_a_full_disk_costs_no_reply(model, file, monkeypatch):
    disk = Full(monkeypatch)
    twin = Conversation(model, **CHATML)
    c = Conversation(model, save=file, **CHATML)
    c.send("hi")
    disk.full = True
    with pytest.warns(SaveFailed, match=r"talk\.fuxkv: not saved, which is tried again later: .*[Nn]o space"):
        reply = c.send("and?")
    twin.send("hi")
    assert reply.tokens == twin.send("and?").tokens and isinstance(c.save_error, KvFileError)
    copy = file.with_name("copy.fuxkv")
    copy.write_bytes(file.read_bytes())
    with Conversation(model, save=copy, **CHATML) as older:
        assert older.history == twin.history[: len(older.history)] and older.save_lost == ""
    with pytest.warns(SaveFailed):
        c.undo()
    twin.undo()
    disk.full = False
    assert c.send("more").tokens == twin.send("more").tokens and c.save_error is None
    c.close()
    with Conversation(model, save=file, **CHATML) as c:
        assert (c.history, c.messages) == (twin.history, twin.messages)
        check_state(c)


def test_close_tries_again(model, file, monkeypatch):
    disk = Full(monkeypatch)
    c = Conversation(model, save=file, **OPTIONS)
    disk.full = True
    with pytest.warns(SaveFailed):
        c.send("hi")
    disk.full = False
    c.close()
    with Conversation(model, save=file, **OPTIONS) as again:
        assert again.history == c.history


def test_a_text_is_complete_where_the_disk_is_full(model, file, monkeypatch):
    disk = Full(monkeypatch)
    disk.full = True
    with pytest.warns(SaveFailed):
        text = model.generate("abc", max_tokens=4, save=file)
    assert text.tokens == model.generate("abc", max_tokens=4).tokens
    with KvFile.open(file, model):  # released nevertheless
        pass


# --- texts --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 3}, {"speculative": True}])
def test_texts_go_on(model, file, options):
    ids = list(range(40, 100))
    for prompt, cached in ((ids, 0), (ids, 59), ([*ids, 1, 2], 60), ([*ids[:30], 7], 30), ([3], 0), ([5, 6], 0)):
        reply = model.generate(prompt, max_tokens=6, save=file, **options)
        assert reply.tokens == model.generate(prompt, max_tokens=6, **options).tokens
        assert reply.cached_tokens == reply.reused_prefix == cached
        assert read_tokens(file) == [*prompt, *reply.tokens]
    more = [*prompt, *reply.tokens]
    assert model.generate(more, max_tokens=2, save=file, **options).cached_tokens == len(more) - 1
    assert inspect(file).why == ""


def test_a_stream_that_is_closed_is_stored_as_far_as_it_got(model, file):
    stream = model.generate([1, 2, 3], max_tokens=9, save=file, stream=True)
    with pytest.raises(KvFileLocked):
        model.generate([1], save=file)
    next(stream)
    stream.close()
    assert read_tokens(file) == [1, 2, 3, *stream.result.tokens]
    with pytest.raises(InvalidOption):
        model.generate([1], max_tokens=9, save=3)


# --- Ctrl-C -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signalled", [True, False])
def test_ctrl_c_leaves_a_conversation_that_can_go_on(model, tmp_path, signalled):
    """At instructions of a turn and its write: what is in memory goes on, and so does what is in the file."""
    made, at = [], 0
    moments = []

    def make():
        nonlocal at
        at += 1
        file = tmp_path / f"{at}.fuxkv"
        c = Conversation(model, save=file, template="chatml", max_tokens=2, capacity=100)
        c.send("a")
        made.append((c, file))
        moments.append(list(c.history))
        return lambda: c.send("b")

    places = (FUCINA / "chat", FUCINA / "saving.py", FUCINA / "cache" / "persist")
    count = 0
    for _ in every_interrupt(make, *places, signalled=signalled, first=3, step=97 if signalled else 211):
        c, file = made[-1]
        before = moments[-1]
        copy = file.with_name(f"copy{at}.fuxkv")
        copy.write_bytes(file.read_bytes())
        with Conversation(model, save=copy, template="chatml", capacity=100) as there:
            assert there.history == before or there.history[: len(before)] == before
        check_state(c, complete=False)
        reply = c.send("c")
        history = list(c.history)
        c.close()
        with Conversation(model, save=file, template="chatml", max_tokens=2, capacity=100) as again:
            assert again.history == history and again.messages[-1]["content"] == reply.text
        count += 1
    made[-1][0].close()
    assert count > 5
