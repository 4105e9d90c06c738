"""Chapter 08 - Where drafts come from.

A wrong draft never changes what the model says, so drafts may come from anywhere.  Here
they come from text that the model has seen already.  You write the matcher that finds them
by brute force.  You write the suffix automaton that finds them in a few steps per token,
and the drafter around it.  Then come a drafter that recycles logits, and the rules by which
several sources share one decoder.  At the end your automaton drafts for a real model.
"""

import copy
import random
from collections import deque
from itertools import pairwise, product
from typing import NamedTuple

from course.exercises import Exercise, given
from course.grading import proving


@given
class AllStrings:
    """An index without any trick: it keeps every string of tokens that was said, one by one.

    A text of n tokens has up to n (n + 1) / 2 of them, so this is for toys only.  It is used
    like an `Automaton`: `append` takes a token, and afterwards these are up to date:

    `match_length`, `match_state` : the longest suffix of the text that had also ended
        earlier, and the number of its state.
    `sample[state]` : where a state's string ended.  `append` writes it once, when the
        string is said for the first time; you may overwrite it with a later place.
    `stream` : the text.
    """

    def __init__(self):
        self.stream = []
        self.states = {(): 0}
        self.sample = [-1]
        self.match_state, self.match_length = 0, 0

    def append(self, token):
        """Take one more token."""
        self.stream += [token]
        ending_here = [tuple(self.stream[i:]) for i in range(len(self.stream) + 1)]  # the longest first
        known = next(string for string in ending_here if string in self.states)
        self.match_state, self.match_length = self.states[known], len(known)
        for string in ending_here:
            if string not in self.states:
                self.states[string] = len(self.sample)
                self.sample.append(len(self.stream) - 1)


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch08.match",
    title="The longest earlier match, by brute force",
    points=10,
    level="easy",
    section="08.1",
    hints=[
        "Try every earlier end: end = 0, 1, ... n - 2. From there and from the end of the text, walk backwards "
        "together for as long as the tokens agree.",
        "The left walk ends at the beginning of the text. It may run past the place where the right walk began: the two "
        "strings may overlap. n - 1 itself is not an earlier end.",
        "Of several matches of the same length the latest counts. If you go from left to right, take a new one when it is "
        "at least as long as the best so far (and longer than 0). The draft is a slice that begins at end + 1.",
    ],
)


@ex.solution
def longest_match(stream):
    """Find the longest suffix of a text that has also ended earlier.

    Parameters
    ----------
    stream : list of int
        n tokens.

    Returns
    -------
    (length, end)
        The last `length` tokens of the text are also the `length` tokens that end at index
        `end`, with end < n - 1.  The longest such length; of several ends, the latest.  The
        two may overlap.  (0, -1) when not even the last token has occurred before.

    Examples
    --------
    >>> longest_match([5, 6, 7, 5, 6])
    (2, 1)
    >>> longest_match([1, 1, 1])
    (2, 1)
    >>> longest_match([1, 2, 3])
    (0, -1)
    """
    best = (0, -1)
    for end in range(len(stream) - 1):
        length = 0
        while length <= end and stream[end - length] == stream[len(stream) - 1 - length]:
            length += 1
        if length > 0 and length >= best[0]:
            best = (length, end)
    return best


@ex.solution
def continuation(stream, limit, min_match=2):
    """Draft what followed the longest earlier match.

    Parameters
    ----------
    stream : list of int
        The text so far.
    limit : int
        At most this many tokens, 0 or more; fewer where the text ends before.
    min_match : int
        A shorter match drafts nothing; 1 or more.

    Returns
    -------
    list of int

    Examples
    --------
    >>> continuation([5, 6, 7, 5, 6], limit=8)
    [7, 5, 6]
    >>> continuation([5, 6, 7, 5, 6], limit=1)
    [7]
    >>> continuation([5, 6, 7, 5], limit=8)
    []
    """
    length, end = longest_match(stream)
    if length < min_match:
        return []
    return stream[end + 1:end + 1 + limit]


@ex.wrong("The text matches itself: its end is a place where its suffixes end, but not an earlier one. Stop before "
          "n - 1.", replaces="longest_match")
def matches_itself(stream):
    n = len(stream)
    return (n, n - 1) if n else (0, -1)


@ex.wrong("Of several matches of the same length it takes the earliest. Text that was revised is best continued from "
          "its latest version.", replaces="longest_match")
def earliest(stream):
    best = (0, -1)
    for end in range(len(stream) - 1):
        length = 0
        while length <= end and stream[end - length] == stream[len(stream) - 1 - length]:
            length += 1
        if length > best[0]:
            best = (length, end)
    return best


@ex.wrong("Takes the latest place where the newest token occurs, however short the match there is. Look at all places "
          "and keep the longest.", replaces="longest_match")
def latest_token(stream):
    for end in reversed(range(len(stream) - 1)):
        length = 0
        while length <= end and stream[end - length] == stream[len(stream) - 1 - length]:
            length += 1
        if length:
            return length, end
    return 0, -1


@ex.wrong("Forbids the two to overlap. In 1 1 1 the suffix 1 1 ends at index 1 as well: that is a match of 2.",
          replaces="longest_match")
def without_overlap(stream):
    best = (0, -1)
    for end in range(len(stream) - 1):
        length = 0
        while length <= end and length < len(stream) - 1 - end \
                and stream[end - length] == stream[len(stream) - 1 - length]:
            length += 1
        if length > 0 and length >= best[0]:
            best = (length, end)
    return best


@ex.wrong("Compares from the front: it looks for the beginning of the text, not for its end.", replaces="longest_match")
def looks_for_the_beginning(stream):
    best = (0, -1)
    for start in range(1, len(stream)):
        length = 0
        while start + length < len(stream) and stream[start + length] == stream[length]:
            length += 1
        if length > 0 and length >= best[0]:
            best = (length, start + length - 1)
    return best


@ex.wrong("The draft begins with the matched tokens. They have been said already: it begins after them, at end + 1.",
          replaces="continuation")
def repeats_the_match(stream, limit, min_match=2):
    length, end = longest_match(stream)
    return [] if length < min_match else stream[end + 1 - length:end + 1 - length + limit]


@ex.wrong("The draft begins at `end`, the last matched token: one too early.", replaces="continuation")
def one_too_early(stream, limit, min_match=2):
    length, end = longest_match(stream)
    return [] if length < min_match else stream[end:end + limit]


@ex.wrong("The limit is not kept.", replaces="continuation")
def without_limit(stream, limit, min_match=2):
    length, end = longest_match(stream)
    return [] if length < min_match else stream[end + 1:]


@ex.wrong("Drafts after any match, however short. A single common token is hardly ever a reason to believe that the "
          "text goes on as it did then.", replaces="continuation")
def any_match(stream, limit, min_match=2):
    length, end = longest_match(stream)
    return [] if length == 0 else stream[end + 1:end + 1 + limit]


@ex.wrong("A match of exactly min_match tokens is long enough: only a shorter one drafts nothing.",
          replaces="continuation")
def more_than_min_match(stream, limit, min_match=2):
    length, end = longest_match(stream)
    return [] if length <= min_match else stream[end + 1:end + 1 + limit]


@ex.wrong("Stops looking at 16 tokens. A match has no longest length: a whole page may have been said before.")
def looks_at_sixteen_tokens(stream):
    n, best = len(stream), (0, -1)
    for end in range(n - 1):
        length = 0
        while length < 16 and length <= end and stream[end - length] == stream[n - 1 - length]:
            length += 1
        if length > 0 and length >= best[0]:
            best = (length, end)
    return best


@ex.wrong("Is content with a match of four tokens. The longest counts, and it may stand further back.")
def is_soon_content(stream):
    n, best = len(stream), (0, -1)
    for end in range(n - 2, -1, -1):
        length = 0
        while length <= end and stream[end - length] == stream[n - 1 - length]:
            length += 1
        if length > best[0]:
            best = (length, end)
        if length >= 4:
            break
    return best


def small_texts():
    """Texts over two and three tokens, the shortest first."""
    for n in range(1, 6):
        for text in product([0, 1] if n > 4 else [0, 1, 2], repeat=n):
            if text[0] == 0:
                yield list(text)


def earlier_ends(stream, length):
    """Where the last `length` tokens have ended before, found with slices."""
    n = len(stream)
    return [end for end in range(length - 1, n - 1) if stream[end + 1 - length:end + 1] == stream[n - length:]]


def expected_match(stream):
    """(length, end) straight from the definition."""
    lengths = [length for length in range(1, len(stream)) if earlier_ends(stream, length)]
    return (max(lengths), earlier_ends(stream, max(lengths))[-1]) if lengths else (0, -1)


def expect_pair(t, got):
    """The result is a pair of two numbers."""
    t.holds(isinstance(got, tuple) and len(got) == 2, f"the result is {got!r}, expected (length, end)")


@ex.check("nothing has occurred before: (0, -1)")
def no_match(mine, t):
    for stream in ([], [7], [7, 8], [4, 4, 5], [1, 2, 3, 4]):
        t.case()
        t.equal(t.call(mine.longest_match, stream), (0, -1))


@ex.check("the longest suffix that has also ended earlier")
def longest(mine, t):
    large = [int(token) for token in "70001 300 70001 300 4465 70001 300".split()]  # every number is an object of its own
    for stream in [*small_texts(), [3, 1, 2, 3, 9, 3, 8, 1, 2, 3], [1, 2, 3, 1, 2, 9, 2, 9], [11, 2, 1, 2], [257, 1, 44, 300],
                   [65537, 1], large, [*range(90)] * 2, [3] * 70]:
        t.case()
        got = t.call(mine.longest_match, stream)
        expect_pair(t, got)
        t.equal(got[0], expected_match(stream)[0], "the length")


@ex.check("of several places where it ended, the latest")
def latest(mine, t):
    random = [[int(token) for token in t.rng.integers(0, 2 + i % 2, 40)] for i in range(30)]
    for stream in ([1, 2, 1, 3, 1], [5, 6, 1, 5, 6, 2, 5, 6], [1, 1, 1, 1], *small_texts(), *random):
        t.case()
        t.equal(t.call(mine.longest_match, stream), expected_match(stream))


@ex.check("the draft is what followed there, up to the limit and the end of the text")
def followed(mine, t):
    for stream in ([5, 6, 7, 5, 6], [5, 6, 1, 2, 3, 5, 6], [5, 6, 1, 5, 6, 2, 4, 5, 6], [9, 9, 9]):
        for limit in (1, 2, 5, 0):
            end = expected_match(stream)[1]
            t.case()
            t.equal(t.call(mine.continuation, stream, limit), stream[end + 1:][:limit])


@ex.check("a match below min_match drafts nothing, one of just that length does")
def minimum(mine, t):
    for stream, length in (([1, 2], 0), ([5, 6, 5], 1), ([5, 6, 7, 5, 6], 2), ([5, 6, 7, 5, 6, 7], 3)):
        for least in (1, 2, 3):
            t.case()
            got = t.call(mine.continuation, stream, 4, least)
            t.holds(isinstance(got, list), f"the result is {got!r}, expected a list")
            t.holds(bool(got) == (length >= least),
                    f"the match has {length} tokens, min_match is {least}, and the draft is {got!r}")


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch08.walk",
    title="Move the cursor over a token",
    points=5,
    level="easy",
    section="08.4",
    hints=[
        "Two questions, again and again: has this state an edge for the token? If it has not, is it the root?",
        "A link leads to a shorter string: the match is then as long as the longest string of the state that the link "
        "leads to. Ask both questions again there.",
        "Over an edge the match becomes one token longer: length + 1. It need not be as long as the longest string of "
        "the state that the edge leads to.",
    ],
)


@given
class FinishedIndex:
    """The suffix automaton of a finished text, built slowly, straight from the definition.

    A state stands for all strings that end at the same places of the text.  State 0, the
    root, is the empty string.

    `link[state]` : the state of its longest suffix that ends at more places; -1 for the root.
    `length[state]` : of its longest string.
    `edges[state]` : a dict: token -> the state of "its string, then the token".
    """

    def __init__(self, text):
        ends = {}
        for first in range(len(text)):
            for last in range(first, len(text)):
                ends.setdefault(tuple(text[first:last + 1]), []).append(last)
        alike = {}
        for string, places in sorted(ends.items(), key=lambda entry: len(entry[0])):
            alike.setdefault(tuple(places), []).append(string)  # the shortest string first
        state_of = {(): 0}
        for number, strings in enumerate(alike.values(), 1):
            state_of.update(dict.fromkeys(strings, number))
        self.length = [0] + [len(strings[-1]) for strings in alike.values()]
        self.link = [-1] + [state_of[strings[0][1:]] for strings in alike.values()]
        self.edges = [{} for _ in self.length]
        for string, number in state_of.items():
            if string:
                self.edges[state_of[string[:-1]]][string[-1]] = number


