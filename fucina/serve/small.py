"""The small routes: tokens of texts, texts of tokens, rendered conversations, and what the server is and does."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from .. import __version__, checks
from ..chat.formats import ChatFormat
from ..errors import ChatTemplateError
from .fields import Fields, bad
from .messages_in import read_messages
from .service import Service
from .tools import read_tools

if TYPE_CHECKING:
    from ..cache.pool import SlotPool
    from .worker import Worker


def tokenize(service: Service, body: dict[str, Any]) -> dict[str, Any]:
    """POST /tokenize: `content`, `add_special` (BOS), `parse_special` (markers become tokens), `with_pieces`."""
    fields = Fields(body)
    fields.need("content")
    text = fields.text("content") or ""
    special, begin = fields.flag("parse_special", True), fields.flag("add_special")
    pieces = fields.flag("with_pieces")
    fields.end()
    tokenizer = service.model.tokenizer
    ids = tokenizer.encode_prompt(text, special) if begin else tokenizer.encode(text, special)
    return {"tokens": [_piece(service, i) for i in ids] if pieces else ids}


def _piece(service: Service, token: int) -> dict[str, Any]:
    piece = service.model.tokenizer.piece(token)
    try:
        return {"id": token, "piece": piece.decode("utf-8")}
    except UnicodeDecodeError:
        return {"id": token, "piece": list(piece)}


def detokenize(service: Service, body: dict[str, Any]) -> dict[str, Any]:
    """POST /detokenize: `tokens`."""
    fields = Fields(body)
    ids = checks.token_ids("tokens", fields.need("tokens"), service.model.n_tokens)
    fields.end()
    return {"content": service.model.tokenizer.decode(ids)}


def apply_template(service: Service, body: dict[str, Any]) -> dict[str, Any]:
    """POST /apply-template: `messages`, `tools`; the text that the model would be given."""
    fields = Fields(body)
    messages = read_messages(fields.need("messages"), service)
    tools = [tool.described for tool in read_tools(fields, service)]
    fields.end()
    template = service.template
    if template is None:
        raise ChatTemplateError("this model has no chat template")
    if isinstance(template, ChatFormat):
        if tools:
            raise bad("tools", "this chat format has no form for tools")
        return {"prompt": template.render_messages(messages)}
    return {"prompt": template.render(messages, tools=tools or None)}


def models(service: Service) -> dict[str, Any]:
    """GET /v1/models."""
    model = {"id": service.name, "object": "model", "created": service.created, "owned_by": "fucina"}
    return {"object": "list", "data": [model]}


def health(service: Service, worker: Worker) -> tuple[dict[str, Any], int]:
    """GET /health, and its status: 503 once the server refuses requests."""
    ok = worker.alive and not worker.closing
    told = {"status": "ok" if ok else "shutting down", "model": service.name, "queue_depth": worker.waiting}
    return told, 200 if ok else 503


def props(service: Service, worker: Worker) -> dict[str, Any]:
    """GET /props."""
    model = service.model
    return {
        "model": service.name,
        "version": __version__,
        "context": model.context,
        "n_vocab": model.n_tokens,
        "total_slots": worker.streams,
        "speculation": worker.speculation,
        "chat_template": model.chat_template,
        "default_sampling": service.sampling,
        "can_think": service.can_think,
        "tools": service.hermes,
    }


def slots(worker: Worker, pool: SlotPool) -> dict[str, Any]:
    """GET /slots: numbers alone, no texts."""
    return {
        "running": worker.running(),
        "busy": worker.busy,
        "waiting": worker.waiting,
        "total": worker.streams,
        "pool": dataclasses.asdict(pool.stats()),
    }
