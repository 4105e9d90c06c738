"""Chapter 09 - Economics and the gate.

Drafts cannot change a word, but they can waste time.  Here you work out when they win
some, and build the gate: the part that turns drafting off while it loses, and finds out
when it would win again.

One unit for all costs: a plain step, that is a pass of one row.  It costs 1 and commits
one token.  A pass of so many rows costs more than 1, and less than its rows.
"""

import itertools
import math
from collections import deque

from course.exercises import Exercise, given

# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch09.break_even",
    title="When does a verify win?",
    points=5,
    level="easy",
    section="09.2",
    hints=[
        "How many rows has the pass? The newest token has no row yet: it goes in as well, in front of the drafts.",
        "How many tokens come out, with a of the drafts accepted? The model's own choice behind them is one more.",
        "Go through a = 0, 1, ... drafts: the first with a + 1 > cost(drafts + 1) is the answer; without one, None.",
    ],
)


@ex.solution
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


@ex.wrong("One token is forgotten: behind the accepted drafts the model has chosen one itself, a correction or a "
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


@ex.wrong("That is the number of committed tokens. Asked for is how many of the drafts must be accepted, one less.")
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
    table[drafts] = round(min(price, drafts) - 0.9, 2) if drafts > 1 else 1.0
    table[drafts + 1] = price
    t.case(f"a pass of {drafts} row{'s' if drafts > 1 else ''} costs {table[drafts]}, of {drafts + 1} rows {price}, "
           f"of {drafts + 2} rows {table[drafts + 2]}")
    return table.__getitem__


@ex.check("the smallest number of accepted drafts whose tokens cost more than the pass")
def smallest_winning(break_even, t):
    for drafts, price, want in ((1, 1.2, 1), (2, 1.6, 1), (4, 2.5, 2), (3, 0.9, 0), (4, 3.7, 3), (8, 2.84, 2),
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
    "ch09.interpolate",
    title="Read a cost off measured points",
    points=5,
    level="easy",
    section="09.2",
    hints=[
        "First the number of rows of the pass: it is not the number of drafts.",
        "Three cases: at or before the first point, between two points, behind the last. In the first and the third "
        "there is no line to follow.",
        "Between (low, below) and (high, above): rows lies (rows - low) / (high - low) of the way from low to high. "
        "The cost has gone the same part of the way from below to above.",
    ],
)


@ex.solution
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
    rows = drafts + 1
    if rows <= points[0][0]:
        return points[0][1]
    for (low, below), (high, above) in itertools.pairwise(points):
        if rows <= high:
            return below + (above - below) * (rows - low) / (high - low)
    return points[-1][1]


@ex.wrong("Looks the number of drafts up. The points are indexed by rows, and a verify of d drafts has d + 1 rows.")
def indexed_by_drafts(drafts, points):
    rows = max(drafts, 1)
    if rows <= points[0][0]:
        return points[0][1]
    for (low, below), (high, above) in itertools.pairwise(points):
        if rows <= high:
            return below + (above - below) * (rows - low) / (high - low)
    return points[-1][1]


@ex.wrong("The line is drawn on behind the last point. Nothing was measured there: two close points with a little "
          "noise would send it anywhere.")
def goes_on_behind_the_end(drafts, points):
    rows = drafts + 1
    if rows <= points[0][0]:
        return points[0][1]
    for (low, below), (high, above) in itertools.pairwise(points):
        if rows <= high or high == points[-1][0]:
            return below + (above - below) * (rows - low) / (high - low)
    return points[-1][1]


@ex.wrong("The line is drawn on in front of the first point. Nothing was measured there, and it can fall below 0.")
def goes_on_before_the_start(drafts, points):
    rows = drafts + 1
    for (low, below), (high, above) in itertools.pairwise(points):
        if rows <= high:
            return below + (above - below) * (rows - low) / (high - low)
    return points[-1][1]


@ex.wrong("Takes the cost of the nearest smaller point: between two points the cost stands still, then jumps.")
def stairs(drafts, points):
    return ([points[0][1]] + [cost for rows, cost in points if rows <= drafts + 1])[-1]


@ex.wrong("The two ends of the line are mixed up: close to a point, that point's cost must count most.")
def weights_swapped(drafts, points):
    rows = drafts + 1
    if rows <= points[0][0]:
        return points[0][1]
    for (low, below), (high, above) in itertools.pairwise(points):
        if rows == high:
            return above
        if rows < high:
            return above + (below - above) * (rows - low) / (high - low)
    return points[-1][1]


def read_off(t, verify_cost, points, drafts, want):
    """One lookup, compared."""
    t.case(f"points = {points}")
    t.close(t.call(verify_cost, drafts, points, shown=f"verify_cost({drafts}, points)      # {drafts + 1} rows"), want)


@ex.check("at a measured point: that point's cost")
def at_points(verify_cost, t):
    for points in ([(1, 1.0), (2, 1.5)], [(1, 1.0), (3, 1.8), (4, 1.4), (8, 2.6)]):
        for rows, cost in points:
            read_off(t, verify_cost, points, rows - 1, cost)


@ex.check("between two points: on the straight line, uphill and downhill")
def between_points(verify_cost, t):
    read_off(t, verify_cost, [(1, 1.0), (3, 2.0)], 1, 1.5)
    points = [(1, 1.0), (5, 3.0), (8, 1.5), (16, 5.5)]
    for rows, cost in ((2, 1.5), (4, 2.5), (6, 2.5), (7, 2.0), (9, 2.0), (15, 5.0)):
        read_off(t, verify_cost, points, rows - 1, cost)


@ex.check("behind the last point: the last cost")
def behind_the_last(verify_cost, t):
    for points, drafts in (([(1, 1.0), (2, 1.5)], 2), ([(1, 1.0), (2, 1.5)], 30), ([(4, 1.6)], 9),
                           ([(1, 1.0), (15, 5.0), (16, 4.0)], 31)):
        read_off(t, verify_cost, points, drafts, points[-1][1])


@ex.check("in front of the first point: the first cost")
def before_the_first(verify_cost, t):
    for points, drafts in (([(1, 1.0), (2, 1.5)], 0), ([(3, 1.2), (5, 3.2)], 1), ([(3, 1.2), (5, 3.2)], 0),
                           ([(8, 2.0), (9, 6.0)], 2)):
        read_off(t, verify_cost, points, drafts, points[0][1])


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch09.gate",
    title="The gate",
    points=20,
    level="hard",
    section="09.5",
    hints=[
        "Write `speedup` first: all committed tokens of the window over all costs of the window. Sums first, then one "
        "division; math.inf while there are no costs.",
        "`allows`: on and probing are one line, True. In off: count the step; no, while fewer than `backoff` were "
        "counted. Then get ready for the probe: state, `left`, an empty window.",
        "`record`: append to the window, then ask whether it is losing. On and losing: off, with the first pause. "
        "Probing: one verify fewer left. Losing: off, the pause doubled. None left: on or off, by the margin.",
        "Going off is the same from everywhere: state, backoff, waited = 0, window.clear(). A helper "
        "`turn_off(backoff)` saves you three copies.",
    ],
)


