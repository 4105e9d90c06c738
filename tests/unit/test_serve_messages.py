"""Anthropic's dialect: each rule, the order of its events, and the official client."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import validate

import fucina
from fucina.sampling import SamplerOptions
from fucina.serve import GenerateRequest, Rules
from fucina.serve.app import App
from fucina.serve.jobs import Done
from fucina.serve.messages import Messages
from fucina.serve.parts import Choice, End
from fucina.serve.scanners import Call, Reasoning, Text
from tests.chat_model import write_chat_model
from tests.serving import THINKING, TOOLS_TEMPLATE, alone, app_of, asked, served

USER = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
TOOL = {"name": "f", "description": "d", "input_schema": SCHEMA, "strict": True}
FORMAT = {"format": {"type": "json_schema", "schema": SCHEMA}}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    model = fucina.load(write_chat_model(tmp_path_factory.mktemp("model") / "chat.gguf", TOOLS_TEMPLATE))
    yield model
    model.close()


@pytest.fixture
def app(model):
    with app_of(model) as app:
        yield app


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
    return events_of(response.text)


def events_of(text):
    found = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def rebuilt(text):
    """The message that the events of a stream add up to, by the rules of the API's documents."""
    first, *middle, delta, stop = events_of(text)
    assert (first["type"], delta["type"], stop) == ("message_start", "message_delta", {"type": "message_stop"})
    message = first["message"]
    assert message["content"] == [] and message["stop_reason"] is None and set(message["usage"].values()) == {0}
    blocks, opened, arguments = message["content"], False, ""
    for e in middle:
        kind = e["type"].removeprefix("content_block_")
        if kind == "start":
            assert not opened and e["index"] == len(blocks)
            blocks.append(e["content_block"])
            opened, arguments = True, ""
            continue
        assert opened and e["index"] == len(blocks) - 1
        block = blocks[-1]
        if kind == "stop":
            opened = False
            if block["type"] == "tool_use":
                assert block["input"] == {}
                block["input"] = json.loads(arguments)
        elif e["delta"]["type"] == "signature_delta":
            assert block["type"] == "thinking" and e["delta"]["signature"] == ""
        elif e["delta"]["type"] == "input_json_delta":
            assert block["type"] == "tool_use"
            arguments += e["delta"]["partial_json"]
        else:
            assert e["delta"]["type"] == f"{block['type']}_delta"
            block[block["type"]] += e["delta"][block["type"]]
    assert not opened
    return {**message, **delta["delta"], "usage": delta["usage"]}


def alike(message):
    """A message without its ids and how its prompt tokens were counted, which differ from one asking to the next."""
    found = json.loads(json.dumps(message).replace(message["id"].removeprefix("msg_"), "ID"))
    usage = found.pop("usage")
    return {**found, "prompt": usage["input_tokens"] + usage["cache_read_input_tokens"], "out": usage["output_tokens"]}


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
    refused = send(app, max_tokens=3, stop_sequences=["never"] * 1001)
    assert refused.status_code == 400 and "1001 items, at most 1000" in refused.json()["error"]["message"]


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


# --- streams add up ---------------------------------------------------------------------------------------------------

