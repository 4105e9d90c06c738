"""Chapter 04 - Sampling.

A model gives a row of logits: one number for each token of its vocabulary.  Somebody
has to choose one token.  You write that choice here, piece by piece: softmax with a
temperature, two cuts, one random draw, penalties, and a processor that forbids tokens.
At the end of the chapter your pieces choose the tokens of a real model.
"""

import math
from collections import Counter

import numpy as np

from course.exercises import Exercise, given
from course.grading import proving


@given
class CounterRng:
    """A random generator that is a seed and a counter, and nothing else.

    Draw number `position` of a seed is worked out from these two alone, so a place in
    the stream of draws can be read, saved and set again.  (splitmix64, as the engine's)
    """

    def __init__(self, seed, position=0):
        self.seed = seed
        self.position = position

    def uniform(self):
        """One draw: a float in [0, 1)."""
        self.position += 1
        z = (self.seed + self.position * 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return ((z ^ (z >> 31)) >> 11) / 2**53


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch04.softmax_temperature",
    title="Softmax with a temperature",
    points=5,
    level="easy",
    section="04.2",
    hints=[
        "np.exp(800) is inf in float64, and inf / inf is NaN. What happens to a softmax when the same number is "
        "subtracted from every logit?",
        "Subtract the maximum first: then the largest power is exp(0), and the others are smaller.",
        "Turn the row into float64, subtract its maximum, divide by the temperature, exp, divide by the sum. "
        "exp(-inf) is 0, so a forbidden token needs no extra line.",
    ],
)


@ex.solution
def softmax(logits, temperature):
    """Turn logits into probabilities.

        p[i] = exp(logits[i] / T) / (sum over j of exp(logits[j] / T))

    Parameters
    ----------
    logits : float array [n]
        Of any size: 10000 and -10000 are fine.  -inf forbids a token; at least one
        logit is finite.
    temperature : float
        T, above 0.

    Returns
    -------
    float64 array [n]
        They sum to 1; a forbidden token has exactly 0.  Compute in float64, even where
        the logits are float32.

    Examples
    --------
    >>> softmax(np.array([2.0, 2.0, -np.inf, 2.0, 2.0]), 0.7).tolist()
    [0.25, 0.25, 0.0, 0.25, 0.25]
    """
    x = np.asarray(logits, np.float64)
    powers = np.exp((x - x.max()) / temperature)
    return powers / powers.sum()


@ex.wrong("exp of a large logit overflows: exp(800) is inf, and inf / inf is NaN. Subtract the maximum first.")
def overflows(logits, temperature):
    with np.errstate(all="ignore"):
        powers = np.exp(np.asarray(logits, np.float64) / temperature)
        return powers / powers.sum()


@ex.wrong("The temperature changes nothing. A factor common to all probabilities goes away when they are made to sum to 1, "
          "so after exp it is too late: divide the logits, before exp.")
def temperature_after(logits, temperature):
    x = np.asarray(logits, np.float64)
    powers = np.exp(x - x.max())
    cooled = powers / powers.sum() / temperature
    return cooled / cooled.sum()


@ex.wrong("Multiplies by the temperature. Then a high temperature makes the best token surer; it should make it less "
          "sure.")
def multiplies(logits, temperature):
    x = np.asarray(logits, np.float64)
    powers = np.exp((x - x.max()) * temperature)
    return powers / powers.sum()


@ex.wrong("The maximum of the undivided logits is subtracted from the divided ones. That is safe only where the "
          "temperature is near 1; elsewhere exp overflows again, or all powers become 0.")
def other_maximum(logits, temperature):
    x = np.asarray(logits, np.float64)
    with np.errstate(all="ignore"):
        powers = np.exp(x / temperature - x.max())
        return powers / powers.sum()


@ex.wrong("The powers are not divided by their sum: they are no probabilities yet.")
def not_normalised(logits, temperature):
    x = np.asarray(logits, np.float64)
    return np.exp((x - x.max()) / temperature)


@ex.wrong("The mean is subtracted, not the maximum. One forbidden token makes the mean -inf, and a logit far above the "
          "mean still overflows.")
def takes_the_mean(logits, temperature):
    x = np.asarray(logits, np.float64)
    with np.errstate(all="ignore"):
        powers = np.exp((x - x.mean()) / temperature)
        return powers / powers.sum()


@ex.wrong("A little is added so that nothing is 0. Then a forbidden token can be drawn after all: with a large "
          "vocabulary and a long text it will be.")
def never_zero(logits, temperature):
    x = np.asarray(logits, np.float64)
    powers = np.exp((x - x.max()) / temperature) + 1e-12
    return powers / powers.sum()


@ex.wrong("Works in float32. Its seven digits are not enough for the sum of a whole vocabulary: turn the row into "
          "float64 first.")
def in_single_precision(logits, temperature):
    x = np.asarray(logits, np.float32)
    powers = np.exp((x - x.max()) / np.float32(temperature))
    return powers / powers.sum()


@ex.wrong("-inf is replaced by some large negative number. Logits may be of any size, so others can be lower still, and the "
          "forbidden token then gets a share.")
def a_finite_ban(logits, temperature):
    x = np.asarray(logits, np.float64)
    x = np.where(np.isneginf(x), -1e9, x)
    powers = np.exp((x - x.max()) / temperature)
    return powers / powers.sum()


@ex.wrong("Low temperatures are kept from going below some border. Every temperature above 0 counts as it is.")
def not_so_cold(logits, temperature):
    x = np.asarray(logits, np.float64)
    powers = np.exp((x - x.max()) / max(temperature, 0.1))
    return powers / powers.sum()


def softmax_by_hand(row, temperature):
    """Number by number, with exact sums."""
    best = float(max(row))
    powers = [math.exp((float(v) - best) / temperature) for v in row]
    total = math.fsum(powers)
    return np.array([p / total for p in powers])


@ex.check("at temperature 1: exp of each logit, divided by the sum of all")
def plain_softmax(softmax, t):
    for row in ([0.0, 0.0], [1.0, 0.0], [0.5, 2.0, -1.0], [-3.0, -1.0, -2.0, -9.0]):
        t.case()
        t.close(t.call(softmax, np.array(row), 1.0), softmax_by_hand(row, 1.0), rtol=1e-9)


@ex.check("the temperature divides the logits: below 1 the best token gets surer, above 1 less sure")
def temperatures(softmax, t):
    for temperature in (2.0, 0.5, 0.25, 10.0, 0.02, 500.0):
        for row in ([1.0, 0.0], [3.0, 1.0, -2.0]):
            t.case()
            t.close(t.call(softmax, np.array(row), temperature), softmax_by_hand(row, temperature), rtol=1e-9)


@ex.check("large logits give no NaN, at every temperature")
def large_logits(softmax, t):
    for row in ([1000.0, 999.0], [-1000.0, -1001.0], [800.0, 0.0, 799.0], [10000.0, -10000.0]):
        for temperature in (1.0, 0.5, 4.0):
            t.case()
            t.close(t.call(softmax, np.array(row), temperature), softmax_by_hand(row, temperature), rtol=1e-9)


@ex.check("a forbidden token (-inf) has exactly 0, and the others are as without it")
def forbidden(softmax, t):
    for row in ([0.0, -np.inf], [-np.inf, 1.0, 2.0], [40.0, -np.inf, -np.inf, 38.0]):
        for temperature in (1.0, 0.5):
            t.case()
            got = t.call(softmax, np.array(row), temperature)
            t.close(got, softmax_by_hand(row, temperature), rtol=1e-9)
    for finite in (-1e6, -1e30):
        t.case()
        t.close(t.call(softmax, np.array([-np.inf, finite]), 1.0), [0.0, 1.0])


@ex.check("float32 logits of a whole vocabulary: worked out in float64")
def whole_vocabulary(softmax, t):
    for n in (3, 5000):
        row = (4 * t.rng.standard_normal(n)).astype(np.float32)
        t.case(f"logits = random float32, [{n}]")
        got = t.call(softmax, row, 0.8, shown="softmax(logits, 0.8)")
        t.close(got, softmax_by_hand(row, 0.8), rtol=1e-9)
        t.holds(getattr(got, "dtype", None) == np.float64, f"the result is of {getattr(got, 'dtype', type(got))}, "
                                                           "expected float64")


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch04.top_p",
    title="top-p: the nucleus",
    points=10,
    level="medium",
    section="04.3",
    hints=[
        "Sort first: the best token comes first, and np.argsort sorts upwards. What do you hand it, so that equal "
        "values stay in the order of their ids?",
        "A running sum over the sorted probabilities (np.cumsum) says how much the first k tokens hold together. Keep "
        "up to and including the first place where it is p or more.",
        "order = np.argsort(-probabilities, kind=\"stable\"); np.searchsorted(running, p) is the index of the first "
        "running sum that is p or more. An index is one less than a count.",
        "A running sum in floats can reach 1 before the last small probabilities are added. So p = 1, which means "
        "off, has a line of its own: return the whole order.",
    ],
)


