"""Anthropic's messages."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..chat.messages import check_conversation
from ..sampling import Grammar
from ..sampling.rng import MASK
from . import schema
from .blocks import TEXTS, TURNS, read_system, read_turns
from .dialect import Dialect, frame
from .fields import Fields, bad
from .options import SAMPLED, Choosing, read_stops, sampler_options, schema_grammar
from .parts import Ask, Choice, End, Part, Scan
from .problems import Problem, anthropic_shape
from .scanners import Call, Reasoning, Text
from .service import Service
from .tools import MAX_TOOLS, NAME, Tool, checked_tools, forced, read_tool

IGNORED = ("metadata", "cache_control", "service_tier", "container", "context_management", "inference_geo")
REFUSED = ("mcp_servers",)
MAX_SEQUENCES = 1000  # each is looked for at every token, on the thread that all replies share


TOOL = schema.Table(
    {
        "type": schema.Choice(("custom",)),
        "name": NAME,
        "description": schema.Text(),
        "strict": schema.Flag(),
        "input_schema": schema.Object(),
    },
    ("name", "input_schema"),
    ("cache_control", "eager_input_streaming", "input_examples"),
)
TOOL_CHOICE = schema.Table(
    {
        "type": schema.Choice(("auto", "none", "any", "tool")),
        "disable_parallel_tool_use": schema.Flag(),
        "name": schema.Text(),
    },
    ("type",),
)
THINKING = schema.Table(
    {"type": schema.Choice(("enabled", "adaptive", "disabled")), "budget_tokens": schema.Integer(0)},
    ("type",),
    ("display",),
)
OUTPUT_FORMAT = schema.Table(
    {"type": schema.Choice(("json_schema",)), "schema": schema.JsonSchema()}, ("type", "schema")
)
PROMPT: dict[str, schema.Kind] = {
    "model": schema.Text(),
    "system": TEXTS,
    "messages": TURNS,
    "tools": schema.Items(TOOL, most=MAX_TOOLS),
    "tool_choice": TOOL_CHOICE,
    "thinking": THINKING,
    "output_config": schema.Table({"format": OUTPUT_FORMAT}, ignored=("effort",)),
}
SEQUENCES = schema.Items(schema.Text(1), most=MAX_SEQUENCES)
BODY = schema.Table(
    {
        **PROMPT,
        "max_tokens": schema.Integer(1),
        "temperature": schema.Number(0, 1),
        "top_p": schema.Number(0, 1),
        "top_k": schema.Integer(0, 1 << 31),
        "seed": schema.Integer(0, MASK),
        "stop_sequences": schema.OneOf((schema.Text(1), SEQUENCES)),
        "stream": schema.Flag(),
    },
    ("model", "max_tokens", "messages"),
    IGNORED,
    REFUSED,
)
COUNT = schema.Table(PROMPT, ("model", "messages"), (*IGNORED, *sorted(BODY.fields.keys() - PROMPT.keys())), REFUSED)


@dataclass(frozen=True, slots=True)
class MessagesAsk(Ask):
    """A request of this dialect; it has one choice."""

    id: str = ""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the fields that make a prompt say; `count_tokens` has these alone."""

    messages: list[dict[str, Any]]
    tools: list[Tool]
    choice: str | Tool
    think: bool

    def ids(self, service: Service, constrained: bool) -> list[int]:
        """The tokens."""
        tools = [tool.described for tool in self.tools] or None
        think = (self.think and not constrained) if service.can_think else None
        return service.chat_ids(check_conversation(self.messages), tools, think)


