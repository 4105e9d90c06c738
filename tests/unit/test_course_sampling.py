"""Chapter 04's pieces, put together in the engine's order, are the engine's sampler: same tokens, same draws."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course.catalogue import Course
from fucina.sampling import BanTokens, Sampler, SamplerOptions


def solved() -> SimpleNamespace:
    chapter = next(c for c in Course().chapters() if c.chapter == "ch04")
    scope = {"__name__": "ch04"}
    exec(compile(chapter.solved(), chapter.file_name, "exec"), scope)
    return SimpleNamespace(**scope)


PIECES = solved()


def next_token(rng, row, history, o, processor):
    """The pipeline as the notebook assembles it."""
    row = np.array(row, np.float32)
    processor.process(row, history)
    row = PIECES.penalise(
        row, history, o.repeat_last_n, o.repeat_penalty, o.frequency_penalty, o.presence_penalty
    ).astype(np.float32)
    if o.temperature <= 0:
        return PIECES.draw([int(row.argmax())], [1.0], rng, greedy=True)
    if o.top_k:
        row[np.argsort(-row, kind="stable")[o.top_k :]] = -np.inf
    p = PIECES.softmax(row, o.temperature)
    ids = min(PIECES.top_p(p, o.top_p), PIECES.min_p(p, o.min_p), key=len)
    return PIECES.draw(ids, p[ids], rng)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**64 - 1),
    st.sampled_from([2, 7, 300]),
    st.fixed_dictionaries(
        {
            "temperature": st.sampled_from([0.0, 0.3, 1.0, 2.0]),
            "top_k": st.sampled_from([0, 1, 3, 40]),
            "top_p": st.sampled_from([0.0, 0.33, 0.9, 1.0]),
            "min_p": st.sampled_from([0.0, 0.07, 1.0]),
            "repeat_penalty": st.sampled_from([1.0, 1.3]),
            "frequency_penalty": st.sampled_from([0.0, 0.4]),
            "presence_penalty": st.sampled_from([0.0, 0.3]),
            "repeat_last_n": st.sampled_from([0, 3, 64]),
        }
    ),
)
def test_the_pieces_are_the_sampler(seed, n, recipe):
    options = SamplerOptions(seed=seed, **recipe)
    random = np.random.default_rng(seed)
    engine, rng = Sampler(options, BanTokens([0])), PIECES.CounterRng(seed)
    history = [1]
    for _ in range(12):
        row = (4 * random.standard_normal(n)).astype(np.float32)
        row[-1] = row[-2]  # a tie
        want = engine.next(row, history)
        assert next_token(rng, row, history, options, PIECES.Ban([0])) == want
        assert rng.position == engine.rng.position
        history.append(want)


@pytest.mark.parametrize(("row", "kept"), [([2, 2, 1, 0], {0.3: [0], 0.5: [0, 1], 0.8: [0, 1, 2]})])
def test_ties_and_the_crossing_entry(row, kept):
    p = PIECES.softmax(np.array(row, np.float32), 1.0)
    for mass, ids in kept.items():
        assert PIECES.top_p(p, mass).tolist() == ids
    assert PIECES.min_p(p, 1.0).tolist() == PIECES.min_p(p, 0.4).tolist() == [0, 1]