@ex.solution
def top_p(probabilities, p):
    """Keep the most probable tokens that hold the mass p together: the nucleus.

    The tokens are taken from the best one down, until their probabilities sum to p or
    more.  The token that reaches p belongs to them, so at least one is kept.  p = 1
    means off: every token is kept, also where a sum of floats reaches 1 earlier, and also
    those of probability 0.  Where rounding keeps the sum of all just below p, all are kept.

    Parameters
    ----------
    probabilities : float64 array [n]
        They sum to 1.
    p : float
        In [0, 1].  0 keeps the best one only.

    Returns
    -------
    int array [kept]
        Ids of the kept tokens, the best first; of equal probabilities, the lowest id first.

    Examples
    --------
    >>> top_p(np.array([0.125, 0.5, 0.125, 0.25]), 0.7).tolist()
    [1, 3]
    """
    order = np.argsort(-probabilities, kind="stable")
    if p >= 1.0:
        return order
    running = np.cumsum(probabilities[order])
    return order[: np.searchsorted(running, p) + 1]


@ex.wrong("Sorted the wrong way: np.argsort sorts upwards, so the least probable tokens are kept.")
def upwards(probabilities, p):
    order = np.argsort(probabilities, kind="stable")
    if p >= 1.0:
        return order
    return order[: np.searchsorted(np.cumsum(probabilities[order]), p) + 1]


@ex.wrong("The token that crosses p is left out. The kept ones hold less than p then, and where the best token alone has "
          "more than p, nothing is left to draw from.")
def leaves_out_the_crossing(probabilities, p):
    order = np.argsort(-probabilities, kind="stable")
    if p >= 1.0:
        return order
    return order[np.cumsum(probabilities[order]) <= p]


@ex.wrong("One token too many where the sum is p exactly: p or more is enough.")
def one_too_many(probabilities, p):
    order = np.argsort(-probabilities, kind="stable")
    if p >= 1.0:
        return order
    return order[: np.searchsorted(np.cumsum(probabilities[order]), p, side="right") + 1]


@ex.wrong("Ties go the wrong way round. [::-1] turns the order of equal values round as well: sort the negative "
          "probabilities instead, with a stable sort.")
def turned_ties(probabilities, p):
    order = np.argsort(probabilities, kind="stable")[::-1]
    if p >= 1.0:
        return order
    return order[: np.searchsorted(np.cumsum(probabilities[order]), p) + 1]


@ex.wrong("Compares each probability with p by itself. top-p is about their running sum.")
def a_threshold(probabilities, p):
    order = np.argsort(-probabilities, kind="stable")
    if p >= 1.0:
        return order
    return order[: max(1, np.count_nonzero(probabilities >= p))]


@ex.wrong("The right tokens, but in the order of their ids. The draw lays them out from the best one on.")
def by_id(probabilities, p):
    order = np.argsort(-probabilities, kind="stable")
    if p >= 1.0:
        return order
    return np.sort(order[: np.searchsorted(np.cumsum(probabilities[order]), p) + 1])


@ex.wrong("Nothing is sorted: it keeps the first tokens of the vocabulary, not the best ones.")
def unsorted(probabilities, p):
    order = np.arange(len(probabilities))
    if p >= 1.0:
        return np.argsort(-probabilities, kind="stable")
    return order[: np.searchsorted(np.cumsum(probabilities), p) + 1]


@ex.wrong("p = 1 loses the tail: the running sum of floats reaches 1 before the last small probabilities are added. "
          "1 means off, so every token stays.")
def cuts_at_one(probabilities, p):
    order = np.argsort(-probabilities, kind="stable")
    return order[: np.searchsorted(np.cumsum(probabilities[order]), p) + 1]


@ex.wrong("p = 1 drops the tokens of probability 0. 1 means off, so every token stays.")
def drops_the_impossible(probabilities, p):
    order = np.argsort(-probabilities, kind="stable")
    if p >= 1.0:
        return order[probabilities[order] > 0]
    return order[: np.searchsorted(np.cumsum(probabilities[order]), p) + 1]


@ex.wrong("A token that was taken is marked with probability 0. A token may have 0 of its own, so an id can come twice.")
def marks_with_zero(probabilities, p):
    left, kept, mass = probabilities.copy(), [], 0.0
    while len(kept) < len(left) and (not kept or p >= 1.0 or mass < p):
        best = int(np.argmax(left))
        kept.append(best)
        mass, left[best] = mass + left[best], 0.0
    return np.array(kept)


@ex.wrong("A p just below 1 is taken for 1. Only 1 itself means off.")
def nearly_off(probabilities, p):
    order = np.argsort(-probabilities, kind="stable")
    if p >= 0.999:
        return order
    return order[: np.searchsorted(np.cumsum(probabilities[order]), p) + 1]


def ids_of(t, function, probabilities, p, shown=""):
    """Call the learner's cut; returns a list of plain ids."""
    got = t.call(function, np.array(probabilities), p, shown=shown)
    t.holds(got is not None, "the result is None, expected an array of ids: is a `return` missing?"
            + t.printed_instead())
    t.holds(np.ndim(got) == 1, f"the result has shape {np.shape(got)}, expected a flat array of ids")
    kind = np.asarray(got).dtype.kind
    t.holds(kind in "iu" or not len(got), f"the result holds {np.asarray(got).dtype}, expected ids, which are whole numbers")
    return [int(i) for i in got]


@ex.check("the best tokens, from the best one down, until their sum is p or more")
def nucleus(top_p, t):
    for row, p, want in (
        ([0.75, 0.25], 0.75, [0]),
        ([0.25, 0.75], 0.8, [1, 0]),
        ([0.125, 0.25, 0.625], 0.625, [2]),
        ([0.125, 0.625, 0.25], 0.7, [1, 2]),
        ([0.0625, 0.1875, 0.5, 0.25], 0.75, [2, 3]),
        ([0.0625, 0.1875, 0.5, 0.25], 0.9, [2, 3, 1]),
    ):
        t.case()
        t.equal(ids_of(t, top_p, row, p), want, "the kept ids")


@ex.check("the token that reaches p is kept, so one token always is")
def at_least_one(top_p, t):
    for row, p, want in (
        ([0.5, 0.375, 0.125], 0.0, [0]),
        ([0.25, 0.75], 0.5, [1]),
        ([0.125, 0.875], 0.001, [1]),
        ([0.25, 0.5, 0.125, 0.125], 0.6, [1, 0]),
        ([0.5, 0.25, 0.25], 0.5 + 1e-10, [0, 1]),
        ([0.5 + 1e-10, 0.5 - 1e-10], 0.5 + 1e-10, [0]),
        ([1 - 5e-7, 5e-7], 1 - 1e-6, [0]),
    ):
        t.case()
        t.equal(ids_of(t, top_p, row, p), want, "the kept ids")


@ex.check("equal probabilities: the lower id comes first")
def ties(top_p, t):
    tied = [0.3995, 0.3995, 0.147, 0.054]
    for row, p, want in (
        ([0.5, 0.5], 0.5, [0]),
        ([0.25, 0.25, 0.25, 0.25], 0.7, [0, 1, 2]),
        (tied, 0.3, [0]),
        (tied, 0.5, [0, 1]),
        (tied, 0.8, [0, 1, 2]),
        ([0.125, 0.375, 0.125, 0.375], 0.8, [1, 3, 0]),
    ):
        t.case()
        t.equal(ids_of(t, top_p, row, p), want, "the kept ids")
    t.case("probabilities = np.array([3, 5] * 32) / 256    # a sort that is not stable mixes up long rows only")
    kept = ids_of(t, top_p, np.array([3, 5] * 32) / 256, 0.3, shown="top_p(probabilities, 0.3)")
    t.equal(kept, list(range(1, 32, 2)), "the kept ids")


@ex.check("p = 1 keeps every token, also those that are all but impossible")
def off(top_p, t):
    for row, want in (([0.25, 0.75], [1, 0]), ([1.0, 1e-20], [0, 1]), ([1e-18, 0.5, 0.5, 1e-19], [1, 2, 0, 3]),
                      ([1.0, 0.0, 0.0], [0, 1, 2]), ([0.0, 0.5, 0.5, 0.0], [1, 2, 0, 3])):
        t.case()
        t.equal(ids_of(t, top_p, row, 1.0), want, "the kept ids")


@ex.check("a row of 2000 tokens: no smaller set would reach p")
def many(top_p, t):
    for p in (0.5, 0.95):
        row = t.rng.dirichlet(np.full(2000, 0.05))
        t.case("probabilities = 2000 random ones that sum to 1")
        kept = ids_of(t, top_p, row, p, shown=f"top_p(probabilities, {p})")
        best = sorted(range(2000), key=lambda i: (-row[i], i))
        mass, need = 0.0, 0
        while mass < p:
            mass, need = mass + row[best[need]], need + 1
        t.equal(len(kept), need, "the number of kept tokens")
        t.equal(kept, best[:need], "the kept ids")
    n = next(n for n in range(4000, 6000) if np.cumsum(np.full(n, 1 / n))[-1] < 1 - 2e-15)
    t.case(f"probabilities = np.full({n}, 1 / {n})      # rounded, they sum to a little less than 1")
    t.equal(len(ids_of(t, top_p, np.full(n, 1 / n), 1 - 1e-15, shown="top_p(probabilities, 1 - 1e-15)")), n,
            "the number of kept tokens")


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch04.min_p",
    title="min-p: measured by the best",
    points=1,
    level="easy",
    section="04.3",
    hints=[
        "The threshold is not min_p itself. It moves with the row: min_p times what?",
        "probabilities >= min_p * probabilities.max(); what is exactly at the threshold stays.",
        "Count how many pass, and take so many from the front of the same order as in top-p.",
    ],
)


