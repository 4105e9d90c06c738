"""OpenAI's chat completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..chat.messages import check_conversation
from . import schema
from .dialect import DONE, Dialect, frame
from .fields import Fields, bad
from .jobs import TokenLogprob
from .messages_in import MESSAGES, read_messages
from .options import CHOICES, CHOOSING, GRAMMAR, MAX_TOP_LOGPROBS, STREAM, read_choosing, read_grammar
from .parts import Ask, Choice, End, Part, Scan, Tokens
from .problems import Problem, openai_shape
from .scanners import Call, Reasoning, Text
from .service import Service
from .tools import TOOLS, forced, read_choice, read_tools

REFUSED = ("functions", "function_call", "audio", "prediction", "web_search_options", "modalities")
IGNORED = (  # they change nothing of a reply
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls", "verbosity",
)  # fmt: skip
DEFAULT_TOKENS = 1024
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "default")


BODY = schema.Table(
    {
        "model": schema.Text(),
        "messages": MESSAGES,
        **TOOLS,
        **GRAMMAR,
        "reasoning_effort": schema.Choice(EFFORTS),
        "max_tokens": schema.Integer(1),
        "max_completion_tokens": schema.Integer(1),
        "logprobs": schema.Flag(),
        "top_logprobs": schema.Integer(0, MAX_TOP_LOGPROBS),
        **STREAM,
        **CHOOSING,
        **CHOICES,
    },
    ("messages",),
    IGNORED,
    REFUSED,
)


@dataclass(frozen=True, slots=True)
class ChatAsk(Ask):
    """A chat request; `usage`: a frame with the counts ends the stream."""

    id: str = ""
    created: int = 0
    usage: bool = False
    logprobs: bool = False


def think_of(effort: str | None, service: Service, constrained: bool) -> bool | None:
    """Whether a reply may begin with reasoning; None leaves it to the template."""
    if not service.can_think:
        return None
    if constrained or effort in ("none", "minimal"):
        return False
    return None if effort is None else True


class ChatCompletions(Dialect[ChatAsk]):
    """POST /v1/chat/completions."""

    paths = ("/v1/chat/completions", "/chat/completions")
    table = BODY

    def parse(self, body: dict[str, Any], tenant: str) -> ChatAsk:
        service, fields = self.service, Fields.read(body, BODY)
        messages = read_messages(fields.items("messages"), service)
        tools = read_tools(fields, service)
        choice = read_choice(fields, tools)
        grammar = read_grammar(fields)
        must_call = forced(choice, tools)
        if grammar is not None and must_call is not None:
            raise bad("tool_choice", "a call that must be made and a response format exclude each other")
        effort = fields.text("reasoning_effort")
        limit = fields.integer("max_completion_tokens") or fields.integer("max_tokens") or DEFAULT_TOKENS
        logprobs = fields.flag("logprobs")
        top = fields.integer("top_logprobs")
        if top is not None and not logprobs:
            raise bad("top_logprobs", "top_logprobs needs logprobs: true")
        stream = fields.flag("stream")
        usage = read_usage(fields, stream)
        choosing = read_choosing(fields, service, limit)
        constrained = grammar is not None or must_call is not None
        given = [] if choice == "none" else tools
        ids = service.chat_ids(
            check_conversation(messages),
            [tool.described for tool in given] or None,
            think_of(effort, service, constrained),
        )
        requests = choosing.requests(
            service, ids, tenant, grammar=must_call or grammar, top_logprobs=(top or 0) if logprobs else None
        )
        scan = Scan(service.can_think and not constrained, service.begins_inside(ids), bool(given))
        created = service.now()
        return ChatAsk(requests, stream, scan, f"chatcmpl-{service.new_id()}", created, usage, logprobs)

    def whole(self, ask: ChatAsk, choices: Sequence[Choice]) -> dict[str, Any]:
        return {
            **self._head(ask, "chat.completion"),
            "choices": [
                {
                    "index": i,
                    "message": self._message(ask, i, choice),
                    "logprobs": self._logprobs(choice.logprobs) if ask.logprobs else None,
                    "finish_reason": choice.end.finish,
                }
                for i, choice in enumerate(choices)
            ],
            "usage": usage_of([choice.end for choice in choices]),
        }

    async def frames(self, ask: ChatAsk, parts: AsyncIterator[tuple[int, Part]]) -> AsyncGenerator[str, None]:
        begun: set[int] = set()
        calls: dict[int, int] = {}
        ends: dict[int, End] = {}
        waiting: dict[int, list[TokenLogprob]] = {}
        async for i, part in parts:
            if isinstance(part, Tokens):
                waiting.setdefault(i, []).extend(part.logprobs)
                delta: dict[str, Any] = {}
            elif isinstance(part, Text):
                delta = {"content": part.text}
            elif isinstance(part, Reasoning):
                delta = {"reasoning_content": part.text}
            elif isinstance(part, Call):
                delta = {"tool_calls": [self._call(ask, i, calls.get(i, 0), part, streamed=True)]}
                calls[i] = calls.get(i, 0) + 1
            else:
                delta = {}
            if i not in begun:
                begun.add(i)
                yield self._chunk(ask, i, {"role": "assistant", "content": ""}, None)
            if delta:
                yield self._chunk(ask, i, delta, None, waiting.pop(i, ()))
            if isinstance(part, End):
                yield self._chunk(ask, i, {}, part.finish, waiting.pop(i, ()))
                ends[i] = part
        if ask.usage:
            yield frame(
                {
                    **self._head(ask, "chat.completion.chunk"),
                    "choices": [],
                    "usage": usage_of([ends[i] for i in sorted(ends)]),
                }
            )
        yield DONE

    def failed(self, ask: ChatAsk, problem: Problem) -> str:
        return frame(openai_shape(problem)) + DONE

    # --- pieces of JSON -----------------------------------------------------------------------------------------------

    def _head(self, ask: ChatAsk, kind: str) -> dict[str, Any]:
        return {
            "id": ask.id,
            "object": kind,
            "created": ask.created,
            "model": self.service.name,
            "system_fingerprint": self.service.fingerprint,
        }

    def _chunk(
        self, ask: ChatAsk, i: int, delta: dict[str, Any], finish: str | None, entries: Sequence[TokenLogprob] = ()
    ) -> str:
        choice = {
            "index": i,
            "delta": delta,
            "logprobs": self._logprobs(entries) if entries else None,
            "finish_reason": finish,
        }
        more = {"usage": None} if ask.usage else {}
        return frame({**self._head(ask, "chat.completion.chunk"), "choices": [choice], **more})

    def _message(self, ask: ChatAsk, i: int, choice: Choice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        if choice.reasoning:
            message["reasoning_content"] = choice.reasoning
        if choice.calls:
            message["content"] = choice.text if choice.text.strip() else None
            message["tool_calls"] = [self._call(ask, i, k, call) for k, call in enumerate(choice.calls)]
        return message

    def _call(self, ask: ChatAsk, choice: int, k: int, call: Call, streamed: bool = False) -> dict[str, Any]:
        index = {"index": k} if streamed else {}
        number = f"{k}" if len(ask.requests) == 1 else f"{choice}_{k}"
        id = f"call_{ask.id.removeprefix('chatcmpl-')}{number}"
        return {**index, "id": id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        return {
            "content": [
                {
                    **self._token(entry.token, entry.logprob),
                    "top_logprobs": [self._token(token, value) for token, value in entry.top],
                }
                for entry in entries
            ],
            "refusal": None,
        }

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        piece = self.service.model.tokenizer.piece(token)
        return {"token": piece.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(piece)}


def read_usage(fields: Fields, stream: bool) -> bool:
    """Read stream_options, which needs stream."""
    options = fields.inner("stream_options")
    if options is None:
        return False
    if not stream:
        raise bad("stream_options", "stream_options needs stream: true")
    return options.flag("include_usage")


def usage_of(ends: Sequence[End], prompts: int = 1) -> dict[str, Any]:
    """The counts of a reply; the prompt of several choices counts once.

    Parameters
    ----------
    prompts : how many prompts there are; each has as many choices as the others, one after another.
    """
    firsts = ends[:: max(len(ends) // prompts, 1)]
    prompt = sum(end.done.prompt_tokens for end in firsts)
    completion = sum(end.done.completion_tokens for end in ends)
    accepted = sum(end.done.accepted for end in ends)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(end.done.cached_tokens for end in firsts)},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": sum(end.done.drafted for end in ends) - accepted,
        },
    }
