"""Chat messages from outside, checked and brought to one shape before a template sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ChatTemplateError

ROLES = ("system", "developer", "user", "assistant", "tool", "function")

Message = Mapping[str, Any]


def check_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return copies of `messages` whose content is text.

    Content may be a string, or a list of parts `{"type": "text", "text": …}`, which are joined without a separator.
    Null content is allowed only where a message stands for something else: an assistant's tool calls; it becomes "".

    Raises
    ------
    ChatTemplateError
        A message is no mapping; its role is missing or none of `ROLES`; its content is missing, null, of another type,
        has a part that is not text, or holds half a surrogate pair, which is no text at all.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise ChatTemplateError(f"messages must be a list of role/content mappings, got {type(messages).__name__}")
    return [_check_message(i, message) for i, message in enumerate(messages)]


def _check_message(i: int, message: Message) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise ChatTemplateError(f"message {i} must be a mapping with role and content, got {type(message).__name__}")
    role = message.get("role")
    if role not in ROLES:
        found = "it is missing" if role is None else f"got {role!r}"
        raise ChatTemplateError(f"message {i}: role must be one of {', '.join(ROLES)}; {found}")
    content = message.get("content")
    if content is None and role == "assistant" and message.get("tool_calls"):
        content = ""
    where = f"message {i} ({role})"
    if isinstance(content, Sequence) and not isinstance(content, (str, bytes)):
        content = "".join(_check_part(f"{where}, part {k}", part) for k, part in enumerate(content))
    if not isinstance(content, str):
        found = "it is missing or null" if content is None else f"got {type(content).__name__}"
        raise ChatTemplateError(f"{where}: content must be text or a list of text parts; {found}")
    checked = {**message, "content": content}
    check_text(where, checked)
    return checked


def _check_part(where: str, part: Any) -> str:
    if not isinstance(part, Mapping):
        raise ChatTemplateError(f'{where} must be a mapping {{"type": "text", "text": ...}}, got {type(part).__name__}')
    if part.get("type") != "text":
        raise ChatTemplateError(f'{where} has type {part.get("type")!r}; only "text" is supported')
    if not isinstance(part.get("text"), str):
        raise ChatTemplateError(f"{where}: text must be a string, got {type(part.get('text')).__name__}")
    return part["text"]


def check_text(where: str, value: Any) -> None:
    """Raise ChatTemplateError if any string inside `value` holds an unpaired surrogate."""
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ChatTemplateError(
                f"{where} holds an unpaired surrogate U+{ord(value[error.start]):04X} at character {error.start}: not text"
            ) from None
    elif isinstance(value, Mapping):
        for key, item in value.items():
            check_text(where, key)
            check_text(where, item)
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        for item in value:
            check_text(where, item)


def map_strings(change, value: Any) -> Any:
    """Return `value` with every string in it, keys included, replaced by `change(string)`."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {map_strings(change, key): map_strings(change, item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [map_strings(change, item) for item in value]
    return value