@ex.solution
def walk(index, state, length, token):
    """Move a cursor over one more token.

    The cursor stands for the longest suffix of the tokens shown so far that occurs in the
    index's text.  From it, and from the token, find the longest suffix that occurs there now.

    While the state has no edge for the token, go to the state's link: that forgets as few
    tokens from the front as possible.  At the root nothing is left to forget.

    Parameters
    ----------
    index : FinishedIndex
        Or anything with `link`, `length` and `edges`, such as an `Automaton`.
    state, length : int
        The cursor: the state of the match, and how many tokens match.  (0, 0) before the
        first token, and whenever nothing matches.
    token : int

    Returns
    -------
    (state, length)
        The new cursor.

    Examples
    --------
    >>> index = FinishedIndex([5, 6, 7])
    >>> walk(index, *walk(index, 0, 0, 5), 6)
    (2, 2)
    >>> walk(index, 2, 2, 9)
    (0, 0)
    """
    while token not in index.edges[state]:
        if state == 0:
            return 0, 0
        state = index.link[state]
        length = index.length[state]
    return index.edges[state][token], length + 1


@ex.wrong("The match keeps its length when the walk follows a link. A link forgets tokens: the match is then as long as "
          "the longest string of the state that the link leads to.")
def keeps_the_length(index, state, length, token):
    while token not in index.edges[state]:
        if state == 0:
            return 0, 0
        state = index.link[state]
    return index.edges[state][token], length + 1


@ex.wrong("Follows one link and then gives up. A shorter suffix, further along the links, may have an edge for the token: "
          "go on to the root.")
def one_link(index, state, length, token):
    if token not in index.edges[state] and state != 0:
        state = index.link[state]
        length = index.length[state]
    if token not in index.edges[state]:
        return 0, 0
    return index.edges[state][token], length + 1


@ex.wrong("Forgets the whole match at once. The suffix link leads to the longest part of it that may still go on.")
def starts_again(index, state, length, token):
    if token not in index.edges[state]:
        state, length = 0, 0
    if token not in index.edges[state]:
        return 0, 0
    return index.edges[state][token], length + 1


@ex.wrong("Gives up where the token does not follow. Fewer tokens of the match may well go on with it: follow the links.")
def gives_up(index, state, length, token):
    if token not in index.edges[state]:
        return 0, 0
    return index.edges[state][token], length + 1


@ex.wrong("Takes the length of the new state's longest string. That string may begin with tokens that the cursor has "
          "never seen: over an edge the match grows by one.")
def longest_of_the_state(index, state, length, token):
    while token not in index.edges[state]:
        if state == 0:
            return 0, 0
        state = index.link[state]
    return index.edges[state][token], index.length[index.edges[state][token]]


@ex.wrong("The length does not grow. Over an edge the match becomes one token longer.")
def does_not_grow(index, state, length, token):
    while token not in index.edges[state]:
        if state == 0:
            return 0, 0
        state = index.link[state]
        length = index.length[state]
    return index.edges[state][token], length


@ex.wrong("At the root, with no edge for the token, a match is left over. Nothing matches there: (0, 0).")
def something_is_left(index, state, length, token):
    while token not in index.edges[state]:
        if state == 0:
            return 0, length
        state = index.link[state]
        length = max(index.length[state], 1)
    return index.edges[state][token], min(length, index.length[state]) + 1


DOCUMENTS = [[1, 2, 3], [0, 0, 0, 0], [1, 0, 3, 0, 3], [1, 2, 1, 3, 1, 2, 4], [3, 1, 2, 4, 1, 2, 5, 2, 6]]


def shown_to(document, told):
    """The longest suffix of `told` that occurs in the document."""
    for length in range(len(told), 0, -1):
        if any(document[i:i + length] == told[-length:] for i in range(len(document))):
            return length
    return 0


def follow(mine, t, document, told):
    """A cursor that is shown some tokens, compared after each."""
    t.case(f"index = FinishedIndex({document})", "state, length = 0, 0")
    index = FinishedIndex(document)
    before = {name: copy.deepcopy(getattr(index, name)) for name in ("edges", "link", "length")}
    state, length = 0, 0
    for n, token in enumerate(told, 1):
        got = t.call(mine, index, state, length, token, shown=f"walk(index, {state}, {length}, {token})", changes=True)
        t.holds(isinstance(got, tuple) and len(got) == 2, f"the result is {got!r}, expected (state, length)")
        for name, old in before.items():
            now = getattr(index, name)
            t.holds(now == old, f"changes the index: index.{name} was {old}, afterwards {now}")
        matched = told[:n][n - shown_to(document, told[:n]):]
        want = 0
        for known in matched:
            want = index.edges[want][known]
        t.equal(got, (want, len(matched)), f"the cursor (the match is {matched})")
        state, length = got


@ex.check("the text goes on as the document does: the match grows by one")
def goes_along(walk, t):
    for document in DOCUMENTS:
        follow(walk, t, document, document)
    follow(walk, t, [3, 1, 2, 4, 1, 2, 5], [1, 2, 5])


@ex.check("a token that the document does not hold: nothing matches, (0, 0)")
def unknown_token(walk, t):
    for document in DOCUMENTS:
        for n in range(len(document) + 1):
            follow(walk, t, document, [*document[:n], 9])


@ex.check("elsewhere the longest part of the match that goes on is kept")
def keeps_the_most(walk, t):
    for document, told in (([1, 2, 3, 2, 4], [1, 2, 4]), ([1, 1, 1], [1, 1, 1, 1, 1]),
                           ([3, 1, 2, 4, 1, 2, 5, 2, 6], [3, 1, 2, 5]), ([3, 1, 2, 4, 1, 2, 5, 2, 6], [3, 1, 2, 6])):
        follow(walk, t, document, told)
    for tokens in (2, 3):
        for n in (5, 9, 14):
            document = [int(token) for token in t.rng.integers(0, tokens, n)]
            follow(walk, t, document, [int(token) for token in t.rng.integers(0, tokens, 20)])


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch08.append",
    title="Append to a suffix automaton",
    points=20,
    level="hard",
    section="08.4",
    hints=[
        "First the cursor (`walk`). Then add the state of the whole text. Then go from `last` along the links, and give "
        "each state an edge for the token to the new state, until one has such an edge already, or the root is passed.",
        "Say the walk stopped at `state`, whose edge leads to `old`. The longest string of `state`, then the token, has "
        "length[state] + 1 tokens. If that is length[old], `old` is right as it is: link to it. If `old` is longer, only "
        "a part of its strings has ended here: that part needs a state of its own.",
        "The clone has length[state] + 1, a copy of old's edges (`dict(...)`, not the same dict), old's link and old's "
        "sample. Then go on from `state` along the links, and turn each edge for the token that leads to `old`, until "
        "one does not.",
        "After that, `old` and the new state both link to the clone, and the cursor moves to it. At the very end: `last` "
        "and `stream`.",
    ],
)


@ex.solution
class Automaton:
    """A suffix automaton over a growing text, with a cursor on the longest earlier match.

    A state stands for all strings that have ended at the same places.  The longest of them
    has `length[state]` tokens.  The others are its suffixes, down to one token more than
    `length[link[state]]`.  State 0, the root, is the empty string.

    Attributes
    ----------
    stream : list of int
        The text.
    link : list of int
        For each state, the state of its longest suffix that has ended at more places; -1
        for the root.
    length : list of int
    sample : list of int
        For each state one place where its strings have ended; -1 for the root.
    edges : list of dict
        For each state: token -> the state of "its string, then the token".
    last : int
        The state of the whole text.
    match_state, match_length : int
        The cursor: the longest suffix of the text that had ended earlier.

    Examples
    --------
    >>> a = Automaton()
    >>> for token in [5, 6, 7, 5, 6]:
    ...     a.append(token)
    >>> a.match_length, a.sample[a.match_state]
    (2, 1)
    """

    @given
    def __init__(self):
        self.stream = []
        self.link, self.length, self.sample, self.edges = [-1], [0], [-1], [{}]
        self.last = 0
        self.match_state, self.match_length = 0, 0

    @given
    def add_state(self, length, sample, link, edges):
        """Make a new state and return its number."""
        self.link.append(link)
        self.length.append(length)
        self.sample.append(sample)
        self.edges.append(edges)
        return len(self.link) - 1

    def walk(self, state, length, token):
        """Move a cursor over a token: your `walk` of ch08.walk, with `self` as the index.

        Nothing of the automaton changes, its own cursor included.
        """
        while token not in self.edges[state]:
            if state == 0:
                return 0, 0
            state = self.link[state]
            length = self.length[state]
        return self.edges[state][token], length + 1

    def append(self, token):
        """Take one more token, at position pos = len(stream) as it is before the call.

        (A few steps per token are the point of it.  But what is checked is what it finds, not
        what it costs.)

        The cursor moves first, in the automaton without the token: what it finds has ended
        earlier.  Then the automaton becomes that of the longer text:

        - The whole text is a new state, with sample pos.
        - Where some strings of a state have ended at pos and others have not, the state is
          split.  The longer strings keep it, and its sample.  The shorter ones move to a new state, the
          clone, which takes the edges, the link and the sample of the state that it came
          from.  (Its strings have ended at pos as well, but nothing follows there yet.)  The
          clone's longest string is just the match, so the cursor moves to the clone.
        - A state whose edge for the token is set, found in place or turned to a clone stands
          for suffixes of the text before the token.  They have ended at pos - 1, and that
          becomes the state's sample.  The root's sample stays -1.
        """
        pos = len(self.stream)
        self.match_state, self.match_length = self.walk(self.match_state, self.match_length, token)
        new = self.add_state(pos + 1, pos, 0, {})
        state, old = self.last, None
        while state != -1:
            if state != 0:
                self.sample[state] = pos - 1
            old = self.edges[state].get(token)
            if old is not None:
                break
            self.edges[state][token] = new
            state = self.link[state]
        if old is not None:
            if self.length[old] == self.length[state] + 1:
                self.link[new] = old
            else:
                clone = self.add_state(self.length[state] + 1, self.sample[old], self.link[old], dict(self.edges[old]))
                while state != -1 and self.edges[state].get(token) == old:
                    self.edges[state][token] = clone
                    if state != 0:
                        self.sample[state] = pos - 1
                    state = self.link[state]
                self.link[old] = self.link[new] = self.match_state = clone
        self.last = new
        self.stream.append(token)


@ex.wrong("The cursor moves after the automaton was extended. By then the whole text is one of its strings, so the text "
          "matches itself, and the match grows with every token. Move the cursor first.")
class CursorAfterExtension(Automaton):
    def append(self, token):
        state, length = self.match_state, self.match_length
        super().append(token)
        self.match_state, self.match_length = self.walk(state, length, token)


@ex.wrong("No edge leads to the clone. The edges for the token that led to the old state must be turned to the clone, or "
          "it is never found.")
class NoRedirect(Automaton):
    def append(self, token):
        before = [dict(edges) for edges in self.edges]
        super().append(token)
        for state, edges in enumerate(before):
            if token in edges:
                self.edges[state][token] = edges[token]


@ex.wrong("Only the first edge is turned to the clone. Shorter suffixes, further along the links, have edges to the "
          "old state as well: go on until one leads elsewhere.")
class RedirectsOnce(Automaton):
    def append(self, token):
        before = [dict(edges) for edges in self.edges]
        super().append(token)
        turned = [s for s, edges in enumerate(before) if edges.get(token, -1) not in (-1, self.edges[s].get(token))]
        for state in sorted(turned, key=lambda s: -self.length[s])[1:]:
            self.edges[state][token] = before[state][token]


@ex.wrong("The clone's sample is the present position. Its strings do end there, but a draft needs an earlier place: "
          "this one is followed by nothing. The clone takes the old state's sample.")
class CloneSampleIsNow(Automaton):
    def append(self, token):
        states = len(self.link)
        super().append(token)
        if len(self.link) == states + 2:
            self.sample[-1] = len(self.stream) - 1


@ex.wrong("Clone and old state share one dict of edges: what is entered for one of them appears at the other. The "
          "clone needs a copy.")
class SharedEdges(Automaton):
    def append(self, token):
        states = len(self.link)
        super().append(token)
        if len(self.link) == states + 2:
            clone = states + 1
            self.edges[clone] = self.edges[next(s for s in range(states) if self.link[s] == clone)]


