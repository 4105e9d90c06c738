"""Figures of chapter 12: a pool over time, blocks that are stored once, a file at the moments of a crash."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from course.figures.lanes import CONTINUED, COPIED, NEW, RESTORED, Step, pool_lanes
from course.figures.sharing import COUNTER, FRESH, GOOD, NOTHING, STALE, TORN, file_states, shared_blocks
from course.figures.svg import Figure

SVG = "{http://www.w3.org/2000/svg}"
STEPS = [
    Step("A1", "A", 0, NEW, 0, 12, 14),
    Step("B1", "<B>", 1, COPIED, 8, 13, 15, source=0),
    Step("A2", "A", 0, CONTINUED, 14, 20, 22),
    Step("C1", "C", 1, NEW, 0, 30, 32, dropped="<B>", spilled=True),
    Step("B2", "<B>", 0, RESTORED, 15, 21, 23, dropped="A", spilled=True),
    Step("C2", "C'", 1, COPIED, 9, 40, 42, source=1, dropped="C"),
]


def every_figure() -> dict[str, Figure]:
    tables = {f"talk {k}": [1, 2, 3, *([4] if k < 2 else []), f"own {k}"] for k in range(4)}
    moments = [
        ("before", [("4", COUNTER), ("a", GOOD), ("b", STALE), ("", NOTHING)], "reads 1"),
        ("a longer moment", [("4", COUNTER), ("a", GOOD), ("b", TORN), ("c<", FRESH)], "reads <1>"),
    ]
    return {
        "lanes": pool_lanes(STEPS, 2, "A <pool>"),
        "one lane": pool_lanes(STEPS[:1], 1),
        "disk at rest": pool_lanes(STEPS[:3], 2, disk=True),
        "blocks": shared_blocks(tables, 18, "Four talks"),
        "many blocks": shared_blocks({"a": range(60), "b": range(30)}, 90),
        "apart": shared_blocks({"a": [1, 2], "b": [1, 3], "c": [1, 2]}, 6),
        "no block": shared_blocks({"a": []}, 0),
        "file": file_states(moments),
    }


@pytest.mark.parametrize("name", every_figure())
def test_is_well_formed_and_described(name: str) -> None:
    figure = every_figure()[name]
    tree = ElementTree.fromstring(figure.svg)
    assert tree.get("aria-label") == figure.alt == tree.find(f"{SVG}desc").text
    width, height = float(tree.get("width")), float(tree.get("height"))
    for element in tree.iter(f"{SVG}text"):
        assert 0 <= float(element.get("x")) <= width and 0 <= float(element.get("y")) <= height
    for element in tree.iter(f"{SVG}rect"):
        if not element.get("width").endswith("%"):
            assert float(element.get("x")) >= 0
            assert float(element.get("x")) + float(element.get("width")) <= width + 0.1
            assert float(element.get("y")) + float(element.get("height")) <= height + 0.1
    assert figure.svg == every_figure()[name].svg


def test_words_say_what_the_picture_says() -> None:
    shown = every_figure()
    lanes = shown["lanes"].alt
    assert "A1 begins in slot 0: 0 of 12 tokens are there, 14 rows rest." in lanes
    assert "B1 begins in slot 1 with rows copied from slot 0: 8 of 13" in lanes
    assert "C1 begins in slot 1, where <B> goes to disk: 0 of 30" in lanes
    assert "B2 is read from disk into slot 0, where A goes to disk" in lanes
    assert "where C is dropped" in lanes
    assert ">disk<" in shown["lanes"].svg and ">disk<" not in shown["one lane"].svg
    assert ">disk<" in shown["disk at rest"].svg
    blocks = shown["blocks"]
    assert "8 blocks are stored, 4 of them shared. Without sharing: 18." in blocks.alt
    assert blocks.svg.count(">x 4<") == 3 and blocks.svg.count(">x 2<") == 1
    assert "talk 0: 5; talk 1: 5; talk 2: 4; talk 3: 4; 18 together" in blocks.alt
    apart = shown["apart"]
    assert "3 blocks are stored, 2 of them shared" in apart.alt
    assert apart.svg.count("the same one again") == 1 and "again" not in blocks.svg
    file = shown["file"].alt
    assert "before: 4 (the counter), a (counts), b (left over, not counted), - (nothing yet); reads 1" in file
    assert "b (torn)" in file and "c< (written just now)" in file


def test_bad_input_is_refused() -> None:
    for call in (
        lambda: pool_lanes([], 2),
        lambda: pool_lanes(STEPS, 1),
        lambda: shared_blocks({}, 0),
        lambda: file_states([]),
        lambda: file_states([("now", [("a", "odd")], "")]),
    ):
        with pytest.raises(ValueError):
            call()
