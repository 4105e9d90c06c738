"""A counter-based random generator (splitmix64): draw number `i` of a seed is a pure function of the two.

There is no hidden state: a sampler that has made `n` draws is described by (seed, n), so that its place can be
read, saved, restored and compared.  The Fucina documents fix the generator (facts 1.1 and 1.2); splitmix64 itself is
Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
"""

from dataclasses import dataclass

import numpy as np

MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15


def at(seed: int, i: int) -> int:
    """Return draw number `i` (from 0) of the stream that starts at `seed`.

    Parameters
    ----------
    seed, i : int
        Taken modulo 2**64.

    Returns
    -------
    int
        64 random bits, in [0, 2**64).

    Notes
    -----
    Equals the `i`-th output of sequential splitmix64 started at state `seed`: counter and stream forms are the same
    numbers (facts 1.1).
    """
    z = (seed + (i + 1) * GAMMA) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def bits(seed: int, start: int, n: int) -> np.ndarray:
    """Return draws `start` … `start + n - 1` of `seed` as uint64 [n]: `at`, vectorised."""
    counter = np.arange(n, dtype=np.uint64) + np.uint64((start + 1) & MASK)
    z = np.uint64(seed & MASK) + counter * np.uint64(GAMMA)  # uint64 arrays wrap, as the definition wants
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniform(seed: int, n: int, low: float = 0.0, high: float = 1.0, start: int = 0) -> np.ndarray:
    """Return float64 [n], uniform in [low, high): the upper 53 bits of a draw each (facts 1.2)."""
    unit = (bits(seed, start, n) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return np.minimum(low + unit * (high - low), np.nextafter(high, low))  # rounding must not reach `high`


def gaussian(seed: int, n: int, start: int = 0) -> np.ndarray:
    """Return float64 [n], standard normal: Box-Muller, two draws a pair, cosine first (facts 1.2)."""
    pairs = (n + 1) // 2
    raw = bits(seed, start, 2 * pairs) >> np.uint64(11)
    a = (raw[0::2].astype(np.float64) + 1.0) * 2.0**-53  # in (0, 1]: log never sees 0
    b = raw[1::2].astype(np.float64) * 2.0**-53
    radius = np.sqrt(-2.0 * np.log(a))
    out = np.empty(2 * pairs)
    out[0::2] = radius * np.cos(2.0 * np.pi * b)
    out[1::2] = radius * np.sin(2.0 * np.pi * b)
    return out[:n]


def gumbel(seed: int, n: int, start: int = 0) -> np.ndarray:
    """Return float64 [n], standard Gumbel: -log(-log u) with u strictly inside (0, 1) (facts 1.2)."""
    u = ((bits(seed, start, n) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return -np.log(-np.log(u))


def below(seed: int, i: int, n: int) -> int:
    """Return draw `i` of `seed` as an integer in [0, n), by multiply-shift (Lemire 2019; facts 1.2)."""
    return (at(seed, i) * n) >> 64


@dataclass(slots=True)
class CounterRng:
    """A place in the stream of one seed.

    Attributes
    ----------
    seed : int
        In [0, 2**64).
    position : int
        Draws made so far.  Reading it saves the generator; assigning it restores it.
    """

    seed: int
    position: int = 0

    def peek(self) -> float:
        """The next draw, a float64 in [0, 1), without making it."""
        return (at(self.seed, self.position) >> 11) * 2.0**-53

    def uniform(self) -> float:
        """Make exactly one draw: a float64 in [0, 1)."""
        value = self.peek()
        self.position += 1
        return value