@ex.solution
def min_p(probabilities, least):
    """Keep the tokens that are at least `least` times as probable as the best one.

    Parameters
    ----------
    probabilities : float64 array [n]
        They sum to 1.
    least : float
        In [0, 1].  0 keeps every token; 1 keeps the best, and those equal to it.

    Returns
    -------
    int array [kept]
        Ids of the kept tokens, the best first; of equal probabilities, the lowest id first.

    Examples
    --------
    >>> min_p(np.array([0.1875, 0.5, 0.0625, 0.25]), 0.3).tolist()
    [1, 3, 0]
    """
    order = np.argsort(-probabilities, kind="stable")
    return order[: np.count_nonzero(probabilities >= least * probabilities.max())]


@ex.wrong("The threshold is min_p itself. It should be relative to the best token: where the model is unsure, all "
          "probabilities are small, and an absolute threshold leaves nothing.")
def absolute(probabilities, least):
    order = np.argsort(-probabilities, kind="stable")
    return order[: np.count_nonzero(probabilities >= least)]


@ex.wrong("What is exactly at the threshold is dropped. At least means >=, and with 1 the best token itself would go.")
def strict(probabilities, least):
    order = np.argsort(-probabilities, kind="stable")
    return order[: np.count_nonzero(probabilities > least * probabilities.max())]


@ex.wrong("The right tokens, but in the order of their ids: the best comes first.")
def ascending_ids(probabilities, least):
    return np.flatnonzero(probabilities >= least * probabilities.max())


@ex.wrong("Equal probabilities come with the higher id first: [::-1] turns ties round as well.")
def ties_turned(probabilities, least):
    order = np.argsort(probabilities, kind="stable")[::-1]
    return order[: np.count_nonzero(probabilities >= least * probabilities.max())]


@ex.wrong("Measured by the mean, not by the best token. Nearly all tokens of a vocabulary are above a share of the mean "
          "or none, depending on how long the tail is.")
def by_the_mean(probabilities, least):
    order = np.argsort(-probabilities, kind="stable")
    return order[: np.count_nonzero(probabilities >= least * probabilities.mean())]


@ex.wrong("Keeps tokens that fall short of the threshold a little. \"At least\" needs no tolerance here: a comparison with `>=` is "
          "exact.")
def a_little_less_will_do(probabilities, least):
    order = np.argsort(-probabilities, kind="stable")
    return order[: np.count_nonzero(probabilities >= least * probabilities.max() - 1e-3)]


@ex.check("at least `least` times the best probability, the best first")
def relative(min_p, t):
    for row, least, want in (
        ([0.75, 0.25], 0.3, [0, 1]),
        ([0.25, 0.625, 0.125], 0.5, [1]),
        ([0.25, 0.75], 0.4, [1]),
        ([0.0625, 0.3125, 0.5, 0.125], 0.2, [2, 1, 3]),
        ([0.0625, 0.3125, 0.5, 0.125], 0.5, [2, 1]),
        ([0.0625, 0.3125, 0.5, 0.125], 0.1, [2, 1, 3, 0]),
        ([0.2499, 0.5, 0.2501], 0.5, [1, 2]),
    ):
        t.case()
        t.equal(ids_of(t, min_p, row, least), want, "the kept ids")


