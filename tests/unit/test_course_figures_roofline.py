"""Figures of chapter 20."""

from __future__ import annotations

import re

from course import figures


def svg(figure: figures.Figure) -> str:
    return str(figure._repr_mimebundle_()["image/svg+xml"])


def test_layouts_number_every_place_once_in_each_panel() -> None:
    drawn = svg(figures.lanes_layout(rows=3, cols=4))
    for place in range(12):
        assert len(re.findall(rf">{place}</text>", drawn)) == 2


def test_roofline_tells_how_much_is_possible() -> None:
    figure = figures.roofline({"slow": (0.5, 1.0), "fast": (8.0, 40.0)}, bandwidth=10, peak=50)
    assert "slow: 1 of 5 possible" in repr(figure) or "slow: 1 of 5 possible" in svg(figure)
    assert "fast: 40 of 50 possible" in svg(figure)


def test_points_lie_inside_the_frame() -> None:
    drawn = svg(figures.roofline({"a": (0.1, 0.01), "b": (100.0, 90.0)}, bandwidth=10, peak=50))
    places = [(float(x), float(y)) for x, y in re.findall(r'<rect x="([\d.-]+)" y="([\d.-]+)" width="16.0"', drawn)]
    assert len(places) == 2
    assert all(62 <= x <= 540 and 52 <= y <= 350 for x, y in places)
