"""Fields of OpenAI's Responses API: its input, text or items, brought to the shape that templates take, and others of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import checks
from ..sampling import Grammar
from .blocks import need_tools
from .chat import EFFORTS
from .fields import Fields, bad, unsupported
from .messages_in import read_content
from .options import schema_grammar
from .service import Service
from .tools import Tool, checked_tools, read_tool
from .tools import read_choice as tools_choice

INCLUDED = ("reasoning.encrypted_content",)  # reasoning comes as it is
ROLES = ("user", "assistant", "system", "developer")


def read_input(found: Any, service: Service) -> list[dict[str, Any]]:
    """Read the input: text of the user's, or items.

    Calls belong to the assistant's message before them; reasoning of earlier replies is left out.

    Raises
    ------
    Problem : it is malformed, or refers to what a server would have stored, or has calls that the model has no form for.
    """
    if isinstance(found, str):
        return [{"role": "user", "content": found}]
    if not isinstance(found, list) or not found:
        raise bad("input", "input must be a string, or an array with at least one item")
    messages: list[dict[str, Any]] = []
    for i, item in enumerate(found):
        where = f"input[{i}]"
        fields = Fields(item, f"{where}.")
        fields.ignore(("id", "status"))
        kind = fields.text("type", "message")
        if kind == "message":
            messages.append(_message(fields, where))
        elif kind == "function_call":
            call = _call(fields, where, service)
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            messages[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            messages.append(_result(fields, where, service))
        elif kind == "item_reference":
            raise unsupported(where, "refers to an item that would have to be stored; this server stores none")
        elif kind != "reasoning":
            raise bad(f"{where}.type", f"{where} has type {checks.shown(kind)}, which this server does not know")
    if not messages:
        raise bad("input", "input has nothing but reasoning")
    return messages


def _message(fields: Fields, where: str) -> dict[str, Any]:
    fields.need("role")
    role = fields.choice("role", ROLES)
    content = read_content(fields.need("content"), f"{where}.content")
    fields.ignore(("phase",))
    fields.end()
    return {"role": "system" if role == "developer" else role, "content": content}


def _call(fields: Fields, where: str, service: Service) -> dict[str, Any]:
    need_tools(service, where)
    for name in ("call_id", "name", "arguments"):
        fields.need(name)
    function = {"name": fields.text("name"), "arguments": fields.text("arguments")}  # the text is checked with the rest
    call = {"id": fields.text("call_id"), "type": "function", "function": function}
    fields.ignore(("caller", "namespace", "parsed_arguments"))
    fields.end()
    return call


def _result(fields: Fields, where: str, service: Service) -> dict[str, Any]:
    need_tools(service, where)
    fields.need("call_id")
    output = read_content(fields.need("output"), f"{where}.output")
    call = fields.text("call_id")
    fields.ignore(("caller",))
    fields.end()
    return {"role": "tool", "tool_call_id": call, "content": output}


def read_tools(fields: Fields, service: Service) -> list[Tool]:
    """Read tools, whose fields stand beside their type."""
    tools = []
    for i, item in enumerate(fields.items("tools") or []):
        one = Fields(item, f"tools[{i}].")
        one.need("type")
        one.choice("type", ("function",))
        tools.append(read_tool(one))
    return checked_tools(tools, service)


def read_choice(fields: Fields, tools: Sequence[Tool]) -> str | Tool:
    """Read tool_choice, where a function is named beside its type."""
    if not isinstance(fields.take("tool_choice"), dict):
        return tools_choice(fields, tools)
    inner = Fields(fields.take("tool_choice"), "tool_choice.")
    inner.need("type")
    inner.choice("type", ("function",))
    name = inner.text("name")
    inner.end()
    found = next((tool for tool in tools if tool.name == name), None)
    if found is None:
        raise bad("tool_choice", f"tool_choice names no tool of this request: {name!r:.100}")
    return found


def read_text(fields: Fields) -> tuple[dict[str, Any], Grammar | None]:
    """Read text.format, whose name and schema stand beside its type: the format, and its grammar."""
    text = fields.inner("text")
    form = None if text is None else text.inner("format")
    if text is not None:
        text.ignore(("verbosity",))
        text.end()
    if form is None:
        return {"type": "text"}, None
    form.need("type")
    kind = form.choice("type", ("text", "json_object", "json_schema"))
    if kind != "json_schema":
        form.end()
        return {"type": kind}, None if kind == "text" else schema_grammar({"type": "object"})
    name, description = form.text("name"), form.text("description")
    schema, strict = form.need("schema"), form.flag("strict", True)
    form.end()
    told = {"type": kind, "name": name or "", "description": description, "schema": schema, "strict": strict}
    return told, schema_grammar(schema)


def read_effort(fields: Fields) -> str | None:
    """Read reasoning.effort."""
    reasoning = fields.inner("reasoning")
    if reasoning is None:
        return None
    reasoning.ignore(("summary", "generate_summary"))
    effort = reasoning.choice("effort", EFFORTS)
    reasoning.end()
    return effort


def read_include(fields: Fields) -> None:
    """Read include, and refuse what a reply does not hold."""
    for name in fields.items("include") or []:
        if name not in INCLUDED:
            raise unsupported("include", f"of {name!r:.100} is not supported by this server")


def read_stream_options(fields: Fields, stream: bool) -> None:
    """Read stream_options, which change nothing of the events."""
    options = fields.inner("stream_options")
    if options is not None:
        if not stream:
            raise bad("stream_options", "stream_options needs stream: true")
        options.ignore(("include_obfuscation",))
        options.end()
