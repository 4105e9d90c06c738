"""The Jinja environment that chat templates run in: what Hugging Face templates expect, and nothing dangerous.

A template comes with a model file, so it is treated as foreign code: no attributes beyond data, no mutation, bounded
output, and a `Budget` for everything that it makes, every iteration of its loops, and its time.  At some 6 bytes per
unit, a hostile template holds less than half a gigabyte in a short conversation, less than two in one of a thousand
long messages.

What is written in a template is its own (see `provenance`): the compiler turns each text and each string constant into
a `Text`, and operations that would lose the origin (filters, `~`, captured output, formats) keep it here.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from types import BuiltinMethodType, MethodType
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import loopcontrols
from jinja2.filters import do_indent
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter

from .budget import CURRENT, ITEM, Budget, current, shallow, widths
from .provenance import FOREIGN, Text, joined, origins, own, respelled, safe, traced
from .rewriting import Generation, Rewriting

MAX_SOURCE = 1 << 19  # characters of a template
MAX_RANGE = 100_000  # numbers of a `range`
MAX_REPEAT = 1 << 20  # characters or items that one `*` may make
MAX_BITS = 1 << 16  # of an integer
MAX_OUTPUT = 1 << 24  # characters of output, beside what the messages bring
DROPPED = frozenset(["lipsum", "pprint", "striptags", "urlize", "wordwrap", "xmlattr"])  # random; or too slow or large
REFUSED = frozenset(["expandtabs", "maketrans", "to_bytes", "translate"])  # methods, for the same reason


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The environment of one template."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, Generation],
            optimized=False,
            finalize=_shown,
        )
        own_filters = {
            "tojson": _tojson,
            "indent": _indent,
            "safe": safe,
            "_made": _same,
            "_walk": _walk,
            "_concat": _concat,
        }
        filters = {**self.filters, **own_filters}
        self.filters = {name: _charged(name, run) for name, run in filters.items() if name not in DROPPED}
        functions = {**self.globals, "raise_exception": _raise_exception, "range": _range}
        self.globals = {name: value for name, value in functions.items() if name not in DROPPED}

    def _generate(self, source, name, filename, defer_init=False):
        return super()._generate(Rewriting(self).visit(source), name, filename, defer_init)

    def is_safe_attribute(self, obj, attr, value):
        return attr not in REFUSED and super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context, operator, left, right):
        budget = current()
        numbers = isinstance(left, int) and isinstance(right, int)
        if operator == "*":
            for sequence, count in ((left, right), (right, left)):
                repeats = isinstance(sequence, (str, bytes, list, tuple)) and isinstance(count, int)
                if repeats and len(sequence) * count > MAX_REPEAT:
                    raise SecurityError(f"a repetition makes more than {MAX_REPEAT} items")
            if numbers and left.bit_length() + right.bit_length() > MAX_BITS:
                raise SecurityError(f"a number has more than {MAX_BITS} bits")
        elif operator == "**":
            if isinstance(right, (int, float)) and abs(right) > 64:
                raise SecurityError("an exponent is above 64")
            if numbers and left.bit_length() * right > MAX_BITS:
                raise SecurityError(f"a number has more than {MAX_BITS} bits")
        elif operator == "%" and isinstance(left, (str, bytes)):
            budget.need_format(left, right)
            left = traced(left) if type(left) is str else left
        elif operator == "+":
            budget.need(shallow(left) + shallow(right))
            return super().call_binop(context, operator, left, right)  # charged by `Rewriting`
        return budget.made(super().call_binop(context, operator, left, right))

    def getitem(self, obj, argument):
        current().weigh(argument)  # the message about a missing one contains it
        return super().getitem(obj, argument)

    def wrap_str_format(self, value):
        if not isinstance(value, MethodType | BuiltinMethodType) or value.__name__ not in ("format", "format_map"):
            return None
        form, mapped = value.__self__, value.__name__ == "format_map"
        if not isinstance(form, str):
            return None
        return lambda *args, **names: _Formatter(self).vformat(
            form, () if mapped else args, args[0] if mapped else names
        )

    def call(self, context, obj, /, *args, **kwargs):
        budget = current()
        budget.spend(ITEM)
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        formatting = self.wrap_str_format(obj)
        if formatting is not None:
            obj = formatting
        elif isinstance(owner, (str, bytes)):
            if name == "join" and args:
                args = (list(args[0]), *args[1:])
            budget.need_method(owner, name, (*args, *kwargs.values()))
            if type(owner) is str and name in ("join", "replace"):
                obj = getattr(traced(owner), name)
        elif isinstance(obj, LoopContext) and args:  # a recursive loop
            args = (budget.walk(args[0], 64 * ITEM), *args[1:])
        result = super().call(context, obj, *args, **kwargs)
        if isinstance(owner, (str, bytes)) and isinstance(result, (list, tuple)):
            budget.spend(len(owner))  # of its pieces
        return budget.made(result)

    def concat(self, parts: Iterable[str]) -> str:  # of captured output: {% set %}, macros, {% filter %}
        parts = list(parts)
        current().spend(sum(map(len, parts)))
        return joined(parts)


class _Formatter(SandboxedFormatter):
    """`str.format` that charges each field before it goes into the text, and keeps the origins of its parts."""

    def vformat(self, form, args, kwargs):
        self._pieces: list[str] = []
        self._own = FOREIGN not in origins(form)
        text = super().vformat(form, args, kwargs)
        whole = joined(self._pieces)
        return whole if whole == text else text

    def parse(self, form):
        for literal, *field in super().parse(form):
            self._pieces.append(own(literal) if self._own else literal)
            yield literal, *field

    def convert_field(self, value, conversion):
        current().text(value)
        return super().convert_field(value, conversion)

    def format_field(self, value, format_spec):
        widths(format_spec)
        text = current().made(super().format_field(value, format_spec))
        self._pieces.append(text)
        return text


def _charged(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that is charged for what it makes, and keeps origins."""
    at = 1 if hasattr(run, "jinja_pass_arg") else 0

    @functools.wraps(run)
    def charged(*args, **names):
        budget = current()
        budget.spend(ITEM)
        context, (value, *rest) = args[:at], args[at:]
        if name in ("join", "replace", "sum") and isinstance(value, Iterator):
            value = list(value)
        if name == "replace":
            rest = [*rest, *(names.pop(key) for key in ("old", "new")[len(rest) :] if key in names)]
        budget.need_filter(name, value, tuple(rest), names)
        if name in ("format", "replace") and type(value) is str:
            value = traced(value)
        elif name == "join":
            rest = [traced(str(rest[0] if rest else names.pop("d", ""))), *rest[1:]]
        elif name == "sum":
            value = budget.walk(value)  # sums of lists take their time
        result = run(*context, value, *rest, **names)
        if name == "title" and isinstance(value, Text):
            result = respelled(value, result)
        return budget.made(result)

    return charged


