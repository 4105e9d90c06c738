"""Tools: functions that a model may ask to be called.  Only in Hermes form, which the template of the model writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidGrammar
from ..sampling import Grammar
from ..sampling.grammar.schema import SPACED
from .fields import Fields, bad
from .problems import Problem
from .scanners import CLOSE_CALL, OPEN_CALL
from .schema import Choice, Flag, Items, Kind, Object, OneOf, Table, Text
from .service import Service

NAME = Text(1, r"[A-Za-z0-9_.:-]{1,128}", "letters, digits, '_', '.', ':' and '-', at most 128")
MAX_TOOLS = 128
FUNCTION: dict[str, Kind] = {"name": NAME, "description": Text(), "strict": Flag(), "parameters": Object()}
TOOL = Table({"type": Choice(("function",)), "function": Table(FUNCTION, ("name",))}, ("function",))
TOOL_CHOICE = OneOf(
    (
        Choice(("none", "auto", "required")),
        Table({"type": Choice(("function",)), "function": Table({"name": Text()}, open=True)}),
    )
)
TOOLS: dict[str, Kind] = {"tools": Items(TOOL, most=MAX_TOOLS), "tool_choice": TOOL_CHOICE}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function: `parameters` is its JSON schema; with `strict`, forced calls follow it."""

    name: str
    description: str | None
    parameters: dict[str, Any]
    strict: bool = False

    @property
    def described(self) -> dict[str, Any]:
        """What a template is given."""
        about = {} if self.description is None else {"description": self.description}
        return {"type": "function", "function": {"name": self.name, **about, "parameters": self.parameters}}


def read_tool(fields: Fields) -> Tool:
    """A function's name, description, parameters and strictness."""
    parameters = fields.take("parameters", {"type": "object", "properties": {}})
    return Tool(fields.take("name"), fields.text("description"), parameters, fields.flag("strict"))


def read_tools(fields: Fields, service: Service) -> list[Tool]:
    """Read the tools of a chat request.

    Raises
    ------
    Problem : two have one name, or the model has no form for tools.
    """
    return checked_tools([read_tool(Fields(item["function"])) for item in fields.items("tools")], service)


def checked_tools(tools: list[Tool], service: Service) -> list[Tool]:
    """Return tools that the model can be given."""
    if len({tool.name for tool in tools}) < len(tools):
        raise bad("tools", "two tools have one name")
    if tools and not service.hermes:
        raise Problem(400, f"the chat template of {service.name} has no form for tools", param="tools")
    return tools


def read_choice(fields: Fields, tools: Sequence[Tool]) -> str | Tool:
    """Read tool_choice: "none", "auto", "required", or the tool that must be called."""
    choice = fields.take("tool_choice", "auto" if tools else "none")
    if isinstance(choice, dict):
        name = choice.get("function", {}).get("name")
        found = next((tool for tool in tools if tool.name == name), None)
        if found is None:
            raise bad("tool_choice", f"tool_choice names no tool of this request: {name!r:.100}")
        return found
    if choice == "required" and not tools:
        raise bad("tool_choice", "tool_choice is required, and there are no tools")
    return str(choice)


def forced(choice: str | Tool, tools: Sequence[Tool]) -> Grammar | None:
    """The grammar of a call that must be made; None if none must."""
    if isinstance(choice, Tool):
        return call_grammar([choice])
    return call_grammar(tools) if choice == "required" else None


def call_grammar(tools: Sequence[Tool]) -> Grammar:
    """The grammar of one call of one of the tools, in the form that models were trained with."""
    try:
        lines = ["start: " + " | ".join(f"call{i}" for i in range(len(tools)))]
        for i, tool in enumerate(tools):
            begin = f'{OPEN_CALL}\n{{"name": {json.dumps(tool.name)}, "arguments": '
            schema = {"x-guidance": dict(SPACED), **(tool.parameters if tool.strict else {"type": "object"})}
            lines.append(f"call{i}: {json.dumps(begin)} arguments{i} {json.dumps(chr(125) + chr(10) + CLOSE_CALL)}")
            lines.append(f"arguments{i}: %json {json.dumps(schema)}")
        return Grammar.lark("\n".join(lines))
    except InvalidGrammar as error:
        raise Problem(400, f"the parameters of a tool cannot be enforced: {error}", param="tools") from None
