"""The command line, on the tiny chat model: what goes to stdout, what to stderr, exit codes, broken pipes, Ctrl-C."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fucina
from fucina import hub
from tests.chat_model import write_chat_model
from tests.models import TINY

ROOT = Path(__file__).resolve().parents[2]


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


def process(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    )


# --- generate ---------------------------------------------------------------------------------------------------


def test_generate_streams_the_text(cli, path, model):
    status, out, err = cli("generate", "ab", "-n", 6, *naive(path))
    assert (status, err) == (0, "")
    assert out == model.generate("ab", max_tokens=6).text + "\n"


def test_generate_json(cli, path, model):
    status, out, err = cli("generate", "ab", "-n", 6, "--json", "--stats", *naive(path))
    document = json.loads(out)
    expected = model.generate("ab", max_tokens=6)
    assert status == 0 and "6 new tokens" in err and out.isascii()
    assert document["tokens"] == expected.tokens and document["text"] == expected.text
    assert (document["finish_reason"], document["prompt_tokens"], document["prompt"]) == ("length", 2, "ab")


def test_a_printed_seed_repeats_the_run(cli, path):
    options = ("generate", "ab", "-n", 12, "-t", "1.3", "--top-p", "0.95", "--json", *naive(path))
    status, out, err = cli(*options)
    first = json.loads(out)
    assert status == 0 and err.startswith(f"seed {first['seed']} ")
    status, out, err = cli(*options, "--seed", first["seed"])
    again = json.loads(out)
    assert err == "" and again["tokens"] == first["tokens"] and again["seed"] == first["seed"]
    other = json.loads(cli(*options, "--seed", first["seed"] + 1)[1])
    assert other["tokens"] != first["tokens"]


def test_generate_reads_stdin(cli, path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("é\n".encode()), encoding="ascii"))
    status, out, _ = cli("generate", "-n", 1, "--json", *naive(path))
    assert status == 0 and json.loads(out)["prompt"] == "é"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\xff"), encoding="ascii"))
    status, _, err = cli("generate", "-", *naive(path))
    assert status == 1 and "not UTF-8: byte 0xFF at 1" in err


def test_stop_and_sampling_flags_reach_the_model(cli, path, model):
    text = model.generate("ab", max_tokens=8).text
    _status, out, _ = cli("generate", "ab", "-n", 8, "--stop", text[2:4], "--json", *naive(path))
    document = json.loads(out)
    assert document["stop"] == text[2:4] and document["text"] == text[: text.find(text[2:4])]
    flags = {
        "temperature": 0.9, "top_k": 30, "top_p": 0.9, "min_p": 0.01, "repeat_penalty": 1.1,
        "frequency_penalty": 0.2, "presence_penalty": 0.1, "repeat_last_n": 5, "seed": 3,
    }  # fmt: skip
    arguments = [word for name, value in flags.items() for word in ("--" + name.replace("_", "-"), value)]
    document = json.loads(cli("generate", "ab", "-n", 8, "--json", *arguments, *naive(path))[1])
    assert document["tokens"] == model.generate("ab", max_tokens=8, **flags).tokens


def test_ctrl_c_keeps_what_was_said(cli, path, monkeypatch):
    from fucina.generation import GenerationStream

    real, calls = GenerationStream.__next__, []

    def interrupted(self):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(self)

    monkeypatch.setattr(GenerationStream, "__next__", interrupted)
    status, out, err = cli("generate", "ab", "-n", 20, *naive(path))
    assert status == 130 and out.endswith("\n") and len(out) > 1 and "Traceback" not in err
    calls.clear()
    status, out, _ = cli("generate", "ab", "-n", 20, "--json", *naive(path))
    assert status == 130 and json.loads(out)["finish_reason"] == "interrupted" and json.loads(out)["text"]


# --- chat -------------------------------------------------------------------------------------------------------


def test_chat_with_messages(cli, path):
    status, out, err = cli("chat", "hi", "and?", "--system", "be", "-n", 5, "--json", *naive(path))
    document = json.loads(out)
    assert (status, err) == (0, "")
    assert [m["role"] for m in document["messages"]] == ["system", "user", "assistant", "user", "assistant"]
    first, second = document["turns"]
    assert first["cached_tokens"] == 0 and second["cached_tokens"] >= first["prompt_tokens"] - 1
    assert [first["text"], second["text"]] == [m["content"] for m in document["messages"][2::2]]
    status, out, _ = cli("chat", "hi", "and?", "--system", "be", "-n", 5, *naive(path))
    assert out == first["text"] + "\n" + second["text"] + "\n"


def test_chat_reads_lines(cli, path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("hi\nand?\n"))
    status, out, _ = cli("chat", "-n", 5, "--json", *naive(path))
    assert status == 0 and [m["content"] for m in json.loads(out)["messages"][::2]] == ["hi", "and?"]


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_byte_order_mark_is_no_part_of_a_message(cli, path, monkeypatch, options, tmp_path):
    said = []
    for mark in (b"", b"\xef\xbb\xbf"):
        monkeypatch.setattr(
            sys, "stdin", io.TextIOWrapper(io.BytesIO(mark + b"hi\n\xef\xbb\xbfhi\n"), encoding="ascii")
        )
        saved, real = [], fucina.Conversation.send
        monkeypatch.setattr(
            fucina.Conversation,
            "send",
            lambda c, text, saved=saved, real=real, **o: saved.append(text) or real(c, text, **o),
        )
        assert cli("chat", "-n", 2, *options, *naive(path))[0] == 0
        monkeypatch.setattr(fucina.Conversation, "send", real)
        said.append(saved)
    assert said[0] == said[1] == ["hi", "\ufeffhi"]  # in the middle it is a character like others


def test_a_line_ends_with_a_newline_and_nothing_else(cli, path, monkeypatch):
    text = "a\x0bb\x0cc\x1cd\x85e\u2028f\r\n\nlast"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode()), encoding="ascii"))
    status, out, _ = cli("chat", "-n", 2, "--json", *naive(path))
    assert status == 0
    assert [m["content"] for m in json.loads(out)["messages"][::2]] == ["a\x0bb\x0cc\x1cd\x85e\u2028f", "last"]


def test_chat_from_a_script(cli, path, monkeypatch, tmp_path):
    """Lines of stdin are what lines of a terminal are; what cannot be done shows in the exit code."""

    def script(*lines):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\n".join(lines)), encoding="ascii"))
        return cli("chat", "-n", 5, "--format", "chatml", *naive(path))

    saved = tmp_path / "talk.json"
    status, out, err = script(
        b"hi",
        b"",
        b"/regenerate",
        "\u00e9".encode(),
        b"/undo",
        b"/stats",
        b"/system be",
        b"hi",
        f"/save {saved}".encode(),
    )
    first, again, second, other = out.splitlines()
    assert status == 0 and first == again and second and other != first
    assert "taken back; 1 message left" in err and "> " not in out + err
    assert [m["content"] for m in json.loads(saved.read_text(encoding="utf-8"))["messages"]] == ["be", "hi", other]
    for line in (b"/undo", b"/nope", b"/undo x", b"/save", b"/save /", b"x" * 2000):
        status, out, err = script(b"hi", line, b"hi") if line != b"/undo" else script(line, b"hi", b"hi")
        assert status == 1 and len(out.splitlines()) == 2 and err
    status, out, err = script(b"hi", b"a\xffb")
    assert (status, out) == (1, first + "\n") and "not UTF-8: byte 0xFF at 1 of line 2" in err
    assert script(b"hi", b"/exit", b"hi")[:2] == (0, first + "\n")
    assert script() == (0, "", "")


def test_chat_answers_each_line_as_it_comes(path):
    running = process("-m", "fucina", "chat", "-n", "5", *naive(path), stdin=subprocess.PIPE)
    for _ in range(2):
        running.stdin.write(b"/reset\nhi\n")
        running.stdin.flush()
        assert running.stdout.readline().strip()
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (0, b"") and b"forgotten" in err


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell closes the streams")
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
@pytest.mark.parametrize("command", ["chat", "generate"])
def test_a_stream_that_is_closed(path, command, closed):
    words = [sys.executable, "-m", "fucina", command, *(["hi"] if closed != "<&-" else []), "-n", "2", *naive(path)]
    done = subprocess.run(["sh", "-c", f'"$@" {closed}', "sh", *words], cwd=ROOT, capture_output=True, timeout=60)
    assert b"Traceback" not in done.stderr
    assert done.returncode == (1 if (command, closed) == ("generate", "<&-") else 0)  # an empty prompt


@pytest.fixture
def terminal(cli, path, monkeypatch, tmp_path):
    """Type lines into `fucina chat`; the end of the list is Ctrl-D.  A line that is an exception is raised."""
    monkeypatch.setenv("FUCINA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)

    def run(*lines, options=()):
        typed = iter(lines)

        def type_line(prompt):
            line = next(typed, EOFError())
            if isinstance(line, BaseException):
                raise line
            return line

        monkeypatch.setattr("builtins.input", type_line)
        return cli("chat", "-n", 5, *options, *naive(path))

    return run


def test_chat_in_a_terminal(terminal):
    status, out, err = terminal("hi", "", "/stats", "/help", "/nope", "x" * 2000, "/reset", "hi", "/exit", "never")
    assert status == 0
    first, second = out.splitlines()
    assert first == second  # greedy, and forgotten in between
    for said in (
        "positions in use; last reply: 0 of",
        "/reset",
        "no command /nope",
        "tokens with this message",
        "forgotten",
    ):
        assert said in err
    assert terminal()[0] == 0
    status, _, err = terminal(KeyboardInterrupt())
    assert status == 130 and "Traceback" not in err


@pytest.mark.parametrize("redirected", [True, False])
def test_the_prompt_of_a_terminal_never_goes_into_a_file(cli, path, monkeypatch, tmp_path, redirected):
    monkeypatch.setenv("FUCINA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: not redirected, raising=False)
    typed = iter(["hi"])

    def type_line(prompt):
        sys.stdout.write(prompt)  # as input() does where it cannot edit lines
        line = next(typed, None)
        if line is None:
            raise EOFError
        return line

    monkeypatch.setattr("builtins.input", type_line)
    status, out, err = cli("chat", "-n", 5, *naive(path))
    assert status == 0 and out.count("> ") == (0 if redirected else 2) and err.count("> ") == (2 if redirected else 0)


def test_chat_commands(terminal, tmp_path):
    saved = tmp_path / "talk.json"
    status, out, err = terminal(
        "/undo", "/regenerate", "hi", "and?", "/regenerate", "/undo", "/undo 7", "/undo x", "and?", f"/save {saved}", "/save", "/stats",
        "/system", "/system be", "/system", "hi", '/system ""', "hi", "/undo", f"/save {tmp_path}/none/x.json",
        options=("--format", "chatml", "--seed", 4),
    )  # fmt: skip
    assert status == 0
    hi, first, again, third, with_system, without = out.splitlines()
    assert first == again == third and without == hi and with_system != hi
    told = err.splitlines()
    for line in (
        "there is no reply to make again: this conversation has no turn yet",
        "1 turns cannot be undone, the conversation has 0", "7 turns cannot be undone, the conversation has 1",
        "taken back; 1 message left", "taken back; 0 messages left", "/undo takes a number of turns, got x",
        f"saved {saved}", "/save needs the name of a file", "no system message", "begun anew", "be",
    ):  # fmt: skip
        assert line in told, line
    assert "seed 4, 0 draws made" in err and "cannot write" in err
    document = json.loads(saved.read_text(encoding="utf-8"))
    assert [m["content"] for m in document["messages"]] == ["hi", hi, "and?", first]
    assert document["sampling"]["seed"] == 4 and document["draws"] == 0 and document["max_tokens"] == 5
    assert [f.name for f in tmp_path.iterdir() if "part" in f.name] == []


def test_a_line_that_cannot_be_done_never_ends_the_talk(terminal, tmp_path):
    undecodable = UnicodeDecodeError("ascii", b"h\xc3", 1, 2, "ordinal not in range(128)")
    status, out, err = terminal(
        "hi", "/save /", "/save .", "/save a\0b", "/save ~nobody.at.all/x", undecodable, "/regenerate"
    )
    first, again = out.splitlines()
    assert status == 0 and first == again and "Traceback" not in err
    assert err.count("cannot write") == 4 and "byte 0xC3 of that line is no ascii text" in err


def test_typed_lines_are_kept(terminal, tmp_path):
    readline = pytest.importorskip("readline")
    kept = tmp_path / "home" / "chat_history"
    terminal("hi", options=("--no-history",))
    assert not kept.exists()
    kept.parent.mkdir()
    kept.write_bytes(b"")
    readline.clear_history()
    terminal("hi")
    readline.add_history("typed before")
    readline.write_history_file(kept)
    terminal("hi")
    assert readline.get_history_item(1) == "typed before" and "typed before" in kept.read_text(encoding="utf-8")
    kept.unlink()
    kept.mkdir()
    status, _, err = terminal("hi")
    assert status == 0 and "cannot keep the history of typed lines" in err


def test_ctrl_c_stops_a_reply_in_the_terminal(terminal, monkeypatch):
    from fucina.chat import ReplyStream

    real, calls = ReplyStream.__next__, []

    def interrupted(self):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(self)

    monkeypatch.setattr(ReplyStream, "__next__", interrupted)
    status, out, err = terminal("hi", "/stats", "hi")
    assert (
        status == 0
        and out.splitlines()[0].endswith(" [stopped]")
        and "finish: cancelled" in err
        and len(out.splitlines()) == 2
    )
    calls.clear()


def test_a_printed_seed_repeats_a_conversation(cli, path):
    options = ("chat", "hi", "and?", "-n", 8, "-t", "1.3", "--json", *naive(path))
    status, out, err = cli(*options)
    first = json.loads(out)
    assert status == 0 and err.startswith("seed ")
    again = json.loads(cli(*options, "--seed", err.split()[1])[1])
    assert [t["tokens"] for t in again["turns"]] == [t["tokens"] for t in first["turns"]]


def test_chat_options_reach_the_conversation(cli, path, model):
    from fucina.chat import Conversation

    flags = {
        "temperature": 0.9, "top_k": 30, "top_p": 0.9, "min_p": 0.01, "repeat_penalty": 1.1,
        "frequency_penalty": 0.2, "presence_penalty": 0.1, "repeat_last_n": 5, "seed": 3,
    }  # fmt: skip
    arguments = [word for name, value in flags.items() for word in ("--" + name.replace("_", "-"), value)]
    more = ("--format", "chatml", "--think-off", "--system", "be", "--spec", "--spec-stats", "-n", 8)
    status, out, err = cli("chat", "abab", "ab", "--json", *more, *arguments, *naive(path))
    c = Conversation(model, "be", template="chatml", think_off=True, max_tokens=8, **flags)
    document = json.loads(out)
    assert status == 0 and "spec: steps=" in err and document["speculation"]["committed"] == 16
    assert [t["tokens"] for t in document["turns"]] == [c.send("abab").tokens, c.send("ab").tokens]


def test_defaults_are_the_same_everywhere(cli):
    import inspect

    from fucina import defaults
    from fucina.chat import ChatFormat, Conversation
    from fucina.cli.chat import FORMATS
    from fucina.generation import generate
    from fucina.sampling import SamplerOptions

    assert tuple(f.value for f in ChatFormat) == FORMATS
    generated = {name: p.default for name, p in inspect.signature(generate).parameters.items()}
    assert generated["max_tokens"] == defaults.GENERATE_TOKENS
    assert inspect.signature(Conversation).parameters["max_tokens"].default == defaults.REPLY_TOKENS
    for name in SamplerOptions.__dataclass_fields__:
        value = getattr(SamplerOptions(), name)
        assert value == getattr(defaults, name.upper())
        assert generated.get(name, value) == value
        for command in ("generate", "chat"):
            if name != "seed":
                text = " ".join(cli(command, "--help")[1].split())
                flag = text[text.rindex("--" + name.replace("_", "-")) :]  # after the usage line
                assert f"({value:g})" in flag[:120], (command, name)


def test_chat_without_a_template(cli, tmp_path):
    """The error comes before any model is loaded."""
    bare = write_chat_model(tmp_path / "bare.gguf", template=None)
    status, out, err = cli("chat", "hi", "--model", bare)
    assert (status, out) == (1, "") and "no chat template" in err and err.count("\n") == 1


# --- info, tokenize, models -------------------------------------------------------------------------------------


def test_info(cli, path):
    status, out, err = cli("info", path, "--json", "--tensors", "--metadata")
    document = json.loads(out)
    assert (status, err) == (0, "")
    assert document["architecture"] == "llama" and document["runs_here"] and document["chat_template"]
    assert document["tokenizer"]["tokens"] == 258 and document["tokenizer"]["ends"] == [257]
    assert sum(t["bytes"] for t in document["tensors"]) == document["tensor_types"]["F32"]["bytes"]
    assert document["parameters"] * 4 == document["tensor_types"]["F32"]["bytes"]
    assert document["cache_bytes_per_position"] == 2 * 2 * 2 * (16 + 16)  # layers, heads, K and V, two bytes each
    assert document["cache_bytes_of_windows"] == 0
    assert document["cache_bytes_per_position_in_q8_0"] is None  # heads of 16
    assert "tokenizer.chat_template" in document["metadata"]
    status, out, _ = cli("info", path, "--tensors", "--metadata")
    assert status == 0 and out.isascii()
    for expected in ("llama", "chat template", "token_embd.weight", "258 x 40", "general.architecture"):
        assert expected in out


def test_info_of_a_family_with_windows(cli):
    status, out, _ = cli("info", str(TINY / "gemma3.gguf"), "--json")
    document = json.loads(out)
    layer = 2 * 2 * (32 + 32)  # bytes, heads, K and V
    assert status == 0 and document["cache_bytes_per_position"] == layer
    assert document["cache_bytes_per_position_in_q8_0"] == layer * 34 // 64
    assert document["cache_bytes_of_windows"] == 5 * layer * 192  # rows: a window of 8 and a pass of 128, in 64s
    assert "at most 245,760 bytes of windows" in cli("info", str(TINY / "gemma3.gguf"))[1]


def test_info_of_a_family_that_does_not_run_here(cli, tmp_path):
    import numpy as np

    from fucina.gguf import GgmlType, write_gguf

    strange = tmp_path / "strange.gguf"
    write_gguf(strange, {"general.architecture": "strange"}, {"a": (np.zeros((2, 3), np.float32), GgmlType.F32)})
    status, out, _ = cli("info", strange, "--json")
    document = json.loads(out)
    assert status == 0 and not document["runs_here"] and "strange" in document["why_not"]
    assert "error" in document["tokenizer"] and not document["chat_template"]
    status, out, _ = cli("info", strange)
    assert status == 0 and "does not run here" in out and "cannot be used" in out


def test_info_of_a_format_that_the_fast_engine_does_not_multiply(cli, tmp_path):
    import numpy as np

    from fucina.errors import ModelError
    from fucina.gguf import GgufFile, write_gguf
    from fucina.gguf.weights import Weight
    from fucina.ops.native.weights import WeightStore

    file = tmp_path / "fp4.gguf"
    raw = np.zeros((2, 36), np.uint8)
    write_gguf(file, {"general.architecture": "x"}, {"a": (raw, "NVFP4"), "b": (raw[:, :17].copy(), "MXFP4")})
    document = json.loads(cli("info", file, "--json")[1])
    assert document["needs_naive"] == ["NVFP4"]
    assert {t: row["native"] for t, row in document["tensor_types"].items()} == {"NVFP4": False, "MXFP4": True}
    assert "does not multiply NVFP4; --backend naive" in cli("info", file)[1]
    with GgufFile(file) as opened, pytest.raises(ModelError, match="a is NVFP4; the fast engine multiplies .* iq2_s"):
        WeightStore(64, 1).matrix(Weight(opened.tensors["a"]))


def test_tokenize(cli, path):
    status, out, _ = cli("tokenize", "hi<|im_end|>", "-m", path, "--json")
    document = json.loads(out)
    assert status == 0 and document["count"] == 3
    assert [t["piece"] for t in document["tokens"]] == ["h", "i", "<|im_end|>"]
    assert [t["special"] for t in document["tokens"]] == [False, False, True]
    assert json.loads(cli("tokenize", "hi<|im_end|>", "-m", path, "--json", "--plain")[1])["count"] == 12
    status, out, _ = cli("tokenize", "é a", "-m", path)
    assert out.isascii() and "b'\\xc3'" in out and "' '" in out and "4 tokens, 3 characters, 4 bytes" in out
    status, out, _ = cli("tokenize", "--decode", "71, 72 257", "-m", path)
    assert (status, out) == (0, "hi<|im_end|>\n")
    status, _, err = cli("tokenize", "--decode", "71 x", "-m", path)
    assert status == 2 and "'x' is not a token id" in err
    status, _, err = cli("tokenize", "--decode", "71 999", "-m", path)
    assert status == 1 and "999" in err
    assert cli("tokenize", "", "-m", path)[1] == "0 tokens, 0 characters, 0 bytes\n"


def test_models(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("FUCINA_HOME", str(tmp_path))
    status, out, _ = cli("models", "--json")
    document = json.loads(out)
    assert status == 0 and document["models_folder"] == str(tmp_path / "models")
    assert [m["name"] for m in document["models"]] == [m.name for m in hub.list_known()]
    status, out, _ = cli("models")
    table = out.partition("\n\n")[0]  # below it stand paths, in whatever letters they have
    assert status == 0 and table.isascii() and "smollm2" in table and "Apache-2.0" in table
    entry = next(e for e in hub.KNOWN if e.name == "smollm2")
    file = tmp_path / "models" / entry.filename
    file.parent.mkdir()
    with file.open("wb") as out_file:
        out_file.truncate(entry.size)  # the right size is all that listing looks at
    assert cli("models", "--path", "smollm2")[:2] == (0, f"{file}\n")
    assert cli("models", "--fetch", "smollm2")[:2] == (0, f"{file}\n")
    status, out, err = cli("models", "--path", "nope")
    assert (status, out) == (1, "") and "smollm2" in err
    assert cli("models", "--path", "a", "--fetch", "b")[0] == 2


# --- usage, errors, processes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [(), ("nope",), ("generate", "x", "--nope"), ("generate", "x", "-n", "many"), ("generate", "x", "--top-p", "7"),
     ("generate", "x", "-t", "nan"), ("generate", "x", "--seed", "-1"), ("generate", "x", "--backend", "gpu")],
)  # fmt: skip
def test_wrong_usage(cli, arguments):
    status, out, err = cli(*arguments)
    assert (status, out) == (2, "") and "Traceback" not in err and err


@pytest.mark.parametrize("option", [("-n", 0), ("--threads", 0), ("--context", -3)])
def test_wrong_numbers(cli, path, option):
    status, out, err = cli("generate", "x", *option, *naive(path))
    assert (status, out) == (2, "") and "at least 1" in err and err.count("\n") == 1


def test_failures_are_one_line(cli, tmp_path, path):
    foreign = tmp_path / "page.gguf"
    foreign.write_bytes(b"<!DOCTYPE html>" * 10)
    for arguments in (
        ("generate", "x", "--model", foreign),
        ("generate", "x", "--model", "nope"),
        ("generate", "x", "--model", tmp_path / "none.gguf"),
        ("info", foreign),
        ("tokenize", "x", "-m", foreign),
        ("chat", "x", "--model", foreign),
        ("generate", "", *naive(path)),
        ("generate", "x" * 600, *naive(path)),
    ):
        status, out, err = cli(*arguments)
        assert (status, out) == (1, "") and err.startswith("fucina: ") and err.count("\n") == 1, arguments


@pytest.mark.parametrize("command", ["generate", "chat", "info", "tokenize", "models", "cache"])
def test_every_command_has_help(cli, command):
    status, out, _ = cli(command, "--help")
    assert status == 0 and "--json" in out and out.isascii()


def test_help_is_quick_to_start():
    """`fucina --help` must not wait for NumPy, numba or jinja2."""
    code = (
        "import sys; from fucina.cli import main; assert main(['--help']) == 0; assert main(['generate', '--help']) == 0; "
        "print(sorted({'numpy', 'numba', 'jinja2', 'fucina.model'} & set(sys.modules)))"
    )
    done = process("-c", code, text=True)
    out, err = done.communicate(timeout=60)
    assert done.returncode == 0 and out.splitlines()[-1] == "[]", err


def test_a_terminal_that_cannot_show_everything(path):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = process("-m", "fucina", "tokenize", "--decode", "168", "-m", path, env=environment)
    out, err = done.communicate(timeout=60)
    assert (done.returncode, err) == (0, b"") and out == b"?\n"


def test_a_reader_that_leaves(path):
    running = process("-m", "fucina", "generate", "ab", "-n", "200", "--ignore-eos", *naive(path))
    running.stdout.read(1)
    running.stdout.close()
    err = running.stderr.read()
    running.stderr.close()
    assert running.wait(timeout=60) == 0 and err == b""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
def test_ctrl_c_in_a_process(path):
    running = process("-m", "fucina", "generate", "ab", "-n", "400", "--ignore-eos", *naive(path))
    running.stdout.read(1)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130 and out.endswith(b"\n") and b"Traceback" not in err


# --- characters, output that cannot be written --------------------------------------------------------------------

COMMANDS = ["generate", "chat", "info", "tokenize", "models", "--help", "--version", "chat --help"]


def words_of(command, path):
    return {
        "generate": ["generate", "ab", "-n", "3", *naive(path)],
        "chat": ["chat", "hi", "-n", "3", *naive(path)],
        "info": ["info", path, "--tensors"],
        "tokenize": ["tokenize", "hi", "-m", path],
    }.get(command, command.split())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
@pytest.mark.parametrize(
    ("command", "unbuffered"), [*[(c, "") for c in COMMANDS], ("chat", "1"), ("tokenize", "1"), ("--version", "1")]
)
def test_a_full_disk_is_one_line(path, command, unbuffered):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fucina", *words_of(command, path)],
            cwd=ROOT, stdout=full, stderr=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            timeout=60, text=True,
        )  # fmt: skip
    if (unbuffered and command.startswith("-")) or command.endswith("--help"):
        assert "Traceback" not in done.stderr  # argparse itself ignores that
        return
    assert done.returncode == 1
    assert done.stderr == "fucina: the output cannot be written: No space left on device\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
def test_a_full_disk_below_stderr(path):
    with open("/dev/full", "w") as full:
        for words in (
            ["info", "nope"],
            ["generate", "x", "--nope"],
            ["chat", "hi", "-t", "1", "-n", "2", *naive(path)],
        ):
            command = [sys.executable, "-m", "fucina", *words]
            assert subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=full, timeout=60).returncode in (
                1,
                2,
            )


@pytest.mark.parametrize("command", ["chat", "info", "models", "--help"])
def test_nobody_reads(path, command):
    """Not an error: `fucina info | head -1` has what it wants."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "fucina", *words_of(command, path)],
        cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, timeout=60,
    )  # fmt: skip
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