@ex.check("an unsure row: all probabilities are below `least`, and the near-best are kept")
def unsure(min_p, t):
    for n, least in ((8, 0.25), (16, 0.5)):
        row = np.full(n, 1 / n)
        row[n // 2] += 0.5 / n
        row[1] -= 0.5 / n
        t.case()
        want = [n // 2, *(i for i in range(n) if i not in (1, n // 2)), *([1] if least <= 1 / 3 else [])]
        t.equal(ids_of(t, min_p, row, least), want, "the kept ids")


@ex.check("what is exactly at the threshold is kept: 1 keeps the best and its equals, 0 keeps all")
def edges(min_p, t):
    tied = [0.375, 0.375, 0.1875, 0.0625]
    for row, least, want in (
        ([0.25, 0.75], 1.0, [1]), (tied, 1.0, [0, 1]), (tied, 0.5, [0, 1, 2]), (tied, 0.0, [0, 1, 2, 3]),
        ([0.125, 0.5, 0.125, 0.25], 0.25, [1, 3, 0, 2]), ([0.0, 1.0, 0.0], 0.0, [1, 0, 2]),
    ):
        t.case()
        t.equal(ids_of(t, min_p, row, least), want, "the kept ids")
    t.case("probabilities = np.array([3, 5] * 32) / 256    # a sort that is not stable mixes up long rows only")
    kept = ids_of(t, min_p, np.array([3, 5] * 32) / 256, 1.0, shown="min_p(probabilities, 1.0)")
    t.equal(kept, list(range(1, 64, 2)), "the kept ids")


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch04.draw",
    title="One draw per token",
    points=10,
    level="medium",
    section="04.4",
    hints=[
        "Lay the tokens one after another on a line, each as long as its weight. A draw is a point on that line. "
        "How long is the line?",
        "rng.uniform() is in [0, 1). Times the sum of the weights, it is a point on the line. One point is always "
        "enough, so there is one draw.",
        "running = np.cumsum(weights): token i owns the stretch from running[i-1] up to, but not including, "
        "running[i].",
        "The index is np.searchsorted(running, mark, side=\"right\"); the answer is the id at that index. Greedy is "
        "answered before the generator is asked.",
    ],
)


@ex.solution
def draw(ids, weights, rng, greedy=False):
    """Choose one of the tokens that the cuts have left.

    The weights lie one after another on a line, in the order given.  One draw u in
    [0, 1) marks the point u * sum(weights), and the token that owns the point is
    chosen.  Token i owns the stretch from where token i - 1 ends up to, but not
    including, its own end.  Every u finds its token, also the largest float below 1,
    however the sums round.

    Parameters
    ----------
    ids : int array [n]
        The candidates, the best first.
    weights : float64 array [n]
        Their probabilities.  After a cut they sum to less than 1.
    rng : CounterRng
        `rng.uniform()` is one draw, and moves `rng.position` on by one.
    greedy : bool
        True: the best token is chosen, and no draw is made.

    Returns
    -------
    int
        The id of the chosen token, after exactly one draw, or none if greedy.

    Examples
    --------
    >>> rng = CounterRng(seed=3)
    >>> [draw(np.array([40, 2]), np.array([0.5, 0.25]), rng) for _ in range(4)]
    [40, 2, 40, 40]
    >>> rng.position
    4
    """
    if greedy:
        return int(ids[0])
    running = np.cumsum(weights)
    mark = rng.uniform() * running[-1]
    return int(ids[np.searchsorted(running, mark, side="right")])


@ex.wrong("Draws again until the point falls on a kept token. Then a token takes one draw or two or more, depending on "
          "luck, and nobody can say where the generator stands after n tokens. Stretch the draw instead.")
def draws_again(ids, weights, rng, greedy=False):
    if greedy:
        return int(ids[0])
    running = np.cumsum(weights)
    while True:
        u = rng.uniform()
        if u < running[-1]:
            return int(ids[np.searchsorted(running, u, side="right")])


@ex.wrong("The weights are taken as if they summed to 1. After a cut they do not: whatever is missing goes to the last, "
          "least probable token.")
def surplus_to_the_last(ids, weights, rng, greedy=False):
    if greedy:
        return int(ids[0])
    at = np.searchsorted(np.cumsum(weights), rng.uniform(), side="right")
    return int(ids[min(at, len(ids) - 1)])


@ex.wrong("A draw is made although greedy has nothing to draw. The next sampled token then gets a different number than in "
          "a run without it.")
def draws_in_greedy(ids, weights, rng, greedy=False):
    u = rng.uniform()
    if greedy:
        return int(ids[0])
    running = np.cumsum(weights)
    return int(ids[np.searchsorted(running, u * running[-1], side="right")])


@ex.wrong("One draw for each candidate. It gives the right distribution, but the number of draws depends on the "
          "number of candidates: the rule is one per token.")
def one_a_candidate(ids, weights, rng, greedy=False):
    if greedy:
        return int(ids[0])
    left = float(np.sum(weights))
    for token, weight in zip(ids[:-1], weights[:-1]):
        if rng.uniform() * left < weight:
            return int(token)
        left -= weight
    rng.uniform()
    return int(ids[-1])


@ex.wrong("Takes its number from a generator of its own. The seed of `rng` means nothing then, and its position does "
          "not move: the run cannot be repeated.")
def own_generator(ids, weights, rng, greedy=False):
    if greedy:
        return int(ids[0])
    running = np.cumsum(weights)
    mark = np.random.default_rng(0).random() * running[-1]
    return int(ids[np.searchsorted(running, mark, side="right")])


@ex.wrong("Returns the place in the list of candidates. The candidates are sorted, so that is no token id.")
def place_for_id(ids, weights, rng, greedy=False):
    if greedy:
        return 0
    running = np.cumsum(weights)
    return int(np.searchsorted(running, rng.uniform() * running[-1], side="right"))


@ex.wrong("A point exactly on a border goes to the token that ends there. The next one begins there: side=\"right\", or "
          "the first running sum above the mark.")
def border_to_the_left(ids, weights, rng, greedy=False):
    if greedy:
        return int(ids[0])
    running = np.cumsum(weights)
    return int(ids[np.searchsorted(running, rng.uniform() * running[-1])])


@ex.wrong("Greedy is ignored: the token is drawn all the same.")
def never_greedy(ids, weights, rng, greedy=False):
    running = np.cumsum(weights)
    return int(ids[np.searchsorted(running, rng.uniform() * running[-1], side="right")])


@ex.wrong("Greedy sets the generator back. It makes no draw, so the generator stays where it is: the next sampled token needs the "
          "number that is due.")
def winds_back(ids, weights, rng, greedy=False):
    if greedy:
        rng.position = 0
        return int(ids[0])
    running = np.cumsum(weights)
    return int(ids[np.searchsorted(running, rng.uniform() * running[-1], side="right")])


@ex.wrong("The point is measured with one sum and looked for with another. Sums of floats depend on their order in the last "
          "digits, so a large draw can lie beyond the last token. Take the last of the running sums for both.")
def two_sums(ids, weights, rng, greedy=False):
    if greedy:
        return int(ids[0])
    return int(ids[np.searchsorted(np.cumsum(weights), rng.uniform() * weights.sum(), side="right")])


@ex.wrong("The weights are taken from the point one by one, until it is below 0. Rounding can leave a rest after the last of them, "
          "and then nothing is returned.")
def falls_off_the_end(ids, weights, rng, greedy=False):
    if greedy:
        return int(ids[0])
    mark = rng.uniform() * np.sum(weights)
    for token, weight in zip(ids, weights):
        mark -= weight
        if mark < 0:
            return int(token)


class Scripted:
    """A generator whose draws are written down; its position counts them, from any number on."""

    def __init__(self, *draws, position=0):
        self.draws = draws
        self.position = position

    def uniform(self):
        """The next number of the script, round and round."""
        self.position += 1
        return self.draws[(self.position - 1) % len(self.draws)]


def drawn(t, draw, ids, weights, *script, greedy=False):
    """One call with written-down draws; returns what came out and how many draws were made."""
    rng = Scripted(*script, position=3 * len(script))
    t.case("rng.uniform() gives " + ", then ".join(map(str, script)))
    more = ", greedy=True" if greedy else ""
    shown = f"draw(np.array({ids}), np.array({weights}), rng{more})"
    got = t.call(draw, np.array(ids), np.array(weights), rng, *([True] if greedy else []), shown=shown)
    return got, rng.position - 3 * len(script)


@ex.check("a draw is a point on the line of weights, and the token that owns the point is chosen")
def points(draw, t):
    for ids, weights, u, want in (
        ([9], [1.0], 0.25, 9),
        ([7, 4, 2], [0.5, 0.25, 0.25], 0.25, 7),
        ([7, 4], [0.5, 0.5], 0.25, 7),
        ([7, 4], [0.5, 0.5], 0.75, 4),
        ([5, 0, 8], [0.5, 0.375, 0.125], 0.75, 0),
        ([5, 0, 8], [0.5, 0.375, 0.125], 0.9, 8),
        ([5, 0, 8], [0.5, 0.375, 0.125], 0.0, 5),
    ):
        got, _ = drawn(t, draw, ids, weights, u, 0.99, 0.01)
        t.equal(got, want, "the token")


@ex.check("a point on a border belongs to the token that begins there")
def borders(draw, t):
    for ids, weights, u, want in (
        ([7, 4], [0.5, 0.5], 0.5, 4), ([5, 0, 8], [0.5, 0.25, 0.25], 0.75, 8), ([5, 0, 8], [0.5, 0.25, 0.25], 0.5, 0),
        ([7, 4], [0.5, 0.5], 0.5 - 1e-10, 7), ([7, 4], [0.5 + 1e-10, 0.5 - 1e-10], 0.5 + 5e-11, 7),
    ):
        got, _ = drawn(t, draw, ids, weights, u, 0.01)
        t.equal(got, want, "the token")


@ex.check("weights that sum to less than 1: the draw is stretched over what is left")
def stretched(draw, t):
    for ids, weights, u, want in (
        ([3, 6], [0.5, 0.125], 0.75, 3),
        ([3, 6], [0.25, 0.25], 0.4, 3),
        ([3, 6, 1], [0.25, 0.125, 0.125], 0.6, 6),
        ([3], [0.125], 0.99, 3),
    ):
        got, _ = drawn(t, draw, ids, weights, u, 0.01)
        t.equal(got, want, "the token")


@ex.check("the largest draw that there is falls to the last token, however the sums round")
def largest(draw, t):
    for n, weight in ((10, 0.1), (7, 0.1), (9, 0.07), (64, 0.013), (200, 0.003)):
        ids = list(range(n, 0, -1))
        t.case(f"rng.uniform() gives 1 - 2**-53; ids = {n}, {n - 1}, ... 1; weights = {n} times {weight}")
        got = t.call(draw, np.array(ids), np.full(n, weight), Scripted(1 - 2.0**-53, 0.0), shown="draw(ids, weights, rng)")
        t.equal(got, 1, "the token")


@ex.check("exactly one draw for a token, whatever it is")
def one_draw(draw, t):
    for ids, weights in (([3], [0.5]), ([3, 6], [0.5, 0.125]), ([3, 6, 1, 2], [0.25, 0.125, 0.0625, 0.0625])):
        for u in (0.05, 0.55, 0.95):
            _, made = drawn(t, draw, ids, weights, u, 0.3, 0.1)
            t.equal(made, 1, "the number of draws")


@ex.check("greedy: the best token and no draw")
def no_draw(draw, t):
    for ids, weights in (([7, 4], [0.5, 0.25]), ([4], [1.0]), ([5, 0, 8], [0.4, 0.3, 0.2])):
        got, made = drawn(t, draw, ids, weights, 0.9, greedy=True)
        t.equal(got, ids[0], "the token")
        t.holds(made == 0, f"rng.position has moved by {made}; greedy makes no draw")


@ex.check("the same seed gives the same tokens, and a saved position goes on where it stood")
def saved_position(draw, t):
    ids, weights = np.array([11, 5, 17, 2]), np.array([0.3, 0.25, 0.2, 0.15])
    for seed, stop in ((1, 0), (2, 5), (3, 11)):
        same, whole = CounterRng(seed), []
        for _ in range(12):
            mark = same.uniform() * 0.9
            whole.append(int(ids[next(i for i in range(4) if math.fsum(weights[: i + 1]) > mark)]))
        rng = CounterRng(seed)
        t.case(f"rng = CounterRng(seed={seed}), 12 tokens")
        got = [t.call(draw, ids, weights, rng, shown=None) for _ in range(12)]
        t.equal(got, whole, "the tokens")
        t.case(f"rng = CounterRng(seed={seed}, position={stop})      # as it stood after {stop} tokens")
        rng = CounterRng(seed, stop)
        got = [t.call(draw, ids, weights, rng, shown=None) for _ in range(12 - stop)]
        t.equal(got, whole[stop:], "the tokens")


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch04.penalties",
    title="Penalties over a window",
    points=10,
    level="medium",
    section="04.5",
    hints=[
        "Three steps: copy the logits, find the window, go through its distinct tokens with their counts.",
        "history[-n:] is the last n tokens, but history[-0:] is all of them. len(history) - n, never below 0, is a "
        "start that works for both.",
        "Counter(window).items() gives each token once, with its count. What must happen to a negative logit so that "
        "the token gets less likely: a division by 2, or a multiplication by 2?",
        "Per token: divide by `repeat` if the logit is above 0, multiply otherwise; then subtract "
        "count * frequency + presence.",
    ],
)


@ex.solution
def penalise(logits, history, last_n, repeat=1.0, frequency=0.0, presence=0.0):
    """Lower the logits of tokens that came up lately.

    The window is the last `last_n` tokens of the history.  Each distinct token in it is
    treated once, in this order:

    1. repeat: a logit above 0 is divided by `repeat`, any other is multiplied by it;
    2. frequency: `frequency` is subtracted once for each time the token is in the window;
    3. presence: `presence` is subtracted once.

    Parameters
    ----------
    logits : float array [n]
        Is not changed.
    history : list of int
        The tokens so far, the oldest first; may be empty.
    last_n : int
        Length of the window; 0 turns all penalties off.  If the history is shorter, all
        of it is the window.
    repeat, frequency, presence : float
        1.0, 0.0 and 0.0 do nothing.

    Returns
    -------
    float64 array [n]
        A new one.

    Examples
    --------
    >>> logits, history = np.array([5.0, 4.0, 0.0, 0.0]), [0, 0, 0, 1]
    >>> penalise(logits, history, 64, frequency=0.5, presence=0.3).tolist()
    [3.2, 3.2, 0.0, 0.0]
    """
    out = np.array(logits, np.float64)
    window = history[max(0, len(history) - last_n):]
    for token, count in Counter(window).items():
        out[token] = out[token] / repeat if out[token] > 0 else out[token] * repeat
        out[token] -= count * frequency + presence
    return out


@ex.wrong("The repeat penalty is applied again for each time the token came up. It counts each token of the window "
          "once; how often it came up is the business of the frequency penalty.")
