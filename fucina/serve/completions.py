"""OpenAI's older completions: text, or token ids, that are continued as they are."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from .. import checks
from ..errors import ContextFull, EmptyInput, TokenOutOfRange
from . import schema
from .chat import read_usage, usage_of
from .dialect import DONE, Dialect, frame
from .fields import Fields, bad
from .jobs import TokenLogprob
from .options import CHOICES, CHOOSING, GRAMMAR, MAX_CHOICES, STREAM, read_choosing, read_grammar
from .parts import Ask, Choice, End, Part, Tokens
from .problems import Problem, openai_shape
from .scanners import Text

IGNORED = ("user", "metadata", "store", "service_tier")
DEFAULT_TOKENS = 16
MAX_LOGPROBS = 20


BODY = schema.Table(
    {
        "model": schema.Text(),
        "prompt": schema.OneOf(
            (schema.Text(), schema.Ids(), schema.Items(schema.OneOf((schema.Text(), schema.Ids())), most=MAX_CHOICES))
        ),
        "max_tokens": schema.Integer(1),
        "logprobs": schema.Integer(0, MAX_LOGPROBS),
        "best_of": schema.Integer(1),
        "echo": schema.Only(False),
        "suffix": schema.Only(""),
        **STREAM,
        **GRAMMAR,
        **CHOOSING,
        **CHOICES,
    },
    ("prompt",),
    IGNORED,
)


@dataclass(frozen=True, slots=True)
class CompletionAsk(Ask):
    """A completion request; choices of one prompt stand together."""

    id: str = ""
    created: int = 0
    prompts: int = 1
    usage: bool = False


class Completions(Dialect[CompletionAsk]):
    """POST /v1/completions."""

    paths = ("/v1/completions", "/completions")
    table = BODY

    def parse(self, body: dict[str, Any], tenant: str) -> CompletionAsk:
        service, fields = self.service, Fields.read(body, BODY)
        prompts = self._prompts(fields.take("prompt"))
        top = fields.integer("logprobs")
        stream = fields.flag("stream")
        usage = read_usage(fields, stream)
        grammar = read_grammar(fields)
        choosing = read_choosing(fields, service, fields.integer("max_tokens") or DEFAULT_TOKENS)
        best_of = fields.integer("best_of")
        if best_of is not None and best_of != choosing.n:
            raise Problem(400, "best_of other than n is not supported", param="best_of", code="unsupported_parameter")
        if choosing.n * len(prompts) > MAX_CHOICES:
            raise bad(
                "prompt", f"{len(prompts)} prompts with n {choosing.n}: at most {MAX_CHOICES} choices are possible"
            )
        requests = [
            request
            for k, ids in enumerate(prompts)
            for request in choosing.requests(service, ids, tenant, k * choosing.n, grammar=grammar, top_logprobs=top)
        ]
        return CompletionAsk(
            requests, stream, id=f"cmpl-{service.new_id()}", created=service.now(), prompts=len(prompts), usage=usage
        )

    def _prompts(self, given: Any) -> list[list[int]]:
        """The prompts as token ids: a text, an array of ids, or an array of either."""
        several = isinstance(given, list) and bool(given) and isinstance(given[0], (str, list))
        prompts = given if several else [given]
        try:
            return [self._prompt(prompt) for prompt in prompts]
        except (ContextFull, EmptyInput, TokenOutOfRange) as error:
            code = "context_length_exceeded" if isinstance(error, ContextFull) else None
            raise Problem(400, str(error), param="prompt", code=code) from None

    def _prompt(self, prompt: Any) -> list[int]:
        if isinstance(prompt, str):
            return self.service.text_ids(prompt)
        return self.service.checked(checks.token_ids("prompt", prompt, self.service.model.n_tokens))

    def whole(self, ask: CompletionAsk, choices: Sequence[Choice]) -> dict[str, Any]:
        return {
            **self._head(ask),
            "choices": [
                self._choice(i, c.text, Offsets(self).entries(c.logprobs) if self._wants(ask) else None, c.end.finish)
                for i, c in enumerate(choices)
            ],
            "usage": usage_of([c.end for c in choices], ask.prompts),
        }

    async def frames(self, ask: CompletionAsk, parts: AsyncIterator[tuple[int, Part]]) -> AsyncGenerator[str, None]:
        waiting: dict[int, list[TokenLogprob]] = {}
        offsets = [Offsets(self) for _ in ask.requests]
        ends: dict[int, End] = {}
        async for i, part in parts:
            if isinstance(part, Tokens):
                waiting.setdefault(i, []).extend(part.logprobs)
                continue
            text, finish = (part.text, None) if isinstance(part, Text) else ("", None)
            if isinstance(part, End):
                ends[i], finish = part, part.finish
            entries = waiting.pop(i, [])
            logprobs = offsets[i].entries(entries) if self._wants(ask) else None
            more = {"usage": None} if ask.usage else {}
            yield frame({**self._head(ask), "choices": [self._choice(i, text, logprobs, finish)], **more})
        if ask.usage:
            ordered = [ends[i] for i in sorted(ends)]
            yield frame({**self._head(ask), "choices": [], "usage": usage_of(ordered, ask.prompts)})
        yield DONE

    def failed(self, ask: CompletionAsk, problem: Problem) -> str:
        return frame(openai_shape(problem)) + DONE

    def _head(self, ask: CompletionAsk) -> dict[str, Any]:
        name, fingerprint = self.service.name, self.service.fingerprint
        head = {"id": ask.id, "object": "text_completion", "created": ask.created, "model": name}
        return {**head, "system_fingerprint": fingerprint}

    @staticmethod
    def _wants(ask: CompletionAsk) -> bool:
        return ask.requests[0].top_logprobs is not None

    @staticmethod
    def _choice(index: int, text: str, logprobs: dict[str, Any] | None, finish: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}


class Offsets:
    """Where tokens begin in the text of a choice, counted in characters; one that ends half a character begins with it."""

    def __init__(self, dialect: Completions) -> None:
        self._tokenizer = dialect.service.model.tokenizer
        self._stream = self._tokenizer.stream(begins=False)
        self._at = 0

    def entries(self, found: Sequence[TokenLogprob]) -> dict[str, Any]:
        """The `logprobs` of a choice, or of a part of it."""
        offsets = []
        for entry in found:
            offsets.append(self._at)
            self._at += len(self._stream.push(entry.token))
        return {
            "tokens": [self._spelt(entry.token) for entry in found],
            "token_logprobs": [entry.logprob for entry in found],
            "top_logprobs": [{self._spelt(token): value for token, value in reversed(entry.top)} for entry in found],
            "text_offset": offsets,
        }

    def _spelt(self, token: int) -> str:
        """A token as text; one that is no text by itself is written as `bytes:\\xf0\\x9f`."""
        piece = self._tokenizer.piece(token)
        try:
            return piece.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