POSIX = pytest.mark.skipif(sys.platform == "win32", reason="arguments are bytes on POSIX systems only")


@POSIX
@pytest.mark.parametrize(("locale", "utf8"), [("C", "0"), ("POSIX", "1"), ("C.UTF-8", "0")])
def test_arguments_are_utf8_in_every_locale(path, locale, utf8):
    environment = {**os.environ, "LC_ALL": locale, "PYTHONUTF8": utf8}
    done = process("-m", "fucina", "tokenize", "é🙂", "-m", path, "--json", env=environment)
    out, err = done.communicate(timeout=60)
    assert (done.returncode, err) == (0, b"") and json.loads(out)["text"] == "é🙂"
    done = process(
        "-m", "fucina", "chat", "é", "--system", "ü", "--stop", "ö", "-n", "2", "--json", *naive(path), env=environment
    )
    out, err = done.communicate(timeout=60)
    assert (done.returncode, err) == (0, b"")
    assert [m["content"] for m in json.loads(out)["messages"][:2]] == ["ü", "é"]


@POSIX
def test_arguments_that_are_no_text(path, tmp_path):
    done = process("-m", "fucina", "tokenize", b"a\xe9", "-m", path)
    out, err = done.communicate(timeout=60)
    assert done.returncode == 2 and not out and b"argument text: the text is not UTF-8: byte 0xE9 at 1" in err
    strange = os.fsencode(tmp_path) + b"/m\xe9.gguf"  # a name of a file may be any bytes
    Path(os.fsdecode(strange)).write_bytes(Path(path).read_bytes())
    for words in (["info", strange], ["generate", "ab", "-n", "2", "--model", strange, "--backend", "naive"]):
        for encoding in ("utf-8", "ascii"):
            done = process("-m", "fucina", *words, env={**os.environ, "PYTHONIOENCODING": encoding})
            out, err = done.communicate(timeout=60)
            assert (done.returncode, err) == (0, b"")
            assert words[0] != "info" or b"m\xe9.gguf" in out


