"""A counter-based random generator (splitmix64): draw number `i` of a seed is a pure function of the two.

There is no hidden state: a sampler that has made `n` draws is described by (seed, n), so that its place can be
read, saved, restored and compared.  splitmix64 is Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014.
"""

from dataclasses import dataclass

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
    numbers.
    """
    z = (seed + (i + 1) * GAMMA) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


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
        """Make exactly one draw: a float64 in [0, 1), of the upper 53 bits."""
        value = self.peek()
        self.position += 1
        return value
