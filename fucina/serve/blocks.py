"""The messages of Anthropic's dialect, whose content is text or blocks, brought to the shape that templates take."""

from __future__ import annotations

import json
from typing import Any

from .. import checks
from .fields import Fields, bad
from .problems import Problem
from .service import Service

REMINDER = "<system-reminder>\n{}\n</system-reminder>"


def read_system(system: Any) -> list[dict[str, Any]]:
    """The system message, from text or text blocks; nothing if there is none."""
    return [] if system is None else [{"role": "system", "content": read_text(system, "system")}]


def read_text(content: Any, where: str) -> str:
    """Text, or blocks of text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad(where, f"{where} must be a string or an array of blocks")
    return "".join(_text(_block(item, f"{where}[{i}]"), f"{where}[{i}]") for i, item in enumerate(content))


def _block(item: Any, where: str) -> Fields:
    fields = Fields(item, f"{where}.")
    fields.need("type")
    fields.ignore(("cache_control", "citations", "parsed_output", "caller", "toolset_name"))
    return fields


def _text(fields: Fields, where: str) -> str:
    kind = fields.take("type")
    if kind != "text":
        raise bad(f"{where}.type", f"{where} has type {checks.shown(kind)}; only text is supported here")
    fields.need("text")
    text = fields.text("text") or ""
    fields.end()
    return text


def read_turns(found: Any, service: Service) -> list[dict[str, Any]]:
    """Read messages; the first must be the user's, and a system message among them becomes a reminder of the user's.

    Raises
    ------
    Problem : they are malformed, or hold images, or calls for a model that has no form for them.
    """
    if not isinstance(found, list) or not found:
        raise bad("messages", "messages must be an array with at least one message")
    messages: list[dict[str, Any]] = []
    for i, item in enumerate(found):
        fields = Fields(item, f"messages[{i}].")
        fields.need("role")
        role = fields.choice("role", ("user", "assistant", "system"))
        content, where = fields.need("content"), f"messages[{i}].content"
        fields.end()
        if i == 0 and role != "user":
            raise bad("messages", f"the first message must be the user's, got the {role}'s")
        if role == "system":
            messages.append({"role": "user", "content": REMINDER.format(read_text(content, where))})
        elif isinstance(content, str):
            messages.append({"role": role, "content": content})
        elif not isinstance(content, list):
            raise bad(where, f"{where} must be a string or an array of blocks")
        elif role == "assistant":
            messages.append(_assistant(content, where, service))
        else:
            messages += _user(content, where, service)
    return messages


def _assistant(content: list[Any], where: str, service: Service) -> dict[str, Any]:
    """An assistant's message: text, reasoning and calls."""
    texts, reasoning, calls = [], [], []
    for i, item in enumerate(content):
        place = f"{where}[{i}]"
        block = _block(item, place)
        kind = block.take("type")
        if kind == "tool_use":
            need_tools(service, place)
            block.need("name")
            given = block.take("input", {})
            if not isinstance(given, dict):
                raise bad(f"{place}.input", f"{place}.input must be an object")
            function = {"name": block.text("name"), "arguments": json.dumps(given, ensure_ascii=False)}
            calls.append({"id": block.text("id"), "type": "function", "function": function})
            block.need("id")
            block.end()
        elif kind == "thinking":
            reasoning.append(block.text("thinking") or "")
        elif kind != "redacted_thinking":
            texts.append(_text(block, place))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if reasoning:
        message["reasoning_content"] = "".join(reasoning)
    if calls:
        message["tool_calls"] = calls
    return message


def _user(content: list[Any], where: str, service: Service) -> list[dict[str, Any]]:
    """A user's message: text, and results of calls, each a message of its own."""
    messages: list[dict[str, Any]] = []
    texts: list[str] = []
    for i, item in enumerate(content):
        place = f"{where}[{i}]"
        block = _block(item, place)
        if block.take("type") != "tool_result":
            texts.append(_text(block, place))
            continue
        need_tools(service, place)
        if texts:
            messages.append({"role": "user", "content": "".join(texts)})
            texts = []
        block.need("tool_use_id")
        result = read_text(block.take("content", ""), f"{place}.content")
        failed = block.flag("is_error")
        call = block.text("tool_use_id")
        block.end()
        messages.append({"role": "tool", "tool_call_id": call, "content": f"Error: {result}" if failed else result})
    if texts or not messages:
        messages.append({"role": "user", "content": "".join(texts)})
    return messages


def need_tools(service: Service, where: str) -> None:
    """Refuse a call or its result where the model has no form for them.  Raises Problem."""
    if not service.hermes:
        raise Problem(400, f"{where}: the chat template of {service.name} has no form for tools", param=where)