# --- recommended sampling, circles --------------------------------------------------------------------------------


@pytest.fixture
def advised(tmp_path):
    """A chat model whose file recommends sampling."""
    import numpy as np

    from fucina.gguf import GgufFile, write_gguf

    path = tmp_path / "advised.gguf"
    with GgufFile(write_chat_model(tmp_path / "plain.gguf")) as file:
        advice = {
            "general.sampling.temp": np.float32(0.7), "general.sampling.top_k": np.int32(20),
            "general.sampling.penalty_repeat": np.float32(1.1), "general.sampling.penalty_last_n": np.int32(-1),
            "general.sampling.mirostat": np.int32(0), "general.sampling.min_p": np.float32(7),
        }  # fmt: skip
        write_gguf(path, {key: file.metadata.entry(key) for key in file.metadata} | advice, file.tensors)
    return path


@pytest.mark.filterwarnings("default")
def test_chat_takes_the_sampling_of_the_file(cli, advised):
    command = ("chat", "hi", "-n", 8, "--json", "--model", advised, "--backend", "naive")
    status, out, err = cli(*command, "--seed", 3)
    assert status == 0
    assert (
        "sampling: temperature 0.7, top_k 20, repeat_penalty 1.1, repeat_last_n all (recommended by its file)\n" in err
    )
    assert "metadata key general.sampling.min_p is ignored: min_p must be a number in [0, 1], got 7.0" in err
    model = fucina.load(advised, backend="naive")
    options = {"temperature": 0.7, "top_k": 20, "repeat_penalty": 1.1, "repeat_last_n": 1 << 31, "seed": 3}
    reply = fucina.Conversation(model, max_tokens=8, **options).send("hi")
    assert json.loads(out)["turns"][0]["tokens"] == reply.tokens
    flags = ("-t", 0.4, "--top-k", 3)
    status, out, err = cli(*command, *flags)
    seed = json.loads(out)["turns"][0]["seed"]
    assert f"sampling: repeat_penalty 1.1, repeat_last_n all (recommended by its file); seed {seed} (--seed" in err
    reply = fucina.Conversation(model, max_tokens=8, **{**options, "temperature": 0.4, "top_k": 3, "seed": seed}).send(
        "hi"
    )
    assert json.loads(out)["turns"][0]["tokens"] == reply.tokens
    status, out, err = cli(*command, "-t", 0)
    greedy = fucina.Conversation(model, max_tokens=8).send("hi")
    assert "sampling" not in err.replace("general.sampling.min_p", "") and "seed" not in err
    assert json.loads(out)["turns"][0]["tokens"] == greedy.tokens
    assert (
        json.loads(cli("generate", "hi", "-n", 4, "--json", "--model", advised, "--backend", "naive")[1])["seed"] == 0
    )
    model.close()