def repeats_each_time(logits, history, last_n, repeat=1.0, frequency=0.0, presence=0.0):
    out = np.array(logits, np.float64)
    window = history[max(0, len(history) - last_n):]
    for token, count in Counter(window).items():
        factor = repeat**count
        out[token] = out[token] / factor if out[token] > 0 else out[token] * factor
        out[token] -= count * frequency + presence
    return out


@ex.wrong("A negative logit is divided as well. That moves it towards 0, and the token gets more likely. Multiply where "
          "the logit is not above 0.")
def divides_negatives(logits, history, last_n, repeat=1.0, frequency=0.0, presence=0.0):
    out = np.array(logits, np.float64)
    window = history[max(0, len(history) - last_n):]
    for token, count in Counter(window).items():
        out[token] = out[token] / repeat - count * frequency - presence
    return out


@ex.wrong("The sign is looked at the wrong way round: positive logits are multiplied, so a repeated token gets more "
          "likely.")
def multiplies_positives(logits, history, last_n, repeat=1.0, frequency=0.0, presence=0.0):
    out = np.array(logits, np.float64)
    window = history[max(0, len(history) - last_n):]
    for token, count in Counter(window).items():
        out[token] = out[token] * repeat if out[token] > 0 else out[token] / repeat
        out[token] -= count * frequency + presence
    return out


@ex.wrong("Small negative logits are divided: the border is 0, not some number below it. Divided, -0.5 comes nearer to "
          "0, and the token gets more likely.")
def border_below_zero(logits, history, last_n, repeat=1.0, frequency=0.0, presence=0.0):
    out = np.array(logits, np.float64)
    window = history[max(0, len(history) - last_n):]
    for token, count in Counter(window).items():
        out[token] = out[token] / repeat if out[token] > -1 else out[token] * repeat
        out[token] -= count * frequency + presence
    return out


@ex.wrong("A history that is a little shorter than the window loses its first tokens: len(history) - last_n is negative "
          "there, and a negative start counts from the end. Keep it from going below 0.")
def start_below_zero(logits, history, last_n, repeat=1.0, frequency=0.0, presence=0.0):
    out = np.array(logits, np.float64)
    window = history[len(history) - last_n:]
    for token, count in Counter(window).items():
        out[token] = out[token] / repeat if out[token] > 0 else out[token] * repeat
        out[token] -= count * frequency + presence
    return out


@ex.wrong("The window is taken from the start of the history. What was said lately stands at its end.")
def window_from_the_start(logits, history, last_n, repeat=1.0, frequency=0.0, presence=0.0):
    out = np.array(logits, np.float64)
    for token, count in Counter(history[:last_n]).items():
        out[token] = out[token] / repeat if out[token] > 0 else out[token] * repeat
        out[token] -= count * frequency + presence
    return out


@ex.wrong("history[-0:] is the whole history: a window of 0, which should turn the penalties off, looks at everything.")
def zero_is_everything(logits, history, last_n, repeat=1.0, frequency=0.0, presence=0.0):
    out = np.array(logits, np.float64)
    for token, count in Counter(history[-last_n:]).items():
        out[token] = out[token] / repeat if out[token] > 0 else out[token] * repeat
        out[token] -= count * frequency + presence
    return out


@ex.wrong("The window is ignored: the whole history is penalised. In a long text nearly every common word is in there.")
def no_window(logits, history, last_n, repeat=1.0, frequency=0.0, presence=0.0):
    out = np.array(logits, np.float64)
    for token, count in Counter(history).items() if last_n else ():
        out[token] = out[token] / repeat if out[token] > 0 else out[token] * repeat
        out[token] -= count * frequency + presence
    return out


@ex.wrong("Presence is subtracted once for each time. That is what frequency does; presence only asks whether a token "
          "came up at all.")
def presence_each_time(logits, history, last_n, repeat=1.0, frequency=0.0, presence=0.0):
    out = np.array(logits, np.float64)
    window = history[max(0, len(history) - last_n):]
    for token, count in Counter(window).items():
        out[token] = out[token] / repeat if out[token] > 0 else out[token] * repeat
        out[token] -= count * (frequency + presence)
    return out


@ex.wrong("Frequency is subtracted only once. It is subtracted once for each time that the token is in the window.")
def frequency_once(logits, history, last_n, repeat=1.0, frequency=0.0, presence=0.0):
    out = np.array(logits, np.float64)
    window = history[max(0, len(history) - last_n):]
    for token in set(window):
        out[token] = out[token] / repeat if out[token] > 0 else out[token] * repeat
        out[token] -= frequency + presence
    return out


@ex.wrong("Subtracts first and applies the repeat penalty afterwards. The order matters: repeat comes first.")
def subtracts_first(logits, history, last_n, repeat=1.0, frequency=0.0, presence=0.0):
    out = np.array(logits, np.float64)
    window = history[max(0, len(history) - last_n):]
    for token, count in Counter(window).items():
        out[token] -= count * frequency + presence
        out[token] = out[token] / repeat if out[token] > 0 else out[token] * repeat
    return out


@ex.wrong("Changes the logits that were handed in. Somebody may still need them, so work on a copy.")
def in_place(logits, history, last_n, repeat=1.0, frequency=0.0, presence=0.0):
    window = history[max(0, len(history) - last_n):]
    for token, count in Counter(window).items():
        logits[token] = logits[token] / repeat if logits[token] > 0 else logits[token] * repeat
        logits[token] -= count * frequency + presence
    return logits


@ex.wrong("Where nothing is to be done, the caller's own array comes back. The contract says a new one: whoever writes into the "
          "result would change the logits.")
def hands_them_back(logits, history, last_n, repeat=1.0, frequency=0.0, presence=0.0):
    if not history or last_n == 0:
        return logits
    out = np.array(logits, np.float64)
    window = history[max(0, len(history) - last_n):]
    for token, count in Counter(window).items():
        out[token] = out[token] / repeat if out[token] > 0 else out[token] * repeat
        out[token] -= count * frequency + presence
    return out


@ex.wrong("The result has the dtype of the logits. The rows of an engine are float32, and the contract says float64: "
          "`np.array(logits, np.float64)`.")
def stays_in_single_precision(logits, history, last_n, repeat=1.0, frequency=0.0, presence=0.0):
    out = np.array(logits)
    window = history[max(0, len(history) - last_n):]
    for token, count in Counter(window).items():
        out[token] = out[token] / repeat if out[token] > 0 else out[token] * repeat
        out[token] -= count * frequency + presence
    return out


@ex.wrong("Presence looks at the whole history, frequency at the window. The window is the same for all three.")
def presence_of_all_times(logits, history, last_n, repeat=1.0, frequency=0.0, presence=0.0):
    out = np.array(logits, np.float64)
    if last_n == 0:
        return out
    for token, count in Counter(history[-last_n:]).items():
        out[token] = out[token] / repeat if out[token] > 0 else out[token] * repeat
        out[token] -= count * frequency
    out[list(set(history))] -= presence
    return out


def penalised(t, penalise, row, history, last_n, dtype="float64", **knobs):
    """Call the learner's function with keywords; the example reads as they would type it."""
    t.case()
    words = "".join(f", {name}={value}" for name, value in knobs.items())
    single = ", np.float32" if dtype == "float32" else ""
    shown = f"penalise(np.array({row}{single}), {history}, {last_n}{words})"

    def call(logits, history, last_n):
        return penalise(logits, history, last_n, **knobs)

    logits = np.array(row, dtype)
    got = t.call(call, logits, list(history), last_n, shown=shown)
    t.holds(not (isinstance(got, np.ndarray) and np.shares_memory(got, logits)),
            "the result is the array that was handed in, expected a new one")
    return got


@ex.check("repeat: positive logits are divided, others multiplied, each token once")
def repeat_penalty(penalise, t):
    for row, history, repeat, want in (
        ([2.0, -2.0], [0], 2.0, [1.0, -2.0]),
        ([2.0, -2.0], [1], 2.0, [2.0, -4.0]),
        ([2.0, -2.0, 0.0], [2, 1, 0], 2.0, [1.0, -4.0, 0.0]),
        ([6.0, 1.0], [0, 0], 2.0, [3.0, 1.0]),
        ([3.0, -1.0, 5.0], [1, 2, 1, 1], 1.25, [3.0, -1.25, 4.0]),
        ([0.5, -0.5, -0.25], [0, 1, 2], 2.0, [0.25, -1.0, -0.5]),
    ):
        t.close(penalised(t, penalise, row, history, 8, repeat=repeat), want, "the logits")


@ex.check("frequency counts how often a token is in the window, presence only whether it is")
def counts(penalise, t):
    for row, history, knobs, want in (
        ([1.0, 1.0], [0], {"frequency": 0.5}, [0.5, 1.0]),
        ([1.0, 1.0], [1, 1, 1], {"frequency": 0.5}, [1.0, -0.5]),
        ([1.0, 1.0], [1, 1, 1], {"presence": 0.5}, [1.0, 0.5]),
        ([5.0, 4.0, 0.0, 0.0], [0, 0, 0, 1], {"frequency": 0.5, "presence": 0.25}, [3.25, 3.25, 0.0, 0.0]),
    ):
        t.close(penalised(t, penalise, row, history, 8, **knobs), want, "the logits")


