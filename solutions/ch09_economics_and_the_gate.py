"""Chapter 09 - Economics and the gate.

Drafts cannot change a word, but they can waste time.  Here you work out when they win
some.  You choose how many tokens of a draft to verify, as the engine does it for a source
that knows its odds.  And you build the gate for sources that do not: it turns drafting off
while it loses, and finds out when it would win again.

There is one unit for all costs: the plain step, a pass of one row.  It costs 1 and commits
one token.  A pass of several rows costs more than 1, and nearly always less than the number of its rows.
"""

import math
from collections import deque

import numpy as np

from course.exercises import Exercise, given

# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch09.break_even",
    title="When does a verify win?",
    points=1,
    level="easy",
    section="09.2",
    hints=[
        "How many rows has the pass? The newest token has no row yet, so it goes in too, before the drafts.",
        "How many tokens come out, with a of the drafts accepted? The model's own choice after them is one more.",
        "Go through a = 0, 1, ... drafts: the first with a + 1 > cost(drafts + 1) is the answer; without one, None.",
    ],
)


@ex.solution
def break_even(drafts, cost):
    """How many of the drafted tokens must be accepted for a verify to win time.

    A verify runs the newest token and all the drafts in one pass.  It commits the
    accepted drafts, and after them a token that the model chose itself.  Plain decoding
    takes one plain step for each of these tokens.  The verify wins if it takes less; if
    it takes as much, nothing is won.

    Parameters
    ----------
    drafts : int
        Drafted tokens, at least 1.
    cost : callable
        cost(rows) is what a pass of so many rows costs, in plain steps: more than 1 for
        several rows.

    Returns
    -------
    int or None
        The smallest number of accepted drafts that wins time; None if not even all of
        them would.

    Examples
    --------
    >>> break_even(4, lambda rows: 1 + 0.5 * (rows - 1))
    3
    """
    price = cost(drafts + 1)
    for accepted in range(drafts + 1):
        if accepted + 1 > price:
            return accepted
    return None


@ex.wrong("The pass has one row more than there are drafts: the newest token of the text has no row in the cache yet, "
          "and is the first row of the pass.")
def rows_are_drafts(drafts, cost):
    price = cost(drafts)
    for accepted in range(drafts + 1):
        if accepted + 1 > price:
            return accepted
    return None


@ex.wrong("One token is forgotten: after the accepted drafts the model has chosen one itself, a correction or a "
          "bonus. It costs nothing more, and it is committed whatever the drafts were.")
def forgets_the_correction(drafts, cost):
    price = cost(drafts + 1)
    for accepted in range(drafts + 1):
        if accepted > price:
            return accepted
    return None


@ex.wrong("A verify that takes as long as the plain steps that it replaces wins nothing: it must take less.")
def a_tie_wins(drafts, cost):
    price = cost(drafts + 1)
    for accepted in range(drafts + 1):
        if accepted + 1 >= price:
            return accepted
    return None


@ex.wrong("That is the number of committed tokens. The answer is how many drafts must be accepted, which is one less.")
def counts_tokens(drafts, cost):
    price = cost(drafts + 1)
    for accepted in range(drafts + 1):
        if accepted + 1 > price:
            return accepted + 1
    return None


@ex.wrong("More drafts cannot be accepted than there are. Where not even all of them would win, the answer is None.")
def more_than_there_are(drafts, cost):
    accepted = 0
    while accepted + 1 <= cost(drafts + 1):
        accepted += 1
    return accepted


def costs_of(t, drafts, price):
    """A table as a function: `price` for the verify, other costs for neighbouring passes; and its text."""
    table = {rows: round(1 + 0.31 * (rows - 1), 2) for rows in range(1, drafts + 8)}
    table[drafts] = max(round(min(price, drafts) - 0.9, 2), 1.05) if drafts > 1 else 1.0
    table[drafts + 1] = price
    t.case(f"a pass of {drafts} row{'s' if drafts > 1 else ''} costs {table[drafts]}, of {drafts + 1} rows {price}, "
           f"of {drafts + 2} rows {table[drafts + 2]}")
    return table.__getitem__


@ex.check("the smallest number of accepted drafts with which the verify commits more tokens than it costs")
def smallest_winning(break_even, t):
    for drafts, price, want in ((1, 1.2, 1), (2, 1.6, 1), (4, 2.5, 2), (3, 1.05, 1), (4, 3.7, 3), (8, 2.84, 2),
                                (16, 4.5, 4), (12, 6.25, 6)):
        got = t.call(break_even, drafts, costs_of(t, drafts, price), shown=f"break_even({drafts}, cost)")
        t.equal(got, want)


@ex.check("a pass that costs as much as its tokens wins nothing")
def ties(break_even, t):
    for drafts, price, want in ((2, 2.0, 2), (4, 3.0, 3), (8, 4.0, 4)):
        got = t.call(break_even, drafts, costs_of(t, drafts, price), shown=f"break_even({drafts}, cost)")
        t.equal(got, want)


@ex.check("None where not even all drafts would win")
def hopeless(break_even, t):
    for drafts, price, want in ((1, 1.9, 1), (1, 2.0, None), (2, 3.1, None), (4, 4.9, 4), (4, 5.0, None)):
        got = t.call(break_even, drafts, costs_of(t, drafts, price), shown=f"break_even({drafts}, cost)")
        t.equal(got, want)


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch09.best_draft",
    title="How many tokens to verify",
    points=15,
    level="medium",
    section="09.5",
    hints=[
        "The d-th token is accepted if it is right and all before it were: multiply the odds up to there. The sum of these "
        "products is how many drafts are accepted on average.",
        "A verify of d drafts is expected to win 1 + p1 + p1 p2 + ... - cost(d + 1) plain steps. The 1 is the token that "
        "the model chooses itself.",
        "Try every d from 1 to len(odds), and keep the best so far, beginning with 0 drafts and MARGIN. Costs go up in "
        "stairs, so a longer draft may win although a shorter one loses: do not stop early.",
        "The worst case is that no draft is accepted: cost(d + 1) is paid for one token. Leave out each d whose "
        "cost(d + 1) is above 1 + allowance.",
    ],
)

MARGIN = given(0.1)


@ex.solution
def best_draft(odds, cost, allowance=math.inf):
    """How many tokens of a draft to verify: the number that is expected to win most.

    A verify of d drafts costs cost(d + 1).  It commits the drafts up to the first wrong one,
    and a token that the model chooses itself.  What it wins is the number of committed
    tokens minus the cost.

    Parameters
    ----------
    odds : list of float
        For each drafted token, how likely it is right if all tokens before it are.
    cost : callable
        cost(rows) is what a pass of so many rows costs, in plain steps.  More rows may cost
        less than fewer, where a tile is full.
    allowance : float
        Plain steps that the verify may lose at worst, when no draft is accepted.

    Returns
    -------
    int
        The number of drafts whose expected win is largest, of those that the allowance
        permits; the smallest of them at a tie.  0 if none is expected to win more than
        MARGIN plain steps.

    Examples
    --------
    >>> cost = lambda rows: 1 + 0.25 * (rows - 1)
    >>> best_draft([0.9, 0.8, 0.1], cost)
    2
    >>> best_draft([0.9, 0.8, 0.1], cost, allowance=0.3)
    1
    >>> best_draft([0.2, 0.2], cost)
    0
    """
    best, most = 0, MARGIN
    expected, together = 1.0, 1.0
    for d, chance in enumerate(odds, 1):
        together *= chance
        expected += together
        price = cost(d + 1)
        if price <= 1 + allowance and expected - price > most:
            best, most = d, expected - price
    return best


