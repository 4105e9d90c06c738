"""The messages of a chat request, brought to the shape that templates take."""

from __future__ import annotations

from typing import Any

from .fields import Fields, bad
from .problems import Problem
from .schema import Anything, Choice, Items, OneOf, Table, Text
from .service import Service

ROLES = ("system", "developer", "user", "assistant", "tool")
TEXT_PARTS = ("text", "input_text", "output_text")
CONTENT = OneOf(
    (
        Text(),
        Items(
            OneOf(
                (
                    Table({"type": Choice(TEXT_PARTS), "text": Text()}, ("type", "text"), open=True),
                    Table({"type": Choice(("refusal",))}, ("type",), open=True),
                )
            )
        ),
    )
)
MESSAGE = Table(
    {
        "role": Choice(ROLES),
        "content": CONTENT,
        "name": Text(),
        "reasoning_content": Text(),
        "tool_calls": Items(Anything()),  # the conversation is checked as a whole
        "tool_call_id": Text(),
    },
    ("role",),
    ignored=("refusal", "annotations"),
    refused=("function_call", "audio"),
)
MESSAGES = Items(MESSAGE, least=1)


def read_messages(found: list[Any], service: Service) -> list[dict[str, Any]]:
    """Read messages.

    Raises
    ------
    Problem : they have tool calls, and the model has no form for those; or one has no content.
    """
    return [_read_message(Fields(item, f"messages[{i}]."), service) for i, item in enumerate(found)]


def _read_message(fields: Fields, service: Service) -> dict[str, Any]:
    where, role = fields.where, fields.text("role")
    calls, result = fields.items("tool_calls"), fields.text("tool_call_id")
    if (calls or role == "tool") and not service.hermes:
        raise Problem(
            400, f"{where}role: the chat template of {service.name} has no form for tools", param=where + "role"
        )
    if calls and role != "assistant":
        raise bad(where + "tool_calls", f"{where}tool_calls: only an assistant's message has them")
    content = fields.take("content", "" if calls else None)
    if content is None:
        raise bad(where + "content", f"{where}content must be a string or an array of parts")
    message: dict[str, Any] = {"role": "system" if role == "developer" else role, "content": text_of(content)}
    if calls:
        message["tool_calls"] = calls
    if result is not None:
        message["tool_call_id"] = result
    for name in ("name", "reasoning_content"):
        if (text := fields.text(name)) is not None:
            message[name] = text
    return message


def text_of(content: str | list[dict[str, Any]]) -> str:
    """The text of a content: a string, or an array of text parts; refusals among them are left out."""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
