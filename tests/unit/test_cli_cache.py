"""`fucina cache`, and --save of `generate` and `chat`: what is restored, shown, found damaged and removed; and what never is."""

import io
import json
import os
import re
import sys
import time
from pathlib import Path

import pytest

import fucina
from fucina.cache import KvFile
from fucina.cache.persist.files import DiskFile
from fucina.chat import Conversation
from tests.chat_model import write_chat_model
from tests.models import TINY


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(write_chat_model(tmp_path_factory.mktemp("model") / "chat.gguf"))


@pytest.fixture(scope="module")
def model(path):
    model = fucina.load(path, backend="naive")
    yield model
    model.close()


def naive(path):
    return ("--model", path, "--backend", "naive")


@pytest.fixture
def folder(tmp_path, model):
    """A conversation, a text, another model's file, a damaged one; and files that are not ours."""
    folder = tmp_path / "files"
    folder.mkdir()
    with Conversation(model, "be", max_tokens=4, save=folder / "talk.fuxkv") as c:
        c.send("hi")
    model.generate("abc", max_tokens=3, save=folder / "text.fuxkv")
    other = fucina.load(TINY / "llama.gguf", backend="naive")
    other.generate("abc", max_tokens=3, save=folder / "other.fuxkv")
    other.close()
    data = bytearray((folder / "text.fuxkv").read_bytes())
    data[-9] ^= 1
    (folder / "bad.fuxkv").write_bytes(data)
    (folder / "notes.txt").write_text("mine")
    (folder / "mine.fuxkv").write_text("not a file of rows")
    (folder / "empty.fuxkv").write_bytes(b"")
    (folder / "folder.fuxkv").mkdir()
    if sys.platform != "win32":
        outside = tmp_path / "outside.fuxkv"
        outside.write_bytes((folder / "text.fuxkv").read_bytes())
        (folder / "link.fuxkv").symlink_to(outside)
    return folder


def left(folder):
    return sorted(p.name for p in folder.iterdir())


# --- --save ---------------------------------------------------------------------------------------------------------


def test_generate_goes_on_from_a_file(cli, path, model, tmp_path):
    file = tmp_path / "a.fuxkv"
    options = ("-n", 5, "--save", file, "--json", "--stats", *naive(path))
    first = json.loads(cli("generate", "abcd", *options)[1])
    status, out, err = cli("generate", "abcdefgh", *options)
    second = json.loads(out)
    assert status == 0 and (first["cached_tokens"], second["cached_tokens"]) == (0, 4)
    assert f"prompt 8 tokens (4 from {file}) in" in err
    assert second["tokens"] == model.generate("abcdefgh", max_tokens=5).tokens
    third = json.loads(cli("generate", "abcdefgh" + second["text"], *options)[1])
    assert third["cached_tokens"] >= 8


def test_chat_goes_on_from_a_file(cli, path, model, tmp_path):
    file = tmp_path / "a.fuxkv"
    sampling = {"temperature": 1.2, "top_k": 40}
    options = ("-n", 5, "-t", 1.2, "--top-k", 40, "--save", file, "--json", *naive(path))
    status, out, err = cli("chat", "hi", "--system", "be", *options)
    first = json.loads(out)
    assert status == 0 and f"kept in {file}" in err and first["save"]["restored"] == 0
    seed = int(err.split("seed ")[1].split()[0])
    status, out, err = cli("chat", "and?", *options)
    second = json.loads(out)
    assert status == 0 and f"goes on from {file}: 1 message, " in err and second["save"]["restored"] > 10
    twin = Conversation(model, "be", max_tokens=5, seed=seed, **sampling)
    assert [twin.send("hi").tokens, twin.send("and?").tokens] == [
        first["turns"][0]["tokens"],
        second["turns"][0]["tokens"],
    ]
    assert second["messages"] == twin.messages and second["turns"][0]["cached_tokens"] > 10
    status, out, err = cli("chat", "x", "--system", "no", *options)
    assert (status, out) == (1, "") and "'be'" in err and "'no'" in err


def test_chat_without_a_name_has_a_file_per_model(cli, path, monkeypatch, tmp_path):
    monkeypatch.setenv("FUCINA_HOME", str(tmp_path))
    hostile = tmp_path / "..a b`$(x)ü.gguf"
    hostile.write_bytes(Path(path).read_bytes())
    for file in (str(hostile), path):
        assert cli("chat", "hi", "-n", 3, *naive(file), "--save")[0] == 0
    other = write_chat_model(tmp_path / "other.gguf", words=("more",))
    assert cli("chat", "hi", "-n", 3, *naive(other), "--save")[0] == 0
    files = {p.name for p in (tmp_path / "chats").iterdir()}
    assert len(files) == 2 and all(re.fullmatch(r"(a_b_+x|other)-[0-9a-f]{16}\.fuxkv", name) for name in files), files
    if sys.platform != "win32":
        assert (tmp_path / "chats").stat().st_mode & 0o077 == 0