@ex.wrong("The cursor stays on the old state when its match has become a string of the clone: from there it goes on "
          "with the wrong edges and links.")
class CursorStays(Automaton):
    def append(self, token):
        match = self.walk(self.match_state, self.match_length, token)
        super().append(token)
        self.match_state, self.match_length = match


@ex.wrong("Leaves a state whole that must be split: the new state links to wherever the edge leads, although some strings of "
          "that state are longer than the match. One state then stands for strings that ended at different places.")
class NeverSplits(Automaton):
    def append(self, token):
        pos = len(self.stream)
        self.match_state, self.match_length = self.walk(self.match_state, self.match_length, token)
        new = self.add_state(pos + 1, pos, 0, {})
        state = self.last
        while state != -1:
            if state != 0:
                self.sample[state] = pos - 1
            if token in self.edges[state]:
                self.link[new] = self.edges[state][token]
                break
            self.edges[state][token] = new
            state = self.link[state]
        self.last = new
        self.stream.append(token)


@ex.wrong("The new state links to the old one instead of the clone. The old state's longest strings are no suffixes of "
          "the text.")
class LinksToTheOld(Automaton):
    def append(self, token):
        states = len(self.link)
        super().append(token)
        if len(self.link) == states + 2:
            self.link[states] = next(s for s in range(states) if self.link[s] == states + 1)


@ex.wrong("The new state is not linked to the clone. Both link to it: the old state and the new one.")
class NewIsNotLinked(Automaton):
    def append(self, token):
        states = len(self.link)
        super().append(token)
        if len(self.link) == states + 2:
            self.link[states] = 0


@ex.wrong("The state that was split gets a new sample. Its longer strings have not ended here: they keep the state and its "
          "sample.")
class SplitStateRefreshed(Automaton):
    def append(self, token):
        states = len(self.link)
        super().append(token)
        if len(self.link) == states + 2:
            self.sample[next(s for s in range(states) if self.link[s] == states + 1)] = len(self.stream) - 2


@ex.wrong("`walk` moves the automaton's own cursor. It takes a cursor and returns one: others follow texts of their own over "
          "the same automaton.")
class WalkMovesTheOwn(Automaton):
    def walk(self, state, length, token):
        self.match_state, self.match_length = super().walk(state, length, token)
        return self.match_state, self.match_length


@ex.wrong("The old state keeps its link. Its longest suffix that has ended at more places is the clone now.")
class OldKeepsItsLink(Automaton):
    def append(self, token):
        states = len(self.link)
        super().append(token)
        if len(self.link) == states + 2:
            old = next(s for s in range(states) if self.link[s] == states + 1)
            self.link[old] = self.link[states + 1]


@ex.wrong("The states along the links keep their old samples, so drafts go on copying the first version of a passage, "
          "long after a later one was written. Each state whose edge is set, found or turned has ended at pos - 1.")
class KeepsFirstSamples(Automaton):
    def append(self, token):
        before = list(self.sample)
        super().append(token)
        self.sample[:len(before)] = before


@ex.wrong("The states whose edges are turned to the clone keep their old samples, from the second on. They are suffixes "
          "of the text so far as well, so they have ended at pos - 1, too.")
class TurnedStatesKeepSamples(Automaton):
    def append(self, token):
        before, state = list(self.sample), self.last
        way = {state}
        while state > 0 and token not in self.edges[state]:
            state = self.link[state]
            way.add(state)
        super().append(token)
        for state, sample in enumerate(before):
            if state not in way:
                self.sample[state] = sample


def texts_for_automata(t):
    """Texts from small to large; among the small ones all that are different in kind."""
    for n in range(1, 7):
        for text in product([0, 1, 2] if n < 6 else [0, 1], repeat=n):
            if all(token <= max(text[:i], default=-1) + 1 for i, token in enumerate(text)):
                yield list(text)
    yield [1, 2, 3, 1, 3, 1, 3]  # two edges are turned, and the second state has a sample to refresh
    for tokens in (2, 3, 5):
        yield [int(token) for token in t.rng.integers(0, tokens, 14)]


def grown(t, Automaton, text):
    """The automaton of a text, told as code."""
    t.case("a = Automaton()", f"for token in {text}:", "    a.append(token)")
    a = Automaton()
    for token in text:
        t.call(a.append, token, shown=None, changes=True)
    return a


def all_ends(text):
    """Of every string in a text: where it ends."""
    ends = {}
    for start in range(len(text)):
        for end in range(start, len(text)):
            ends.setdefault(tuple(text[start:end + 1]), set()).add(end)
    return ends


def state_of(a, string):
    """The state that a string leads to from the root, None where an edge is missing."""
    state = 0
    for token in string:
        if token not in a.edges[state]:
            return None
        state = a.edges[state][token]
    return state


@ex.check("after every append the match is as long as the longest suffix that ended earlier")
def right_match(Automaton, t):
    for text in texts_for_automata(t):
        t.case("a = Automaton()")
        a = Automaton()
        for n, token in enumerate(text, 1):
            t.call(a.append, token, shown=f"a.append({token})", changes=True)
            t.equal(a.match_length, expected_match(text[:n])[0], "a.match_length")


@ex.check("the strings of the text, and no others, lead from the root to a state")
def right_strings(Automaton, t):
    for text in texts_for_automata(t):
        a = grown(t, Automaton, text)
        t.equal(a.stream, text, "a.stream")
        ends = all_ends(text)
        for string in sorted(ends, key=len):
            t.holds(state_of(a, string) is not None, f"the string {list(string)} leads nowhere")
        tokens = sorted(set(text))
        for string in sorted(ends, key=len):
            for token in tokens:
                other = (*string, token)
                t.holds(other in ends or state_of(a, other) is None,
                        f"the string {list(other)} is not in the text, and leads to a state")


@ex.check("a state is all strings that ended at the same places: its length and its link say which")
def right_states(Automaton, t):
    for text in texts_for_automata(t):
        a = grown(t, Automaton, text)
        strings = {}
        for string, ends in all_ends(text).items():
            strings.setdefault(frozenset(ends), []).append(string)
        for ends, same in sorted(strings.items(), key=lambda pair: len(min(pair[1], key=len))):
            longest, shortest = max(same, key=len), min(same, key=len)
            state = state_of(a, longest)
            for string in sorted(same, key=len):
                t.holds(state_of(a, string) == state,
                        f"{list(string)} and {list(longest)} end at the same places, {sorted(ends)}, but lead to "
                        f"states {state_of(a, string)} and {state}")
            t.equal(a.length[state], len(longest), f"the length of the state of {list(longest)}")
            t.equal(a.link[state], state_of(a, shortest[1:]), f"the link of the state of {list(longest)}")
        t.equal(len(a.link), len(strings) + 1, "the number of states, the root included")


@ex.check("the cursor stands on the state of the matched string, whose sample lies before the end")
def right_cursor(Automaton, t):
    for text in texts_for_automata(t):
        a = grown(t, Automaton, text)
        length = expected_match(text)[0]
        matched = text[len(text) - length:]
        t.equal(a.match_state, state_of(a, matched), f"a.match_state (the match is {matched})")
        if length:
            t.holds(a.sample[a.match_state] in earlier_ends(text, length),
                    f"{matched} ended earlier at {earlier_ends(text, length)}, but the sample of its state is "
                    f"{a.sample[a.match_state]}")


def way_of(a, token):
    """The states that an append of `token` passes: to the first with an edge for it, and on while edges are turned."""
    way, state = [], a.last
    while state > 0:
        way.append(state)
        if token in a.edges[state]:
            break
        state = a.link[state]
    if state <= 0:
        return way
    old = a.edges[state][token]
    if a.length[old] != a.length[state] + 1:
        state = a.link[state]
        while state > 0 and a.edges[state].get(token) == old:
            way.append(state)
            state = a.link[state]
    return way


@ex.check("a state whose edge for the token is set, found or turned has ended at pos - 1: its sample says so")
def fresh_samples(Automaton, t):
    for text in texts_for_automata(t):
        t.case("a = Automaton()")
        a = Automaton()
        for pos, token in enumerate(text):
            way = way_of(a, token)
            t.call(a.append, token, shown=f"a.append({token})", changes=True)
            for state in way:
                t.equal(a.sample[state], pos - 1, f"the sample of state {state}, whose edge for {token} is set, found or turned")
            t.equal(a.sample[0], -1, "the sample of the root, which stands for no place")


@ex.check("all other samples: pos for the whole text; the clone takes the old state's; the rest stay")
def other_samples(Automaton, t):
    for text in texts_for_automata(t):
        t.case("a = Automaton()")
        a = Automaton()
        for pos, token in enumerate(text):
            way, before, edges = way_of(a, token), list(a.sample), [dict(edge) for edge in a.edges]
            t.call(a.append, token, shown=f"a.append({token})", changes=True)
            t.equal(a.sample[a.last], pos, "the sample of the state of the whole text")
            for state, sample in enumerate(before):
                if state not in way:
                    t.equal(a.sample[state], sample, f"the sample of state {state}, whose edge for {token} is not looked at,")
            for state in [0, *way]:
                old, now = edges[state].get(token), a.edges[state].get(token)
                if old is not None and old != now and old not in way:
                    t.equal(a.sample[now], before[old], f"the sample of state {now}, the clone of state {old},")


@ex.check("`walk` moves any cursor, and leaves the automaton as it is")
def free_cursor(Automaton, t):
    for text, told in (([1, 2, 1], [2, 1, 1]), ([1, 2, 3, 2, 4], [1, 2, 4, 9, 3]), ([3, 1, 2, 4, 1, 2, 5, 2], [3, 1, 2, 5, 2])):
        a = grown(t, Automaton, text)
        own, edges = (a.match_state, a.match_length), copy.deepcopy(a.edges)
        state = length = 0
        for n, token in enumerate(told, 1):
            got = t.call(a.walk, state, length, token, shown=f"a.walk({state}, {length}, {token})", changes=True)
            size = shown_to(text, told[:n])
            t.equal(got, (state_of(a, told[n - size:n]), size))
            t.equal((a.match_state, a.match_length), own, "(a.match_state, a.match_length) after the walk")
            t.holds(a.edges == edges, f"a.edges was {edges}, after the walk {a.edges}")
            state, length = got


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch08.draft",
    title="From a state to a draft",
    points=15,
    level="medium",
    section="08.5",
    hints=[
        "`suggest` is three questions and a slice. Does the context end with the newest token of the index? Is the "
        "match long enough? Then: where did it end, and what came after it?",
        "`observe` takes the tokens one by one. Before the index takes a token, think of the match as it is now. What "
        "will be true of the place where it ends, once another token follows there?",
        "The match ends at the last position of the stream. Once the next token is there, that place has a "
        "continuation, and it is the latest: sample[match_state] = len(stream) - 1, then append. Do nothing of the kind "
        "when nothing matches.",
    ],
)


@ex.solution
class Drafter:
    """A source of drafts over an index of everything that was said.

    Parameters
    ----------
    index : object
        An `Automaton`, or anything with `append`, `stream`, `sample`, `match_state` and
        `match_length`, such as `AllStrings`.
    min_match : int
        A shorter match drafts nothing; 1 or more.

    Examples
    --------
    >>> drafter = Drafter(AllStrings())
    >>> drafter.observe([1, 2, 3, 1, 2, 4, 1, 2])
    >>> drafter.suggest([1, 2], limit=3)
    [4, 1, 2]
    """

    @given
    def __init__(self, index, min_match=2):
        self.index, self.min_match = index, min_match

    def observe(self, committed):
        """Take note of tokens that have become part of the text, one after the other.

        Of a string that was said several times, the latest place is the one to copy from.
        The match ends at the end of the text.  It cannot be copied from there yet, because
        nothing follows.  With the next token something does: so, *before* the index takes a
        token, the sample of the match's state becomes the last position of the stream as it
        is then.  Without a match there is nothing to refresh: the root's sample stays -1.
        (No draft begins at a match shorter than `min_match`.  Whether you refresh those as
        well makes no difference.)

        Parameters
        ----------
        committed : list of int
        """
        index = self.index
        for token in committed:
            if index.match_length > 0:
                index.sample[index.match_state] = len(index.stream) - 1
            index.append(token)

    def suggest(self, context, limit):
        """Return a draft: what followed the match's sample in the stream.

        Parameters
        ----------
        context : list of int
            The text as the decoder has it.  If it is empty, or its last token is not the last
            token of the index, the two are out of step, and nothing is drafted.
        limit : int
            At most this many tokens, 0 or more; fewer where the stream ends before.

        Returns
        -------
        list of int
            Empty as well when the match is shorter than `min_match`.
        """
        index = self.index
        if not context or not index.stream or context[-1] != index.stream[-1]:
            return []
        if index.match_length < self.min_match:
            return []
        start = index.sample[index.match_state] + 1
        return index.stream[start:start + limit]


