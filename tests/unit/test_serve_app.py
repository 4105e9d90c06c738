"""The server's HTTP side, in process: each rule of the routes, dialects, limits and errors."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import asynccontextmanager

import httpx
import pytest
from jsonschema import validate

import fucina
from fucina.sampling import SamplerOptions
from fucina.serve import GenerateRequest
from fucina.serve import http as serve_http
from fucina.serve.app import App
from fucina.serve.gate import Rules, guarded_hosts, host_of
from fucina.serve.running import FLOOR
from tests.chat_model import write_chat_model
from tests.serving import TOOLS_TEMPLATE, alone, app_of
from tests.serving import asked as ask

USER = [{"role": "user", "content": "hello"}]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a town",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"town": {"enum": ["Rome", "Oslo"]}},
            "required": ["town"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    model = fucina.load(write_chat_model(tmp_path_factory.mktemp("model") / "chat.gguf", TOOLS_TEMPLATE))
    yield model
    model.close()


@pytest.fixture(scope="module")
def plain_model(tmp_path_factory):
    model = fucina.load(write_chat_model(tmp_path_factory.mktemp("model") / "plain.gguf"), context=64)
    yield model
    model.close()


@pytest.fixture
def app(model):
    with app_of(model) as app:
        yield app


@asynccontextmanager
async def client(app, **headers):
    transport = httpx.ASGITransport(app, raise_app_exceptions=True)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as c:
        yield c


def chat(app, **body):
    body.setdefault("messages", USER)
    body.setdefault("max_tokens", 6)
    return ask(app, "POST", CHAT, body)


def refused(response, status=400, param=..., code=...):
    """The error of a refused request in OpenAI's shape."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    assert param is ... or error["param"] == param, error
    assert code is ... or error["code"] == code, error
    return error