class Messages(Dialect[MessagesAsk]):
    """POST /v1/messages."""

    paths = ("/v1/messages", "/messages")
    table = BODY

    def parse(self, body: dict[str, Any], tenant: str) -> MessagesAsk:
        service, fields = self.service, Fields.read(body, BODY)
        limit = fields.integer("max_tokens")
        prompt = read_prompt(fields, service)
        must_call = forced(prompt.choice, prompt.tools)
        grammar = _read_format(fields)
        if grammar is not None and must_call is not None:
            raise bad("tool_choice", "a call that must be made and an output format exclude each other")
        options = sampler_options({name: fields.take(name) for name in SAMPLED}, service)
        stops = read_stops(fields, "stop_sequences")
        stream = fields.flag("stream")
        constrained = grammar is not None or must_call is not None
        ids = prompt.ids(service, constrained)
        choosing = Choosing(options, 1, limit or 1, stops, None, 0)
        requests = choosing.requests(service, ids, tenant, grammar=must_call or grammar)
        scan = Scan(service.can_think and not constrained, service.begins_inside(ids), bool(prompt.tools))
        return MessagesAsk(requests, stream, scan, f"msg_{service.new_id()}")

    def whole(self, ask: MessagesAsk, choices: Sequence[Choice]) -> dict[str, Any]:
        (choice,) = choices
        content: list[dict[str, Any]] = []
        if choice.reasoning:
            content.append({"type": "thinking", "thinking": choice.reasoning, "signature": ""})
        if choice.text.strip() or not (choice.calls or content):
            content.append({"type": "text", "text": choice.text})
        for k, call in enumerate(choice.calls):
            content.append({**_tool_use(ask, k, call), "input": json.loads(call.arguments)})
        return {**self._message(ask, content), **_stop(ask, choice.end), "usage": _usage(choice.end)}

    async def frames(self, ask: MessagesAsk, parts: AsyncIterator[tuple[int, Part]]) -> AsyncGenerator[str, None]:
        """A block of reasoning, one of text, then the calls: what is said between calls belongs to the one text."""
        blocks, held, calls, begun = _Blocks(), "", list[Call](), False
        async for _, part in parts:
            if not begun:
                begun = True
                yield _event("message_start", message={**self._message(ask, []), "usage": _usage(None)})
            if isinstance(part, Reasoning):
                yield blocks.add("thinking", part.text)
            elif isinstance(part, Text):
                held += part.text
                if blocks.kind == "text" or held.strip():  # white space alone is no block, unless there is no other
                    yield blocks.add("text", held)
                    held = ""
            elif isinstance(part, Call):
                calls.append(part)
            elif isinstance(part, End):
                if not calls and blocks.index < 0:
                    yield blocks.add("text", held)
                if end := blocks.close():
                    yield end
                for k, call in enumerate(calls):
                    yield blocks.call(_tool_use(ask, k, call), call.arguments)
                yield _event("message_delta", delta=_stop(ask, part), usage=_usage(part))
                yield _event("message_stop")

    def failed(self, ask: MessagesAsk, problem: Problem) -> str:
        return frame(anthropic_shape(problem), "error")

    @classmethod
    def error(cls, problem: Problem) -> dict[str, Any]:
        return anthropic_shape(problem)

    def _message(self, ask: MessagesAsk, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": ask.id,
            "type": "message",
            "role": "assistant",
            "model": self.service.name,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
        }


class _Blocks:
    """The blocks of a stream: `index` is that of the open one, or of the last; `kind` is "" if none is open."""

    def __init__(self) -> None:
        self.index, self.kind = -1, ""

    def add(self, kind: str, text: str) -> str:
        """Frames that add to a block of "thinking" or "text", which is opened if it is not."""
        begin = ""
        if kind != self.kind:
            signature = {"signature": ""} if kind == "thinking" else {}
            begin = self.close() + self._open({"type": kind, kind: "", **signature})
        return begin + self._delta({"type": f"{kind}_delta", kind: text}) if text else begin

    def call(self, block: dict[str, Any], arguments: str) -> str:
        """Frames of a whole call."""
        begin = self._open(block)
        return begin + self._delta({"type": "input_json_delta", "partial_json": arguments}) + self.close()

    def close(self) -> str:
        """Frames that end the open block, if there is one."""
        kind, self.kind = self.kind, ""
        signature = self._delta({"type": "signature_delta", "signature": ""}) if kind == "thinking" else ""
        return signature + _event("content_block_stop", index=self.index) if kind else ""

    def _open(self, block: dict[str, Any]) -> str:
        self.index, self.kind = self.index + 1, block["type"]
        return _event("content_block_start", index=self.index, content_block=block)

    def _delta(self, delta: dict[str, str]) -> str:
        return _event("content_block_delta", index=self.index, delta=delta)