def test_names_that_are_no_files_of_rows(cli, path, tmp_path, monkeypatch):
    for command in (("chat", "--save", "hello there"), ("generate", "a", "--save", tmp_path / "a.json")):
        status, out, err = cli(*command, *naive(path))
        assert (status, out) == (2, "") and "expected the name of a .fuxkv file" in err
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"hi\n/save {tmp_path}/x.fuxkv\n"))
    status, _, err = cli("chat", "-n", 2, "--no-history", *naive(path))
    assert status == 1 and "/save writes JSON" in err and not (tmp_path / "x.fuxkv").exists()


@pytest.mark.parametrize("content", [b"hello", b"FUXKV003" + bytes(5000), b"GGUF"])
def test_a_file_of_somebody_else_is_left_alone(cli, path, tmp_path, content):
    file = tmp_path / "a.fuxkv"
    file.write_bytes(content)
    for command in ("chat", "generate"):
        status, out, err = cli(command, "a", "-n", 2, "--save", file, *naive(path))
        assert (status, out) == (1, "") and err.splitlines()[-1].startswith("fucina: ") and str(file) in err
        assert file.read_bytes() == content


# --- cache ----------------------------------------------------------------------------------------------------------


def test_list(cli, folder, model):
    status, out, _ = cli("cache", "list", folder, "--json")
    document = json.loads(out)
    files = {os.path.basename(f["file"]): f for f in document["files"]}
    assert status == 0 and sorted(files) == ["bad.fuxkv", "other.fuxkv", "talk.fuxkv", "text.fuxkv"]
    assert files["text.fuxkv"]["model"] == model.fingerprint.hex() != files["other.fuxkv"]["model"]
    assert files["text.fuxkv"]["tokens"] == 5 and files["text.fuxkv"]["tenant"] is None
    assert document["bytes"] == sum((folder / name).stat().st_size for name in files)
    assert document["others"] == 3 + (sys.platform != "win32")
    status, out, _ = cli("cache", "list", folder)
    assert status == 0 and out.isascii() and "4 files" in out and "left alone" in out


def test_a_tenant_is_shown_by_a_hash(cli, folder, model):
    with KvFile.open(folder / "t.fuxkv", model, salt=b"secret name") as file:
        state = model.new_cache(8)
        model.forward([1, 2, 3], state)
        file.append(state, [1, 2, 3])
    status, out, _ = cli("cache", "list", folder / "t.fuxkv", "--json")
    assert status == 0 and len(json.loads(out)["files"][0]["tenant"]) == 32 and "secret" not in out


def test_show(cli, folder, path):
    status, out, _ = cli("cache", "show", folder / "talk.fuxkv", "--json")
    document = json.loads(out)
    assert status == 0 and document["messages"] == 3 and document["version"] == 3
    status, out, _ = cli("cache", "show", folder / "talk.fuxkv", "--text")
    assert status == 0 and "system: be\nuser: hi\nassistant: " in out
    status, out, _ = cli("cache", "show", folder / "text.fuxkv", "--text", "--model", path, "--json")
    assert status == 0 and json.loads(out)["text"].startswith("abc")
    status, _, err = cli("cache", "show", folder / "text.fuxkv", "--text")
    assert status == 2 and "--model" in err
    status, _, err = cli("cache", "show", folder / "other.fuxkv", "--text", "--model", path)
    assert status == 2 and "another tokenizer" in err
    assert cli("cache", "show", folder)[0] in (0, 1)


def test_verify(cli, folder):
    status, out, _ = cli("cache", "verify", folder, "--json")
    document = json.loads(out)
    damaged = {os.path.basename(f["file"]): f["damaged"] for f in document["files"] if f["damaged"]}
    assert status == 1 and list(damaged) == ["bad.fuxkv"] and document["damaged"] == 1
    assert cli("cache", "verify", folder / "talk.fuxkv")[:2] == (
        0,
        f"{folder / 'talk.fuxkv'}: whole\n1 file, 0 damaged\n",
    )
    data = bytearray((folder / "talk.fuxkv").read_bytes())
    for at in range(0, len(data), 997):
        data[at] ^= 8
        (folder / "x.fuxkv").write_bytes(data)
        data[at] ^= 8
        before = (folder / "x.fuxkv").read_bytes()
        status, out, err = cli("cache", "verify", folder / "x.fuxkv")
        assert status in (0, 1, 2) and (folder / "x.fuxkv").read_bytes() == before, (at, out, err)


