"""The suffix automaton of `fucina.speculative.SamIndex`, compiled.

A state stands for a set of end positions in the stream; it is a row of six int32:

    LINK     suffix link: the state of the longest suffix that ends in more places
    LENGTH   tokens in the state's longest string
    SAMPLE   one end position, the most recent that the walks have met
    TOKEN    token of its first edge (-1: no edge), whose target is in the same row: most states have one edge
    TARGET
    MORE     token of the next edge (-1: none), which is in the table

Further edges lie in one open-addressing table, each a row (state, token, target, token of the state's next edge), with
state -1 where it is empty.  Growing algorithm: Blumer et al., "The smallest automaton recognizing the subwords of a
text", 1985.  A state's sample is where its match ended last; a cursor follows the longest match of another text.

Private: nothing here checks its arguments; `SamIndex` does.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numba import njit

from .compile import cached_here

LINK, LENGTH, SAMPLE, TOKEN, TARGET, MORE = range(6)
# Words of `counts`
STATES, EDGES, STORED, TOKENS, LAST, MATCH_STATE, MATCH_LEN = range(7)


@njit
def _slot(table, state, token):
    """Return where the edge is in the table, or the empty place where it belongs."""
    mask = table.shape[0] - 1
    mixed = np.uint64(state) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(token) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    at = np.int64(mixed >> np.uint64(33)) & mask
    while table[at, 0] != -1 and (table[at, 0] != state or table[at, 1] != token):
        at = (at + 1) & mask
    return at


@njit
def _follow(states, table, state, token):
    """Return the target of an edge, or -1 if there is none."""
    if states[state, TOKEN] == token:
        return np.int64(states[state, TARGET])
    if states[state, MORE] == -1:
        return np.int64(-1)
    at = _slot(table, state, token)
    return np.int64(table[at, 2]) if table[at, 0] != -1 else np.int64(-1)


@njit
def _walk(states, table, state, length, token):
    """Return state and length of the longest suffix that goes on with `token`."""
    while True:
        target = _follow(states, table, state, token)
        if target >= 0:
            return target, length + 1
        if state == 0:
            return np.int64(0), np.int64(0)
        state = np.int64(states[state, LINK])
        length = np.int64(states[state, LENGTH])


@njit
def _add(states, table, counts, state, token, target):
    """Add an edge that the state does not have; the table has room for it."""
    counts[EDGES] += 1
    if states[state, TOKEN] == -1:
        states[state, TOKEN] = token
        states[state, TARGET] = target
        return
    at = _slot(table, state, token)
    table[at, 0] = state
    table[at, 1] = token
    table[at, 2] = target
    table[at, 3] = states[state, MORE]
    states[state, MORE] = token
    counts[STORED] += 1


@njit
def _clone(states, table, counts, source, length):
    """Add a state with the edges, link and sample of `source` and another length; return it."""
    new = counts[STATES]
    counts[STATES] += 1
    states[new] = states[source]
    states[new, LENGTH] = length
    states[new, TOKEN] = -1
    states[new, MORE] = -1
    if states[source, TOKEN] != -1:
        _add(states, table, counts, new, states[source, TOKEN], states[source, TARGET])
    token = states[source, MORE]
    while token != -1:
        at = _slot(table, source, token)
        after = table[at, 3]
        _add(states, table, counts, new, token, table[at, 2])
        token = after
    return new


@njit
def _append_one(states, table, stream, counts, token):
    """Append a token; all buffers have room for it."""
    pos = counts[TOKENS]
    # the match may now be followed from its end: this makes the last token's place the most recent one.  One step
    # late on purpose: at once, the draft would begin after the stream's own end.
    if counts[MATCH_LEN] > 0:
        states[counts[MATCH_STATE], SAMPLE] = pos - 1
    # the cursor moves before the stream grows: what it finds has occurred before
    counts[MATCH_STATE], counts[MATCH_LEN] = _walk(states, table, counts[MATCH_STATE], counts[MATCH_LEN], token)
    new = counts[STATES]
    counts[STATES] += 1
    states[new, LINK] = 0
    states[new, LENGTH] = pos + 1
    states[new, SAMPLE] = pos
    states[new, TOKEN] = -1
    states[new, TARGET] = -1
    states[new, MORE] = -1
    state = counts[LAST]
    target = np.int64(-1)
    while state != -1:
        if state != 0:
            states[state, SAMPLE] = pos - 1  # every suffix of the stream so far ended there
        target = _follow(states, table, state, token)
        if target != -1:
            break
        _add(states, table, counts, state, token, new)
        state = np.int64(states[state, LINK])
    if state != -1:
        if states[state, LENGTH] + 1 == states[target, LENGTH]:
            states[new, LINK] = target
        else:
            twin = _clone(states, table, counts, target, states[state, LENGTH] + 1)
            while state != -1 and _follow(states, table, state, token) == target:
                if states[state, TOKEN] == token:
                    states[state, TARGET] = twin
                else:
                    table[_slot(table, state, token), 2] = twin
                if state != 0:
                    states[state, SAMPLE] = pos - 1
                state = np.int64(states[state, LINK])
            states[target, LINK] = twin
            states[new, LINK] = twin
            if counts[MATCH_STATE] == target and counts[MATCH_LEN] <= states[twin, LENGTH]:
                counts[MATCH_STATE] = twin
    counts[LAST] = new
    stream[pos] = token
    counts[TOKENS] = pos + 1


@njit
def _most_edges(states, table, counts, token):
    """Return how many edges appending a token adds at most."""
    most = 1
    state, target = counts[LAST], np.int64(-1)
    while state != -1:
        target = _follow(states, table, state, token)
        if target != -1:
            break
        most += 1
        state = np.int64(states[state, LINK])
    if target != -1 and states[state, LENGTH] + 1 != states[target, LENGTH]:  # those of a clone
        edge = states[target, MORE]
        while edge != -1:
            most += 1
            edge = table[_slot(table, target, edge), 3]
    return most


def append_tokens(tokens, states, table, stream, counts):
    """Append tokens [n] for as long as the buffers have room for certain; return how many were appended."""
    n = tokens.shape[0]
    for i in range(n):
        if counts[TOKENS] >= stream.shape[0] or counts[STATES] + 2 > states.shape[0]:
            return i
        if 10 * (counts[STORED] + _most_edges(states, table, counts, tokens[i])) > 7 * table.shape[0]:
            return i
        _append_one(states, table, stream, counts, tokens[i])
    return n


def refill(table, wider):
    """Put the edges of a table into an empty larger one."""
    for i in range(table.shape[0]):
        if table[i, 0] != -1:
            wider[_slot(wider, table[i, 0], table[i, 1])] = table[i]


def follow_tokens(tokens, states, table, cursor):
    """Move a cursor (state, length) over tokens [n] without changing the automaton."""
    for i in range(tokens.shape[0]):
        cursor[0], cursor[1] = _walk(states, table, cursor[0], cursor[1], tokens[i])


@cache
def appender():
    """Return `append_tokens`, compiled or taken from the cache on disk."""
    with cached_here("append_tokens"):
        return njit("i8(i4[::1], i4[:,::1], i4[:,::1], i4[::1], i8[::1])", cache=True, nogil=True)(append_tokens)


@cache
def refiller():
    """Return `refill`, compiled or taken from the cache on disk."""
    with cached_here("refill"):
        return njit("void(i4[:,::1], i4[:,::1])", cache=True, nogil=True)(refill)


@cache
def follower():
    """Return `follow_tokens`, compiled or taken from the cache on disk."""
    with cached_here("follow_tokens"):
        return njit("void(i4[::1], i4[:,::1], i4[:,::1], i8[::1])", cache=True, nogil=True)(follow_tokens)
