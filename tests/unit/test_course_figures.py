"""Figures: well-formed, described in words, the same from run to run, and honest about bad input."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from course import figures
from course.build import notebook_paths
from course.figures.svg import LEAST, Figure, percent, printable

SVG = "{http://www.w3.org/2000/svg}"


def every_figure() -> dict[str, Figure]:
    return {
        "strip": figures.token_strip([" <the>", "\n", b"\xff", "\u4e2d"], [0.5, 0.25, 0.0001, 1.0], [1, 2, 3, 4]),
        "strip without numbers": figures.token_strip(["a"] * 120),
        "empty strip": figures.token_strip([]),
        "cache": figures.cache_rows(6, 10, rewind_to=3, again=2, labels=["The", " cat"]),
        "long cache": figures.cache_rows(0, 400),
        "block": figures.block_bytes([("scale", 2), ("minimum", 2), ("quants", 16)], 32, bytes(20)),
        "timeline": figures.accept_reject([(["a", "b"], 1, "c"), ([], 0, "d"), (["e"], 1, "f")]),
        "curves": figures.curves(
            [1, 2, 4], {"one": [1, math.nan, 3], "two": [3, 2, 1]}, "x", "y", "t", log_x=True, marks={"roof": 5}
        ),
        "flat curve": figures.curves([0, 1], {"zero": [0, 0]}),
        "log curve": figures.curves([1, 10, 1000], {"a": [1e-3, 1, 1e3]}, log_x=True, log_y=True),
        "passes": figures.pass_timeline(["Ada", "guest"], [{"Ada": 1}, {"Ada": 1, "guest": 12}, {}], "t"),
        "loop": figures.loop_states(
            [
                ("good", [3, 1, 4], [3, 1]),
                ("late", ["a", "b"], []),
                ("early", [" a"], [" a", "b"]),
                ("empty", [], []),
                ("other", [1, 2, 3], [1, 9]),
            ]
        ),
        "pool": figures.prefix_pool(
            {"slot 0": ["You", " are", " a", " cat"], "slot 1": ["You", " are", " <b>", "!"], "slot 2": []},
            ["You", " are", " <b>", " now", "?"],
        ),
        "pool of ids": figures.prefix_pool({"a": range(3), "b": range(4), "c": range(4)}, range(4), "Ids"),
        "pool at rest": figures.prefix_pool({"a": [b"x", b"\xff"], "free": []}),
        "bars": figures.bars({"a": 1, "b": 0}, "tok/s", "Speed", ("roof", 2.0)),
    }


@pytest.mark.parametrize("name", every_figure())
def test_is_well_formed_and_described(name: str) -> None:
    figure = every_figure()[name]
    tree = ElementTree.fromstring(figure.svg)
    assert tree.tag == f"{SVG}svg" and tree.get("role") == "img"
    assert tree.get("aria-label") == figure.alt == tree.find(f"{SVG}desc").text
    assert tree.find(f"{SVG}title").text
    bundle = figure._repr_mimebundle_()
    assert bundle["text/plain"] == figure.alt == repr(figure)
    assert figure.svg in bundle["text/html"]
    assert "prefers-color-scheme:dark" in figure.svg and "--jp-ui-font-color1" in figure.svg
    width, height = float(tree.get("width")), float(tree.get("height"))
    for element in tree.iter(f"{SVG}text"):
        assert -1 <= float(element.get("x")) <= width and 0 <= float(element.get("y")) <= height
        assert "fill" in element.attrib
    for element in tree.iter(f"{SVG}rect"):
        for key in ("width", "height"):
            if not element.get(key).endswith("%"):
                assert math.isfinite(float(element.get(key))) and float(element.get(key)) >= 0
    assert figure.svg == every_figure()[name].svg


def test_words_say_what_the_picture_says() -> None:
    shown = every_figure()
    assert "after truncate(3), 3 count and 3 are left over" in shown["cache"].alt
    assert "step 1: 1 of 2 drafts accepted, then correction c" in shown["timeline"].alt
    assert "then bonus f" in shown["timeline"].alt
    loop = shown["loop"].alt
    assert "good: 3 tokens in the history, 2 rows in the cache, the promise holds" in loop
    assert "late: 2 tokens in the history, 0 rows in the cache, 1 row too few" in loop
    assert "early: 1 tokens in the history, 2 rows in the cache, 2 rows too many" in loop
    assert "empty: 0 tokens in the history, 0 rows in the cache, 1 row too many" in loop
    assert "other: 3 tokens in the history, 2 rows in the cache, rows of other tokens" in loop
    pool = shown["pool"].alt
    assert "slot 0 holds You \u00b7are \u00b7a \u00b7cat, 2 of them shared with the request" in pool
    assert "slot 2 is free" in pool and "reuses 3 rows of slot 1 and prefills 2" in pool
    assert "A request of 4 tokens, 0 1 2 3, reuses 3 rows of b and prefills 1" in shown["pool of ids"].alt
    assert shown["pool at rest"].alt == "Pool of KV slots: a holds x \\xff; free is free."
    assert "5 bits per weight" in shown["block"].alt and "bytes 4 to 19" in shown["block"].alt
    assert "\u00b7<the> (50%)" in shown["strip"].alt and "(<0.1%)" in shown["strip"].alt


@pytest.mark.parametrize("request_ids", [[1], [2], [1, 2, 3], [1, 2, 9], [7, 8]])
def test_a_pool_reuses_rows_of_one_slot_and_runs_the_last_token(request_ids: list[int]) -> None:
    slots = {"a": [1, 2], "b": [1, 2, 3, 4], "c": []}
    figure = figures.prefix_pool(slots, request_ids)
    shared = max(
        len(request_ids[:n])
        for n in range(len(request_ids) + 1)
        if any(tokens[:n] == request_ids[:n] for tokens in slots.values())
    )
    reused = min(shared, len(request_ids) - 1)
    assert f"{reused} reused, {len(request_ids) - reused} prefilled" in figure.svg
    assert figure.svg.count(", chosen") == (1 if reused else 0)
    assert ("finds nothing to reuse" in figure.alt) == (reused == 0)


def test_bad_input_is_refused() -> None:
    for call in (
        lambda: figures.token_strip(["a"], [0.1, 0.2]),
        lambda: figures.cache_rows(5, 4),
        lambda: figures.cache_rows(4, 4, rewind_to=3, again=2),
        lambda: figures.block_bytes([("a", 2)], 2, b"1"),
        lambda: figures.accept_reject([(["a"], 2, "b")]),
        lambda: figures.curves([1], {"a": [1, 2]}),
        lambda: figures.curves([], {"a": []}),
        lambda: figures.curves([0, 1], {"a": [1, 2]}, log_x=True),
        lambda: figures.bars({}),
        lambda: figures.loop_states([]),
        lambda: figures.bars({"a": 0}),
        lambda: figures.prefix_pool({}),
        lambda: figures.prefix_pool({"a": ["x"]}, []),
        lambda: figures.slider(lambda n: figures.cache_rows(n, 9), n=(0, 4, 5)),
    ):
        with pytest.raises(ValueError):
            call()


def test_printable_and_percent() -> None:
    assert printable(" a\n\tb") == "\u00b7a\u21b5\u21e5b"
    assert printable(b"\xe2\x96") == "\\xe2\\x96"
    assert printable("\x00") == "\\u0000" and printable("") == "\u2205"
    assert [percent(p) for p in (0, 0.0002, 0.012, 0.5, 1)] == ["0.0%", "<0.1%", "1.2%", "50%", "100%"]


def test_slider_is_a_still_figure_where_no_kernel_listens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shown = figures.slider(lambda kept: figures.cache_rows(8, 8, rewind_to=kept), kept=(0, 8, 3))
    assert isinstance(shown, Figure) and "truncate(3)" in shown.alt
    shown.save(tmp_path / "a.svg")
    assert ElementTree.parse(tmp_path / "a.svg").getroot().get("aria-label") == shown.alt


def test_a_live_slider_draws_again_for_each_value(monkeypatch: pytest.MonkeyPatch) -> None:
    import IPython.display
    from ipywidgets import FloatSlider, IntSlider

    from course.figures import sliders

    shown: list[Figure] = []
    monkeypatch.delenv("FUCINA_STATIC", raising=False)
    monkeypatch.setattr(sliders, "_live", lambda: True)
    monkeypatch.setattr(IPython.display, "display", shown.append)
    box = figures.slider(
        lambda kept, part: figures.cache_rows(8, 8, rewind_to=int(kept * part)), kept=(0, 8, 3), part=(0.0, 1.0, 1.0)
    )
    kept, part, _ = box.children
    assert (type(kept), type(part)) == (IntSlider, FloatSlider) and "truncate(3)" in shown[-1].alt
    kept.value = 6
    assert "truncate(6)" in shown[-1].alt
    part.value = 0.5
    assert "truncate(3)" in shown[-1].alt and len(shown) == 3
    monkeypatch.setenv("FUCINA_STATIC", "1")
    assert isinstance(figures.slider(lambda kept: figures.cache_rows(8, 8, rewind_to=kept), kept=(0, 8, 3)), Figure)


def test_a_picture_is_as_wide_as_its_title():
    short, long = (figures.token_strip(["a"], title="x" * n) for n in (3, 90))
    assert 'width="160"' in short.svg
    width = int(re.search(r'viewBox="0 0 (\d+) ', long.svg).group(1))
    assert 700 < width < 900


def stored_figures() -> list[tuple[str, str]]:
    """Every figure that a notebook stores: where it stands, and the picture."""
    found = []
    for path in notebook_paths():
        for i, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
            for output in cell.get("outputs", []):
                picture = "".join(output.get("data", {}).get("image/svg+xml", ""))
                if picture:
                    found.append((f"{path.name}, cell {i}", picture))
    return found


def contrast(one: str, other: str) -> float:
    """How well two colours (#rrggbb) stand out from each other: from 1 to 21 (WCAG 2)."""

    def light(colour: str) -> float:
        parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


def test_stored_figures_can_be_read_in_both_themes_and_in_a_narrow_window() -> None:
    """Words take the theme's colours, or one that is seen on white and on black; nothing is drawn in black or white."""
    assert (shown := stored_figures())
    for where, picture in shown:
        tree = ElementTree.fromstring(picture)
        for text in tree.iter(f"{SVG}text"):
            fill = text.get("fill")
            assert fill.startswith("var(--") or min(contrast(fill, "#ffffff"), contrast(fill, "#212121")) >= 3, where
            assert float(text.get("font-size")) >= 10, where
        for element in [*tree.iter(f"{SVG}line"), *tree.iter(f"{SVG}path"), *tree.iter(f"{SVG}rect")]:
            for colour in (element.get("stroke"), element.get("fill")):
                assert colour not in ("#000", "#fff", "#000000", "#ffffff", "black", "white"), where
        width = float(tree.get("width"))
        assert f"min-width:{LEAST * width:.0f}px" in tree.get("style"), where


def test_words_on_lines_have_a_halo() -> None:
    drawn = figures.roofline({"slow": (0.5, 1.0)}, bandwidth=10, peak=50).svg
    for words in ("memory: ", "arithmetic: "):
        (label,) = re.findall(rf"<text [^>]*>{words}", drawn)
        assert 'paint-order="stroke"' in label and 'stroke="var(--paper)"' in label


@pytest.mark.parametrize(
    ("value", "words"),
    [(1.5216, "1.522"), (1265, "1265"), (11520, "11,500"), (1e4, "10,000"), (2e-7, "2e-07"), (3e12, "3e+12")],
)
def test_numbers_beside_an_axis_are_those_that_one_reads(value: float, words: str) -> None:
    assert figures.bars({"a": value}).alt.endswith(f"a {words}")