VARIED = st.fixed_dictionaries(
    {"seed": st.integers(0, 99), "temperature": st.sampled_from([0, 0.8, 1.0]), "max_tokens": st.integers(1, 60)},
    optional={
        "stop_sequences": st.sampled_from([["e"], ["\n", "q", "no such text"]]), "system": st.sampled_from(["", "s", [{"type": "text", "text": "s"}]]),
        "how": st.sampled_from([
            {"output_config": FORMAT}, {"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": {"type": "any"}}, {"tools": [TOOL], "tool_choice": {"type": "none"}},
            {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "f"}}, {"thinking": {"type": "adaptive"}},
        ]),
    },
)  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(VARIED)
def test_a_stream_adds_up_to_the_whole_reply(app, body):
    how = body.pop("how", {})
    body = {**body, **how}
    whole = send(app, **body)
    assert whole.status_code == 200, whole.text
    assert alike(rebuilt(send(app, **body, stream=True).text)) == alike(whole.json())


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.text(min_size=1, max_size=5), max_size=3),
    st.lists(st.one_of(st.text(min_size=1, max_size=4).map(Text), st.sampled_from([Text(" "), Call("f", "{}"), Call("g", '{"x": 1}')])), max_size=6),
    st.sampled_from(["stop", "length"]), st.sampled_from([None, 0, 1]),
)  # fmt: skip
def test_any_parts_add_up(app, thoughts, rest, finish, stop):
    dialect = Messages(app.service)
    ask = dialect.parse({"model": "m", "messages": USER, "max_tokens": 3, "stop_sequences": ["s", "t"]}, "")
    calls = [part for part in rest if isinstance(part, Call)]
    stop = stop if finish == "stop" else None
    end = End("tool_calls" if calls and finish == "stop" else finish, Done(finish, 5, 4, 2, stop))
    text = "".join(part.text for part in rest if isinstance(part, Text))
    whole = dialect.whole(ask, [Choice(text, "".join(thoughts), calls, [], end)])

    async def parts():
        for part in (*map(Reasoning, thoughts), *rest, end):
            yield 0, part

    async def frames():
        return "".join([f async for f in dialect.frames(ask, parts())])

    assert rebuilt(asyncio.run(frames())) == whole
    kinds = [block["type"] for block in whole["content"]]
    assert kinds and kinds == sorted(kinds, key=["thinking", "text", "tool_use"].index)
    assert kinds.count("tool_use") == len(calls) and kinds.count("thinking") == bool(thoughts)
    ids = [block["id"] for block in whole["content"] if block["type"] == "tool_use"]
    assert len(set(ids)) == len(ids)
    fired = None if calls or stop is None else ["s", "t"][stop]
    reason = {"length": "max_tokens"}.get(finish, "tool_use" if calls else "stop_sequence" if fired else "end_turn")
    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, fired)
    assert whole["usage"]["input_tokens"] == 3 and whole["usage"]["cache_read_input_tokens"] == 2


