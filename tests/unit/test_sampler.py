"""The sampler: exact small cases, its definition, and what it must refuse."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fucina.errors import AllTokensMasked, InvalidLogits, InvalidOption, InvalidSamplerOption, NonFiniteLogits
from fucina.kernels import softmax_weights
from fucina.sampling import BanTokens, BiasTokens, Sampler, SamplerOptions, reference
from fucina.sampling.rng import CounterRng

INF = math.inf


def row(*values):
    return np.array(values, dtype=np.float32)


def support(logits, **options):
    """The tokens that a sampler emits over evenly spread draws; they must be the reference's candidates."""
    options = SamplerOptions(temperature=options.pop("temperature", 1.0), **options)
    sampler = Sampler(options)
    drawn = {sampler.next(logits) for _ in range(400)}
    possible = set(np.flatnonzero(reference.distribution(logits, options)).tolist())
    assert drawn <= possible
    return possible


# --- exact cases ------------------------------------------------------------------------------------------------


def test_greedy_is_the_first_maximum_and_draws_nothing():
    sampler = Sampler()
    assert sampler.next(row(0.1, 0.2, 0.9, 0.3, 0.0)) == 2
    assert sampler.next(row(1, 7, 7, 7)) == 1
    assert sampler.next(row(1, 7, 7, 7)[None]) == 1
    assert sampler.rng.position == 0


def test_same_seed_same_draws_one_each():
    logits = row(0.1, 0.2, 0.9, 0.3, 0.0)
    options = SamplerOptions(temperature=0.8, top_k=3, seed=42)
    a, b = Sampler(options), Sampler(options)
    first = [a.next(logits) for _ in range(8)]
    assert first == [b.next(logits) for _ in range(8)]
    assert a.rng.position == b.rng.position == 8
    assert len(set(first)) > 1
    a.reset()
    assert first == [a.next(logits) for _ in range(8)]


def test_state_continues_a_stream():
    logits = np.random.default_rng(1).normal(size=50).astype(np.float32)
    sampler = Sampler(SamplerOptions(temperature=1.0, seed=7))
    [sampler.next(logits) for _ in range(5)]
    saved = sampler.state()
    rest = [sampler.next(logits) for _ in range(9)]
    other = Sampler(SamplerOptions(temperature=1.0, seed=999))
    other.restore(saved)
    assert [other.next(logits) for _ in range(9)] == rest
    for seed, position, field in ((1, -1, "position"), (1, 1.5, "position"), (1, None, "position"), (1, 1 << 64, "position"),
                                  (-1, 0, "seed"), ("7", 0, "seed")):  # fmt: skip
        with pytest.raises(InvalidSamplerOption, match=field):
            other.restore(type(saved)(seed, position))


def test_frequency_and_presence_penalties():
    """5,4,0,0 after 0,0,0,1 becomes 3.2, 3.2; the tie goes to id 0."""
    logits = row(5, 4, 0, 0)
    options = SamplerOptions(frequency_penalty=0.5, presence_penalty=0.3)
    penalised = logits.copy()
    reference.penalise(penalised, [0, 0, 0, 1], options)
    np.testing.assert_allclose(penalised, row(3.2, 3.2, 0, 0), rtol=1e-6)
    assert Sampler(options).next(logits, [0, 0, 0, 1]) == 0
    assert logits.tolist() == [5, 4, 0, 0]  # the caller's row is untouched


def test_repeat_penalty_divides_positive_and_multiplies_the_rest():
    """2 becomes 1 and -2 becomes -4 with penalty 2; zero stays zero."""
    logits = row(2, -2, 0, 5)
    reference.penalise(logits, [0, 1, 2], SamplerOptions(repeat_penalty=2.0))
    assert logits.tolist() == [1, -4, 0, 5]


def test_repeat_comes_before_frequency_and_presence():
    logits = row(4, 1)
    options = SamplerOptions(repeat_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25)
    reference.penalise(logits, [0, 0], options)
    assert logits.tolist() == [4 / 2 - 2 * 0.5 - 0.25, 1]


@pytest.mark.parametrize("last, penalised", [(0, []), (1, [3]), (2, [3, 2]), (3, [3, 2, 1]), (100, [0, 1, 2, 3])])
def test_penalty_window_counts_from_the_end(last, penalised):
    """A window of none turns the penalties off."""
    logits = row(1, 1, 1, 1, 1)
    reference.penalise(logits, [0, 1, 2, 3], SamplerOptions(presence_penalty=1.0, repeat_last_n=last))
    assert np.flatnonzero(logits == 0).tolist() == sorted(penalised)
    assert Sampler(SamplerOptions(repeat_penalty=1.5, repeat_last_n=last)).next(row(1, 2), [0, 1]) in (0, 1)


def test_penalties_ignore_foreign_ids_and_empty_history():
    logits = row(1, 2, 3)
    options = SamplerOptions(presence_penalty=1.0)
    reference.penalise(logits, [], options)
    reference.penalise(logits, [-1, 3, 1 << 40], options)
    assert logits.tolist() == [1, 2, 3]


