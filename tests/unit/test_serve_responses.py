"""OpenAI's Responses API: its rules, its events, and the official client."""

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
from fucina.serve.parts import Choice, End
from fucina.serve.responses import Responses
from fucina.serve.scanners import Call, Reasoning, Text
from tests.chat_model import write_chat_model
from tests.serving import THINKING, TOOLS_TEMPLATE, alone, app_of, asked, served

USER = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
TOOL = {"type": "function", "name": "f", "description": "d", "parameters": SCHEMA, "strict": True}
FORMAT = {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}
LIFE = ("response.created", "response.in_progress", "response.completed", "response.incomplete", "response.failed")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    model = fucina.load(write_chat_model(tmp_path_factory.mktemp("model") / "chat.gguf", TOOLS_TEMPLATE))
    yield model
    model.close()


@pytest.fixture
def app(model):
    with app_of(model) as app:
        yield app


def send(app, **body):
    return asked(app, "POST", "/v1/responses", {"input": "hello", "max_output_tokens": 6, **body})


def refused(response, status=400, param=..., code=...):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    assert param is ... or error["param"] == param, error
    assert code is ... or error["code"] == code, error
    return error["message"]


def events(text):
    """The events of a stream: each is named as its data says, and they are numbered from 0; there is no [DONE]."""
    found = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    assert [e["sequence_number"] for e in found] == list(range(len(found)))
    return found


