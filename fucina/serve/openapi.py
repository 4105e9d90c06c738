"""The OpenAPI document of the server: bodies from the tables that read them, and what answers look like."""

from __future__ import annotations

from typing import Any

from .. import __version__
from .chat import ChatCompletions
from .completions import Completions
from .dialect import Dialect
from .embeddings import Embeddings
from .messages import Messages
from .responses import Responses
from .schema import Choice, Flag, Integer, Items, Kind, Number, Object, OneOf, Table, Text

Document = dict[str, Any]


def _told(fields: dict[str, Kind], *optional: str) -> Table:
    """What an answer holds: all of these fields but the optional ones, and perhaps more."""
    return Table(fields, [name for name in fields if name not in optional], open=True)


def _list(of: Kind) -> Table:
    return _told({"object": Choice(("list",)), "data": Items(of)})


_COUNT = Integer(0)
_USAGE = _told({"prompt_tokens": _COUNT, "completion_tokens": _COUNT, "total_tokens": _COUNT})
_HEAD: dict[str, Kind] = {"id": Text(1), "created": _COUNT, "model": Text()}
_MESSAGE = _told({"role": Choice(("assistant",)), "content": Text()}, "content")
_FINISH = Choice(("stop", "length", "tool_calls"))
_CHOICE = _told({"index": _COUNT, "message": _MESSAGE, "finish_reason": _FINISH, "logprobs": Object()}, "logprobs")
_TEXT_CHOICE = _told({"index": _COUNT, "text": Text(), "finish_reason": _FINISH, "logprobs": Object()}, "logprobs")
_VECTOR = _told(
    {"object": Choice(("embedding",)), "index": _COUNT, "embedding": OneOf((Items(Number(-1.001, 1.001)), Text()))}
)
_ITEM = _told({"type": Choice(("message", "reasoning", "function_call")), "id": Text(1)})
_BLOCK = _told({"type": Choice(("text", "thinking", "tool_use"))})
ANSWERS: dict[type[Dialect[Any]], Table] = {
    ChatCompletions: _told(
        {**_HEAD, "object": Choice(("chat.completion",)), "choices": Items(_CHOICE, 1), "usage": _USAGE}
    ),
    Completions: _told(
        {**_HEAD, "object": Choice(("text_completion",)), "choices": Items(_TEXT_CHOICE, 1), "usage": _USAGE}
    ),
    Embeddings: _told(
        {
            "object": Choice(("list",)),
            "data": Items(_VECTOR),
            "model": Text(),
            "usage": _told({"prompt_tokens": _COUNT, "total_tokens": _COUNT}),
        }
    ),
    Messages: _told(
        {
            "id": Text(1),
            "type": Choice(("message",)),
            "role": Choice(("assistant",)),
            "model": Text(),
            "content": Items(_BLOCK),
            "stop_reason": Choice(("end_turn", "max_tokens", "tool_use", "stop_sequence")),
            "usage": _told({"input_tokens": _COUNT, "output_tokens": _COUNT}),
        }
    ),
    Responses: _told(
        {
            "id": Text(1),
            "object": Choice(("response",)),
            "created_at": _COUNT,
            "status": Choice(("completed", "incomplete")),
            "model": Text(),
            "output": Items(_ITEM, 1),
            "usage": _told({"input_tokens": _COUNT, "output_tokens": _COUNT, "total_tokens": _COUNT}),
        }
    ),
}
_PIECE = OneOf((Integer(0), _told({"id": _COUNT, "piece": OneOf((Text(), Items(Integer(0, 255))))})))
SMALL: dict[str, Table] = {
    "/tokenize": _told({"tokens": Items(_PIECE)}),
    "/detokenize": _told({"content": Text()}),
    "/apply-template": _told({"prompt": Text()}),
    "/v1/messages/count_tokens": _told({"input_tokens": _COUNT}),
}
_MODEL = _told({"id": Text(1), "object": Choice(("model",)), "created": _COUNT, "owned_by": Text(), "loaded": Flag()})
_HEALTH = _told({"status": Choice(("ok", "shutting down")), "model": Text(), "queue_depth": _COUNT})
GETS: dict[str, tuple[str, Table]] = {
    "/v1/models": ("The models that are served, loaded or not", _list(_MODEL)),
    "/props": ("Settings of a model", _told({"model": Text(), "loaded": Flag()})),
    "/slots": (
        "What runs and waits, and what the pool holds",
        _told({"model": Text(), "loaded": Flag(), "running": Items(Object()), "busy": _COUNT, "waiting": _COUNT}),
    ),
}
ERROR = _told({"error": _told({"message": Text(), "type": Text(), "param": Text(), "code": Text()}, "param", "code")})
ANTHROPIC_ERROR = _told({"type": Choice(("error",)), "error": _told({"type": Text(), "message": Text()})})
_EVENT = _told({"data": Text(1), "event": Text(1)}, "event")
_OF_MODEL = {
    "name": "model",
    "in": "query",
    "required": False,
    "description": "Of which model; without it, the first",
    "schema": {"type": "string"},
}