@ex.wrong("Adds up the odds themselves. A token only counts if all before it were right as well: after a wrong one the "
          "rest of the draft is lost. Multiply the odds up to each token, then add.")
def adds_the_odds(odds, cost, allowance=math.inf):
    best, most, expected = 0, MARGIN, 1.0
    for d, chance in enumerate(odds, 1):
        expected += chance
        price = cost(d + 1)
        if price <= 1 + allowance and expected - price > most:
            best, most = d, expected - price
    return best


@ex.wrong("Takes the chance that the whole draft is right, times its length. The accepted beginning of a draft is "
          "committed too: add up, for each token, the chance that it is accepted.")
def all_or_nothing(odds, cost, allowance=math.inf):
    best, most, together = 0, MARGIN, 1.0
    for d, chance in enumerate(odds, 1):
        together *= chance
        price = cost(d + 1)
        if price <= 1 + allowance and 1 + d * together - price > most:
            best, most = d, 1 + d * together - price
    return best


@ex.wrong("The pass has one row more than there are drafts: the newest token of the text goes in as well.")
def one_row_short(odds, cost, allowance=math.inf):
    best, most = 0, MARGIN
    expected, together = 1.0, 1.0
    for d, chance in enumerate(odds, 1):
        together *= chance
        expected += together
        price = cost(d)
        if price <= 1 + allowance and expected - price > most:
            best, most = d, expected - price
    return best


@ex.wrong("Forgets the token that the model chooses itself. It is committed whatever the drafts were: the expected "
          "number of tokens begins with 1.")
def forgets_own_token(odds, cost, allowance=math.inf):
    best, most = 0, MARGIN
    expected, together = 0.0, 1.0
    for d, chance in enumerate(odds, 1):
        together *= chance
        expected += together
        price = cost(d + 1)
        if price <= 1 + allowance and expected - price > most:
            best, most = d, expected - price
    return best


@ex.wrong("Compares tokens per plain step. Asked for is what the verify wins, the difference: a short draft with a good "
          "ratio can save fewer steps than a longer one.")
def best_ratio(odds, cost, allowance=math.inf):
    best, most = 0, 0.0
    expected, together = 1.0, 1.0
    for d, chance in enumerate(odds, 1):
        together *= chance
        expected += together
        price = cost(d + 1)
        if price <= 1 + allowance and expected - price > MARGIN and expected / price > most:
            best, most = d, expected / price
    return best


@ex.wrong("Stops at the first length that wins less than the one before it. Costs go up in stairs: the next row may be "
          "almost free, and a longer draft win again.")
def stops_early(odds, cost, allowance=math.inf):
    best, most = 0, MARGIN
    expected, together, before = 1.0, 1.0, 0.0
    for d, chance in enumerate(odds, 1):
        together *= chance
        expected += together
        price = cost(d + 1)
        if expected - price < before:
            break
        before = expected - price
        if price <= 1 + allowance and expected - price > most:
            best, most = d, expected - price
    return best


@ex.wrong("Verifies whatever is expected to win anything at all. Less than MARGIN is not worth it: odds and costs are "
          "estimates.")
def without_margin(odds, cost, allowance=math.inf):
    best, most = 0, 0.0
    expected, together = 1.0, 1.0
    for d, chance in enumerate(odds, 1):
        together *= chance
        expected += together
        price = cost(d + 1)
        if price <= 1 + allowance and expected - price > most:
            best, most = d, expected - price
    return best


@ex.wrong("Of several lengths that win the same it takes the longest. The longer draft loses more when it is wrong.")
def longest_at_a_tie(odds, cost, allowance=math.inf):
    best, most = 0, MARGIN
    expected, together = 1.0, 1.0
    for d, chance in enumerate(odds, 1):
        together *= chance
        expected += together
        price = cost(d + 1)
        if price <= 1 + allowance and expected - price > MARGIN and expected - price >= most:
            best, most = d, expected - price
    return best


@ex.wrong("Does not look at the allowance. Odds can be wrong: what a draft may lose at worst is bounded by it, however "
          "much the draft is expected to win.")
def no_bound(odds, cost, allowance=math.inf):
    best, most = 0, MARGIN
    expected, together = 1.0, 1.0
    for d, chance in enumerate(odds, 1):
        together *= chance
        expected += together
        price = cost(d + 1)
        if expected - price > most:
            best, most = d, expected - price
    return best


@ex.wrong("Takes an allowance of 0 for no bound at all. `if allowance` is false for 0, which is a bound like any other: such a "
          "verify may lose nothing.")
def zero_is_no_bound(odds, cost, allowance=math.inf):
    best, most = 0, MARGIN
    expected, together = 1.0, 1.0
    for d, chance in enumerate(odds, 1):
        together *= chance
        expected += together
        price = cost(d + 1)
        if (not allowance or price <= 1 + allowance) and expected - price > most:
            best, most = d, expected - price
    return best


@ex.wrong("Compares the whole cost with the allowance. The token that comes with every verify is worth one plain step: "
          "at worst cost(d + 1) - 1 is lost.")
def the_whole_cost(odds, cost, allowance=math.inf):
    best, most = 0, MARGIN
    expected, together = 1.0, 1.0
    for d, chance in enumerate(odds, 1):
        together *= chance
        expected += together
        price = cost(d + 1)
        if price <= allowance and expected - price > most:
            best, most = d, expected - price
    return best


@ex.wrong("A draft that may lose just as much as the allowance is allowed: only one that may lose more is not.")
def strict_bound(odds, cost, allowance=math.inf):
    best, most = 0, MARGIN
    expected, together = 1.0, 1.0
    for d, chance in enumerate(odds, 1):
        together *= chance
        expected += together
        price = cost(d + 1)
        if price < 1 + allowance and expected - price > most:
            best, most = d, expected - price
    return best


@ex.wrong("Nothing is drafted when the longest draft does not fit the allowance. A shorter one may fit.")
def all_that_is_there(odds, cost, allowance=math.inf):
    if cost(len(odds) + 1) > 1 + allowance:
        return 0
    best, most = 0, MARGIN
    expected, together = 1.0, 1.0
    for d, chance in enumerate(odds, 1):
        together *= chance
        expected += together
        price = cost(d + 1)
        if expected - price > most:
            best, most = d, expected - price
    return best


@ex.wrong("Demands MARGIN for each drafted token. It is the least that a whole verify must be expected to win, however long its "
          "draft is.")
def a_margin_for_each(odds, cost, allowance=math.inf):
    best, most = 0, MARGIN
    expected, together = 1.0, 1.0
    for d, chance in enumerate(odds, 1):
        together *= chance
        expected += together
        price = cost(d + 1)
        if price <= 1 + allowance and expected - price > max(most, d * MARGIN):
            best, most = d, expected - price
    return best