def _event(kind: str, **more: Any) -> str:
    return frame({"type": kind, **more}, kind)


def count_tokens(service: Service, body: dict[str, Any]) -> dict[str, Any]:
    """POST /v1/messages/count_tokens: the length of a prompt in tokens."""
    fields = Fields.read(body, COUNT)
    prompt = read_prompt(fields, service)
    constrained = _read_format(fields) is not None or forced(prompt.choice, prompt.tools) is not None
    return {"input_tokens": len(prompt.ids(service, constrained))}


def read_prompt(fields: Fields, service: Service) -> Prompt:
    """Read what makes a prompt: messages, system, tools, tool_choice, thinking."""
    system = read_system(fields.take("system"))
    messages = [*system, *read_turns(fields.items("messages"), service)]
    tools = _read_tools(fields, service)
    choice = _read_choice(fields, tools)
    return Prompt(messages, [] if choice == "none" else tools, choice, _read_thinking(fields))


def _read_tools(fields: Fields, service: Service) -> list[Tool]:
    """Read tools; a model that has no form for them is not told of any."""
    tools = [read_tool(Fields({**item, "parameters": item["input_schema"]})) for item in fields.items("tools")]
    return checked_tools(tools, service) if service.hermes else []


def _read_choice(fields: Fields, tools: Sequence[Tool]) -> str | Tool:
    inner = fields.inner("tool_choice")
    if inner is None:
        return "auto" if tools else "none"
    kind, name = inner.text("type"), inner.text("name")
    if kind == "tool":
        found = next((tool for tool in tools if tool.name == name), None)
        if found is None:
            raise bad("tool_choice", f"tool_choice names no tool that this model can be given: {name!r:.100}")
        return found
    if kind == "any" and not tools:
        raise bad("tool_choice", "tool_choice is any, and there are no tools that this model can be given")
    return "required" if kind == "any" else str(kind)


def _read_thinking(fields: Fields) -> bool:
    inner = fields.inner("thinking")
    return inner is not None and inner.text("type") != "disabled"


def _read_format(fields: Fields) -> Grammar | None:
    """The grammar of output_config.format, or None."""
    config = fields.inner("output_config")
    form = None if config is None else config.inner("format")
    return None if form is None else schema_grammar(form.take("schema"))


# --- pieces of JSON -----------------------------------------------------------------------------------------------------


def _stop(ask: MessagesAsk, end: End) -> dict[str, Any]:
    fired = end.done.stop_index
    reason = {"length": "max_tokens", "tool_calls": "tool_use"}.get(end.finish, "end_turn")
    if fired is None or reason != "end_turn":
        return {"stop_reason": reason, "stop_sequence": None}
    return {"stop_reason": "stop_sequence", "stop_sequence": ask.requests[0].stops[fired]}


def _usage(end: End | None) -> dict[str, int]:
    """The counts: tokens of the prompt that were there already are not among its input tokens."""
    if end is None:
        return {"input_tokens": 0, "output_tokens": 0, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
    done = end.done
    return {
        "input_tokens": done.prompt_tokens - done.cached_tokens,
        "output_tokens": done.completion_tokens,
        "cache_read_input_tokens": done.cached_tokens,
        "cache_creation_input_tokens": 0,
    }


def _tool_use(ask: MessagesAsk, k: int, call: Call) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{ask.id.removeprefix('msg_')}{k}", "name": call.name, "input": {}}