def _shown(value: Any) -> Any:
    """Charge for a value that is about to be put out; a text exists already, its length is bounded by the output's."""
    return value if isinstance(value, str) else current().text(value)


def _same(value: Any) -> Any:
    return value


def _walk(items: Iterable[Any], each: int) -> Iterator[Any]:
    return current().walk(items, each)


def _concat(values: list[Any]) -> str:
    return joined([str(current().text(value)) for value in values])


def _range(*arguments: int) -> range:
    numbers = range(*arguments)
    if max(numbers.start, numbers.stop, key=abs) and (numbers.stop - numbers.start) // numbers.step > MAX_RANGE:
        raise SecurityError(f"a range has more than {MAX_RANGE} numbers")
    return numbers


def _raise_exception(message: str) -> None:
    raise TemplateError(current().text(message))


def _tojson(value: Any, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return "".join(current().text(piece) for piece in encoder.iterencode(value))


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    if type(text) not in (str, Text):
        return do_indent(text, width, first, blank)
    margin = width if isinstance(width, str) else " " * width
    head, *lines = traced(text + "\n").splitlines()
    whole = traced("\n").join([head, *(margin + line if line or blank else line for line in lines)])
    return margin + whole if first else whole


def compile_template(source: str) -> jinja2.Template:
    """Compile a chat template; raises jinja2.TemplateSyntaxError, SecurityError."""
    if len(source) > MAX_SOURCE:
        raise SecurityError(f"it has {len(source)} characters, expected at most {MAX_SOURCE}")
    return TemplateSandbox().from_string(source)


def run_template(template: jinja2.Template, variables: dict[str, Any], now: datetime) -> str:
    """Render to a text that records which characters are the template's own (see `provenance`).

    `variables` has the messages.  Raises what the template raises.
    """
    size = sum(len(m["content"]) for m in variables["messages"])
    pieces, length = [], 0

    def strftime_now(form: str) -> str:
        if len(form) > 1000:
            raise SecurityError("a date's format has more than 1000 characters")
        return now.strftime(form)

    token = CURRENT.set(Budget(size, len(variables["messages"])))
    try:
        for piece in template.generate(**variables, strftime_now=strftime_now):
            pieces.append(piece)
            length += len(piece)
            if length > MAX_OUTPUT + 8 * size:
                raise SecurityError(f"the output is longer than {MAX_OUTPUT + 8 * size} characters")
    finally:
        CURRENT.reset(token)
    return joined(pieces)