@ex.wrong("Looks at sixteen drafted tokens at most. How many there are is the source's business, and `odds` has one number for each.")
def sixteen_at_most(odds, cost, allowance=math.inf):
    best, most = 0, MARGIN
    expected, together = 1.0, 1.0
    for d, chance in enumerate(odds[:16], 1):
        together *= chance
        expected += together
        price = cost(d + 1)
        if price <= 1 + allowance and expected - price > most:
            best, most = d, expected - price
    return best


STAIRS = {1: 1.0, 2: 1.25, 3: 1.75, 4: 1.5, 5: 2.25, 6: 2.5, 7: 2.75, 8: 2.75, 9: 3.5, 10: 3.75, 11: 4.0, 12: 4.0,
          13: 4.75, 14: 5.0, 15: 5.25, 16: 5.25, 17: 6.0}
LINE = {rows: 1 + 0.25 * (rows - 1) for rows in range(1, 18)}


def expected_win(odds, table, d):
    """What a verify of d drafts wins on average, worked out case by case."""
    win, all_right = 0.0, 1.0
    for accepted in range(d):
        win += all_right * (1 - odds[accepted]) * (accepted + 1)
        all_right *= odds[accepted]
    return win + all_right * (d + 1) - table[d + 1]


def wanted(odds, table, allowance):
    """The best number of drafts; None where two are too close to call."""
    wins = [(0.1, 0)] + [(expected_win(odds, table, d), d) for d in range(1, len(odds) + 1)
                         if table[d + 1] <= 1 + allowance]
    best = max(win for win, _ in wins)
    near = [d for win, d in wins if win > best - 1e-6]
    return near[0] if len(near) == 1 else None


def choose(t, best_draft, odds, table, want, allowance=math.inf):
    """One choice, told as code."""
    t.case(f"cost = {table}.get")
    more = [] if allowance == math.inf else [allowance]
    shown = f"best_draft({odds}, cost{f', {allowance}' if more else ''})"
    t.equal(t.call(best_draft, odds, table.__getitem__, *more, shown=shown), want)


@ex.check("one or two tokens: a verify that is expected to win more than MARGIN, or none")
def short_drafts(best_draft, t):
    for odds, want in (([], 0), ([1.0], 1), ([0.5], 1), ([0.25], 0), ([0.34], 0), ([0.36], 1), ([1.0, 1.0], 2),
                       ([0.5, 0.0], 1), ([0.0, 1.0], 0), ([0.75, 0.5], 2)):
        choose(t, best_draft, odds, LINE, want)


@ex.check("longer drafts: the number that is expected to win most")
def most_won(best_draft, t):
    for odds, want in (([0.9, 0.9, 0.9, 0.2], 3), ([0.5] * 6, 1), ([0.8] * 8, 6), ([0.6, 0.6, 0.6, 0.6], 2),
                       ([1.0] * 16, 16), ([0.9, 0.1, 1.0, 1.0], 1), ([0.32, 1.0, 1.0], 3)):
        choose(t, best_draft, odds, LINE, want)
    choose(t, best_draft, [1.0] * 40, {rows: 1 + 0.5 * (rows - 1) for rows in range(1, 42)}, 40)
    for n in (3, 6, 10, 16):
        for _ in range(6):
            odds = [round(float(p), 2) for p in t.rng.uniform(0.3, 1.0, n)]
            if (want := wanted(odds, LINE, math.inf)) is not None:
                choose(t, best_draft, odds, LINE, want)


@ex.check("costs in stairs: a longer draft may win although a shorter one does not")
def stairs(best_draft, t):
    for odds, want in (([0.5, 0.5, 0.5], 3), ([0.9] * 4, 3), ([0.95] * 16, 15), ([0.3, 0.9, 0.9], 3),
                       ([0.9, 0.9, 0.9, 0.7, 0.8, 0.9, 0.9], 7)):
        choose(t, best_draft, odds, STAIRS, want)
    for n in (5, 9, 16):
        for _ in range(6):
            odds = [round(float(p), 2) for p in t.rng.uniform(0.5, 1.0, n)]
            if (want := wanted(odds, STAIRS, math.inf)) is not None:
                choose(t, best_draft, odds, STAIRS, want)


@ex.check("at a tie the shortest")
def shortest_of_ties(best_draft, t):
    for odds, table, want in (([1.0, 0.25], LINE, 1), ([0.5, 0.5, 1.0], LINE, 1),
                              ([1.0, 1.0, 0.5], {1: 1.0, 2: 1.25, 3: 1.5, 4: 2.0}, 2)):
        choose(t, best_draft, odds, table, want)


@ex.check("no verify may lose more than the allowance at worst")
def bounded(best_draft, t):
    for odds, table, allowance, want in (([1.0], LINE, 0.5, 1), ([1.0, 1.0, 1.0], LINE, 0.55, 2),
                                         ([1.0, 1.0, 1.0], LINE, 0.5, 2), ([1.0, 1.0, 1.0], LINE, 0.2, 0),
                                         ([1.0, 1.0, 1.0], LINE, 0.25, 1), ([1.0] * 16, LINE, 2.0, 8),
                                         ([1.0, 1.0, 1.0], STAIRS, 0.5, 3), ([1.0, 0.9], STAIRS, 0.5, 1),
                                         ([1.0, 1.0], LINE, -0.5, 0), ([0.9] * 4, LINE, 9.0, 4), ([0.9, 0.8], LINE, 0.0, 0)):
        choose(t, best_draft, odds, table, want, allowance)
    for n in (4, 8, 16):
        for allowance in (0.5, 1.0, 2.5):
            odds = [round(float(p), 2) for p in t.rng.uniform(0.6, 1.0, n)]
            if (want := wanted(odds, STAIRS, allowance)) is not None:
                choose(t, best_draft, odds, STAIRS, want, allowance)


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch09.losing",
    title="Is drafting losing?",
    points=4,
    level="easy",
    section="09.6",
    hints=[
        "Two sums over the verifies: the committed tokens, and the costs. Drafting loses if fewer tokens were committed "
        "than plain steps were paid.",
        "Before that: are there two verifies at least, and have they drafted `enough` tokens together? If not, it is too "
        "early to say: False.",
    ],
)


@ex.solution
def losing(verifies, enough=8):
    """Whether drafting has lost time, by the latest verifies.

    It has, if the verifies cost more plain steps than they committed tokens.  One verify, or
    a few short drafts, are too few to judge by: then the answer is False.

    Parameters
    ----------
    verifies : list of (committed, accepted, drafted, cost)
        Tokens that a verify committed, drafts that were accepted, drafts that there were, and
        its cost in plain steps.  Committed are one more than accepted, or fewer where the text
        ended within them.  All the verifies count, however many there are.
    enough : int
        Drafted tokens that the verifies must have, all together.  And there must be two
        verifies at least.

    Returns
    -------
    bool

    Examples
    --------
    >>> losing([(1, 0, 6, 2.5), (1, 0, 5, 2.25)])
    True
    >>> losing([(1, 0, 4, 2.0), (3, 2, 4, 2.0)])
    False
    """
    if len(verifies) < 2 or sum(drafted for _, _, drafted, _ in verifies) < enough:
        return False
    return sum(committed for committed, _, _, _ in verifies) < sum(cost for _, _, _, cost in verifies)


