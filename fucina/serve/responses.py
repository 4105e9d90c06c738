"""OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..chat.messages import check_conversation
from . import schema
from .chat import DEFAULT_TOKENS, think_of
from .dialect import Dialect, frame
from .fields import Fields, bad
from .jobs import Done
from .options import CHOOSING, read_choosing
from .parts import Ask, Choice, End, Part, Scan
from .problems import Problem, openai_shape
from .responses_in import FIELDS, read_choice, read_effort, read_input, read_stream_options, read_text, read_tools
from .scanners import Call, Reasoning, Text
from .tools import Tool, forced

REFUSED = (
    "previous_response_id", "conversation", "prompt", "background", "n", "top_logprobs", "moderation", "context_management",
    "image",
)  # fmt: skip
IGNORED = (  # they change nothing of a reply; a reply is never stored, and no tool is built in
    "user", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
    "max_tool_calls",
)  # fmt: skip


_NO_END = End("", Done("stop", 0, 0, 0))  # until it has come


class Numbered:
    """Counts the events of one stream."""

    def __init__(self) -> None:
        self._next = 0

    def event(self, kind: str, **more: Any) -> str:
        """The frame of the next event."""
        number, self._next = self._next, self._next + 1
        return frame({"type": kind, "sequence_number": number, **more}, kind)


BODY = schema.Table(
    {
        "model": schema.Text(),
        **FIELDS,
        "instructions": schema.Text(),
        "max_output_tokens": schema.Integer(1),
        "metadata": schema.Object(),
        "parallel_tool_calls": schema.Flag(),
        "truncation": schema.Only("disabled"),
        **CHOOSING,
    },
    ("input",),
    IGNORED,
    REFUSED,
)


@dataclass(frozen=True, slots=True)
class ResponsesAsk(Ask):
    """A request of this dialect; it has one choice.

    Attributes
    ----------
    id : without a prefix.
    said : what the reply repeats of the request.
    numbered : the events of its stream.
    """

    id: str = ""
    created: int = 0
    said: dict[str, Any] = field(default_factory=dict)
    numbered: Numbered = field(default_factory=Numbered)


class Responses(Dialect[ResponsesAsk]):
    """POST /v1/responses."""

    paths = ("/v1/responses", "/responses")
    table = BODY

    def parse(self, body: dict[str, Any], tenant: str) -> ResponsesAsk:
        service, fields = self.service, Fields.read(body, BODY)
        instructions = fields.text("instructions")
        system = [] if instructions is None else [{"role": "system", "content": instructions}]
        messages = [*system, *read_input(fields.take("input"), service)]
        tools = read_tools(fields, service)
        choice = read_choice(fields, tools)
        form, grammar = read_text(fields)
        must_call = forced(choice, tools)
        if grammar is not None and must_call is not None:
            raise bad("tool_choice", "a call that must be made and a text format exclude each other")
        effort = read_effort(fields)
        limit = fields.integer("max_output_tokens")
        stream = fields.flag("stream")
        read_stream_options(fields, stream)
        metadata, parallel = fields.take("metadata", {}), fields.flag("parallel_tool_calls", True)
        choosing = read_choosing(fields, service, limit or DEFAULT_TOKENS)
        constrained = grammar is not None or must_call is not None
        given = [] if choice == "none" else tools
        ids = service.chat_ids(
            check_conversation(messages),
            [tool.described for tool in given] or None,
            think_of(effort, service, constrained),
        )
        requests = choosing.requests(service, ids, tenant, grammar=must_call or grammar)
        scan = Scan(service.can_think and not constrained, service.begins_inside(ids), bool(given))
        said = {
            "instructions": instructions,
            "max_output_tokens": limit,
            "metadata": metadata,
            "parallel_tool_calls": parallel,
            "reasoning": {"effort": effort, "summary": None},
            "temperature": choosing.options.temperature,
            "text": {"format": form},
            "tool_choice": {"type": "function", "name": choice.name} if isinstance(choice, Tool) else choice,
            "tools": [_told(tool) for tool in tools],
            "top_p": choosing.options.top_p,
        }
        return ResponsesAsk(requests, stream, scan, service.new_id(), service.now(), said)

    def whole(self, ask: ResponsesAsk, choices: Sequence[Choice]) -> dict[str, Any]:
        (choice,) = choices
        cut = choice.end.finish == "length"
        output = []
        if choice.reasoning:
            output.append(_reasoning(ask, choice.reasoning, _status(cut and not (choice.text or choice.calls))))
        output.append(_message(ask, choice.text, _status(cut)))
        output += [_call(ask, k, call) for k, call in enumerate(choice.calls)]
        return self._response(
            ask,
            _status(cut),
            output,
            incomplete_details={"reason": "max_output_tokens"} if cut else None,
            usage=self._usage(choice),
        )

    async def frames(self, ask: ResponsesAsk, parts: AsyncIterator[tuple[int, Part]]) -> AsyncGenerator[str, None]:
        """Reasoning, the message, then the calls: what is said between calls belongs to the one message."""
        event, said, begun = ask.numbered.event, Choice("", "", [], [], _NO_END), False
        async for _, part in parts:
            if not begun:
                begun = True
                started = self._response(ask, "in_progress", [])
                yield event("response.created", response=started) + event("response.in_progress", response=started)
            if isinstance(part, Reasoning):
                place = {"item_id": f"rs_{ask.id}", "output_index": 0, "content_index": 0}
                if not said.reasoning:
                    item = {**_reasoning(ask, "", "in_progress"), "content": []}
                    yield event("response.output_item.added", output_index=0, item=item)
                said.reasoning += part.text
                yield event("response.reasoning_text.delta", **place, delta=part.text)
            elif isinstance(part, Text):
                if not said.text:
                    yield self._reasoning_ends(ask, said, "completed") + self._message_begins(ask, said)
                said.text += part.text
                place = {"item_id": f"msg_{ask.id}", "output_index": int(bool(said.reasoning)), "content_index": 0}
                yield event("response.output_text.delta", **place, delta=part.text, logprobs=[])
            elif isinstance(part, Call):
                said.calls.append(part)
            elif isinstance(part, End):
                said.end = part
                for text in self._ends(ask, said):
                    yield text

    def failed(self, ask: ResponsesAsk, problem: Problem) -> str:
        event, code = ask.numbered.event, "server_error" if problem.status >= 500 else "invalid_prompt"
        failed = self._response(ask, "failed", [], error={"code": code, "message": problem.message})
        told = event("error", code=code, message=problem.message, param=_param(problem))
        return told + event("response.failed", response=failed)

    @classmethod
    def error(cls, problem: Problem) -> dict[str, Any]:
        shape = openai_shape(problem)
        shape["error"]["param"] = _param(problem)
        return shape

    # --- frames of an end ---------------------------------------------------------------------------------------------

    def _reasoning_ends(self, ask: ResponsesAsk, said: Choice, status: str) -> str:
        if not said.reasoning:
            return ""
        event, item = ask.numbered.event, _reasoning(ask, said.reasoning, status)
        return event(
            "response.reasoning_text.done", item_id=item["id"], output_index=0, content_index=0, text=said.reasoning
        ) + event("response.output_item.done", output_index=0, item=item)

    def _message_begins(self, ask: ResponsesAsk, said: Choice) -> str:
        event, index = ask.numbered.event, int(bool(said.reasoning))
        item = {**_message(ask, "", "in_progress"), "content": []}
        return event("response.output_item.added", output_index=index, item=item) + event(
            "response.content_part.added", item_id=item["id"], output_index=index, content_index=0, part=_text("")
        )

    def _ends(self, ask: ResponsesAsk, said: Choice) -> list[str]:
        """The frames from the end of the message on."""
        event, whole = ask.numbered.event, self.whole(ask, [said])
        index = int(bool(said.reasoning))
        told = []
        if not said.text:
            if said.reasoning:
                told.append(self._reasoning_ends(ask, said, whole["output"][0]["status"]))
            told.append(self._message_begins(ask, said))
        message = whole["output"][index]
        place = {"item_id": message["id"], "output_index": index, "content_index": 0}
        told.append(event("response.output_text.done", **place, text=said.text, logprobs=[]))
        told.append(event("response.content_part.done", **place, part=_text(said.text)))
        told.append(event("response.output_item.done", output_index=index, item=message))
        for k, item in enumerate(whole["output"][index + 1 :], index + 1):
            place, arguments = {"item_id": item["id"], "output_index": k}, item["arguments"]
            begun = {**item, "arguments": "", "status": "in_progress"}
            told.append(event("response.output_item.added", output_index=k, item=begun))
            told.append(event("response.function_call_arguments.delta", **place, delta=arguments))
            told.append(event("response.function_call_arguments.done", **place, name=item["name"], arguments=arguments))
            told.append(event("response.output_item.done", output_index=k, item=item))
        told.append(event(f"response.{whole['status']}", response=whole))
        return told

    # --- pieces of JSON -----------------------------------------------------------------------------------------------

    def _response(self, ask: ResponsesAsk, status: str, output: list[Any], **more: Any) -> dict[str, Any]:
        return {
            "id": f"resp_{ask.id}",
            "object": "response",
            "created_at": ask.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": self.service.name,
            "output": output,
            "previous_response_id": None,
            "store": False,
            "truncation": "disabled",
            "usage": None,
            **ask.said,
            **more,
        }

    def _usage(self, choice: Choice) -> dict[str, Any]:
        done = choice.end.done
        reasoning = len(self.service.model.tokenizer.encode(choice.reasoning))  # its tags are not counted
        return {
            "input_tokens": done.prompt_tokens,
            "input_tokens_details": {"cached_tokens": done.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": done.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": min(reasoning, done.completion_tokens)},
            "total_tokens": done.prompt_tokens + done.completion_tokens,
        }


def _param(problem: Problem) -> str | None:
    """The field that a problem is about: what chats call otherwise has its name here."""
    names = {"messages": "input", "response_format": "text.format"}
    return None if problem.param is None else names.get(problem.param, problem.param)


def _status(cut: bool) -> str:
    return "incomplete" if cut else "completed"


def _reasoning(ask: ResponsesAsk, text: str, status: str) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}]
    return {"id": f"rs_{ask.id}", "type": "reasoning", "summary": [], "content": content, "status": status}


def _message(ask: ResponsesAsk, text: str, status: str) -> dict[str, Any]:
    head = {"id": f"msg_{ask.id}", "type": "message", "role": "assistant", "status": status}
    return {**head, "content": [_text(text)]}


def _text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _call(ask: ResponsesAsk, k: int, call: Call) -> dict[str, Any]:
    return {
        "id": f"fc_{ask.id}{k}",
        "type": "function_call",
        "call_id": f"call_{ask.id}{k}",
        "name": call.name,
        "arguments": call.arguments,
        "status": "completed",
    }


def _told(tool: Tool) -> dict[str, Any]:
    about = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", **about, "strict": tool.strict}
