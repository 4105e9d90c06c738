"""Bytes over real sockets that are wrong on purpose: bodies, heads, framing, halves, pipelines.

Whatever comes, the answer is a refusal in the dialect's shape or none at all, never 5xx and never a hang; and what follows
one request is never taken for another one that nobody sent.
"""

from __future__ import annotations

import json
import random
import re
import socket
from contextlib import suppress

import httpx
import pytest

import fucina
from fucina.serve import Rules
from fucina.serve import http as serve_http
from tests.chat_model import write_chat_model
from tests.serving import TOOLS_TEMPLATE, served

from .test_serve_fuzz import BODIES

PATHS = sorted(BODIES)
HOSTS = frozenset(["localhost", "127.0.0.1"])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = write_chat_model(tmp_path_factory.mktemp("model") / "chat.gguf", TOOLS_TEMPLATE)
    model = fucina.load(path, context=128)
    yield model
    model.close()


@pytest.fixture(scope="module")
def server(model):
    with served(model, Rules(hosts=HOSTS), queue=64) as server:
        yield server


def talk(server, *parts, half=True):
    """Send parts of bytes, then no more; return all that comes back until the server closes."""
    host, port = server.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        found = b""
        with suppress(ConnectionError):  # the server may close with bytes unread
            for part in parts:
                s.sendall(part)
            if half:
                s.shutdown(socket.SHUT_WR)
            while part := s.recv(65536):
                found += part
        return found


def answers(raw, bodiless=False):
    """Status, headers and body of every answer, by their lengths; fails if anything else is there.

    bodiless : the first request was HEAD.
    """
    found = []
    while raw:
        head, separator, rest = raw.partition(b"\r\n\r\n")
        assert separator and head.startswith(b"HTTP/1.1 "), (raw[:200], found)
        if head.startswith(b"HTTP/1.1 100"):
            raw = rest
            continue
        headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if bodiless and b"content-length" in headers:
            body, raw, bodiless = b"", rest, False
        elif b"content-length" in headers:
            length = int(headers[b"content-length"])
            body, raw = rest[:length], rest[length:]
        elif headers.get(b"transfer-encoding") == b"chunked":
            body, raw = chunks(rest)
        elif head[9:12] == b"204":
            body, raw = b"", rest
        else:  # up to the end of the connection
            assert headers[b"connection"] == b"close"
            body, raw = rest, b""
        found.append((int(head[9:12]), headers, body))
    return found


def chunks(raw):
    body = b""
    while True:
        size, _, raw = raw.partition(b"\r\n")
        n = int(size, 16)
        body, raw = body + raw[:n], raw[n + 2 :]
        if not n:
            return body, raw


def check(path, raw, most=1, bodiless=False):
    """Answers are 2xx or 4xx in the dialect's shape, and no more than requests; return them."""
    found = answers(raw, bodiless)
    assert len(found) <= most, raw[:500]
    for status, headers, body in found:
        assert 200 <= status < 300 or 400 <= status < 500, (status, body)
        if status >= 400 and body and headers[b"content-type"].startswith(b"application/json"):
            error = json.loads(body)["error"]
            known = {"message", "type"} if "/messages" in path else {"message", "type", "param", "code"}
            assert set(error) == known and len(body) < 3000
        else:
            assert status < 400 or body in (b"", b"Invalid HTTP request received."), body
    return found


def head(path, *lines, method="POST", host="localhost", version="HTTP/1.1"):
    first = [f"{method} {path} {version}", f"host: {host}", "content-type: application/json", *lines]
    return "\r\n".join([*first, "", ""]).encode("utf-8", "surrogateescape")


def post(path, body, *lines, **options):
    return head(path, f"content-length: {len(body)}", *lines, **options) + body


# --- bodies -----------------------------------------------------------------------------------------------------------

NUMBERS = [
    b"1e400", b"-1e400", b"1" * 400, b"-" + b"9" * 5000, b"1e-400", b"-0", b"0.1e1", b"1" + b"0" * 20, b"9007199254740993", b"1.0", b"NaN",
    b"-Infinity", b"01", b"+1", b".5", b"1.", b"0x10", b"1_000", b"1e", b"--1",
]  # fmt: skip
TEXTS = [
    b'"\xff\xfe"', b'"\xc0\xaf"', b'"\xed\xa0\x80"', b'"\\ud800"', b'"\\udc00\\ud800"', b'"\xf4\x90\x80\x80"', b'"\\u0000"', b'"\x00"', b'"\n"', b'"\xe2\x82"', b'"' + b"a" * 5000 + b'"',
    b'"\\x41"', b"'a'", b'"\xef\xbb\xbf"', b'"a', b'""',
]  # fmt: skip


def deep(generator):
    n = generator.choice([50, 500, 5_000, 100_000])
    opened, closed = generator.choice([(b"[", b"]"), (b'{"a":', b"}"), (b'[{"":', b"}]")])
    return opened * n + generator.choice([b"1", b"", b"null"]) + closed * generator.choice([n, n, n - 1, 0])


