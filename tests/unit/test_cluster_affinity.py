"""Routing by prefix affinity: what is the same goes to the same place, little moves, and nobody gets too much."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fucina.cluster.affinity import ANCHOR, Ring, Router, block_hashes, body_texts, prompt_hashes
from fucina.errors import InvalidOption

texts = st.lists(st.text(max_size=40), max_size=6)
members = st.sets(st.text("abcdef", min_size=1, max_size=4), min_size=1, max_size=12)


# --- hashes -----------------------------------------------------------------------------------------------------------


@given(texts, texts, texts, st.integers(1, 16))
def test_as_many_hashes_are_shared_as_blocks(same, one, two, block):
    a, b = block_hashes("t", [*same, *one], block), block_hashes("t", [*same, *two], block)
    shared = len(block_hashes("t", same, block))
    assert a[:shared] == b[:shared] == block_hashes("t", same, block)
    if a != b:  # once different, always different
        first = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
        assert not set(a[first:]) & set(b[first:])


@given(st.binary(max_size=60), st.binary(max_size=60), st.integers(1, 9))
def test_a_long_common_beginning_within_a_text_is_shared(one, two, block):
    a, b = block_hashes("", [one], block), block_hashes("", [two], block)
    common = next((i for i, (x, y) in enumerate(zip(one, two)) if x != y), min(len(one), len(two)))
    inner = min(common, len(one) - 1, len(two) - 1) // block  # cuts before the last byte of either
    assert a[: max(inner, 0)] == b[: max(inner, 0)]
    if one != two:
        assert a[-1] != b[-1] and not set(a[max(inner, 0) :]) & set(b[max(inner, 0) :])


@given(texts)
def test_tenants_share_nothing(parts):
    assert not set(block_hashes("a", parts)) & set(block_hashes("b", parts))


@given(st.lists(st.text(min_size=1, max_size=9), min_size=1, max_size=5), st.data())
def test_where_texts_end_matters(parts, data):
    joined = ["".join(parts)]
    if len(parts) > 1:
        assert block_hashes("", parts)[-1] != block_hashes("", joined)[-1]
    assert len(block_hashes("", parts, 4)) == sum(max(1, math.ceil(len(p.encode()) / 4)) for p in parts)


def test_bodies_of_a_conversation_begin_alike():
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    first = block_hashes("", body_texts({"model": "m", "messages": messages, "seed": 1}))
    later = [*messages, {"role": "assistant", "content": "yes"}, {"content": "and?", "role": "user"}]
    second = block_hashes("", body_texts({"messages": later, "stream": True, "model": "m"}))
    assert second[: len(first)] == first and len(second) == len(first) + 2
    other = block_hashes("", body_texts({"model": "n", "messages": messages}))
    assert not set(other) & set(first)  # another model's rows
    assert list(body_texts({"max_tokens": 3})) == []
    assert prompt_hashes("", json.dumps({"model": "m", "messages": messages}).encode()) == first
    for bad in (b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000, b'{"messages": []}', b"NaN"):
        assert prompt_hashes("", bad) == []
    assert prompt_hashes("", b'{"messages": 3, "tools": NaN, "prompt": "\\ud800"}')
    assert len(list(body_texts({"system": "s", "tools": [{}], "prompt": "p", "input": ["a", "b"]}))) == 5


# --- the ring ---------------------------------------------------------------------------------------------------------


@given(members, st.integers(0, (1 << 64) - 1))
def test_the_order_has_everybody_once(who, key):
    order = list(Ring(who).order(key))
    assert sorted(order) == sorted(who)


@given(members, st.text("xyz", min_size=1, max_size=3), st.lists(st.integers(0, (1 << 64) - 1), max_size=20))
def test_who_comes_takes_and_who_goes_gives_back_alone(who, new, keys):
    ring = Ring(who)
    before = [list(ring.order(k)) for k in keys]
    ring.update({*who, new})
    assert [[m for m in ring.order(k) if m != new] for k in keys] == before
    ring.update(who)
    assert [list(ring.order(k)) for k in keys] == before
    rebuilt = Ring(sorted(who, reverse=True))
    assert [list(rebuilt.order(k)) for k in keys] == before


@pytest.mark.parametrize("count", [2, 5, 16, 64])
def test_one_of_n_moves_about_an_nth(count):
    draw = random.Random(count)
    keys = [draw.getrandbits(64) for _ in range(4000)]
    ring = Ring(range(count))
    before = [next(ring.order(k)) for k in keys]
    ring.update(range(count + 1))
    moved = [k for k, b in zip(keys, before) if next(ring.order(k)) != b]
    assert all(next(ring.order(k)) == count for k in moved)
    assert 0.5 < len(moved) / len(keys) * (count + 1) < 1.7
    shares = [before.count(m) / len(keys) * count for m in range(count)]
    assert min(shares) > 0.4 and max(shares) < 1.8


# --- the router -------------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.integers(1, 10), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.booleans()), max_size=80))
def test_loads_stay_within_the_bound_and_beginnings_stay_together(count, asks):
    """A model of what must hold: a replica over the limit is never chosen, and one that knows most is unless it is full."""
    router, loads, running, known = Router(spare=2), {f"r{i}": 0.0 for i in range(count)}, [], {}
    for program, question, ends in asks:
        if ends and running:
            loads[running.pop(0)] -= 1
        hashes = block_hashes("t", [f"program {program}", f"question {question}"])
        limit = router.limit(loads)
        free = {r for r in loads if loads[r] < limit}
        assert free
        chosen = router.choose(hashes, loads)
        assert chosen in free
        for depth in (2, 1):
            holders = free & {r for r in loads if hashes[depth - 1] in known.get(r, ())}
            if holders:
                assert chosen in holders and loads[chosen] == min(loads[r] for r in holders)
                break
        router.sent(hashes, chosen)
        known.setdefault(chosen, set()).update(hashes)
        loads[chosen] += 1
        running.append(chosen)
        assert max(loads.values()) <= max(2, math.ceil(1.25 * sum(loads.values()) / count))


def test_who_knows_more_comes_first_and_then_who_has_less_to_do():
    router, hashes = Router(), block_hashes("", ["system", "question", "more"])
    for member in "abcd":
        router.sent(hashes[:1] if member == "a" else hashes, member)
    loads = {"a": 0.0, "b": 3.0, "c": 1.0, "d": 2.0, "e": 0.0}
    assert router.ranked(hashes, loads) == ["c", "d", "b", "a", "e"]
    assert router.ranked(hashes, {**loads, "c": 9.0}) == ["d", "b", "a", "e", "c"]


def test_a_growing_conversation_stays_where_it_is():
    router, loads, said = Router(), dict.fromkeys(range(8), 0.0), []
    places = []
    for turn in range(30):
        said += [f"question {turn}", f"reply {turn}" * 80]
        hashes = block_hashes("t", said)
        places.append(router.choose(hashes, loads))
        router.sent(hashes, places[-1])
    assert len(set(places)) == 1


@given(st.integers(2, 12), st.integers(0, 1 << 30))
def test_routers_that_know_nothing_agree(count, seed):
    hashes = block_hashes("t", [f"{seed} {i}" for i in range(ANCHOR + 9)])
    loads = dict.fromkeys(range(count), 0.0)
    back = dict.fromkeys(reversed(range(count)), 0.0)
    shorter = hashes[: ANCHOR + 1]
    assert Router().choose(hashes, loads) == Router().choose(hashes, back) == Router().choose(shorter, loads)


def test_what_is_shared_too_little_does_not_draw_a_prompt():
    router, loads = Router(worth=0.25), dict.fromkeys(range(16), 0.0)
    header = ["be brief"]
    router.sent(block_hashes("", header), 3)
    chosen = {router.choose(block_hashes("", [*header, *(f"{i} {j}" for j in range(9))]), loads) for i in range(60)}
    assert len(chosen) > 8
    assert {router.choose(block_hashes("", [*header, f"{i}"]), loads) for i in range(60)} == {3}


def test_a_replica_that_is_gone_is_forgotten_and_others_stay():
    router, loads = Router(), dict.fromkeys("abc", 0.0)
    prompts = [block_hashes("", [f"p{i}"]) for i in range(60)]
    before = {}
    for i, hashes in enumerate(prompts):
        before[i] = router.choose(hashes, loads)
        router.sent(hashes, before[i])
    left = {"a": 0.0, "c": 0.0}
    for i, hashes in enumerate(prompts):
        assert router.choose(hashes, left) == before[i] or before[i] == "b"
        assert router.choose(hashes, left) in left


def test_without_a_prompt_each_in_turn():
    router = Router()
    assert {router.choose([], dict.fromkeys("abc", 0.0)) for _ in range(3)} == set("abc")
    assert router.choose([], {"a": 2.0, "b": 0.0, "c": 1.0}) == "b"


def test_memory_is_bounded_and_the_oldest_goes():
    router = Router(known=10)
    for i in range(30):
        router.sent(block_hashes("", [f"{i}"]), "a")
        assert len(router) <= 10
    loads = {"a": 0.0, "b": 0.0, "c": 0.0}
    assert router.choose(block_hashes("", ["29"]), loads) == "a"


def test_wrong_options_are_refused():
    for options in ({"bound": 1.0}, {"spare": -1}, {"worth": 2}, {"known": 0}):
        with pytest.raises(InvalidOption):
            Router(**options)
    with pytest.raises(InvalidOption, match="no replica"):
        Router().choose([1], {})
    with pytest.raises(InvalidOption):
        block_hashes("", ["x"], 0)
