"""Anthropic's dialect: each rule, and the order of its events."""

from __future__ import annotations

import json

import pytest
from jsonschema import validate

import fucina
from fucina.sampling import SamplerOptions
from fucina.serve import GenerateRequest
from fucina.serve.app import App
from tests.chat_model import write_chat_model
from tests.serving import TOOLS_TEMPLATE, alone, asked

USER = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
TOOL = {"name": "f", "description": "d", "input_schema": SCHEMA, "strict": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    model = fucina.load(write_chat_model(tmp_path_factory.mktemp("model") / "chat.gguf", TOOLS_TEMPLATE))
    yield model
    model.close()


@pytest.fixture
def app(model):
    with fucina.SlotPool(model, memory="64MiB") as pool:
        app = App(model, pool)
        yield app
        app.close(0.0)
        assert pool.stats().in_use == 0


def send(app, path="/v1/messages", **body):
    body = {"model": "any", "messages": USER, **({"max_tokens": 6} if path.endswith("messages") else {}), **body}
    return asked(app, "POST", path, body)


def refused(response, status=400, kind="invalid_request_error"):
    assert response.status_code == status, response.text
    assert response.json().keys() == {"type", "error"} and response.json()["error"]["type"] == kind
    return response.json()["error"]["message"]


def events(response):
    """The events of a stream; each name is the type of its data."""
    assert response.status_code == 200, response.text
    found = []
    for block in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def prompt(app, **body):
    return app.service.chat_ids(body.get("messages", USER), think=False)


def expected(app, most, messages=USER, **options):
    service = app.service
    r = GenerateRequest(
        service.chat_ids(messages, think=False),
        most,
        SamplerOptions(**options),
        ends=service.ends,
        grammar_ends=service.grammar_ends,
    )
    return alone(service.model, r)


def test_a_reply(app):
    response = send(app, temperature=0)
    body, (tokens, text, _) = response.json(), expected(app, 6)
    assert body.pop("id").startswith("msg_")
    size = len(prompt(app))
    assert body == {
        "type": "message", "role": "assistant", "model": app.service.name, "content": [{"type": "text", "text": text}], "stop_reason": "max_tokens", "stop_sequence": None,
        "usage": {"input_tokens": size, "output_tokens": len(tokens), "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0},
    }  # fmt: skip
    again = send(app, temperature=0).json()["usage"]
    assert (again["input_tokens"], again["cache_read_input_tokens"]) == (1, size - 1)


def test_a_stream(app):
    found = events(send(app, temperature=0.9, seed=2, stream=True, max_tokens=12))
    kinds = [e["type"] for e in found]
    assert kinds[:2] == ["message_start", "content_block_start"] and kinds[-3:] == [
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert "".join(e["delta"]["text"] for e in found[2:-3]) == expected(app, 12, temperature=0.9, seed=2)[1]
    assert found[0]["message"]["content"] == [] and set(found[0]["message"]["usage"].values()) == {0}
    assert (
        found[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
        and found[-2]["usage"]["output_tokens"] == 12
    )


def test_stop_sequences(app):
    whole = expected(app, 30, temperature=0.8, seed=3)[1]
    stop = next(c for c in whole[2:] if c.isascii())
    stops = ["never 1", "never 2", "never 3", "never 4", "never 5", stop]
    body = send(app, temperature=0.8, seed=3, max_tokens=30, stop_sequences=stops).json()
    assert body["content"][0]["text"] == whole[: whole.index(stop)]
    assert (body["stop_reason"], body["stop_sequence"]) == ("stop_sequence", stop)
    found = events(send(app, temperature=0.8, seed=3, max_tokens=30, stop_sequences=stops, stream=True))
    assert found[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": stop}


def test_an_end_token_is_the_end_of_a_turn(app):
    body = send(app, max_tokens=200, output_config={"format": {"type": "json_schema", "schema": SCHEMA}}).json()
    validate(json.loads(body["content"][0]["text"]), SCHEMA)
    assert (body["stop_reason"], body["stop_sequence"]) == ("end_turn", None)


def test_calls(app):
    for choice in ({"type": "any"}, {"type": "tool", "name": "f", "disable_parallel_tool_use": True}):
        body = send(app, tools=[TOOL], tool_choice=choice, max_tokens=120).json()
        (use,) = body["content"]
        assert (use["type"], use["name"], body["stop_reason"]) == ("tool_use", "f", "tool_use") and use[
            "id"
        ].startswith("toolu_")
        validate(use["input"], SCHEMA)
    found = events(send(app, tools=[TOOL], tool_choice={"type": "any"}, max_tokens=120, stream=True))
    assert [e["type"] for e in found] == [
        "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    assert found[1]["content_block"]["input"] == {} and found[2]["delta"]["type"] == "input_json_delta"
    validate(json.loads(found[2]["delta"]["partial_json"]), SCHEMA)


def test_blocks_of_messages(app):
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "he", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "llo"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "t", "signature": ""}, {"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "so"},
            {"type": "tool_use", "id": "1", "name": "f", "input": {"a": True}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "yes"}]},
            {"type": "tool_result", "tool_use_id": "2", "content": "no", "is_error": True}, {"type": "text", "text": "go on"},
        ]},
        {"role": "system", "content": "mind"},
    ]  # fmt: skip
    plain = [
        {"role": "system", "content": "s"},
        *USER,
        {
            "role": "assistant",
            "content": "so",
            "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"a": True}}}],
        },
        {"role": "tool", "content": "yes"},
        {"role": "tool", "content": "Error: no"},
        {"role": "user", "content": "go on"},
        {"role": "user", "content": "<system-reminder>\nmind\n</system-reminder>"},
    ]
    system = [{"type": "text", "text": "s"}]
    body = send(app, messages=messages, system=system, temperature=0).json()
    assert body["content"][0]["text"] == expected(app, 6, plain)[1]
    counted = send(app, "/v1/messages/count_tokens", messages=messages, system=system).json()
    assert counted == {"input_tokens": body["usage"]["input_tokens"] + body["usage"]["cache_read_input_tokens"]}


def test_counts(app):
    assert send(app, "/v1/messages/count_tokens").json() == {"input_tokens": len(prompt(app))}
    described = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}
    assert send(app, "/v1/messages/count_tokens", tools=[TOOL]).json()["input_tokens"] == len(
        app.service.chat_ids(USER, [described], False)
    )
    refused(send(app, "/v1/messages/count_tokens", messages=[]))
    refused(asked(app, "POST", "/v1/messages/count_tokens", {"messages": USER}))


