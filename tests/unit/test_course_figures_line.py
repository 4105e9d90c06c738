"""The line of candidates: whose stretch the draw hits, as the sampler would choose."""

from __future__ import annotations

import re

import numpy as np
import pytest

from course import figures


@pytest.mark.parametrize(
    ("weights", "u", "hit"),
    [
        ([0.5, 0.5], 0.0, "a"),
        ([0.5, 0.5], 0.49, "a"),
        ([0.5, 0.5], 0.5, "b"),  # a border belongs to the token that begins there
        ([0.5, 0.25], 0.6, "a"),  # weights that do not sum to 1 are stretched over the line
        ([0.5, 0.25], 0.7, "b"),
        ([1, 1, 2], 0.99, "c"),
        ([0.0, 1.0], 0.0, "b"),
    ],
)
def test_the_token_that_owns_the_point_is_hit(weights, u, hit) -> None:
    figure = figures.number_line(["a", "b", "c"][: len(weights)], weights, u)
    assert figure.alt.endswith(f"hits {hit}")
    running = np.cumsum(weights)
    assert "abc"[int(np.searchsorted(running, u * running[-1], side="right"))] == hit


def test_stretches_are_as_long_as_their_weights() -> None:
    figure = figures.number_line([" one", " two", " three"], [0.3, 0.2, 0.1], 0.9, "A draw")
    widths = [float(w) for w in re.findall(r'<rect x="[\d.]+" y="50.0" width="([\d.]+)"', figure.svg)]
    assert [round(w / widths[2], 1) for w in widths] == [3.0, 2.0, 1.0]
    assert figure.alt == "A draw: 3 tokens on a line, ·one, ·two, ·three; u = 0.90 hits ·three"


@pytest.mark.parametrize(
    ("tokens", "weights", "u", "words"),
    [
        (["a"], [0.5, 0.5], 0.1, "1 tokens, but 2 values"),
        (["a"], [1.0], 1.0, "less than 1"),
        ([], [], 0.1, "nothing to draw"),
        (["a"], [0.0], 0.1, "nothing to draw"),
    ],
)
def test_what_cannot_be_drawn_is_refused(tokens, weights, u, words) -> None:
    with pytest.raises(ValueError, match=words):
        figures.number_line(tokens, weights, u)
