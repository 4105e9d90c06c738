"""Fields of OpenAI's Responses API: its input, text or items, brought to the shape that templates take, and others of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..sampling import Grammar
from .blocks import need_tools
from .chat import EFFORTS
from .fields import Fields, bad
from .messages_in import CONTENT, text_of
from .options import schema_grammar
from .schema import Choice, Flag, Items, JsonSchema, Kind, OneOf, Table, Text
from .service import Service
from .tools import FUNCTION, MAX_TOOLS, Tool, checked_tools, read_tool
from .tools import read_choice as tools_choice

INCLUDED = ("reasoning.encrypted_content",)  # reasoning comes as it is
ROLES = ("user", "assistant", "system", "developer")


_HEAD = ("id", "status")
MESSAGE = Table(
    {"type": Choice(("message",)), "role": Choice(ROLES), "content": CONTENT}, ("role", "content"), (*_HEAD, "phase")
)
CALL = Table(
    {"type": Choice(("function_call",)), "call_id": Text(), "name": Text(), "arguments": Text()},
    ("type", "call_id", "name", "arguments"),
    (*_HEAD, "caller", "namespace", "parsed_arguments"),
)
RESULT = Table(
    {"type": Choice(("function_call_output",)), "call_id": Text(), "output": CONTENT},
    ("type", "call_id", "output"),
    (*_HEAD, "caller"),
)
REASONING = Table({"type": Choice(("reasoning",))}, ("type",), open=True)
INPUT = OneOf((Text(), Items(OneOf((MESSAGE, CALL, RESULT, REASONING)), least=1)))
TOOL = Table({"type": Choice(("function",)), **FUNCTION}, ("type", "name"))
FORMAT = Table(
    {
        "type": Choice(("text", "json_object", "json_schema")),
        "name": Text(),
        "description": Text(),
        "schema": JsonSchema(),
        "strict": Flag(),
    },
    ("type",),
)
FIELDS: dict[str, Kind] = {
    "input": INPUT,
    "tools": Items(TOOL, most=MAX_TOOLS),
    "tool_choice": OneOf(
        (Choice(("none", "auto", "required")), Table({"type": Choice(("function",)), "name": Text()}, ("type",)))
    ),
    "text": Table({"format": FORMAT}, ignored=("verbosity",)),
    "reasoning": Table({"effort": Choice(EFFORTS)}, ignored=("summary", "generate_summary")),
    "include": Items(Choice(INCLUDED)),
    "stream": Flag(),
    "stream_options": Table({}, ignored=("include_obfuscation",)),
}


def read_input(found: str | list[dict[str, Any]], service: Service) -> list[dict[str, Any]]:
    """Read the input: text of the user's, or items.

    Calls belong to the assistant's message before them; reasoning of earlier replies is left out.

    Raises
    ------
    Problem : it has nothing but reasoning, or has calls that the model has no form for.
    """
    if isinstance(found, str):
        return [{"role": "user", "content": found}]
    messages: list[dict[str, Any]] = []
    for i, item in enumerate(found):
        kind = item.get("type", "message")
        if kind == "message":
            role = "system" if item["role"] == "developer" else item["role"]
            messages.append({"role": role, "content": text_of(item["content"])})
        elif kind == "function_call":
            need_tools(service, f"input[{i}]")
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            function = {"name": item["name"], "arguments": item["arguments"]}  # the text is checked with the rest
            call = {"id": item["call_id"], "type": "function", "function": function}
            messages[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            need_tools(service, f"input[{i}]")
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": text_of(item["output"])})
    if not messages:
        raise bad("input", "input has nothing but reasoning")
    return messages


def read_tools(fields: Fields, service: Service) -> list[Tool]:
    """Read tools, whose fields stand beside their type."""
    return checked_tools([read_tool(Fields(item)) for item in fields.items("tools")], service)


def read_choice(fields: Fields, tools: Sequence[Tool]) -> str | Tool:
    """Read tool_choice, where a function is named beside its type."""
    if not isinstance(fields.take("tool_choice"), dict):
        return tools_choice(fields, tools)
    name = fields.take("tool_choice").get("name")
    found = next((tool for tool in tools if tool.name == name), None)
    if found is None:
        raise bad("tool_choice", f"tool_choice names no tool of this request: {name!r:.100}")
    return found


def read_text(fields: Fields) -> tuple[dict[str, Any], Grammar | None]:
    """Read text.format, whose name and schema stand beside its type: the format, and its grammar."""
    text = fields.inner("text")
    form = None if text is None else text.inner("format")
    if form is None:
        return {"type": "text"}, None
    kind = form.text("type")
    if kind != "json_schema":
        return {"type": kind}, None if kind == "text" else schema_grammar({"type": "object"})
    name, description = form.text("name"), form.text("description")
    schema, strict = form.take("schema"), form.flag("strict", True)
    if schema is None:
        raise bad("text.format.schema", "text.format.schema is required")
    told = {"type": kind, "name": name or "", "description": description, "schema": schema, "strict": strict}
    return told, schema_grammar(schema)


def read_effort(fields: Fields) -> str | None:
    """Read reasoning.effort."""
    reasoning = fields.inner("reasoning")
    return None if reasoning is None else reasoning.text("effort")


def read_stream_options(fields: Fields, stream: bool) -> None:
    """Read stream_options, which change nothing of the events."""
    if fields.inner("stream_options") is not None and not stream:
        raise bad("stream_options", "stream_options needs stream: true")
