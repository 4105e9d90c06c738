"""The layers of the package: what may import what, no circles, and files that fit on a few screens.

The graph is read from the sources.  Imports inside functions count; those for type checkers alone do not.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "fucina"

# Each part of the package, and the parts that it may import: those below it.
BELOW = {
    "errors": "",
    "defaults": "",
    "interrupts": "",
    "replacing": "",
    "checks": "errors",
    "known_models": "",
    "userdirs": "errors",
    "download": "errors",
    "hub": "download errors known_models userdirs",
    "gguf": "checks errors replacing",
    "tokenizers": "checks errors gguf kernels",
    "cache": "checks errors interrupts replacing",
    "kernels": "cache errors gguf userdirs",
    "ops": "cache checks errors gguf kernels",
    "models": "cache errors gguf ops",
    "sampling": "checks defaults errors gguf kernels known_models",
    "convert": "checks errors gguf models replacing tokenizers",
    "engine": "cache checks defaults errors interrupts models ops replacing",
    "speculative": "checks engine errors kernels ops",
    "model": "embedding engine generation gguf models",
    "embedding": "checks engine",
    "saving": "cache engine errors interrupts",
    "generation": "checks defaults engine errors sampling saving speculative",
    "loading": "cache checks engine errors gguf hub model models ops tokenizers",
    "chat": "cache checks defaults engine errors generation interrupts sampling saving speculative tokenizers",
    "perplexity": "checks engine errors model",
    "measure": "cache checks engine errors gguf kernels loading model ops replacing",
    "serve": "cache chat checks defaults embedding engine errors generation known_models sampling speculative tokenizers",
    "cluster": "chat checks defaults errors loading serve",
    "cli": "cache chat checks cluster convert defaults errors gguf hub loading measure models ops perplexity replacing sampling saving serve speculative tokenizers",
    "__main__": "cli",
}

LINES = 300
LONGER = {"fucina/errors.py": 400}  # a list: one class after the other


def modules():
    """Name and path of each module of the package."""
    found = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name, path, known, only_at_import=False):
    """The modules of the package that a module imports, packages on the way to them not counted."""
    found = set()

    def base(node):
        if not node.level:
            return node.module or ""
        package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        return ".".join([*package[: len(package) - node.level + 1], *(node.module or "").split(".")]).rstrip(".")

    def visit(node):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.orelse:
                visit(child)
            return
        if only_at_import and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = base(node)
            inside = {f"{start}.{alias.name}" for alias in node.names}
            found.update(m if m in known else start for m in inside)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return (found & set(known)) - {name, PACKAGE}


def circles(graph):
    """The circles of a graph: sets of modules that all import each other, directly or not."""
    reached = {}
    for start in graph:
        seen, left = set(), [start]
        while left:
            for to in graph[left.pop()]:
                if to not in seen:
                    seen.add(to)
                    left.append(to)
        reached[start] = seen
    return {frozenset(m for m in reached[n] if n in reached[m]) for n in graph if n in reached[n]}


@pytest.mark.parametrize("only_at_import", [True, False])
def test_no_circle_of_imports(only_at_import):
    known = modules()
    graph = {name: imports(name, path, known, only_at_import) for name, path in known.items()}
    assert not circles(graph)


def test_a_circle_is_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == {frozenset("bc")}


def test_parts_import_only_what_is_below_them():
    known = modules()
    wrong, parts = [], set()
    for name, path in known.items():
        if name == PACKAGE:
            continue
        part = name.split(".")[1]
        parts.add(part)
        allowed = {part, *BELOW.get(part, "").split()}
        wrong += [f"{name} imports {to}" for to in imports(name, path, known) if to.split(".")[1] not in allowed]
    assert not wrong and parts == set(BELOW)


def test_the_table_of_parts_has_no_circle():
    assert not circles({part: set(below.split()) for part, below in BELOW.items()})


def test_files_are_short():
    lengths = {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in modules().values()
    }
    assert not {path: n for path, n in lengths.items() if n >= LONGER.get(path, LINES)}