def frames(response):
    """The data of a stream of events; asserts that it ends with [DONE]."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = response.text.split("\n\n")
    assert lines.pop() == ""
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def choice_of(response, i=0):
    assert response.status_code == 200, response.text
    return response.json()["choices"][i]


def expected(app, body, messages=USER, **options):
    """What a chat request gets alone."""
    service = app.service
    r = GenerateRequest(
        service.chat_ids(messages),
        body,
        SamplerOptions(**options),
        ends=service.ends,
        grammar_ends=service.grammar_ends,
    )
    return alone(service.model, r)


# --- chat completions -------------------------------------------------------------------------------------------------


def test_a_reply(app):
    response = chat(app, temperature=0, max_tokens=6)
    body = response.json()
    tokens, text, finish = expected(app, 6)
    assert body["object"] == "chat.completion" and body["id"].startswith("chatcmpl-") and len(body["id"]) == 33
    assert body["model"] == app.service.name
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": None,
            "finish_reason": finish,
        }
    ]
    prompt = len(app.service.chat_ids(USER))
    assert body["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": len(tokens),
        "total_tokens": prompt + len(tokens),
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
    }
    again = chat(app, temperature=0).json()
    assert again["choices"] == body["choices"] and again["id"] != body["id"]
    assert again["usage"]["prompt_tokens_details"] == {"cached_tokens": prompt - 1}


def test_a_stream_is_the_reply_in_parts(app):
    found = frames(chat(app, temperature=0.8, seed=5, stream=True, max_tokens=12))
    assert {f["object"] for f in found} == {"chat.completion.chunk"} and len({f["id"] for f in found}) == 1
    deltas = [f["choices"][0]["delta"] for f in found]
    assert deltas[0] == {"role": "assistant", "content": ""} and deltas[-1] == {}
    text = "".join(d.get("content", "") for d in deltas)
    assert text == expected(app, 12, temperature=0.8, seed=5)[1]
    assert text == choice_of(chat(app, temperature=0.8, seed=5, max_tokens=12))["message"]["content"]
    assert [f["choices"][0]["finish_reason"] for f in found] == [None] * (len(found) - 1) + ["length"]
    assert all("usage" not in f for f in found)


def test_usage_at_the_end_of_a_stream(app):
    found = frames(chat(app, stream=True, n=2, stream_options={"include_usage": True}))
    assert found[-1]["choices"] == [] and found[-1]["usage"]["completion_tokens"] == 12
    assert all(f["usage"] is None and f["choices"] for f in found[:-1])
    refused(chat(app, stream_options={"include_usage": True}), param="stream_options")


def test_choices_draw_with_seeds_that_follow_each_other(app):
    body = chat(app, temperature=0.9, seed=11, n=4, max_tokens=8).json()
    assert [c["index"] for c in body["choices"]] == [0, 1, 2, 3]
    texts = [c["message"]["content"] for c in body["choices"]]
    assert texts == [expected(app, 8, temperature=0.9, seed=11 + i)[1] for i in range(4)]
    assert len(set(texts)) > 1
    assert body["usage"]["completion_tokens"] == 32 and body["usage"]["prompt_tokens"] == len(
        app.service.chat_ids(USER)
    )
    found = frames(chat(app, temperature=0.9, seed=11, n=4, max_tokens=8, stream=True))
    streamed = [
        "".join(f["choices"][0]["delta"].get("content", "") for f in found if f["choices"][0]["index"] == i)
        for i in range(4)
    ]
    assert streamed == texts
    ends = [f["choices"][0]["index"] for f in found if f["choices"][0]["finish_reason"]]
    assert sorted(ends) == [0, 1, 2, 3]
    top = (1 << 64) - 1
    assert (
        choice_of(chat(app, temperature=0.9, seed=top, n=2), 1)["message"]["content"]
        == expected(app, 6, temperature=0.9, seed=0)[1]
    )
    for n in (0, 9, True, "2"):
        refused(chat(app, n=n), param="n")


def test_logprobs_are_finite(app):
    response = chat(app, temperature=0, logprobs=True, top_logprobs=20, response_format={"type": "json_object"})
    assert "Infinity" not in response.text and "NaN" not in response.text
    content = choice_of(response)["logprobs"]["content"]
    assert len(content) == response.json()["usage"]["completion_tokens"]
    for entry in content:
        assert FLOOR <= entry["logprob"] <= 0 and len(entry["top_logprobs"]) == 20
        assert bytes(entry["bytes"]).decode("utf-8", "replace") == entry["token"]
    found = frames(chat(app, temperature=0, logprobs=True, stream=True))
    streamed = [e for f in found if f["choices"][0]["logprobs"] for e in f["choices"][0]["logprobs"]["content"]]
    assert len(streamed) == 6 and all(e["top_logprobs"] == [] for e in streamed)
    assert choice_of(chat(app, logprobs=False))["logprobs"] is None
    refused(chat(app, top_logprobs=2), param="top_logprobs")
    refused(chat(app, logprobs=True, top_logprobs=21), param="top_logprobs")


def test_biases(app):
    assert choice_of(chat(app, logit_bias={"65": 100}, temperature=0))["message"][
        "content"
    ] == app.service.model.tokenizer.decode([65] * 6)
    for wrong in ({"-1": 1}, {"258": 1}, {"x": 1}, {"1": 101}, {"1": None}, [1], {"1": True}, {"٣": 1}, 0):
        refused(chat(app, logit_bias=wrong), param=...)


def test_stops(app):
    whole = expected(app, 30, temperature=0.8, seed=3)[1]
    stop = next(c for c in whole[2:] if c.isascii())
    response = chat(app, temperature=0.8, seed=3, max_tokens=30, stop=["never there", stop])
    assert choice_of(response)["message"]["content"] == whole[: whole.index(stop)]
    assert choice_of(response)["finish_reason"] == "stop"
    streamed = frames(chat(app, temperature=0.8, seed=3, max_tokens=30, stop=stop, stream=True))
    assert "".join(f["choices"][0]["delta"].get("content", "") for f in streamed) == whole[: whole.index(stop)]
    for wrong in ("", [""], ["a"] * 5, [1], {"a": 1}, 3):
        refused(chat(app, stop=wrong), param=...)


def test_formats_of_replies(app):
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
    choice = choice_of(chat(app, response_format=form, max_tokens=40, temperature=0.9))
    validate(json.loads(choice["message"]["content"]), schema)
    assert choice["finish_reason"] == "stop"
    assert choice_of(chat(app, regex="(yes|no)", max_tokens=9))["message"]["content"] in ("yes", "no")
    assert choice_of(chat(app, lark='start: "ab" | "cd"', max_tokens=9))["message"]["content"] in ("ab", "cd")
    assert (
        choice_of(chat(app, response_format={"type": "text"}, temperature=0))["message"]["content"]
        == expected(app, 6)[1]
    )
    refused(chat(app, regex="a", lark='start: "a"'), param="response_format")
    refused(chat(app, regex="("), param="regex")
    refused(chat(app, lark="nonsense"), param="lark")
    for wrong in ({}, {"type": "xml"}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": {}}, [], "json"):
        refused(chat(app, response_format=wrong))
    bad = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}
    refused(chat(app, response_format=bad), param="response_format")


def test_fields_are_checked_and_null_is_absent(app):
    for field, wrong in {
        "temperature": (-1, 2.1, "1", True, [1], 10**400), "top_p": (-0.1, 1.1), "min_p": (2,), "top_k": (-1, 1.5), "repeat_penalty": (5, 0, 1e-60),
        "frequency_penalty": (3,), "presence_penalty": (-3,), "seed": (-1, 1 << 64, 1.5), "max_tokens": (0, -1, "3", 2.5),
        "max_completion_tokens": (0,), "stream": ("true", 1), "priority": (101, "high"), "reasoning_effort": ("huge",), "model": (1,),
    }.items():  # fmt: skip
        for value in wrong:
            error = refused(chat(app, **{field: value}))
            assert field in error["message"]
    for field in ("functions", "function_call", "audio", "prediction", "web_search_options"):
        refused(chat(app, **{field: []}), param=field, code="unsupported_parameter")
    refused(chat(app, temprature=1), param="temprature", code="unsupported_parameter")
    refused(chat(app, model="gpt-5"), 404, param="model", code="model_not_found")
    nulls = dict.fromkeys(
        ("temperature", "stop", "tools", "functions", "logprobs", "n", "seed", "stream", "whatever", "model")
    )
    assert chat(app, **nulls).status_code == 200
    assert (
        choice_of(chat(app, max_tokens=3, max_completion_tokens=5, temperature=0))["message"]["content"]
        == expected(app, 5)[1]
    )
    assert (
        chat(app, user="me", metadata={}, store=False, parallel_tool_calls=True, model=app.service.name).status_code
        == 200
    )


def test_messages(app):
    parts = [{"type": "text", "text": "he"}, {"type": "refusal", "refusal": "x"}, {"type": "input_text", "text": "llo"}]
    one = chat(app, temperature=0, messages=[{"role": "user", "content": parts}])
    assert one.json()["choices"] == chat(app, temperature=0).json()["choices"]
    developer = chat(app, temperature=0, messages=[{"role": "developer", "content": "x"}, *USER]).json()
    assert (
        developer["choices"]
        == chat(app, temperature=0, messages=[{"role": "system", "content": "x"}, *USER]).json()["choices"]
    )
    assert chat(app, messages=[{"role": "system", "content": ""}, *USER]).status_code == 200
    assert chat(app, messages=[{"role": "system", "content": "X"}]).status_code == 200
    image = [{"type": "image_url", "image_url": {"url": "x"}}]
    assert "image_url" in refused(chat(app, messages=[{"role": "user", "content": image}]))["message"]
    for wrong in (
        [], {}, "x", [1], [{}], [{"role": "king", "content": "x"}], [{"role": "user"}], [{"role": "user", "content": 3}],
        [{"role": "user", "content": None}], [{"role": "user", "content": [{"text": "x"}]}], [{"role": ["user"], "content": "x"}],
        [{"role": "user", "content": "x", "function_call": {}}], [{"role": "user", "content": "x", "tool_calls": [1]}],
        [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "["}}]}, *USER],
        [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}],
    ):  # fmt: skip
        refused(chat(app, messages=wrong))
    begun = [*USER, {"role": "assistant", "content": "so"}]
    assert choice_of(chat(app, temperature=0, messages=begun))["message"]["content"] == expected(app, 6, begun)[1]


def test_a_prompt_that_does_not_fit(app):
    for size in (600, 8_000_000):
        refused(chat(app, messages=[{"role": "user", "content": "a b" * (size // 3)}]), code="context_length_exceeded")
    refused(ask(app, "POST", TEXT, {"prompt": "ab " * 600}), param="prompt", code="context_length_exceeded")
    room = app.service.model.context - len(app.service.chat_ids(USER)) + 1
    response = chat(app, max_tokens=10**6, temperature=0, logit_bias={"257": -100})
    assert response.json()["usage"]["completion_tokens"] == room and choice_of(response)["finish_reason"] == "length"


# --- tools ------------------------------------------------------------------------------------------------------------


def test_a_call_that_must_be_made(app):
    for chosen in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        choice = choice_of(chat(app, tools=[WEATHER], tool_choice=chosen, max_tokens=120))
        assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
        (call,) = choice["message"]["tool_calls"]
        assert (
            call["type"] == "function" and call["function"]["name"] == "get_weather" and call["id"].startswith("call_")
        )
        validate(json.loads(call["function"]["arguments"]), WEATHER["function"]["parameters"])
    found = frames(chat(app, tools=[WEATHER], tool_choice="required", max_tokens=120, stream=True))
    calls = [c for f in found for c in f["choices"][0]["delta"].get("tool_calls", ())]
    assert [c["index"] for c in calls] == [0] and found[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert json.loads(calls[0]["function"]["arguments"])["town"] in ("Rome", "Oslo")


def test_calls_and_results_in_the_history(app):
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"town": "Rome"}'}}
    messages = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    assert chat(app, messages=messages, tools=[WEATHER]).status_code == 200
    prompt = ask(app, "POST", "/apply-template", {"messages": messages, "tools": [WEATHER]}).json()["prompt"]
    assert "<tool_call>" in prompt and '"Rome"' in prompt and "sunny" in prompt and "# Tools" in prompt


def test_wrong_tools(app, plain_model):
    function = WEATHER["function"]
    for wrong in (
        [1], [{}], [{"type": "code"}], [{"type": "function"}], [WEATHER, WEATHER], {"a": 1},
        [{"type": "function", "function": {**function, "name": "no spaces"}}], [{"type": "function", "function": {**function, "name": ""}}],
        [{"type": "function", "function": {**function, "parameters": [1]}}], [{"type": "function", "function": {**function, "strict": 1}}],
    ):  # fmt: skip
        refused(chat(app, tools=wrong))
    for choice in ("maybe", {"type": "function", "function": {"name": "other"}}, {}, 3):
        refused(chat(app, tools=[WEATHER], tool_choice=choice))
    refused(chat(app, tool_choice="required"), param="tool_choice")
    refused(chat(app, tools=[WEATHER], tool_choice="required", regex="a"), param="tool_choice")
    assert chat(app, tools=[WEATHER], tool_choice="none").json()["usage"]["prompt_tokens"] == len(
        app.service.chat_ids(USER)
    )
    assert chat(app, tools=[]).status_code == 200
    with fucina.SlotPool(plain_model) as pool:
        other = App(plain_model, pool)
        refused(chat(other, tools=[WEATHER]), param="tools")
        refused(chat(other, messages=[{"role": "tool", "content": "x"}]))
        other.close(0.0)


# --- completions ------------------------------------------------------------------------------------------------------


def text(app, **body):
    return ask(app, "POST", TEXT, {"max_tokens": 6, "temperature": 0, **body})


def test_texts_are_continued(app):
    model = app.service.model
    body = text(app, prompt="abc").json()
    r = GenerateRequest(model.tokenizer.encode_prompt("abc"), 6, ends=app.service.ends)
    tokens, expected_text, finish = alone(model, r)
    assert body["object"] == "text_completion" and body["id"].startswith("cmpl-")
    assert body["choices"] == [{"index": 0, "text": expected_text, "logprobs": None, "finish_reason": finish}]
    assert body["usage"]["completion_tokens"] == len(tokens)
    assert choice_of(text(app, prompt=model.tokenizer.encode_prompt("abc")))["text"] == expected_text
    streamed = frames(text(app, prompt="abc", stream=True, stream_options={"include_usage": True}))
    assert "".join(f["choices"][0]["text"] for f in streamed[:-1]) == expected_text
    assert streamed[-2]["choices"][0]["finish_reason"] == finish
    assert streamed[-1]["usage"]["total_tokens"] == body["usage"]["total_tokens"]


def test_several_prompts(app):
    body = text(app, prompt=["abc", "xyz"], n=2, temperature=0.9, seed=1).json()
    assert [c["index"] for c in body["choices"]] == [0, 1, 2, 3]
    tokenizer = app.service.model.tokenizer
    for i, prompt in enumerate(("abc", "abc", "xyz", "xyz")):
        r = GenerateRequest(
            tokenizer.encode_prompt(prompt), 6, SamplerOptions(temperature=0.9, seed=1 + i), ends=app.service.ends
        )
        assert body["choices"][i]["text"] == alone(app.service.model, r)[1]
    assert body["usage"]["prompt_tokens"] == sum(len(tokenizer.encode_prompt(p)) for p in ("abc", "xyz"))


def test_logprobs_of_a_text(app):
    found = choice_of(text(app, prompt="abc", logprobs=3))["logprobs"]
    assert {len(v) for v in found.values()} == {6} and all(len(top) <= 3 for top in found["top_logprobs"])
    assert found["text_offset"][0] == 0 and found["text_offset"] == sorted(found["text_offset"])
    streamed = frames(text(app, prompt="abc", logprobs=3, stream=True))
    assert [t for f in streamed for t in f["choices"][0]["logprobs"]["tokens"]] == found["tokens"]
    assert [t for f in streamed for t in f["choices"][0]["logprobs"]["text_offset"]] == found["text_offset"]


def test_wrong_texts(app):
    for wrong in ([], [1.5], [-1], [258], [True], "", {}, 3, ["a", 1], [["a"]], ["a"] * 9, [[]], [None]):
        refused(text(app, prompt=wrong))
    refused(text(app), param="prompt", code="missing_required_parameter")
    for field, value in {"echo": True, "suffix": "x", "best_of": 3}.items():
        refused(text(app, prompt="a", **{field: value}), code="unsupported_parameter")
    assert text(app, prompt="a", echo=False, best_of=1, suffix=None).status_code == 200


# --- the small routes -------------------------------------------------------------------------------------------------


def test_tokens_and_texts(app):
    tokenizer = app.service.model.tokenizer
    assert ask(app, "POST", "/tokenize", {"content": "hé<|im_end|>"}).json() == {
        "tokens": tokenizer.encode("hé<|im_end|>")
    }
    plain = ask(app, "POST", "/tokenize", {"content": "<|im_end|>", "parse_special": False}).json()["tokens"]
    assert len(plain) > 1
    pieces = ask(app, "POST", "/tokenize", {"content": "hé", "with_pieces": True}).json()["tokens"]
    assert (
        b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces)
        == "hé".encode()
    )
    assert ask(app, "POST", "/detokenize", {"tokens": tokenizer.encode("hé")}).json() == {"content": "hé"}
    for wrong in ([-1], [10**6], "ab", [1.5], {}):
        refused(ask(app, "POST", "/detokenize", {"tokens": wrong}))
    assert ask(app, "POST", "/apply-template", {"messages": USER}).json()["prompt"].endswith("<|im_start|>assistant\n")
    refused(ask(app, "POST", "/tokenize", {"content": 3}))
    refused(ask(app, "POST", "/tokenize", {}))


def test_what_the_server_says_of_itself(app):
    (known,) = ask(app, "GET", "/v1/models").json()["data"]
    assert known["id"] == app.service.name and known["owned_by"] == "fucina"
    assert ask(app, "GET", "/models").json() == ask(app, "GET", "/v1/models").json()
    assert ask(app, "GET", "/health").json() == {"status": "ok", "model": app.service.name, "queue_depth": 0}
    assert ask(app, "GET", "/props").json()["context"] == app.service.model.context
    chat(app)
    slots = ask(app, "GET", "/slots")
    assert slots.json()["pool"]["requests"] == 1 and "hello" not in slots.text
    counts = ask(app, "GET", "/metrics").text
    assert 'fucina_requests_total{end="length",model="chat"} 1.0' in counts
    assert 'fucina_completion_tokens_total{model="chat"} 6.0' in counts
    assert "hello" not in counts


def test_unknown_paths_and_methods_are_404(app):
    for method, path in (
        ("GET", CHAT), ("PUT", CHAT), ("DELETE", "/v1/models"), ("POST", "/v1/models"), ("GET", "/v1/chat"), ("HEAD", "/nothing"),
        ("POST", "/v1/chat/completions/"), ("POST", "/health"),
    ):  # fmt: skip
        response = ask(app, method, path, {} if method in ("POST", "PUT") else None)
        assert response.status_code == 404, (method, path)
        if method != "HEAD":
            refused(response, 404)
    assert ask(app, "GET", "/v1/messages").json()["type"] == "error"
    assert ask(app, "OPTIONS", CHAT).status_code == 204


# --- who may ask ------------------------------------------------------------------------------------------------------


@pytest.fixture
def guarded(model):
    with fucina.SlotPool(model, memory="64MiB") as pool:
        app = App(
            model,
            pool,
            Rules(("k1", "k2"), guarded_hosts("127.0.0.1", ["box.lan"]), "https://page.example", 2),
            queue=2,
            streams=1,
        )
        yield app
        app.close(0.0)


def test_keys(guarded):
    body = {"messages": USER, "max_tokens": 2}
    for headers in (
        {}, {"authorization": "Bearer"}, {"authorization": "Bearer "}, {"authorization": "Bearer k"}, {"authorization": "k1"},
        {"authorization": "Basic k1"}, {"x-api-key": "k3"}, {"x-api-key": ""}, {"authorization": b"Bearer \xff\xfe"},
    ):  # fmt: skip
        for method, path in (
            ("POST", CHAT),
            ("GET", "/v1/models"),
            ("GET", "/slots"),
            ("GET", "/metrics"),
            ("GET", "/nothing"),
        ):
            refused(
                ask(guarded, method, path, body if method == "POST" else None, headers=headers),
                401,
                code="invalid_api_key",
            )
    assert ask(guarded, "POST", "/v1/messages", {}).json()["error"]["type"] == "authentication_error"
    for headers in ({"authorization": "Bearer k1"}, {"authorization": "bearer k2"}, {"x-api-key": "k2"}):
        assert ask(guarded, "POST", CHAT, body, headers=headers).status_code == 200
    assert ask(guarded, "GET", "/health").status_code == 200


def test_what_one_key_has_asked_is_not_found_by_another(guarded):
    body = {"messages": USER, "max_tokens": 2, "temperature": 0}
    cached = [
        ask(guarded, "POST", CHAT, body, headers={"x-api-key": key}).json()["usage"]["prompt_tokens_details"][
            "cached_tokens"
        ]
        for key in ("k1", "k2", "k1")
    ]
    assert cached == [0, 0, len(guarded.service.chat_ids(USER)) - 1]


def test_names_of_the_server(guarded):
    for name in ("evil.example", "localhost.evil.example", "127.0.0.1.evil:80", "[::2]", "box.lan.x", ""):
        assert ask(guarded, "GET", "/health", headers={"host": name}).status_code == 403
    for name in ("localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:80", "[::1]", "box.lan", "localhost."):
        assert ask(guarded, "GET", "/health", headers={"host": name}).status_code == 200
    assert guarded_hosts("0.0.0.0", []) is None and guarded_hosts("0.0.0.0", ["A"]) == {
        "127.0.0.1",
        "localhost",
        "::1",
        "0.0.0.0",
        "a",
    }
    assert host_of("a:b") == "a:b" and host_of("[::1") == "::1"


def test_other_origins(guarded, app):
    answers = [ask(guarded, "OPTIONS", CHAT), ask(guarded, "GET", "/health"), ask(guarded, "GET", "/nothing")]
    assert {a.headers["access-control-allow-origin"] for a in answers} == {"https://page.example"}
    assert "x-api-key" in answers[0].headers["access-control-allow-headers"]
    assert "access-control-allow-origin" not in ask(app, "OPTIONS", CHAT, headers={"origin": "https://x"}).headers


# --- limits -----------------------------------------------------------------------------------------------------------


def test_bodies_that_are_none(app):
    for raw in (
        b"{not json", b"[]", b"null", b"123", b"", b"\xff\xfe", b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "max_tokens": 2}', b'{"a": NaN}', b'{"a": Infinity}', b'"x"',
        b"[" * 100_000, b'{"a":' * 100_000, b'{"messages": [{"role": "user", "content": "\\ud83d"}]}', b'{"a": "\xc3"}',
        b'{"seed": ' + b"9" * 10_000 + b"}", b'{"messages": 1e999}', "{}".encode("utf-16"),
    ):  # fmt: skip
        refused(ask(app, "POST", CHAT, raw=raw))
    refused(ask(app, "POST", CHAT, raw=b"{}", headers={"content-type": "text/plain"}), 415)
    refused(ask(app, "POST", CHAT, raw=b"{}", headers={"content-type": ""}), 415)
    assert chat(app).status_code == 200


def test_bodies_that_are_too_large(app, monkeypatch):
    monkeypatch.setattr(serve_http, "MAX_BODY", 1000)
    refused(ask(app, "POST", CHAT, raw=b" " * 1001), 413)
    refused(ask(app, "POST", CHAT, raw=b"{}", headers={"content-length": "9" * 40}), 413)

    async def chunks():
        for _ in range(11):
            yield b" " * 100

    refused(ask(app, "POST", CHAT, raw=chunks()), 413)


def test_a_body_that_never_comes(app, monkeypatch):
    monkeypatch.setattr(serve_http, "READ_SECONDS", 0.01)

    async def slow():
        yield b"{"
        await asyncio.sleep(30)

    refused(ask(app, "POST", CHAT, raw=slow()), 408)


class Held:
    """Holds the engine's thread of an app after some passes, by default the next one, until `free`."""

    def __init__(self, app, passes=1):
        self.left = passes
        self.passed, self.at, self.go = app.metrics.passed, threading.Event(), threading.Event()
        app.metrics.passed = self._hold

    def _hold(self, stats):
        self.left -= 1
        if self.left <= 0:
            self.at.set()
            assert self.go.wait(60)
        self.passed(stats)

    async def reached(self):
        while not self.at.is_set():
            await asyncio.sleep(0)

    def free(self):
        self.go.set()


