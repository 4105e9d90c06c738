"""The OpenAPI document: it says exactly what bodies are read, and the server answers as it says."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import fucina
from fucina.serve import schema
from fucina.serve.app import POSTS, ROUTES
from fucina.serve.openapi import document
from tests.chat_model import write_chat_model
from tests.serving import TOOLS_TEMPLATE, app_of, asked, served

from .test_serve_fuzz import BODIES, MOVES, changed

TABLES = {path: kind.table for path, kind in ROUTES.items()} | {path: table for path, (_, table) in POSTS.items()}
TOLD = document(ROUTES, {path: table for path, (_, table) in POSTS.items()})
VALIDATORS = {path: Draft202012Validator(table.schema()) for path, table in TABLES.items()}
GOOD = BODIES


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = write_chat_model(tmp_path_factory.mktemp("model") / "chat.gguf", TOOLS_TEMPLATE)
    model = fucina.load(path, context=96)
    yield model
    model.close()


def reads(path, body):
    try:
        TABLES[path].read(body)
    except schema.Mismatch:
        return False
    return True


def agree(path, body):
    assert VALIDATORS[path].is_valid(body) == reads(path, body), (path, body)


def test_every_route_is_in_the_document():
    assert set(TOLD["paths"]) == {
        *ROUTES, *POSTS, "/v1/models", "/models", "/props", "/slots", "/health", "/metrics", "/openapi.json", "/",
    }  # fmt: skip
    names = [one["operationId"] for methods in TOLD["paths"].values() for one in methods.values()]
    assert len(set(names)) == len(names)
    for validator in VALIDATORS.values():
        Draft202012Validator.check_schema(validator.schema)
    json.dumps(TOLD, allow_nan=False)


def test_it_is_served(model):
    with app_of(model) as app:
        assert asked(app, "GET", "/openapi.json").json() == json.loads(json.dumps(TOLD))


@pytest.mark.parametrize("path", sorted(GOOD))
def test_right_bodies_fit(path):
    assert VALIDATORS[path].is_valid(GOOD[path]) and reads(path, GOOD[path])


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(sorted(GOOD)), MOVES)
def test_the_schema_and_the_reader_agree_on_changed_bodies(path, moves):
    agree(path, changed(GOOD[path], moves))


VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=3),
        st.sampled_from(["text", "user", "function", "auto", "a", 0, 1, 1.0, 2.5, -1, 100, 1 << 40]),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "text", "role", "1", "x"]), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=600, deadline=None)
@given(st.data())
def test_they_agree_on_any_value_of_any_field(data):
    path = data.draw(st.sampled_from(sorted(TABLES)))
    table = TABLES[path]
    names = [*table.fields, *table.ignored, *table.refused, "other"]
    base = GOOD.get(path, {})
    agree(path, {**base, data.draw(st.sampled_from(names)): data.draw(VALUES)})


KINDS = [
    schema.Anything(), schema.Object(), schema.JsonSchema(), schema.Flag(), schema.Text(), schema.Text(1), schema.Text(1, "[ab]{1,3}", "a or b"),
    schema.Choice(("a", "b")), schema.Only(False), schema.Only("a"), schema.Number(-1, 2.5), schema.Integer(0), schema.Integer(-3, 100), schema.Ids(),
    schema.Ids(1), schema.Items(schema.Text(), 1, 2), schema.Items(schema.Anything()), schema.Pairs("[0-9]{1,2}", "a number", schema.Flag(), 1),
    schema.OneOf((schema.Text(), schema.Ids(1), schema.Items(schema.OneOf((schema.Text(1), schema.Ids()))))),
    schema.Table({"type": schema.Choice(("text",)), "x": schema.Flag()}, ("type",), ("1",), ("role",)),
    schema.OneOf((schema.Table({"type": schema.Choice(("text", "a"))}, ("type",), open=True), schema.Table({"type": schema.Choice(("user",)), "x": schema.Text()}, ("x",)))),
]  # fmt: skip


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(KINDS), VALUES.filter(lambda value: value is not None))
def test_every_kind_reads_what_its_schema_allows(kind, value):
    try:
        kind.read(value, "it")
        read = True
    except schema.Mismatch as error:
        read = False
        assert error.status == 400 and error.param and error.code
    assert Draft202012Validator(kind.schema()).is_valid(value) == read, (kind, value)


def test_what_is_read():
    table = schema.Table(
        {"n": schema.Integer(0), "ids": schema.Ids(), "inner": schema.Table({"a": schema.Flag()})}, ignored=("skip",)
    )
    assert table.read({"n": 3.0, "ids": [1, 2.0], "inner": {"a": None}, "skip": 5}) == {
        "n": 3,
        "ids": [1, 2],
        "inner": {},
    }
    assert type(table.read({"n": 3.0})["n"]) is int
    with pytest.raises(schema.Mismatch, match=re.escape("inner.b is not a field")):
        table.read({"inner": {"b": 1}})


# --- asked by a fuzzer ------------------------------------------------------------------------------------------------

schemathesis = pytest.importorskip("schemathesis", reason="the fuzzer is for developers (group dev)")
CHECKED = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance", "negative_data_rejection",
)  # fmt: skip


@pytest.fixture(scope="module")
def api(model):
    with served(model, queue=64) as server:
        yield schemathesis.openapi.from_url(f"{server.address}/openapi.json")


def checks():
    return [check for check in schemathesis.checks.CHECKS.get_all() if check.__name__ in CHECKED]


def ask(api, path, method, mode, examples):
    """Replies stay short, and every answer is what the document says."""
    checks = [check for check in schemathesis.checks.CHECKS.get_all() if check.__name__ in CHECKED]
    assert len(checks) == len(CHECKED)

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=api[path][method].as_strategy(generation_mode=schemathesis.GenerationMode(mode)))
    def go(case):
        for name in ("max_tokens", "max_output_tokens", "max_completion_tokens"):
            if isinstance(case.body, dict) and isinstance(case.body.get(name), int | float):
                case.body[name] = min(case.body[name], 3)
        case.call_and_validate(checks=checks, timeout=60)

    go()


ROUTES_AND_MODES = [
    (path, method, mode) for path, methods in TOLD["paths"].items() for method in methods for mode in ("positive", "negative")
    if (path.startswith("/v1/") or f"/v1{path}" not in TOLD["paths"]) and (method == "post" or mode == "positive")
]  # fmt: skip


@pytest.mark.parametrize(("path", "method", "mode"), ROUTES_AND_MODES)
def test_the_server_does_what_it_says(api, path, method, mode):
    ask(api, path, method, mode, 8)


@pytest.mark.slow
@pytest.mark.parametrize(("path", "method", "mode"), ROUTES_AND_MODES)
def test_the_server_does_what_it_says_at_length(api, path, method, mode):
    ask(api, path, method, mode, 400)
