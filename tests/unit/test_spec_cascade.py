"""Recycling and the cascade: choice of source, accounting, muting."""

import random

import numpy as np
import pytest

from fucina.errors import InvalidLogits, InvalidOption, TokenOutOfRange
from fucina.kernels.top_k import top_ids
from fucina.speculative import CascadeOptions, DraftSource, SpeculationIndex, TokenRecycling, TopKRow, wants_top_k
from fucina.speculative.cascade import SourceGate


def feedback(*rows):
    return [TopKRow(token, np.array(top_k, np.int32)) for token, top_k in rows]


# --- the best of a row ------------------------------------------------------------------------------------------------


def test_top_ids_against_a_sort():
    r = np.random.RandomState(0)
    for vocab in (1, 2, 7, 8, 63, 64, 65, 200, 5000):
        for k in (1, 2, 8, 9):
            rows = r.randn(5, vocab).astype(np.float32)
            rows[1] = np.round(rows[1])  # many equal ones
            rows[2, r.rand(vocab) < 0.7] = -np.inf
            rows[3] = np.sort(rows[3])  # every block replaces the best so far
            rows[4] = -np.inf
            expected = np.full((5, k), -1)
            for row, out in zip(rows, expected, strict=True):
                best = np.lexsort((np.arange(vocab), -row))[:k]
                out[: len(best)] = best
            assert np.array_equal(top_ids(rows, k), expected)


def test_top_ids_checks():
    with pytest.raises(InvalidLogits):
        top_ids(np.zeros(5, np.float32), 2)
    with pytest.raises(InvalidLogits):
        top_ids(np.zeros((2, 0), np.float32), 2)
    with pytest.raises(InvalidOption):
        top_ids(np.zeros((2, 5), np.float32), 0)
    assert top_ids(np.zeros((0, 5), np.float32), 2).shape == (0, 2)
    assert top_ids(np.eye(4)[:, ::-1], 1).ravel().tolist() == [3, 2, 1, 0]  # any layout and dtype


# --- recycling --------------------------------------------------------------------------------------------------------


def test_documented_chain():
    rec = TokenRecycling(32)
    rec.update(3, [7, 9])
    rec.update(7, [5])
    assert rec.draft_chain(3, 4) == [7, 5]
    assert rec.draft_chain(3, 1) == [7] and rec.draft_chain(3, 0) == [] and rec.draft_chain(8, 4) == []
    assert rec.draft_chain(-1, 4) == rec.draft_chain(32, 4) == []


def test_a_circle_ends_at_the_limit():
    rec = TokenRecycling(32, chain=5)
    rec.update(1, [1])
    assert rec.draft_chain(1, 7) == [1] * 7
    assert rec.suggest([9, 1], 20) == [1] * 5 and rec.suggest([9, 1], 3) == [1] * 3 and rec.suggest([], 3) == []


def test_promotion_moves_to_the_front():
    rec = TokenRecycling(32, k=3)
    for follower in (4, 5, 6, 7):
        rec.promote(1, follower)
    assert rec.top_k_of(1) == [7, 6, 5]
    rec.promote(1, 6)
    assert rec.top_k_of(1) == [6, 7, 5]
    rec.promote(1, 6)
    assert rec.top_k_of(1) == [6, 7, 5]


def test_ids_out_of_range_are_ignored():
    rec = TokenRecycling(8, k=3)
    rec.update(2, [99, 3, -1, 4])
    assert rec.top_k_of(2) == [3, 4]
    rec.update(99, [1])
    rec.promote(99, 1)
    rec.promote(2, 99)
    rec.promote(-1, 3)
    assert rec.top_k_of(2) == [3, 4] and rec.top_k_of(99) == rec.top_k_of(-1) == []
    assert np.count_nonzero(rec._table != -1) == 2


def test_observing():
    rec = TokenRecycling(32)
    rec.observe([1, 2, 3])
    rec.observe([4])
    assert [rec.top_k_of(t) for t in (1, 2, 3, 4)] == [[2], [3], [4], []]
    rec.observe_top_k(feedback((1, [9, 8, -1]), (2, [])))
    assert rec.top_k_of(1) == [9, 8] and rec.top_k_of(2) == []
    rec.restart()
    rec.observe([1])
    assert rec.top_k_of(4) == []  # the old text's last token is not followed by the new one's first


@pytest.mark.parametrize("options", [{"vocab": 0}, {"vocab": 8, "k": 0}, {"vocab": 8, "chain": 0}, {"vocab": True}])
def test_recycling_options(options):
    with pytest.raises(InvalidOption):
        TokenRecycling(**options)


# --- choice -----------------------------------------------------------------------------------------------------------


def test_documented_draft_and_accounting():
    index = SpeculationIndex(1024)
    text = [1, 2, 3, 4, 5, 6, 1, 2]
    index.observe(text)
    assert index.suggest(text, 16) == [3, 4, 5, 6, 1, 2]  # 2 (1 + 2)
    index.observe([3, 4, 99])
    assert index.counts()["conversation"] == (2, 6, False)
    assert index.summary() == "spec sources: conversation 2/6 recycling 0/0"