@ex.wrong("Compares tokens with steps. A verify is a longer step than a plain one: compare with what the verifies cost.")
def counts_steps(verifies, enough=8):
    if len(verifies) < 2 or sum(v[2] for v in verifies) < enough:
        return False
    return sum(v[0] for v in verifies) <= len(verifies)


@ex.wrong("Counts the accepted drafts alone. The token that the model chose itself is committed as well: use `committed`.")
def counts_accepted(verifies, enough=8):
    if len(verifies) < 2 or sum(v[2] for v in verifies) < enough:
        return False
    return sum(v[1] for v in verifies) < sum(v[3] for v in verifies)


@ex.wrong("Averages the verifies' own ratios. A short verify then counts as much as a long one, although it took less "
          "time. Sum the tokens, sum the costs, then compare.")
def averages_ratios(verifies, enough=8):
    if len(verifies) < 2 or sum(v[2] for v in verifies) < enough:
        return False
    return sum(v[0] / v[3] for v in verifies) / len(verifies) < 1


@ex.wrong("Looks at the newest verify only. A single draft may be unlucky: judge by all of them together.")
def newest_only(verifies, enough=8):
    if len(verifies) < 2 or sum(v[2] for v in verifies) < enough:
        return False
    return verifies[-1][0] < verifies[-1][3]


@ex.wrong("Breaking even is not losing: just as many tokens as plain steps is what plain decoding does.")
def a_tie_loses(verifies, enough=8):
    if len(verifies) < 2 or sum(v[2] for v in verifies) < enough:
        return False
    return sum(v[0] for v in verifies) <= sum(v[3] for v in verifies)


@ex.wrong("Judges a single verify, if only its draft was long. One unlucky draft happens in the best of texts: wait for "
          "two.")
def one_is_enough(verifies, enough=8):
    if sum(v[2] for v in verifies) < enough:
        return False
    return sum(v[0] for v in verifies) < sum(v[3] for v in verifies)


@ex.wrong("Judges two short drafts. They must have `enough` drafted tokens together.")
def two_are_enough(verifies, enough=8):
    if len(verifies) < 2:
        return False
    return sum(v[0] for v in verifies) < sum(v[3] for v in verifies)


@ex.wrong("Exactly `enough` drafted tokens are enough.")
def more_than_enough(verifies, enough=8):
    if len(verifies) < 2 or sum(v[2] for v in verifies) <= enough:
        return False
    return sum(v[0] for v in verifies) < sum(v[3] for v in verifies)


@ex.wrong("Looks at the latest sixteen verifies, however many it was given. Which of them count is decided by whoever asks: all "
          "that are handed over.")
def the_latest_sixteen(verifies, enough=8):
    verifies = list(verifies)[-16:]
    if len(verifies) < 2 or sum(v[2] for v in verifies) < enough:
        return False
    return sum(v[0] for v in verifies) < sum(v[3] for v in verifies)


def judged(t, losing, verifies, want, *enough):
    """One judgement, told as code."""
    t.case()
    shown = f"losing({verifies}{''.join(f', {n}' for n in enough)})"
    t.equal(t.call(losing, verifies, *enough, shown=shown), want)


@ex.check("too few verifies, or too few drafted tokens: not losing yet")
def too_early(losing, t):
    for verifies in ([], [(1, 0, 8, 2.5)], [(1, 0, 16, 4.5)], [(1, 0, 2, 1.5)] * 3, [(1, 0, 3, 1.5), (1, 0, 4, 2.0)]):
        judged(t, losing, verifies, False)
    judged(t, losing, [(1, 0, 4, 2.0)] * 4, False, 17)


@ex.check("losing: more plain steps paid than tokens committed")
def more_paid(losing, t):
    for verifies in ([(1, 0, 8, 2.5)] * 3, [(1, 0, 6, 2.5)] * 2, [(1, 0, 3, 1.5)] * 4, [(3, 2, 5, 3.25)] * 2,
                     [(4, 3, 8, 2.75), (1, 0, 8, 2.75)], [(1, 0, 8, 4.0), (3, 2, 4, 2.0)],
                     [(3, 3, 6, 2.0), (1, 2, 4, 2.25)], [(1, 0, 8, 5.0)] * 4 + [(2, 1, 4, 1.75)] * 20,
                     [(1, 0, 8, 50.0)] * 3 + [(2, 1, 4, 1.9)] * 300):
        judged(t, losing, verifies, True)
    judged(t, losing, [(1, 0, 4, 2.0)] * 4, True, 15)


@ex.check("exactly `enough` drafted tokens are enough")
def at_the_border(losing, t):
    for verifies in ([(1, 0, 4, 2.0)] * 2, [(1, 0, 2, 1.5)] * 4):
        judged(t, losing, verifies, True)
    judged(t, losing, [(1, 0, 4, 2.0)] * 4, True, 16)


@ex.check("not losing: as many tokens committed as plain steps paid, or more")
def enough_won(losing, t):
    for verifies in ([(5, 4, 4, 2.0)] * 2, [(3, 2, 4, 2.25)] * 2, [(2, 1, 4, 2.0)] * 2, [(3, 2, 4, 2.0), (1, 0, 4, 2.0)],
                     [(9, 8, 8, 4.0), (1, 0, 4, 2.0), (1, 0, 4, 3.5)], [(3, 2, 8, 2.5), (2, 1, 2, 1.25)],
                     [(1, 0, 2, 1.25), (1, 0, 2, 1.25), (6, 5, 5, 5.0)]):
        judged(t, losing, verifies, False)


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch09.gate",
    title="The gate",
    points=15,
    level="hard",
    section="09.6",
    hints=[
        "Draw the three states and their arrows. Two arrows belong to `record`, from on and from probing; one belongs to "
        "`allows`, since only time leads out of a pause.",
        "Going off is the same from everywhere: the state, the length of the pause, a counter at 0, an empty window. A "
        "helper such as `turn_off(backoff)` saves you three copies.",
        "`record` first appends to the window, then asks your `losing`. In a probe there is a second question, after its "
        "last verify only: have the tokens of the window reached 1 + margin times its costs?",
    ],
)