def test_prune_damaged_and_old(cli, folder):
    everything = left(folder)
    status, out, _ = cli("cache", "prune", folder, "--damaged", "--dry-run")
    assert status == 0 and "would be removed" in out and left(folder) == everything
    status, out, _ = cli("cache", "prune", folder, "--damaged", "--json")
    assert status == 0 and [os.path.basename(f["file"]) for f in json.loads(out)["removed"]] == ["bad.fuxkv"]
    assert left(folder) == [name for name in everything if name != "bad.fuxkv"]
    old = time.time() - 10 * 24 * 3600
    for name in ("text.fuxkv", "mine.fuxkv", "notes.txt"):
        os.utime(folder / name, (old, old))
    status, out, _ = cli("cache", "prune", folder, "--older-than", 9)
    assert status == 0 and "text.fuxkv (not written for 10.0 days)" in out
    assert left(folder) == [name for name in everything if name not in ("bad.fuxkv", "text.fuxkv")]


def test_prune_to_a_size(cli, folder, model):
    now = time.time()
    for days, name in enumerate(("talk.fuxkv", "bad.fuxkv", "other.fuxkv", "text.fuxkv")):
        os.utime(folder / name, (now - days * 1000, now - days * 1000))
    sizes = {name: (folder / name).stat().st_size for name in ("talk.fuxkv", "bad.fuxkv")}
    status, out, _ = cli("cache", "prune", folder, "--max-bytes", sum(sizes.values()))
    assert status == 0 and out.count("removed: ") == 2
    assert {"talk.fuxkv", "bad.fuxkv"} <= set(left(folder)) and not {"other.fuxkv", "text.fuxkv"} & set(left(folder))
    with Conversation(model, save=folder / "talk.fuxkv") as c:  # in use
        status, out, err = cli("cache", "prune", folder, "--max-bytes", "0")
        assert status == 1 and "not removed" in err and (folder / "talk.fuxkv").exists()
        assert c.send("and?").tokens
    assert {"empty.fuxkv", "mine.fuxkv", "notes.txt", "folder.fuxkv"} <= set(left(folder))


@pytest.mark.parametrize(
    "arguments",
    [
        ("prune", "."),
        ("list", ".", "--damaged"),
        ("verify", ".", "--text"),
        ("list", "none/such"),
        ("prune", ".", "--max-bytes", "many"),
        ("prune", ".", "--older-than", "-1"),
        ("mend", "."),
    ],
)
def test_wrong_usage(cli, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    assert cli("cache", *arguments)[0] == 2


def test_a_thousand_files(cli, folder):
    data = (folder / "text.fuxkv").read_bytes()
    for i in range(1000):
        (folder / f"f{i}.fuxkv").write_bytes(data)
    status, out, _ = cli("cache", "list", folder)
    assert status == 0 and "1004 files" in out
    assert cli("cache", "verify", folder)[0] == 1
    status, out, _ = cli("cache", "prune", folder, "--max-bytes", 10 * len(data))
    assert status == 0 and sum(p.stat().st_size for p in folder.glob("f*.fuxkv") if p.is_file()) <= 10 * len(data)


@pytest.mark.skipif(os.name == "nt", reason="no such names there")
def test_names_and_texts_command_no_terminal(cli, tmp_path, model):
    """Names and messages that somebody else chose are shown, escape sequences and line ends in names spelled out."""
    file = tmp_path / "a\n\x1b[31m\u202e.fuxkv"
    with Conversation(model, max_tokens=2, save=file) as c:
        c.send("red: \x1b[31m, a bell: \x07\r, two\nlines, \u202eback, é中")
    for command in (
        ("list", tmp_path),
        ("verify", tmp_path),
        ("show", file, "--text"),
        ("prune", tmp_path, "--max-bytes", 0),
    ):
        status, out, err = cli("cache", *command)
        assert status == 0 and not {"\x1b", "\x07", "\r", "\u202e"} & {*out, *err}
        assert r"a\n\x1b[31m\u202e.fuxkv" in out
        if command[0] == "show":
            assert "red: \\x1b[31m, a bell: \\x07\\r, two\nlines, \\u202eback, é中" in out


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_what_could_not_be_saved_is_no_success(cli, tmp_path, path, command, monkeypatch):
    """All output is there, every failed write is told, and the exit code is 1."""

    def full(self, offset, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fucina.cache.persist.files.DiskFile.write_at", full)
    more = ["hi", "there"] if command == "chat" else ["hi"]
    status, out, err = cli(command, *more, "--save", tmp_path / "a.fuxkv", "-n", 3, *naive(path))
    assert status == 1 and out.count("\n") == len(more)
    assert err.count("No space left on device") >= len(more)
    if command == "chat":
        assert "the end of the conversation is not saved" in err


def test_a_write_that_succeeds_later_is_a_success(cli, tmp_path, path, monkeypatch):
    write, left = DiskFile.write_at, [1]

    def full_once(self, offset, data):
        if left:
            left.pop()
            raise OSError(28, "No space left on device")
        write(self, offset, data)

    monkeypatch.setattr(DiskFile, "write_at", full_once)
    status, _, err = cli("chat", "hi", "there", "--save", tmp_path / "a.fuxkv", "-n", 3, *naive(path))
    assert status == 0 and err.count("No space left on device") <= 1