def test_thinking(tmp_path):
    model = fucina.load(write_chat_model(tmp_path / "thinks.gguf", THINKING, ("</think>",)))
    with fucina.SlotPool(model) as pool:
        app = App(model, pool)
        for thinking in ({"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}):
            (block,) = send(app, thinking=thinking, seed=1, temperature=0.9).json()["content"]
            assert block["type"] == "thinking" and block["thinking"] and block["signature"] == ""
            response = send(app, thinking=thinking, seed=1, temperature=0.9, stream=True)
            assert rebuilt(response.text)["content"] == [block]
            last = [e for e in events(response) if e["type"] == "content_block_delta"][-1]
            assert last["delta"] == {"type": "signature_delta", "signature": ""}
        for off in (
            {},
            {"thinking": {"type": "disabled"}},
            {"thinking": {"type": "adaptive"}, "output_config": FORMAT},
        ):
            assert [block["type"] for block in send(app, **off).json()["content"]] == ["text"]
        counts = [
            send(app, "/v1/messages/count_tokens", **how).json()["input_tokens"]
            for how in ({"thinking": {"type": "adaptive"}}, {})
        ]
        assert counts == [len(app.service.chat_ids(USER, think=think)) for think in (True, False)]
        app.close(0.0)
    model.close()


def failing_pass(monkeypatch, model, which):
    """Let the pass with that number fail."""
    forward, calls = model.forward_rows, []

    def fails(requests):
        calls.append(requests)
        if len(calls) == which:
            raise MemoryError
        return forward(requests)

    monkeypatch.setattr(model, "forward_rows", fails)


def test_errors_of_streams(app, monkeypatch):
    failing_pass(monkeypatch, app.service.model, 4)
    found = events(send(app, stream=True, max_tokens=50, seed=1, temperature=0))
    assert found[0]["type"] == "message_start" and "message_stop" not in [e["type"] for e in found]
    assert found[-1].keys() == {"type", "error"} and found[-1]["error"]["type"] == "api_error"
    failing_pass(monkeypatch, app.service.model, 1)
    refused(send(app, stream=True), 500, "api_error")


# --- the official client ----------------------------------------------------------------------------------------------

anthropic = pytest.importorskip("anthropic", reason="the official client is for developers (group dev)")


@pytest.fixture(scope="module")
def client(model):
    with (
        served(model, Rules(("key",))) as server,
        anthropic.Anthropic(base_url=server.address, api_key="key", max_retries=0) as client,
    ):
        yield client


def test_the_official_client_asks(client):
    options = {"model": "any", "messages": USER, "max_tokens": 9, "extra_body": {"seed": 3, "temperature": 0.8}}
    whole = client.messages.create(**options)
    assert whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 9 and whole.content[0].text
    with client.messages.stream(**options) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text
    assert (final.usage.input_tokens, final.stop_reason) == (1, "max_tokens")
    size = final.usage.input_tokens + final.usage.cache_read_input_tokens
    assert client.messages.count_tokens(model="any", messages=USER).input_tokens == size
    raw = [e.type for e in client.messages.create(**options, stream=True)]
    assert raw[0] == "message_start" and raw[-1] == "message_stop"
    turns = [*USER, {"role": "assistant", "content": whole.content}, {"role": "user", "content": "more"}]
    assert client.messages.create(**{**options, "messages": turns}).content
    stop = next(c for c in text[1:] if c.isascii())
    stopped = client.messages.create(**options, stop_sequences=["never", stop])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", stop)


def test_the_official_client_calls_tools_and_parses_structures(client):
    options = {"model": "any", "messages": USER, "max_tokens": 120, "tools": [TOOL], "tool_choice": {"type": "any"}}
    reply = client.messages.create(**options)
    with client.messages.stream(**options) as stream:
        final = stream.get_final_message()
    for message in (reply, final):
        (use,) = message.content
        assert (use.type, use.name, message.stop_reason) == ("tool_use", "f", "tool_use")
        validate(use.input, SCHEMA)
    turns = [
        *USER,
        {"role": "assistant", "content": final.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "sunny"}]},
    ]
    assert client.messages.create(
        **{**options, "messages": turns, "tool_choice": {"type": "auto"}, "max_tokens": 5}
    ).content
    from pydantic import BaseModel

    class Answer(BaseModel):
        yes: bool

    asking = {"model": "any", "messages": USER, "max_tokens": 60, "output_format": Answer}
    parsed = client.messages.parse(**asking)
    assert isinstance(parsed.parsed_output, Answer)
    with client.messages.stream(**asking) as stream:
        assert isinstance(stream.get_final_message().parsed_output, Answer)
    turns = [*USER, {"role": "assistant", "content": parsed.content}, {"role": "user", "content": "more"}]
    assert client.messages.create(model="any", messages=turns, max_tokens=2).content


def test_the_official_client_knows_our_errors(client, model, monkeypatch):
    for wrong in ({"max_tokens": 0}, {"messages": [{"role": "user", "content": "x" * 3000}]}, {"temperature": 1.5}):
        with pytest.raises(anthropic.BadRequestError) as found:
            client.messages.create(model="any", messages=USER, max_tokens=3, extra_body=wrong)
        assert found.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.AuthenticationError):
        anthropic.Anthropic(base_url=client.base_url, api_key="other", max_retries=0).messages.create(
            model="any", messages=USER, max_tokens=3
        )
    failing_pass(monkeypatch, model, 4)
    with pytest.raises(anthropic.APIStatusError) as found:
        for _ in client.messages.create(
            model="any", messages=[{"role": "user", "content": "other words"}], max_tokens=40, stream=True
        ):
            pass
    assert found.value.body["error"]["type"] == "api_error"