@ex.solution
class Gate:
    """Decides, for one stream, when to draft.

    A decoder asks `allows` once per step.  If the answer is True and there is a draft, it
    verifies the draft and tells `record` what came of it.  So nothing is recorded while the
    gate is off, and `drafted` is never 0.

    on
        The gate starts here.  When the verifies in the window are losing (ch09.losing), it
        turns off for `pause` steps.
    off
        `allows` says False.  The `backoff`-th call since the gate turned off says True: with
        it a probe begins, with an empty window.
    probing
        When the window is losing, the probe fails at once.  After `probes` verifies it has
        passed if the window committed at least 1 + margin tokens per plain step; otherwise
        it fails.  Passed: on.  Failed: off, for twice as many steps as the last time, but
        `longest` at most.

    Whenever the gate turns off, the window is emptied, and only then: the verifies of a passed
    probe stay in it.

    Parameters
    ----------
    window : int
        Verifies that the gate looks back at.
    enough : int
        As in ch09.losing.
    margin : float
        What a probe must win per plain step, above 1.
    pause, longest : int
        Steps of a first pause, and the most of any pause; `pause` is not above `longest`.
    probes : int
        Verifies of a probe.  Steps without a verify do not count.

    Attributes
    ----------
    state : str
        "on", "off" or "probing".
    backoff : int
        Steps of the present pause, or of the last one; a passed probe does not change it.
    window : deque of (committed, accepted, drafted, cost)
        The latest verifies.

    Examples
    --------
    >>> gate = Gate(pause=3)
    >>> for _ in range(2):
    ...     gate.record(committed=1, accepted=0, drafted=4, cost=2.0)
    >>> gate.state, [gate.allows() for _ in range(4)], gate.state
    ('off', [False, False, True, True], 'probing')
    """

    @given
    def __init__(self, window=16, enough=8, margin=0.10, pause=128, longest=1024, probes=4):
        self.window = deque(maxlen=window)  # a full one drops its oldest entry by itself
        self.enough, self.margin = enough, margin
        self.pause, self.longest, self.probes = pause, longest, probes
        self.state = "on"
        self.backoff = pause
        self.waited = 0  # steps of the present pause so far
        self.left = 0  # verifies that the present probe still has

    @given
    def budget(self):
        """How many tokens to draft at most: more where more was accepted."""
        drafted = sum(entry[2] for entry in self.window)
        accepted = sum(entry[1] for entry in self.window)
        return min(16, 2 + math.ceil(16 * accepted / drafted)) if drafted else 3

    def allows(self):
        """Whether this step may draft: True or False."""
        if self.state != "off":
            return True
        self.waited += 1
        if self.waited < self.backoff:
            return False
        self.state, self.left = "probing", self.probes
        return True

    def record(self, committed, accepted, drafted, cost):
        """Enter a verify into the window, and judge."""
        self.window.append((committed, accepted, drafted, cost))
        tokens, paid = sum(entry[0] for entry in self.window), sum(entry[3] for entry in self.window)
        enough = len(self.window) >= 2 and sum(entry[2] for entry in self.window) >= self.enough
        pause = None
        if self.state == "on":
            if enough and tokens < paid:
                pause = self.pause
        else:
            self.left -= 1
            if (enough and tokens < paid) or (self.left == 0 and tokens < (1 + self.margin) * paid):
                pause = min(2 * self.backoff, self.longest)
            elif self.left == 0:
                self.state = "on"
        if pause:
            self.state, self.backoff, self.waited = "off", pause, 0
            self.window.clear()


@ex.wrong("Judges by tokens per step. A verify that commits 1.5 tokens and costs 2 plain steps looks like a win then, "
          "and loses a quarter of the time: compare tokens with costs.")
class TokensPerStep(Gate):
    def record(self, committed, accepted, drafted, cost):
        super().record(committed, accepted, drafted, 1.0)


@ex.wrong("Takes the mean of the verifies' own ratios. A short verify then counts as much as a long one, although it "
          "took less time. Sum the tokens, sum the costs, then compare.")
class MeanOfRatios(Gate):
    def record(self, committed, accepted, drafted, cost):
        super().record(committed / cost, accepted, drafted, 1.0)


@ex.wrong("Judges a probe by its last verify alone. One verify may be lucky, or unlucky: what counts is all tokens of the "
          "window against all its costs.")
class LastOfTheProbe(Gate):
    def record(self, committed, accepted, drafted, cost):
        before, margin, ends = list(self.window), self.margin, self.state == "probing" and self.left == 1
        if ends:
            self.margin = -1.0  # whatever it has won so far
        super().record(committed, accepted, drafted, cost)
        self.margin = margin
        if ends and self.state == "on" and committed < (1 + margin) * cost:
            self.state, self.backoff, self.waited = "off", min(2 * self.backoff, self.longest), 0
            self.window.clear()
        elif ends and self.state == "off" and committed >= (1 + margin) * cost:
            self.state, self.backoff = "on", self.backoff // 2
            self.window.extend([*before, (committed, accepted, drafted, cost)])


@ex.wrong("A probe that failed early leaves fewer verifies for the next one. Each probe begins with all its `probes` verifies.")
class ShorterProbes(Gate):
    def allows(self):
        left, off = self.left, self.state == "off"
        answer = super().allows()
        if off and answer and left > 0:
            self.left = left
        return answer


@ex.wrong("The window is emptied when a probe passes. Only turning off empties it: the verifies of the probe have shown that "
          "drafting wins, and two bad ones after them do not outweigh that.")
class ForgetsThePassedProbe(Gate):
    def record(self, committed, accepted, drafted, cost):
        probing = self.state == "probing"
        super().record(committed, accepted, drafted, cost)
        if probing and self.state == "on":
            self.window.clear()


@ex.wrong("No hysteresis: a probe that breaks even turns drafting on again. Where drafting neither wins nor loses, the "
          "gate then goes on and off all the time. A probe has to show a win: 1 + margin tokens per plain step.")
class NoHysteresis(Gate):
    def record(self, committed, accepted, drafted, cost):
        margin, self.margin = self.margin, 0.0
        super().record(committed, accepted, drafted, cost)
        self.margin = margin


@ex.wrong("Never probes: once off, always off. If the text begins to repeat itself later, the gate never notices.")
class NeverProbes(Gate):
    def allows(self):
        return self.state != "off"


@ex.wrong("The pause never grows. Where drafting always loses, every failed probe costs time: each failure must double "
          "the pause.")
class NeverGrows(Gate):
    def record(self, committed, accepted, drafted, cost):
        super().record(committed, accepted, drafted, cost)
        self.backoff = self.pause


@ex.wrong("The pause grows without end. After a few failures the gate would be off for the rest of the text: `longest` "
          "is the most.")
class GrowsForEver(Gate):
    def record(self, committed, accepted, drafted, cost):
        before, probing = self.backoff, self.state == "probing"
        super().record(committed, accepted, drafted, cost)
        if probing and self.state == "off":
            self.backoff = 2 * before


@ex.wrong("The pause is never reset. After a passed probe drafting has won again: when it loses later, the first "
          "pause is the short one, `pause`.")
class NeverResets(Gate):
    def record(self, committed, accepted, drafted, cost):
        before, on = self.backoff, self.state == "on"
        super().record(committed, accepted, drafted, cost)
        if on:
            self.backoff = before


@ex.wrong("Judges a single verify. One unlucky draft happens in the best of texts: wait until the window holds two "
          "verifies and `enough` drafted tokens.")
class Hasty(Gate):
    def record(self, committed, accepted, drafted, cost):
        self.enough = 0
        if not self.window:  # as if it had seen half of it before
            self.window.append((0, 0, 0, 0.0))
        super().record(committed, accepted, drafted, cost)
        if self.window and self.window[0][3] == 0:
            self.window.popleft()


@ex.wrong("Two short drafts are not enough to judge by: the window must hold `enough` drafted tokens as well.")
class IgnoresEnough(Gate):
    def record(self, committed, accepted, drafted, cost):
        self.enough = 0
        super().record(committed, accepted, drafted, cost)


@ex.wrong("The probe is judged by verifies from before the pause, which lost. It must begin with an empty window.")
class OldWindow(Gate):
    old = ()

    def allows(self):
        was = self.state
        answer = super().allows()
        if was == "off" and self.state == "probing":
            self.window.extend(self.old)
        return answer

    def record(self, committed, accepted, drafted, cost):
        held = [*self.window, (committed, accepted, drafted, cost)]
        super().record(committed, accepted, drafted, cost)
        if self.state == "off":
            self.old = held


