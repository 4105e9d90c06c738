"""Chapter 09 - Economics and the gate.

Drafts cannot change a word, but they can waste time.  Here you work out when they win
some.  You choose how many tokens of a draft to verify, as the engine does it for a source
that knows its odds.  And you build the gate for sources that do not: it turns drafting off
while it loses, and finds out when it would win again.

There is one unit for all costs: the plain step, a pass of one row.  It costs 1 and commits
one token.  A pass of several rows costs more than 1, and nearly always less than the number of its rows.

Write your code below each docstring, in place of the line that says `your code here`.
Check it with `python3 -m course check ch09`, or in the notebook with a cell that begins
with `%%exercise ch09.break_even`. Both are the same file: this one. Stuck?
`python3 -m course hint ch09.break_even`.

Rules for all exercises:

- An exercise is graded alone, in a process of its own. It knows what its file in
  exercises/ holds, and nothing of your notebook: import and define what you use there,
  or in the exercise's cell.
- Arguments stay as they are, unless the contract says that they change: work on a copy.
- Types count: where the contract says list, a tuple or an array is wrong. A number of
  NumPy's counts as a number.
- You build it yourself: the engine (`fucina`) and the solutions are no part of an
  answer, unless the contract says so.
"""

from collections import deque
import math
import numpy as np


# %% ch09.break_even - When does a verify win? (1 point, easy, section 09.2)

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
    raise NotImplementedError("ch09.break_even: your code here")


# %% ch09.best_draft - How many tokens to verify (15 points, medium, section 09.5)

MARGIN = 0.1


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
    raise NotImplementedError("ch09.best_draft: your code here")


# %% ch09.losing - Is drafting losing? (4 points, easy, section 09.6)

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
    raise NotImplementedError("ch09.losing: your code here")


# %% ch09.gate - The gate (15 points, hard, section 09.6)

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

    def __init__(self, window=16, enough=8, margin=0.10, pause=128, longest=1024, probes=4):
        self.window = deque(maxlen=window)  # a full one drops its oldest entry by itself
        self.enough, self.margin = enough, margin
        self.pause, self.longest, self.probes = pause, longest, probes
        self.state = "on"
        self.backoff = pause
        self.waited = 0  # steps of the present pause so far
        self.left = 0  # verifies that the present probe still has

    def budget(self):
        """How many tokens to draft at most: more where more was accepted."""
        drafted = sum(entry[2] for entry in self.window)
        accepted = sum(entry[1] for entry in self.window)
        return min(16, 2 + math.ceil(16 * accepted / drafted)) if drafted else 3

    def allows(self):
        """Whether this step may draft: True or False."""
        raise NotImplementedError("ch09.gate: your code here")

    def record(self, committed, accepted, drafted, cost):
        """Enter a verify into the window, and judge."""
        raise NotImplementedError("ch09.gate: your code here")


# %% ch09.ewma - A scale that follows, slowly (10 points, medium, section 09.6)

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

    def __init__(self):
        self.plain = None
        self.scale = 1.0

    def note_plain(self, seconds):
        """Learn from a plain step that took so many seconds.

        The first one sets `plain`.  Each later one moves `plain` a quarter of the way towards
        its own time.
        """
        raise NotImplementedError("ch09.ewma: your code here")

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
        raise NotImplementedError("ch09.ewma: your code here")
