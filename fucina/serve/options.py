"""Fields that OpenAI's dialects share: how tokens are chosen, when a reply ends, which texts it may be."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .. import checks
from ..errors import InvalidGrammar, InvalidOption
from ..sampling import Grammar, SamplerOptions
from ..sampling.rng import MASK
from .fields import Fields, bad
from .jobs import GenerateRequest
from .problems import Problem
from .service import Service

MAX_CHOICES = 8
MAX_STOPS = 4
MAX_TOP_LOGPROBS = 20
MAX_PRIORITY = 100
MAX_BIASES = 1024


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
        "temperature": fields.number("temperature", 0, 2),
        "top_p": fields.number("top_p", 0, 1),
        "min_p": fields.number("min_p", 0, 1),
        "top_k": fields.integer("top_k", 0, 1 << 31),
        "repeat_penalty": fields.number("repeat_penalty", 0, 4),
        "frequency_penalty": fields.number("frequency_penalty", -2, 2),
        "presence_penalty": fields.number("presence_penalty", -2, 2),
        "repeat_last_n": fields.integer("repeat_last_n", 0, 1 << 31),
        "seed": fields.integer("seed", 0, MASK),
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    chosen.setdefault("seed", secrets.randbits(32))
    if chosen.get("temperature") != 0:
        chosen = {**service.sampling, **chosen}
    return Choosing(
        SamplerOptions(**chosen),
        fields.integer("n", 1, MAX_CHOICES) or 1,
        max_tokens,
        read_stops(fields),
        read_biases(fields, service.model.n_tokens),
        fields.integer("priority", -MAX_PRIORITY, MAX_PRIORITY) or 0,
    )


def read_stops(fields: Fields, name: str = "stop", most: int = MAX_STOPS) -> tuple[str, ...]:
    """Read stop texts: one, or an array of at most `most`; none of them empty."""
    stop = fields.take(name)
    stops = [stop] if isinstance(stop, str) else [] if stop is None else stop
    if not isinstance(stops, list) or not all(isinstance(s, str) and s for s in stops):
        raise bad(name, f"{name} must be a string or an array of strings, none of them empty")
    if len(stops) > most:
        raise bad(name, f"{name} has {len(stops)} texts, at most {most} are possible")
    return tuple(stops)


def read_biases(fields: Fields, n_tokens: int) -> dict[int, float] | None:
    """Read logit_bias: an object from token ids to numbers in [-100, 100]."""
    found = fields.take("logit_bias")
    if not found and isinstance(found, (dict, type(None))):
        return None
    if not isinstance(found, dict) or len(found) > MAX_BIASES:
        raise bad("logit_bias", f"logit_bias must be an object of at most {MAX_BIASES} token ids")
    biases: dict[int, float] = {}
    for key, value in found.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < n_tokens):
            raise bad("logit_bias", f"logit_bias: {checks.shown(key)} is no token id below {n_tokens}")
        try:
            biases[int(key)] = checks.real(f"logit_bias of {key}", value, -100, 100)
        except InvalidOption as error:
            raise bad("logit_bias", str(error)) from None
    return biases


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
    kind = form.choice("type", ("text", "json_object", "json_schema"))
    if kind is None:
        raise bad("response_format.type", "response_format.type is required")
    inner = form.inner("json_schema")
    form.end()
    if kind == "json_schema":
        if inner is None:
            raise bad("response_format.json_schema", "response_format.json_schema is required")
        inner.ignore(("name", "description", "strict"))
        grammar = schema_grammar(inner.need("schema"))
        inner.end()
        return grammar
    return schema_grammar({"type": "object"}) if kind == "json_object" else None


def schema_grammar(schema: Any) -> Grammar:
    """The grammar of a JSON schema.  Raises Problem."""
    if not isinstance(schema, (dict, bool)):
        raise bad("response_format", "a schema must be an object")
    try:
        return Grammar.json_schema(schema)
    except InvalidGrammar as error:
        raise Problem(400, str(error), param="response_format") from None


def plain_json(value: Any) -> str:
    """JSON text in one line, as it is sent."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