@ex.wrong("The sample is never refreshed. When a passage is revised, its first version is copied for ever.")
class FirstVersion(Drafter):
    def observe(self, committed):
        for token in committed:
            self.index.append(token)


@ex.wrong("The sample is refreshed after the append: it is then the end of the text, which nothing follows, and the "
          "draft is empty. Refresh before the append, one token late.")
class RefreshedTooEarly(Drafter):
    def observe(self, committed):
        index = self.index
        for token in committed:
            index.append(token)
            if index.match_length > 0:
                index.sample[index.match_state] = len(index.stream) - 1


@ex.wrong("Refreshes once for all tokens of a call. A verify commits several tokens at once, and a prompt hundreds: "
          "each of them has a match of its own.")
class RefreshedOnce(Drafter):
    def observe(self, committed):
        index = self.index
        if index.match_length > 0:
            index.sample[index.match_state] = len(index.stream) - 1
        for token in committed:
            index.append(token)


@ex.wrong("The place that is entered is one too late: the match ends at the last position of the stream, "
          "len(stream) - 1.")
class OneTooFar(Drafter):
    def observe(self, committed):
        index = self.index
        for token in committed:
            if index.match_length > 0:
                index.sample[index.match_state] = len(index.stream)
            index.append(token)


@ex.wrong("The draft begins at the sample, the last token of the match: that one has been said. It begins one later.")
class BeginsAtTheSample(Drafter):
    def suggest(self, context, limit):
        index = self.index
        if not context or not index.stream or context[-1] != index.stream[-1] or index.match_length < self.min_match:
            return []
        start = index.sample[index.match_state]
        return index.stream[start:start + limit]


@ex.wrong("The limit is not kept.")
class NoLimit(Drafter):
    def suggest(self, context, limit):
        return super().suggest(context, len(self.index.stream))


@ex.wrong("Drafts one token where the limit is 0. Then nothing may be drafted.")
class OneAtLeast(Drafter):
    def suggest(self, context, limit):
        return super().suggest(context, max(1, limit))


@ex.wrong("Copies from the context. The places are numbered in the index's stream: the draft is a part of that.")
class CopiesFromTheContext(Drafter):
    def suggest(self, context, limit):
        start = self.index.sample[self.index.match_state] + 1
        return context[start:start + limit] if super().suggest(context, limit) else []


@ex.wrong("Refreshes the root, too. Without a match there is nothing to refresh: the root stands for no place.")
class RefreshesTheRoot(Drafter):
    def observe(self, committed):
        for token in committed:
            self.index.sample[self.index.match_state] = len(self.index.stream) - 1
            self.index.append(token)


@ex.wrong("Drafts without asking how long the match is. The root's sample is -1, so that with no match at all it "
          "proposes the beginning of the text.")
class AnyMatch(Drafter):
    def suggest(self, context, limit):
        index = self.index
        if not context or not index.stream or context[-1] != index.stream[-1]:
            return []
        start = index.sample[index.match_state] + 1
        return index.stream[start:start + limit]


@ex.wrong("Does not look at the context. After an error or a rewind the index may have seen another text than the "
          "decoder: such drafts are never right, and each of them costs a verify.")
class NeverInDoubt(Drafter):
    def suggest(self, context, limit):
        return super().suggest(self.index.stream, limit)


def told(t, Drafter, *parts):
    """A drafter over AllStrings that has observed some texts."""
    t.case("d = Drafter(AllStrings())")
    drafter = Drafter(AllStrings())
    for part in parts:
        t.call(drafter.observe, part, shown=f"d.observe({part})")
    return drafter


def draft_of(t, drafter, context, limit):
    """What a drafter suggests."""
    return t.call(drafter.suggest, context, limit, shown=f"d.suggest({context}, {limit})")


@ex.check("the draft is what followed the match, up to the limit and the end of the stream")
def copies(Drafter, t):
    for text, want in (([5, 6, 7, 5, 6], [7, 5, 6]), ([1, 2, 3, 4, 1, 2], [3, 4, 1, 2]),
                       ([8, 1, 2, 3, 9, 1, 2, 3], [9, 1, 2, 3]), ([5, 0, 7, 5, 0], [7, 5, 0])):
        for limit in (8, 2, 1, 0):
            drafter = told(t, Drafter, text)
            t.equal(draft_of(t, drafter, text, limit), want[:limit])
            t.equal(draft_of(t, drafter, text, limit), want[:limit], "the result, asked again,")


@ex.check("a match shorter than min_match drafts nothing")
def long_enough(Drafter, t):
    for text in ([1], [1, 2], [1, 2, 3, 1], [4, 1, 2, 3, 4]):
        drafter = told(t, Drafter, text)
        t.equal(draft_of(t, drafter, text, 4), [])
    for text, least, want in (([1, 2, 1], 1, [2, 1]), ([1, 2, 1], 2, []), ([1, 2, 1, 3, 1], 1, [3, 1])):
        t.case(f"d = Drafter(AllStrings(), min_match={least})")
        drafter = Drafter(AllStrings(), least)
        t.call(drafter.observe, text, shown=f"d.observe({text})")
        t.equal(draft_of(t, drafter, text, 4), want)


@ex.check("without a match nothing is refreshed: the root's sample stays -1")
def root_stays(Drafter, t):
    for text in ([1], [1, 2], [1, 2, 1, 3]):
        drafter = told(t, Drafter, text)
        t.equal(drafter.index.sample[0], -1, "d.index.sample[0]")


VERSIONS = [([1, 2, 7], [1, 2, 8], [1, 2]), ([1, 2, 7], [1, 2, 8], [1, 2, 9], [1, 2]),
            ([4, 1, 2, 7], [3, 1, 2, 8], [5, 1, 2])]


@ex.check("of several versions the latest is copied, told token by token")
def latest_version(Drafter, t):
    for parts in VERSIONS:
        text = sum(parts, [])
        drafter = told(t, Drafter, *([token] for token in text))
        t.equal(draft_of(t, drafter, text, 3), (parts[-2] + parts[-1])[len(parts[-1]):][:3])


@ex.check("of several versions the latest is copied, told many tokens at once")
def latest_version_at_once(Drafter, t):
    for parts in VERSIONS:
        text = sum(parts, [])
        for calls in (parts, [text]):
            drafter = told(t, Drafter, *calls)
            t.equal(draft_of(t, drafter, text, 3), (parts[-2] + parts[-1])[len(parts[-1]):][:3])