def test_cuts_with_ties():
    logits = row(2, 2, 1, 0)
    assert support(logits, top_k=1) == {0}
    assert support(logits, top_p=0.0) == {0}
    assert support(logits, top_p=0.3) == {0}
    assert support(logits, top_p=0.5) == {0, 1}
    assert support(logits, top_p=0.8) == {0, 1, 2}
    assert support(logits, min_p=0.4) == {0, 1}
    assert support(logits, min_p=0.36) == {0, 1, 2}
    assert support(logits, min_p=0.1) == {0, 1, 2, 3}
    assert support(logits, min_p=1.0) == {0, 1}
    np.testing.assert_allclose(
        reference.distribution(logits, SamplerOptions(temperature=1.0)), [0.3995, 0.3995, 0.1470, 0.0541], atol=1e-4
    )


def test_nucleus_of_equal_logits_is_exact_and_reaches_far():
    """600 equal logits, top_p 0.99: 594 of them, and ids beyond 255 do come."""
    logits = np.zeros(600, np.float32)
    options = SamplerOptions(temperature=1.0, top_p=0.99, seed=3)
    assert np.flatnonzero(reference.distribution(logits, options)).tolist() == list(range(594))
    sampler = Sampler(options)
    drawn = {sampler.next(logits) for _ in range(3000)}
    assert max(drawn) < 594 and max(drawn) >= 500 and len(drawn) > 500


def test_top_p_is_measured_after_top_k():
    """With top_k the nucleus is of the renormalised kept set."""
    logits = row(1, 1, 1, 1, 1, 1, 1, 1)
    assert support(logits, top_k=4, top_p=0.5) == {0, 1}
    assert support(logits, top_p=0.5) == {0, 1, 2, 3}


def test_temperature_comes_after_top_k_and_before_top_p():
    logits = row(3, 2, 1, 0)
    assert support(logits, top_p=0.6) == {0}
    assert support(logits, top_p=0.6, temperature=100.0) == {0, 1, 2}
    hot = reference.distribution(logits, SamplerOptions(temperature=2.0))
    expected = np.exp(logits.astype(np.float64) / 2)
    np.testing.assert_allclose(hot, expected / expected.sum(), rtol=1e-9)


def test_a_banned_token_is_never_drawn_and_nothing_becomes_nan():
    logits = np.random.default_rng(5).normal(size=40).astype(np.float32)
    for processor in (BanTokens([3, int(logits.argmax())]), BiasTokens({3: -INF, int(logits.argmax()): -INF})):
        sampler = Sampler(SamplerOptions(temperature=1.5, top_p=0.95, min_p=0.01), processor)
        drawn = {sampler.next(logits) for _ in range(500)}
        assert not drawn & {3, int(logits.argmax())} and len(drawn) > 5
    masked = logits.copy()
    masked[:39] = -INF
    assert {Sampler(SamplerOptions(temperature=1.0, seed=s)).next(masked) for s in range(20)} == {39}


def test_draws_follow_the_distribution():
    logits = row(2, 1, 0, -1, 2)
    options = SamplerOptions(temperature=0.7, top_p=0.97, seed=11)
    sampler = Sampler(options)
    counts = np.bincount([sampler.next(logits) for _ in range(20000)], minlength=5) / 20000
    np.testing.assert_allclose(counts, reference.distribution(logits, options), atol=0.012)


# --- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(
    "values, error",
    [
        ([math.nan, 1, 3, 2], NonFiniteLogits),
        ([1, 3, math.nan], NonFiniteLogits),
        ([math.nan] * 4, NonFiniteLogits),
        ([1, INF, 3], NonFiniteLogits),
        ([-INF, -INF], AllTokensMasked),
    ],
)
def test_no_silent_token_zero(temperature, values, error):
    """Nothing is drawn or committed when no choice is made."""
    sampler = Sampler(SamplerOptions(temperature=temperature), BanTokens([]))
    with pytest.raises(error):
        sampler.next(row(*values))
    assert sampler.rng.position == 0


@pytest.mark.parametrize("bad", [np.zeros((2, 3)), np.zeros(0), np.float32(1), np.array(["a"]), np.zeros(3, bool)])
def test_not_a_row(bad):
    with pytest.raises(InvalidLogits, match="row"):
        Sampler().next(bad)


BAD_OPTIONS = {
    "temperature": [math.nan, INF, -INF, "1", None, True, 10**400, 10**5000, -1.0, -1e-300],
    "top_k": [-1, 1.5, "2", True, 1 << 64, 10**5000, -(10**5000)],
    "top_p": [-0.1, 1.1, math.nan, INF, Fraction(10**5000)],
    "min_p": [-0.1, 1.1, math.nan],
    "repeat_penalty": [0.0, -1.0, math.nan, INF],
    "frequency_penalty": [math.nan, INF],
    "presence_penalty": [math.nan, -INF],
    "repeat_last_n": [-1, 2.0],
    "seed": [-1, 1 << 64, 0.5, None, 10**5000],
}


@pytest.mark.parametrize(
    "field, value",
    [pytest.param(f, v, id=f"{f}-{i}") for f, values in BAD_OPTIONS.items() for i, v in enumerate(values)],
)
def test_bad_options_name_the_field(field, value):
    with pytest.raises(InvalidSamplerOption, match=f"^{field} must"):
        SamplerOptions(**{field: value})


