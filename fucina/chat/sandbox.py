"""The Jinja environment that chat templates run in: what Hugging Face templates expect, and nothing dangerous.

A template comes with a model file, so it is treated as foreign code: no attributes beyond data, no mutation, bounded
output, and an `Allowance` for everything that it makes and every turn of its loops.  At some 6 bytes a unit, one that
means harm holds less than half a gigabyte in a short conversation, less than two in one of a thousand long messages.
Time has no limit of its own: comparing large values in every turn of a long loop can take minutes.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Sized
from datetime import datetime
from types import BuiltinMethodType, MethodType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.visitor import NodeTransformer

from .allowance import ITEM, Rendering, current, shallow
from .sizes import check_widths, filter_size, formatted, method_size

MAX_SOURCE = 1 << 19  # characters of a template
MAX_RANGE = 100_000  # numbers that all `range` loops of one rendering may give together
MAX_REPEAT = 1 << 20  # characters or items that one `*` may make
MAX_BITS = 1 << 16  # of an integer
MAX_OUTPUT = 1 << 24  # characters of output, beside what the messages bring
DROPPED = frozenset(["lipsum", "pprint", "urlize", "wordwrap", "xmlattr"])  # random; or of a size hard to foresee
REFUSED = frozenset(["expandtabs", "maketrans", "to_bytes", "translate"])  # methods, for the same reason


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def _generate(self, source, name, filename, defer_init=False):
        return super()._generate(_Charges(self).visit(source), name, filename, defer_init)

    def is_safe_attribute(self, obj, attr, value):
        return attr not in REFUSED and super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context, operator, left, right):
        allowance = current()
        numbers = isinstance(left, int) and isinstance(right, int)
        if operator == "*":
            for sequence, count in ((left, right), (right, left)):
                if isinstance(sequence, (str, bytes, list, tuple)) and isinstance(count, int):
                    if len(sequence) * count > MAX_REPEAT:
                        raise SecurityError(f"a repetition makes more than {MAX_REPEAT} items")
            if numbers and left.bit_length() + right.bit_length() > MAX_BITS:
                raise SecurityError(f"a number has more than {MAX_BITS} bits")
        elif operator == "**":
            if isinstance(right, (int, float)) and abs(right) > 64:
                raise SecurityError("an exponent is above 64")
            if numbers and left.bit_length() * right > MAX_BITS:
                raise SecurityError(f"a number has more than {MAX_BITS} bits")
        elif operator == "%" and isinstance(left, (str, bytes)):
            allowance.need(formatted(left, right))
        elif operator == "+":
            allowance.need(shallow(left) + shallow(right))
            return super().call_binop(context, operator, left, right)  # charged by _Charges
        return made(super().call_binop(context, operator, left, right))

    def getitem(self, obj, argument):
        current().weigh(argument)  # a message about one that is missing spells it out
        return super().getitem(obj, argument)

    def wrap_str_format(self, value):
        if not isinstance(value, MethodType | BuiltinMethodType) or value.__name__ not in ("format", "format_map"):
            return None
        form, mapped, formatter = value.__self__, value.__name__ == "format_map", _Formatter(self)
        if not isinstance(form, str):
            return None
        return lambda *args, **names: formatter.vformat(form, () if mapped else args, args[0] if mapped else names)

    def call(self, context, obj, /, *args, **kwargs):
        obj = self.wrap_str_format(obj) or obj
        owner, name, allowance = getattr(obj, "__self__", None), getattr(obj, "__name__", ""), current()
        allowance.spend(ITEM)
        if isinstance(owner, (str, bytes)):
            if name == "join" and args and not isinstance(args[0], Sized):
                args = (list(args[0]), *args[1:])
            allowance.need(method_size(owner, name, args))
        elif isinstance(obj, LoopContext) and args:  # a recursive loop
            args = (allowance.walk(args[0], 64 * ITEM), *args[1:])
        result = super().call(context, obj, *args, **kwargs)
        if isinstance(owner, (str, bytes)) and isinstance(result, (list, tuple)):
            allowance.spend(len(owner))  # of its pieces
        return made(result)

    def concat(self, parts: Iterable[str]) -> str:  # of captured output: {% set %}, macros, {% filter %}
        parts = list(parts)
        current().spend(sum(map(len, parts)))
        return "".join(parts)


def made(value: Any) -> Any:
    """Charge for a fresh value, or for the items of a lazy one as they come."""
    if isinstance(value, Iterator):
        return current().walk(value)
    current().spend(shallow(value))
    return value


def text(value: Any) -> Any:
    """Charge for a value that is about to become text."""
    current().spend(len(value) if isinstance(value, str) else current().weigh(value))
    return value


def _shown(value: Any) -> Any:
    """Charge for a value that is about to be put out; a text exists already, its length is bounded by the output's."""
    return value if isinstance(value, str) else text(value)