def document(routes: dict[str, type[Dialect[Any]]], posts: dict[str, Table]) -> Document:
    """The document.

    Parameters
    ----------
    routes : the dialects by path.
    posts : what the bodies of the other routes may be, by path.
    """
    paths: dict[str, Document] = {}
    for path, kind in routes.items():
        stream = {"text/event-stream": {"schema": _EVENT.schema()}} if "stream" in kind.table.fields else {}
        paths[path] = {"post": _post(path, _summary(kind), kind.table, ANSWERS[kind], stream)}
    for path, table in posts.items():
        answer = SMALL.get(path) or SMALL[f"/v1{path}"]
        paths[path] = {"post": _post(path, f"POST {path}", table, answer, {})}
    for path, (summary, answer) in GETS.items():
        found = _get(path, summary, _json(answer), [] if path == "/v1/models" else [_OF_MODEL])
        for name in (path, *(["/models"] if path == "/v1/models" else [])):
            paths[name] = {"get": {**found, "operationId": _name("get", name)}}
    paths["/openapi.json"] = {"get": _get("/openapi.json", "This document", _json(_told({"openapi": Text()})))}
    paths["/metrics"] = {
        "get": _get("/metrics", "Counts for Prometheus", {"text/plain": {"schema": {"type": "string"}}})
    }
    page = {"text/html": {"schema": {"type": "string"}}}
    paths["/"] = {"get": {**_get("/", "A page to chat in; needs no key", page), "operationId": "page", "security": []}}
    health = _get("/health", "Whether the server takes requests; needs no key", _json(_HEALTH))
    health["responses"]["503"] = {"description": "The server ends", "content": _json(_HEALTH)}
    paths["/health"] = {"get": {**health, "security": []}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "fucina",
            "version": __version__,
            "description": "Language models on a CPU. Fields that are not listed here are refused; null is the same as absent.",
        },
        "paths": paths,
        "components": {
            "schemas": {"Error": ERROR.schema(), "AnthropicError": ANTHROPIC_ERROR.schema()},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{}, {"bearer": []}, {"key": []}],
    }


def _post(path: str, summary: str, table: Table, answer: Table, more: Document) -> Document:
    return {
        "summary": summary,
        "operationId": _name("post", path),
        "requestBody": {"required": True, "content": {"application/json": {"schema": table.schema()}}},
        "responses": _responses(path, {**_json(answer), **more}),
    }


def _get(path: str, summary: str, content: Document, parameters: list[Document] | None = None) -> Document:
    return {
        "summary": summary,
        "operationId": _name("get", path),
        "parameters": parameters or [],
        "responses": _responses(path, content),
    }


def _responses(path: str, content: Document) -> Document:
    shape = "AnthropicError" if "/messages" in path else "Error"
    refused = {"application/json": {"schema": {"$ref": f"#/components/schemas/{shape}"}}}
    return {
        "200": {"description": "The answer", "content": content},
        "4XX": {"description": "The request is refused", "content": refused},
        "5XX": {"description": "The server cannot answer now", "content": refused},
    }


def _json(answer: Table) -> Document:
    return {"application/json": {"schema": answer.schema()}}


def _name(method: str, path: str) -> str:
    return f"{method}_{path.strip('/').replace('/', '_').replace('-', '_').replace('.', '_')}"


def _summary(kind: type[Dialect[Any]]) -> str:
    return (kind.__doc__ or "").strip().rstrip(".")