def test_the_longest_match_drafts():
    index = SpeculationIndex(1024)
    text = [5, 6, 100, 7, 5, 6]
    index.observe(text)
    index.add_reference([4, 7, 5, 6, 200, 201, 202, 203])
    assert index.suggest(text, 16) == [200, 201, 202, 203]  # match 3 against 2; the document ends there
    assert index.suggest(text, 2) == [200, 201]
    index.observe([200, 201, 9])
    assert index.counts() == {"conversation": (0, 0, False), "ref0": (2, 2, False), "recycling": (0, 0, False)}


def test_ties():
    index = SpeculationIndex(1024)
    text = [5, 6, 100, 7, 5, 6]
    index.add_reference([8, 5, 6, 300, 301])
    index.add_reference([9, 5, 6, 400, 401])
    index.observe(text)
    assert index.suggest(text, 16)[0] == 100  # the conversation at a tie
    index = SpeculationIndex(1024)
    index.add_reference([8, 5, 6, 300, 301])
    index.add_reference([9, 5, 6, 400, 401])
    index.observe([5, 6])
    assert index.suggest([5, 6], 16)[0] == 300  # then the first reference


def test_references_come_and_go_at_any_moment():
    index = SpeculationIndex(1024)
    text = [50, 51, 52]
    index.observe(text)
    assert index.suggest(text, 16) == []
    index.add_reference([51, 52, 60, 61])  # matches what is there already
    assert index.suggest(text, 16) == [60, 61]
    index.clear_references()
    index.observe([60, 61])
    assert index.suggest([*text, 60, 61], 16) == [] and list(index.counts()) == ["conversation", "recycling"]
    with pytest.raises(TokenOutOfRange):
        index.add_reference([1, -1])
    assert not index.references
    index.add_reference([])
    assert index.suggest([*text, 60, 61], 16) == []
    index.conversation.observe([-1])  # degraded
    index.add_reference([60, 61, 70])
    assert index.suggest([*text, 60, 61], 16) == []


def test_a_reference_that_ends_falls_through_to_recycling():
    index = SpeculationIndex(1024)
    index.observe([1, 2])
    index.add_reference([1, 2])
    index.recycling.update(2, [30])
    index.recycling.update(30, [31])
    assert index.suggest([1, 2], 16) == [30, 31]
    index.observe([30, 31])
    assert index.counts()["recycling"] == (2, 2, False)


def test_recycling_chain_has_its_own_limit():
    index = SpeculationIndex(64)
    for t in range(40):
        index.recycling.update(t, [t + 1])
    index.observe([0])
    assert index.suggest([0], 16) == list(range(1, 9))
    assert index.suggest([0], 3) == [1, 2, 3]
    off = SpeculationIndex(64, CascadeOptions(recycling_chain=0))
    off.recycling.update(0, [1])
    off.observe([0])
    assert off.suggest([0], 16) == []


def test_a_context_that_was_not_observed_is_not_continued():
    index = SpeculationIndex(1024, CascadeOptions(recycling_chain=0))
    index.observe([1, 2, 3, 1, 2])
    assert index.suggest([1, 2, 3, 1, 2], 16) and index.suggest([1, 2, 3, 1, 7], 16) == []
    assert index.suggest([], 16) == [] and index.suggest([2], 0) == []


def test_without_the_conversation():
    index = SpeculationIndex(1024, CascadeOptions(conversation=False, recycling_chain=0))
    index.observe([1, 2, 3, 1, 2])
    assert index.suggest([1, 2, 3, 1, 2], 16) == []


# --- accounting -------------------------------------------------------------------------------------------------------


def pending():
    index = SpeculationIndex(1024)
    index.observe([1, 2, 3, 4, 5, 6, 1, 2])
    assert len(index.suggest([2], 16)) == 6
    return index


def drafted(index):
    return index.counts()["conversation"][:2]


def test_short_drafts_are_not_counted():
    index = pending()
    assert index.suggest([2], 1) == [3]
    index.observe([3])
    assert drafted(index) == (0, 0)


def test_each_suggest_drops_the_draft_before():
    index = pending()
    assert len(index.suggest([2], 3)) == 3
    index.observe([3, 4, 5])
    assert drafted(index) == (3, 3)


def test_observing_nothing_forgets():
    index = pending()
    index.observe([])
    index.observe([3, 4])
    assert drafted(index) == (0, 0)


def test_cuts():
    index = pending()
    index.truncate_pending(4)
    index.observe([3, 4, 5, 6, 1, 2])
    assert drafted(index) == (4, 4)
    index = pending()
    index.truncate_pending(1)  # below the minimum: it will not be verified
    index.observe([3, 4])
    assert drafted(index) == (0, 0)
    index = pending()
    index.truncate_pending(99)
    index.observe([3, 4, 9])
    assert drafted(index) == (2, 6)
    SpeculationIndex(8).truncate_pending(3)