class _Charges(NodeTransformer):
    """Puts charges into a template: on loops, sums, texts joined by `~`, slices, and what is written as a list."""

    def __init__(self, environment: jinja2.Environment) -> None:
        self._environment = environment

    def _through(self, name: str, node: nodes.Expr, *arguments: int) -> nodes.Expr:
        constants: list[nodes.Expr] = [nodes.Const(a, lineno=node.lineno) for a in arguments]
        charge = nodes.Filter(node, name, constants, [], None, None, lineno=node.lineno)
        return charge.set_environment(self._environment)

    def _made(self, node):
        node = self.generic_visit(node)
        return node if getattr(node, "ctx", "load") != "load" else self._through("_made", node)

    visit_List = visit_Dict = visit_Tuple = _made

    def visit_Add(self, node):
        whole, parts = node, []
        while isinstance(node.left, nodes.Add):  # a + b + c: a + b is dropped at once, only the whole is charged
            parts.append(node)
            node = node.left
        parts.append(node)
        node.left = self.visit(node.left)
        for part in parts:
            part.right = self.visit(part.right)
        return self._through("_made", whole)

    def visit_Getitem(self, node):
        return self._made(node) if isinstance(node.arg, nodes.Slice) else self.generic_visit(node)

    def visit_Concat(self, node):
        node = self.generic_visit(node)
        node.nodes = [self._through("_text", n) for n in node.nodes]
        return self._through("_made", node)

    def visit_For(self, node):
        pieces = len(list(node.find_all(nodes.Output)))  # that a turn may add to a captured text
        node = self.generic_visit(node)
        node.iter = self._through("_walk", node.iter, ITEM + 2 * pieces)
        return node


class _Formatter(SandboxedFormatter):
    """`str.format` that charges each field before it goes into the text."""

    def convert_field(self, value, conversion):
        text(value)
        return super().convert_field(value, conversion)

    def format_field(self, value, format_spec):
        check_widths(format_spec)
        return made(super().format_field(value, format_spec))


def _charged(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that is charged for what it makes."""
    at = 1 if hasattr(run, "jinja_pass_arg") else 0

    @functools.wraps(run)
    def charged(*args, **names):
        value = args[at] if len(args) > at else None
        if name in ("join", "replace") and isinstance(value, Iterator):
            value = list(value)
            args = (*args[:at], value, *args[at + 1 :])
        current().spend(ITEM)
        current().need(filter_size(name, value, args[at + 1 :], names))
        return made(run(*args, **names))

    return charged


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

    def __reversed__(self) -> Iterator[int]:
        self._spend(len(self._numbers))
        return reversed(self._numbers)

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
    raise TemplateError(text(message))


def _tojson(value: Any, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return "".join(text(piece) for piece in encoder.iterencode(value))


def compile_template(source: str) -> jinja2.Template:
    """Compile a chat template; raises jinja2.TemplateSyntaxError, SecurityError."""
    if len(source) > MAX_SOURCE:
        raise SecurityError(f"it has {len(source)} characters, expected at most {MAX_SOURCE}")
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation], optimized=False, finalize=_shown
    )
    charges = {"_made": lambda value: value, "_text": text, "_walk": lambda items, each: current().walk(items, each)}
    filters = {**environment.filters, "tojson": _tojson, **charges}
    environment.filters = {name: _charged(name, run) for name, run in filters.items() if name not in DROPPED}
    environment.globals["raise_exception"] = _raise_exception
    environment.globals = {name: value for name, value in environment.globals.items() if name not in DROPPED}
    return environment.from_string(source)


def run_template(template: jinja2.Template, variables: dict[str, Any], now: datetime) -> str:
    """Render; `variables` has the messages.  Raises what the template raises."""
    size = sum(len(m["content"]) for m in variables["messages"])
    pieces, length = [], 0

    def strftime_now(form: str) -> str:
        if len(form) > 1000:
            raise SecurityError("a date's format has more than 1000 characters")
        return now.strftime(form)

    with Rendering(size, len(variables["messages"])):
        for piece in template.generate(**variables, range=_range_with_budget(), strftime_now=strftime_now):
            pieces.append(piece)
            length += len(piece)
            if length > MAX_OUTPUT + 8 * size:
                raise SecurityError(f"the output is longer than {MAX_OUTPUT + 8 * size} characters")
    return "".join(pieces)
