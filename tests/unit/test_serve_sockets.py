"""The server over real sockets: the command from start to Ctrl-C, raw bytes, the official client."""

from __future__ import annotations

import importlib.util
import json
import signal
import socket
import threading
from contextlib import suppress

import httpx
import pytest

import fucina
import fucina.cli.serve as command
from fucina.cli import main
from fucina.errors import InvalidOption, ServerNotEnabled
from fucina.serve import App, Rules, Server, check_packages, listening
from tests.chat_model import write_chat_model
from tests.serving import TOOLS_TEMPLATE, served

USER = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(write_chat_model(tmp_path_factory.mktemp("model") / "chat.gguf", TOOLS_TEMPLATE))


@pytest.fixture(scope="module")
def model(path):
    model = fucina.load(path)
    yield model
    model.close()


def talk(server, raw, half=False):
    """Send raw bytes, and no more if `half`; return all that comes back until the server closes."""
    host, port = server.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as s:
        found = b""
        with suppress(ConnectionError):  # the server may close with bytes unread
            s.sendall(raw)
            if half:
                s.shutdown(socket.SHUT_WR)
            while part := s.recv(65536):
                found += part
        return found


# --- the command ------------------------------------------------------------------------------------------------------


def run_command(monkeypatch, arguments, then):
    """Run `fucina serve` here; call `then(address)` on a thread when it listens, then Ctrl-C."""
    told, failed = [], []

    def tell(line):
        told.append(line)
        url = next((word.rstrip(":") for word in line.split() if word.startswith("http://")), None)
        if url is not None:
            threading.Thread(target=ask, args=(url,)).start()

    def ask(url):
        try:
            then(url)
        except BaseException as error:
            failed.append(error)
        finally:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(command.text, "tell", tell)
    status = main(["serve", *arguments])
    assert not failed, failed
    return status, told


def test_the_command_serves_until_ctrl_c_and_keeps_its_rows(path, tmp_path, monkeypatch):
    body = {"messages": USER, "max_tokens": 4, "temperature": 0}
    found = []

    def ask(url):
        with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
            assert client.get("/health").json() == {"status": "ok", "model": "tiny", "queue_depth": 0}
            assert client.post("/v1/chat/completions", json=body).status_code == 401
            answer = client.post("/v1/chat/completions", json=body, headers={"authorization": "Bearer secret"})
            found.append(answer.json())

    arguments = [
        path,
        "--port",
        "0",
        "--name",
        "tiny",
        "--api-key",
        "secret",
        "--kv-cache-dir",
        str(tmp_path / "rows"),
        "--spec",
        "--batch",
        "2",
    ]
    before = signal.getsignal(signal.SIGINT)
    for _ in range(2):
        status, told = run_command(monkeypatch, arguments, ask)
        assert status == 0 and "tiny at http://127.0.0.1:" in told[-1] and "secret" not in "".join(told)
    assert signal.getsignal(signal.SIGINT) is before
    first, again = found
    assert first["choices"] == again["choices"]
    cached = [f["usage"]["prompt_tokens_details"]["cached_tokens"] for f in found]
    assert cached == [0, first["usage"]["prompt_tokens"] - 1]  # adopted from the files of the first run


def test_a_key_in_the_environment(path, monkeypatch):
    monkeypatch.setenv("FUCINA_API_KEY", "from outside")

    def ask(url):
        with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
            assert client.get("/v1/models").status_code == 401
            assert client.get("/v1/models", headers={"x-api-key": "from outside"}).status_code == 200

    assert run_command(monkeypatch, [path, "--port", "0"], ask)[0] == 0


def test_wrong_options(path, capsys):
    for wrong in (
        ["--port", "70000"], ["--batch", "0"], ["--queue", "-1"], ["--conns", "0"], ["--grace", "-1"], ["--memory", "much"], ["--api-key", " "],
        ["--cors-origin", "a\nb"], ["--kv-cache-size", "x"], ["--queue-per-key", "0"], ["--stretch", "0.5"],
    ):  # fmt: skip
        assert main(["serve", path, *wrong]) == 2, wrong
        assert wrong[0] in capsys.readouterr().err
    assert main(["serve", "no such model"]) == 1
    assert main(["serve", path, "--port", "0", "--memory", "1000"]) == 2  # for this model too little
    assert "at least" in capsys.readouterr().err


def test_an_address_that_is_taken(model):
    with served(model) as server:
        port = int(server.address.rpartition(":")[2])
        with fucina.SlotPool(model) as pool:
            app = App(model, pool)
            with pytest.raises(InvalidOption, match=f"port {port}"):
                Server(app, "127.0.0.1", port)
            app.close(0.0)


def test_packages_that_are_missing(monkeypatch, capsys, path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ServerNotEnabled, match=r'starlette, uvicorn, prometheus_client; pip install "fucina\[serve\]"'):
        check_packages()
    assert main(["serve", path]) == 1
    assert "pip install" in capsys.readouterr().err


# --- raw bytes --------------------------------------------------------------------------------------------------------


