"""Chapter 09 - Economics and the gate.

Drafts cannot change a word, but they can waste time.  Here you work out when they win
some, and build the gate: the part that turns drafting off while it loses, and finds out
when it would win again.

One unit for all costs: a plain step, that is a pass of one row.  It costs 1 and commits
one token.  A pass of so many rows costs more than 1, and less than its rows.

Write your code below each docstring, in place of the line that says `your code here`.
Check it with `python3 -m course check ch09`, or in the notebook with a cell that begins
with `%%exercise ch09.break_even`. Both are the same file: this one. Stuck?
`python3 -m course hint ch09.break_even`.

Rules for all exercises:

- An exercise is graded alone, in a process of its own. It knows what its file in
  exercises/ holds, and nothing of your notebook: import and define what you use there,
  or in the exercise's cell.
- Arguments stay as they are, unless the contract says that they change: work on a copy.
- Types count: where the contract says list, a tuple or an array is wrong.
- You build it yourself: the engine (`fucina`) and the solutions are no part of an
  answer, unless the contract says so.
"""

from collections import deque
import itertools
import math
import numpy as np


# %% ch09.break_even - When does a verify win? (5 points, easy, section 09.2)

def break_even(drafts, cost):
    """How many of the drafted tokens must be accepted for a verify to win time.

    A verify runs the newest token and all the drafts in one pass.  It commits the
    accepted drafts, and behind them a token that the model chose itself.  Plain decoding
    takes one plain step for each of these tokens.  The verify wins if it takes less; if
    it takes as much, nothing is won.

    Parameters
    ----------
    drafts : int
        Drafted tokens, at least 1.
    cost : callable
        cost(rows) is what a pass of so many rows costs, in plain steps.

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


# %% ch09.interpolate - Read a cost off measured points (5 points, easy, section 09.2)

def verify_cost(drafts, points):
    """What a verify costs, read off measured points.

    Between two neighbouring points costs lie on a straight line.  Before the first
    point and behind the last one nothing was measured, so the cost of that point is
    taken.

    Parameters
    ----------
    drafts : int
        Drafted tokens of the verify; 0 is a plain step.
    points : list of (rows, cost)
        Measured costs of passes, in plain steps; rows ascend.  At least one point.
        Costs need not ascend: a full tile of rows can be cheaper than a part of one.

    Returns
    -------
    float

    Examples
    --------
    >>> points = [(1, 1.0), (4, 1.5), (8, 3.5)]
    >>> verify_cost(3, points), verify_cost(5, points), verify_cost(20, points)
    (1.5, 2.5, 3.5)
    """
    raise NotImplementedError("ch09.interpolate: your code here")


# %% ch09.gate - The gate (20 points, hard, section 09.5)

class Gate:
    """Decides, for one stream, when to draft.

    A decoder asks `allows` once a step.  If the answer is yes and there is a draft, it
    verifies the draft and tells `record` what came of it.  The rules:

    on
        Steps may draft.  Once the window is losing: off, for `pause` steps.
    off
        `allows` counts the step and says no.  The `backoff`-th of these calls begins a
        probe instead, with an empty window, and says yes.
    probing
        Steps may draft.  When the window is losing, the probe has failed at once.  After
        `probes` verifies it has passed if speedup >= 1 + margin, else failed.  Passed:
        on.  Failed: off, for twice as long as the last time, but `longest` at most.

    Losing: there is enough in the window to judge by, that is two verifies and `enough`
    drafted tokens, and the speed-up is below 1.  Turning off empties the window.

    Parameters
    ----------
    window : int
        Verifies that the gate looks back at.
    enough : int
        Drafted tokens that must be in the window before the gate judges.
    margin : float
        What a probe must win, above 1.
    pause, longest : int
        Plain steps of a first pause, and the most of any.
    probes : int
        Verifies of a probe.  Steps without a verify do not count.

    Attributes
    ----------
    state : str
        "on", "off" or "probing".
    backoff : int
        Steps of the present pause, or of the last one.
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

    def speedup(self):
        """Tokens over costs of the window: what was committed in the time of a plain step.

        math.inf while the window is empty.
        """
        raise NotImplementedError("ch09.gate: your code here")

    def allows(self):
        """Whether this step may draft (True or False); in a pause, the step is counted."""
        raise NotImplementedError("ch09.gate: your code here")

    def record(self, committed, accepted, drafted, cost):
        """Enter a verify into the window, and judge by the rules above."""
        raise NotImplementedError("ch09.gate: your code here")


# %% ch09.ewma - A scale that follows, slowly (10 points, medium, section 09.5)

class LiveCost:
    """What verifies cost here: the table's shape, times a scale that passes have taught.

    Attributes
    ----------
    plain : float or None
        Seconds of a plain step, smoothed; None before the first.
    scale : float
        Measured cost over the table's cost, smoothed.  1.0 before anything was measured.

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
        """Learn from a plain step, which took so many seconds.

        The first sets `plain`, each later one moves it a quarter of the way to itself.
        """
        raise NotImplementedError("ch09.ewma: your code here")

    def verify(self, table, seconds):
        """Learn from a verify, and return its cost in plain steps.

        `table` is what the table says that it costs, `seconds` is what it took.

        Its measured cost is the number of plain steps that fit into that time, at least
        1.  The sample, measured cost over table cost, is clamped to 0.25 ... 4, and moves
        `scale` a fifth of the way to itself.  Before the first plain step nothing can be
        learned.

        The result is the table's cost times the new scale.  It is at least 1: no pass is
        cheaper than one of a single row.
        """
        raise NotImplementedError("ch09.ewma: your code here")


# %% ch09.predict - Predict a speed-up (10 points, medium, section 09.6)

def predict(log, cost):
    """How many times faster than plain decoding a logged run was, by the costs of its passes.

    Parameters
    ----------
    log : list of (drafted, accepted)
        One pair for each step of the run, in order.  (0, 0) is a plain step.
    cost : callable
        cost(rows) is what a pass of so many rows costs, in plain steps; cost(1) is 1.

    Returns
    -------
    float
        Time of plain decoding over time of the run, for the same tokens.  Below 1 it
        was slower.  1.0 for an empty log.

    Examples
    --------
    >>> predict([(3, 3), (0, 0), (3, 0)], lambda rows: 1 + 0.25 * (rows - 1))
    1.3333333333333333
    """
    raise NotImplementedError("ch09.predict: your code here")
