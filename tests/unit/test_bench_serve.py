"""The load generator of `bench.serve`: every request is answered once, and what is counted is what came."""

import asyncio
import math
import socket
import threading

import pytest

import fucina
from bench.serve.client import Answer, chat
from bench.serve.loads import Session, closed, opened, sessions
from bench.serve.summary import LOADS, figure, quantile, summary, tables
from tests.chat_model import CHATML, write_chat_model
from tests.serving import served


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    model = fucina.load(str(write_chat_model(tmp_path_factory.mktemp("model") / "chat.gguf", CHATML)))
    with served(model, queue=64) as server:
        host, port = server.address.removeprefix("http://").split(":")
        yield host, int(port)
    model.close()


def asker(address, seen):
    async def ask(body):
        seen.append(body)
        return await chat(*address, {**body, "max_tokens": min(body["max_tokens"], 6)})

    return ask


def test_closed_loop_runs_each_session_once_and_turns_grow(address):
    seen = []
    answers = asyncio.run(closed(asker(address, seen), "chat", 4, 10))
    assert len(answers) == len(seen) == 10 and all(a.ok and a.tokens == 6 for a in answers)
    asked = [body["messages"][-1]["content"] for body in seen]
    source = sessions("chat")
    assert sorted(asked) == sorted(next(source).turns[0] for _ in range(10))
    seen.clear()
    session = Session(("one", "two"), "be brief", {"max_tokens": 4})
    first, second = asyncio.run(session.run(asker(address, seen)))
    roles = [m["role"] for m in seen[1]["messages"]]
    assert roles == ["system", "user", "assistant", "user"] and seen[1]["messages"][2]["content"] == first.text
    assert second.prompt > first.prompt and second.cached > 0


def test_open_loop_does_not_wait_for_answers(address):
    seen = []
    answers = asyncio.run(opened(asker(address, seen), "chat", 60.0, 0.4, seed=3))
    assert len(answers) == len(seen) > 5 and all(a.ok for a in answers)
    again = []
    asyncio.run(opened(asker(address, again), "chat", 60.0, 0.4, seed=3))
    assert [b["messages"] for b in again] == [b["messages"] for b in seen]


@pytest.mark.parametrize("load", LOADS)
def test_every_load_asks_something_new_each_time(load):
    source = sessions(load)
    found = [next(source) for _ in range(60)]
    assert len({s.turns for s in found}) == 60 and len({s.system for s in found}) == 1


def test_what_fails_is_told(address):
    refused = asyncio.run(chat(*address, {"messages": []}))
    assert refused.status == 400 and "messages" in refused.error and not refused.ok
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    nobody = asyncio.run(chat("127.0.0.1", port, {"messages": []}))
    assert nobody.status == 0 and nobody.error and not nobody.ok
    found = summary([refused, nobody])
    assert found["requests"] == found["failed"] == 2 and found["rate"] == 0 and math.isnan(found["first"]["95"])


@pytest.mark.parametrize("end", [b"", b'data: {"error": {"message": "no"}}\n\n'])
def test_a_stream_that_breaks_off_is_no_reply(end):
    body = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n' + end
    head = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as s:

        def answer():
            with s.accept()[0] as c:
                c.recv(65536)
                c.sendall(head + body)

        thread = threading.Thread(target=answer)
        thread.start()
        found = asyncio.run(chat("127.0.0.1", s.getsockname()[1], {}))
        thread.join()
    assert found.text == "a" and not found.ok and found.error


def test_quantiles_and_tables():
    assert [quantile([5, 1, 3, 2, 4], p) for p in (1, 20, 21, 50, 95, 100)] == [1, 1, 2, 3, 5, 5]
    a = Answer(1.0, 200, [1.5, 1.6, 1.8], "abc", 3, 10, 4)
    b = Answer(1.2, 200, [2.0, 3.0], "ab", 2, 10, 0)
    found = summary([a, b])
    assert found["rate"] == pytest.approx(5 / 2.0) and found["cached"] == 4 and found["prompt"] == 20
    assert found["first"]["50"] == pytest.approx(0.5) and found["gap"]["99"] == pytest.approx(1.0)
    record = {
        "settings": {"long": 2000}, "closed": {"chat": {"4": {"fucina": [found, found], "llama-server": [found, found]}}},
        "open": {"chat": {"1": {"fucina": found, "llama-server": found}, "2": {"fucina": found, "llama-server": found}}},
        "join": {"fucina": [{"before": 0.01, "during": 0.02, "during95": 0.03, "first": 1.0}]}, "peak": {"fucina": 1 << 28, "x": None},
    }  # fmt: skip
    shown = tables(record)
    assert len(shown) == 4 and all(len(row) == len(header) for _, (header, body) in shown for row in body)
    assert shown[0][1][1][1][3] == "1.00 (1.00-1.00)" and shown[3][1][1] == [["fucina", "256"]]
    assert figure(record, "t").count("<circle") == 4
