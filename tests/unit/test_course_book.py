"""The book: built once from what is stored, then looked at as files."""

import json
import re
import warnings
from types import SimpleNamespace

import pytest

from course.book import command, links, pages
from course.book.contract import as_markdown, escape, fenced, signature
from course.book.exercise import anchor
from course.bootstrap import BOOK, GROUPS, TEST
from course.catalogue import Course
from course.files import FilesError
from course.platform import parser

COURSE = Course()
NOTEBOOKS = sorted((COURSE.root / "notebooks").glob("[0-9][0-9]_*.ipynb"))


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """The whole book, and what its making complained about."""
    folder = tmp_path_factory.mktemp("book") / "site"
    with warnings.catch_warnings():  # packages that it is made with use old ways of one another: not ours to mend
        warnings.simplefilter("ignore")
        complaints = command.build(COURSE, folder)
    texts = {p.relative_to(folder).as_posix(): p.read_text(encoding="utf-8") for p in folder.rglob("*.html")}
    return SimpleNamespace(folder=folder, complaints=complaints, texts=texts)


def test_nothing_in_it_is_amiss_and_every_link_leads_somewhere(book):
    assert book.complaints == []
    assert links.broken(book.folder) == []


def test_every_chapter_and_every_page_of_the_docs_is_in_it(book):
    assert {f"chapters/{p.stem}.html" for p in NOTEBOOKS} <= set(book.texts)
    assert {f"docs/{p.stem}.html" for p in (COURSE.root / "docs").glob("*.md")} <= set(book.texts)
    index = book.texts["index.html"]
    assert all(f'href="chapters/{p.stem}.html"' in index for p in NOTEBOOKS)


def test_nothing_is_loaded_from_a_network(book):
    for path in book.folder.rglob("*"):
        if path.suffix in (".css", ".js", ".html"):
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"cdn\.|unpkg|googleapis|jsdelivr|cloudflare", text), path
            assert not re.search(r"@import|url\(['\"]?(https?:)?//", text), path
    assert "<math" in book.texts["chapters/01_model_files_and_blocks.html"]


def test_every_exercise_of_a_notebook_has_its_contract_hints_and_solution_in_folds(book):
    stored = [p.read_text(encoding="utf-8") for p in NOTEBOOKS]
    placed = 0
    for chapter, exercise in COURSE.all():
        holders = [text for text in book.texts.values() if f'id="{anchor(exercise.name)}"' in text]
        assert len(holders) == any(re.search(rf"%%exercise {exercise.name}\b", t) for t in stored), exercise.name
        if not holders:
            continue
        placed += 1
        part = holders[0].split(f'id="{anchor(exercise.name)}"')[1].split("Our solution: only after yours")[0]
        total = len(exercise.hints)
        titles = re.findall(r"<summary>(Hint \d of \d)</summary>", part)
        assert titles == [f"Hint {i} of {total}" for i in range(1, total + 1)], exercise.name
        assert f"exercises/{chapter.file_name}" in part
    assert placed > 30
    assert [name for name, text in book.texts.items() if "<details open" in text] == []


def test_outputs_that_answer_a_question_are_folded(book):
    for path in NOTEBOOKS:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        page = pages.chapter_page(COURSE, notebook, set())
        hidden = [c for c in page["cells"] if "hide-output" in c["metadata"].get("tags", []) and c["outputs"]]
        asked = [c for c in notebook["cells"] if c["cell_type"] == "code" and pages.answers(c) and c["outputs"]]
        assert len(hidden) >= len(asked)
        assert book.texts[f"chapters/{path.stem}.html"].count('<details class="admonition hide below-input') == len(
            hidden
        )


def code(source, **metadata):
    return {"cell_type": "code", "source": source, "metadata": metadata, "outputs": [{"output_type": "stream"}]}


def said(text):
    return {"cell_type": "markdown", "source": text, "metadata": {}}