@ex.check("texts at random: each draft copies from the latest place that could be known")
def at_random(Drafter, t):
    for n in (6, 9, 14):
        for _ in range(4):
            text = [int(token) for token in t.rng.integers(0, 3, n)]
            matches = [expected_match(text[:i + 1])[0] for i in range(n)]
            length = matches[-1]
            if length < 2:
                continue
            ends = earlier_ends(text, length)
            known = [end for end in ends if matches[end] == length]  # there it was the match, and was refreshed
            place = max(known, default=ends[0])
            drafter = told(t, Drafter, text[:n // 2], text[n // 2:])
            t.equal(draft_of(t, drafter, text, n), text[place + 1:])


@ex.check("an index that is not in step with the context drafts nothing")
def in_step(Drafter, t):
    text = [1, 2, 3, 1, 2]
    for context in ([], [1, 2, 3], [9], [1, 2, 3, 1, 2, 3]):
        drafter = told(t, Drafter, text)
        t.equal(draft_of(t, drafter, context, 4), [])
    drafter = told(t, Drafter)
    t.equal(draft_of(t, drafter, [1], 4), [])


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch08.recycle",
    title="Recycle what the model nearly said",
    points=20,
    level="medium",
    section="08.7",
    hints=[
        "`promote`: build the row anew: the follower, then the others without it, then cut at k.",
        "`observe` goes through pairs. The first pair joins the last token of the call before with the first one of "
        "this call. Keep the pairs of this call in `self.newest`: `observe_top_k` promotes them once more.",
        "`suggest`: a loop in which the first candidate of a token becomes the next token. It ends when there is none, "
        "and at the smaller of limit and chain.",
        "`run`: suggest, verify, extend the history, count, observe, observe_top_k. Of a step's committed tokens, all "
        "but the last were drafted. The limit is min(8, tokens that are still missing, less 1).",
    ],
)


@given
class TopKRow(NamedTuple):
    """Feedback of one verified row: the token that went in, and the best next tokens, best first."""

    token: int
    top_k: list


@given
class NearModel:
    """A pretend model that looks at the newest token only."""

    def top_k(self, history):
        """The three best next tokens; the first one is what it says."""
        best = (5 * history[-1] + 3) % 64
        return [best, (best + 7) % 64, (best + 20) % 64]


@given
class FarModel:
    """A pretend model that looks at the newest two tokens."""

    def top_k(self, history):
        """The three best next tokens; the first one is what it says."""
        best = (history[-2] + history[-1] + 1) % 64
        return [best, (best + 7) % 64, (best + 20) % 64]


@given
def verify(model, history, draft):
    """One verify step as in chapter 07, on a pretend model.

    Returns
    -------
    (committed, rows)
        The tokens that the step settles: the accepted part of the draft, then one of the
        model's own.  And a TopKRow for each row that was looked at.
    """
    committed, rows = [], []
    for guess in [*draft, None]:
        text = history + committed
        best = model.top_k(text)
        rows.append(TopKRow(text[-1], best))
        committed.append(best[0])
        if best[0] != guess:
            break
    return committed, rows


@ex.solution
class Recycler:
    """A source of drafts that remembers, for each token, what came or nearly came after it.

    Parameters
    ----------
    k : int
        Candidates that are kept per token.
    chain : int
        The longest draft.

    Attributes
    ----------
    table : dict
        token -> list of at most k candidates, the best first.
    last : int or None
        The newest token.
    newest : list of (token, follower)
        The pairs of the latest `observe`.

    Examples
    --------
    >>> recycler = Recycler()
    >>> recycler.observe([3, 7, 5])
    >>> recycler.suggest([3], limit=8)
    [7, 5]
    """

    @given
    def __init__(self, k=8, chain=8):
        self.k, self.chain = k, chain
        self.table = {}
        self.last = None
        self.newest = []

    def promote(self, token, follower):
        """Make `follower` the first candidate after `token`.

        The other candidates follow it in their old order; what is beyond k is dropped.
        """
        others = [other for other in self.table.get(token, []) if other != follower]
        self.table[token] = [follower, *others][:self.k]

    def observe(self, committed):
        """Take note of tokens that were settled: each is promoted as a follower of the one before it.

        The first one follows the last token of the call before.
        """
        self.newest = []
        for token in committed:
            if self.last is not None:
                self.newest.append((self.last, token))
                self.promote(self.last, token)
            self.last = token

    def observe_top_k(self, rows):
        """Take note of verified rows; called after `observe`.

        The first k tokens of a row become the candidates after `row.token`, in place of those
        that were there.  Then what was really settled is promoted again: the pairs of the
        latest `observe`, in their order.

        Parameters
        ----------
        rows : list of TopKRow
        """
        for row in rows:
            self.table[row.token] = list(row.top_k[:self.k])
        for token, follower in self.newest:
            self.promote(token, follower)

    def suggest(self, context, limit):
        """Follow first candidates from the last token of the context, which has one at least.

        Returns
        -------
        list of int
            At most min(limit, chain) tokens; it ends where a token has no candidate.
        """
        draft, token = [], context[-1]
        while len(draft) < min(limit, self.chain) and self.table.get(token):
            token = self.table[token][0]
            draft.append(token)
        return draft


@ex.solution
def run(model, drafter, prompt, n):
    """Decode n tokens with drafts, and count.

    The drafter observes the prompt, in one call.  Then, step by step: for the text so far,
    prompt included, it suggests a draft of at most 8 tokens, and never more than one less than
    are still missing; `verify` settles some tokens; the drafter observes them, all in one call,
    and after that the rows (`observe_top_k`).

    Parameters
    ----------
    model : NearModel or FarModel
    drafter : object with suggest, observe and observe_top_k
    prompt : list of int
        Two tokens or more.
    n : int
        0 or more.

    Returns
    -------
    (tokens, counts)
        The n new tokens, and a dict with "steps", "drafted" and "accepted".

    Examples
    --------
    >>> tokens, counts = run(NearModel(), Recycler(), [1, 2], 4)
    >>> tokens, counts["steps"]
    ([13, 4, 23, 54], 4)
    """
    history = list(prompt)
    drafter.observe(list(prompt))
    counts = {"steps": 0, "drafted": 0, "accepted": 0}
    while len(history) < len(prompt) + n:
        missing = len(prompt) + n - len(history)
        draft = drafter.suggest(history, min(8, missing - 1))
        committed, rows = verify(model, history, draft)
        history += committed
        counts["steps"] += 1
        counts["drafted"] += len(draft)
        counts["accepted"] += len(committed) - 1
        drafter.observe(committed)
        drafter.observe_top_k(rows)
    return history[len(prompt):], counts


@ex.wrong("What followed last replaces all the candidates. The older ones move down; they are not thrown away.",
          replaces="Recycler")
class OnlyTheLast(Recycler):
    def promote(self, token, follower):
        self.table[token] = [follower]


@ex.wrong("A token that moves to the front stays in its old place too: the row fills up with copies of it.",
          replaces="Recycler")
class Duplicates(Recycler):
    def promote(self, token, follower):
        self.table[token] = [follower, *self.table.get(token, [])][:self.k]


@ex.wrong("A new follower goes to the end of the row. It belongs to the front: what came last is the best guess.",
          replaces="Recycler")
class ToTheEnd(Recycler):
    def promote(self, token, follower):
        row = self.table.setdefault(token, [])
        if follower not in row:
            row.append(follower)
            del row[self.k:]


@ex.wrong("Rows grow beyond k candidates.", replaces="Recycler")
class Unbounded(Recycler):
    def promote(self, token, follower):
        others = [other for other in self.table.get(token, []) if other != follower]
        self.table[token] = [follower, *others]


@ex.wrong("Each call begins anew, and the pair across two calls is lost. In plain decoding every call has one token, so "
          "nothing would ever be learned.", replaces="Recycler")
class BeginsAnew(Recycler):
    def observe(self, committed):
        self.last = None
        super().observe(committed)


@ex.wrong("Takes token 0 for no token at all. `if self.last:` is false for 0: ask `is not None`.", replaces="Recycler")
class ZeroIsNoToken(Recycler):
    def observe(self, committed):
        self.newest = []
        for token in committed:
            if self.last:
                self.newest.append((self.last, token))
                self.promote(self.last, token)
            self.last = token


@ex.wrong("Ends the chain at token 0. It is a token like any other, and not the end of the candidates.",
          replaces="Recycler")
class ZeroEndsTheChain(Recycler):
    def suggest(self, context, limit):
        draft, token = [], context[-1]
        while len(draft) < min(limit, self.chain) and self.table.get(token):
            token = self.table[token][0]
            if not token:
                break
            draft.append(token)
        return draft


@ex.wrong("The rows are entered last. Where the model sampled something other than its best token, what was really said "
          "is then no longer in front. Promote the newest pairs again after the rows.", replaces="Recycler")
class RowsWin(Recycler):
    def observe_top_k(self, rows):
        self.newest = []
        super().observe_top_k(rows)


@ex.wrong("The row's tokens are added to the old candidates. They must replace them: a row is all that the model thinks "
          "now.",
          replaces="Recycler")
class AddsRows(Recycler):
    def observe_top_k(self, rows):
        for row in rows:
            for token in reversed(row.top_k[:self.k]):
                self.promote(row.token, token)
        super().observe_top_k([])


@ex.wrong("Proposes the candidates of one token, one after the other. They are alternatives for the same place; a draft "
          "needs one token for each of the next places. Take the first candidate, then its own first candidate.",
          replaces="Recycler")
class SideBySide(Recycler):
    def suggest(self, context, limit):
        return self.table.get(context[-1], [])[:min(limit, self.chain)]


@ex.wrong("The draft may be longer than limit or chain allow. Where tokens follow each other in a circle it never "
          "ends.",
          replaces="Recycler")
class TooLong(Recycler):
    def suggest(self, context, limit):
        draft, token = [], context[-1]
        while len(draft) < 1000 and self.table.get(token):
            token = self.table[token][0]
            draft.append(token)
        return draft


@ex.wrong("The drafter observes its own draft. It must be told what was settled; rejected tokens were never said.",
          replaces="run")
def tells_the_draft(model, drafter, prompt, n):
    history = list(prompt)
    drafter.observe(list(prompt))
    counts = {"steps": 0, "drafted": 0, "accepted": 0}
    while len(history) < len(prompt) + n:
        draft = drafter.suggest(history, min(8, len(prompt) + n - len(history) - 1))
        committed, rows = verify(model, history, draft)
        history += committed
        counts["steps"] += 1
        counts["drafted"] += len(draft)
        counts["accepted"] += len(committed) - 1
        drafter.observe(draft)
        drafter.observe_top_k(rows)
    return history[len(prompt):], counts


@ex.wrong("The rows are thrown away: the drafter only learns what was said, not what nearly was.", replaces="run")
def no_feedback(model, drafter, prompt, n):
    history = list(prompt)
    drafter.observe(list(prompt))
    counts = {"steps": 0, "drafted": 0, "accepted": 0}
    while len(history) < len(prompt) + n:
        draft = drafter.suggest(history, min(8, len(prompt) + n - len(history) - 1))
        committed, _ = verify(model, history, draft)
        history += committed
        counts["steps"] += 1
        counts["drafted"] += len(draft)
        counts["accepted"] += len(committed) - 1
        drafter.observe(committed)
    return history[len(prompt):], counts


@ex.wrong("The rows come before the settled tokens. `observe_top_k` then promotes the pairs of the step before, and not those of "
          "this one: observe first.", replaces="run")
def rows_first(model, drafter, prompt, n):
    history = list(prompt)
    drafter.observe(list(prompt))
    counts = {"steps": 0, "drafted": 0, "accepted": 0}
    while len(history) < len(prompt) + n:
        draft = drafter.suggest(history, min(8, len(prompt) + n - len(history) - 1))
        committed, rows = verify(model, history, draft)
        history += committed
        counts["steps"] += 1
        counts["drafted"] += len(draft)
        counts["accepted"] += len(committed) - 1
        drafter.observe_top_k(rows)
        drafter.observe(committed)
    return history[len(prompt):], counts


@ex.wrong("The drafter is asked with the new tokens alone. At the first step there are none: the prompt is a part of the text.",
          replaces="run")
def asks_without_prompt(model, drafter, prompt, n):
    history = list(prompt)
    drafter.observe(list(prompt))
    counts = {"steps": 0, "drafted": 0, "accepted": 0}
    while len(history) < len(prompt) + n:
        draft = drafter.suggest(history[len(prompt):] or [0], min(8, len(prompt) + n - len(history) - 1))
        committed, rows = verify(model, history, draft)
        history += committed
        counts["steps"] += 1
        counts["drafted"] += len(draft)
        counts["accepted"] += len(committed) - 1
        drafter.observe(committed)
        drafter.observe_top_k(rows)
    return history[len(prompt):], counts


@ex.wrong("The drafter is not told of the prompt, although much of what will be said stands there.", replaces="run")
def no_prompt(model, drafter, prompt, n):
    history = list(prompt)
    counts = {"steps": 0, "drafted": 0, "accepted": 0}
    while len(history) < len(prompt) + n:
        draft = drafter.suggest(history, min(8, len(prompt) + n - len(history) - 1))
        committed, rows = verify(model, history, draft)
        history += committed
        counts["steps"] += 1
        counts["drafted"] += len(draft)
        counts["accepted"] += len(committed) - 1
        drafter.observe(committed)
        drafter.observe_top_k(rows)
    return history[len(prompt):], counts


@ex.wrong("Counts every committed token as accepted. The last one of a step is the model's own: a correction or a "
          "bonus.",
          replaces="run")
def counts_the_bonus(model, drafter, prompt, n):
    history = list(prompt)
    drafter.observe(list(prompt))
    counts = {"steps": 0, "drafted": 0, "accepted": 0}
    while len(history) < len(prompt) + n:
        draft = drafter.suggest(history, min(8, len(prompt) + n - len(history) - 1))
        committed, rows = verify(model, history, draft)
        history += committed
        counts["steps"] += 1
        counts["drafted"] += len(draft)
        counts["accepted"] += len(committed)
        drafter.observe(committed)
        drafter.observe_top_k(rows)
    return history[len(prompt):], counts


@ex.wrong("Drafts are not shortened at the end, so that more than n tokens are settled. A step commits one token more "
          "than it accepts: a draft may have one token less than are missing.", replaces="run")
def overshoots(model, drafter, prompt, n):
    history = list(prompt)
    drafter.observe(list(prompt))
    counts = {"steps": 0, "drafted": 0, "accepted": 0}
    while len(history) < len(prompt) + n:
        draft = drafter.suggest(history, 8)
        committed, rows = verify(model, history, draft)
        history += committed
        counts["steps"] += 1
        counts["drafted"] += len(draft)
        counts["accepted"] += len(committed) - 1
        drafter.observe(committed)
        drafter.observe_top_k(rows)
    return history[len(prompt):], counts


@ex.wrong("Takes note of eight tokens at most. A prompt comes in one call, however long it is.", replaces="Recycler")
class HearsEight(Recycler):
    def observe(self, committed):
        super().observe(committed[:8])


def recycler_told(t, Recycler, k, *parts):
    """A Recycler that has observed some texts."""
    t.case(f"r = Recycler(k={k})")
    recycler = Recycler(k)
    for part in parts:
        t.call(recycler.observe, part, shown=f"r.observe({part})")
    return recycler


@ex.check("what followed last stands in front, once; the others move down, at most k are kept")
def moves_to_front(mine, t):
    for text, want in (([1, 5], [5]), ([1, 5, 1, 6], [6, 5]), ([1, 5, 1, 6, 1, 5], [5, 6]),
                       ([1, 5, 1, 6, 1, 7, 1, 8], [8, 7, 6]), ([1, 5, 1, 6, 1, 7, 1, 5], [5, 7, 6]),
                       ([1, 0, 1, 6], [6, 0])):
        recycler = recycler_told(t, mine.Recycler, 3, text)
        t.equal(recycler.table.get(1), want, "r.table.get(1)")
    t.equal(recycler_told(t, mine.Recycler, 1, [1, 5, 1, 6]).table.get(1), [6], "r.table.get(1)")
    t.equal(recycler_told(t, mine.Recycler, 3, [4, 4, 4]).table.get(4), [4], "r.table.get(4)")


@ex.check("the first token of a call follows the last one of the call before")
def across_calls(mine, t):
    for parts in (([1], [5]), ([1, 2], [5], [6]), ([4], [1], [4], [2]), ([0], [5]), ([3, 0, 4], [0], [7]), ([*range(30)], [2, 9])):
        recycler = recycler_told(t, mine.Recycler, 8, *parts)
        text = sum(parts, [])
        for token in sorted(set(text[:-1])):
            followers = [b for a, b in pairwise(text) if a == token]
            t.equal(recycler.table.get(token), list(dict.fromkeys(reversed(followers))), f"r.table.get({token})")
        for token in recycler.table:
            t.holds(token in text, f"r.table has an entry for {token!r}, after which nothing was ever said")


@ex.check("what was settled returns to the front, each time that rows are told")
def settled_returns(mine, t):
    for parts, calls, want in ((([1], [5]), ([6, 7],), [5, 6, 7]), (([1], [5]), ([6], [7, 8]), [5, 7, 8]),
                               (([1, 5], []), ([6, 7],), [6, 7])):
        recycler = recycler_told(t, mine.Recycler, 8, *parts)
        for top_k in calls:
            row = TopKRow(1, top_k)
            t.call(recycler.observe_top_k, [row], shown=f"r.observe_top_k([{row}])")
        t.equal(recycler.table.get(1), want, "r.table.get(1)")
    recycler = recycler_told(t, mine.Recycler, 8, [1, 5, 1, 6, 1, 5])
    t.equal(recycler.newest, [(1, 5), (5, 1), (1, 6), (6, 1), (1, 5)], "r.newest")


@ex.check("a row replaces the candidates; what was settled then returns to the front")
def rows_replace(mine, t):
    for settled, row, want in (([1, 5], TopKRow(1, [5, 6]), [5, 6]), ([1, 5], TopKRow(1, [6, 7]), [5, 6, 7]),
                               ([1, 5], TopKRow(1, [6, 7, 8, 9]), [5, 6, 7]),
                               ([1, 5, 1, 4], TopKRow(1, [4, 9]), [4, 5, 9]),
                               ([2, 3], TopKRow(1, [8, 9]), [8, 9]),
                               ([2, 3], TopKRow(1, [8, 9, 4, 5]), [8, 9, 4])):
        recycler = recycler_told(t, mine.Recycler, 3, [1, 3], settled)
        t.call(recycler.observe_top_k, [row], shown=f"r.observe_top_k([{row}])")
        t.equal(recycler.table.get(1), want, "r.table.get(1)")
    for k, rows, want in ((1, [TopKRow(1, [6, 7])], [6]), (3, [TopKRow(1, [6, 7]), TopKRow(1, [8, 9])], [8, 9])):
        recycler = recycler_told(t, mine.Recycler, k, [2, 3])
        t.call(recycler.observe_top_k, rows, shown=f"r.observe_top_k({rows})")
        t.equal(recycler.table.get(1), want, "r.table.get(1)")


@ex.check("a draft follows first candidates, until there is none, or to limit and chain")
def follows_the_chain(mine, t):
    for text, context, limit, want in (([3, 7, 5], [3], 8, [7, 5]), ([3, 7, 5], [9, 3], 1, [7]),
                                       ([3, 7, 5], [5], 8, []),
                                       ([3, 7, 3, 9, 4], [3], 8, [9, 4]), ([3, 7, 5], [3], 0, []),
                                       ([3, 0, 5], [3], 8, [0, 5]), ([1, 2, 1], [1], 20, [2, 1, 2, 1, 2, 1, 2, 1])):
        recycler = recycler_told(t, mine.Recycler, 8, text)
        table = copy.deepcopy(recycler.table)
        t.equal(t.call(recycler.suggest, context, limit, shown=f"r.suggest({context}, {limit})"), want)
        t.equal(recycler.table, table, "r.table after a suggest")
    for chain in (2, 11):
        t.case(f"r = Recycler(8, chain={chain})")
        recycler = mine.Recycler(8, chain)
        t.call(recycler.observe, [4, 4, 4], shown="r.observe([4, 4, 4])")
        t.equal(t.call(recycler.suggest, [4], 20, shown="r.suggest([4], 20)"), [4] * chain)


class Listening:
    """A drafter for checks: it proposes what it was given and remembers what it is told."""

    def __init__(self, draft):
        self.draft, self.told, self.contexts = draft, [], []

    def suggest(self, context, limit):
        self.contexts.append(list(context))
        return self.draft[:max(limit, 0)]

    def observe(self, committed):
        self.told.append(("observe", list(committed)))

    def observe_top_k(self, rows):
        self.told.append(("observe_top_k", [tuple(row) for row in rows]))


RUNS = [(NearModel, [1, 2], 12, [1] * 12), (NearModel, [1, 2], 1, []), (NearModel, [1, 2], 0, []), (NearModel, [1, 2], 3, [13, 9]), (FarModel, [3, 4], 4, [8, 9]),
        (NearModel, [1, 2], 6, [13, 4, 23, 54, 50]), (FarModel, [3, 4, 5], 7, [10, 16, 27, 44, 9])]


def expected_run(model, prompt, n, draft):
    """Tokens, counts and what the drafter is told, worked out token by token."""
    text = list(prompt)
    while len(text) < len(prompt) + n:
        text.append(model.top_k(text)[0])
    new, at, counts = text[len(prompt):], 0, {"steps": 0, "drafted": 0, "accepted": 0}
    told = [("observe", list(prompt))]
    while at < n:
        tried = draft[:min(8, n - at - 1)]
        right = next((i for i, token in enumerate(tried) if token != new[at + i]), len(tried))
        rows = []
        for i in range(right + 1):
            seen = text[:len(prompt) + at + i]
            rows.append((seen[-1], model.top_k(seen)))
        told += [("observe", new[at:at + right + 1]), ("observe_top_k", rows)]
        counts = {"steps": counts["steps"] + 1, "drafted": counts["drafted"] + len(tried),
                  "accepted": counts["accepted"] + right}
        at += right + 1
    return new, counts, told


def do_run(t, run, model, prompt, n, draft):
    """A run with a drafter that always proposes the same."""
    drafter = Listening(draft)
    t.case(f"drafter: always proposes {draft}, as much of it as is allowed")
    got = t.call(run, model(), drafter, prompt, n, shown=f"run({model.__name__}(), drafter, {prompt}, {n})")
    t.holds(isinstance(got, tuple) and len(got) == 2, f"the result is {got!r}, expected (tokens, counts)")
    return got, drafter


@ex.check("run: n tokens, the model's own, whatever is drafted; steps, drafted and accepted are counted")
def counted(mine, t):
    for model, prompt, n, draft in RUNS:
        (tokens, counts), _ = do_run(t, mine.run, model, prompt, n, draft)
        want, want_counts, _ = expected_run(model(), prompt, n, draft)
        t.equal(tokens, want, "the tokens")
        t.equal(counts, want_counts, "the counts")


@ex.check("run: the drafter is told the prompt, then of each step what was settled, then the rows")
def informed(mine, t):
    for model, prompt, n, draft in RUNS:
        _, drafter = do_run(t, mine.run, model, prompt, n, draft)
        _, _, want = expected_run(model(), prompt, n, draft)
        if not n:
            continue  # who decodes nothing need not be told
        for i, ((name, what), got) in enumerate(zip(want, [*drafter.told, *[("nothing", [])] * len(want)]), 1):
            t.holds(got == (name, what), f"call number {i} that tells the drafter something is {got[0]}({got[1]}), "
                                         f"expected {name}({what})")
        t.equal(len(drafter.told), len(want), "the number of calls that tell the drafter something")


@ex.check("run: the drafter is asked with the text so far, prompt included")
def asked(mine, t):
    for model, prompt, n, draft in RUNS:
        _, drafter = do_run(t, mine.run, model, prompt, n, draft)
        new, _, told = expected_run(model(), prompt, n, draft)
        at, texts = 0, []
        for name, what in told[1:]:
            if name == "observe":
                texts.append(prompt + new[:at])
                at += len(what)
        for context in drafter.contexts:
            t.holds(context in texts, f"the drafter is asked with {context}; at the beginnings of the steps the texts are {texts}")


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch08.cascade",
    title="Who may draft",
    points=15,
    level="medium",
    section="08.8",
    hints=[
        "`choose`: go through the sources in order and keep the best so far. Replace it only by a strictly longer match: "
        "then the first source wins a tie.",
        "Leave out muted sources and matches that are too short before you compare, not after: otherwise they can hide "
        "a source that may draft.",
        "`record`: one True or False for each drafted token goes into the window, the accepted ones first. The window "
        "forgets by itself what is older than 64. It is judged only when it holds 64.",
        "To mute, set `muted_for` and clear the window. `count_down` subtracts the committed tokens, down to 0.",
    ],
)