def test_a_full_line_is_429_and_too_many_requests_503(model):
    with fucina.SlotPool(model, memory="64MiB") as pool:
        app = App(model, pool, Rules(connections=4), queue=1, streams=1)
        held = Held(app)
        body = {"messages": USER, "max_tokens": 2}

        async def go():
            async with client(app) as c:
                first = asyncio.create_task(c.post(CHAT, json=body))
                await held.reached()
                second = asyncio.create_task(c.post(CHAT, json=body))
                while not app.worker.waiting:
                    await asyncio.sleep(0)
                full = await c.post(CHAT, json=body)
                app.rules = Rules(connections=2)
                busy = await c.post(CHAT, json=body)
                health = await c.get("/health")
                held.free()
                return full, busy, health, await first, await second

        full, busy, health, *served = asyncio.run(go())
        assert refused(full, 429, code="rate_limit_exceeded")["type"] == "rate_limit_error"
        assert full.headers["retry-after"] == "2"
        refused(busy, 503)
        assert busy.headers["retry-after"] == "2" and health.json()["queue_depth"] == 1
        assert [r.status_code for r in served] == [200, 200]
        app.close(0.0)


def test_after_the_end_requests_are_503(model):
    with fucina.SlotPool(model, memory="64MiB") as pool:
        app = App(model, pool)
        app.worker.refuse()
        assert refused(chat(app), 503)["type"] == "unavailable_error"
        assert ask(app, "GET", "/health").status_code == 503
        app.close(0.0)
        app.close(0.0)
        refused(chat(app), 503)