def changed_body(generator, path):
    """The right body as text, a value of it replaced by something odd, or bytes of it changed."""
    raw = json.dumps(BODIES[path]).encode()
    move = generator.randrange(6)
    if move == 0:
        places = [m.span() for m in re.finditer(rb'(?:(?<=: )|(?<=\[))("[^"]*"|[0-9.]+|true|false)', raw)]
        start, end = generator.choice(places)
        value = generator.choice([deep(generator), generator.choice(NUMBERS), generator.choice(TEXTS)])
        return raw[:start] + value + raw[end:]
    if move == 1:
        return generator.choice(
            [
                deep(generator),
                *NUMBERS,
                *TEXTS,
                b"",
                b"\xef\xbb\xbf" + raw,
                raw + raw,
                raw + b"\x00",
                raw.decode().encode("utf-16"),
            ]
        )
    if move == 2:
        return raw[: generator.randrange(len(raw))]
    if move == 3:  # a key twice
        return raw[:1] + raw[1:].partition(b",")[0] + b"," + raw[1:]
    out = bytearray(raw)
    for _ in range(generator.randrange(1, 6)):
        at = generator.randrange(len(out))
        out[at : at + generator.randrange(3)] = generator.randbytes(generator.randrange(3))
    return bytes(out)


def odd_body(generator, server):
    path = generator.choice(PATHS)
    body = changed_body(generator, path)
    check(path, talk(server, post(path, body)))


# --- heads ------------------------------------------------------------------------------------------------------------


def odd_head(generator, server):
    path = generator.choice(PATHS)
    body = json.dumps(BODIES[path]).encode()
    n = len(body)
    lines = generator.choice(
        [
            [f"content-length: {n}", f"content-length: {n + 1}"], [f"content-length: {n}, {n + 2}"], ["content-length: -1"], ["content-length: +5"],
            ["content-length: 0x10"], [f"content-length: {10**30}"], ["content-length:"], [f"content-length : {n}"], [f" content-length: {n}"],
            [f"content-length: {n}", "expect: 100-continue"], [f"content-length: {n}", "expect: 200-ok"], [f"content-length: {n}", "x: " + "y" * 100_000],
            [f"content-length: {n}", *(f"x{i}: {i}" for i in range(2000))], [f"content-length: {n}", "host: evil.example"], [f"content-length: {n}", "a\x00b: c"],
            [f"content-length: {n}", "a: b\x00c"], [f"content-length: {n}", ": nothing"], [f"content-length: {n}", "no colon"], [f"content-length: {n}", "a: \udcff"],
            [f"content-length: {n}", "content-encoding: gzip"], [f"content-length: {n}", "content-type: text/plain"], [f"content-length: {n}", "upgrade: h2c", "connection: upgrade"],
            [f"content-length: {9 << 20}"], [f"content-length: {n}", "authorization: Bearer \udcff"], [f"content-length: {n}", "connection: close, keep-alive"],
        ]
    )  # fmt: skip
    method = generator.choice(
        ["POST"] * 6 + ["post", "GET", "PUT", "TRACE", "CONNECT", "P OST", "\x01", "OPTIONS", "HEAD", "M" * 300]
    )
    host = generator.choice(
        ["localhost"] * 6
        + [
            "evil.example",
            "",
            "localhost:x",
            "[::1",
            "localhost.evil.example",
            "a" * 5000,
            "127.0.0.1:80:80",
            "LOCALHOST.",
        ]
    )
    version = generator.choice(["HTTP/1.1"] * 6 + ["HTTP/1.0", "HTTP/2.0", "HTTP/9", "", "http/1.1", "HTTP/1.1 x"])
    target = generator.choice(
        [path] * 6 + ["*", "//", "http://evil.example" + path, path + "?model=x&model=y", path + "#a", "/%00", "/..%2f" + path, "/\udcff", path + "/" * 3000, "/a b", ""]
    )  # fmt: skip
    raw = head(target, *lines, method=method, host=host, version=version) + body
    found = check(
        target, talk(server, raw), 2, method == "HEAD"
    )  # with a wrong length, the rest of the body is no request
    if method == "POST" and target == path and host == "evil.example":
        assert all(status >= 400 for status, _, _ in found)


# --- framing ----------------------------------------------------------------------------------------------------------

SECRET = b"GET /slots HTTP/1.1\r\nhost: localhost\r\n\r\n"  # what a smuggler hides in a body


