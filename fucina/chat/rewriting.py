"""What the sandbox changes in a template before it is compiled: strings get their origin, and costs are charged.

Jinja parses a template into nodes; these are changed, and Python code is made from them.
"""

from __future__ import annotations

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.visitor import NodeTransformer

from .budget import ITEM
from .provenance import own


class Rewriting(NodeTransformer):
    """Marks the strings in a template as its own, and charges loops, sums, slices and lists that it writes."""

    def __init__(self, environment: jinja2.Environment) -> None:
        self._environment = environment
        self._names: dict[str, str] = {}
        self._escapes = False

    def _filter(self, name: str, node: nodes.Expr, *arguments: int) -> nodes.Node:
        constants: list[nodes.Expr] = [nodes.Const(a, lineno=node.lineno) for a in arguments]
        charge = nodes.Filter(node, name, constants, [], None, None, lineno=node.lineno)
        return charge.set_environment(self._environment)

    def _own(self, node, text: str):
        name = self._names.setdefault(text, f"own_text_{len(self._names)}")
        setattr(self._environment, name, own(text))
        return nodes.EnvironmentAttribute(name, lineno=node.lineno)

    def visit_TemplateData(self, node):
        text = self._own(node, node.data)
        return nodes.MarkSafeIfAutoescape(text, lineno=node.lineno) if self._escapes else text

    def visit_ScopedEvalContextModifier(self, node):  # {% autoescape %}
        outside, self._escapes = self._escapes, True
        node, self._escapes = self.generic_visit(node), outside
        return node

    def visit_Const(self, node):
        return self._own(node, node.value) if isinstance(node.value, str) else node

    def _made(self, node):
        node = self.generic_visit(node)
        return node if getattr(node, "ctx", "load") != "load" else self._filter("_made", node)

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
        return self._filter("_made", whole)

    def visit_Getitem(self, node):
        if isinstance(node.arg, nodes.Const):  # a key: where it comes from does not matter
            node.node = self.visit(node.node)
            return node
        return self._made(node) if isinstance(node.arg, nodes.Slice) else self.generic_visit(node)

    def visit_Concat(self, node):
        node = self.generic_visit(node)
        return self._filter("_concat", nodes.List(node.nodes, lineno=node.lineno))

    def visit_For(self, node):
        pieces = len(list(node.find_all(nodes.Output)))  # that a turn may add to a captured text
        node = self.generic_visit(node)
        node.iter = self._filter("_walk", node.iter, ITEM + 2 * pieces)
        return node


class Generation(Extension):
    """`{% generation %}…{% endgeneration %}`: marks assistant text for training; here its body is plain output."""

    tags = {"generation"}  # noqa: RUF012 -- as the base class has it

    def parse(self, parser):
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)