WINDOW = given(64)


@given
class Source(NamedTuple):
    """A source of drafts, as `choose` sees it."""

    name: str
    match_length: int
    muted: bool = False


@ex.solution
def choose(sources, limit, min_match=2):
    """Choose who drafts, and how much.

    Of the sources that are not muted and match at least `min_match` tokens, the one with the
    longest match drafts; at a tie the first of them.  A long match is trusted with a long
    draft: 2 * (1 + match_length) tokens, but no more than `limit`.

    Parameters
    ----------
    sources : list of Source
        The conversation first, then the references.
    limit : int
        0 or more.
    min_match : int
        1 or more.

    Returns
    -------
    (number, budget)
        The source's number in the list and the tokens that it may draft, 0 where the limit
        is 0; (None, 0) if no source may.

    Examples
    --------
    >>> talk, notes = Source("conversation", 2), Source("reference", 3)
    >>> choose([talk, notes], limit=16)
    (1, 8)
    >>> choose([talk], limit=16)
    (0, 6)
    """
    best = None
    for number, source in enumerate(sources):
        if source.muted or source.match_length < min_match:
            continue
        if best is None or source.match_length > sources[best].match_length:
            best = number
    if best is None:
        return None, 0
    return best, min(limit, 2 * (1 + sources[best].match_length))


@ex.solution
class SourceGate:
    """Mutes a source of drafts that is rarely right.

    It looks at the latest 64 drafted *tokens* (WINDOW), not drafts.

    Parameters
    ----------
    least : float
        The share of them that must have been accepted.
    mute_for : int
        A source below that is muted for so many committed tokens.

    Attributes
    ----------
    window : deque of bool
        One entry per drafted token: was it accepted?
    muted_for : int
        Committed tokens until the source may draft again; 0 when it may now.

    Examples
    --------
    >>> gate = SourceGate()
    >>> for _ in range(8):
    ...     gate.record(drafted=8, accepted=1)
    >>> gate.muted_for
    128
    >>> gate.count_down(100)
    >>> gate.muted_for
    28
    """

    @given
    def __init__(self, least=0.2, mute_for=128):
        self.least, self.mute_for = least, mute_for
        self.window = deque(maxlen=WINDOW)
        self.muted_for = 0

    def record(self, drafted, accepted):
        """Enter what became of a draft.

        The first `accepted` of its `drafted` tokens were accepted, the rest were not; there may
        be none.  All of them are entered, in a pause as well.  Then it is judged, once: when
        the window is full (64 tokens) and a smaller share of it than `least` was accepted, the
        source is muted for `mute_for` tokens from now on.  Then the window is emptied too: after
        the pause the old failures no longer count.
        """
        for i in range(drafted):
            self.window.append(i < accepted)
        if len(self.window) == WINDOW and sum(self.window) < self.least * WINDOW:
            self.muted_for = self.mute_for
            self.window.clear()

    def count_down(self, committed):
        """Let `committed` tokens pass; `muted_for` never falls below 0."""
        self.muted_for = max(0, self.muted_for - committed)


@ex.wrong("At a tie the last source wins. It should be the first one: the conversation is closer to what is being said "
          "than any document.", replaces="choose")
def last_wins(sources, limit, min_match=2):
    best = None
    for number, source in enumerate(sources):
        if source.muted or source.match_length < min_match:
            continue
        if best is None or source.match_length >= sources[best].match_length:
            best = number
    return (None, 0) if best is None else (best, min(limit, 2 * (1 + sources[best].match_length)))


@ex.wrong("The first source with a match drafts, although a later one matches longer. A long match says much more "
          "than a short one.", replaces="choose")
def first_wins(sources, limit, min_match=2):
    for number, source in enumerate(sources):
        if not source.muted and source.match_length >= min_match:
            return number, min(limit, 2 * (1 + source.match_length))
    return None, 0


@ex.wrong("A muted source drafts.", replaces="choose")
def muted_drafts(sources, limit, min_match=2):
    best = None
    for number, source in enumerate(sources):
        if source.match_length >= min_match and (best is None or source.match_length > sources[best].match_length):
            best = number
    return (None, 0) if best is None else (best, min(limit, 2 * (1 + sources[best].match_length)))


@ex.wrong("When the longest match belongs to a muted source, nobody drafts. Leave muted sources out before you "
          "compare: another one may draft.", replaces="choose")
def muted_blocks(sources, limit, min_match=2):
    best = None
    for number, source in enumerate(sources):
        if source.match_length >= min_match and (best is None or source.match_length > sources[best].match_length):
            best = number
    if best is None or sources[best].muted:
        return None, 0
    return best, min(limit, 2 * (1 + sources[best].match_length))


@ex.wrong("A match of one token is enough to draft. Common tokens match everywhere: min_match keeps them out.",
          replaces="choose")
def any_length(sources, limit, min_match=2):
    best = None
    for number, source in enumerate(sources):
        if source.muted or source.match_length < 1:
            continue
        if best is None or source.match_length > sources[best].match_length:
            best = number
    return (None, 0) if best is None else (best, min(limit, 2 * (1 + sources[best].match_length)))


@ex.wrong("The budget is the limit, however short the match is. Trust grows with the match: 2 * (1 + match_length).",
          replaces="choose")
def all_the_limit(sources, limit, min_match=2):
    best = None
    for number, source in enumerate(sources):
        if source.muted or source.match_length < min_match:
            continue
        if best is None or source.match_length > sources[best].match_length:
            best = number
    return (None, 0) if best is None else (best, limit)


@ex.wrong("The budget goes beyond the limit that the decoder gave.", replaces="choose")
def beyond_the_limit(sources, limit, min_match=2):
    best = None
    for number, source in enumerate(sources):
        if source.muted or source.match_length < min_match:
            continue
        if best is None or source.match_length > sources[best].match_length:
            best = number
    return (None, 0) if best is None else (best, 2 * (1 + sources[best].match_length))