def test_what_is_refused(app):
    image = {"type": "image", "source": {"type": "base64", "data": "x"}}
    for wrong in (
        {"messages": []}, {"messages": "x"}, {"messages": [{"role": "assistant", "content": "x"}]}, {"messages": [{"role": "user"}]},
        {"messages": [{"role": "user", "content": [image]}]}, {"messages": [{"role": "user", "content": [{"text": "x"}]}]}, {"messages": [1]},
        {"messages": [{"role": "tool", "content": "x"}]}, {"messages": [{"role": "user", "content": 3}]},
        {"messages": [*USER, {"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": []}]}]},
        {"temperature": 1.5}, {"top_p": 2}, {"top_k": -1}, {"max_tokens": 0}, {"max_tokens": None}, {"stop_sequences": [""]}, {"stream": 1},
        {"system": 3}, {"system": [image]}, {"tools": [{**TOOL, "type": "web_search"}]}, {"tools": [{"name": "f"}]}, {"tools": [1]},
        {"tools": [{**TOOL, "name": "a b"}]}, {"tools": [TOOL, TOOL]}, {"tool_choice": {"type": "any"}}, {"tool_choice": {}}, {"tool_choice": "any"},
        {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, {"thinking": {}}, {"thinking": {"type": "much"}}, {"n": 2}, {"model": 3},
        {"output_config": {"format": {"type": "json_schema"}}}, {"output_config": {"format": {"schema": {"type": "nothing"}}}}, {"mcp_servers": []},
        {"messages": [{"role": "user", "content": "x" * 3000}]}, {"model": None},
    ):  # fmt: skip
        refused(send(app, **wrong))
    refused(send(app, "/v1/messages/batches"), 404, "not_found_error")
    refused(asked(app, "POST", "/v1/messages", raw=b"{"))
    app.worker.refuse()
    refused(send(app), 503, "overloaded_error")


def test_tools_are_dropped_where_the_model_has_no_form_for_them(tmp_path):
    model = fucina.load(write_chat_model(tmp_path / "plain.gguf"))
    with fucina.SlotPool(model) as pool:
        app = App(model, pool)
        assert send(app, tools=[TOOL], temperature=0).json()["content"] == send(app, temperature=0).json()["content"]
        refused(send(app, tools=[TOOL], tool_choice={"type": "any"}))
        refused(
            send(
                app,
                messages=[
                    *USER,
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]},
                ],
            )
        )
        app.close(0.0)
    model.close()