def odd_framing(generator, server):
    """Two lengths of one body: a request hidden in it must not be answered."""
    path = generator.choice(PATHS)
    body = json.dumps(BODIES[path]).encode()
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    coding = generator.choice(
        ["transfer-encoding: chunked"] * 3 + [
            "transfer-encoding: xchunked", "transfer-encoding : chunked", "transfer-encoding:\x0bchunked", "transfer-encoding: chunked, identity", "transfer-encoding: identity",
            "transfer-encoding: gzip, chunked", "transfer-encoding: chunked\r\ntransfer-encoding: x", "x: y\ntransfer-encoding: chunked", "Transfer-Encoding: CHUNKED", "transfer-encoding: \"chunked\"",
        ]
    )  # fmt: skip
    kind = generator.randrange(4)
    if kind == 0:  # both lengths: the shorter one by chunks
        inside = b"0\r\n\r\n" + SECRET
        raw = head(path, f"content-length: {len(inside)}", coding) + inside
    elif kind == 1:  # the shorter one by content-length
        raw = head(path, f"content-length: {generator.randrange(6)}", coding) + chunked + SECRET
    elif kind == 2:  # broken chunks
        at = generator.randrange(len(chunked))
        odd = generator.choice(
            [
                b"",
                b"\r",
                b"\n",
                b"-1\r\n",
                b"ffffffffffffffffff\r\n",
                b";" + b"e" * 20_000,
                b"\x00",
                b"0\r\n",
                b"2 \r\nab\r\n",
            ]
        )
        raw = head(path, "transfer-encoding: chunked") + chunked[:at] + odd + chunked[at + generator.randrange(3) :]
        check(path, talk(server, raw), 2)
        return
    else:  # bare line ends and folds in the head
        raw = post(path, body).replace(
            b"\r\n", generator.choice([b"\n", b"\r", b"\r\r\n", b"\r\n "]), generator.randrange(1, 4)
        )
    found = check(path, talk(server, raw), 2)
    assert not any(b'"running"' in answer for _, _, answer in found), raw[:300]


# --- halves, slow ones and pipelines ----------------------------------------------------------------------------------


def half(generator, server):
    path = generator.choice(PATHS)
    raw = post(path, json.dumps(BODIES[path]).encode())
    check(path, talk(server, raw[: generator.randrange(len(raw))]))


def in_pieces(generator, server):
    path = generator.choice(PATHS)
    raw = post(path, changed_body(generator, path) if generator.randrange(2) else json.dumps(BODIES[path]).encode())
    cuts = sorted(generator.sample(range(1, len(raw)), min(8, len(raw) - 1)))
    check(path, talk(server, *(raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True))))


def pipeline(generator, server):
    """Several at once: answers come in order, and a bad one ends the connection."""
    wanted, raw = [], b""
    for _ in range(generator.randrange(2, 5)):
        kind = generator.randrange(4)
        if kind == 0:
            raw += post("/tokenize", b'{"content": "a"}')
            wanted.append(200)
        elif kind == 1:
            raw += post("/v1/completions", b"{")
            wanted.append(400)
        elif kind == 2:
            raw += head("/health", method="GET")
            wanted.append(200)
        else:
            raw += head("/v1/models", method="DELETE")
            wanted.append(404)
    if generator.randrange(3) == 0:
        raw += b"nonsense\r\n\r\n"
        wanted.append(400)
    found = [status for status, _, _ in check("/", talk(server, raw), len(wanted))]
    assert found == wanted[: len(found)]


KINDS = [odd_body, odd_body, odd_body, odd_head, odd_head, odd_framing, half, in_pieces, pipeline]


def run(server, seed, n):
    generator = random.Random(seed)
    for _ in range(n):
        state = generator.getstate()
        kind = generator.choice(KINDS)
        try:
            kind(generator, server)
        except BaseException as error:
            error.add_note(f"{kind.__name__}, state of the generator: {hash(state)}")
            raise
    with httpx.Client(base_url=server.address, trust_env=False, timeout=60) as client:
        while client.get("/slots").json()["busy"]:
            pass
        assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2}).status_code == 200
        assert 'end="error"' not in client.get("/metrics").text


@pytest.mark.filterwarnings("ignore::fucina.sampling.grammar.IgnoredKeyword")
def test_odd_requests(server):
    run(server, 1, 5000)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::fucina.sampling.grammar.IgnoredKeyword")
@pytest.mark.parametrize("seed", range(2, 6))
def test_very_many_odd_requests(server, seed):
    run(server, seed, 20_000)


def test_a_hidden_request_is_not_answered(server):
    """Both lengths at once: the request is refused, and the connection ends."""
    inside = b"0\r\n\r\n" + SECRET
    raw = head("/v1/completions", f"content-length: {len(inside)}", "transfer-encoding: chunked") + inside
    ((status, headers, _),) = answers(talk(server, raw, half=False))
    assert status == 400 and headers[b"connection"] == b"close"


def test_a_body_that_never_comes(model, monkeypatch):
    monkeypatch.setattr(serve_http, "READ_SECONDS", 0.05)
    with served(model) as server:
        for path in ("/v1/chat/completions", "/v1/messages", "/tokenize"):
            raw = head(path, "content-length: 20", "connection: close") + b'{"a": '
            ((status, _, body),) = answers(talk(server, raw, half=False))
            assert status == 408 and "error" in json.loads(body)