def test_a_fault_of_ours_is_500_without_its_text(app, monkeypatch):
    def fails(*_):
        raise ValueError("the secret hello")

    monkeypatch.setattr(app.service, "chat_ids", fails)
    response = chat(app)
    assert refused(response, 500)["type"] == "server_error" and "secret" not in response.text


def test_an_error_before_the_first_token_has_its_status_in_a_stream_too(app, monkeypatch):
    monkeypatch.setattr(app.service.model, "forward_rows", lambda requests: 1 / 0)
    response = chat(app, stream=True)
    refused(response, 500)
    assert response.headers["content-type"] == "application/json"


def test_an_error_in_a_stream_is_told_in_it(app, monkeypatch):
    forward, calls = app.service.model.forward_rows, []

    def fails_later(requests):
        calls.append(requests)
        if len(calls) == 4:
            raise MemoryError
        return forward(requests)

    monkeypatch.setattr(app.service.model, "forward_rows", fails_later)
    found = frames(chat(app, stream=True, max_tokens=50))
    assert found[0]["choices"][0]["delta"]["role"] == "assistant"
    assert found[-1]["error"]["type"] == "server_error"


# --- clients that hang up ---------------------------------------------------------------------------------------------


async def hang_up(app, body, after):
    """A request by hand, whose client is gone after so many messages of the answer (0: while the prompt is computed)."""
    raw, sent = json.dumps(body).encode(), []
    gone, given = asyncio.Event(), [False]

    async def receive():
        if not given[0]:
            given[0] = True
            return {"type": "http.request", "body": raw, "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)
        if len(sent) >= after:
            gone.set()

    scope = {
        "type": "http", "method": "POST", "path": CHAT, "query_string": b"", "http_version": "1.1", "scheme": "http",
        "headers": [(b"content-type", b"application/json"), (b"host", b"localhost")],
    }  # fmt: skip
    if not after:
        gone.set()
    await app(scope, receive, send)
    return sent


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_hangs_up_frees_its_slot(app, stream):
    body = {"messages": USER, "max_tokens": 400, "stream": stream, "logit_bias": {"257": -100}}
    threads = threading.active_count()

    async def go():
        for i in range(30):
            sent = await hang_up(app, body, (0, 3, 1)[i % 3] if stream else 0)
            assert len(sent) < 300
        while app.worker.busy:
            await asyncio.sleep(0)

    asyncio.run(go())
    assert threading.active_count() <= threads + 3  # those of the pool that prepares
    assert app.pool.stats().in_use == 0
    assert choice_of(chat(app, temperature=0))["message"]["content"] == expected(app, 6)[1]


def test_a_client_that_takes_nothing_counts_as_gone(app, monkeypatch):
    monkeypatch.setattr(serve_http, "WRITE_SECONDS", 0.01)
    body = {"messages": USER, "max_tokens": 480, "stream": True, "logit_bias": {"257": -100}}
    given = [False]

    async def receive():
        if given[0]:
            await asyncio.Event().wait()
        given[0] = True
        return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

    async def send(message):
        await asyncio.Event().wait()

    scope = {
        "type": "http", "method": "POST", "path": CHAT, "query_string": b"", "http_version": "1.1", "scheme": "http",
        "headers": [(b"content-type", b"application/json")],
    }  # fmt: skip
    held = Held(app, passes=2)  # the first token is told by then

    async def go():
        await app(scope, receive, send)
        held.free()
        while app.worker.busy:
            await asyncio.sleep(0)

    asyncio.run(go())
    assert 'end="cancelled",model="chat"} 1.0' in ask(app, "GET", "/metrics").text


def test_many_clients_at_once_get_their_own_texts(app):
    async def go():
        async with client(app) as c:
            bodies = [
                {
                    "messages": [{"role": "user", "content": f"marker {i}"}],
                    "max_tokens": 5 + i,
                    "temperature": 0.8,
                    "seed": i,
                    "stream": i % 2 == 0,
                }
                for i in range(16)
            ]
            return await asyncio.gather(*(c.post(CHAT, json=b) for b in bodies))

    for i, response in enumerate(asyncio.run(go())):
        if i % 2 == 0:
            found = "".join(f["choices"][0]["delta"].get("content", "") for f in frames(response))
        else:
            found = choice_of(response)["message"]["content"]
        assert found == expected(app, 5 + i, [{"role": "user", "content": f"marker {i}"}], temperature=0.8, seed=i)[1]
