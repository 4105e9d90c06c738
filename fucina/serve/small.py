"""The small routes: tokens of texts, texts of tokens, rendered conversations, and what the server is and does."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from .. import __version__, checks
from ..chat.formats import ChatFormat
from ..errors import ChatTemplateError
from .fields import Fields, bad
from .messages_in import MESSAGES, read_messages
from .schema import Flag, Ids, Table, Text
from .service import Service
from .tools import TOOLS, read_tools

if TYPE_CHECKING:
    from .models import Models, Offer


TOKENIZE = Table(
    {"model": Text(), "content": Text(), "add_special": Flag(), "parse_special": Flag(), "with_pieces": Flag()},
    ("content",),
)
DETOKENIZE = Table({"model": Text(), "tokens": Ids()}, ("tokens",))
APPLY_TEMPLATE = Table({"model": Text(), "messages": MESSAGES, "tools": TOOLS["tools"]}, ("messages",))


def tokenize(service: Service, body: dict[str, Any]) -> dict[str, Any]:
    """POST /tokenize: `content`, `add_special` (BOS), `parse_special` (markers become tokens), `with_pieces`."""
    fields = Fields.read(body, TOKENIZE)
    text = fields.text("content") or ""
    special, begin = fields.flag("parse_special", True), fields.flag("add_special")
    pieces = fields.flag("with_pieces")
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
    fields = Fields.read(body, DETOKENIZE)
    ids = checks.token_ids("tokens", fields.take("tokens"), service.model.n_tokens)
    return {"content": service.model.tokenizer.decode(ids)}


def apply_template(service: Service, body: dict[str, Any]) -> dict[str, Any]:
    """POST /apply-template: `messages`, `tools`; the text that the model would be given."""
    fields = Fields.read(body, APPLY_TEMPLATE)
    messages = read_messages(fields.items("messages"), service)
    tools = [tool.described for tool in read_tools(fields, service)]
    template = service.template
    if template is None:
        raise ChatTemplateError("this model has no chat template")
    if isinstance(template, ChatFormat):
        if tools:
            raise bad("tools", "this chat format has no form for tools")
        return {"prompt": template.render_messages(messages)}
    return {"prompt": template.render(messages, tools=tools or None)}


def models(models: Models) -> dict[str, Any]:
    """GET /v1/models: all, loaded or not."""
    told = [
        {"id": o.name, "object": "model", "created": o.created, "owned_by": "fucina", "loaded": o.served is not None}
        for o in models.offers
    ]
    return {"object": "list", "data": told}


def health(models: Models) -> tuple[dict[str, Any], int]:
    """GET /health, and its status: 503 once the server refuses requests."""
    workers = [served.worker for served in models.loaded()]
    ok = not models.closing and all(worker.alive and not worker.closing for worker in workers)
    waiting = sum(worker.waiting for worker in workers)
    told = {"status": "ok" if ok else "shutting down", "model": models.first.name, "queue_depth": waiting}
    return told, 200 if ok else 503


def props(offer: Offer) -> dict[str, Any]:
    """GET /props: little of a model that is not loaded."""
    if offer.served is None:
        return {"model": offer.name, "version": __version__, "loaded": False}
    service, worker = offer.served.service, offer.served.worker
    model = service.model
    return {
        "model": service.name,
        "loaded": True,
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


def slots(offer: Offer) -> dict[str, Any]:
    """GET /slots: numbers alone, no texts."""
    if offer.served is None:
        return {"model": offer.name, "loaded": False, "running": [], "busy": 0, "waiting": 0}
    worker, pool = offer.served.worker, offer.served.pool
    return {
        "model": offer.name,
        "loaded": True,
        "running": worker.running(),
        "busy": worker.busy,
        "waiting": worker.waiting,
        "total": worker.streams,
        "pool": dataclasses.asdict(pool.stats()),
    }