@pytest.mark.parametrize("options", [(), ("--stop-circles",)])
def test_a_circle_is_told(cli, path, monkeypatch, options):
    from fucina.chat import circles

    monkeypatch.setattr(circles, "find_circle", lambda tokens: circles.Circle(7, 20) if len(tokens) >= 20 else None)
    status, out, err = cli("chat", "hi", "-n", 60, "--json", *options, *naive(path))
    turn = json.loads(out)["turns"][0]
    assert status == 0 and err.startswith("the reply runs in a circle (the same 7 tokens 20 times); ")
    assert (
        err.endswith("it was ended\n" if options else "Ctrl-C ends it, --stop-circles would\n") and err.count("\n") == 1
    )
    assert turn["finish_reason"] == ("circle" if options else "length")
    assert 20 <= len(turn["tokens"]) < 60 if options else len(turn["tokens"]) == 60


def test_known_models_have_recommended_sampling(tmp_path):
    from fucina.gguf import Metadata
    from fucina.sampling import SamplerOptions
    from fucina.sampling.recommended import recommended_sampling

    for entry in hub.KNOWN:
        advice = recommended_sampling(tmp_path / entry.filename, Metadata({}))
        assert (advice is None) == (not entry.sampling)
        if advice is not None:
            SamplerOptions(**advice.options)
    smollm2 = hub.entry_named("smollm2")
    assert dict(smollm2.sampling) == {"temperature": 0.2, "top_p": 0.9, "repeat_penalty": 1.1}
    assert recommended_sampling(tmp_path / "other.gguf", Metadata({})) is None
    own = Metadata.from_dict({"general.sampling.top_k": 5})
    assert recommended_sampling(tmp_path / smollm2.filename, own).options == {"top_k": 5}  # the file knows best


@pytest.mark.parametrize("value", [7.0, -0.5, float("nan"), "0.5", True, [0.5]])
def test_recommended_sampling_out_of_range(tmp_path, value):
    from fucina.gguf import Metadata
    from fucina.sampling.recommended import recommended_sampling

    metadata = Metadata.from_dict({"general.sampling.top_p": value, "general.sampling.top_k": 3.0})
    with pytest.warns(UserWarning, match="general.sampling.top_p is ignored: top_p must be"):
        assert recommended_sampling(tmp_path / "m.gguf", metadata).options == {"top_k": 3}