@ex.check("only the last tokens of the history are looked at; a window of 0 is none")
def windows(penalise, t):
    for history, last_n, want in (
        ([1, 4, 2, 3, 0], 2, [0.5, 1.0, 1.0, 0.5, 1.0]),
        ([1, 0, 2], 1, [1.0, 1.0, 0.5]),
        ([2, 2, 0], 2, [0.5, 1.0, 0.5]),
        ([1, 0, 2], 7, [0.5, 0.5, 0.5]),
        ([1, 0, 2], 4, [0.5, 0.5, 0.5]),
        ([1, 0], 0, [1.0, 1.0, 1.0]),
        ([], 4, [1.0, 1.0, 1.0]),
        ([0, 1, 1, 2], 3, [1.0, 0.0, 0.5]),
    ):
        row = [1.0] * len(want)
        t.close(penalised(t, penalise, row, history, last_n, frequency=0.5), want, "the logits", atol=1e-12)
        once = [min(1.0, max(0.5, logit)) for logit in want]
        for knobs in ({"presence": 0.5}, {"repeat": 2.0}):
            t.close(penalised(t, penalise, row, history, last_n, **knobs), once, "the logits", atol=1e-12)


@ex.check("all three together: repeat first, then the subtractions; -inf stays -inf")
def together(penalise, t):
    knobs = {"repeat": 2.0, "frequency": 0.5, "presence": 0.25}
    for row, history, want in (
        ([4.0, 1.0], [0], [1.25, 1.0]),
        ([0.5, 1.0], [0, 0], [-1.0, 1.0]),
        ([-1.0, 1.0], [0, 1, 0], [-3.25, -0.25]),
        ([float("-inf"), 3.0], [0, 1], [float("-inf"), 0.75]),
    ):
        t.close(penalised(t, penalise, row, history, 64, **knobs), want, "the logits")


@ex.check("nothing happens with the values that are off, and the logits handed in stay as they are")
def left_alone(penalise, t):
    row = [1.5, -2.5, 0.0]
    for history, knobs in (([], {}), ([0, 1, 2], {}), ([0, 0], {"repeat": 1.0}), ([1], {"repeat": 3.0})):
        want = [1.5, -7.5, 0.0] if knobs.get("repeat") == 3.0 else row
        t.close(penalised(t, penalise, row, history, 5, **knobs), want, "the logits")
    t.close(penalised(t, penalise, row, [0, 1], 0, repeat=3.0), row, "the logits")
    for history, want in (([], row), ([1], [1.5, -7.5, 0.0])):
        got = penalised(t, penalise, row, history, 5, dtype="float32", repeat=3.0)
        t.close(got, want, "the logits")
        t.holds(getattr(got, "dtype", None) == np.float64, f"the result is of {getattr(got, 'dtype', type(got))}, "
                                                           "expected float64")


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch04.ban",
    title="Ban these tokens",
    points=10,
    level="medium",
    section="04.6",
    hints=[
        "Four short methods. `process` writes into the row that it is handed and returns nothing.",
        "No finite number is a ban: in some row the token still wins. -np.inf is a ban, and "
        "logits[list_of_ids] = -np.inf sets them all.",
        "Who knows how many tokens the turn has so far? Not `process`, which may be called without a token being "
        "chosen, and not `history`, which holds the prompt too. `commit` is called once for each.",
        "self.said = 0 in __init__ and reset, + 1 in commit; process bans while first is None or said < first. Refuse "
        "negative ids in __init__: logits[-1] is the last token of the vocabulary.",
    ],
)


@ex.solution
class Ban:
    """A logit processor that forbids tokens: for a whole turn, or while it is short.

    The engine calls exactly these methods.  Before each choice it hands `process` a row
    of logits; after each choice it calls `commit` with the token; `reset` says that a
    new turn begins.

    Parameters
    ----------
    tokens : list of int
        Ids that may not be chosen; may be empty.  Later changes of the caller's list
        change nothing.
    first : int, optional
        The ban holds for the first `first` tokens of a turn; afterwards everything is
        allowed.  None, the default: it always holds.

    Raises
    ------
    ValueError
        When an id is negative.

    Examples
    --------
    >>> ban, row = Ban([0, 2], first=1), np.array([5.0, 3.0, 4.0])
    >>> ban.process(row, [])
    >>> row.tolist()
    [-inf, 3.0, -inf]
    >>> ban.commit(1)
    >>> row = np.array([5.0, 3.0, 4.0])
    >>> ban.process(row, [1])
    >>> row.tolist()
    [5.0, 3.0, 4.0]
    """

    def __init__(self, tokens, first=None):
        """Keep what is to be forbidden; no token has been chosen yet."""
        if any(token < 0 for token in tokens):
            raise ValueError(f"token ids must be 0 or more, got {sorted(tokens)[0]}")
        self.tokens = list(tokens)
        self.first = first
        self.said = 0

    def process(self, logits, history):
        """Forbid the tokens in `logits`, a float array [vocab], in place.

        `history` is the list of all tokens so far, the prompt included.  May be called
        more than once before a token is chosen.
        """
        if self.first is None or self.said < self.first:
            logits[self.tokens] = -np.inf

    def commit(self, token):
        """Take note that `token` was chosen."""
        self.said += 1

    def reset(self):
        """A new turn begins: forget the tokens that were committed."""
        self.said = 0


@ex.wrong("Subtracts 100. That is strong advice, but no ban: where the token is far ahead, or all others are forbidden, "
          "it is still chosen. -inf is a ban.")
class TakesOff(Ban):
    def process(self, logits, history):
        if self.first is None or self.said < self.first:
            logits[self.tokens] -= 100


@ex.wrong("Sets the logit to 0. Zero is not impossible: where the other logits are negative, it is the best of all.")
class SetsToZero(Ban):
    def process(self, logits, history):
        if self.first is None or self.said < self.first:
            logits[self.tokens] = 0


@ex.wrong("Works on a copy and returns it. The engine goes on with the row that it handed in: change that one.")
class ReturnsACopy(Ban):
    def process(self, logits, history):
        logits = logits.copy()
        if self.first is None or self.said < self.first:
            logits[self.tokens] = -np.inf
        return logits


@ex.wrong("Sets the logit far down. However far that is, it is a number: where all other tokens are forbidden, or lower "
          "still, the token is chosen. -inf is a ban.")
class FarDown(Ban):
    def process(self, logits, history):
        if self.first is None or self.said < self.first:
            logits[self.tokens] = -1e9


@ex.wrong("Keeps the caller's own list. When the caller changes it later, the ban changes with it: keep a copy, `list(tokens)`.")
class KeepsTheCallersList(Ban):
    def __init__(self, tokens, first=None):
        super().__init__(tokens, first)
        self.tokens = tokens


@ex.wrong("A negative id is refused only where the ban holds for the whole turn. It is never an id: refuse it with `first` "
          "too.")
class RefusesWithoutFirst(Ban):
    def __init__(self, tokens, first=None):
        super().__init__([] if first is not None else tokens, first)
        self.tokens = list(tokens)


@ex.wrong("The other way round: everything is forbidden but these tokens.")
class Allows(Ban):
    def process(self, logits, history):
        if self.first is None or self.said < self.first:
            keep = logits[self.tokens]
            logits[:] = -np.inf
            logits[self.tokens] = keep


@ex.wrong("The ban does not end. With `first`, it ends when so many tokens have been committed, whichever they are.")
class Forever(Ban):
    def process(self, logits, history):
        logits[self.tokens] = -np.inf


@ex.wrong("Counts in `process`. A row can be looked at without a token being chosen from it, for example when the step "
          "fails and runs again; only `commit` says that one was.")
class CountsRows(Ban):
    def process(self, logits, history):
        super().process(logits, history)
        self.said += 1

    def commit(self, token):
        pass


@ex.wrong("Takes the length of the history for the number of tokens in this turn. The prompt and all earlier turns are "
          "in there as well.")
class CountsHistory(Ban):
    def process(self, logits, history):
        if self.first is None or len(history) < self.first:
            logits[self.tokens] = -np.inf


@ex.wrong("One token too long: the ban is for the first `first` tokens, and so many have been chosen when the count is "
          "equal to it.")
class OneTooLong(Ban):
    def process(self, logits, history):
        if self.first is None or self.said <= self.first:
            logits[self.tokens] = -np.inf


@ex.wrong("`reset` forgets nothing, so the second turn goes on where the first ended, and its first tokens are not "
          "watched.")
class NeverForgets(Ban):
    def reset(self):
        pass


@ex.wrong("`commit` counts only some tokens. Every chosen token is one of the turn.")
class CountsSome(Ban):
    def commit(self, token):
        if token not in self.tokens and token % 2:
            self.said += 1


@ex.wrong("The count belongs to the class, so all processors share it. Two conversations then count each other's tokens: "
          "keep it in self.")
class Shared(Ban):
    counts = {"said": 0}

    def __init__(self, tokens, first=None):
        super().__init__(tokens, first)
        self.reset()

    def process(self, logits, history):
        self.said = self.counts["said"]
        super().process(logits, history)

    def commit(self, token):
        self.counts["said"] += 1

    def reset(self):
        self.counts["said"] = 0


@ex.wrong("A negative id passes: logits[-1] is the last token of the vocabulary, so it would forbid a token that "
          "nobody named. Refuse it when the processor is made.")