@given(
    history=st.lists(st.one_of(st.integers(-2, 12), st.just(1 << 40)), max_size=40),
    values=st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=10),
    repeat=st.floats(1e-3, 1e3),
    frequency=st.floats(-1e6, 1e6),
    presence=st.floats(-1e6, 1e6),
    last=st.integers(0, 50),
)
def test_penalties_have_the_bits_of_their_definition(history, values, repeat, frequency, presence, last):
    class Look:
        def process(self, logits, history):
            self.row = logits

        def commit(self, token):
            self.seen = self.row.copy()

    options = SamplerOptions(
        repeat_penalty=repeat, frequency_penalty=frequency, presence_penalty=presence, repeat_last_n=last
    )
    expected = np.array(values, np.float32)
    reference.penalise(expected, history, options)
    look = Look()
    Sampler(options, look).next(np.array(values, np.float32), history)
    np.testing.assert_array_equal(look.seen.view(np.int32), expected.view(np.int32))


def test_options_accept_numpy_numbers_and_are_frozen():
    options = SamplerOptions(temperature=np.float32(0.5), top_k=np.int64(3), seed=np.uint64(2**64 - 1))
    assert (options.temperature, options.top_k, options.seed) == (0.5, 3, 2**64 - 1)
    assert type(options.top_k) is int and type(options.temperature) is float
    with pytest.raises(AttributeError):
        options.top_k = 4


# --- against the definition -------------------------------------------------------------------------------------

LOGIT = st.one_of(
    st.floats(-60, 60, width=32), st.sampled_from([0.0, -0.0, 1.0, 1.0 + 2.0**-23, -INF, -3e38, 3e38, 1e-45, 0.5])
)
OPTIONS = st.builds(
    SamplerOptions,
    temperature=st.one_of(st.floats(0.05, 5), st.sampled_from([1e-320, 1e-3, 1.0, 1e6, 1e300])),
    top_k=st.one_of(st.just(0), st.integers(1, 300)),
    top_p=st.one_of(st.just(1.0), st.floats(0, 1)),
    min_p=st.one_of(st.just(0.0), st.floats(0, 1)),
    seed=st.integers(0, 2**64 - 1),
)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), options=OPTIONS, values=st.lists(LOGIT, min_size=1, max_size=60), repeats=st.integers(1, 5))
def test_equals_the_sorted_definition(data, options, values, repeats):
    """Any logits, ties and extremes included; long rows, so that buckets are split again."""
    logits = np.array(values * repeats, dtype=np.float32)
    if not (logits > -INF).any():
        return
    sampler = Sampler(options)
    u = CounterRng(options.seed).uniform()
    assert sampler.next(logits) == reference.choose(logits, options, u)
    ids, weight = reference.candidates(logits, options)
    assert weight[0] == 1 << softmax_weights.SHIFT and (np.diff(weight) <= 0).all()
    assert len(ids) >= 1


@pytest.mark.parametrize("vocab", [1, 2, 257, 4096, 49153])
@pytest.mark.parametrize("spread", [0.0, 1e-6, 0.3, 3.0])
def test_equals_the_sorted_definition_on_long_rows(vocab, spread):
    generator = np.random.default_rng(vocab)
    logits = (generator.normal(size=vocab) * spread).astype(np.float32)
    logits[generator.integers(0, vocab, vocab // 3)] = logits[0]  # many ties
    for options in (
        SamplerOptions(temperature=1.0),
        SamplerOptions(temperature=0.7, top_p=0.9),
        SamplerOptions(temperature=1.3, top_k=40, top_p=0.95, min_p=0.02),
        SamplerOptions(temperature=1.0, top_k=max(1, vocab // 2)),
    ):
        for seed in range(6):
            options = type(options)(
                **{f: getattr(options, f) for f in ("temperature", "top_k", "top_p", "min_p")}, seed=seed
            )
            assert Sampler(options).next(logits) == reference.choose(logits, options, CounterRng(seed).uniform())


@settings(max_examples=60, deadline=None)
@given(values=st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=50), temperature=st.floats(0.2, 3))
def test_weights_are_the_softmax(values, temperature):
    logits = np.array(values, dtype=np.float32)
    exact = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
    np.testing.assert_allclose(
        softmax_weights.weights(logits, temperature) / 2.0**softmax_weights.SHIFT, exact, rtol=1e-14, atol=2.0**-40
    )


def test_row_length_may_change_between_calls():
    sampler = Sampler(SamplerOptions(temperature=1.0, presence_penalty=0.1))
    for vocab in (5, 1000, 3):
        assert 0 <= sampler.next(np.zeros(vocab, np.float32), [1]) < vocab


def test_options_from_keywords():
    assert SamplerOptions.of({"top_k": 3}) == SamplerOptions(top_k=3) and SamplerOptions.of({}) == SamplerOptions()
    with pytest.raises(InvalidOption, match="unknown option 'topk'; sampling options are temperature, top_k"):
        SamplerOptions.of({"topk": 3})
