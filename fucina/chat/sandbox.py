"""The Jinja environment that chat templates run in: what Hugging Face templates expect, and nothing dangerous.

A template comes with a model file, so it is treated as foreign code: no attributes beyond data, no mutation, bounded
loops over `range`, bounded `*`, `**`, `%`, bounded output.  Memory is not bounded: by `+`, `replace`, `ljust`, `format` and
the like a template that means harm can still build a text of gigabytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_RANGE = 100_000  # numbers that all `range` loops of one rendering may give together
MAX_REPEAT = 1 << 20  # characters or items that one `*` may make
MAX_OUTPUT = 1 << 24  # characters of output, beside what the messages bring


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["*", "**", "%"])

    def call_binop(self, context, operator, left, right):
        if operator == "*":
            for sequence, count in ((left, right), (right, left)):
                if isinstance(sequence, (str, bytes, list, tuple)) and isinstance(count, int):
                    if len(sequence) * count > MAX_REPEAT:
                        raise SecurityError(f"a repetition makes more than {MAX_REPEAT} items")
        elif operator == "**" and isinstance(right, (int, float)) and abs(right) > 64:
            raise SecurityError("an exponent is above 64")
        elif operator == "%" and isinstance(left, (str, bytes)) and re.search(r"\d{5}|\*", str(left)):
            raise SecurityError("a format has a field wider than 9999 characters")
        return super().call_binop(context, operator, left, right)


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}`: marks assistant text for training; here its body is plain output."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class _BoundedRange:
    """`range` whose numbers are charged to the rendering's budget each time a loop walks over it."""

    def __init__(self, numbers: range, spend):
        self._numbers, self._spend = numbers, spend

    def __iter__(self) -> Iterator[int]:
        self._spend(len(self._numbers))
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, i):
        return self._numbers[i]


def _range_with_budget():
    left = MAX_RANGE

    def spend(n: int) -> None:
        nonlocal left
        left -= n
        if left < 0:
            raise SecurityError(f"loops over range() give more than {MAX_RANGE} numbers")

    return lambda *arguments: _BoundedRange(range(*arguments), spend)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _tojson(value: Any, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def compile_template(source: str) -> jinja2.Template:
    """Compile a chat template; raises jinja2.TemplateSyntaxError."""
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    del environment.globals["lipsum"]  # random text
    return environment.from_string(source)


def run_template(template: jinja2.Template, variables: dict[str, Any], now: datetime, size: int) -> str:
    """Render; `size` is how many characters the messages bring.  Raises what the template raises."""
    pieces, length = [], 0
    for piece in template.generate(**variables, range=_range_with_budget(), strftime_now=now.strftime):
        pieces.append(piece)
        length += len(piece)
        if length > MAX_OUTPUT + 8 * size:
            raise SecurityError(f"the output is longer than {MAX_OUTPUT + 8 * size} characters")
    return "".join(pieces)
