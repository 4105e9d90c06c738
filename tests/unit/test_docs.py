"""The pages in docs/: files and names that they mention exist, and what they show works."""

from __future__ import annotations

import importlib
import math
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import fucina
from course.source import ROOT
from fucina.defaults import PREFILL_STRETCH
from fucina.engine import default_table
from fucina.engine.scheduler import PrefillShare
from fucina.gguf import GgmlType, GgufFile, write_gguf
from fucina.models import FAMILIES
from fucina.ops.rows import MAX_ROWS
from tests.models import TINY

PAGES = sorted((ROOT / "docs").glob("*.md"))
FOLDERS = ("bench", "course", "docs", "exercises", "fucina", "notebooks", "solutions", "tests")
GONE = (
    "BatchDecoder",
    "CacheSnapshot",
    "ConversationState",
    "DecodeStream",
    "KvCache",
    "LayerGeometry",
    "LearnerRecorder",
    "SpeculativeDecoder",
    "TurnState",
    "bootstrap_step",
    "can_truncate",
    "commit_rows",
    "decoders.py",
    "decoding.py",
    "kv_append",
    "kv_cache.py",
    "twin.py",
)
ELSEWHERE = {"JupyterHub", "JupyterLab"}  # names in CamelCase that are no classes of this project
EXAMPLES = {
    "ada.py",
    "ada/",
    "exercises/board.py",
    "jupyterhub_config.py",
    "nbgrader_config.py",
}  # files of whoever reads the page


def pages(*, without: tuple[str, ...] = ()) -> list[Any]:
    return [pytest.param(page.read_text(encoding="utf-8"), id=page.name) for page in PAGES if page.name not in without]