class CountsFromTheEnd(Ban):
    def __init__(self, tokens, first=None):
        self.tokens = list(tokens)
        self.first = first
        self.said = 0


ROW = [3.0, -1.0, 2.0, 0.5]


@ex.wrong("Writes into the history: it notes there which tokens were forbidden. The history belongs to the engine, and other processors "
          "read it.")
class WritesIntoTheHistory(Ban):
    def process(self, logits, history):
        super().process(logits, history)
        history.append(-1)


@ex.wrong("Forbids the first 64 tokens of the list, and forgets the others. A ban may be as long as the vocabulary.")
class SixtyFour(Ban):
    def __init__(self, tokens, first=None):
        super().__init__(tokens, first)
        self.tokens = self.tokens[:64]


def processed(t, ban, name="ban", history=(), row=ROW):
    """`process` on a fresh row; returns the row afterwards."""
    logits = np.array(row)
    t.call(ban.process, logits, list(history), shown=f"{name}.process(row, {list(history)})", changes=(0,))
    return logits.tolist()


def banned(*tokens, row=ROW):
    """The row as it should be."""
    return [float("-inf") if i in tokens else v for i, v in enumerate(row)]


def make(t, Ban, tokens, first=None, name="ban"):
    """A processor, told as code."""
    words = f"{tokens}" if first is None else f"{tokens}, first={first}"
    t.story.append(f"{name} = Ban({words})")
    return t.call(Ban, tokens, first, shown=None)


def committed(t, ban, token, name="ban"):
    """`commit`, told as code."""
    t.call(ban.commit, token, shown=f"{name}.commit({token})")


@ex.check("forbidden logits become -inf in the row itself; the others stay")
def forbids(Ban, t):
    for tokens in ([1], [0, 3], [], [2, 2, 0]):
        t.case(f"row = np.array({ROW})")
        t.equal(processed(t, make(t, Ban, tokens)), banned(*tokens), "the row")
    row, tokens = [1.5] * 400, list(range(0, 400, 3))
    t.case("row = np.full(400, 1.5)")
    t.equal(processed(t, make(t, Ban, tokens), row=row), banned(*tokens, row=row), "the row")


@ex.check("whatever the logits are, a forbidden token is never the best")
def never_chosen(Ban, t):
    for row in ([-5.0, -6.0, 1.0], [0.0, -3.0, 1000.0], [-800.0, -900.0, -700.0]):
        t.case(f"row = np.array({row})")
        after = processed(t, make(t, Ban, [2]), row=row)
        t.equal(int(np.argmax(after)), 0, "the best token")


@ex.check("with `first`, the ban ends when so many tokens have been committed")
def ends(Ban, t):
    for first, tokens in ((1, [0]), (2, [0, 3]), (0, [1])):
        t.case(f"row = np.array({ROW})")
        ban = make(t, Ban, tokens, first)
        held, history = [], [7, 5, 9]
        for token in (2, 1, 2, 1)[:first + 2]:
            held.append(processed(t, ban, history=history) == banned(*tokens))
            committed(t, ban, token)
            history.append(token)
        t.equal(held, [said < first for said in range(first + 2)], "the list of whether the ban held, row by row,")


@ex.check("rows that were only looked at do not count, and neither does the prompt")
def only_commits(Ban, t):
    t.case(f"row = np.array({ROW})")
    ban = make(t, Ban, [0], 1)
    for history in ([5, 6, 7], [5, 6, 7], [5, 6, 7]):
        t.equal(processed(t, ban, history=history), banned(0), "the row")
    committed(t, ban, 3)
    t.equal(processed(t, ban, history=[5, 6, 7, 3]), ROW, "the row")


@ex.check("reset begins a new turn")
def resets(Ban, t):
    t.case(f"row = np.array({ROW})")
    ban = make(t, Ban, [3], 2)
    history = [6]
    for _ in range(2):
        t.call(ban.reset, shown="ban.reset()")
        for want in (banned(3), banned(3), ROW):
            t.equal(processed(t, ban, history=history), want, "the row")
            if want != ROW:
                committed(t, ban, 1)
                history = [*history, 1]
        history = [*history, 8, 6]      # what the user says next


@ex.check("two processors know nothing of each other, or of what becomes of the list")
def apart(Ban, t):
    t.case(f"row = np.array({ROW})")
    a, b = make(t, Ban, [0], 1, name="a"), make(t, Ban, [1], 1, name="b")
    t.equal(processed(t, a, name="a", history=[6]), banned(0), "the row")
    committed(t, a, 2, name="a")
    t.equal(processed(t, b, name="b", history=[8, 6]), banned(1), "the row")
    t.equal(processed(t, a, name="a", history=[6, 2]), ROW, "the row")
    tokens = [0]
    t.case(f"row = np.array({ROW})", "tokens = [0]", "ban = Ban(tokens)")
    ban = t.call(Ban, tokens, None, shown=None)
    tokens.append(1)
    t.story.append("tokens.append(1)")
    t.equal(processed(t, ban), banned(0), "the row")


@ex.check("a negative id is a ValueError")
def negative(Ban, t):
    def made(tokens, first):
        Ban(tokens, first)
        return "a processor"

    for tokens, first in (([-1], None), ([3, -2, 0], None), ([-1], 2)):
        t.case()
        t.raises("ValueError", made, tokens, first, shown=f"Ban({tokens}" + (f", first={first})" if first else ")"))


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch04.prove",
    title="Prove a sampler",
    points=15,
    level="hard",
    section="04.4",
    cpu_seconds=12.0,
    hints=[
        "Of n draws about n * p are the token with probability p, and the number strays by sd = sqrt(n * p * (1 - p)). Beyond "
        "5 sd it strays by chance less than once in a million times. Beyond 2 sd it does so once in twenty.",
        "Whether each token comes often enough is one question. Draws can have the right shares and still not be draws: look "
        "at pairs of neighbours (expect n * p[a] * p[b]), at the halves apart, and at two calls: can they agree?",
        "Shares can be too good as well. sum((count - n p)^2 / (n p)) is about the number of tokens minus 1; below a "
        "hundredth it is no accident.",
        "Each question may answer wrongly by chance, so many questions need a wide border each: 5 sd for each of 36 pairs "
        "is still safe. np.bincount(ids, minlength=k) counts; np.bincount(ids[:-1] * k + ids[1:], minlength=k * k) counts pairs.",
    ],
)


@given
def all_alike(n):
    """A wrong sampler to try your proof on: it draws the token 0 every time."""
    return np.zeros(n, int)


