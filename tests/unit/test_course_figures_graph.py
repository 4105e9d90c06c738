"""The figure of states and arrows: complete, inside its frame, nothing drawn over a state, honest about names."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from course import figures
from course.figures.svg import Figure

SVG = "{http://www.w3.org/2000/svg}"
PLACES = {"0": (0, 0), "1": (1, 0), "2": (2, 0), "3": (3, 0), "2'": (1.5, 1)}


def automaton() -> Figure:
    return figures.state_graph(
        PLACES,
        [("0", "1", "a"), ("1", "2", "b"), ("2", "3", "c"), ("0", "2'", "b"), ("0", "3", "c"), ("2'", "3", "c")],
        dashed=[("1", "0"), ("2", "2'"), ("2'", "0"), ("3", "0")],
        current="2'",
        double=["3"],
        title="Growing",
    )


def machine() -> Figure:
    places = {"ON": (0, 0), "OFF": (1, 0), "PROBE": (1, 1)}
    return figures.state_graph(
        places,
        [
            ("ON", "OFF", "rate < 1.0"),
            ("OFF", "PROBE", "128 steps"),
            ("PROBE", "ON", ""),
            ("PROBE", "OFF", "lost"),
            ("ON", "ON", "good"),
            ("ON", "ON", "better"),
        ],
    )


def words(figure: Figure) -> list[str]:
    return [element.text for element in ElementTree.fromstring(figure.svg).iter(f"{SVG}text")]


@pytest.mark.parametrize("make", [automaton, machine, lambda: figures.state_graph({"alone": (0, 0)}, [])])
def test_is_inside_its_frame(make) -> None:
    figure = make()
    assert figure.svg == make().svg
    tree = ElementTree.fromstring(figure.svg)
    assert tree.get("aria-label") == figure.alt == repr(figure)
    width, height = float(tree.get("width")), float(tree.get("height"))
    for element in tree.iter(f"{SVG}text"):
        assert 0 <= float(element.get("x")) <= width and 0 <= float(element.get("y")) <= height
    for rect in tree.findall(f"{SVG}rect")[1:]:
        assert float(rect.get("x")) >= 0 and float(rect.get("x")) + float(rect.get("width")) <= width
        assert float(rect.get("y")) >= 0 and float(rect.get("y")) + float(rect.get("height")) <= height
    for x, y in points(figure):
        assert 0 <= x <= width and 0 <= y <= height


def points(figure: Figure) -> list[tuple[float, float]]:
    """All points of all curves."""
    found = []
    for path in ElementTree.fromstring(figure.svg).iter(f"{SVG}path"):
        found += [tuple(map(float, pair.split())) for pair in re.split("[ML]", path.get("d")) if pair]
    return found


def test_arrows_run_over_no_state() -> None:
    figure = automaton()
    rects = ElementTree.fromstring(figure.svg).findall(f"{SVG}rect")
    boxes = [rect for rect in rects if rect.get("fill-opacity") == "0.14"]
    assert len(boxes) == len(PLACES) - 1
    for rect in boxes:
        left, top = float(rect.get("x")), float(rect.get("y"))
        right, bottom = left + float(rect.get("width")), top + float(rect.get("height"))
        middle = (left + right) / 2, (top + bottom) / 2
        for x, y in points(figure):
            assert (x - middle[0]) ** 2 + (y - middle[1]) ** 2 > (0.5 * (bottom - top)) ** 2


def test_ways_there_and_back_are_apart() -> None:
    figure = figures.state_graph({"a": (0, 0), "b": (2, 0)}, [("a", "b", "x"), ("b", "a", "y")])
    middle = list(ElementTree.fromstring(figure.svg).iter(f"{SVG}path"))
    heights = []
    for path in middle:
        ys = [float(pair.split()[1]) for pair in re.split("[ML]", path.get("d")) if pair]
        heights.append(ys[len(ys) // 2])
    assert len(heights) == 2 and abs(heights[0] - heights[1]) > 20


def test_words_say_what_the_picture_says() -> None:
    alt = automaton().alt
    assert alt.startswith("Growing. States: 0, 1, 2, 3 (double ring), 2' (current). Arrows: 0 to 1 on a; ")
    assert alt.endswith("Suffix links: 1 to 0; 2 to 2'; 2' to 0; 3 to 0")
    assert "PROBE to ON; PROBE to OFF on lost" in machine().alt
    shown = words(machine())
    assert "good, better" in shown and "current" not in shown and "suffix link" not in shown
    assert {"current", "suffix link", "2'"} <= set(words(automaton()))


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: figures.state_graph({}, []), "no states"),
        (lambda: figures.state_graph({"a": (0, 0), "b": (0, 0)}, []), "'a' and 'b' both stand at"),
        (lambda: figures.state_graph({"a": (0, 0)}, [("a", "z", "x")]), "no state 'z'"),
        (lambda: figures.state_graph({"a": (0, 0)}, [("y", "a", "x")]), "no state 'y'"),
        (lambda: figures.state_graph({"a": (0, 0)}, [], current="c"), "current: there is no state 'c'"),
        (lambda: figures.state_graph({"a": (0, 0)}, [], dashed=[("a", "d")]), "no state 'd'"),
        (lambda: figures.state_graph({"a": (0, 0)}, [], double=["e"]), "double: there is no state 'e'"),
    ],
)
def test_bad_input_is_refused_by_name(call, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        call()
