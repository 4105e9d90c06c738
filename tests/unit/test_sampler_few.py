"""Where few tokens are allowed the sampler looks at these alone: the same tokens as a scan of the masked row."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fucina.errors import AllTokensMasked, NonFiniteLogits
from fucina.sampling import AllowTokens, Sampler, SamplerOptions, compose
from fucina.sampling.reference import choose, penalise


class Few:
    """Says which few ids are allowed."""

    def __init__(self, ids):
        self.ids, self.committed = np.array(sorted(ids), np.int64), []

    def allowed(self):
        return self.ids

    def process(self, logits, history):
        raise AssertionError("the row need not be masked")

    def commit(self, token):
        self.committed.append(token)


OPTIONS = st.builds(
    SamplerOptions,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5, 1e-3, 1e6]),
    top_k=st.sampled_from([0, 1, 2, 5, 40, 300]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    repeat_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    frequency_penalty=st.sampled_from([0.0, 0.5, -0.5]),
    presence_penalty=st.sampled_from([0.0, 0.4]),
    repeat_last_n=st.sampled_from([0, 3, 64]),
    seed=st.integers(0, 2**64 - 1),
)


@given(
    options=OPTIONS,
    vocab=st.sampled_from([1, 7, 100, 500]),
    seed=st.integers(0, 2**32 - 1),
    share=st.sampled_from([0.003, 0.05, 0.5, 1.0]),
    ties=st.booleans(),
)
def test_the_same_token_and_the_same_draws(options, vocab, seed, share, ties):
    r = np.random.default_rng(seed)
    row = (r.integers(-3, 4, vocab) if ties else 3 * r.standard_normal(vocab)).astype(np.float32)
    row[r.random(vocab) < 0.1] = -np.inf
    ids = np.flatnonzero(r.random(vocab) < share)
    history = r.integers(0, vocab + 20, 50).tolist()
    few, masked = Sampler(options, Few(ids)), Sampler(options, AllowTokens(ids.tolist()))
    if not np.isfinite(row[ids]).any():
        for sampler in (few, masked):
            with pytest.raises(AllTokensMasked):
                sampler.next(row, history)
        return
    for _ in range(3):
        position = few.rng.position
        token = few.next(row, history)
        assert token == masked.next(row, history) and few.rng.position == masked.rng.position
        assert isinstance(token, int)
        if not options.greedy:  # and what the definition says
            copy = np.full(vocab, -np.inf, np.float32)
            copy[ids] = row[ids]
            penalise(copy, history, options)
            masked.rng.position = position
            assert token == choose(copy, options, masked.rng.peek())
            masked.rng.position = position + 1
        history.append(token)
    assert few.processor.committed == history[50:]


def test_large_vocabularies_and_few_candidates():
    r = np.random.default_rng(5)
    row = (4 * r.standard_normal(49_152)).astype(np.float32)
    for n in (1, 2, 40, 6000):
        ids = np.sort(r.choice(len(row), n, replace=False))
        for options in ({}, {"temperature": 0.9}, {"temperature": 1.2, "top_p": 0.9}, {"temperature": 1, "top_k": 10}):
            few = Sampler(SamplerOptions(seed=n, **options), Few(ids))
            masked = Sampler(SamplerOptions(seed=n, **options), AllowTokens(ids.tolist()))
            assert [few.next(row) for _ in range(20)] == [masked.next(row) for _ in range(20)]


def test_what_cannot_be_chosen_is_told_by_its_id():
    row = np.zeros(50, np.float32)
    row[33] = np.nan
    with pytest.raises(NonFiniteLogits, match="logit 33"):
        Sampler(processor=Few([3, 33])).next(row)
    assert Sampler(processor=Few([3, 4])).next(row) == 3  # what is masked is not looked at
    with pytest.raises(AllTokensMasked, match="none of 50"):
        Sampler(processor=Few([])).next(row)
    assert Sampler(processor=Few([4, 70])).next(row) == 4  # ids beyond the row


def test_a_composition_masks_the_row():
    class Both(Few):
        def process(self, logits, history):
            AllowTokens(self.ids).process(logits, history)

    both = Both([3, 4])
    row = np.zeros(10, np.float32)
    assert Sampler(processor=compose(AllowTokens([4, 5]), both)).next(row) == 4