def test_clearing_references_drops_the_draft_on_its_way():
    index = pending()
    index.clear_references()
    index.observe([3, 4])
    assert drafted(index) == (0, 0)


def test_promotions_survive_feedback():
    index = SpeculationIndex(64)
    index.observe([1, 2])
    index.observe([3, 4])
    index.observe_top_k(feedback((2, [50, 3]), (3, [51, 52])))
    assert index.recycling.top_k_of(2) == [3, 50]  # committed tokens come before those of high logits
    assert index.recycling.top_k_of(3) == [4, 51, 52]
    assert index.recycling.top_k_of(1) == [2]


# --- muting -----------------------------------------------------------------------------------------------------------


def test_a_full_window_of_rejections_mutes():
    gate = SourceGate(CascadeOptions())
    for _ in range(7):
        gate.record(8, 1)
    assert not gate.muted  # 56 tokens: not full
    gate.record(8, 1)
    assert gate.muted and gate.muted_for == 128  # 8 of 64
    gate.count_down(127)
    assert gate.muted
    gate.count_down(1)
    assert not gate.muted
    for _ in range(7):
        gate.record(8, 0)
    assert not gate.muted  # a fresh window
    assert (gate.accepted, gate.drafted) == (8, 120)


@pytest.mark.parametrize(("accepted", "muted"), [(12, True), (13, False)])
def test_the_limit_is_a_fifth(accepted, muted):
    gate = SourceGate(CascadeOptions())
    gate.record(64, accepted)
    assert gate.muted is muted


def test_the_window_looks_at_the_latest():
    gate = SourceGate(CascadeOptions())
    gate.record(64, 64)
    gate.record(51, 0)  # 13 of 64 left
    assert not gate.muted
    gate.record(1, 0)
    assert gate.muted


def test_a_muted_source_observes_and_comes_back():
    index = SpeculationIndex(1024, CascadeOptions(recycling_chain=0))
    text = list(range(20)) * 2
    index.observe(text)
    steps = 0
    while not index.gates["conversation"].muted:
        draft = index.suggest(text, 16)
        assert draft
        text += [900 + steps, *text[:3]]
        index.observe(text[-4:])
        steps += 1
        assert steps < 20
    # the mute was counted down by the observe that set it
    assert index.gates["conversation"].muted_for == 128 - 4
    assert index.suggest(text, 16) == [] and "[muted]" in index.summary()
    fresh = list(range(100, 150))
    for i in range(31):
        part = [fresh[(4 * i + j) % 50] for j in range(4)]
        text += part
        index.observe(part)
    assert not index.gates["conversation"].muted
    assert index.suggest(text, 4) == [fresh[(124 + j) % 50] for j in range(4)]  # in step with what came meanwhile


def test_a_muted_reference_leaves_the_others():
    index = SpeculationIndex(1024)
    index.observe([1, 2, 3, 1, 2])
    index.add_reference([9, 3, 1, 2, 40])
    index.references[0].gate.muted_for = 5
    assert index.suggest([2], 16)[0] == 3
    index.gates["conversation"].muted_for = 5
    index.gates["recycling"].muted_for = 5
    assert index.suggest([2], 16) == []


def test_restart_keeps_references_and_candidates():
    index = SpeculationIndex(1024)
    index.add_reference([5, 6, 7, 8])
    index.observe([1, 2, 1, 2, 5, 6])
    index.restart()
    assert len(index.conversation) == 0 and index.suggest([5, 6], 16) == []  # cursors are at the start, too
    index.observe([5, 6])
    assert index.suggest([5, 6], 16) == [7, 8]
    assert index.recycling.top_k_of(1) == [2]
    assert index.recycling.top_k_of(6) == []  # not followed by the new text's first token


def test_it_is_a_source_that_wants_feedback():
    index = SpeculationIndex(16)
    assert isinstance(index, DraftSource) and wants_top_k(index)
    assert isinstance(TokenRecycling(16), DraftSource)


@pytest.mark.parametrize(
    "options",
    [{"beta": 0}, {"min_match": 0}, {"mute_acceptance": 1.1}, {"mute_commits": -1}, {"accounting_min_draft": 0}],
)
def test_cascade_options(options):
    with pytest.raises(InvalidOption, match=next(iter(options))):
        CascadeOptions(**options)


def test_determinism():
    """Two indexes that see the same suggest the same: losslessness rests on it."""
    r = random.Random(5)
    a, b = SpeculationIndex(40), SpeculationIndex(40)
    text = [0]
    for index in (a, b):
        index.observe(text)
        index.add_reference([1, 2, 3, 4, 5, 6, 7, 8])
    for _ in range(200):
        limit = r.randrange(0, 20)
        draft = a.suggest(text, limit)
        assert draft == b.suggest(text, limit) and len(draft) <= limit
        fresh = [*draft[: r.randrange(0, 4)], r.randrange(9)]
        rows = feedback(*[(t, [r.randrange(40) for _ in range(8)]) for t in [text[-1], *fresh[:-1]]])
        text += fresh
        for index in (a, b):
            index.observe(fresh)
            index.observe_top_k(rows)
