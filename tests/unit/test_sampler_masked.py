"""Under a mask the sampler looks at as little as it can: the same tokens as a scan of the whole masked row."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fucina.errors import AllTokensMasked, InvalidOption, NonFiniteLogits
from fucina.kernels.sieve import siever
from fucina.sampling import AllowTokens, BiasTokens, Sampler, SamplerOptions, compose
from fucina.sampling.reference import choose, penalise, sieve


def mask_of(ids, words):
    bits = np.zeros(32 * words, bool)
    bits[list(ids)] = True
    return np.packbits(bits, bitorder="little").view(np.uint32)


class Masked:
    """Says which ids are allowed."""

    def __init__(self, ids, words=None):
        self.ids = set(map(int, ids))
        self._mask = mask_of(ids, max(self.ids, default=0) // 32 + 1 if words is None else words)
        self.committed, self.asked, self.masks = [], [], 0

    def mask(self):
        self.masks += 1
        return self._mask

    def permits(self, token):
        self.asked.append(token)
        return token in self.ids

    def process(self, logits, history):
        raise AssertionError("the row need not be masked")

    def commit(self, token):
        self.committed.append(token)


OPTIONS = st.builds(
    SamplerOptions,
    temperature=st.sampled_from([0.0, 0.0, 0.3, 1.0, 2.5, 1e-3, 1e6]),
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
    vocab=st.sampled_from([1, 7, 32, 100, 500]),
    seed=st.integers(0, 2**32 - 1),
    share=st.sampled_from([0.003, 0.05, 0.5, 0.97, 1.0]),
    ties=st.booleans(),
    biased=st.booleans(),
)
def test_the_same_token_and_the_same_draws(options, vocab, seed, share, ties, biased):
    r = np.random.default_rng(seed)
    row = (r.integers(-3, 4, vocab) if ties else 3 * r.standard_normal(vocab)).astype(np.float32)
    row[r.random(vocab) < 0.1] = -np.inf
    ids = np.flatnonzero(r.random(vocab) < share)
    history = r.integers(0, vocab + 20, 50).tolist()
    bias = BiasTokens({int(r.integers(vocab)): 2.5, int(r.integers(vocab)): -np.inf}) if biased else None
    processors = Masked(ids), AllowTokens(ids.tolist())
    quick, masked = (Sampler(options, compose(bias, processor)) for processor in processors)
    before = row.copy()
    left = np.full(vocab, -np.inf, np.float32)
    left[ids] = row[ids]
    if bias is not None:
        bias.process(left, ())
    if not np.isfinite(left).any():
        for sampler in (quick, masked):
            with pytest.raises(AllTokensMasked):
                sampler.next(row, history)
        return
    for _ in range(3):
        position = quick.rng.position
        token = quick.next(row, history)
        assert token == masked.next(row, history) and quick.rng.position == masked.rng.position
        assert isinstance(token, int) and (row == before).all()
        if not options.greedy:  # and what the definition says
            copy = left.copy()
            penalise(copy, history, options)
            masked.rng.position = position
            assert token == choose(copy, options, masked.rng.peek())
            masked.rng.position = position + 1
        history.append(token)
    assert processors[0].committed == history[50:]


@given(
    vocab=st.sampled_from([1, 31, 32, 33, 64, 100, 257]),
    words=st.integers(0, 9),
    seed=st.integers(0, 2**32 - 1),
    share=st.sampled_from([0.0, 0.02, 0.5, 1.0]),
    whole=st.booleans(),
    in_place=st.booleans(),
)
def test_the_kernel_is_its_definition(vocab, words, seed, share, whole, in_place):
    r = np.random.default_rng(seed)
    row = r.standard_normal(vocab).astype(np.float32)
    mask = np.packbits(r.random(32 * words) < share, bitorder="little").view(np.uint32)
    if whole and words:
        mask[r.integers(words)] = 0xFFFFFFFF
    expected = sieve(row, mask)
    kept = np.flatnonzero(np.isfinite(expected))
    for most in {0, len(kept) - 1, len(kept), vocab} - {-1}:
        room = 3  # beyond what may be written
        ids = np.full(most + room, -7, np.int64)
        out = np.full(vocab + room, 7, np.float32)
        given_row = row.copy()
        if in_place:
            out[:vocab] = given_row
            given_row = out[:vocab]
        assert siever()(given_row, mask, most, ids[:most], out[:vocab]) == len(kept)
        if len(kept) <= most:
            assert ids[: len(kept)].tolist() == kept.tolist() and (out[: len(kept)] == row[kept]).all()
        else:
            assert (out[:vocab] == expected).all()
        assert (ids[most:] == -7).all() and (out[vocab:] == 7).all()
        assert in_place or (given_row == row).all()


def test_greedy_asks_for_a_mask_only_where_the_best_tokens_are_refused():
    row = np.arange(100, dtype=np.float32)
    for ids, expected, masks in (([3, 99], 99, 0), ([3, 98], 98, 0), ([92, 93], 93, 0), ([3, 91], 91, 1), ([0], 0, 1)):
        processor = Masked(ids)
        assert Sampler(processor=processor).next(row) == expected
        assert processor.asked == list(range(99, max(expected, 92) - 1, -1)) and processor.masks == masks
    processor = Masked(range(100))
    Sampler(SamplerOptions(temperature=1.0), processor).next(row)
    assert processor.asked == [] and processor.masks == 1
    processor = Masked([97, 98])
    penalised = SamplerOptions(repeat_penalty=2.0)
    assert Sampler(penalised, processor).next(row, [99]) == 98  # 98 is the best of the penalised row
    assert processor.masks == 0


def test_large_vocabularies_and_few_candidates():
    r = np.random.default_rng(5)
    row = (4 * r.standard_normal(49_152)).astype(np.float32)
    for n in (1, 2, 40, 6000, 6144, 6145, 49_000, 49_152):
        ids = np.sort(r.choice(len(row), n, replace=False))
        for options in ({}, {"temperature": 0.9}, {"temperature": 1.2, "top_p": 0.9}, {"temperature": 1, "top_k": 10}):
            quick = Sampler(SamplerOptions(seed=n, **options), Masked(ids))
            masked = Sampler(SamplerOptions(seed=n, **options), AllowTokens(ids.tolist()))
            assert [quick.next(row) for _ in range(20)] == [masked.next(row) for _ in range(20)]


def test_what_cannot_be_chosen_is_told_by_its_id():
    for options in (SamplerOptions(), SamplerOptions(temperature=1.0)):
        row = np.zeros(50, np.float32)
        row[33] = np.nan
        with pytest.raises(NonFiniteLogits, match="logit 33"):
            Sampler(options, Masked([3, 33])).next(row)
        with pytest.raises(NonFiniteLogits, match="logit 33"):
            Sampler(options, Masked(range(1, 50))).next(row)
        assert Sampler(options, Masked([3])).next(row) == 3  # what is masked is not looked at
        with pytest.raises(AllTokensMasked, match="none of 50"):
            Sampler(options, Masked([])).next(row)
        row[33] = np.inf
        with pytest.raises(NonFiniteLogits, match="logit 33"):
            Sampler(options, Masked([3, 33])).next(row)
        assert Sampler(options, Masked([4, 70])).next(row) == 4  # ids beyond the row
        assert Sampler(options, Masked([4])).next(row) == 4  # a mask that is shorter than the row


@pytest.mark.parametrize("mask", [None, [1, 2], np.ones(4, bool), np.ones(4, np.int32), np.ones((2, 2), np.uint32)])
def test_what_is_no_mask_is_refused(mask):
    processor = Masked([1])
    processor.mask, processor.permits = (lambda: mask), (lambda token: False)
    with pytest.raises(InvalidOption, match="uint32"):
        Sampler(processor=processor).next(np.zeros(100, np.float32))


def test_only_the_last_processor_may_mask():
    class Both(Masked):
        def process(self, logits, history):
            AllowTokens(list(self.ids)).process(logits, history)

    row = np.zeros(10, np.float32)
    assert Sampler(processor=compose(AllowTokens([4, 5]), Both([3, 4]))).next(row) == 4
    assert Sampler(processor=compose(Both([3, 4]), AllowTokens([4, 5]))).next(row) == 4
    assert Sampler(processor=compose(Both([3, 4]), Masked([4, 5]))).next(row) == 4


def test_a_processor_whose_mask_is_something_else_is_an_ordinary_one():
    class Old:
        mask, permits = np.ones(3, bool), None

        def process(self, logits, history):
            logits[0] = -1

        def commit(self, token):
            pass

    assert Sampler(processor=Old()).next(np.zeros(3, np.float32)) == 1
