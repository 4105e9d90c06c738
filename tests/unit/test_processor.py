"""Logit processors: the contract with the sampler, the ready ones, and their composition."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fucina.errors import AllTokensMasked, InvalidSamplerOption, TokenOutOfRange
from fucina.sampling import (
    AllowTokens,
    BanTokens,
    BiasTokens,
    LogitProcessor,
    Sampler,
    SamplerOptions,
    compose,
    members,
)

INF = math.inf


class Recorder:
    """Notes every call; optionally forbids tokens."""

    def __init__(self, banned=()):
        self.banned, self.calls = list(banned), []

    def process(self, logits, history):
        self.calls.append(("process", tuple(history)))
        logits[self.banned] = -INF

    def commit(self, token):
        self.calls.append(("commit", token))

    def reset(self):
        self.calls.append(("reset",))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_commit_comes_exactly_once_a_token(temperature):
    recorder = Recorder(banned=[1])
    sampler = Sampler(SamplerOptions(temperature=temperature), recorder)
    logits = np.array([0, 9, 1], np.float32)
    tokens = [sampler.next(logits, [7]) for _ in range(5)]
    assert 1 not in tokens
    assert recorder.calls == [call for token in tokens for call in (("process", (7,)), ("commit", token))]
    sampler.reset()
    assert recorder.calls[-1] == ("reset",)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_is_committed_or_drawn_when_everything_is_masked(temperature):
    recorder = Recorder(banned=[0, 1, 2])
    sampler = Sampler(SamplerOptions(temperature=temperature), recorder)
    with pytest.raises(AllTokensMasked, match="3"):
        sampler.next(np.zeros(3, np.float32))
    assert [call[0] for call in recorder.calls] == ["process"]
    assert sampler.rng.position == 0


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_a_commit_that_fails_draws_nothing(failure):
    class Failing(Recorder):
        def commit(self, token):
            raise failure

    sampler = Sampler(SamplerOptions(temperature=1.0, seed=3), Failing())
    sampler.rng.position = 5
    with pytest.raises(failure):
        sampler.next(np.zeros(3, np.float32))
    assert sampler.rng.position == 5


def test_processor_comes_before_penalties_and_works_on_a_copy():
    logits = np.array([3, 2.5, 0], np.float32)
    options = SamplerOptions(repeat_penalty=2.0)
    # -3 first, then the penalty: 3 -> 0 -> 0; the other order would leave 1.5 - 3 = -1.5, below token 2's 0
    sampler = Sampler(options, BiasTokens({0: -3.0, 1: -5.0}))
    assert sampler.next(logits, [0]) == 0
    assert logits.tolist() == [3, 2.5, 0]


def test_ready_processors():
    def processed(processor):
        logits = np.array([1, 2, 3, 4], np.float32)
        processor.process(logits, [])
        assert isinstance(processor, LogitProcessor)
        return logits.tolist()

    assert processed(BiasTokens({1: 0.5, 3: -INF})) == [1, 2.5, 3, -INF]
    assert processed(BanTokens([0, 2, 2])) == [-INF, 2, -INF, 4]
    assert processed(AllowTokens(iter([3, 1]))) == [-INF, 2, -INF, 4]
    assert processed(AllowTokens([])) == [-INF] * 4
    assert processed(BanTokens([])) == [1, 2, 3, 4]


@pytest.mark.parametrize("token", [-1, 1 << 31, 1 << 63, 1.5, True, "a"])
@pytest.mark.parametrize("make", [BanTokens, AllowTokens])
def test_ids_that_can_be_no_token(make, token):
    """An id out of range never reaches memory."""
    with pytest.raises(TokenOutOfRange, match=r"a token id must be an integer in \[0, 2147483647\], got"):
        make([token])
    with pytest.raises(TokenOutOfRange):
        BiasTokens({token: 0.0})


@pytest.mark.parametrize("processor", [BanTokens([4]), AllowTokens([0, 4]), BiasTokens({4: 1.0})])
def test_ids_beyond_the_vocabulary(processor):
    with pytest.raises(TokenOutOfRange, match="token 4 .* 4 tokens"):
        processor.process(np.zeros(4, np.float32), [])


@pytest.mark.parametrize("value", [math.nan, INF, 1e39, -1e39, np.float64(1e300), True, None, "1"])
def test_bias_must_be_a_number_below_infinity(value):
    with pytest.raises(InvalidSamplerOption, match="bias of token 3"):
        BiasTokens({3: value})


def test_compose():
    assert compose() is None and compose(None) is None and members(None) == ()
    single = BanTokens([1])
    assert compose(None, single) is single and members(single) == (single,)
    with pytest.raises(InvalidSamplerOption, match="twice"):
        compose(single, single)

    pair = compose(BanTokens([2]), single)
    for twice in ((pair, single), (single, pair), (pair, pair), (pair, compose(single, BanTokens([3])))):
        with pytest.raises(InvalidSamplerOption, match="twice"):
            compose(*twice)  # also where a composition holds it

    a, b = Recorder(banned=[0]), Recorder(banned=[1])
    chain = compose(a, None, b)
    assert isinstance(chain, LogitProcessor) and members(chain) == (a, b)
    token = Sampler(processor=chain).next(np.array([3, 2, 1], np.float32), [5])
    chain.reset()
    assert token == 2
    assert a.calls == b.calls == [("process", (5,)), ("commit", 2), ("reset",)]


def test_order_of_composition_matters():
    ban_then_bias = compose(BanTokens([0]), BiasTokens({0: 5.0}))
    allow_then_bias = compose(BiasTokens({1: 9.0}), AllowTokens([0]))
    assert Sampler(processor=ban_then_bias).next(np.array([3, 2], np.float32)) == 1
    assert Sampler(processor=allow_then_bias).next(np.array([3, 2], np.float32)) == 0


@given(banned=st.sets(st.integers(0, 19)), bias=st.dictionaries(st.integers(0, 19), st.floats(-5, 5)))
def test_composition_equals_doing_it_by_hand(banned, bias):
    logits = np.linspace(-2, 2, 20, dtype=np.float32)
    expected = logits.copy()
    for token, value in bias.items():
        expected[token] += np.float32(value)
    expected[list(banned)] = -INF
    got = logits.copy()
    compose(BiasTokens(bias), BanTokens(banned)).process(got, [])
    np.testing.assert_array_equal(got, expected)


class Forgetless:
    """No `reset`: it remembers nothing."""

    def process(self, logits, history):
        logits[0] = -INF

    def commit(self, token):
        pass


def test_a_processor_may_have_no_reset():
    sampler = Sampler(processor=compose(Forgetless(), BanTokens([1])))
    sampler.reset()
    assert sampler.next(np.array([3, 2, 1], np.float32)) == 2
    Sampler(processor=Forgetless()).reset()
