"""The figures of chapters 01 and 03: levels of a block, bytes that are no weights, a layer."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from course import figures

SVG = "{http://www.w3.org/2000/svg}"


def test_grid_says_how_far_the_weights_move() -> None:
    figure = figures.quant_grid([0.0, 0.9, 2.1], [0.0, 1.0, 2.0], "Three weights")
    assert "3 weights from 0 to 2.1, 3 levels from 0 to 2" in figure.alt
    assert "error of 0.0816 (RMS)" in figure.alt  # sqrt((0.1 ** 2 + 0.1 ** 2) / 3)
    tree = ElementTree.fromstring(figure.svg)
    assert len(tree.findall(f"{SVG}line")) == 3 + 3 + 1  # levels, moves, legend


@pytest.mark.parametrize("levels", [[1.0], [float(i) for i in range(255)]])
def test_grid_stays_inside_its_frame(levels: list[float]) -> None:
    figure = figures.quant_grid([-3.0, 5.0], levels)
    tree = ElementTree.fromstring(figure.svg)
    height = float(tree.get("height"))
    for rect in tree.findall(f"{SVG}rect")[1:]:
        assert 0 <= float(rect.get("y")) <= height and float(rect.get("height")) > 0


def test_nothing_to_draw() -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        figures.quant_grid([], [1.0])


def test_bytes_that_are_no_weights() -> None:
    figure = figures.block_bytes([("magic", 4), ("version", 4)], None, b"GGUF\x03\0\0\0", "Start")
    assert figure.alt == "Start: magic, bytes 0 to 3; version, bytes 4 to 7. 8 bytes."
    assert "bits per weight" not in figure.svg


def test_layer_names_its_shapes() -> None:
    figure = figures.transformer_layer(576, 9, 3, 64, 1536)
    tree = ElementTree.fromstring(figure.svg)
    words = [element.text for element in tree.iter(f"{SVG}text")]
    assert words.count("[m, 3 x 64]") == 2 and words.count("[m, 1536]") == 3
    width, height = float(tree.get("width")), float(tree.get("height"))
    for element in tree.iter(f"{SVG}text"):
        assert 0 <= float(element.get("x")) <= width and 0 <= float(element.get("y")) <= height
    assert "k and v go into the cache" in figure.alt