@ex.wrong("Looks back at every verify since the window was emptied. A long good stretch then hides that drafting has "
          "begun to lose: only the latest `window` verifies count.")
class RemembersEverything(Gate):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.window = deque()


@ex.wrong("A step without a draft uses up a part of the probe. Such a step shows nothing: only verifies count.")
class StepsUseUpTheProbe(Gate):
    def allows(self):
        answer = super().allows()
        if self.state == "probing":
            self.left -= 1
        return answer

    def record(self, committed, accepted, drafted, cost):
        if self.state == "probing":
            self.left = max(self.left, 0) + 1
        super().record(committed, accepted, drafted, cost)


@ex.wrong("The pause is one step too long: the `backoff`-th call of `allows` begins the probe.")
class OneStepTooLong(Gate):
    late = False

    def allows(self):
        if self.state == "off" and not self.late and self.waited == self.backoff - 1:
            self.late = True
            return False
        self.late = False
        return super().allows()


LOSING = (1, 0, 4, 2.0)  # committed, accepted, drafted, cost
WINNING = (5, 4, 4, 2.0)


@ex.wrong("A probe with few drafted tokens passes, whatever it won. `enough` says when drafting can be called losing; a probe has to win, "
          "or it has failed.")
class PassesShortProbes(Gate):
    def record(self, committed, accepted, drafted, cost):
        was, last, window = self.state, self.left == 1, list(self.window)
        super().record(committed, accepted, drafted, cost)
        if was == "probing" and last and self.state == "off":
            entries = [*window, (committed, accepted, drafted, cost)]
            if sum(entry[2] for entry in entries) < self.enough:
                self.state = "on"
                self.backoff //= 2
                self.window.extend(entries)


def new_gate(t, Gate, **options):
    """A gate, and the code that makes it."""
    t.case(f"gate = Gate({', '.join(f'{name}={value}' for name, value in options.items())})")
    return Gate(**options)


def verify(t, gate, entry, times=1):
    """So many verifies, told as code."""
    text = "gate.record(committed={}, accepted={}, drafted={}, cost={})".format(*entry)
    for i in range(times):
        t.call(gate.record, *entry, shown=None if i else text + (f"      # {times} times" if times > 1 else ""))


def pause_of(t, gate, most=64):
    """Calls of `allows` up to the one that says yes, which is counted."""
    for n in range(1, most + 1):
        answer = t.call(gate.allows, shown=None)
        t.holds(isinstance(answer, (bool, np.bool_)), f"gate.allows() is {answer!r}, expected True or False")
        if answer:
            t.story.append(f"gate.allows()      # call number {n} says True")
            return n
    t.story.append(f"gate.allows()      # {most} calls, each of them says False")
    return None


def probe(t, gate, entry, times=1):
    """So many verifies in a probe, each after the first with the step's own question before it, as a decoder asks it."""
    for i in range(times):
        if i or gate.window:
            t.equal(t.call(gate.allows), True, "gate.allows()")
        verify(t, gate, entry)


def turn_off(t, gate):
    """Two losing verifies, which must turn it off."""
    verify(t, gate, LOSING, 2)
    t.equal(gate.state, "off", "gate.state")


@ex.check("on: losing turns it off, winning does not")
def trips(Gate, t):
    for entry, state in ((LOSING, "off"), (WINNING, "on"), ((3, 2, 4, 3.1), "off"), ((2, 1, 4, 2.0), "on")):
        gate = new_gate(t, Gate)
        t.equal(t.call(gate.allows), True, "gate.allows()")
        verify(t, gate, entry, 2)
        t.equal(gate.state, state, "gate.state")
    for entries, state in ((((9, 8, 8, 8.0), (1, 0, 4, 1.5)), "on"), (((3, 2, 2, 1.5), (5, 4, 16, 7.0)), "off")):
        gate = new_gate(t, Gate)
        for entry in entries:
            verify(t, gate, entry)
        t.equal(gate.state, state, "gate.state")


@ex.check("it does not judge before it has two verifies and enough drafted tokens")
def waits_for_enough(Gate, t):
    gate = new_gate(t, Gate, enough=8)
    verify(t, gate, (1, 0, 16, 4.5))
    t.equal(gate.state, "on", "gate.state after one verify")
    verify(t, gate, (1, 0, 16, 4.5))
    t.equal(gate.state, "off", "gate.state")
    gate = new_gate(t, Gate, enough=8)
    for n in (1, 2, 3):
        verify(t, gate, (1, 0, 2, 1.5))
        t.equal(gate.state, "on", f"gate.state with {2 * n} drafted tokens in the window")
    verify(t, gate, (1, 0, 2, 1.5))
    t.equal(gate.state, "off", "gate.state")
    gate = new_gate(t, Gate, enough=20, pause=1)
    verify(t, gate, LOSING, 4)
    t.equal(gate.state, "on", "gate.state with 16 drafted tokens in the window")
    verify(t, gate, LOSING)
    t.equal(gate.state, "off", "gate.state")
    t.equal(pause_of(t, gate), 1, "the call of allows that begins the probe")
    probe(t, gate, LOSING, 3)
    t.equal(gate.state, "probing", "gate.state with 12 drafted tokens in the window")


@ex.check("only the latest verifies count")
def forgets(Gate, t):
    gate = new_gate(t, Gate, window=4)
    verify(t, gate, WINNING, 20)
    verify(t, gate, LOSING, 3)
    t.equal(gate.state, "on", "gate.state")  # 8 tokens, cost 8
    verify(t, gate, LOSING)
    t.equal(gate.state, "off", "gate.state")


@ex.check("off: no until the pause is over, then a probe, and the window is empty")
def pauses(Gate, t):
    for pause in (1, 2, 5):
        gate = new_gate(t, Gate, pause=pause, longest=8)
        turn_off(t, gate)
        t.equal(len(gate.window), 0, "len(gate.window) as soon as the gate is off")
        t.equal(pause_of(t, gate), pause, "the call of allows that begins the probe")
        t.equal(gate.state, "probing", "gate.state")
        t.equal(len(gate.window), 0, "len(gate.window)")


@ex.check("a probe must win by the margin")
def must_win(Gate, t):
    for entry, state in ((WINNING, "on"), ((11, 7, 7, 10.0), "on"), ((21, 7, 7, 20.0), "off"), ((2, 1, 4, 2.0), "off")):
        gate = new_gate(t, Gate, pause=2, longest=8, probes=3)
        turn_off(t, gate)
        pause_of(t, gate)
        probe(t, gate, entry, 2)
        t.equal(gate.state, "probing", "gate.state after 2 of 3 verifies")
        probe(t, gate, entry)
        t.equal(gate.state, state, "gate.state after the probe")
    gate = new_gate(t, Gate, pause=2, longest=8, probes=3, enough=50)
    verify(t, gate, (1, 0, 8, 2.5), 7)
    pause_of(t, gate)
    probe(t, gate, (1, 0, 1, 1.25), 3)
    t.equal(gate.state, "off", "gate.state after a probe that won nothing, with fewer than `enough` drafted tokens")
    for margin, state in ((0.25, "on"), (0.5, "off")):
        gate = new_gate(t, Gate, pause=2, longest=8, probes=3, margin=margin)
        turn_off(t, gate)
        pause_of(t, gate)
        probe(t, gate, (5, 4, 4, 4.0), 3)
        t.equal(gate.state, state, "gate.state after the probe")