@pytest.mark.parametrize(
    ("cells", "hidden"),
    [
        ([said("Text."), code("1")], [False]),
        ([said("**Predict.** How many?"), code("1"), code("2")], [True, False]),
        ([said("**Predict.** How many?"), code('predict("05.a", ...)'), code('truth("05.a", 3)')], [False, True]),
        ([said("**Predict.** How many?"), code('predict("05.a", ...)'), code("3")], [False, True]),
        ([said("Text."), code("1", jupyter={"outputs_hidden": True})], [True]),
        ([said("**Predict.** Say it."), said("More text."), code("1")], [False]),
    ],
)
def test_which_outputs_are_folded(cells, hidden):
    page = pages.chapter_page(COURSE, {"cells": cells, "metadata": {}}, set())
    tags = ["hide-output" in c["metadata"].get("tags", []) for c in page["cells"] if c["cell_type"] == "code"]
    assert tags == hidden


def test_quotes_of_contracts_stay_those_of_python(book):
    text = book.texts["chapters/11_constrained_decoding.html"]
    assert 'pieces[i] is the text of token i; b""' in text.replace("&quot;", '"')
    assert not re.search("[\u201c\u201d\u2019]", "".join(re.findall(r'<div class="exercise.*?</pre>', text, re.S)))


def test_search_knows_the_words_of_the_chapters(book):
    index = (book.folder / "searchindex.js").read_text(encoding="utf-8")
    words = json.loads(index.removeprefix("Search.setIndex(").removesuffix(")"))["terms"]
    assert {"token", "rewind", "draft"} <= set(words)
    options = (book.folder / "_static" / "documentation_options.js").read_text(encoding="utf-8")
    assert "SHOW_SEARCH_SUMMARY: false" in options  # it fetches pages, which browsers refuse for files


def test_words_of_the_glossary_are_linked(book):
    linked = [name for name, text in book.texts.items() if "glossary.html#term-" in text]
    assert any(name.startswith("chapters/") for name in linked) and "docs/architecture.html" in linked


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(FilesError, match="holds something that is no book"):
        command.build(COURSE, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_the_command_has_a_group_of_its_own():
    assert GROUPS["book"] == BOOK and set(BOOK) <= set(TEST)
    arguments = parser().parse_args(["book", "--out", "somewhere", "--open"])
    assert (str(arguments.out), arguments.open) == ("somewhere", True)


def test_links_that_lead_nowhere_are_found(tmp_path):
    (tmp_path / "index.html").write_text(
        '<a href="gone.html">a</a><a href="#nothing">b</a><a href="other.html#there">c</a>'
        '<a href="other.html#gone">d</a><img src="https://example.org/x.png"><p id="x"></p><p id="x"></p>'
    )
    (tmp_path / "other.html").write_text('<p id="there"></p>')
    assert links.broken(tmp_path) == [
        "index.html: two places are called #x",
        "index.html: loads https://example.org/x.png from elsewhere",
        "index.html: gone.html leads to no file",
        "index.html: #nothing leads to a page without #nothing",
        "index.html: other.html#gone leads to a page without #gone",
    ]


CONTRACT = """Take `n` rows_of * x.

Parameters
----------
cache : ToyCache [m, dim]
    Has `rows`.
    Two lines.
n : int

Returns
-------
int
    How many.

Examples
--------
>>> f(1)
2
"""


def test_contracts_become_markdown():
    text = as_markdown(CONTRACT)
    assert r"Take `n` rows\_of \* x." in text
    assert "`cache`: ToyCache \\[m, dim\\]\n: Has `rows`.\n  Two lines." in text
    assert "`n`: int" in text and "`int`\n: How many." in text
    assert "```pycon\n>>> f(1)\n2\n```" in text


def test_code_and_signs_survive():
    assert escape("a < b, `x * y`") == r"a \< b, `x * y`"
    assert escape("-inf, x-inf") == '<span class="whole">-inf</span>, x-inf'
    assert fenced("a\n```\nb").startswith("````python\n")
    text = "def f(\n    a,\n    b,\n):\n    'Doc.'\n    return 1\n"
    assert signature(text) == "def f(\n    a,\n    b,\n):"
