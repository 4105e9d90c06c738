"""Fields that OpenAI's dialects share: how tokens are chosen, when a reply ends, which texts it may be."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import InvalidGrammar
from ..sampling import Grammar, SamplerOptions
from ..sampling.rng import MASK
from .fields import Fields, bad
from .jobs import GenerateRequest
from .problems import Problem
from .schema import Choice, Flag, Integer, Items, JsonSchema, Kind, Number, OneOf, Pairs, Table, Text
from .service import Service

MAX_CHOICES = 8
MAX_STOPS = 4
MAX_TOP_LOGPROBS = 20
MAX_PRIORITY = 100
MAX_BIASES = 1024


CHOOSING: dict[str, Kind] = {
    "temperature": Number(0, 2),
    "top_p": Number(0, 1),
    "min_p": Number(0, 1),
    "top_k": Integer(0, 1 << 31),
    "repeat_penalty": Number(0.001, 4),  # it divides logits, which must stay finite
    "frequency_penalty": Number(-2, 2),
    "presence_penalty": Number(-2, 2),
    "repeat_last_n": Integer(0, 1 << 31),
    "seed": Integer(0, MASK),
    "stop": OneOf((Text(1), Items(Text(1), most=MAX_STOPS))),
    "logit_bias": Pairs("[0-9]{1,9}", "a token id", Number(-100, 100), MAX_BIASES),
    "priority": Integer(-MAX_PRIORITY, MAX_PRIORITY),
}
CHOICES: dict[str, Kind] = {"n": Integer(1, MAX_CHOICES)}
STREAM: dict[str, Kind] = {
    "stream": Flag(),
    "stream_options": Table({"include_usage": Flag()}, ignored=("include_obfuscation",)),
}
FORMAT = Table(
    {
        "type": Choice(("text", "json_object", "json_schema")),
        "json_schema": Table({"schema": JsonSchema()}, ("schema",), ("name", "description", "strict")),
    },
    ("type",),
)
GRAMMAR: dict[str, Kind] = {"response_format": FORMAT, "regex": Text(), "lark": Text()}


@dataclass(frozen=True, slots=True)
class Choosing:
    """How the replies to a body are made.

    options : with the seed of the first choice.  n : how many choices.
    """

    options: SamplerOptions
    n: int
    max_tokens: int
    stops: tuple[str, ...]
    biases: Mapping[int, float] | None
    priority: int

    def requests(
        self, service: Service, ids: list[int], tenant: str, first: int = 0, **more: Any
    ) -> list[GenerateRequest]:
        """One request for each choice; choice i draws with the seed + i."""
        return [
            GenerateRequest(
                ids,
                self.max_tokens,
                replace(self.options, seed=self.options.seed + first + i & MASK),
                self.stops,
                service.ends,
                grammar_ends=service.grammar_ends,
                biases=self.biases,
                tenant=tenant,
                priority=self.priority,
                **more,
            )
            for i in range(self.n)
        ]


def read_choosing(fields: Fields, service: Service, max_tokens: int) -> Choosing:
    """Read the fields that both of OpenAI's older dialects have.

    Parameters
    ----------
    max_tokens : where the body has none.
    """
    given: dict[str, Any] = {
        name: fields.take(name)
        for name in (*SAMPLED, "repeat_penalty", "frequency_penalty", "presence_penalty", "repeat_last_n", "min_p")
    }
    return Choosing(
        sampler_options(given, service),
        fields.integer("n") or 1,
        max_tokens,
        read_stops(fields),
        read_biases(fields, service.model.n_tokens),
        fields.integer("priority") or 0,
    )


SAMPLED = ("temperature", "top_p", "top_k", "seed")


def sampler_options(given: Mapping[str, Any], service: Service) -> SamplerOptions:
    """Options from what is given (None: nothing), over what the model's makers recommend unless it is greedy."""
    chosen = {name: value for name, value in given.items() if value is not None}
    chosen.setdefault("seed", secrets.randbits(32))
    if chosen.get("temperature") != 0:
        chosen = {**service.sampling, **chosen}
    return SamplerOptions(**chosen)


def read_stops(fields: Fields, name: str = "stop") -> tuple[str, ...]:
    """Read stop texts: one, or an array."""
    stop = fields.take(name)
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def read_biases(fields: Fields, n_tokens: int) -> dict[int, float] | None:
    """Read logit_bias: an object from token ids to numbers."""
    found = fields.take("logit_bias")
    if not found:
        return None
    for key in found:
        if int(key) >= n_tokens:
            raise bad("logit_bias", f"logit_bias: {key} is no token id below {n_tokens}")
    return {int(key): value for key, value in found.items()}


def read_grammar(fields: Fields) -> Grammar | None:
    """Read what the reply may be: response_format, regex or lark, at most one of them."""
    form = fields.inner("response_format")
    regex, lark = fields.text("regex"), fields.text("lark")
    if sum(x is not None for x in (form, regex, lark)) > 1:
        raise bad("response_format", "at most one of response_format, regex and lark can be given")
    if form is not None:
        return format_grammar(form)
    name = "lark" if regex is None else "regex"
    try:
        return Grammar.regex(regex) if regex is not None else Grammar.lark(lark) if lark is not None else None
    except InvalidGrammar as error:
        raise Problem(400, str(error), param=name) from None


def format_grammar(form: Fields) -> Grammar | None:
    """The grammar of a response format: text, json_object, or json_schema with its schema one object further in."""
    kind, inner = form.text("type"), form.inner("json_schema")
    if kind == "json_schema":
        if inner is None:
            raise bad("response_format.json_schema", "response_format.json_schema is required")
        return schema_grammar(inner.take("schema"))
    return schema_grammar({"type": "object"}) if kind == "json_object" else None


def schema_grammar(schema: Any) -> Grammar:
    """The grammar of a JSON schema.  Raises Problem."""
    try:
        return Grammar.json_schema(schema)
    except InvalidGrammar as error:
        raise Problem(400, str(error), param="response_format") from None


def plain_json(value: Any) -> str:
    """JSON text in one line, as it is sent."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