@ex.check("a probe is judged by all its tokens and all its costs")
def all_of_the_probe(Gate, t):
    for entries, state in (((WINNING, WINNING, WINNING, LOSING), "on"), (((2, 1, 1, 1.25), (2, 1, 1, 1.25), (4, 3, 16, 5.0)), "off")):
        gate = new_gate(t, Gate, pause=2, longest=8, probes=len(entries))
        turn_off(t, gate)
        pause_of(t, gate)
        for entry in entries:
            probe(t, gate, entry)
        t.equal(gate.state, state, "gate.state after the probe")


@ex.check("each probe has `probes` verifies, however short the window is and however the one before ended")
def whole_probes(Gate, t):
    gate = new_gate(t, Gate, pause=1, longest=8, probes=4)
    turn_off(t, gate)
    pause_of(t, gate)
    verify(t, gate, LOSING, 2)
    t.equal(gate.state, "off", "gate.state: a losing probe ends at once")
    pause_of(t, gate)
    probe(t, gate, WINNING, 3)
    t.equal(gate.state, "probing", "gate.state after 3 of 4 verifies")
    probe(t, gate, WINNING)
    t.equal(gate.state, "on", "gate.state after the probe")
    gate = new_gate(t, Gate, pause=1, longest=8, probes=3, window=2)
    turn_off(t, gate)
    pause_of(t, gate)
    probe(t, gate, WINNING, 3)
    t.equal(gate.state, "on", "gate.state after the probe")


@ex.check("a failed probe doubles the pause, up to the longest")
def backs_off(Gate, t):
    for pause, longest, pauses in ((2, 8, (2, 4, 8, 8, 8)), (3, 10, (3, 6, 10, 10))):
        gate = new_gate(t, Gate, pause=pause, longest=longest)
        turn_off(t, gate)
        got = []
        for _ in pauses:
            got.append(pause_of(t, gate))
            verify(t, gate, LOSING, 2)
            t.equal(gate.state, "off", "gate.state: a losing probe ends at once")
        t.equal(tuple(got), pauses, "how many calls of allows each pause took")


@ex.check("after a passed probe, the next pause is the first one again")
def starts_again(Gate, t):
    gate = new_gate(t, Gate, pause=2, longest=16, probes=2, window=2)
    turn_off(t, gate)
    pause_of(t, gate)
    verify(t, gate, LOSING, 2)
    t.equal(pause_of(t, gate), 4, "the call of allows that begins the second probe")
    verify(t, gate, WINNING, 2)
    t.equal(gate.state, "on", "gate.state")
    t.equal(gate.backoff, 4, "gate.backoff, the steps of the last pause")
    turn_off(t, gate)
    t.equal(pause_of(t, gate), 2, "the call of allows that begins the next probe")


@ex.check("a passed probe stays in the window")
def keeps_the_probe(Gate, t):
    gate = new_gate(t, Gate, pause=2, longest=16, probes=4)
    turn_off(t, gate)
    pause_of(t, gate)
    probe(t, gate, WINNING, 4)
    t.equal(gate.state, "on", "gate.state after the probe")
    verify(t, gate, LOSING, 2)
    t.equal(gate.state, "on", "gate.state: the window holds 22 tokens for 12 plain steps")


@ex.check("steps without a draft do not use up a probe")
def patient_probe(Gate, t):
    gate = new_gate(t, Gate, pause=2, longest=16, probes=4)
    turn_off(t, gate)
    pause_of(t, gate)
    verify(t, gate, WINNING)
    for n in range(6):
        got = t.call(gate.allows, shown=None if n else "gate.allows()      # 6 times, and nothing to draft")
        t.equal(got, True, "gate.allows()")
        t.equal(gate.state, "probing", "gate.state")
    verify(t, gate, WINNING)
    t.equal(gate.state, "probing", "gate.state after 2 of 4 verifies")
    probe(t, gate, WINNING, 2)
    t.equal(gate.state, "on", "gate.state")


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch09.ewma",
    title="A scale that follows, slowly",
    points=10,
    level="medium",
    section="09.6",
    hints=[
        "`note_plain`: the first time there is nothing to average with. After that, take a quarter of the new time and "
        "three quarters of the old value.",
        "`verify`: measured = max(seconds / plain, 1.0). The sample is measured / table. Clamp the sample first, "
        "average then.",
        "The average begins at 1.0, which says: the table is right until passes have shown something else. "
        "The first sample is no exception.",
        "scale = 0.2 * sample + 0.8 * scale, and the price is max(scale * table, 1.0).",
    ],
)


@ex.solution
class LiveCost:
    """What verifies cost on this machine: the table's shape, times a scale learned from passes.

    Attributes
    ----------
    plain : float or None
        Seconds of a plain step, smoothed; None before the first.
    scale : float
        Measured cost divided by the table's cost, smoothed.  1.0 before anything was measured.

    Examples
    --------
    >>> live = LiveCost()
    >>> live.note_plain(0.01)
    >>> live.verify(2.0, 0.04)
    2.4
    >>> live.scale
    1.2
    """

    @given
    def __init__(self):
        self.plain = None
        self.scale = 1.0

    def note_plain(self, seconds):
        """Learn from a plain step that took so many seconds.

        The first one sets `plain`.  Each later one moves `plain` a quarter of the way towards
        its own time.
        """
        self.plain = seconds if self.plain is None else 0.25 * seconds + 0.75 * self.plain

    def verify(self, table, seconds):
        """Learn from a verify, and return its cost in plain steps.

        `table` is its cost by the table, `seconds` is what it took.

        Its measured cost is the number of plain steps that fit into that time, at least
        1.  The sample is the measured cost divided by the table's.  It is clamped to the
        range 0.25 to 4, and then `scale` moves a fifth of the way towards it.  Before the
        first plain step nothing can be learned.

        The result is always the table's cost times the new scale, but at least 1: no pass is
        cheaper than a pass of one row.
        """
        if self.plain is not None:
            measured = max(seconds / self.plain, 1.0)
            sample = min(max(measured / table, 0.25), 4.0)
            self.scale = 0.2 * sample + 0.8 * self.scale
        return max(self.scale * table, 1.0)


@ex.wrong("The sample is not clamped. One pass that took a thousand times too long, because the machine was asleep, "
          "then outweighs everything for dozens of passes, and turns off drafting that wins.")
class Unclamped(LiveCost):
    def verify(self, table, seconds):
        if self.plain is not None:
            self.scale = 0.2 * (max(seconds / self.plain, 1.0) / table) + 0.8 * self.scale
        return max(self.scale * table, 1.0)


@ex.wrong("The first sample sets the scale. If just that pass was disturbed, drafting is priced out before it has "
          "begun. The scale starts at 1.0, and the first sample moves it a fifth of the way like any other.")
class SeededByTheFirst(LiveCost):
    first = True

    def verify(self, table, seconds):
        if self.plain is not None:
            sample = min(max(max(seconds / self.plain, 1.0) / table, 0.25), 4.0)
            self.scale = sample if self.first else 0.2 * sample + 0.8 * self.scale
            self.first = False
        return max(self.scale * table, 1.0)


