"""Chat messages from outside, checked and brought to one shape before a template sees them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..checks import shown
from ..errors import ChatTemplateError, EmptyMessages, TrailingAssistantMessage

ROLES = ("system", "developer", "user", "assistant", "tool", "function")

Message = Mapping[str, Any]


def check_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return copies of `messages` whose content is text and whose tool calls have one shape.

    Content may be a string, or a list of parts `{"type": "text", "text": …}`, which are joined without a separator.
    Null content is allowed only in an assistant's message with tool calls; it becomes "".

    A tool call may be `{"type": "function", "function": {"name": …, "arguments": …}}`, or the inner mapping alone; it
    becomes the former.  Arguments may be a mapping or its JSON text, as APIs send it; they become a mapping, as templates
    expect it (missing, null or "": an empty one).  Other keys stay.  Tool calls that are null or an empty list are
    left out, since many templates ask only whether there is such a key.

    Raises
    ------
    ChatTemplateError
        A message is no mapping; its role is missing or none of `ROLES`; its content is missing, null, of another type,
        has a part that is not text, or holds half a surrogate pair, which is no text at all; a tool call has no name, or
        arguments that are no JSON object.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise ChatTemplateError(f"messages must be a list of role/content mappings, got {type(messages).__name__}")
    return [_check_message(i, message) for i, message in enumerate(messages)]


def check_conversation(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return `check_messages` of a conversation that can be answered.

    Raises
    ------
    EmptyMessages : there is no message.
    TrailingAssistantMessage : it ends with tool calls that have no results yet.
    ChatTemplateError : see `check_messages`.
    """
    checked = check_messages(messages)
    if not checked:
        raise EmptyMessages("a conversation needs at least one message, got none")
    if checked[-1]["role"] == "assistant" and checked[-1].get("tool_calls"):
        raise TrailingAssistantMessage(
            "the last message is an assistant's tool calls; expected their results after them"
        )
    return checked


def _check_message(i: int, message: Message) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise ChatTemplateError(f"message {i} must be a mapping with role and content, got {type(message).__name__}")
    role = message.get("role")
    if role not in ROLES:
        found = "it is missing" if role is None else f"got {shown(role)}"
        raise ChatTemplateError(f"message {i}: role must be one of {', '.join(ROLES)}; {found}")
    where = f"message {i} ({role})"
    content, calls = message.get("content"), message.get("tool_calls")
    if calls is not None and (isinstance(calls, (str, bytes)) or not isinstance(calls, Sequence)):
        raise ChatTemplateError(f"{where}: tool_calls must be a list, got {type(calls).__name__}")
    if content is None and role == "assistant" and calls:
        content = ""
    if isinstance(content, Sequence) and not isinstance(content, (str, bytes)):
        content = "".join(_check_part(f"{where}, part {k}", part) for k, part in enumerate(content))
    if not isinstance(content, str):
        found = "it is missing or null" if content is None else f"got {type(content).__name__}"
        raise ChatTemplateError(f"{where}: content must be text or a list of text parts; {found}")
    checked = {**message, "content": content}
    if calls:
        checked["tool_calls"] = [_check_call(f"{where}, tool call {k}", call) for k, call in enumerate(calls)]
    else:
        checked.pop("tool_calls", None)
    check_text(where, checked)
    return checked


def _check_call(where: str, call: Any) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, Mapping) else call
    if not isinstance(function, Mapping):
        raise ChatTemplateError(f"{where} must be a mapping with a function, got {type(function).__name__}")
    if not isinstance(function.get("name"), str):
        raise ChatTemplateError(f"{where}: name must be a string, got {shown(function.get('name'))}")
    arguments = function.get("arguments")
    if arguments is None or arguments == "":
        arguments = {}
    elif isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise ChatTemplateError(f"{where}: arguments are no JSON: {error}") from None
    if not isinstance(arguments, Mapping):
        raise ChatTemplateError(f"{where}: arguments must be a JSON object, got {type(arguments).__name__}")
    outer = call if "function" in call else {}
    return {"type": "function", **outer, "function": {**function, "arguments": arguments}}


def _check_part(where: str, part: Any) -> str:
    if not isinstance(part, Mapping):
        raise ChatTemplateError(f'{where} must be a mapping {{"type": "text", "text": ...}}, got {type(part).__name__}')
    if part.get("type") != "text":
        raise ChatTemplateError(f'{where} has type {shown(part.get("type"))}; only "text" is supported')
    if not isinstance(part.get("text"), str):
        raise ChatTemplateError(f"{where}: text must be a string, got {type(part.get('text')).__name__}")
    return part["text"]


def check_text(where: str, value: Any) -> None:
    """Raise ChatTemplateError if any string inside `value` holds an unpaired surrogate, or lists never end."""
    try:
        _check_text(where, value)
    except RecursionError:
        raise ChatTemplateError(f"{where} is nested too deep, or contains itself") from None


def _check_text(where: str, value: Any) -> None:
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ChatTemplateError(
                f"{where} holds an unpaired surrogate U+{ord(value[error.start]):04X} at character {error.start}: not text"
            ) from None
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _check_text(where, key)
            _check_text(where, item)
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        for item in value:
            _check_text(where, item)


def with_written_arguments(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages whose tool calls have their arguments as JSON text, which some templates expect."""
    return [
        {**m, "tool_calls": [_written(call) for call in m["tool_calls"]]} if "tool_calls" in m else m for m in messages
    ]


def _written(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}}