@ex.wrong("The window counts drafts, not tokens. A draft of 16 tokens with one right token then looks as good as a draft "
          "of 2 with one right token.",
          replaces="SourceGate")
class CountsDrafts(SourceGate):
    def record(self, drafted, accepted):
        super().record(min(drafted, 1), min(accepted, 1))


@ex.wrong("Judges before the window is full: after a single unlucky draft the source is muted.", replaces="SourceGate")
class JudgesAtOnce(SourceGate):
    def record(self, drafted, accepted):
        for i in range(drafted):
            self.window.append(i < accepted)
        if sum(self.window) < self.least * len(self.window):
            self.muted_for = self.mute_for
            self.window.clear()


@ex.wrong("The window is not emptied when the source is muted. After the pause a single wrong token mutes it again, "
          "because the old failures still count.", replaces="SourceGate")
class HoldsAGrudge(SourceGate):
    def record(self, drafted, accepted):
        for i in range(drafted):
            self.window.append(i < accepted)
        if len(self.window) == WINDOW and sum(self.window) < self.least * WINDOW:
            self.muted_for = self.mute_for


@ex.wrong("The accepted tokens are entered last. A draft is accepted from its beginning, so the rejected tokens come "
          "last: they are entered last, and leave the window last.", replaces="SourceGate")
class WrongEnd(SourceGate):
    def record(self, drafted, accepted):
        for i in range(drafted):
            self.window.append(i >= drafted - accepted)
        if len(self.window) == WINDOW and sum(self.window) < self.least * WINDOW:
            self.muted_for = self.mute_for
            self.window.clear()


@ex.wrong("Counts below 0.", replaces="SourceGate")
class BelowZero(SourceGate):
    def count_down(self, committed):
        self.muted_for -= committed


@ex.wrong("Every call of count_down takes off one. The pause is counted in committed tokens, and a verify commits "
          "several at once.",
          replaces="SourceGate")
class CountsSteps(SourceGate):
    def count_down(self, committed):
        self.muted_for = max(0, self.muted_for - 1)


@ex.wrong("The share is fixed at a fifth. What must have been accepted is `least`, which need not be 0.2.", replaces="SourceGate")
class FixedShare(SourceGate):
    def record(self, drafted, accepted):
        self.least = 0.2
        super().record(drafted, accepted)


@ex.wrong("After a mute the window has no end any more: a new one is made, without the length of the old one. It then never "
          "holds just 64, and the source is never muted again. Use `clear()`.", replaces="SourceGate")
class WindowWithoutEnd(SourceGate):
    def record(self, drafted, accepted):
        muted = self.muted_for
        super().record(drafted, accepted)
        if self.muted_for != muted:
            self.window = deque()


@ex.wrong("An accepted token ends the pause. In a pause drafts are entered all the same, but when it ends is for the committed "
          "tokens alone to say.", replaces="SourceGate")
class SuccessEndsThePause(SourceGate):
    def record(self, drafted, accepted):
        if accepted:
            self.muted_for = 0
        super().record(drafted, accepted)


@ex.wrong("Mutes a source that reaches `least` exactly. Only a smaller share is too little: 16 of 64 tokens are a quarter, "
          "and a quarter is enough where `least` is 0.25.", replaces="SourceGate")
class MutesAtTheBorder(SourceGate):
    def record(self, drafted, accepted):
        for i in range(drafted):
            self.window.append(i < accepted)
        if len(self.window) == WINDOW and sum(self.window) <= self.least * WINDOW:
            self.muted_for = self.mute_for
            self.window.clear()


def chosen(t, choose, sources, limit, want, **options):
    """One choice, told as code."""
    t.case()
    shown = ", ".join(f"Source({s.name!r}, {s.match_length}{', muted=True' if s.muted else ''})" for s in sources)
    more = f", min_match={options['min_match']}" if options else ""
    args = [sources, limit, *options.values()]
    t.equal(t.call(choose, *args, shown=f"choose([{shown}], {limit}{more})"), want)


@ex.check("the longest match drafts, at a tie the first source")
def the_longest(mine, t):
    talk, notes, book = Source("talk", 3), Source("notes", 5), Source("book", 5)
    chosen(t, mine.choose, [talk], 99, (0, 8))
    chosen(t, mine.choose, [talk, notes], 99, (1, 12))
    chosen(t, mine.choose, [notes, talk], 99, (0, 12))
    chosen(t, mine.choose, [talk, notes, book], 99, (1, 12))


@ex.check("muted sources and short matches are left out; if nothing is left, (None, 0)")
def left_out(mine, t):
    talk, short, muted = Source("talk", 3), Source("short", 1), Source("muted", 9, True)
    chosen(t, mine.choose, [], 99, (None, 0))
    chosen(t, mine.choose, [short], 99, (None, 0))
    chosen(t, mine.choose, [muted], 99, (None, 0))
    chosen(t, mine.choose, [muted, talk], 99, (1, 8))
    chosen(t, mine.choose, [talk, muted, short], 99, (0, 8))
    chosen(t, mine.choose, [talk], 99, (None, 0), min_match=4)
    chosen(t, mine.choose, [short], 99, (0, 4), min_match=1)


@ex.check("the budget is 2 * (1 + match_length), and at most the limit")
def budgets(mine, t):
    for match in (2, 3, 10):
        for limit in (99, 6, 1, 0):
            chosen(t, mine.choose, [Source("talk", match)], limit, (0, min(limit, 2 + 2 * match)))


def gate_after(t, SourceGate, *drafts, **options):
    """A gate that has recorded some drafts."""
    t.case(f"gate = SourceGate({', '.join(f'{name}={value}' for name, value in options.items())})")
    gate = SourceGate(**options)
    for times, drafted, accepted in drafts:
        line = f"gate.record({drafted}, {accepted})" + (f"      # {times} times" if times > 1 else "")
        t.story.append(line)
        for _ in range(times):
            t.call(gate.record, drafted, accepted, shown=None)
    return gate


@ex.check("a full window of 64 tokens with less than a fifth accepted mutes, nothing else does")
def mutes(mine, t):
    for drafts, muted in ((((1, 8, 0),), 0), (((7, 8, 0), (1, 7, 0)), 0), (((8, 8, 0),), 128), (((8, 8, 1),), 128),
                          (((8, 8, 2),), 0), (((32, 2, 0),), 128), (((16, 4, 1),), 0), (((3, 8, 4), (5, 8, 0)), 128),
                          (((4, 8, 4), (4, 8, 0)), 0), (((4, 16, 3),), 128)):
        gate = gate_after(t, mine.SourceGate, *drafts)
        t.equal(gate.muted_for, muted, "gate.muted_for")
    gate = gate_after(t, mine.SourceGate, (8, 8, 3), least=0.5, mute_for=9)
    t.equal(gate.muted_for, 9, "gate.muted_for")
    gate = gate_after(t, mine.SourceGate, (8, 8, 0), (1, 0, 0), (8, 8, 0))
    t.equal(gate.muted_for, 128, "gate.muted_for")
    for accepted, muted in ((2, 0), (1, 9)):  # a quarter of 64 is 16: just as many are enough
        gate = gate_after(t, mine.SourceGate, (8, 8, accepted), least=0.25, mute_for=9)
        t.equal(gate.muted_for, muted, "gate.muted_for")


@ex.check("the window holds the latest 64 tokens, of a draft the accepted ones first")
def latest_tokens(mine, t):
    for drafts in (((1, 4, 1),), ((3, 5, 2),), ((9, 8, 3),), ((7, 8, 2), (2, 12, 6)), ((1, 70, 40),)):
        gate = gate_after(t, mine.SourceGate, *drafts)
        entered = [i < accepted for times, drafted, accepted in drafts for _ in range(times) for i in range(drafted)]
        t.equal(list(gate.window), entered[-WINDOW:], "list(gate.window)")
    gate = gate_after(t, mine.SourceGate, (8, 8, 0), (1, 4, 1), (1, 0, 0))
    t.equal(list(gate.window), [True, False, False, False], "list(gate.window)")
    gate = gate_after(t, mine.SourceGate, (8, 9, 0))
    t.equal(list(gate.window), [], "list(gate.window)")


@ex.check("a muted source starts with an empty window, and may draft again after mute_for committed tokens")
def comes_back(mine, t):
    for steps in ((128,), (100, 27, 1), (1, 126), (120, 20), (5, 5, 5)):
        gate = gate_after(t, mine.SourceGate, (8, 8, 0))
        t.equal(list(gate.window), [], "list(gate.window)")
        for n in steps:
            t.call(gate.count_down, n, shown=f"gate.count_down({n})")
        t.equal(gate.muted_for, max(0, 128 - sum(steps)), "gate.muted_for")
    gate = gate_after(t, mine.SourceGate, (8, 8, 0), (2, 4, 4))
    t.equal(gate.muted_for, 128, "gate.muted_for")
    t.equal(list(gate.window), [True] * 8, "list(gate.window)")
    gate = gate_after(t, mine.SourceGate, (8, 8, 0))
    t.call(gate.count_down, 100, shown="gate.count_down(100)")
    for _ in range(8):
        t.call(gate.record, 8, 0, shown=None)
    t.story.append("gate.record(8, 0)      # 8 times")
    t.equal(gate.muted_for, 128, "gate.muted_for")
    gate = gate_after(t, mine.SourceGate, (8, 8, 0))
    t.call(gate.count_down, 128, shown="gate.count_down(128)")
    for times, drafted, accepted in ((8, 8, 8), (30, 8, 0)):
        t.story.append(f"gate.record({drafted}, {accepted})      # {times} times")
        for _ in range(times):
            t.call(gate.record, drafted, accepted, shown=None)
    t.equal(gate.muted_for, 128, "gate.muted_for")


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch08.prove",
    title="Prove an index of all strings",
    points=15,
    level="hard",
    section="08.4",
    cpu_seconds=8.0,
    hints=[
        "You have `longest_match` by brute force, and `tuple(part) in every string of the text` takes one line. So you can "
        "compute both answers slowly. The work is to find texts on which a clever index goes wrong.",
        "An automaton goes wrong when a state is split, and a split needs a text that comes back and then goes on in another "
        "way. With many different tokens that hardly ever happens: use two or three.",
        "Try *all* texts of two tokens up to length 8, and a few hundred random ones of length 20 over 2 and 3 tokens. Ask "
        "after every append, not only at the end. Include token 0, and a text that is one token again and again.",
        "For `occurs` ask for strings that do occur (slices of the text) and for some that do not; and the empty one.",
    ],
)


@given
class KnowsNothing:
    """A wrong index to try your proof on: it forgets what it is told."""

    match = 0

    def append(self, token):
        """Take one more token."""

    def occurs(self, tokens):
        """Whether these tokens stand in the text, one after the other."""
        return False


@ex.solution
def prove(make):
    """Look for a text on which an index of all strings gives a wrong answer.

    `make()` makes an index of an empty text. What an index promises:

    - `index.append(token)` takes one more token, a whole number from 0 on.
    - `index.match` is the length of the longest match: of the longest string at the end of
      the text that has ended earlier in the text as well. It may overlap itself; 0 if there
      is none. (The length that `longest_match` finds.)
    - `index.occurs(tokens)` is True when these tokens, a list, stand somewhere in the text
      one after the other, and False otherwise. The empty list stands in every text.
    - Two indexes have nothing to do with each other, and asking changes nothing.

    Whether there is an automaton inside, or a search through everything, is not your
    business. What it costs is not part of this contract either.

    Parameters
    ----------
    make : callable
        You may make up to 1000 indexes. Keep the texts short, 60 tokens at most: some right
        indexes are slow.

    Returns
    -------
    str or None
        None when you found nothing wrong. Otherwise a text, your counterexample.

    Examples
    --------
    >>> prove(KnowsNothing) is None
    False
    """
    def match(text):
        """The longest match of a text by brute force."""
        n = len(text)
        for size in range(n - 1, 0, -1):
            if any(text[end - size:end] == text[n - size:] for end in range(size, n)):
                return size
        return 0

    def asks(index, text, chance):
        assert index.match == match(text), f"{text}: the match is {index.match}, expected {match(text)}"
        assert index.occurs([]), f"{text}: the empty string does not occur"
        for _ in range(6):
            i = chance.randrange(len(text))
            part = text[i:i + chance.randrange(1, 8)]
            if chance.random() < 0.5:
                part[chance.randrange(len(part))] = chance.choice(text)
            found = any(text[j:j + len(part)] == part for j in range(len(text)))
            assert bool(index.occurs(list(part))) == found, f"{text}: occurs({part}) is wrong"

    try:
        chance = random.Random(8)
        texts = [[number >> i & 1 for i in range(8)] for number in range(0, 256, 2)]
        texts += [[3] * 12, [1, 2] * 8, list(range(12)) * 2]
        texts += [[chance.randrange(2 + n % 3) for _ in range(24)] for n in range(60)]
        other, spare = make(), []
        for text in texts:
            index = make()
            for i, token in enumerate(text):
                index.append(token)
                asks(index, text[:i + 1], chance)
            asks(index, text, chance)
            if len(spare) < 20:
                other.append(text[1])
                spare.append(text[1])
                asks(other, spare, chance)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