@ex.solution
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

    def speedup(self):
        """Tokens over costs of the window: what was committed in the time of a plain step.

        math.inf while the window is empty.
        """
        paid = sum(entry[3] for entry in self.window)
        return sum(entry[0] for entry in self.window) / paid if paid else math.inf

    def allows(self):
        """Whether this step may draft (True or False); in a pause, the step is counted."""
        if self.state != "off":
            return True
        self.waited += 1
        if self.waited < self.backoff:
            return False
        self.state, self.left = "probing", self.probes
        self.window.clear()
        return True

    def record(self, committed, accepted, drafted, cost):
        """Enter a verify into the window, and judge by the rules above."""
        self.window.append((committed, accepted, drafted, cost))
        enough = len(self.window) >= 2 and sum(entry[2] for entry in self.window) >= self.enough
        speedup = self.speedup()
        pause = None
        if self.state == "on":
            if enough and speedup < 1:
                pause = self.pause
        else:
            self.left -= 1
            if (enough and speedup < 1) or (self.left == 0 and speedup < 1 + self.margin):
                pause = min(2 * self.backoff, self.longest)
            elif self.left == 0:
                self.state = "on"
        if pause:
            self.state, self.backoff, self.waited = "off", pause, 0
            self.window.clear()


@ex.wrong("Judges by tokens a step. A verify that commits 1.5 tokens and costs 2 plain steps looks like a win then, "
          "and loses a quarter of the time: divide by the costs.")