def quoted(text: str) -> list[str]:
    """What stands in backticks outside of code blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))


@cache
def project() -> frozenset[str]:
    """Files and folders of the project, each as /path from the root; folders end with a slash."""
    found = set()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            found.add("/" + path.relative_to(ROOT).as_posix() + "/" * path.is_dir())
        found.add(f"/{folder}/")
    return frozenset(found | {"/" + path.name for path in ROOT.iterdir() if path.is_file()})


@cache
def defined() -> frozenset[str]:
    """Names of classes, functions and variables that the project defines."""
    sources = [p for folder in ("fucina", "course", "tests", "bench") for p in (ROOT / folder).rglob("*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    found = re.findall(r"^\s*(?:class|def) (\w+)|^\s*(?:self\.)?([A-Za-z_]\w*)(?:: [^=\n]+)? = ", text, re.M)
    return frozenset(a or b for a, b in found)


def exists(path: str) -> bool:
    """Whether a path, from the root or from any folder of the project, is there; `*` and `N` stand for anything."""
    if "*" not in path and "NN" not in path:
        return any(known.endswith("/" + path) for known in project())
    pattern = re.compile("/" + re.escape(path).replace(r"\*", "[^/]*").replace("NN", "[0-9]+") + "$")
    return any(pattern.search(known) for known in project())


@pytest.mark.parametrize("text", pages())
def test_files_exist(text):
    paths = [word for word in quoted(text) if re.fullmatch(r"[\w./*-]+(?:\.py|\.md|/)", word)]
    assert [word for word in paths if not (exists(word) or word in EXAMPLES or word.startswith((".", "/")))] == []


@pytest.mark.parametrize("text", pages())
def test_links_lead_somewhere(text):
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        path = ROOT / "docs" / name
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.M)
            assert anchor in {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}, target


@pytest.mark.parametrize("text", pages())
def test_names_of_the_package_resolve(text):
    for dotted in re.findall(r"\bfucina(?:\.[A-Za-z_]\w*)+", text):
        if dotted.endswith((".svg", ".py")):
            continue
        module, *rest = dotted.split(".")
        found: Any = importlib.import_module(module)
        for name in rest:
            if not hasattr(found, name) and isinstance(found, ModuleType):
                importlib.import_module(f"{found.__name__}.{name}")
            found = getattr(found, name)


@pytest.mark.parametrize("text", pages(without=("performance.md",)))
def test_classes_exist(text):
    names = {word.split("(")[0] for word in quoted(text)}
    camel = {n for n in names if re.fullmatch(r"[A-Z][a-z]+(?:[A-Z][a-z]+)+(?:\.\w+)*", n)}
    unknown = {n for n in camel if not {*n.split(".")} <= defined() | ELSEWHERE}
    assert not unknown


@pytest.mark.parametrize("text", pages())
def test_nothing_is_named_that_is_gone(text):
    assert [name for name in GONE if re.search(rf"(?<![\w/]){re.escape(name)}(?!\w)", text)] == []


def test_every_page_is_listed():
    listed = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in PAGES if page.name != "README.md" and f"({page.name})" not in listed] == []


def test_the_glossary_is_sorted_and_every_term_has_a_file():
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \*\*(.+?)\*\* \| (.+) \| (.+) \|$", text, re.M)
    terms = [term.lower() for term, _, _ in rows]
    assert len(terms) >= 20 and terms == sorted(set(terms))
    assert [term for term, _, where in rows if "`" not in where] == []


def test_terms_in_italics_are_in_the_glossary():
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    terms = {term.lower() for term in re.findall(r"^\| \*\*(.+?)\*\*", text, re.M)}
    for page in ("architecture.md", "families.md"):
        used = re.findall(r"(?<![*\w])\*(\w[\w -]*)\*(?!\*)", (ROOT / "docs" / page).read_text(encoding="utf-8"))
        words = {word.lower() for word in used} - {"italics"}
        assert {word for word in words if not {word, word[:-1], word[:-2]} & terms} == set(), page


def test_the_length_of_the_loop_is_what_the_page_says():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    command = re.search(r"^wc -l ((?:.|\n)*?)```", text, re.M)
    said = re.search(r"^About ([\d,]+) lines in (\d+) files", text, re.M)
    assert command and said
    files = []
    for word in command[1].replace("\\\n", " ").split():
        before, _, rest = word.partition("{")
        names, _, after = rest.partition("}")
        files += [ROOT / f"{before}{name}{after}" for name in names.split(",")]
    lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
    assert len(files) == int(said[2])
    assert lines == pytest.approx(int(said[1].replace(",", "")), rel=0.05)


# --- figures that follow from the cost table --------------------------------------------------------------------------


def test_the_prompt_of_the_walk_takes_as_many_passes_as_the_page_says():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    passes = re.search(r"^\| (\d+) \| 1 \| 1 \| tokens \d+ to 299 \|", text, re.M)
    first = re.search(r"^\| 1 \| 1 \| 1 \| tokens 0 to (\d+) \|", text, re.M)
    share = PrefillShare(PREFILL_STRETCH)
    rows = share.rows(2, MAX_ROWS, [150])
    assert passes and first
    remedy = "costs or stretch have changed: update the walk in docs/architecture.md"
    assert (math.ceil(300 / rows), rows) == (int(passes[1]), int(first[1]) + 1), remedy


def test_costs_on_the_page_are_those_of_the_table():
    text = (ROOT / "docs" / "speculation.md").read_text(encoding="utf-8")
    found = re.search(r"^\| rows \| (.+) \|\n.*\n\| C \| (.+) \|$", text, re.M)
    assert found
    rows, costs = ([float(x) for x in line.split("|")] for line in found.groups())
    table = [round(default_table().cost(int(n), 128), 2) for n in rows]
    remedy = "the cost table has changed: update 'Other ways to draft' in docs/speculation.md, its arguments too"
    assert costs == pytest.approx(table, rel=0.005), remedy


# --- the family of families.md ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """The family that families.md shows, as a module, known to `fucina.load`; and a file of it with random weights."""
    text = (ROOT / "docs" / "families.md").read_text(encoding="utf-8")
    shown = re.search(r"^```python\n(.*?)^```", text, re.M | re.S)
    assert shown is not None
    folder: Path = tmp_path_factory.mktemp("family")
    (folder / "mapleleaf.py").write_text(shown[1], encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        module = importlib.import_module("mapleleaf")
        patch.setitem(FAMILIES, module.FAMILY.architecture, module.FAMILY)
        yield write_example(folder)
        del sys.modules["mapleleaf"]


def write_example(folder: Path):
    """A function that writes a file of the family, with a given scale of attention."""
    tiny = GgufFile(TINY / "llama.gguf")
    tensors = {
        name: (info.data.view(np.float32).reshape(info.shape), GgmlType.F32) for name, info in tiny.tensors.items()
    }
    width = len(tensors["blk.0.attn_q.weight"][0]) // tiny.metadata.int("llama.attention.head_count")
    for i in range(tiny.metadata.int("llama.block_count")):
        norm = np.linspace(0.5, 1.5, width, dtype=np.float32)
        tensors[f"blk.{i}.attn_q_norm.weight"] = (norm, GgmlType.F32)

    def write(scale: float) -> Path:
        keys: dict[str, Any] = {
            str(key).replace("llama.", "mapleleaf."): tiny.metadata.entry(key) for key in tiny.metadata
        }
        keys |= {"general.architecture": "mapleleaf", "mapleleaf.attention.scale": np.float32(scale)}
        path = folder / f"scale-{scale}.gguf"
        write_gguf(path, keys, tensors)
        return path

    return write


def test_the_family_of_the_page_runs_on_both_interpreters(example):
    ids = list(range(40, 60))
    naive, native = (fucina.load(example(0.3), backend=backend) for backend in ("naive", "native"))
    try:
        np.testing.assert_allclose(naive.logits(ids), native.logits(ids), atol=1e-4, rtol=0)
        plain, drafted = (native.generate(ids, max_tokens=8, speculative=drafts) for drafts in (False, True))
        assert str(plain) == str(drafted)
    finally:
        native.close()


def test_its_key_changes_what_is_computed(example):
    ids = list(range(40, 60))
    logits = [fucina.load(example(scale), backend="naive").logits(ids) for scale in (0.3, 0.5)]
    assert np.abs(logits[0] - logits[1]).max() > 1e-3
