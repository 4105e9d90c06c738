"""The messages of a chat request, brought to the shape that templates take."""

from __future__ import annotations

from typing import Any

from .. import checks
from .fields import Fields, bad
from .problems import Problem
from .service import Service

ROLES = ("system", "developer", "user", "assistant", "tool")
TEXT_PARTS = ("text", "input_text", "output_text")


def read_messages(found: Any, service: Service) -> list[dict[str, Any]]:
    """Read messages.

    Raises
    ------
    Problem : they are malformed; or have tool calls, and the model has no form for those.
    """
    if not isinstance(found, list) or not found:
        raise bad("messages", "messages must be an array with at least one message")
    messages = [_read_message(Fields(item, f"messages[{i}]."), service) for i, item in enumerate(found)]
    return messages


def _read_message(fields: Fields, service: Service) -> dict[str, Any]:
    where = fields.where
    fields.need("role")
    role = fields.choice("role", ROLES)
    fields.refuse(("function_call", "audio"))
    fields.ignore(("refusal", "annotations"))
    calls, result = fields.items("tool_calls"), fields.text("tool_call_id")
    if (calls or role == "tool") and not service.hermes:
        raise Problem(
            400, f"{where}role: the chat template of {service.name} has no form for tools", param=where + "role"
        )
    if calls and role != "assistant":
        raise bad(where + "tool_calls", f"{where}tool_calls: only an assistant's message has them")
    content = read_content(fields.take("content", "" if calls else None), where + "content")
    message: dict[str, Any] = {"role": "system" if role == "developer" else role, "content": content}
    if calls:
        message["tool_calls"] = calls
    if result is not None:
        message["tool_call_id"] = result
    for name in ("name", "reasoning_content"):
        if (text := fields.text(name)) is not None:
            message[name] = text
    fields.end()
    return message


def read_content(content: Any, where: str) -> str:
    """The text of a message: a string, or an array of text parts; refusals among them are left out."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad(where, f"{where} must be a string or an array of parts")
    texts = []
    for i, item in enumerate(content):
        part = Fields(item, f"{where}[{i}].")
        kind = part.need("type")
        if kind == "refusal":
            continue
        if kind not in TEXT_PARTS:
            raise bad(f"{where}[{i}].type", f"{where}[{i}] has type {checks.shown(kind)}; only text is supported")
        part.need("text")
        texts.append(part.text("text") or "")
    return "".join(texts)