class TokensAStep(Gate):
    def speedup(self):
        return sum(entry[0] for entry in self.window) / len(self.window) if self.window else math.inf


@ex.wrong("Takes the mean of the verifies' own ratios. A short verify then counts as much as a long one, although it "
          "took less time. Sum the tokens, sum the costs, then divide.")
class MeanOfRatios(Gate):
    def speedup(self):
        ratios = [entry[0] / entry[3] for entry in self.window]
        return sum(ratios) / len(ratios) if ratios else math.inf


@ex.wrong("No hysteresis: a probe that breaks even turns drafting on again, and where it neither wins nor loses the "
          "gate goes on and off all the time. A probe has to show a win, 1 + margin.")
class NoHysteresis(Gate):
    def record(self, committed, accepted, drafted, cost):
        margin, self.margin = self.margin, 0.0
        super().record(committed, accepted, drafted, cost)
        self.margin = margin


@ex.wrong("Never probes: once off, always off. The text may turn into one that repeats itself, and the gate would "
          "never notice.")
class NeverProbes(Gate):
    def allows(self):
        return self.state != "off"


@ex.wrong("The pause never grows. Where drafting loses for good, every failed probe costs time: each failure must "
          "double the pause.")
class NeverGrows(Gate):
    def record(self, committed, accepted, drafted, cost):
        super().record(committed, accepted, drafted, cost)
        self.backoff = self.pause


@ex.wrong("The pause grows without end. After a few failures the gate would sleep for the rest of the text: `longest` "
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


@ex.wrong("The probe is judged by verifies from before the pause, which lost: begin it with an empty window.")
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
        if self.state == "probing":
            self.left -= 1
            if self.left <= 0:
                self.state, self.waited, self.backoff = "off", 0, min(2 * self.backoff, self.longest)
                self.window.clear()
                return False
        answer = super().allows()
        return answer

    def record(self, committed, accepted, drafted, cost):
        if self.state == "probing":
            self.left += 1
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
        t.holds(isinstance(answer, bool), f"gate.allows() is {answer!r}, expected True or False")
        if answer:
            t.story.append(f"gate.allows()      # call number {n} says True")
            return n
    t.story.append(f"gate.allows()      # {most} calls, each of them says False")
    return None


def turn_off(t, gate):
    """Two losing verifies, which must turn it off."""
    verify(t, gate, LOSING, 2)
    t.equal(gate.state, "off", "gate.state")


@ex.check("speedup: committed tokens over costs, in the window; math.inf while it is empty")
def ratio(Gate, t):
    for entries, want in (([(3, 2, 4, 1.5)], 2.0), ([(1, 0, 4, 2.0), (9, 8, 8, 3.0)], 2.0),
                          ([(2, 1, 2, 1.25), (3, 2, 4, 1.75), (9, 8, 8, 3.0)], 7 / 3)):
        gate = new_gate(t, Gate, enough=100)
        t.equal(t.call(gate.speedup, shown=None), math.inf, "gate.speedup() of an empty window")
        for entry in entries:
            verify(t, gate, entry)
        t.close(t.call(gate.speedup, shown="gate.speedup()"), want)


@ex.check("on: losing turns it off, winning does not")
def trips(Gate, t):
    for entry, state in ((LOSING, "off"), (WINNING, "on"), ((3, 2, 4, 3.1), "off"), ((2, 1, 4, 2.0), "on")):
        gate = new_gate(t, Gate)
        t.equal(t.call(gate.allows), True, "gate.allows()")
        verify(t, gate, entry, 2)
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
        verify(t, gate, entry, 2)
        t.equal(gate.state, "probing", "gate.state after 2 of 3 verifies")
        verify(t, gate, entry)
        t.equal(gate.state, state, "gate.state after the probe")


@ex.check("a failed probe doubles the pause, up to the longest")
def backs_off(Gate, t):
    for pause, longest, pauses in ((2, 8, (2, 4, 8, 8, 8)), (3, 10, (3, 6, 10, 10))):
        gate = new_gate(t, Gate, pause=pause, longest=longest)
        turn_off(t, gate)
        for want in pauses:
            t.equal(pause_of(t, gate), want, "the call of allows that begins the probe")
            verify(t, gate, LOSING, 2)
            t.equal(gate.state, "off", "gate.state: a losing probe ends at once")


@ex.check("after a passed probe, the next pause is the first one again")
def starts_again(Gate, t):
    gate = new_gate(t, Gate, pause=2, longest=16, probes=2, window=2)
    turn_off(t, gate)
    pause_of(t, gate)
    verify(t, gate, LOSING, 2)
    t.equal(pause_of(t, gate), 4, "the call of allows that begins the second probe")
    verify(t, gate, WINNING, 2)
    t.equal(gate.state, "on", "gate.state")
    turn_off(t, gate)
    t.equal(pause_of(t, gate), 2, "the call of allows that begins the next probe")


@ex.check("steps without a draft do not use up a probe")
def patient_probe(Gate, t):
    gate = new_gate(t, Gate, pause=2, longest=16, probes=2)
    turn_off(t, gate)
    pause_of(t, gate)
    verify(t, gate, WINNING)
    for n in range(6):
        got = t.call(gate.allows, shown=None if n else "gate.allows()      # 6 times, and nothing to draft")
        t.equal(got, True, "gate.allows()")
        t.equal(gate.state, "probing", "gate.state")
    verify(t, gate, WINNING)
    t.equal(gate.state, "on", "gate.state")


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch09.ewma",
    title="A scale that follows, slowly",
    points=10,
    level="medium",
    section="09.5",
    hints=[
        "`note_plain`: the first time there is nothing to average with. After that, a quarter of the new and three "
        "quarters of the old.",
        "`verify`: measured = max(seconds / plain, 1.0). The sample is measured / table. Clamp the sample first, "
        "average then.",
        "The average begins at 1.0, which says: the table is right until passes have shown something else. "
        "The first sample is no exception.",
        "scale = 0.2 * sample + 0.8 * scale, and the price is max(scale * table, 1.0).",
    ],
)


