"""The slot pool in memory: `fucina.cache.pool`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fucina.cache.pool import SlotPool
from fucina.cache.pool.tree import path_of_text
from fucina.cache.rows import append_rows, held_from, pack_rows
from fucina.engine import common_prefix
from fucina.errors import (
    EmptyInput,
    InvalidOption,
    InvalidPrefix,
    KvCacheOverflow,
    KvCacheShapeMismatch,
    PoolClosed,
    SlotReleased,
    TokenOutOfRange,
)
from tests.pool_kit import VOCAB, ToyModel, check, serve, take
from tests.state_models import KINDS, check_claims, extend, fail

RANDOM = np.random.default_rng(13)


def text(n: int) -> list[int]:
    return [int(t) for t in RANDOM.integers(0, VOCAB, n)]


@pytest.mark.parametrize("parts", KINDS.values(), ids=KINDS)
def test_a_chat_that_goes_on_finds_its_rows(parts):
    pool, chat = SlotPool(ToyModel(parts)), text(30)
    for cached in (0, 35, 61, 87, 113, 139, 165):
        reply = text(6)
        assert serve(pool, chat, reply) == cached
        chat += [*reply, *text(20)]
        check(pool)
        assert pool.stats().entries == 1


@pytest.mark.parametrize("parts", KINDS.values(), ids=KINDS)
def test_the_last_token_of_a_prompt_is_always_computed(parts):
    """A prompt sent again (CASES E2): all of its rows are there, the logits after the last one are not."""
    pool, prompt = SlotPool(ToyModel(parts)), text(80)
    serve(pool, prompt[:-1])  # recurrent parts are kept where a text ended
    assert serve(pool, prompt, text(50)) == 79
    assert serve(pool, prompt, text(50)) == 79
    assert serve(pool, prompt[:1]) == 0
    check(pool)


@pytest.mark.parametrize("length", [n for k in (1, 2, 3) for n in (64 * k - 1, 64 * k, 64 * k + 1)])
@pytest.mark.parametrize("parts", KINDS.values(), ids=KINDS)
def test_prefixes_end_at_around_and_after_block_borders(parts, length):
    """CASES E16."""
    pool, prefix = SlotPool(ToyModel(parts)), text(length)
    slot = pool.acquire(prefix)
    extend(slot.state, prefix)
    slot.release(prefix)
    for _ in range(3):
        other = [*prefix, *text(10)]
        assert serve(pool, other, text(5)) == length
        assert serve(pool, other[: length + 1]) == length
        check(pool)


@pytest.mark.parametrize("parts", KINDS.values(), ids=KINDS)
def test_texts_branch_from_what_was_stored_for_them(parts):
    """CASES E8: with windows and recurrent parts too, many conversations begin after one system prompt."""
    pool, system = SlotPool(ToyModel(parts)), text(200)
    state = pool.model.new_cache()
    extend(state, system)
    pool.store(state, system)
    extend(state, [*system, *text(3)])  # the state stays its owner's
    for _ in range(8):
        chat = [*system, *text(12)]
        assert serve(pool, chat, text(20)) == 200
        assert serve(pool, [*chat, *text(150)]) == 212
        check(pool)
    assert pool.stats().entries == 17
    assert pool.stats().rows_stored == 200 + 8 * (12 + 19 + 150)


def test_a_slot_says_where_a_window_was_missing():
    """`shared` is more than `cached`: whoever stores its rows there lets the next one begin there."""
    pool, system = SlotPool(ToyModel(KINDS["rings"])), text(100)
    serve(pool, [*system, *text(230)])
    slot = take(pool, [*system, *text(10)])
    assert (slot.cached, slot.shared) == (0, 100)
    extend(slot.state, system)
    slot.store(system)
    extend(slot.state, [*system, 1, 2, 3])
    slot.release([*system, 1, 2, 3])
    slot = take(pool, [*system, *text(10)])
    assert (slot.cached, slot.shared) == (100, 100)
    slot.discard()
    check(pool)


def test_rows_of_one_window_are_filled_in_without_touching_anothers():
    """A text of which the narrow window is held from 66 on and the wide one from 71; another state has more of the wide."""
    pool, ids = SlotPool(ToyModel(KINDS["rings"])), text(200)
    whole, part, later = (pool.model.new_cache() for _ in range(3))
    extend(whole, ids[:130])
    append_rows(part, [pack_rows(whole, 0, 130)], (66, 71))
    pool.store(part, ids[:130])
    with take(pool, [*ids[:87], 1]) as slot:
        assert (slot.cached, slot.shared) == (0, 87)
    extend(later, ids[:156])
    assert held_from(later) == (92, 28)
    pool.store(later, ids[:156])
    with take(pool, [*ids[:87], 1]) as slot:
        assert slot.cached == 87
    check(pool)


def test_a_slot_is_given_back_once():
    pool = SlotPool(ToyModel())
    slot = pool.acquire([1, 2, 3])
    assert pool.stats().in_use == 1
    extend(slot.state, [1, 2, 3])
    state = slot.state
    state.owner = owner = object()
    slot.release([1, 2, 3])
    assert state.owner is not owner
    assert pool.stats().in_use == 0
    for act in (slot.discard, lambda: slot.release([1]), lambda: slot.store([1]), lambda: slot.state):
        with pytest.raises(SlotReleased, match="given back"):
            act()
    with pool.acquire([1, 2, 3, 4]) as slot:
        assert slot.cached == 3
    with pytest.raises(SlotReleased):
        slot.discard()
    with pytest.raises(RuntimeError, match="mine"), pool.acquire([1, 2]) as slot:
        raise RuntimeError("mine")
    assert pool.stats().in_use == 0
    pool.acquire([5])  # lost: nobody has it
    assert pool.stats().in_use == 0
    check(pool)


def test_a_failed_release_leaves_the_slot_to_its_owner():
    pool = SlotPool(ToyModel())
    slot = pool.acquire([1, 2, 3])
    extend(slot.state, [1, 2, 3])
    with pytest.raises(TokenOutOfRange):
        slot.release([1, 2, VOCAB])
    assert pool.stats().in_use == 1
    slot.release([1, 2, 3])
    assert serve(pool, [1, 2, 3, 4]) == 3


def test_the_shadow_is_never_longer_than_the_cache_nor_the_cache_than_the_shadow():
    pool, chat = SlotPool(ToyModel()), text(90)
    for rows, tokens in ((60, 90), (60, 61)):
        slot = pool.acquire(chat)
        slot.state.reset()
        extend(slot.state, chat[:rows])
        fail(slot.state, 20, 2)  # a pass that was interrupted
        slot.release(chat[:tokens])
        with take(pool, chat) as slot:
            assert slot.cached == slot.shared == 60
        check(pool)
    pool, slot = SlotPool(ToyModel(KINDS["full"])), None
    slot = pool.acquire(chat)
    extend(slot.state, chat)
    slot.release(chat[:40])  # whatever the later rows are of
    with take(pool, chat) as slot:
        assert slot.cached == slot.shared == 40
    slot = pool.acquire(chat)
    slot.state.reset()
    slot.release(chat)  # nothing at all
    check(pool)


def test_rows_of_a_prefix_belong_to_no_token():
    pool, ids = SlotPool(ToyModel(KINDS["full"])), text(50)
    marks = [7] * 10  # what the toy model computes a prefix of

    def ask(selection: str, prefix: int) -> int:
        with pool.acquire(ids, selection=selection, prefix_rows=prefix) as slot:
            assert slot.state.len in (0, prefix + slot.cached)
            extend(slot.state, [*marks[:prefix], *ids])
            check_claims(slot.state, [*marks[:prefix], *ids])
            slot.release(ids)
            return slot.cached

    assert [ask("a", 10), ask("a", 10), ask("b", 10), ask("a", 9), ask("", 0), ask("b", 10)] == [0, 49, 0, 0, 0, 49]
    other = [(ids[0] + 1) % VOCAB, 2, 3]
    with pool.acquire(other, selection="a", prefix_rows=10) as slot:
        assert (slot.state.len, slot.cached, slot.shared) == (10, 0, 0)  # the prefix alone
        slot.state.reset()
        with pytest.raises(InvalidPrefix, match="10 rows of prefix were declared, the state holds 0"):
            slot.release(other)
    check(pool)


def test_a_prefix_is_never_given_in_part():
    """Recurrent parts were kept in the middle of it: a state that ends there would take its rows for those of tokens."""
    pool, prefix = SlotPool(ToyModel(KINDS["recurrent"])), [7] * 20
    with pool.acquire([1, 2], prefix_rows=20) as slot:
        extend(slot.state, prefix[:10])
        slot.state.checkpoint()
        extend(slot.state, [*prefix, 1, 2])
        slot.release([1, 2])
    with pool.acquire([3], prefix_rows=20) as slot:
        assert (slot.state.len, slot.cached, slot.shared) == (0, 0, 0)
    with pool.acquire([1, 2, 3], prefix_rows=20) as slot:
        assert (slot.state.len, slot.cached) == (22, 2)


def test_tenants_never_meet():
    pool, chat = SlotPool(ToyModel()), text(60)
    serve(pool, chat, tenant="a")
    visits = pool.stats().visits
    for tenant in ("b", "", "a ", "A", "é", "e\u0301", "\ud800"):
        slot = take(pool, [*chat, 1], tenant=tenant)
        assert slot.cached == slot.shared == 0
        assert pool.stats().visits == visits, "it was not even compared with"
    assert take(pool, [*chat, 1], tenant="a").cached == 60
    assert take(pool, [*chat, 1], selection="a").cached == 0, "fields do not run into each other"


def test_equal_low_bytes_are_no_match():
    """CASES E12: a hash of 8 bits would take these for equal; here tokens are compared."""
    pool = SlotPool(ToyModel())
    for a, b in ((65, 321), (1, 257), (0, 256)):
        serve(pool, [a] * 40)
        with take(pool, [b] * 41) as slot:
            assert slot.cached == slot.shared == 0


def test_what_is_wrong_is_refused_and_changes_nothing():
    pool = SlotPool(ToyModel())
    serve(pool, [1, 2, 3])
    before = pool.stats()
    for act, error, message in (
        (lambda: pool.acquire([]), EmptyInput, "at least one token"),
        (lambda: pool.acquire([VOCAB]), TokenOutOfRange, "outside the vocabulary"),
        (lambda: pool.acquire("abc"), InvalidOption, "sequence of token ids"),
        (lambda: pool.acquire([1], tenant=b"x"), InvalidOption, "tenant must be a text, got bytes"),
        (lambda: pool.acquire([1], selection=None), InvalidOption, "selection must be a text"),
        (lambda: pool.acquire([1], prefix_rows=-1), InvalidPrefix, "prefix_rows must be an integer"),
        (lambda: pool.acquire([1] * 401), KvCacheOverflow, "401 positions were asked for, the capacity is 400"),
        (lambda: pool.acquire([1] * 9, prefix_rows=2, capacity=10), KvCacheOverflow, "11 positions"),
        (lambda: pool.store(ToyModel(fingerprint=b"x").new_cache(), [1]), KvCacheShapeMismatch, "another model"),
        (lambda: pool.store(pool.model.new_cache(), [1], prefix_rows=1), InvalidPrefix, "the state holds 0"),
        (lambda: SlotPool(ToyModel(), memory="1GB"), InvalidOption, "memory must be a number of bytes"),
        (lambda: SlotPool(ToyModel(), memory=-1), InvalidOption, "memory must be an integer of at least 0"),
    ):
        with pytest.raises(error, match=message):
            act()
        assert pool.stats() == before
    slot = pool.acquire([1, 2])
    pool.close()
    for act in (lambda: pool.acquire([1]), lambda: slot.release([1]), lambda: slot.store([1])):
        with pytest.raises(PoolClosed):
            act()
    slot.discard()
    assert pool.stats().bytes == 0


@given(st.data())
@settings(max_examples=60)
def test_what_is_found_is_the_longest_common_prefix_with_any_text(data):
    """An oracle that keeps lists: of all texts of the tenant, the one that shares most, less the last token."""
    pool, stored = SlotPool(ToyModel(KINDS["full"])), {"a": [], "b": []}
    pieces = st.sampled_from([[1], [2], [1, 2], [3] * 63, [3] * 64, [4] * 65, [1, 1, 2] * 20])
    for _ in range(data.draw(st.integers(1, 8))):
        tenant = data.draw(st.sampled_from("ab"))
        ids = [t for piece in data.draw(st.lists(pieces, min_size=1, max_size=5)) for t in piece]
        right = max((common_prefix(ids, other) for other in stored[tenant]), default=0)
        with take(pool, ids, tenant=tenant) as slot:
            assert slot.shared == right
            assert slot.cached == min(right, len(ids) - 1)
            extend(slot.state, ids)
            rows = data.draw(st.integers(0, len(ids)))
            slot.state.truncate(rows)
            slot.release(ids)
            stored[tenant].append(ids[:rows])
        check(pool)


# --- budgets ----------------------------------------------------------------------------------------------------------


def test_the_least_recently_used_text_goes_and_the_match_stays():
    model = ToyModel(KINDS["full"])
    pool = SlotPool(model)
    texts = [text(100) for _ in range(4)]
    for t in texts[:3]:
        serve(pool, t)
    size = pool.stats().bytes // 3
    pool = SlotPool(model, memory=3 * size + 100)
    for t in texts[:3]:
        serve(pool, t)
    with take(pool, [*texts[0][:50], 1]) as slot:  # a use, although nothing is given back
        assert slot.cached == 50
    serve(pool, texts[3])
    check(pool)
    assert [take(pool, t).shared for t in texts] == [100, 0, 100, 100]
    assert pool.stats().evictions == 1


def test_what_is_shared_is_stored_once_and_stays_while_one_text_needs_it():
    pool, system = SlotPool(ToyModel(KINDS["full"])), text(128)
    for i in range(5):
        serve(pool, [*system, i])
    stats = pool.stats()
    assert stats.rows_stored == 128 + 5
    pool._rows.budget = stats.bytes - 1
    serve(pool, [*system, 9])
    check(pool)
    assert take(pool, [*system, 0]).cached == 128


def test_a_text_above_the_budget_does_not_push_out_the_others():
    model = ToyModel(KINDS["full"], context=4000)
    pool = SlotPool(model, memory=60_000)
    short = text(50)
    serve(pool, short)
    serve(pool, [*short, *text(3000)])
    stats = pool.stats()
    assert (stats.entries, stats.too_large, stats.evictions) == (1, 1, 0)
    assert take(pool, [*short, 1]).cached == 50
    pool = SlotPool(model, memory=0)
    serve(pool, short)
    check(pool)
    assert pool.stats().bytes == pool.stats().entries == 0
    pool.acquire(short).release(short)
    assert pool.stats().too_large == 1, "an empty state is not too large"


@pytest.mark.parametrize(
    ("lengths", "entries"), [((30, 299), 1), ((30, 300), 2), ((100, 101), 1), ((10, 100, 101), 2), ((10, 99), 1)]
)
def test_an_extension_takes_the_place_of_a_text_that_was_a_good_part_of_its_prompt(lengths, entries):
    """More than a tenth of the *new* prompt; a shorter one stays as it is, for others to begin with."""
    pool, chat = SlotPool(ToyModel()), text(300)
    for n in lengths:
        serve(pool, chat[:n])
    check(pool)
    assert pool.stats().entries == entries


def test_the_gate_is_about_the_prompt_not_about_the_reply():
    pool, chat = SlotPool(ToyModel()), text(300)
    serve(pool, chat[:20])
    serve(pool, chat[:30], chat[30:290])
    assert pool.stats().entries == 1


def test_a_text_that_diverges_is_copied_from_and_stays():
    pool, chat = SlotPool(ToyModel(KINDS["full"])), text(100)
    serve(pool, chat)
    serve(pool, [*chat[:90], *text(30)])
    check(pool)
    assert pool.stats().entries == 2
    assert take(pool, [*chat, 1]).cached == 100


def test_recurrent_parts_of_a_long_chat_do_not_pile_up():
    """Two places per turn; the latest four stay, and those where texts end or branch."""
    pool, system = SlotPool(ToyModel(KINDS["recurrent"])), text(20)
    state = pool.model.new_cache()
    extend(state, system)
    pool.store(state, system)
    chat = [*system, *text(5)]
    for _ in range(12):
        serve(pool, chat, reply := text(6))
        chat += [*reply[:-1], *text(7)]
    check(pool)
    (tree,) = pool._rows._trees.values()
    path, _ = tree.walk(path_of_text(chat))
    places = [node.end for node in path if node.bank is not None]
    assert places[0] == 20
    assert len(places) == 1 + 4 + 1
    assert places[-1] == len(chat) - 7
    assert serve(pool, [*system, 3]) == 20
    assert serve(pool, chat) == len(chat) - 7