def rebuilt(text):
    """The response that the events of a stream add up to, item by item, by the rules of the API's documents."""
    found = events(text)
    kinds = [e["type"] for e in found]
    assert kinds[:2] == list(LIFE[:2]) and kinds[-1] in LIFE[2:] and not set(kinds[2:-1]) & set(LIFE)
    for e in found[:2]:
        response = e["response"]
        assert (response["status"], response["output"], response["usage"]) == ("in_progress", [], None)
    items = []
    for e in found[2:-1]:
        kind = e["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert e["output_index"] == len(items) and (not items or items[-1]["closed"])
            item = {**e["item"], "closed": False, "text": "", "part": None, "said": None}
            assert item["status"] == "in_progress" and not item.get("content") and not item.get("arguments")
            items.append(item)
            continue
        item = items[e["output_index"]]
        assert not item["closed"] and e.get("item_id", item["id"]) == item["id"] and e.get("content_index", 0) == 0
        if kind == "output_item.done":
            done = e["item"]
            assert done["id"] == item["id"] and item["said"] is not None
            if done["type"] == "function_call":
                assert done["arguments"] == item["said"]
            else:
                assert done["content"][0]["text"] == item["said"]
            assert item["type"] != "message" or item["part"] == done["content"][0]
            items[e["output_index"]] = {**done, "closed": True}
        elif kind == "content_part.added":
            assert item["type"] == "message" and item["part"] is None and e["part"]["text"] == ""
            item["part"] = e["part"]
        elif kind == "content_part.done":
            assert item["said"] is not None and e["part"]["text"] == item["said"]
            item["part"] = e["part"]
        elif kind.endswith(".delta"):
            assert item["said"] is None and (item["type"] != "message" or item["part"] is not None)
            assert kind.split(".")[0] == DELTAS[item["type"]]
            item["text"] += e["delta"]
        elif kind.endswith(".done"):
            assert kind.split(".")[0] == DELTAS[item["type"]]
            item["said"] = e["arguments"] if item["type"] == "function_call" else e["text"]
            assert item["said"] == item["text"]
        else:
            raise AssertionError(kind)
    last = found[-1]["response"]
    assert last["status"] == kinds[-1].removeprefix("response.")
    assert all(item.pop("closed") for item in items)
    assert last["output"] == items
    assert {**last, **found[0]["response"]} == {**last, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}  # fmt: skip
    return last


DELTAS = {"message": "output_text", "reasoning": "reasoning_text", "function_call": "function_call_arguments"}


def alike(response):
    """A response without what differs from one asking to the next: ids, clock, and which rows were there already."""
    text = json.dumps(response).replace(response["id"].removeprefix("resp_"), "ID")
    found = json.loads(text)
    del found["created_at"], found["usage"]["input_tokens_details"]
    return found


def texts(response, kind="message"):
    return [item["content"][0]["text"] for item in response["output"] if item["type"] == kind]


def expected(app, most, messages=USER, tools=None, **options):
    service = app.service
    ids = service.chat_ids(messages, tools)
    r = GenerateRequest(ids, most, SamplerOptions(**options), ends=service.ends, grammar_ends=service.grammar_ends)
    return alone(service.model, r)


# --- replies ----------------------------------------------------------------------------------------------------------


def test_a_reply(app):
    body = send(app, temperature=0, instructions="be brief").json()
    tokens, text, _ = expected(app, 6, [{"role": "system", "content": "be brief"}, *USER])
    assert (body["object"], body["status"], body["model"]) == ("response", "incomplete", app.service.name)
    assert body["incomplete_details"] == {"reason": "max_output_tokens"} and body["error"] is None
    (item,) = body["output"]
    assert item["id"].startswith("msg_") and (item["type"], item["role"], item["status"]) == (
        "message",
        "assistant",
        "incomplete",
    )
    assert item["content"] == [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    usage = body["usage"]
    assert usage["output_tokens"] == len(tokens) and usage["input_tokens_details"]["cached_tokens"] == 0
    assert usage["total_tokens"] == usage["input_tokens"] + len(tokens)
    assert (body["instructions"], body["max_output_tokens"], body["temperature"]) == ("be brief", 6, 0)
    again = send(app, temperature=0, instructions="be brief").json()
    assert again["id"] != body["id"] and alike(again) == alike(body)
    assert again["usage"]["input_tokens_details"]["cached_tokens"] == usage["input_tokens"] - 1
    assert asked(app, "POST", "/responses", {"input": "hello", "max_output_tokens": 1}).status_code == 200


VARIED = st.fixed_dictionaries(
    {"seed": st.integers(0, 99), "temperature": st.sampled_from([0, 0.8, 1.5]), "max_output_tokens": st.integers(1, 60)},
    optional={
        "stop": st.sampled_from(["e", ["\n", "q"]]), "instructions": st.sampled_from(["", "s"]), "metadata": st.just({"a": "b"}),
        "how": st.sampled_from([
            {"text": {"format": FORMAT}}, {"text": {"format": {"type": "json_object"}}}, {"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": "required"},
            {"tools": [TOOL], "tool_choice": {"type": "function", "name": "f"}}, {"reasoning": {"effort": "high"}},
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
    st.sampled_from(["stop", "length"]),
)  # fmt: skip
def test_any_parts_add_up(app, thoughts, rest, finish):
    dialect = Responses(app.service)
    ask = dialect.parse({"input": "x"}, "")
    calls = [part for part in rest if isinstance(part, Call)]
    end = End("tool_calls" if calls and finish == "stop" else finish, Done(finish, 5, 4, 2))
    text = "".join(part.text for part in rest if isinstance(part, Text))
    whole = dialect.whole(ask, [Choice(text, "".join(thoughts), calls, [], end)])

    async def parts():
        for part in (*map(Reasoning, thoughts), *rest, end):
            yield 0, part

    async def frames():
        return "".join([f async for f in dialect.frames(ask, parts())])

    assert rebuilt(asyncio.run(frames())) == whole
    assert [item["type"] for item in whole["output"]] == [
        *(["reasoning"] if thoughts else []),
        "message",
        *(["function_call"] * len(calls)),
    ]
    ids = [item["id"] for item in whole["output"]] + [item["call_id"] for item in whole["output"] if "call_id" in item]
    assert len(set(ids)) == len(ids)
    assert whole["status"] == ("incomplete" if finish == "length" else "completed")


def test_reasoning(tmp_path):
    model = fucina.load(write_chat_model(tmp_path / "thinks.gguf", THINKING, ("</think>",)))
    with fucina.SlotPool(model) as pool:
        app = App(model, pool)
        bias = {"logit_bias": {"257": -100}, "seed": 1, "temperature": 0.9}
        body = send(app, reasoning={"effort": "high"}, **bias).json()
        assert len(texts(body, "reasoning")) == 1 and texts(body) == [""]
        assert body["output"][0]["id"].startswith("rs_") and body["output"][0]["status"] == "incomplete"
        assert body["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
        ended = {"logit_bias": {"257": -100, "258": 3}, "seed": 1, "temperature": 0.9, "max_output_tokens": 30}
        both = send(app, **ended).json()
        assert texts(both, "reasoning") != [] and both["output"][0]["status"] == "completed" and texts(both) != [""]
        assert alike(rebuilt(send(app, **ended, stream=True).text)) == alike(both)
        for off in ({"reasoning": {"effort": "none"}}, {"text": {"format": FORMAT}}):
            assert [item["type"] for item in send(app, **bias, **off).json()["output"]] == ["message"]
        app.close(0.0)
    model.close()


# --- requests ---------------------------------------------------------------------------------------------------------


def test_items(app):
    given_items = [
        {"role": "developer", "content": "s"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "he"}, {"type": "input_text", "text": "llo"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "so", "annotations": []}, {"type": "refusal", "refusal": "x"}]},
        {"type": "function_call", "id": "fc_1", "call_id": "1", "name": "f", "arguments": '{"a": true}', "status": "completed"},
        {"type": "function_call", "call_id": "2", "name": "f", "arguments": ""},
        {"type": "function_call_output", "call_id": "1", "output": "yes"},
        {"type": "function_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "no"}]},
    ]  # fmt: skip
    calls = [{"function": {"name": "f", "arguments": {"a": True}}}, {"function": {"name": "f", "arguments": {}}}]
    plain = [
        {"role": "system", "content": "s"}, *USER, {"role": "assistant", "content": "so", "tool_calls": calls},
        {"role": "tool", "content": "yes"}, {"role": "tool", "content": "no"},
    ]  # fmt: skip
    assert texts(send(app, input=given_items, temperature=0).json()) == [expected(app, 6, plain)[1]]
    described = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}]
    with_tools = send(app, input=given_items, tools=[TOOL], temperature=0).json()
    assert with_tools["usage"]["input_tokens"] == len(app.service.chat_ids(plain, described))
    assert with_tools["tools"] == [TOOL] and with_tools["tool_choice"] == "auto"
    alone_call = [*USER, {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}]
    refused(send(app, input=alone_call))  # it has no result yet


def test_calls_and_formats(app):
    for choice in ("required", {"type": "function", "name": "f"}):
        body = send(app, tools=[TOOL], tool_choice=choice, max_output_tokens=120).json()
        message, call = body["output"]
        assert message["content"][0]["text"] == "" and body["status"] == "completed" and body["tool_choice"] == choice
        assert call["id"].startswith("fc_") and call["call_id"].startswith("call_") and call["name"] == "f"
        validate(json.loads(call["arguments"]), SCHEMA)
    body = send(app, text={"format": FORMAT}, max_output_tokens=60, temperature=0.9).json()
    validate(json.loads(texts(body)[0]), SCHEMA)
    assert body["text"]["format"]["schema"] == SCHEMA and body["status"] == "completed"


def test_what_is_refused(app, model):
    for field in ("previous_response_id", "conversation", "prompt", "background", "n", "top_logprobs"):
        for value in ("x", False, {}, 1):
            refused(send(app, **{field: value}), param=field, code="unsupported_parameter")
        assert send(app, **{field: None}).status_code == 200
    refused(send(app, truncation="auto"), param="truncation", code="unsupported_parameter")
    assert (
        send(app, truncation="disabled", store=False, user="me", include=["reasoning.encrypted_content"]).status_code
        == 200
    )
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    for wrong in (
        {"input": None}, {"input": []}, {"input": 3}, {"input": [1]}, {"input": [{}]}, {"input": [{"role": "user"}]}, {"input": [{"role": "tool", "content": "x"}]},
        {"input": [{"type": "item_reference", "id": "msg_1"}]}, {"input": [{"type": "web_search_call"}]}, {"input": [{"type": 3}]},
        {"input": [{"type": "reasoning", "summary": []}]}, {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        {"input": [{**call, "arguments": "["}, *USER]}, {"input": [{**call, "arguments": {}}, *USER]}, {"input": [{**call, "name": None}, *USER]},
        {"input": [{"type": "function_call_output", "output": "x"}]}, {"input": [{"type": "function_call_output", "call_id": "1"}]}, {"input": "x" * 3000},
        {"instructions": 3}, {"max_output_tokens": 0}, {"max_output_tokens": "9"}, {"temperature": 3}, {"top_p": -1}, {"stream": "yes"}, {"seed": -1},
        {"text": 3}, {"text": {"format": {}}}, {"text": {"format": {"type": "xml"}}}, {"text": {"format": {"type": "json_schema"}}},
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "nothing"}}}}, {"text": {"format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}},
        {"tools": [1]}, {"tools": [{}]}, {"tools": [{"type": "web_search"}]}, {"tools": [{"type": "function", "function": {"name": "f"}}]}, {"tools": [TOOL, TOOL]},
        {"tools": [{**TOOL, "name": "a b"}]}, {"tool_choice": "required"}, {"tool_choice": {"type": "function", "name": "f"}}, {"tool_choice": {"type": "allowed_tools"}},
        {"tools": [TOOL], "tool_choice": "maybe"}, {"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, {"tools": [TOOL], "tool_choice": {"name": "f"}},
        {"tools": [TOOL], "tool_choice": "required", "text": {"format": FORMAT}}, {"reasoning": 3}, {"reasoning": {"effort": "huge"}}, {"reasoning": {"efort": "low"}},
        {"include": ["message.output_text.logprobs"]}, {"include": "x"}, {"stream_options": {}}, {"stream": True, "stream_options": {"include_usage": True}},
        {"metadata": 3}, {"max_tokens": 3}, {"messages": USER},
    ):  # fmt: skip
        refused(send(app, **wrong))
    refused(send(app, input="x" * 3000), param="input", code="context_length_exceeded")
    refused(send(app, text={"format": {"type": "json_schema", "schema": {"type": "nothing"}}}), param="text.format")
    refused(send(app, model="gpt-9"), 404, "model", "model_not_found")
    refused(asked(app, "GET", "/v1/responses"), 404)
    refused(asked(app, "POST", "/v1/responses", raw=b"{"))


def test_tools_need_a_model_that_knows_them(tmp_path):
    model = fucina.load(write_chat_model(tmp_path / "plain.gguf"))
    with fucina.SlotPool(model) as pool:
        app = App(model, pool)
        refused(send(app, tools=[TOOL]), param="tools")
        refused(send(app, input=[{"type": "function_call_output", "call_id": "1", "output": "x"}]), param="input[0]")
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
    found = events(send(app, stream=True, max_output_tokens=50, logit_bias={"257": -100}).text)
    assert [e["type"] for e in found[-2:]] == ["error", "response.failed"]
    assert found[-2]["code"] == "server_error" and found[-2]["message"] and found[-2]["param"] is None
    failed = found[-1]["response"]
    assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error") and failed["id"] == found[0][
        "response"
    ]["id"]
    failing_pass(monkeypatch, app.service.model, 1)
    refused(send(app, stream=True), 500)
    app.worker.refuse()
    refused(send(app, stream=True), 503)


# --- the official client ----------------------------------------------------------------------------------------------

openai = pytest.importorskip("openai", reason="the official client is for developers (group dev)")


@pytest.fixture(scope="module")
def client(model):
    with (
        served(model, Rules(("key",))) as server,
        openai.OpenAI(base_url=f"{server.address}/v1", api_key="key", max_retries=0) as client,
    ):
        yield client


def test_the_official_client_asks(client, model):
    options = {
        "model": model.path.stem,
        "input": "hello",
        "max_output_tokens": 9,
        "temperature": 0.8,
        "extra_body": {"seed": 3},
    }
    whole = client.responses.create(**options)
    assert whole.status == "incomplete" and whole.incomplete_details.reason == "max_output_tokens" and whole.output_text
    assert whole.usage.output_tokens == 9 and whole.usage.input_tokens_details.cached_tokens == 0
    found = list(client.responses.create(**options, stream=True))
    assert [e.sequence_number for e in found] == list(range(len(found)))
    assert "".join(e.delta for e in found if e.type == "response.output_text.delta") == whole.output_text
    last = found[-1].response
    assert found[-1].type == "response.incomplete" and last.output_text == whole.output_text
    assert last.usage.input_tokens_details.cached_tokens == last.usage.input_tokens - 1
    again = client.responses.create(**{**options, "input": [*USER, *whole.output, {"role": "user", "content": "more"}]})
    assert again.usage.input_tokens > whole.usage.input_tokens


def test_the_official_client_calls_tools_and_parses_structures(client, model):
    options = {
        "model": model.path.stem,
        "input": "hello",
        "tools": [TOOL],
        "tool_choice": "required",
        "max_output_tokens": 120,
    }
    with client.responses.stream(**options) as stream:
        found = list(stream)
        final = stream.get_final_response()
    assert found[-1].type == "response.completed"
    (call,) = [item for item in final.output if item.type == "function_call"]
    validate(json.loads(call.arguments), SCHEMA)
    turn = [*USER, *final.output, {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}]
    assert client.responses.create(**{**options, "input": turn, "tool_choice": "auto", "max_output_tokens": 5}).output
    from pydantic import BaseModel

    class Answer(BaseModel):
        yes: bool

    asking = {"model": model.path.stem, "input": "hello", "text_format": Answer, "max_output_tokens": 60}
    assert isinstance(client.responses.parse(**asking).output_parsed, Answer)
    with client.responses.stream(**asking) as stream:
        assert isinstance(stream.get_final_response().output_parsed, Answer)


def test_the_official_client_knows_our_errors(client, model):
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="other", input="x")
    for wrong in ({"previous_response_id": "resp_1"}, {"input": "x" * 3000}, {"tool_choice": "required"}):
        with pytest.raises(openai.BadRequestError) as found:
            client.responses.create(**{"model": model.path.stem, "input": "x", "stream": True, **wrong})
        assert found.value.type == "invalid_request_error"
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=client.base_url, api_key="other", max_retries=0).responses.create(model="m", input="x")


def test_the_official_client_hears_of_an_error_in_a_stream(client, model, monkeypatch):
    failing_pass(monkeypatch, model, 4)
    found = client.responses.create(
        model=model.path.stem, input="other words", stream=True, extra_body={"logit_bias": {"257": -100}}
    )
    *_, told, last = found
    assert (told.type, told.code, last.type) == ("error", "server_error", "response.failed")
    assert last.response.status == "failed" and last.response.error.message == told.message