@ex.solution
def prove(sample, p):
    """Look for a sign that a sampler does not draw as it should.

    `sample(n)` makes n draws and returns them: an array of n token ids. It claims that each
    draw is the token i with probability p[i], independent of all draws before it, also of
    those of an earlier call.

    No number of draws proves that. Your verdict may be wrong by chance: of a thousand right
    samplers you may accuse one. The faults that are looked for show themselves clearly in
    20000 draws. Right draws stray from what is expected: to stray far is suspicious, and so
    is not to stray at all.

    Parameters
    ----------
    sample : callable
        May be asked for 20000 draws, all calls together.
    p : float64 array [k]
        The probability of each token; none is below 0.004, and they sum to 1.

    Returns
    -------
    str or None
        None when nothing is suspicious. Otherwise a text that says what is.

    Examples
    --------
    >>> prove(all_alike, np.array([0.5, 0.3, 0.2])) is None
    False
    """
    k, n = len(p), 10000

    def strays(counts, chances, draws):
        """The largest distance from what is expected, in standard deviations."""
        return float(np.max(np.abs(counts - draws * chances) / np.sqrt(draws * chances * (1 - chances) + 1)))

    calls = [np.asarray(sample(n)), np.asarray(sample(n))]
    for ids in calls:
        if ids.shape != (n,) or ids.min() < 0 or ids.max() >= k:
            return f"draws that are no tokens, or not {n} of them: {ids.min()} to {ids.max()}"
    if np.mean(calls[0] == calls[1]) > 0.5 * (1 + p.max()):
        return "two calls drew the same"
    ids = np.concatenate(calls)
    counts = np.bincount(ids, minlength=k)
    if strays(counts, p, 2 * n) > 5:
        return f"of {2 * n} draws {counts}, expected {2 * n * p}"
    error = np.sum((counts - 2 * n * p) ** 2 / (2 * n * p))
    if error < 0.005:
        return f"the shares are too good to be true: {counts}"
    for half in (*calls, ids[:n // 2], ids[-n // 2:]):
        if strays(np.bincount(half, minlength=k), p, len(half)) > 5:
            return "a part of the draws has shares of its own"
    pairs = np.bincount(ids[:-1] * k + ids[1:], minlength=k * k)
    if strays(pairs, np.outer(p, p).ravel(), 2 * n - 1) > 6:
        return "a draw depends on the one before it"
    return None


@ex.wrong("Finds nothing suspicious, whatever is drawn. Try it on `all_alike` first.")
def content(sample, p):
    return None


@ex.wrong("Suspects every sampler. What it complains of must be seen in the draws.")
def never_content(sample, p):
    return "This is no accident."


@ex.wrong("Accuses right samplers too often. A border of 2 standard deviations is crossed by chance once in twenty, for each "
          "token; whoever asks several questions needs a wider border for each.")
def two_deviations(sample, p):
    n = 20000
    counts = np.bincount(sample(n), minlength=len(p))
    z = np.abs(counts - n * p) / np.sqrt(n * p * (1 - p))
    return f"{counts}" if len(counts) > len(p) or z.max() > 2 else None


@ex.wrong("Demands the same relative accuracy of every token: 5 per cent. A rare token is counted a few dozen times, and strays "
          "by more than that by chance. The border follows from sqrt(n p (1 - p)).")
def five_per_cent(sample, p):
    n = 20000
    counts = np.bincount(sample(n), minlength=len(p))
    return f"{counts}" if len(counts) > len(p) or np.any(np.abs(counts / (n * p) - 1) > 0.05) else None


@ex.wrong("Draws too little. 200 draws say how often a token comes to within 3 in a hundred at best; a token of 4 in a thousand "
          "is not missed among them. Four times as many draws see a fault of half the size.")
def too_few_draws(sample, p):
    n = 200
    counts = np.bincount(sample(n), minlength=len(p))
    z = np.abs(counts[:len(p)] - n * p) / np.sqrt(n * p * (1 - p))
    return f"{counts}" if len(counts) > len(p) or z.max() > 5 else None


@ex.wrong("Counts how often each token comes, and nothing else. Draws with the right shares need not be independent: a draw can "
          "hang on the one before it, a second call can repeat the first, the shares can be too good.")
def shares_only(sample, p):
    n = 20000
    counts = np.bincount(sample(n), minlength=len(p))
    z = np.abs(counts[:len(p)] - n * p) / np.sqrt(n * p * (1 - p))
    return f"{counts}" if len(counts) > len(p) or z.max() > 5 else None


@ex.wrong("Compares the sampler with itself: the shares of two calls. A sampler with wrong shares has them in both. What to "
          "expect is in `p`.")
def with_itself(sample, p):
    n = 10000
    a, b = (np.bincount(sample(n), minlength=2 * len(p)) for _ in range(2))
    z = np.abs(a - b) / np.sqrt(a + b + 1)
    return f"{a} and {b}" if z.max() > 4.5 or len(a) > 2 * len(p) else None


SHARES = (np.array([0.5, 0.25, 0.15, 0.08, 0.016, 0.004]), np.array([0.25, 0.25, 0.25, 0.25]), np.array([0.3, 0.6, 0.1]))


class TooManyDraws(Exception):
    """A proof asked for more draws than it may."""


def sampler_of(fault, p, seed):
    """A function that draws, with one fault named by a word; without a word it is right."""
    rng, k, drawn = np.random.default_rng(seed), len(p), [0]
    if fault == "sharper":
        p = p**1.15 / np.sum(p**1.15) if np.ptp(p) else np.array([0.28, 0.24, 0.24, 0.24])
    elif fault == "uniform":
        p = np.full(k, 1 / k) if np.ptp(p) else np.array([0.3, 0.25, 0.25, 0.2])
    elif fault == "never_last":
        p = np.append(p[:-1], 0) / (1 - p[-1])
    elif fault == "rare_twice":
        p = np.append(p[:-1] * (1 - 2 * p[-1]) / (1 - p[-1]), 2 * p[-1])
    elif fault == "swapped":
        p = p[[1, 0, *range(2, k)]] if p[0] != p[1] else p * np.linspace(0.9, 1.1, k)
    edges, most = np.cumsum(p), 20000
    ids = np.minimum(np.searchsorted(edges, rng.random(most) * edges[-1], side="right"), k - 1)
    if fault == "sticky":
        for i in np.flatnonzero(rng.random(most - 1) < 0.15) + 1:
            ids[i] = ids[i - 1]
    elif fault == "restless":
        for i in 3 * np.flatnonzero(ids[3::3] == ids[2:-1:3]) + 3:
            ids[i] = ids[i - 2]
    elif fault == "too_good":
        ids = rng.permutation(np.searchsorted(edges, (np.arange(most) + 0.5) / most * edges[-1], side="right"))
    elif fault == "tires":
        ids[12000:][rng.random(most - 12000) < 0.2] = 0
    elif fault == "outside":
        ids[rng.random(most) < 0.001] = k
    elif fault == "sorted":
        ids = np.sort(ids.reshape(-1, 50)).ravel()

    def sample(n):
        begin, drawn[0] = drawn[0], drawn[0] + n
        if drawn[0] > most:
            raise TooManyDraws(f"{drawn[0]} draws, {most} are allowed")
        return ids[:n].copy() if fault == "begins_anew" else ids[begin:drawn[0]].copy()

    return sample


def right_samplers(p):
    """Right samplers in many styles, each with a word on it: functions of a seed."""
    k = len(p)

    def clocks(seed):
        rng = np.random.default_rng(seed)
        return lambda n: np.argmin(rng.standard_exponential((n, k)) / p, axis=1)

    def choice(seed):
        rng = np.random.default_rng(seed)
        return lambda n: rng.choice(k, n, p=p)

    def rejected(seed):
        """Proposes a token and accepts it with probability p / max(p)."""
        rng = np.random.default_rng(seed)

        def sample(n):
            taken = np.zeros(0, int)
            while len(taken) < n:
                ids = rng.integers(0, k, 12 * n)
                taken = np.append(taken, ids[rng.random(12 * n) < p[ids] / p.max()])
            return taken[:n]

        return sample if k * p.max() < 10 else choice(seed)

    def downwards(seed):
        rng = np.random.default_rng(seed)
        return lambda n: k - 1 - np.searchsorted(np.cumsum(p[::-1]), rng.random(n) * 0.999999999, side="right")

    return {"a point on a line": lambda seed: sampler_of("", p, seed), "who comes first of k clocks": clocks,
            "`choice` of NumPy": choice, "propose and reject": rejected, "a line from the other end": downwards}


def must_find(prove, t, fault, hint):
    """The proof must suspect every sampler with this fault."""
    for p in SHARES:
        for seed in range(2):
            shown = f"prove(sample, p)      # p = {p.tolist()}"
            proving.finds(t, prove, sampler_of(fault, p, 50 + seed), p.copy(), shown=shown, hint=hint)


@ex.check("a right sampler is spared")
def spares_one(prove, t):
    for p in SHARES:
        proving.spares(t, prove, sampler_of("", p, 7), p.copy(), shown="prove(sample, p)", style="a point on a line", vital=True)


@ex.check("of 120 right samplers in five styles at most two are suspected")
def seldom_wrong(prove, t):
    claims = []
    for seed in range(8):
        for p in SHARES:
            for style, make in right_samplers(p).items():
                said = proving.verdict(t, prove, make(1000 + seed), p.copy(), about="it",
                                       shown=f"prove(sample, p)      # a right one: {style}; p = {p.tolist()}")
                if said is not None:
                    claims.append(said)
    t.holds(len(claims) <= 2, f"accuses {len(claims)} of 120 right samplers; one in a thousand is allowed. One of your "
                              f"claims was: {(claims or [''])[0][:200]}")


@ex.check("wrong sampler 1 is found: it has no favourites")
def finds_01(prove, t):
    must_find(prove, t, "uniform",
              "Compare how often each token comes with what p says.")


@ex.check("wrong sampler 2 is found: it likes likely tokens a little too much")
def finds_02(prove, t):
    must_find(prove, t, "sharper",
              "Compare how often each token comes with what p says. How small a difference do your draws show?")


@ex.check("wrong sampler 3 is found: it takes one token for another")
def finds_03(prove, t):
    must_find(prove, t, "swapped",
              "Compare how often each token comes with what p says.")


@ex.check("wrong sampler 4 is found: a token never comes")
def finds_04(prove, t):
    must_find(prove, t, "never_last",
              "How many times should the rarest token come in your draws?")


@ex.check("wrong sampler 5 is found: a rare token is not quite rare enough")
def finds_05(prove, t):
    must_find(prove, t, "rare_twice",
              "Compare how often each token comes with what p says. The rare ones too.")


@ex.check("wrong sampler 6 is found: now and then it draws what is no token")
def finds_06(prove, t):
    must_find(prove, t, "outside",
              "Which ids may come at all?")


@ex.check("wrong sampler 7 is found: it likes to say things twice")
def finds_07(prove, t):
    must_find(prove, t, "sticky",
              "The shares are right. Is a draw independent of the one before it?")


@ex.check("wrong sampler 8 is found: it does not like to say things twice")
def finds_08(prove, t):
    must_find(prove, t, "restless",
              "Is a draw independent of the one before it?")


@ex.check("wrong sampler 9 is found: it is tidy")
def finds_09(prove, t):
    must_find(prove, t, "sorted",
              "The shares are right. Is a draw independent of the one before it?")


@ex.check("wrong sampler 10 is found: it has a short memory")
def finds_10(prove, t):
    must_find(prove, t, "begins_anew",
              "Each call by itself is right. Are two of them independent?")


@ex.check("wrong sampler 11 is found: it begins well")
def finds_11(prove, t):
    must_find(prove, t, "tires",
              "Are all your draws alike, early and late ones?")


@ex.check("wrong sampler 12 is found: it is better than right")
def finds_12(prove, t):
    must_find(prove, t, "too_good",
              "How far should the numbers stray from what is expected?")
