"""Chat templates as plain Jinja renders them, in the environment that Hugging Face's libraries give them."""

from __future__ import annotations

import json
from datetime import datetime
from typing import ClassVar

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime(2024, 2, 29, 12, 30)


class _Generation(Extension):
    tags: ClassVar = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


def _raise_exception(message):
    raise jinja2.TemplateError(message)


def _tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def render(source: str, messages: list, **variables) -> str:
    """Return the text; raises whatever the template raises."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals.update(raise_exception=_raise_exception, strftime_now=NOW.strftime)
    names = {"add_generation_prompt": True, "tools": None, "bos_token": "", "eos_token": "", **variables}
    return environment.from_string(source).render(messages=messages, **names)
