"""The watermark: seen with its key, unseen without, and no more than a processor to everything else."""

import math

import numpy as np
import pytest

from fucina.errors import InvalidSamplerOption
from fucina.sampling import BanTokens, Sampler, SamplerOptions, Watermark, compose, watermark_score

VOCAB = 500


def write(processor, n=200, seed=1):
    """A text of a model whose logits depend on the last token only."""
    generator = np.random.default_rng(7)
    table = generator.normal(size=(VOCAB, VOCAB)).astype(np.float32)
    sampler, text = Sampler(SamplerOptions(temperature=1.0, seed=seed), processor), [3]
    for _ in range(n):
        text.append(sampler.next(table[text[-1]], text))
    return text


@pytest.mark.parametrize("context", [1, 2, 4])
def test_only_the_key_sees_it(context):
    mark = Watermark(12345, context=context)
    text = write(mark)
    assert watermark_score(text, mark) > 6
    assert abs(watermark_score(text, Watermark(12346, context=context))) < 4
    assert abs(watermark_score(write(None), mark)) < 4
    assert watermark_score(write(Watermark(12345, bias=0.0, context=context)), mark) < 4


def test_greens():
    mark = Watermark(9, green=0.3)
    greens = mark.greens([4, 5], 20_000)
    assert abs(greens.mean() - 0.3) < 0.02
    assert [mark.is_green([4, 5], t) for t in range(50)] == greens[:50].tolist()
    assert (greens == mark.greens([9, 5], 20_000)).all()  # one token of context decides
    assert (greens != mark.greens([5, 4], 20_000)).any()


def test_it_only_adds_its_bias():
    mark, logits = Watermark(1, bias=1.5, context=2), np.linspace(-1, 1, 64, dtype=np.float32)
    row = logits.copy()
    mark.process(row, [7])  # too little stands before
    assert (row == logits).all()
    mark.process(row, [7, 8])
    assert set(np.unique((row - logits).round(5))) == {0.0, 1.5}
    banned = compose(mark, BanTokens(range(1, 64)))
    assert Sampler(SamplerOptions(temperature=1.0), banned).next(logits, [7, 8]) == 0


def test_repeated_phrases_are_no_new_evidence():
    mark = Watermark(3)
    text = write(mark, 20)
    assert watermark_score(text * 10, mark) < watermark_score(text, mark) * 1.5
    assert watermark_score([5], mark) == 0.0 and watermark_score([], mark) == 0.0


@pytest.mark.parametrize(
    "name, value",
    [
        ("key", -1),
        ("key", 1 << 64),
        ("key", 1.5),
        ("bias", math.nan),
        ("bias", -1.0),
        ("green", 0.0),
        ("green", 1.0),
        ("context", 0),
    ],
)
def test_bad_settings_are_named(name, value):
    with pytest.raises(InvalidSamplerOption, match=f"^{name} must"):
        Watermark(**{"key": 1, name: value})
