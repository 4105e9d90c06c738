"""splitmix64 and what is drawn from it: published outputs, documented permutations, counter form and stream form."""

from hypothesis import given
from hypothesis import strategies as st

from fucina.sampling import rng

U64 = st.integers(0, rng.MASK)


def test_published_outputs():
    assert [rng.at(0, i) for i in range(3)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [rng.at(1234567, i) for i in range(5)] == [
        6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821,
    ]  # fmt: skip


def permutation(n, seed, epoch):
    """The shuffled order of a data loader: a stream inside a stream, so it tests both forms."""
    state, order = rng.at(seed, epoch), list(range(n))
    for draw, i in enumerate(range(n - 1, 0, -1)):
        j = rng.at(state, draw) % (i + 1)
        order[i], order[j] = order[j], order[i]
    return order


def test_documented_permutations():
    assert permutation(8, 42, 0) == [3, 6, 0, 7, 1, 2, 5, 4]
    assert permutation(8, 42, 1) == [0, 3, 4, 5, 7, 2, 1, 6]
    assert permutation(5, 7, 3) == [1, 3, 4, 0, 2]


@given(seed=U64, start=U64, n=st.integers(0, 20))
def test_counter_form_equals_stream_form(seed, start, n):
    state = (seed + start * rng.GAMMA) & rng.MASK  # a stream that has already made `start` steps
    assert [rng.at(state, i) for i in range(n)] == [rng.at(seed, start + i) for i in range(n)]


@given(seed=U64, position=st.integers(0, 1 << 40))
def test_place_can_be_saved_and_restored(seed, position):
    generator = rng.CounterRng(seed, position)
    saved = generator.position
    first = [generator.uniform() for _ in range(5)]
    assert generator.position == saved + 5
    generator.position = saved
    assert [generator.uniform() for _ in range(5)] == first
    assert first == [(rng.at(seed, position + i) >> 11) * 2.0**-53 for i in range(5)]
    assert all(0.0 <= u < 1.0 for u in first)


def test_draws_are_uniform():
    generator = rng.CounterRng(3)
    drawn = [generator.uniform() for _ in range(20000)]
    assert abs(sum(drawn) / len(drawn) - 0.5) < 0.01
