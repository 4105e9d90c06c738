"""Requests that are changed at random: an answer in the dialect's shape, never 5xx, and the server goes on."""

from __future__ import annotations

import asyncio
import copy
import json

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fucina
from fucina.serve.app import App
from tests.chat_model import write_chat_model
from tests.serving import TOOLS_TEMPLATE

TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": False},
}
BODIES = {
    "/v1/chat/completions": {
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "u"}]},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "r"},
        ],
        "max_tokens": 2, "temperature": 0.5, "top_p": 0.9, "seed": 1, "n": 1, "stop": ["x"], "stream": False, "logprobs": True,
        "top_logprobs": 1, "logit_bias": {"1": 1}, "tools": [TOOL], "tool_choice": "auto", "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}},
    },
    "/v1/completions": {"prompt": ["ab", "c"], "max_tokens": 2, "n": 1, "logprobs": 1, "stop": "q", "stream": False, "regex": "a*"},
    "/v1/messages": {
        "model": "m", "max_tokens": 2, "system": [{"type": "text", "text": "s"}], "temperature": 0.5, "stop_sequences": ["q"], "stream": False,
        "messages": [
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": [{"type": "text", "text": "t"}, {"type": "tool_use", "id": "1", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "r"}]},
        ],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}], "tool_choice": {"type": "auto"}, "thinking": {"type": "disabled"},
    },
    "/v1/messages/count_tokens": {
        "model": "m", "system": "s", "messages": [{"role": "user", "content": [{"type": "text", "text": "u"}]}, {"role": "system", "content": "t"}],
        "tools": [{"type": "custom", "name": "f", "description": "d", "input_schema": {"type": "object"}, "strict": True}],
        "tool_choice": {"type": "tool", "name": "f"}, "output_config": {"effort": "low"},
    },
    "/v1/responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "u"}]},
            {"type": "reasoning", "summary": []},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "r"},
        ],
        "instructions": "s", "max_output_tokens": 2, "temperature": 0.5, "seed": 1, "stream": False, "truncation": "disabled", "store": False,
        "metadata": {"a": "b"}, "reasoning": {"effort": "low"}, "include": ["reasoning.encrypted_content"],
        "tools": [{"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": False}], "tool_choice": "auto",
        "text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}},
    },
    "/v1/embeddings": {"model": "chat", "input": ["a", [1, 2]], "encoding_format": "float", "dimensions": 3, "pooling": "mean", "user": "u"},
    "/tokenize": {"content": "ab", "add_special": True, "parse_special": False, "with_pieces": True},
    "/detokenize": {"tokens": [1, 2, 3]},
    "/apply-template": {"messages": [{"role": "user", "content": "u"}], "tools": [TOOL]},
}  # fmt: skip
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=20),
    st.sampled_from([10**40, -1, 0, 1e300, "", [], {}, [[]], {"": None}, "\x00", "<|im_end|>", "𝒳", [None], {"type": "object"}, "required"]),
    st.recursive(st.none() | st.text(max_size=5) | st.integers(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=6),
)  # fmt: skip
MOVES = st.lists(
    st.tuples(st.integers(0, 10**6), st.sampled_from(["set", "drop", "double", "rename"]), VALUES), max_size=4
)
pytestmark = pytest.mark.filterwarnings("ignore::fucina.sampling.grammar.IgnoredKeyword")


def places(value, at=()):
    """Every place in a JSON value."""
    found = [at] if at else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += places(item, (*at, key))
    return found


def changed(body, moves):
    body = copy.deepcopy(body)
    for where, move, value in moves:
        found = places(body)
        if not found:
            break
        *path, key = found[where % len(found)]
        parent = body
        for step in path:
            parent = parent[step]
        if move == "set":
            parent[key] = copy.deepcopy(value)
        elif move == "drop":
            del parent[key]
        elif isinstance(parent, dict) and move == "rename":
            parent[str(value)[:30]] = parent.pop(key)
        elif isinstance(parent, list):
            parent.append(copy.deepcopy(parent[key]))
    return body


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    model = fucina.load(write_chat_model(tmp_path_factory.mktemp("model") / "chat.gguf", TOOLS_TEMPLATE))
    with fucina.SlotPool(model, memory="64MiB") as pool:
        app = App(model, pool)
        loop = asyncio.new_event_loop()
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")
        yield lambda path, raw: loop.run_until_complete(
            client.post(path, content=raw, headers={"content-type": "application/json"})
        )
        loop.run_until_complete(client.aclose())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        app.close(0.0)
    model.close()


@pytest.mark.parametrize("path", sorted(BODIES))
def test_what_is_changed_was_right(server, path):
    assert server(path, json.dumps(BODIES[path]).encode()).status_code == 200


def check(path, response):
    assert response.status_code < 500, response.text
    if response.headers["content-type"].startswith("text/event-stream"):
        assert '"server_error"' not in response.text
        return
    body = response.json()
    if response.status_code != 200:
        shape = {"message", "type"} if path.startswith("/v1/messages") else {"message", "type", "param", "code"}
        assert set(body["error"]) == shape and len(response.content) < 3000


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.sampled_from(sorted(BODIES)), MOVES)
def test_changed_bodies(server, path, moves):
    body = changed(BODIES[path], moves)
    for name in (
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
    ):  # those that stay right should not take long
        if isinstance(body.get(name), (int, float)) and body[name] > 3:
            body[name] = 3
    check(path, server(path, json.dumps(body, ensure_ascii=True).encode()))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(sorted(BODIES)),
    st.lists(st.tuples(st.integers(0, 10**6), st.binary(max_size=3), st.integers(0, 3)), min_size=1, max_size=4),
)
def test_changed_bytes(server, path, edits):
    raw = bytearray(json.dumps(BODIES[path]).encode())
    for where, new, cut in edits:
        at = where % len(raw)
        raw[at : at + cut] = new
    check(path, server(path, bytes(raw)))


def test_the_server_still_answers(server):
    response = server(
        "/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": "u"}], "max_tokens": 2}).encode()
    )
    assert response.status_code == 200
