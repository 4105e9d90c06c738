"""The messages of Anthropic's dialect, whose content is text or blocks, brought to the shape that templates take."""

from __future__ import annotations

import json
from typing import Any

from .fields import bad
from .problems import Problem
from .schema import Choice, Flag, Items, Object, OneOf, Table, Text
from .service import Service

REMINDER = "<system-reminder>\n{}\n</system-reminder>"


_IGNORED = ("cache_control", "citations", "parsed_output", "caller", "toolset_name")
TEXT = Table({"type": Choice(("text",)), "text": Text()}, ("type", "text"), _IGNORED)
TEXTS = OneOf((Text(), Items(TEXT)))
THINKING = Table({"type": Choice(("thinking",)), "thinking": Text()}, ("type",), open=True)
REDACTED = Table({"type": Choice(("redacted_thinking",))}, ("type",), open=True)
TOOL_USE = Table(
    {"type": Choice(("tool_use",)), "id": Text(), "name": Text(), "input": Object()}, ("type", "id", "name"), _IGNORED
)
TOOL_RESULT = Table(
    {"type": Choice(("tool_result",)), "tool_use_id": Text(), "content": TEXTS, "is_error": Flag()},
    ("type", "tool_use_id"),
    _IGNORED,
)


def _turn(role: str, *blocks: Table) -> Table:
    content = OneOf((Text(), Items(OneOf(blocks))))
    return Table({"role": Choice((role,)), "content": content}, ("role", "content"))


TURN = OneOf(
    (
        _turn("user", TEXT, TOOL_RESULT),
        _turn("assistant", TEXT, TOOL_USE, THINKING, REDACTED),
        Table({"role": Choice(("system",)), "content": TEXTS}, ("role", "content")),
    ),
    by="role",
)
TURNS = Items(TURN, least=1)


def read_system(system: str | list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """The system message, from text or text blocks; nothing if there is none."""
    return [] if system is None else [{"role": "system", "content": text_of(system)}]


def text_of(content: str | list[dict[str, Any]]) -> str:
    """The text of a content: text, or blocks of text."""
    return content if isinstance(content, str) else "".join(block["text"] for block in content)


def read_turns(found: list[dict[str, Any]], service: Service) -> list[dict[str, Any]]:
    """Read messages; the first must be the user's, and a system message among them becomes a reminder of the user's.

    Raises
    ------
    Problem : the first is not the user's; or there are calls, and the model has no form for them.
    """
    if (first := found[0]["role"]) != "user":
        raise bad("messages", f"the first message must be the user's, got the {first}'s")
    messages: list[dict[str, Any]] = []
    for i, item in enumerate(found):
        role, content, where = item["role"], item["content"], f"messages[{i}].content"
        if role == "system":
            messages.append({"role": "user", "content": REMINDER.format(text_of(content))})
        elif isinstance(content, str):
            messages.append({"role": role, "content": content})
        elif role == "assistant":
            messages.append(_assistant(content, where, service))
        else:
            messages += _user(content, where, service)
    return messages


def _assistant(content: list[dict[str, Any]], where: str, service: Service) -> dict[str, Any]:
    """An assistant's message: text, reasoning and calls."""
    texts, reasoning, calls = [], [], []
    for i, block in enumerate(content):
        if block["type"] == "tool_use":
            need_tools(service, f"{where}[{i}]")
            arguments = json.dumps(block.get("input", {}), ensure_ascii=False)
            function = {"name": block["name"], "arguments": arguments}
            calls.append({"id": block["id"], "type": "function", "function": function})
        elif block["type"] == "thinking":
            reasoning.append(block.get("thinking", ""))
        elif block["type"] == "text":
            texts.append(block["text"])
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if reasoning:
        message["reasoning_content"] = "".join(reasoning)
    if calls:
        message["tool_calls"] = calls
    return message


def _user(content: list[dict[str, Any]], where: str, service: Service) -> list[dict[str, Any]]:
    """A user's message: text, and results of calls, each a message of its own."""
    messages: list[dict[str, Any]] = []
    texts: list[str] = []
    for i, block in enumerate(content):
        if block["type"] == "text":
            texts.append(block["text"])
            continue
        need_tools(service, f"{where}[{i}]")
        if texts:
            messages.append({"role": "user", "content": "".join(texts)})
            texts = []
        result = text_of(block.get("content", ""))
        told = f"Error: {result}" if block.get("is_error") else result
        messages.append({"role": "tool", "tool_call_id": block["tool_use_id"], "content": told})
    if texts or not messages:
        messages.append({"role": "user", "content": "".join(texts)})
    return messages


def need_tools(service: Service, where: str) -> None:
    """Refuse a call or its result where the model has no form for them.  Raises Problem."""
    if not service.hermes:
        raise Problem(400, f"{where}: the chat template of {service.name} has no form for tools", param=where)