def post(body: bytes, *headers: str, length: object = None) -> bytes:
    lines = ["POST /v1/chat/completions HTTP/1.1", "host: localhost", "content-type: application/json", *headers]
    if length is not False:
        lines.append(f"content-length: {len(body) if length is None else length}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def test_odd_requests(model):
    good = json.dumps({"messages": USER, "max_tokens": 2}).encode()
    with served(model) as server:
        for raw in (
            b"nonsense\r\n\r\n", b"GET /nothing HTTP/9.9\r\n\r\n", b"GET /\xff HTTP/1.1\r\n\r\n", post(good, "content-length: 3"),
            post(good, length=-1), post(good, length="1e3"), post(good, "transfer-encoding: chunked, identity"),
            post(b"zz\r\n" + good, "transfer-encoding: chunked", length=False), b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
            b"GET / HTTP/1.1\r\n" + b"x: " + b"y" * 200_000 + b"\r\n\r\n", b"GET /health HTTP/1.1\r\n bad: x\r\n\r\n",
        ):  # fmt: skip
            answer = talk(server, raw, half=True)
            assert not answer or answer.startswith(b"HTTP/1.1 4"), (raw[:60], answer[:100])
        assert talk(server, post(good, "connection: close")).startswith(b"HTTP/1.1 200")
        evil = talk(server, b"GET /health HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n")
        assert evil.startswith(b"HTTP/1.1 200")  # no rules were given
        two = talk(server, post(good) + post(good, "connection: close"))  # pipelined
        assert two.count(b"HTTP/1.1 200") == 2
        half = talk(server, post(good[:10], length=len(good)), half=True)
        assert not half or half.startswith(b"HTTP/1.1 4")
        with httpx.Client(base_url=server.address, trust_env=False, timeout=60) as client:
            assert client.get("/slots").json()["busy"] == 0


def test_a_head_that_never_comes(model, monkeypatch):
    monkeypatch.setattr(listening, "HEAD_SECONDS", 0.05)
    with served(model) as server:
        for raw in (b"", b"POST /v1/chat", b"GET /health HTTP/1.1\r\nhost: localhost\r\n"):
            assert talk(server, raw) == b""
        body = json.dumps({"messages": USER, "max_tokens": 60, "logit_bias": {"257": -100}}).encode()
        assert talk(server, post(body, "connection: close")).startswith(b"HTTP/1.1 200")


def test_readers_that_vanish_leave_nothing(model):
    body = json.dumps({"messages": USER, "max_tokens": 200, "stream": True, "logit_bias": {"257": -100}}).encode()
    with served(model) as server:
        host, port = server.address.removeprefix("http://").split(":")
        for _ in range(20):
            with socket.create_connection((host, int(port)), timeout=30) as s:
                s.sendall(post(body))
                assert s.recv(15) == b"HTTP/1.1 200 OK"
        with httpx.Client(base_url=server.address, trust_env=False, timeout=60) as client:
            while client.get("/slots").json()["busy"]:
                pass
            found = client.get("/metrics").text
        assert 'end="error"' not in found


def test_ctrl_c_lets_replies_end_and_refuses_new_ones(model):
    body = {"messages": USER, "max_tokens": 60, "stream": True, "temperature": 0, "logit_bias": {"257": -100}}
    with served(model) as server, httpx.Client(base_url=server.address, trust_env=False, timeout=60) as client:
        with client.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            server.should_exit = True
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]" and '"finish_reason":"length"' in rest[-2]


# --- the official client ----------------------------------------------------------------------------------------------

openai = pytest.importorskip("openai", reason="the official client is for developers (group dev)")


@pytest.fixture(scope="module")
def client(model):
    with (
        served(model, Rules(("key",))) as server,
        openai.OpenAI(base_url=f"{server.address}/v1", api_key="key", max_retries=0) as client,
    ):
        yield client


def test_the_official_client_chats(client, model):
    (known,) = client.models.list().data
    whole = client.chat.completions.create(
        model=known.id, messages=USER, max_tokens=9, seed=3, temperature=0.8, logprobs=True, top_logprobs=2
    )
    assert whole.choices[0].finish_reason == "length" and whole.usage.completion_tokens == 9
    assert len(whole.choices[0].logprobs.content[0].top_logprobs) == 2
    text, usage = "", None
    options = {"include_usage": True}
    for chunk in client.chat.completions.create(
        model=known.id, messages=USER, max_tokens=9, seed=3, temperature=0.8, stream=True, stream_options=options
    ):
        usage = chunk.usage or usage
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1
    several = client.completions.create(model=known.id, prompt="ab", n=3, max_tokens=2, seed=1)
    assert [c.index for c in several.choices] == [0, 1, 2]


def test_the_official_client_calls_tools_and_parses_structures(client):
    tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": {
        "type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}}}  # fmt: skip
    name = client.models.list().data[0].id
    reply = client.chat.completions.create(
        model=name, messages=USER, tools=[tool], tool_choice="required", max_tokens=100
    )
    (call,) = reply.choices[0].message.tool_calls
    assert reply.choices[0].finish_reason == "tool_calls" and set(json.loads(call.function.arguments)) == {"a"}
    with client.chat.completions.stream(
        model=name, messages=USER, tools=[tool], tool_choice="required", max_tokens=100
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.tool_calls[0].function.name == "f"
    from pydantic import BaseModel

    class Answer(BaseModel):
        yes: bool

    parsed = client.chat.completions.parse(model=name, messages=USER, response_format=Answer, max_tokens=50)
    assert isinstance(parsed.choices[0].message.parsed, Answer)


def test_the_official_client_knows_our_errors(client):
    name = client.models.list().data[0].id
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=USER)
    with pytest.raises(openai.BadRequestError) as found:
        client.chat.completions.create(model=name, messages=[{"role": "user", "content": "x" * 2000}])
    assert found.value.code == "context_length_exceeded"
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=client.base_url, api_key="other", max_retries=0).models.list()