@ex.wrong("The weights are the wrong way round: the scale jumps four fifths of the way to each sample.")
class Nervous(LiveCost):
    def verify(self, table, seconds):
        if self.plain is not None:
            sample = min(max(max(seconds / self.plain, 1.0) / table, 0.25), 4.0)
            self.scale = 0.8 * sample + 0.2 * self.scale
        return max(self.scale * table, 1.0)


@ex.wrong("Clamps the measured cost. A wide pass may well cost more than 4 plain steps; what is clamped is how far it "
          "lies from the table.")
class ClampsTheCost(LiveCost):
    def verify(self, table, seconds):
        if self.plain is not None:
            sample = min(max(seconds / self.plain, 1.0), 4.0) / table
            self.scale = 0.2 * sample + 0.8 * self.scale
        return max(self.scale * table, 1.0)


@ex.wrong("Returns what this one pass took. That jumps with every disturbance; the smoothed price is the scale times "
          "the table's cost.")
class ReturnsTheMeasured(LiveCost):
    def verify(self, table, seconds):
        super().verify(table, seconds)
        return max(seconds / self.plain, 1.0) if self.plain else max(self.scale * table, 1.0)


@ex.wrong("Prices the pass with the scale from before it: learn first, then return the cost.")
class PricesFirst(LiveCost):
    def verify(self, table, seconds):
        price = max(self.scale * table, 1.0)
        super().verify(table, seconds)
        return price


@ex.wrong("A price below 1. A pass of several rows reads all that a pass of one row reads: it is never cheaper.")
class CheaperThanOneRow(LiveCost):
    def verify(self, table, seconds):
        return min(super().verify(table, seconds), self.scale * table)


@ex.wrong("A measured cost below 1 goes into the average. It only says that the plain steps before were disturbed: "
          "no pass is cheaper than one of a single row.")
class LearnsFromBelowOne(LiveCost):
    def verify(self, table, seconds):
        if self.plain is not None:
            sample = min(max(seconds / self.plain / table, 0.25), 4.0)
            self.scale = 0.2 * sample + 0.8 * self.scale
        return max(self.scale * table, 1.0)


@ex.wrong("The average of the plain steps begins at 0, so that the first of them seems to take a quarter of its time, "
          "and every verify four times as many plain steps. The first sets `plain`.")
class StartsAtZero(LiveCost):
    def note_plain(self, seconds):
        self.plain = 0.25 * seconds + 0.75 * (self.plain or 0.0)


@ex.wrong("Learns without a plain step to compare with: until there is one, `scale` stays.")
class ComparesWithNothing(LiveCost):
    def verify(self, table, seconds):
        if self.plain is None:
            self.scale = 0.2 * min(max(max(seconds, 1.0) / table, 0.25), 4.0) + 0.8 * self.scale
            return max(self.scale * table, 1.0)
        return super().verify(table, seconds)


@ex.wrong("Keeps the scale itself within limits of its own. Only the samples are clamped; after many of 0.25 the scale comes near "
          "that.")
class ScaleHasAFloor(LiveCost):
    def verify(self, table, seconds):
        self.scale = max(self.scale, 0.5)
        return super().verify(table, seconds)


@ex.wrong("Rounds the time of a plain step to milliseconds. A small model takes a few of them, so that is a tenth of its time.")
class RoundsTheTime(LiveCost):
    def note_plain(self, seconds):
        super().note_plain(round(seconds, 3))


def live_after(t, LiveCost, plain):
    """A LiveCost that has seen plain steps of so many seconds."""
    t.case("live = LiveCost()")
    live = LiveCost()
    for seconds in plain:
        t.call(live.note_plain, seconds, shown=f"live.note_plain({seconds})")
    return live


def price(t, live, table, seconds):
    """One verify, told as code."""
    return t.call(live.verify, table, seconds, shown=f"live.verify({table}, {seconds})")


@ex.check("the first plain step sets the unit, each later one moves it a quarter of the way")
def unit(LiveCost, t):
    for plain, want in (((0.25,), 0.25), ((0.25, 0.5), 0.3125), ((0.5, 0.25, 1.25), 0.640625), ((0.0034,), 0.0034),
                        ((0.0034, 0.0042), 0.0036)):
        t.close(live_after(t, LiveCost, plain).plain, want, "live.plain")


@ex.check("each sample moves the scale a fifth of the way, the first one from 1.0")
def moves(LiveCost, t):
    for table, seconds, scales in ((2.0, (1.0,), (1.2,)), (2.0, (0.375,), (0.95,)), (4.5, (1.6875,), (1.1,)),
                                   (1.5, (0.75, 0.75, 0.375), (1.2, 1.36, 1.288))):
        live = live_after(t, LiveCost, (0.25,))
        for s, want in zip(seconds, scales, strict=True):
            price(t, live, table, s)
            t.close(live.scale, want, "live.scale")


@ex.check("the sample is clamped: no single pass moves the scale above 1.6 at first, or the measured cost below 1")
def clamps(LiveCost, t):
    for table, seconds, want in ((2.0, 250.0, 1.6), (1.5, 10.0, 1.6), (2.0, 0.01, 0.9), (8.0, 0.25, 0.85),
                                 (4.5, 4.5, 1.6), (1.25, 0.125, 0.96)):
        live = live_after(t, LiveCost, (0.25,))
        price(t, live, table, seconds)
        t.close(live.scale, want, "live.scale")
        t.close(live.plain, 0.25, "live.plain")


@ex.check("after many equal samples the scale is theirs, as far as the clamp lets it")
def many_samples(LiveCost, t):
    for table, seconds, sample in ((8.0, 0.25, 0.25), (2.0, 9.0, 4.0), (3.0, 0.9375, 1.25)):
        live = live_after(t, LiveCost, (0.25,))
        t.story.append(f"live.verify({table}, {seconds})      # 30 times")
        for _ in range(30):
            got = t.call(live.verify, table, seconds, shown=None)
        scale = sample + (1 - sample) * 0.8**30
        t.close(live.scale, scale, "live.scale")
        t.close(got, max(1.0, table * scale), "the cost")


@ex.check("the cost is the table's times the new scale, and never below 1")
def prices(LiveCost, t):
    for table, seconds, want in ((2.0, 1.0, 2.4), (4.5, 1.6875, 4.95), (2.0, 0.375, 1.9)):
        live = live_after(t, LiveCost, (0.25,))
        t.close(price(t, live, table, seconds), want)
    live = live_after(t, LiveCost, (0.25,))
    for _ in range(3):
        got = price(t, live, 1.25, 0.25)
    t.close(live.scale, 0.9024, "live.scale")
    t.close(got, 1.128)
    for _ in range(3):
        got = price(t, live, 1.05, 0.25)
    t.close(got, 1.0)


@ex.check("before the first plain step a verify teaches nothing")
def no_unit(LiveCost, t):
    for table, seconds in ((2.0, 7.0), (3.0, 0.001), (0.5, 1.0)):
        live = live_after(t, LiveCost, ())
        t.close(price(t, live, table, seconds), max(table, 1.0))
        t.close(live.scale, 1.0, "live.scale")
        t.call(live.note_plain, 0.25, shown="live.note_plain(0.25)")
        t.close(price(t, live, 2.0, 1.0), 2.4)