@ex.wrong("Says that nothing is wrong, whatever it is given. Try it on `KnowsNothing` first.")
def content(make):
    return None


@ex.wrong("Calls every index wrong, right ones too. What it complains of must be a broken promise.")
def never_content(make):
    return "I have a bad feeling."


@ex.wrong("Tries the text of the chapter, and no other. An index that goes wrong at a split, or at a second one, passes a single "
          "text with luck. Let the machine make the texts: all short ones, many random ones.")
def one_text(make):
    try:
        index = make()
        for token in (5, 6, 7, 5, 6):
            index.append(token)
        return None if index.match == 2 and index.occurs([6, 7]) else "5 6 7 5 6"
    except Exception as error:
        return repr(error)


@ex.wrong("Its texts hold too many different tokens. Two strings that begin alike and go on in another way are then rare, and so are "
          "splits. With two or three different tokens nearly every append is a hard case.")
def rich_texts(make):
    chance = random.Random(1)
    try:
        for _ in range(40):
            index, text = make(), []
            for _ in range(30):
                text.append(chance.randrange(1, 500))
                index.append(text[-1])
            for i in range(0, 29, 3):
                if not index.occurs(text[i:i + 2]):
                    return f"{text[i:i + 2]} does occur in {text}"
            for i in range(3):
                index.append(text[i])
            if index.match != 3 and len(set(text)) == 30:
                return f"the match is {index.match}"
    except Exception as error:
        return repr(error)
    return None


@ex.wrong("Asks for what occurs, and never for what does not. An index that says yes to everything passes. Ask for strings "
          "that do not stand in the text, too.")
def only_yes(make):
    chance = random.Random(2)
    try:
        for n in range(80):
            index, text = make(), []
            for _ in range(20):
                text.append(chance.randrange(2 + n % 2))
                index.append(text[-1])
                i = chance.randrange(len(text))
                if not index.occurs(text[i:i + 5]):
                    return f"{text[i:i + 5]} occurs in {text}"
    except Exception as error:
        return repr(error)
    return None


@ex.wrong("Takes the earlier match for one that may not overlap. In 3 3 3 3 the string 3 3 3 has ended earlier, one place "
          "before: that is a match of 3, and right indexes say so.")
def forbids_overlap(make):
    chance = random.Random(3)
    try:
        for _ in range(60):
            index, text = make(), []
            for _ in range(16):
                text.append(chance.randrange(2))
                index.append(text[-1])
                n = len(text)
                sizes = [k for k in range(1, n // 2 + 1) if any(text[j:j + k] == text[n - k:] for j in range(n - 2 * k + 1))]
                if index.match != max(sizes, default=0):
                    return f"{text}: {index.match}"
    except Exception as error:
        return repr(error)
    return None


class Slow:
    """An index by brute force, with one fault named by a word; without a word it is right."""

    fault = ""

    def __init__(self):
        self.text = []

    def append(self, token):
        if self.fault == "zero" and not token:
            return
        self.text.append(token)

    @property
    def match(self):
        n = len(self.text)
        for size in range(min(n - 1, 6) if self.fault == "six" else n - 1, 0, -1):
            last = n - size if self.fault == "overlap" else n - 1
            ends = range(size, last + 1)
            if self.fault == "beginning":
                ends = range(size, size + 1)
            if any(self.text[end - size:end] == self.text[n - size:] for end in ends):
                return size
        return 0

    def occurs(self, tokens):
        if self.fault == "yes":
            return set(tokens) <= set(self.text)
        if self.fault == "digits":
            return "".join(map(str, tokens)) in "".join(map(str, self.text))
        if self.fault == "empty" and not tokens:
            return False
        return any(self.text[i:i + len(tokens)] == list(tokens) for i in range(len(self.text) - len(tokens) + 1))


def faulty(word):
    """A class of slow indexes with a fault."""
    return type("Index", (Slow,), {"fault": word})


class Quick:
    """A suffix automaton as an index, with one fault named by a word; without a word it is right."""

    fault = ""
    common = [{}]

    def __init__(self):
        self.next, self.up, self.size = self.common if self.fault == "shared" else [{}], [-1], [0]
        self.whole = self.at = self.match = 0

    def state(self, size, up, edges):
        self.next.append(edges)
        self.up.append(up)
        self.size.append(size)
        return len(self.size) - 1

    def follow(self, token):
        """Move the cursor on over a token."""
        while self.at and token not in self.next[self.at]:
            self.at = self.up[self.at]
            self.match = self.size[self.at]
        if token in self.next[self.at]:
            self.at, self.match = self.next[self.at][token], self.match + 1

    def append(self, token):
        if self.fault != "cursor_late":
            self.follow(token)
        new, s = self.state(self.size[self.whole] + 1, 0, {}), self.whole
        while s != -1 and token not in self.next[s]:
            self.next[s][token] = new
            s = self.up[s]
        self.whole = new
        if s != -1:
            old = self.next[s][token]
            if self.size[old] == self.size[s] + 1 or self.fault == "no_split":
                self.up[new] = old
            else:
                self.split(s, old, new, token)
        if self.fault == "cursor_late":
            self.follow(token)

    def split(self, s, old, new, token):
        edges = self.next[old] if self.fault == "same_edges" else {} if self.fault == "no_edges" else dict(self.next[old])
        clone = self.state(self.size[s] + 1, self.up[old], edges)
        while s != -1 and self.next[s].get(token) == old:
            if self.fault != "no_redirect":
                self.next[s][token] = clone
            s = -1 if self.fault == "redirect_once" else self.up[s]
        self.up[new] = clone if self.fault != "links_to_old" else old
        if self.fault != "old_keeps_link":
            self.up[old] = clone
        if self.at == old and self.match <= self.size[clone]:
            self.at = clone

    def occurs(self, tokens):
        s = 0
        for token in tokens:
            if token not in self.next[s]:
                return False
            s = self.next[s][token]
        if self.fault == "asking_moves":
            self.match = min(self.match, max(len(tokens), 1))
        return True


def quick(word):
    """A class of automata with a fault."""
    return type("Index", (Quick,), {"fault": word, "common": [{}]})


def right_indexes():
    """Right indexes in many other styles than a search through everything, each with a word on it."""

    class Words:
        """The text as a string of characters, searched by Python."""

        def __init__(self):
            self.text, self.letters = "", {}

        def append(self, token):
            self.text += self.letters.setdefault(token, chr(1000 + len(self.letters)))

        @property
        def match(self):
            size = 0
            while size < len(self.text) and self.text.find(self.text[len(self.text) - size - 1:]) < len(self.text) - size - 1:
                size += 1
            return size

        def occurs(self, tokens):
            return "".join(self.letters.get(token, "?") for token in tokens) in self.text

    class Lengths:
        """For each earlier place, how long it agrees with the end; one list, made anew with each token."""

        def __init__(self):
            self.text, self.agree, self.match = [], [], 0

        def append(self, token):
            longer = [1] + [n + 1 for n in self.agree]
            self.agree = [longer[i] if earlier == token else 0 for i, earlier in enumerate(self.text)]
            self.match = max(self.agree, default=0)
            self.text.append(token)

        def occurs(self, tokens):
            return any(all(a == b for a, b in zip(tokens, self.text[i:] + [None] * 99))
                       for i in range(len(self.text) + 1))

    class Trie:
        """Every string of the text in a set, the way of the chapter."""

        def __init__(self):
            self.text, self.strings, self.match = (), {()}, 0

        def append(self, token):
            self.text += (token,)
            ends = [self.text[i:] for i in range(len(self.text))]
            self.match = max((len(end) for end in ends if end in self.strings), default=0)
            self.strings.update(ends)

        def occurs(self, tokens):
            return tuple(tokens) in self.strings

    return {
        "a suffix automaton": quick(""),
        "a string of characters": Words,
        "a list of lengths": Lengths,
        "a set of all strings": Trie,
    }


def watched(make):
    """`make`, which may be called as often as the contract says."""
    return proving.counted(make, 1000)


def must_find(prove, t, make, hint):
    """The proof must have a counterexample against this index."""
    proving.finds(t, prove, watched(make), shown="prove(make)", hint=hint)


@ex.check("a right index is spared: a search through everything")
def spares_one(prove, t):
    proving.spares(t, prove, watched(faulty("")), shown="prove(make)", style="a search through everything", vital=True)


@ex.check("right indexes in other styles are spared")
def spares_styles(prove, t):
    for style, make in right_indexes().items():
        proving.spares(t, prove, watched(make), shown="prove(make)", style=style)


@ex.check("wrong index 1 is found: it is strict with strings that touch")
def finds_01(prove, t):
    must_find(prove, t, faulty("overlap"),
              "Where may the earlier string stand?")


@ex.check("wrong index 2 is found: it has no patience")
def finds_02(prove, t):
    must_find(prove, t, faulty("six"),
              "How long are the longest matches in your texts?")


@ex.check("wrong index 3 is found: it only looks at one place")
def finds_03(prove, t):
    must_find(prove, t, faulty("beginning"),
              "Where may the earlier string stand?")


@ex.check("wrong index 4 is found: it does not hear a certain token")
def finds_04(prove, t):
    must_find(prove, t, faulty("zero"),
              "Tokens are whole numbers from 0 on.")


@ex.check("wrong index 5 is found: it likes to say yes")
def finds_05(prove, t):
    must_find(prove, t, faulty("yes"),
              "Which strings do you ask for? Some that do not occur, of tokens that do?")


@ex.check("wrong index 6 is found: it reads aloud, without pauses")
def finds_06(prove, t):
    must_find(prove, t, faulty("digits"),
              "Tokens can have several digits.")


@ex.check("wrong index 7 is found: it has no answer to the shortest question")
def finds_07(prove, t):
    must_find(prove, t, faulty("empty"),
              "Which is the shortest string that you can ask for?")


@ex.check("wrong index 8 is found: it finds the text in the text")
def finds_08(prove, t):
    must_find(prove, t, quick("cursor_late"),
              "How long is the match after the first token?")


@ex.check("wrong index 9 is found: it never makes a difference")
def finds_09(prove, t):
    must_find(prove, t, quick("no_split"),
              "Its strings are all there. Take few different tokens, so that texts come back and then go on in another way.")


@ex.check("wrong index 10 is found: it makes a difference and does not use it")
def finds_10(prove, t):
    must_find(prove, t, quick("no_redirect"),
              "Take few different tokens, so that texts come back and then go on in another way.")


@ex.check("wrong index 11 is found: it does not go back far enough")
def finds_11(prove, t):
    must_find(prove, t, quick("redirect_once"),
              "Take few different tokens, so that texts come back and then go on in another way.")


@ex.check("wrong index 12 is found: it forgets where its ways led")
def finds_12(prove, t):
    must_find(prove, t, quick("no_edges"),
              "Take few different tokens, so that texts come back and then go on in another way.")


@ex.check("wrong index 13 is found: two of its states hold the same dict")
def finds_13(prove, t):
    must_find(prove, t, quick("same_edges"),
              "It says yes too often. When do you ask for what does not occur?")


@ex.check("wrong index 14 is found: a new way back leads to a wrong place")
def finds_14(prove, t):
    must_find(prove, t, quick("links_to_old"),
              "The strings are all there. Look at the match after every append, in longer texts.")


@ex.check("wrong index 15 is found: an old way back leads to a wrong place")
def finds_15(prove, t):
    must_find(prove, t, quick("old_keeps_link"),
              "The strings are all there. Look at the match after every append, in longer texts.")


@ex.check("wrong index 16 is found: it is not alone")
def finds_16(prove, t):
    must_find(prove, t, quick("shared"),
              "How many indexes have you made?")


@ex.check("wrong index 17 is found: it does not stand being asked")
def finds_17(prove, t):
    must_find(prove, t, quick("asking_moves"),
              "Ask, and look at the match again afterwards.")