@ex.solution
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

    @given
    def __init__(self):
        self.plain = None
        self.scale = 1.0

    def note_plain(self, seconds):
        """Learn from a plain step, which took so many seconds.

        The first sets `plain`, each later one moves it a quarter of the way to itself.
        """
        self.plain = seconds if self.plain is None else 0.25 * seconds + 0.75 * self.plain

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
    for plain, want in (((0.25,), 0.25), ((0.25, 0.5), 0.3125), ((0.5, 0.25, 1.25), 0.640625)):
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
    for table, seconds in ((2.0, 7.0), (3.0, 0.001)):
        live = live_after(t, LiveCost, ())
        t.close(price(t, live, table, seconds), table)
        t.close(live.scale, 1.0, "live.scale")
        t.call(live.note_plain, 0.25, shown="live.note_plain(0.25)")
        t.close(price(t, live, 2.0, 1.0), 2.4)


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch09.predict",
    title="Predict a speed-up",
    points=10,
    level="medium",
    section="09.6",
    hints=[
        "Work out one step first: which pass does it take, and how many tokens does it commit? A plain step is the "
        "same thing with no drafts.",
        "Speed-up is a ratio of two times for the same tokens. Plain decoding needs one plain step a token. "
        "What do the logged steps need?",
        "All tokens, sum of accepted + 1, over all costs, sum of cost(drafted + 1).",
    ],
)


@ex.solution
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
    tokens = sum(accepted + 1 for drafted, accepted in log)
    paid = sum(cost(drafted + 1) for drafted, accepted in log)
    return tokens / paid if log else 1.0


@ex.wrong("That is tokens a step. A step with many rows takes longer than a plain one: divide by what the steps cost.")
def tokens_a_step(log, cost):
    return sum(accepted + 1 for drafted, accepted in log) / len(log) if log else 1.0


