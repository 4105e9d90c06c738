"""The suffix index against its definition by brute force, after every append."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fucina.errors import IndexDegraded, IndexFrozen, InvalidOption, StreamTooLong, TokenOutOfRange
from fucina.speculative import Cursor, FrozenSource, SamIndex, sam_index


def longest_match(stream, n):
    """Length of the longest suffix of stream[:n] that also ends before n - 1, and all places where it ends."""
    best, ends = 0, []
    for j in range(n - 1):
        length = 0
        while length <= j and stream[j - length] == stream[n - 1 - length]:
            length += 1
        if length > best:
            best, ends = length, [j]
        elif length == best and length:
            ends.append(j)
    return best, ends


def substring_classes(stream):
    """States and edges of the smallest automaton of all substrings, by definition: classes of equal end positions."""
    ends = {}
    for i in range(len(stream)):
        for j in range(i, len(stream)):
            ends.setdefault(tuple(stream[i : j + 1]), []).append(j)
    classes = {tuple(e) for e in ends.values()} | {("root",)}
    edges = {(tuple(ends[s[:-1]]) if len(s) > 1 else ("root",), s[-1]) for s in ends}
    return len(classes), len(edges)


def fibonacci(n):
    a, b = [0], [0, 1]
    while len(b) < n:
        a, b = b, b + a
    return b[:n]


def streams():
    r = random.Random(7)
    for alphabet in (2, 5, 31):
        for n in (1, 2, 3, 150):
            yield f"random-{alphabet}-{n}", [r.randrange(alphabet) for _ in range(n)]
        for period in (1, 2, 7, 30):
            block = [r.randrange(alphabet) for _ in range(period)]
            yield f"periodic-{alphabet}-{period}", (block * 150)[:150]
        noisy = ([r.randrange(alphabet) for _ in range(20)] * 8)[:150]
        for _ in range(6):
            noisy[r.randrange(150)] = r.randrange(alphabet)
        yield f"noisy-{alphabet}", noisy
    yield "fibonacci", fibonacci(180)
    yield "a^n b", [0] * 70 + [1] + [0] * 70 + [1]
    yield "abbb...", [0] + [1] * 140  # most states
    yield "abbb...c", [0] + [1] * 140 + [2]  # most edges
    yield "squares", [x for k in range(1, 15) for x in [*range(k), *range(k)]]
    yield "large ids", [(x * 2**26) % (2**31) for x in [r.randrange(40) for _ in range(150)]]


CASES = dict(streams())


@pytest.mark.parametrize("name", CASES)
def test_match_and_draft_after_every_append(name):
    stream = CASES[name]
    sam = SamIndex()
    for n in range(1, len(stream) + 1):
        sam.append(stream[n - 1 : n])
        length, ends = longest_match(stream, n)
        assert sam.match_len() == length
        assert sam.state_count <= 2 * n + 1 and sam.transition_count <= 3 * n
        draft = sam.draft(20)
        if length < 2:
            assert draft == []
        else:
            assert draft in [stream[e + 1 : min(e + 21, n)] for e in ends] and draft
    assert sam.tokens().tolist() == stream and len(sam) == len(stream) and sam.last_token == stream[-1]


@pytest.mark.parametrize("name", [n for n, s in CASES.items() if len(s) <= 150])
def test_the_automaton_is_the_smallest(name):
    sam = SamIndex()
    sam.append(CASES[name])
    assert (sam.state_count, sam.transition_count) == substring_classes(CASES[name])


@given(st.integers(2, 4).flatmap(lambda a: st.lists(st.integers(0, a - 1), max_size=60)), st.data())
def test_the_cut_of_appends_makes_no_difference(stream, data):
    whole, parts = SamIndex(), SamIndex()
    whole.append(stream)
    at = 0
    while at < len(stream):
        n = data.draw(st.integers(1, 20))
        parts.append(np.array(stream[at : at + n], np.int16))
        at += n
    assert whole.match_len() == parts.match_len() == longest_match(stream, len(stream))[0]
    assert whole.draft() == parts.draft()
    assert (whole.state_count, whole.transition_count) == (parts.state_count, parts.transition_count)


def test_growth_past_every_first_size():
    r = random.Random(1)
    stream = [r.randrange(3) for _ in range(20_000)]
    sam = SamIndex()
    sam.append(stream)
    assert sam.tokens().tolist() == stream
    tail = stream[:500]
    sam.append(tail)
    assert sam.match_len() >= 500 and sam.draft(50) == stream[500:550]


def test_documented_streams():
    sam = SamIndex()
    sam.append([5, 6, 7, 5, 6])
    assert sam.match_len() == 2 and sam.draft(8) == [7, 5, 6]
    sam = SamIndex()
    sam.append([10, 11, 12, 90, 10, 11, 12, 91, 10, 11, 12])
    assert sam.match_len() == 3 and sam.draft(4) == [91, 10, 11, 12]  # the most recent continuation
    sam = SamIndex()
    sam.append([1, 2, 3, 1, 2, 9])
    assert sam.match_len() == 0 and sam.draft() == []
    sam.append([2, 9])
    assert sam.match_len() == 2


def test_limits_of_a_draft():
    sam = SamIndex(min_match=3, max_draft=4)
    sam.append([1, 2, 3, 4, 5, 6, 7, 1, 2])
    assert sam.match_len() == 2 and sam.draft() == []
    sam.append([3])
    assert sam.draft() == [4, 5, 6, 7] and sam.draft(2) == [4, 5] and sam.draft(0) == [] and sam.draft(-1) == []
    assert sam.draft(100) == [4, 5, 6, 7, 1, 2, 3]  # to the end of the stream, not further


@pytest.mark.parametrize(
    ("stream", "draft"),
    [
        ([7, 7, 7], [7] * 9),
        ([1, 2, 1, 2, 1, 2], [1, 2] * 4 + [1]),
        ([9, 1, 2, 3, 1, 2, 3], [1, 2, 3] * 3),
        ([5, 6, 7, 5, 6], [7, 5, 6]),  # it has not come round yet
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2], [3, 4, 5, 6, 7, 8, 9, 10, 1]),
    ],
)
def test_a_stream_that_repeats_itself_goes_on(stream, draft):
    sam = SamIndex()
    sam.append(stream)
    assert sam.draft(9, overlap=True) == draft
    assert sam.draft(9) == draft[: len(sam.draft(9))] and sam.draft(1, overlap=True) == draft[:1]


def test_as_a_source():
    sam = SamIndex(max_draft=3)
    sam.observe([1, 2, 3, 4, 5, 1, 2])
    assert sam.suggest([1, 2, 3, 4, 5, 1, 2], 9) == [3, 4, 5]
    assert sam.suggest([1, 2, 3, 4, 5, 1, 7], 9) == []  # it does not end with what was observed
    assert sam.suggest([], 9) == []


@pytest.mark.parametrize("bad", [[1, -1], [2**31], [1.5], [[1]], ["a"], [None]])
def test_a_failed_append_poisons(bad):
    sam = SamIndex()
    sam.append([1, 2, 1, 2])
    assert sam.match_len() == 2
    with pytest.raises(TokenOutOfRange):
        sam.append(bad)
    assert sam.degraded and sam.match_len() == 0 and sam.draft() == []
    with pytest.raises(IndexDegraded):
        sam.append([1])
    sam.observe([1])  # degrades in silence, as a source must
    assert sam.suggest([1, 2, 1, 2], 4) == []


def test_too_long_a_stream_poisons(monkeypatch):
    monkeypatch.setattr(sam_index, "MAX_STREAM", 5)
    sam = SamIndex()
    sam.append([1, 2, 1, 2])
    with pytest.raises(StreamTooLong, match="5"):
        sam.append([1, 2])
    assert sam.degraded and sam.match_len() == 0


def test_an_error_inside_the_kernel_poisons(monkeypatch):
    sam = SamIndex()
    sam.append([1, 2, 1, 2])

    def fails():
        def append(*_):
            raise MemoryError

        return append

    monkeypatch.setattr(sam_index.suffix, "appender", fails)
    with pytest.raises(MemoryError):
        sam.append([1])
    assert sam.degraded and sam.draft() == []


@pytest.mark.parametrize("options", [{"min_match": 0}, {"max_draft": 0}, {"min_match": True}, {"max_draft": 1.5}])
def test_options(options):
    with pytest.raises(InvalidOption):
        SamIndex(**options)


def test_frozen_index_and_cursors():
    document = [4, 7, 5, 6, 200, 201, 202, 203, 5, 6, 9]
    index = SamIndex()
    index.append(document)
    with pytest.raises(IndexFrozen):
        index.advance(Cursor(), [4])
    with pytest.raises(IndexFrozen):
        index.draft_from(Cursor())
    with pytest.raises(IndexFrozen):
        FrozenSource(index)
    index.freeze()
    with pytest.raises(IndexFrozen):
        index.append([1])
    with pytest.raises(TokenOutOfRange):
        index.advance(Cursor(), [-1])
    with pytest.raises(InvalidOption, match="state 99"):
        index.advance(Cursor(99, 1), [1])
    with pytest.raises(InvalidOption, match="state -1"):
        index.draft_from(Cursor(-1, 3))
    assert not index.degraded

    a, b = Cursor(), Cursor()
    index.advance(a, [1, 7, 5, 6])
    assert a.length == 3 and index.draft_from(a, 3) == [200, 201, 202]
    index.advance(b, [6, 200])
    assert b.length == 2 and index.draft_from(b, 1) == [201]
    assert a.length == 3  # cursors do not touch each other
    index.advance(a, [])
    index.advance(a, [1])
    assert a == Cursor(0, 0) and index.draft_from(a) == []


@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 4), max_size=25))
def test_a_cursor_against_brute_force(document, text):
    index = SamIndex(min_match=1)
    index.append(document)
    index.freeze()
    cursor = Cursor()
    for n, token in enumerate(text, 1):
        index.advance(cursor, [token])
        fits = [
            k for k in range(n + 1) if any(document[i : i + k] == text[n - k : n] for i in range(len(document) - k + 1))
        ]
        assert cursor.length == max(fits)
        k = cursor.length
        after = [
            document[i + k : i + k + 5] for i in range(len(document) - k + 1) if document[i : i + k] == text[n - k : n]
        ]
        assert index.draft_from(cursor, 5) in (after if k else [[]])


def test_a_frozen_source_starts_again():
    index = SamIndex()
    index.append([1, 2, 3, 4])
    index.freeze()
    source = FrozenSource(index)
    source.observe([9, 1, 2])
    assert source.suggest([9, 1, 2], 1) == [3]
    source.restart()
    assert source.suggest([9, 1, 2], 1) == []


def test_memory_of_text_like_tokens():
    """Zipf-distributed tokens with repeated phrases, roughly what text is."""
    r = np.random.RandomState(3)
    tokens = np.minimum(r.zipf(1.3, 200_000), 40_000).astype(np.int32)
    for i in r.randint(1_000, 199_000, 2_000):
        n = r.randint(2, 20)
        tokens[i : i + n] = tokens[i - 500 : i - 500 + n]
    sam = SamIndex()
    sam.append(tokens)
    assert sam.byte_size <= 120 * len(tokens)