@ex.wrong("Prices the average draft. Costs are not a straight line, so the cost of the average is not the average of "
          "the costs: price each pass.")
def prices_the_average(log, cost):
    if not log:
        return 1.0
    width = round(sum(drafted for drafted, accepted in log) / len(log))
    return sum(accepted + 1 for drafted, accepted in log) / (len(log) * cost(width + 1))


@ex.wrong("Averages the speed-ups of the steps. A step that takes longer must count for more: sum tokens and costs "
          "first, then divide.")
def averages_ratios(log, cost):
    ratios = [(accepted + 1) / cost(drafted + 1) for drafted, accepted in log]
    return sum(ratios) / len(ratios) if ratios else 1.0


@ex.wrong("Leaves the plain steps out. They take time too and commit tokens: a run that drafts twice in a thousand "
          "steps is hardly faster than plain decoding.")
def only_verifies(log, cost):
    verifies = [(drafted, accepted) for drafted, accepted in log if drafted]
    paid = sum(cost(drafted + 1) for drafted, accepted in verifies)
    return sum(accepted + 1 for drafted, accepted in verifies) / paid if verifies else 1.0


@ex.wrong("Counts the accepted drafts alone. Each step also commits a token that the model chose itself, and of a "
          "plain step it is the only one.")
def forgets_own_token(log, cost):
    paid = sum(cost(drafted + 1) for drafted, accepted in log)
    return sum(accepted for drafted, accepted in log) / paid if log else 1.0


@ex.wrong("Counts every drafted token as if it had been accepted.")
def believes_the_drafts(log, cost):
    paid = sum(cost(drafted + 1) for drafted, accepted in log)
    return sum(drafted + 1 for drafted, accepted in log) / paid if log else 1.0


@ex.wrong("The pass that verifies d drafts has d + 1 rows: the newest token goes in as well.")
def one_row_short(log, cost):
    paid = sum(cost(max(drafted, 1)) for drafted, accepted in log)
    return sum(accepted + 1 for drafted, accepted in log) / paid if log else 1.0


COSTS = {1: 1.0, 2: 1.25, 3: 1.75, 4: 1.5, 5: 2.25, 6: 2.5, 7: 2.75, 8: 2.5, 9: 3.0, 17: 4.5}


def table_cost(rows):
    """Costs of the checks."""
    return COSTS[rows] if rows in COSTS else 1.0 + 0.21875 * (rows - 1)


def logged(t, predict, log, want):
    """One log, compared."""
    t.case(f"cost = {COSTS}.get")
    t.close(t.call(predict, log, table_cost, shown=f"predict({log}, cost)"), want)


@ex.check("one step: its tokens over the cost of its pass")
def one_step(predict, t):
    for log, want in (([(3, 3)], 4 / 1.5), ([(4, 1)], 2 / 2.25), ([(8, 0)], 1 / 3), ([(16, 16)], 17 / 4.5)):
        logged(t, predict, log, want)


@ex.check("several verifies: each pass at its own price, tokens and costs summed")
def several(predict, t):
    logged(t, predict, [(3, 3), (8, 0)], 5 / 4.5)
    logged(t, predict, [(1, 1), (2, 1), (8, 6), (16, 2)], 14 / 10.5)
    verifies = [(int(d), int(t.rng.integers(0, d + 1))) for d in t.rng.choice([1, 2, 3, 4, 5, 6, 7, 8], 12)]
    paid = sum(COSTS[d + 1] for d, _ in verifies)
    logged(t, predict, verifies, (12 + sum(a for _, a in verifies)) / paid)


@ex.check("plain steps count: one token, cost 1")
def plain_steps(predict, t):
    for log, want in (([(0, 0)], 1.0), ([(0, 0)] * 3, 1.0), ([(0, 0), (3, 3)], 5 / 2.5),
                      ([(0, 0), (0, 0), (8, 0)], 3 / 5)):
        logged(t, predict, log, want)


@ex.check("an empty log is 1.0: nothing was won and nothing lost")
def nothing_logged(predict, t):
    logged(t, predict, [], 1.0)
    logged(t, predict, [(3, 0)], 1 / 1.5)
