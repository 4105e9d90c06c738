"""Chapter 12 - KV reuse across requests.

What a request leaves in the cache can serve the next one, if both begin with the same
tokens.  You count how much of a cache fits a prompt, build the pool that decides which
rows stay, and store rows of many conversations in blocks.  Then you write them to a file
that survives a crash at any byte.  At the end your pool serves a real model.
"""

import io
import random
import struct
import zlib

from course.exercises import Exercise, given
from course.grading import proving
from course.grading.tools import LearnerError


@given
class ToyCache:
    """A KV cache in miniature: a list of rows, one for each token.

    A row is a number.  As with keys and values, it depends on its token and on all tokens
    before it.
    """

    def __init__(self):
        self.rows = []

    @property
    def len(self):
        """How many rows there are."""
        return len(self.rows)

    def append(self, row):
        """Write one more row."""
        self.rows.append(row)

    def truncate(self, keep):
        """Keep the first `keep` rows; with fewer rows than that, nothing changes."""
        del self.rows[keep:]

    def copy_from(self, other, keep):
        """Hold copies of the first `keep` rows of another cache, and nothing else."""
        if keep > other.len:
            raise ValueError(f"{keep} rows were asked for, the other cache has {other.len}")
        self.rows = other.rows[:keep]


@given
class ToyModel:
    """A pretend model: the next token depends on every row in the cache.

    `step(token, cache)` writes the row of `token` and returns the next token.  `steps`
    counts how often that was done: it is the price of everything.
    """

    def __init__(self):
        self.steps = 0

    def step(self, token, cache):
        """Write one row, return the next token."""
        self.steps += 1
        before = cache.rows[-1] if cache.rows else 1
        cache.append((31 * before + token + 7) % 65521)
        seen = 0
        for row in cache.rows:
            seen = (31 * seen + row) % 1009
        return seen % 97


@given
class Slot:
    """A cache and its shadow: the tokens whose rows the cache holds, a list."""

    def __init__(self, cache):
        self.cache, self.shadow = cache, []


@given
def serve(pool, model, ids, n):
    """Answer one request: `n` tokens after the prompt `ids`.

    The last token of an answer is never run, so there is no row for it.
    """
    slot, cached = pool.acquire(ids)
    if cached >= len(ids):
        raise ValueError("every token of the prompt is cached, so nothing gives the next one: logits are not kept")
    for token in ids[cached:]:
        following = model.step(token, slot.cache)
    said = [following]
    while len(said) < n:
        said.append(model.step(said[-1], slot.cache))
    pool.release(slot, ids + said)
    return said


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch12.common_prefix",
    title="How much of a cache fits",
    points=5,
    level="easy",
    section="12.2",
    hints=[
        "Walk along both lists as long as their tokens agree. Which of the two lists may end first?",
        "The last token of the prompt always has to be run: its logits say what comes next, and logits are not kept. So the "
        "answer is at most len(ids) - 1.",
    ],
)


@ex.solution
def common_prefix(shadow, ids):
    """Count the rows of a cache that a prompt can use.

    Rows can be used from the first on, as long as the tokens agree.  The last token of the
    prompt is run in any case: its logits are needed, and no cache keeps logits.

    Parameters
    ----------
    shadow : list of int
        The tokens whose rows the cache holds; may be empty.
    ids : list of int
        The prompt, at least one token.

    Returns
    -------
    int

    Examples
    --------
    >>> common_prefix([7, 8, 9, 4], [7, 8, 5])
    2
    >>> common_prefix([7, 8, 9, 4], [7, 8, 9])
    2
    >>> common_prefix([], [7])
    0
    """
    n = 0
    while n < min(len(shadow), len(ids) - 1) and shadow[n] == ids[n]:
        n += 1
    return n


@ex.wrong("Counts the last token of the prompt as well. Its row may be there, but its logits are not: it has to be run, so at "
          "most len(ids) - 1 rows can be used.")
def forgets_the_last(shadow, ids):
    n = 0
    while n < min(len(shadow), len(ids)) and shadow[n] == ids[n]:
        n += 1
    return n


@ex.wrong("Leaves out the last row of the *cache*. That row is as good as the others; it is the last token of the prompt that "
          "has to be run.")
def caps_the_shadow(shadow, ids):
    n = 0
    while n < min(len(shadow) - 1, len(ids) - 1) and shadow[n] == ids[n]:
        n += 1
    return n


@ex.wrong("Takes one away always. Only a prompt that is known to its end loses its last token.")
def one_less(shadow, ids):
    n = 0
    while n < min(len(shadow), len(ids)) and shadow[n] == ids[n]:
        n += 1
    return max(0, n - 1)


@ex.wrong("Counts equal tokens after the first difference, too. A row depends on all tokens before it: after a difference no row "
          "is right, even where the tokens agree again.")
def counts_equal(shadow, ids):
    return sum(a == b for a, b in zip(shadow, ids[:-1]))


@ex.wrong("All or nothing: uses a cache only if all of it fits. The rows before the first difference are right whatever "
          "comes after them.")
def all_or_nothing(shadow, ids):
    return min(len(shadow), len(ids) - 1) if shadow == ids[:len(shadow)] else 0


@ex.wrong("Finds the first difference, and has no answer where one list is the beginning of the other: then the shorter one "
          "decides.")
def needs_a_difference(shadow, ids):
    for n, (a, b) in enumerate(zip(shadow, ids)):
        if a != b:
            return n
    return 0


@ex.check("counts the tokens before the first difference")
def before_the_difference(common_prefix, t):
    for shadow, ids, want in (([1, 2], [1, 3, 4], 1), ([1, 2, 3], [1, 2, 4, 5], 2), ([5], [6, 7], 0),
                              ([1, 9, 3, 4], [1, 2, 3, 4, 5], 1), ([0, 0, 1], [0, 0, 2, 0], 2)):
        t.case()
        t.equal(t.call(common_prefix, shadow, ids), want)


@ex.check("a cache that is the beginning of the prompt is used whole")
def whole(common_prefix, t):
    for n in range(1, 5):
        shadow = list(range(n))
        for more in (1, 2, 5):
            t.case()
            t.equal(t.call(common_prefix, shadow, shadow + [50] * more), n)


@ex.check("the last token of the prompt is always run")
def last_is_run(common_prefix, t):
    for n in range(1, 5):
        ids = list(range(10, 10 + n))
        for more in ([], [3], [3, 4]):
            t.case()
            t.equal(t.call(common_prefix, ids + more, ids), n - 1)


@ex.wrong("Compares tokens with `is`. Small numbers are one object in Python, so it works for them, and fails for most tokens of a real "
          "vocabulary. Equal numbers are `==`.")
def by_identity(shadow, ids):
    n = 0
    while n < min(len(shadow), len(ids) - 1) and shadow[n] is ids[n]:
        n += 1
    return n


@ex.check("tokens of a real vocabulary, which are large numbers")
def large_tokens(common_prefix, t):
    for n in range(1, 5):
        shadow, ids = (list(range(40_000, 40_000 + n)) for _ in range(2))
        t.case()
        t.equal(t.call(common_prefix, shadow, [*ids, 17]), n)


@ex.check("many pairs of lists, compared with a slow way")
def compared(common_prefix, t):
    for _ in range(300):
        shadow, ids = (t.rng.integers(0, 2, t.rng.integers(low, 9)).tolist() for low in (0, 1))
        t.case()
        want = max(n for n in range(len(ids)) if shadow[:n] == ids[:n])
        t.equal(t.call(common_prefix, shadow, ids), want)


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch12.pool",
    title="A pool of two slots",
    points=20,
    level="hard",
    section="12.4",
    hints=[
        "For each slot at rest, count the rows that the prompt can use. The best slot has the most of them. If its whole shadow is "
        "the beginning of the prompt, and the gate is open, hand this slot out: take it from the pool, and cut its cache.",
        "Otherwise make a new cache, and copy what the best slot shares with the prompt. That slot stays as it is. Then make room: "
        "at most size - 1 slots may rest.",
        "Keep `slots` in the order of release: then the first one is the one that was not used for the longest time.",
        "After an answer the tokens are one more than the rows, since the last token was never run. So the shadow is "
        "tokens[:cache.len]. The other way round, rows without a token are cut off.",
    ],
)


@ex.solution
class Pool:
    """Slots of earlier requests, at rest, for requests to come.

    Parameters
    ----------
    size : int
        Most slots at rest, 1 or more.
    new_cache : callable
        Makes an empty cache, with `len`, `truncate` and `copy_from` as `ToyCache` has them.

    Attributes
    ----------
    slots : list of Slot
        Those at rest.  Each one's shadow is exactly as long as its cache.

    Examples
    --------
    >>> pool, model = Pool(), ToyModel()
    >>> said = serve(pool, model, [1, 2, 3, 4], 3)
    >>> model.steps, [len(slot.shadow) for slot in pool.slots]
    (6, [6])
    >>> more = serve(pool, model, [1, 2, 3, 4] + said + [5], 2)
    >>> model.steps
    9
    """

    def __init__(self, size=2, new_cache=ToyCache):
        self.size, self.new_cache = size, new_cache
        self.slots = []

    def acquire(self, ids):
        """Hand out a slot for a prompt.

        The best slot is the one of which the prompt can use the most rows (see
        `common_prefix`).  Of equals, one that the prompt *continues* is better: one whose
        whole shadow is the beginning of the prompt, or all of it (its last row is then cut).

        - If the prompt continues the best slot, and more than a tenth of the prompt can be
          used, the best slot is handed out itself and rests no longer.
        - Otherwise a new one is handed out, with copies of the rows that the prompt can use
          of the best slot.  The best slot stays as it is.  At most `size` - 1 slots may then
          rest: if there are more, the one that was released first is dropped.

        Parameters
        ----------
        ids : list of int
            The prompt, at least one token.

        Returns
        -------
        (slot, cached)
            `cached` says how many tokens of the prompt need not be run.  The cache of the
            slot holds their rows and no others.
        """
        def usable(slot):
            n = 0
            while n < min(len(slot.shadow), len(ids) - 1) and slot.shadow[n] == ids[n]:
                n += 1
            return n, slot.shadow == ids[:len(slot.shadow)]

        best = max(self.slots, key=usable, default=None)
        cached, continued = usable(best) if best else (0, False)
        if continued and cached * 10 > len(ids):
            self.slots.remove(best)
            best.cache.truncate(cached)
            return best, cached
        slot = Slot(self.new_cache())
        if best:
            slot.cache.copy_from(best.cache, cached)
        del self.slots[:max(0, len(self.slots) - self.size + 1)]
        return slot, cached

    def release(self, slot, tokens):
        """Take a slot back: from now on it rests.

        Parameters
        ----------
        slot : Slot
        tokens : list of int
            The prompt and what was said.  They may be more than the rows: the last token of
            an answer is never run.  They may be fewer, after an error.  What has no row
            leaves the shadow, and a row without a token leaves the cache.

        If more than `size` slots rest now, the one that was released first is dropped.
        """
        keep = min(len(tokens), slot.cache.len)
        slot.cache.truncate(keep)
        slot.shadow = tokens[:keep]
        self.slots.append(slot)
        del self.slots[:max(0, len(self.slots) - self.size)]


@ex.wrong("Drops the best match to make room. That is the slot that the next turn of its conversation is going to ask for. Drop the "
          "one that nobody has used for the longest time.")
class DropsTheBest(Pool):
    def acquire(self, ids):
        before = list(self.slots)
        slot, cached = super().acquire(ids)
        if cached and slot not in before and len(before) >= self.size:
            rows = [max(n for n in range(len(ids)) if s.shadow[:n] == ids[:n]) for s in before]
            del before[rows.index(max(rows))]
            self.slots = before
        return slot, cached


@ex.wrong("Consumes a slot from which it should only copy. The prompt goes another way than that conversation did: when the "
          "conversation comes back, its rows are gone.")
class ConsumesADonor(Pool):
    def acquire(self, ids):
        def usable(slot):
            return max(n for n in range(len(ids)) if slot.shadow[:n] == ids[:n])

        best = max(self.slots, key=usable, default=None)
        if best and usable(best) * 10 > len(ids) and best.shadow != ids[:len(best.shadow)]:
            cached = usable(best)
            self.slots.remove(best)
            best.cache.truncate(cached)
            return best, cached
        return super().acquire(ids)


@ex.wrong("Has no gate: hands out a slot even if it is next to nothing for this prompt. The same happens where the gate compares with the "
          "*slot*, whose rows are all shared. A tenth of the prompt is meant: that is what has to be run.")
class NoGate(Pool):
    def acquire(self, ids):
        def usable(slot):
            return max(n for n in range(len(ids)) if slot.shadow[:n] == ids[:n]), slot.shadow == ids[:len(slot.shadow)]

        best = max(self.slots, key=usable, default=None)
        if best and usable(best)[1] and usable(best)[0]:
            cached = usable(best)[0]
            self.slots.remove(best)
            best.cache.truncate(cached)
            return best, cached
        return super().acquire(ids)


@ex.wrong("Measures the gate by the wrong length: by the tokens that are left to run. More than a tenth of the whole *prompt* must be "
          "there.")
class GateByTheTail(Pool):
    def acquire(self, ids):
        def usable(slot):
            return max(n for n in range(len(ids)) if slot.shadow[:n] == ids[:n]), slot.shadow == ids[:len(slot.shadow)]

        best = max(self.slots, key=usable, default=None)
        cached, continued = usable(best) if best else (0, False)
        if continued and cached * 10 > len(ids) - cached:
            self.slots.remove(best)
            best.cache.truncate(cached)
            return best, cached
        return super().acquire(ids)


@ex.wrong("Opens the gate at a tenth exactly. The contract says *more* than a tenth: cached * 10 > len(ids).")
class GateAtATenth(Pool):
    def acquire(self, ids):
        def usable(slot):
            return max(n for n in range(len(ids)) if slot.shadow[:n] == ids[:n]), slot.shadow == ids[:len(slot.shadow)]

        best = max(self.slots, key=usable, default=None)
        cached, continued = usable(best) if best else (0, False)
        if continued and cached * 10 >= len(ids):
            self.slots.remove(best)
            best.cache.truncate(cached)
            return best, cached
        return super().acquire(ids)


@ex.wrong("Makes room first and copies then. If the best slot is the one that has to go, its rows are lost, though they were there: copy "
          "first.")
class DropsBeforeItCopies(Pool):
    def acquire(self, ids):
        def usable(slot):
            return max(n for n in range(len(ids)) if slot.shadow[:n] == ids[:n]), slot.shadow == ids[:len(slot.shadow)]

        best = max(self.slots, key=usable, default=None)
        if best and not (usable(best)[1] and usable(best)[0] * 10 > len(ids)):
            del self.slots[:max(0, len(self.slots) - self.size + 1)]
        return super().acquire(ids)


@ex.wrong("A slot that was only copied from counts as used just now. The contract goes by the time of release: the slot stays as it is, "
          "at its place.")
class CopyingIsUse(Pool):
    def acquire(self, ids):
        def usable(slot):
            return max(n for n in range(len(ids)) if slot.shadow[:n] == ids[:n]), slot.shadow == ids[:len(slot.shadow)]

        best = max(self.slots, key=usable, default=None)
        if best and usable(best)[0] and not usable(best)[1]:
            self.slots.remove(best)
            self.slots.append(best)
        return super().acquire(ids)


@ex.wrong("Makes a `ToyCache`, whatever it was given. `new_cache` makes the caches: at the end of the chapter they are those of a real "
          "model.")
class ToysOnly(Pool):
    def __init__(self, size=2, new_cache=ToyCache):
        super().__init__(size, ToyCache)


@ex.wrong("The shadow is longer than the cache: the last token of an answer was never run, so there is no row for it. The next request "
          "is promised a row that is not there.")
class LongShadow(Pool):
    def release(self, slot, tokens):
        super().release(slot, tokens)
        slot.shadow = list(tokens)


@ex.wrong("Leaves rows in the cache that have no token. After an error nobody knows whose rows they are; the next token would be "
          "written after them.")
class LongCache(Pool):
    def release(self, slot, tokens):
        slot.shadow = tokens[:slot.cache.len]
        self.slots.append(slot)
        del self.slots[:max(0, len(self.slots) - self.size)]


@ex.wrong("Drops the slot that was *made* first. A conversation that is still going on is then dropped in its turn, however "
          "recently it was used.")
class OldestFirst(Pool):
    def release(self, slot, tokens):
        slot.born = getattr(slot, "born", None) or max((s.born for s in self.slots), default=0) + 1
        super().release(slot, tokens)
        self.slots.sort(key=lambda s: s.born)


@ex.wrong("Drops the slot that was used last, and keeps the stale ones.")
class NewestFirst(Pool):
    def acquire(self, ids):
        self.slots.reverse()
        slot, cached = super().acquire(ids)
        self.slots.reverse()
        return slot, cached


@ex.wrong("Does not cut the cache that it hands out. A prompt that is the beginning of a slot needs its last token run: the row that "
          "is there already has to go first.")
class NotCut(Pool):
    def acquire(self, ids):
        lengths = {id(slot): list(slot.cache.rows) for slot in self.slots}
        slot, cached = super().acquire(ids)
        if id(slot) in lengths:
            slot.cache.rows = lengths[id(slot)]
        return slot, cached


@ex.wrong("Hands out a slot and keeps it in the pool. The next request can take it while this one is still writing into it.")
class StaysAtRest(Pool):
    def acquire(self, ids):
        before = list(self.slots)
        slot, cached = super().acquire(ids)
        if slot in before:
            self.slots.insert(0, slot)
        return slot, cached

    def release(self, slot, tokens):
        self.slots = [s for s in self.slots if s is not slot]
        super().release(slot, tokens)


@ex.wrong("Never copies. A new conversation over a known system prompt could begin with its rows, and runs all of it again.")
class NeverCopies(Pool):
    def acquire(self, ids):
        before = list(self.slots)
        slot, cached = super().acquire(ids)
        if slot not in before:
            slot.cache.truncate(0)
            cached = 0
        return slot, cached


@ex.wrong("Says that all of the prompt is cached when all of its rows are there. Its last token must be run: logits are not kept.")
class AllCached(Pool):
    def acquire(self, ids):
        known = next((slot for slot in self.slots if slot.shadow[:len(ids)] == ids), None)
        if known is None:
            return super().acquire(ids)
        slot = Slot(self.new_cache())
        slot.cache.copy_from(known.cache, len(ids))
        del self.slots[:max(0, len(self.slots) - self.size + 1)]
        return slot, len(ids)


@ex.wrong("Keeps one slot too many: with the one that is handed out there are more caches than `size`.")
class TooMany(Pool):
    def acquire(self, ids):
        self.size += 1
        slot, cached = super().acquire(ids)
        self.size -= 1
        return slot, cached


@ex.wrong("Lets go of nothing when a slot comes back. Two requests that overlap leave three slots at rest.")
class GrowsAtRelease(Pool):
    def release(self, slot, tokens):
        self.size += 1
        super().release(slot, tokens)
        self.size -= 1


@ex.wrong("Of two slots that share as much, takes the one that went another way. It copies, where the other one could be handed out "
          "as it is.")
class BlindToTies(Pool):
    def acquire(self, ids):
        def usable(slot):
            return max(n for n in range(len(ids)) if slot.shadow[:n] == ids[:n]), slot.shadow != ids[:len(slot.shadow)]

        best = max(self.slots, key=usable, default=None)
        if best is None or best.shadow == ids[:len(best.shadow)]:
            return super().acquire(ids)
        slot = Slot(self.new_cache())
        cached = usable(best)[0]
        slot.cache.copy_from(best.cache, cached)
        del self.slots[:max(0, len(self.slots) - self.size + 1)]
        return slot, cached


def rows_of(tokens):
    """The rows of some tokens, as `ToyModel` writes them."""
    rows = []
    for token in tokens:
        rows.append((31 * (rows[-1] if rows else 1) + token + 7) % 65521)
    return rows


def cold(ids, n):
    """An answer without any pool."""
    cache, model = ToyCache(), ToyModel()
    for token in ids:
        following = model.step(token, cache)
    said = [following]
    while len(said) < n:
        said.append(model.step(said[-1], cache))
    return said


class Drive:
    """A pool under test: serves requests, tells them as code, and looks at everything after each."""

    def __init__(self, t, Pool, size=2):
        self.t, self.size, self.model, self.run = t, size, ToyModel(), 0
        t.case(f"pool, model = Pool({size}), ToyModel()")
        self.pool = t.call(Pool, size, shown=None)

    def ask(self, ids, n=2):
        """One request; `run` is then the number of tokens that were run for it."""
        before = self.model.steps
        said = self.t.call(serve, self.pool, self.model, list(ids), n, shown=f"serve(pool, model, {list(ids)}, {n})")
        self.run = self.model.steps - before
        self.t.equal(said, cold(ids, n), "what was said")
        self.look()
        return list(ids) + said

    def look(self):
        """Shadows and caches at rest."""
        self.t.holds(len(self.pool.slots) <= self.size, f"{len(self.pool.slots)} slots are at rest, expected at most {self.size}")
        for i, slot in enumerate(self.pool.slots):
            self.t.holds(len(slot.shadow) == slot.cache.len, f"slot {i} has a shadow of {len(slot.shadow)} tokens and a cache "
                                                             f"of {slot.cache.len} rows, expected as many")
            self.t.equal(slot.cache.rows, rows_of(slot.shadow), f"the rows of slot {i}, with the shadow {slot.shadow},")

    def take(self, ids):
        """Only acquire."""
        got = self.t.call(self.pool.acquire, list(ids), shown=f"pool.acquire({list(ids)})")
        self.t.holds(isinstance(got, tuple) and len(got) == 2, f"gave {got!r}, expected (slot, cached)")
        return got


@ex.check("a follow-up runs nothing but its tail, and three conversations take turns with the right answers")
def tails(Pool, t):
    for size in (1, 2, 3, 5):
        drive = Drive(t, Pool, size)
        texts = [[10 * k + j for j in range(1, 7)] for k in range(size)]
        for turn in range(4):
            for k in range(size):
                new = texts[k] + [90 + turn] if turn else texts[k]
                told = drive.ask(new, 3)
                want = (2 if turn else len(new)) + 2  # a tail is the answer's last token and the new one
                t.equal(drive.run, want, "the number of tokens that were run")
                texts[k] = told


@ex.check("a shadow is as long as its cache, also after an error")
def after_errors(Pool, t):
    for tokens, rows in (([1, 2, 3], 2), ([1, 2, 3], 3), ([1, 2], 3), ([1, 2], 0), ([], 2)):
        drive = Drive(t, Pool)
        slot, cached = drive.take([1, 2, 3])
        t.equal(cached, 0, "cached")
        for row in rows_of([1, 2, 3][:rows]):
            slot.cache.append(row)
        t.call(drive.pool.release, slot, tokens, shown=f"pool.release(slot, {tokens})    # {rows} rows were written")
        t.equal([s.shadow for s in drive.pool.slots], [tokens[:rows]], "the shadows at rest")
        drive.look()
        drive.ask([1, 2, 3, 4])


@ex.check("an unrelated request drops the slot that was not used for the longest time")
def least_recent(Pool, t):
    for order, alike in (("ab", 0), ("ba", 0), ("aba", 0), ("bab", 0), ("ab", 2), ("aba", 2)):
        drive = Drive(t, Pool)
        texts = {"a": [1] + [20 + i for i in range(14)], "b": [1] + [40 + i for i in range(14)]}
        for name in order:
            texts[name] = drive.ask(texts[name] + [60])
        kept = order[-1]
        drive.ask(texts[kept][:alike] + [70 + i for i in range(12)])
        at_rest = [slot.shadow for slot in drive.pool.slots]
        t.holds(texts[kept][:-1] in at_rest, f"the conversation that was used last is gone; at rest are {at_rest}")
        drive.ask(texts[kept] + [61])
        t.equal(drive.run, 2 + 1, "the number of tokens that were run for the conversation that was used last")


@ex.check("a request that goes another way copies, and leaves the slot as it is")
def copies(Pool, t):
    system = [9, 8, 7, 6, 5, 4]
    for first, second in (([1, 2], [3]), ([1, 2], [1, 3]), ([2] * 6, [1] * 6)):
        drive = Drive(t, Pool)
        one = drive.ask(system + first)
        drive.ask(system + second)
        shared = len(system) + (first[0] == second[0] and len(second) > 1)
        t.equal(drive.run, len(system + second) - shared + 1, "the number of tokens that were run")
        t.holds(one[:-1] in [slot.shadow for slot in drive.pool.slots], "the first conversation is gone from the pool")
        drive.ask([*one, 11])
        t.equal(drive.run, 2 + 1, "the number of tokens that were run for the first conversation's next turn")


@ex.check("also the slot that has to go is copied from first, and copying does not make it younger")
def last_service(Pool, t):
    for size in (1, 2, 3):
        drive = Drive(t, Pool, size)
        texts = [drive.ask([k, 1, 2, 3, 4, 5]) for k in range(size)]
        drive.take([0, 1, 2, 3, 9, 9])
        t.equal(sorted(s.shadow for s in drive.pool.slots), [text[:-1] for text in texts[1:]], "the shadows at rest")
        drive = Drive(t, Pool, size)
        for k in range(size):
            drive.ask([k, 1, 2, 3, 4, 5])
        drive.ask([0, 1, 2, 3, 9, 9])
        t.equal(drive.run, 2 + 1, "the number of tokens that were run, after 4 that were there,")


@ex.check("caches are made by `new_cache`")
def own_caches(Pool, t):
    class Mine(ToyCache):
        """A cache of another class."""

    t.case("pool = Pool(2, Mine)    # class Mine(ToyCache)")
    pool = t.call(Pool, 2, Mine, shown=None)
    for ids in ([1, 2, 3], [1, 2, 4, 5], [7, 8]):
        slot, _ = t.call(pool.acquire, ids, shown=f"pool.acquire({ids})")
        t.holds(isinstance(slot.cache, Mine), f"the cache of the slot is a {type(slot.cache).__name__}, expected a Mine")
        t.call(pool.release, slot, ids, shown=f"pool.release(slot, {ids})")


@ex.check("the gate: a slot is handed out itself if more than a tenth of the prompt can be used")
def gate(Pool, t):
    for held, length, itself in ((1, 9, True), (2, 60, False), (3, 32, False), (1, 10, False), (2, 19, True), (2, 20, False), (2, 40, False),
                                 (3, 29, True), (4, 40, False)):
        drive = Drive(t, Pool)
        slot, _ = drive.take(list(range(held)))
        for row in rows_of(list(range(held))):
            slot.cache.append(row)
        t.call(drive.pool.release, slot, list(range(held)), shown=f"pool.release(slot, {list(range(held))})")
        ids = list(range(length))
        got, cached = drive.take(ids)
        t.equal(cached, held, "cached")
        t.equal(got.cache.rows, rows_of(ids[:cached]), "the rows that were handed out")
        t.holds((got is slot) == itself, f"{held} of {length} tokens can be used: {'the slot itself' if itself else 'a copy'} "
                                         "is expected")
        t.equal([s.shadow for s in drive.pool.slots], [] if itself else [list(range(held))], "the shadows at rest")


@ex.check("a prompt that is known to its end has its last token run again")
def known(Pool, t):
    for more in (0, 1, 4):
        drive = Drive(t, Pool)
        ids = [5, 6, 7, 8]
        told = drive.ask(ids, 3)
        drive.ask(told[:4 + more], 2)
        t.equal(drive.run, 1 + 1, "the number of tokens that were run")


@ex.check("a prompt of which all is there can be asked again, and the slot that it is cut for is cut")
def again(Pool, t):
    for _ in range(2):
        drive = Drive(t, Pool)
        ids = [5, 6, 7, 8]
        drive.ask(ids, 1)  # the shadow is the prompt
        slot, cached = drive.take(ids)
        t.equal(cached, 3, "cached")
        t.equal(slot.cache.rows, rows_of(ids[:3]), "the rows that were handed out")
        t.equal([s.shadow for s in drive.pool.slots], [], "the shadows at rest")


@ex.check("a slot that is handed out is nobody else's, and there are never more caches than slots")
def overlapping(Pool, t):
    for size in (1, 2, 3):
        drive = Drive(t, Pool, size)
        for k in range(size):
            drive.ask([k, 1, 2, 3, 4, 5])
        ids = [*drive.pool.slots[-1].shadow, 80, 81]
        one, _ = drive.take(ids)
        t.holds(one not in drive.pool.slots, "the slot that was handed out is still at rest")
        t.equal(len(drive.pool.slots), size - 1, "the number of slots at rest")
        two, _ = drive.take(ids)
        t.holds(two is not one and two.cache is not one.cache, "two requests were given the same slot")
        for row in rows_of(ids)[one.cache.len:]:
            one.cache.append(row)
        for row in rows_of(ids)[two.cache.len:]:
            two.cache.append(row)
        for slot in (one, two):
            t.call(drive.pool.release, slot, ids, shown="pool.release(one of them, the prompt)")
            drive.look()
        fresh = Drive(t, Pool, size)
        for k in range(size):
            fresh.ask([k, 1, 2, 3, 4, 5])
        fresh.take([50, 51])
        t.equal(len(fresh.pool.slots), size - 1, "the number of slots at rest while a new one is handed out")


@ex.check("of slots that share as much, one that the prompt continues is better")
def ties(Pool, t):
    for order in (0, 1):
        drive = Drive(t, Pool)
        made = []
        for shadow in ([1, 2, 3], [1, 2, 3, 4, 5])[::1 if order else -1]:
            slot, _ = drive.take([60 + len(shadow), 1])
            slot.cache.truncate(0)
            made.append((slot, shadow))
        for slot, shadow in made:
            for row in rows_of(shadow):
                slot.cache.append(row)
            t.call(drive.pool.release, slot, shadow, shown=f"pool.release(slot, {shadow})")
        drive.take([1, 2, 3, 9, 9])
        t.equal([s.shadow for s in drive.pool.slots], [[1, 2, 3, 4, 5]], "the shadows at rest")


@ex.check("hundreds of requests: the same answers as without a pool")
def hundreds(Pool, t):
    for size in (1, 2, 4):
        drive, texts = Drive(t, Pool, size), [[1, 2, 3]]
        for _ in range(60):
            text = texts[t.rng.integers(len(texts))]
            ids = text[:t.rng.integers(1, len(text) + 1)] + t.rng.integers(0, 3, t.rng.integers(0, 4)).tolist()
            del t.story[1:]
            texts.append(drive.ask(ids[:30], int(t.rng.integers(1, 4))))


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch12.prove",
    title="Prove a pool",
    points=15,
    level="hard",
    section="12.4",
    cpu_seconds=8.0,
    hints=[
        "You know what is true: an answer without any pool, rows computed from the start. Serve requests through the pool with "
        "`serve(pool, ToyModel(), ids, n)`, compare, and look at every slot at rest after each.",
        "An answer can be right although the pool is bad. So count `model.steps` as well: a follow-up of a conversation that must be "
        "there runs its last answer token, the new tokens, and n - 1 of the new answer.",
        "Try what is rare: a prompt that is known to its end; one that is the beginning of a slot; two slots that share a long beginning; a "
        "short slot and a long prompt; requests that overlap (acquire twice, then release); a release with fewer tokens than rows.",
        "Sizes other than 2 show more: a pool of one slot, and one of four. And two pools must have nothing to do with each other.",
    ],
)


@given
class Amnesia:
    """A wrong pool to try your proof on: it hands out new slots and keeps none."""

    def __init__(self, size=2):
        self.slots = []

    def acquire(self, ids):
        """A new slot."""
        return Slot(ToyCache()), 0

    def release(self, slot, tokens):
        """Forget it."""


@ex.solution
def prove(make):
    """Look for a case in which a pool breaks its promises.

    `make(size)` makes an empty pool over `ToyCache`.  What a pool promises:

    - `pool.slots` is a list of the slots at rest, in any order, at most `size` of them.  A
      slot has a `shadow`, a list of tokens, and a `cache` with exactly the rows of these.
    - `pool.acquire(ids)` returns (slot, cached).  The slot's cache holds the rows of the first
      `cached` tokens of `ids`, and no others.  `cached` is the largest number that a slot at
      rest allows, and at most len(ids) - 1.
    - If the shadow of the slot that allows the most is a beginning of `ids` as a whole (or all
      of `ids`), and cached * 10 > len(ids), that slot itself is handed out, and rests no longer.
      (Of equals, such a slot goes first.)  Otherwise a different one is handed out: the slots
      at rest stay as they are, but at most size - 1 may rest then, and if there are more, the
      one that was released first is dropped.
    - `pool.release(slot, tokens)` puts it to rest.  Shadow and cache are cut to what both have.
      If more than `size` slots rest then, the one that was released first is dropped.
    - The lists that a pool is given stay as they are, and are not kept.  Two pools have
      nothing to do with each other.

    Parameters
    ----------
    make : callable
        You may make up to 4000 pools, of any size from 1 on.  Some twenty pools are put to the
        proof; a right one should take it less than a second.

    Returns
    -------
    str or None
        None when you found nothing wrong.  Otherwise a text, your counterexample.

    Examples
    --------
    >>> prove(Amnesia) is None
    False
    """
    def rows(tokens):
        cache, model = ToyCache(), ToyModel()
        for token in tokens:
            model.step(token, cache)
        return cache.rows

    def shared(shadow, ids):
        return max(n for n in range(len(ids)) if shadow[:n] == ids[:n])

    def fill(slot, tokens):
        for row in rows(tokens)[slot.cache.len:]:
            slot.cache.append(row)

    def walk(size, chance):
        pool, rests, out, texts = make(size), [], [], [[1, 2, 3, 4]]  # rests: [slot, shadow] by release, the first one first

        def look(where):
            found, true = sorted(slot.shadow for slot in pool.slots), sorted(shadow for _, shadow in rests)
            assert found == true, f"{where}: at rest are {found}, expected {true}"
            for slot in pool.slots:
                assert slot.cache.rows == rows(slot.shadow), f"{where}: {slot.shadow} has the rows {slot.cache.rows}"

        for _ in range(40):
            if out and chance.random() < 0.6:
                slot, ids = out.pop(chance.randrange(len(out)))
                said = ids + [chance.randrange(3) for _ in range(chance.randrange(4))]
                fill(slot, said[:len(said) - chance.randrange(2)])
                tokens = said[:len(said) - chance.choice([0, 0, 0, 1, 2])]
                keep = min(len(tokens), slot.cache.len)
                pool.release(slot, tokens)
                rests.append((slot, said[:keep]))
                del rests[:max(0, len(rests) - size)]
                tokens.append(99)
                look("after a release")
                texts.append(said)
            else:
                text, more = chance.choice(texts), chance.choice([0, 1, 2, chance.randrange(42)])
                ids = (text[:chance.randrange(1, len(text) + 1)] + [chance.randrange(3) for _ in range(more)])[:45]
                n = max((shared(shadow, ids) for _, shadow in rests), default=0)
                whole = [s for s, shadow in rests if shared(shadow, ids) == n and shadow == ids[:len(shadow)]]
                given = list(ids)
                slot, cached = pool.acquire(given)
                where = f"acquire({ids}) with {[shadow for _, shadow in rests]} at rest"
                assert given == ids, f"{where}: the prompt was changed"
                assert cached == n, f"{where}: cached is {cached}, expected {n}"
                assert slot.cache.rows == rows(ids[:n]), f"{where}: the rows are {slot.cache.rows}"
                itself = bool(whole) and n * 10 > len(ids)
                old = any(slot is s for s, _ in rests)
                assert old == itself and (not old or any(slot is s for s in whole)), f"{where}: a slot at rest is handed out: {old}"
                others = [*pool.slots, *(s for s, _ in out)]
                assert not any(slot is s or slot.cache is s.cache for s in others), f"{where}: it is somebody else's, too"
                rests[:] = [rest for rest in rests if rest[0] is not slot]
                del rests[:max(0, len(rests) - size + 1)]
                look(where)
                given.append(99)
                out.append((slot, ids))

    try:
        chance = random.Random(12)
        for _ in range(12):
            for size in (1, 2, 4):
                walk(size, chance)
        one, two = make(2), make(2)
        serve(one, ToyModel(), [1, 2, 3], 1)
        assert not two.slots, "two pools share their slots"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


@ex.wrong("Says that nothing is wrong, whatever it is given. Try it on `Amnesia` first.")
def content(make):
    return None


@ex.wrong("Calls every pool wrong, right ones too. What it complains of must be a broken promise.")
def never_content(make):
    return "It looked at me strangely."


@ex.wrong("Looks at the answers and at nothing else. A pool that keeps nothing gives right answers as well, and so does one that keeps the "
          "wrong slots. Count `model.steps`, and look at what rests.")
def answers_only(make):
    chance = random.Random(1)
    try:
        for size in (1, 2, 3):
            pool, texts = make(size), [[1, 2, 3]]
            for _ in range(40):
                text = chance.choice(texts)
                ids = text[:chance.randrange(1, len(text) + 1)] + [chance.randrange(3) for _ in range(3)]
                said = serve(pool, ToyModel(), ids[:30], 2)
                cache, model, told = ToyCache(), ToyModel(), []
                for token in ids[:30]:
                    following = model.step(token, cache)
                told = [following, model.step(following, cache)]
                if said != told:
                    return f"{ids}: {said}"
                texts.append(ids[:30] + said)
        serve(make(2), model := ToyModel(), [1, 2, 3, 4], 2)
        pool = make(2)
        serve(pool, ToyModel(), [1, 2, 3, 4], 2)
        model = ToyModel()
        serve(pool, model, [1, 2, 3, 4, 5, 6], 2)
        if model.steps > 4:
            return "nothing was kept"
    except Exception as error:
        return repr(error)
    return None


@ex.wrong("Drives one conversation, turn after turn. With one conversation there is nothing to drop, to copy from or to confuse.")
def one_conversation(make):
    try:
        pool, text = make(2), [1, 2, 3]
        for turn in range(6):
            model, before = ToyModel(), len(text)
            text = text + serve(pool, model, text, 2) + [turn]
            if turn and model.steps != 3 or len(pool.slots) != 1 or len(pool.slots[0].shadow) != before + 1:
                return f"turn {turn} ran {model.steps} tokens"
    except Exception as error:
        return repr(error)
    return None


@ex.wrong("Asks for a certain order of `slots`. The contract promises none.")
def wants_an_order(make):
    try:
        pool = make(3)
        for k in (1, 2, 3):
            serve(pool, ToyModel(), [k, k, k, 9], 2)
        if [slot.shadow[0] for slot in pool.slots] != [1, 2, 3]:
            return "the slots are not in the order of release"
        serve(pool, ToyModel(), [1, 1, 1, 9, 9], 2)
        return None if pool.slots else "nothing rests"
    except Exception as error:
        return repr(error)


class Suspect:
    """A pool with one fault named by a word; without a word it is right."""

    fault = ""
    common = []

    def __init__(self, size=2):
        self.size = 2 if self.fault == "always two" else size
        self.slots, self.made = self.common if self.fault == "common" else [], 0

    def usable(self, slot, ids):
        n = 0
        while n < min(len(slot.shadow), len(ids) - (self.fault != "all cached")) and slot.shadow[n] == ids[n]:
            n += 1
        whole = slot.shadow == ids[:len(slot.shadow)]
        return n, whole if self.fault != "ties" else not whole

    def acquire(self, ids):
        if self.fault == "changes":
            ids.sort()
        if self.fault == "drops first" and len(self.slots) >= self.size:
            if not any(self.usable(slot, ids)[0] == len(slot.shadow) for slot in self.slots):
                self.drop(None)
        best = max(self.slots, key=lambda slot: self.usable(slot, ids), default=None)
        if self.fault == "first fit":
            best = next((slot for slot in self.slots if self.usable(slot, ids)[0]), best)
        n = self.usable(best, ids)[0] if best else 0
        whole = best is not None and best.shadow == ids[:len(best.shadow)]
        measure = len(ids) - n if self.fault == "gate by the tail" else len(ids)
        opens = n * 10 > measure or (self.fault == "no gate" and n > 0)
        if self.fault == "gate of a half":
            opens = n * 2 > len(ids)
        if best and opens and (whole or self.fault == "consumes"):
            if self.fault != "stays":
                self.slots.remove(best)
            if self.fault != "not cut":
                best.cache.truncate(n)
            return best, n
        slot = Slot(ToyCache())
        self.made += 1
        slot.born = self.made
        if best and self.fault != "never copies":
            slot.cache.copy_from(best.cache, n)
        if len(self.slots) > self.size - 1 and self.fault != "too many":
            self.drop(best if n else None)
        return slot, slot.cache.len

    def drop(self, best):
        if self.fault == "drops the best" and best is not None:
            self.slots.remove(best)
        elif self.fault == "oldest made":
            self.slots.remove(min(self.slots, key=lambda slot: slot.born))
        else:
            self.slots.pop(0)

    def release(self, slot, tokens):
        keep = min(len(tokens), slot.cache.len)
        if self.fault != "long cache":
            slot.cache.truncate(keep)
        if self.fault == "stays":
            self.slots = [s for s in self.slots if s is not slot]
        slot.shadow = list(tokens) if self.fault == "long shadow" else tokens[:keep]
        if self.fault == "keeps" and keep == len(tokens):
            slot.shadow = tokens
        self.slots.append(slot)
        if len(self.slots) > self.size and self.fault != "grows":
            self.drop(None)


def suspect(word):
    """A class of pools with a fault."""
    return type("Pool", (Suspect,), {"fault": word, "common": []})


def right_pools():
    """Right pools in many styles, each with a word on it."""

    class Clock(Suspect):
        """Every slot has the time of its release; the list is in no order."""

        time = 0

        def release(self, slot, tokens):
            type(self).time += 1
            slot.time = self.time
            super().release(slot, tokens)
            self.slots.sort(key=lambda s: s.shadow)

        def drop(self, best):
            self.slots.remove(min(self.slots, key=lambda slot: slot.time))

    class Backwards(Suspect):
        """The newest slot stands first."""

        def release(self, slot, tokens):
            n = min(len(tokens), slot.cache.len)
            slot.cache.truncate(n)
            slot.shadow = list(tokens[:n])
            self.slots = [slot, *self.slots][:self.size]

        def drop(self, best):
            self.slots.pop()

    class Numbers(Suspect):
        """Slots in a dict by a number that grows."""

        def __init__(self, size=2):
            self.size, self.made, self.shelf = size, 0, {}

        @property
        def slots(self):
            return list(self.shelf.values())

        def acquire(self, ids):
            found = sorted(self.shelf.items(), key=lambda item: self.usable(item[1], ids))
            number, best = found[-1] if found else (0, None)
            n, whole = self.usable(best, ids) if best else (0, False)
            if whole and 10 * n > len(ids):
                best.cache.truncate(n)
                return self.shelf.pop(number), n
            slot = Slot(ToyCache())
            slot.cache.rows = best.cache.rows[:n] if best else []
            while len(self.shelf) > self.size - 1:
                self.shelf.pop(min(self.shelf))
            return slot, n

        def release(self, slot, tokens):
            slot.shadow = [token for token, _ in zip(tokens, slot.cache.rows)]
            slot.cache.truncate(len(slot.shadow))
            self.made += 1
            self.shelf[self.made] = slot
            if len(self.shelf) > self.size:
                self.shelf.pop(min(self.shelf))

    return {
        "a list in the order of release": suspect(""),
        "a clock, and a list without order": Clock,
        "the newest slot stands first": Backwards,
        "a dict by number": Numbers,
    }


def must_find(prove, t, make, hint):
    """The proof must have a counterexample against this pool."""
    proving.finds(t, prove, proving.counted(make), shown="prove(make)", hint=hint)


@ex.check("a right pool is spared: a list in the order of release")
def spares_one(prove, t):
    proving.spares(t, prove, proving.counted(suspect("")), shown="prove(make)", style="a list in the order of release", vital=True)


@ex.check("right pools in other styles are spared")
def spares_styles(prove, t):
    for style, make in right_pools().items():
        proving.spares(t, prove, proving.counted(make), shown="prove(make)", style=style)


@ex.check("wrong pool 1 is found: it believes that it has the answer already")
def finds_01(prove, t):
    must_find(prove, t, suspect("all cached"), "Ask for a prompt of which every row is there.")


@ex.check("wrong pool 2 is found: it makes room at its best friend's place")
def finds_02(prove, t):
    must_find(prove, t, suspect("drops the best"), "Fill the pool, and ask for something that shares a beginning with the newest slot. Which one is gone?")


@ex.check("wrong pool 3 is found: it takes what it should copy")
def finds_03(prove, t):
    must_find(prove, t, suspect("consumes"), "Two conversations over one long beginning, by turns. What is left of the first?")


@ex.check("wrong pool 4 is found: it does not ask how much is shared")
def finds_04(prove, t):
    must_find(prove, t, suspect("no gate"), "A slot of two tokens and a prompt of forty that begins with them: which slot is handed out?")


@ex.check("wrong pool 5 is found: it measures with the wrong rule")
def finds_05(prove, t):
    must_find(prove, t, suspect("gate by the tail"), "A tenth of what?")


@ex.check("wrong pool 6 is found: it promises more than it has")
def finds_06(prove, t):
    must_find(prove, t, suspect("long shadow"), "Compare the length of each shadow with its cache, after every release.")


@ex.check("wrong pool 7 is found: it keeps what nobody can name")
def finds_07(prove, t):
    must_find(prove, t, suspect("long cache"), "Release a slot with fewer tokens than rows.")


@ex.check("wrong pool 8 is found: it goes by the date of birth")
def finds_08(prove, t):
    must_find(prove, t, suspect("oldest made"), "Continue the conversation that began first, then ask for something new.")


@ex.check("wrong pool 9 is found: it hands out too much")
def finds_09(prove, t):
    must_find(prove, t, suspect("not cut"), "Look at the rows of the slot that is handed out, for a prompt that is a slot's shadow.")


@ex.check("wrong pool 10 is found: two may sit on one chair")
def finds_10(prove, t):
    must_find(prove, t, suspect("stays"), "Look at `slots` between `acquire` and `release`.")


@ex.check("wrong pool 11 is found: it never learned to copy")
def finds_11(prove, t):
    must_find(prove, t, suspect("never copies"), "How many tokens are cached for a new conversation over a known beginning?")


@ex.check("wrong pool 12 is found: it has one chair too many")
def finds_12(prove, t):
    must_find(prove, t, suspect("too many"), "How many slots rest while one is handed out?")


@ex.check("wrong pool 13 is found: it grows when many come back")
def finds_13(prove, t):
    must_find(prove, t, suspect("grows"), "Acquire three slots, then release all of them.")


@ex.check("wrong pool 14 is found: it knows what its neighbour knows")
def finds_14(prove, t):
    must_find(prove, t, suspect("common"), "Make two pools.")


@ex.check("wrong pool 15 is found: it is content with the first that comes")
def finds_15(prove, t):
    must_find(prove, t, suspect("first fit"), "Two slots share something with the prompt, one of them more. Size 2 is enough, both orders are needed.")


@ex.check("wrong pool 16 is found: of equals it takes the wrong one")
def finds_16(prove, t):
    must_find(prove, t, suspect("ties"), "Two slots allow as much: one is a beginning of the prompt, the other one goes on differently.")


@ex.check("wrong pool 17 is found: it holds on to what it was lent")
def finds_17(prove, t):
    must_find(prove, t, suspect("keeps"), "Change the list of tokens after `release`, and look at the shadow.")


@ex.check("wrong pool 18 is found: it is too modest")
def finds_18(prove, t):
    must_find(prove, t, suspect("gate of a half"), "Where exactly does the gate open?")


@ex.check("wrong pool 19 is found: it tidies up where it is a guest")
def finds_19(prove, t):
    must_find(prove, t, suspect("changes"), "Look at the prompt after `acquire`.")


@ex.check("wrong pool 20 is found: it clears the table too early")
def finds_20(prove, t):
    must_find(prove, t, suspect("drops first"), "Fill the pool, and ask for something that shares a beginning with the slot that was released first.")


@ex.check("wrong pool 21 is found: it counts to two")
def finds_21(prove, t):
    must_find(prove, t, suspect("always two"), "Make pools of other sizes, too.")


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch12.blocks",
    title="Blocks that are stored once",
    points=20,
    level="hard",
    section="12.5",
    hints=[
        "A table is a list of blocks. `open` walks along the prompt, block by block, and looks up each by its key. The key of a block is "
        "made of the key of the block before it and of its own tokens.",
        "A key is a short number, so two different blocks can have the same one. A block that was found is right only if its tokens are "
        "those of the prompt *and* the block before it is the last one of the table.",
        "`append` writes into the last block of a table. Is it full? Then a new one begins. Does another table hold it as well? Then "
        "this table takes a copy first, and leaves the old one to the others.",
        "When a block becomes full it gets its key. If an equal block is known already, put that one into the table instead. If the key is "
        "free, note the block under it.",
    ],
)


@given
class Block:
    """Tokens with their rows; `before` is the block before it, None for a first one.

    `key` is None until the block is full.  `users` says how many tables hold it.
    """

    def __init__(self, before=None, tokens=(), rows=()):
        self.before, self.tokens, self.rows = before, list(tokens), list(rows)
        self.key, self.users = None, 0


@given
def digest(key, tokens):
    """The key of a block: from the key of the block before it (0 if there is none) and its tokens, a list."""
    return zlib.crc32(repr((key, tokens)).encode())


@ex.solution
class BlockStore:
    """Rows of many conversations, in blocks: what begins alike is stored once.

    A conversation is a *table*: a list of blocks, all of them full but perhaps the last.
    Only full blocks are known, which means that `open` finds them.  At any time
    `block.users` is the number of tables that hold a block.

    Parameters
    ----------
    size : int
        Tokens of a full block.
    digest : callable
        `digest(key, tokens)`, as above.  Two different blocks may have the same key.

    Examples
    --------
    >>> blocks = BlockStore(size=2)
    >>> one = blocks.open([5, 6, 7, 8])
    >>> for token in [5, 6, 7, 8]:
    ...     blocks.append(one, token, row=100 + token)
    >>> two = blocks.open([5, 6, 7, 9])
    >>> len(two), two[0] is one[0]
    (1, True)
    """

    def __init__(self, size=4, digest=digest):
        self.size, self.digest = size, digest
        self.known = {}

    def open(self, ids):
        """Return the table of known blocks with which a prompt begins.

        They are taken as long as a known block fits: one with the tokens of the prompt, and
        after the same blocks.  At most len(ids) - 1 tokens are taken.

        Parameters
        ----------
        ids : list of int
            The prompt, at least one token.

        Returns
        -------
        list of Block
            A new list.  May be empty.
        """
        table, key = [], 0
        for start in range(0, len(ids) - self.size, self.size):
            tokens = ids[start:start + self.size]
            key = self.digest(key, tokens)
            block = self.known.get(key)
            if not block or block.tokens != tokens or block.before is not (table[-1] if table else None):
                break
            block.users += 1
            table.append(block)
        return table

    def append(self, table, token, row):
        """Add a token and its row to a conversation: to its last block, or to a new one.

        The table changes, and no other table sees anything of it: if another one holds the
        last block as well, this table takes a copy of it and writes there.  The last table
        that holds a block writes in place.

        A block that becomes full gets its `key` and is known from then on.  If an equal block
        is known already (the same tokens, after the same block), the table takes that one in
        place of its own.  If a different block has this key, that one stays, and the new one
        is not known.

        Parameters
        ----------
        table : list of Block
            Changed in place.
        token, row : int
        """
        if not table or len(table[-1].tokens) == self.size:
            table.append(Block(table[-1] if table else None))
            table[-1].users = 1
        elif table[-1].users > 1:
            table[-1].users -= 1
            table[-1] = Block(table[-1].before, table[-1].tokens, table[-1].rows)
            table[-1].users = 1
        block = table[-1]
        block.tokens.append(token)
        block.rows.append(row)
        if len(block.tokens) == self.size:
            block.key = self.digest(block.before.key if block.before else 0, block.tokens)
            same = self.known.setdefault(block.key, block)
            if same is not block and same.tokens == block.tokens and same.before is block.before:
                same.users += 1
                table[-1] = same

    def fork(self, table):
        """Return a second table for a conversation: it holds the same blocks, the last one included.

        Parameters
        ----------
        table : list of Block

        Returns
        -------
        list of Block
            A new list.
        """
        for block in table:
            block.users += 1
        return list(table)

    def close(self, table):
        """A conversation is over: its table becomes empty.  What is known stays known.

        Parameters
        ----------
        table : list of Block
            Changed in place.
        """
        for block in table:
            block.users -= 1
        table.clear()


@ex.wrong("The key of a block is made of its own tokens alone. The same words after another beginning have different rows; under one key, "
          "only the first of them is ever known.")
class OwnTokensOnly(BlockStore):
    def __init__(self, size=4, digest=digest):
        super().__init__(size, lambda key, tokens: digest(0, tokens))


@ex.wrong("Does not compare the tokens when a key is found. Two blocks can have one key, and then a conversation goes on from "
          "somebody else's rows.")
class TrustsTheKey(BlockStore):
    def open(self, ids):
        table, key = [], 0
        for start in range(0, len(ids) - self.size, self.size):
            key = self.digest(key, ids[start:start + self.size])
            if key not in self.known:
                break
            self.known[key].users += 1
            table.append(self.known[key])
        return table


@ex.wrong("Looks at the tokens of the block before, and not at the block. The same words may stand there after another beginning: ask "
          "whether it `is` the block that the table ends with.")
class OneStepBack(BlockStore):
    def open(self, ids):
        table, key = [], 0
        for start in range(0, len(ids) - self.size, self.size):
            tokens = ids[start:start + self.size]
            key = self.digest(key, tokens)
            block = self.known.get(key)
            if not block or block.tokens != tokens or (block.before and block.before.tokens) != (table[-1].tokens if table else None):
                break
            block.users += 1
            table.append(block)
        return table


@ex.wrong("Uses the function `digest` of the file, not the one that it was given. A store is made with a way to compute keys: keep it.")
class OwnDigest(BlockStore):
    def __init__(self, size=4, key=digest):
        super().__init__(size, digest)


@ex.wrong("Compares the tokens of a block, but not what came before it. With one key for two beginnings, the words are right and the rows "
          "are not.")
class ForgetsBefore(BlockStore):
    def open(self, ids):
        table, key = [], 0
        for start in range(0, len(ids) - self.size, self.size):
            key = self.digest(key, ids[start:start + self.size])
            block = self.known.get(key)
            if not block or block.tokens != ids[start:start + self.size]:
                break
            block.users += 1
            table.append(block)
        return table


@ex.wrong("Does not compare when a full block meets a known one with its key. The table then holds rows of another text.")
class MergesByKey(BlockStore):
    def append(self, table, token, row):
        super().append(table, token, row)
        block = table[-1]
        if block.key is not None:
            table[-1] = self.known.get(block.key, block)


@ex.wrong("Lets others find a block that is not full. It grows under their hands: the rows that are added belong to one conversation "
          "alone.")
class SharesTheLast(BlockStore):
    def append(self, table, token, row):
        super().append(table, token, row)
        if len(table[-1].tokens) < self.size:
            self.partial = table[-1]

    def open(self, ids):
        table = super().open(ids)
        block, at = getattr(self, "partial", None), len(table) * self.size
        if block and block.before is (table[-1] if table else None):
            n = len(block.tokens)
            if at + n < len(ids) and block.tokens == ids[at:at + n]:
                table.append(block)
        return table


@ex.wrong("Writes into a block that another table holds as well. Take a copy first, and write there: copy on write.")
class WritesInPlace(BlockStore):
    def append(self, table, token, row):
        if table and len(table[-1].tokens) < self.size:
            users, table[-1].users = table[-1].users, 1
            block = table[-1]
            super().append(table, token, row)
            block.users = users
        else:
            super().append(table, token, row)


@ex.wrong("Copies the last block with every token. A copy is needed once, and only if another table holds the block too; the last one that "
          "holds it may write in place.")
class CopiesAlways(BlockStore):
    def append(self, table, token, row):
        if table and len(table[-1].tokens) < self.size:
            table[-1] = Block(table[-1].before, table[-1].tokens, table[-1].rows)
            table[-1].users = 1
        super().append(table, token, row)


@ex.wrong("A table that took its own copy still counts as a user of the old block. So the last one that holds it copies as well, for "
          "nothing.")
class CountsTwice(BlockStore):
    def append(self, table, token, row):
        old = table[-1] if table else None
        super().append(table, token, row)
        if old is not None and len(old.tokens) < self.size and table[-1] is not old and len(table[-1].tokens) < self.size:
            old.users += 1


@ex.wrong("A copy takes over the number of users of the old block. It is new: one table holds it.")
class InheritsUsers(BlockStore):
    def append(self, table, token, row):
        users = table[-1].users if table and len(table[-1].tokens) < self.size else 1
        super().append(table, token, row)
        if users > 2 and table[-1].key is None:
            table[-1].users = users - 1


@ex.wrong("A copy takes the lists of the old block themselves, so that both are written to.")
class SharesLists(BlockStore):
    def append(self, table, token, row):
        if table and len(table[-1].tokens) < self.size and table[-1].users > 1:
            old = table[-1]
            old.users -= 1
            table[-1] = Block(old.before)
            table[-1].tokens, table[-1].rows, table[-1].users = old.tokens, old.rows, 1
        super().append(table, token, row)


@ex.wrong("Two conversations that compute the same block at the same time keep one each. When the second one becomes full, an equal block is "
          "known: take that one.")
class KeepsBoth(BlockStore):
    def append(self, table, token, row):
        known = dict(self.known)
        before, last = list(table), list(table[-1].tokens) if table else []
        super().append(table, token, row)
        if table[-1].key in known and known[table[-1].key] is table[-1]:
            tokens = [*last, token] if before and len(last) < self.size else [token]
            rows = [*(before[-1].rows if before and len(last) < self.size else []), row]
            own = Block(table[-1].before, tokens, rows[-len(tokens):])
            own.key, own.users = table[-1].key, 1
            table[-1] = own


@ex.wrong("Takes all of the prompt where all of it is known. Its last token has to be run, so the block that holds it cannot be taken "
          "whole.")
class TakesAll(BlockStore):
    def open(self, ids):
        return super().open([*ids, 0])


@ex.wrong("Loses count: a conversation that takes known blocks is one more that holds them. Nobody can say then which blocks may be "
          "written in place, or dropped.")
class LosesCount(BlockStore):
    def open(self, ids):
        table = super().open(ids)
        for block in table:
            block.users -= 1
        return table


@ex.wrong("Forgets a block when the last conversation that holds it is over. The next one that begins like it would have found it: what is "
          "known stays known, until room is needed.")
class ForgetsAtTheEnd(BlockStore):
    def close(self, table):
        held = list(table)
        super().close(table)
        for block in held:
            if not block.users and self.known.get(block.key) is block:
                del self.known[block.key]


@ex.wrong("Gives the same list to two conversations. What one of them adds, the other one says.")
class SameTable(BlockStore):
    def fork(self, table):
        super().fork(table)
        return table


@ex.wrong("Never begins a second block: the first one grows without end. A block holds `size` tokens, then the next one begins.")
class OneBlock(BlockStore):
    def append(self, table, token, row):
        if table and len(table[-1].tokens) >= self.size:
            table[-1].tokens.append(token)
            table[-1].rows.append(row)
        else:
            super().append(table, token, row)


@ex.wrong("Gives a full block its key, and notes it nowhere. Nobody ever finds it.")
class NeverKnown(BlockStore):
    def append(self, table, token, row):
        super().append(table, token, row)
        self.known.clear()


@ex.wrong("A different block under a key is replaced by the newest. What conversations rely on is then found no more.")
class Replaces(BlockStore):
    def append(self, table, token, row):
        super().append(table, token, row)
        if table[-1].key is not None:
            self.known[table[-1].key] = table[-1]


class Shelf:
    """BlockStore under test: conversations with their true rows, told as code."""

    def __init__(self, t, BlockStore, size, key=digest, called="digest"):
        self.t, self.size, self.key, self.made = t, size, key, []
        t.case(f"blocks = BlockStore({size}, {called})")
        self.blocks = t.call(BlockStore, size, key, shown=None)

    def start(self, ids, run=True):
        """Open a prompt, and run what is not known of it."""
        table = self.t.call(self.blocks.open, list(ids), shown=f"t{len(self.made)} = blocks.open({list(ids)})")
        self.t.holds(isinstance(table, list), f"gave {table!r}, expected a list")
        self.made.append((table, list(ids[:len(table) * self.size])))
        cached = len(table) * self.size
        self.t.holds(cached < len(ids), f"{cached} of {len(ids)} tokens are taken, the last one has to be run")
        self.look()
        for token in ids[cached:] if run else ():
            self.add(len(self.made) - 1, token)
        return cached

    def add(self, i, token, look=True):
        """One more token for table i."""
        table, tokens = self.made[i]
        tokens.append(token)
        row = rows_of(tokens)[-1]
        self.t.call(self.blocks.append, table, token, row, shown=f"blocks.append(t{i}, {token}, {row})", changes=True)
        if look:
            self.look()

    def fork(self, i):
        """A second table for table i."""
        table = self.t.call(self.blocks.fork, self.made[i][0], shown=f"t{len(self.made)} = blocks.fork(t{i})", changes=True)
        self.t.holds(isinstance(table, list) and table is not self.made[i][0], "fork gave the same list, expected a new one")
        self.made.append((table, list(self.made[i][1])))
        self.look()

    def close(self, i):
        """A conversation is over."""
        self.t.call(self.blocks.close, self.made[i][0], shown=f"blocks.close(t{i})", changes=True)
        self.t.equal(self.made[i][0], [], f"t{i}")
        self.made[i] = (self.made[i][0], [])
        self.look()

    def look(self):
        """Every table tells its own tokens, with its own rows, in blocks of the right size."""
        for i, (table, tokens) in enumerate(self.made):
            self.t.equal([x for block in table for x in block.tokens], tokens, f"the tokens of t{i}")
            rows = [x for block in table for x in block.rows]
            self.t.holds(rows == rows_of(tokens), f"t{i} has rows of another text")
            sizes, key = [len(block.tokens) for block in table], 0
            for at, block in enumerate(table):
                key = self.key(key, list(block.tokens)) if len(block.tokens) == self.size else None
                self.t.holds(block.key == key, f"t{i}[{at}].key is {block.key}, expected {key}")
                holders = sum(any(block is other for other in held) for held, _ in self.made)
                self.t.holds(block.users == holders, f"t{i}[{at}].users is {block.users}, and {holders} tables hold this block")
            self.t.holds(all(n == self.size for n in sizes[:-1]) and 0 not in sizes and max(sizes, default=0) <= self.size,
                         f"the blocks of t{i} have {sizes} tokens, expected {self.size} each and the rest in the last one")

    def stored(self):
        """How many blocks there are in all tables."""
        return len({id(block) for table, _ in self.made for block in table})


@ex.check("a conversation is cut into blocks")
def cut_into_blocks(BlockStore, t):
    for size in (1, 2, 3):
        for n in range(1, 8):
            shelf = Shelf(t, BlockStore, size)
            shelf.start(list(range(n)))
            t.equal(shelf.stored(), -(-n // size), "the number of blocks")


@ex.check("what begins alike is stored once")
def stored_once(BlockStore, t):
    for size in (2, 3):
        shelf = Shelf(t, BlockStore, size)
        system = list(range(10, 10 + 3 * size))
        for k in range(5):
            cached = shelf.start([*system, k, k])
            t.equal(cached, 3 * size if k else 0, "the number of tokens that were taken")
        t.equal(len({id(table[0]) for table, _ in shelf.made}), 1, "the number of different first blocks")
        t.equal(shelf.stored(), 3 + 5, "the number of blocks of five conversations") if size == 3 else None


@ex.check("a block is found only after the blocks that came before it, and only while it is full")
def with_its_beginning(BlockStore, t):
    shelf = Shelf(t, BlockStore, 2)
    shelf.start([1, 2, 7, 8])
    t.equal(shelf.start([3, 4, 7, 8, 9]), 0, "the number of tokens that were taken")
    t.equal(shelf.start([3, 4, 7, 8, 5]), 4, "the number of tokens that were taken")
    shelf.start([1, 2, 7, 8, 6])
    t.equal(shelf.start([1, 2, 7, 8, 6, 9]), 4, "the number of tokens that were taken")
    t.equal(shelf.start([1, 2, 7, 8]), 2, "the number of tokens that were taken, of a prompt that is known to its end,")
    shelf = Shelf(t, BlockStore, 3)
    shelf.start([1, 2])
    shelf.start([1, 2, 3])
    shelf.add(0, 4)


@ex.check("two blocks with one key are told apart")
def one_key(BlockStore, t):
    for key, called in ((lambda key, tokens: 0, "lambda key, tokens: 0"),
                        (lambda key, tokens: sum(tokens) % 3, "lambda key, tokens: sum(tokens) % 3"),
                        (lambda key, tokens: sum(tokens), "lambda key, tokens: sum(tokens)")):
        shelf = Shelf(t, BlockStore, 2, key, called)
        shelf.start([1, 5, 7])
        shelf.start([2, 4, 7, 3])
        shelf.start([1, 5, 9])
        t.equal(len(shelf.made[2][0]), 2, "the number of blocks of t2")
        t.holds(shelf.made[2][0][0] is shelf.made[0][0][0], "the block that was known first is found no more")
        shelf.start([4, 2, 7, 3, 1])
        shelf.start([2, 4, 7, 3, 1])
    shelf = Shelf(t, BlockStore, 2, lambda key, tokens: 10 * tokens[0] + tokens[1], "lambda key, tokens: 10 * tokens[0] + tokens[1]")
    shelf.start([1, 2, 5, 6])
    shelf.start([3, 4, 7])
    shelf.start([3, 4, 5, 6, 7])


@ex.check("the same words after two beginnings, with one key")
def one_step_back(BlockStore, t):
    shelf = Shelf(t, BlockStore, 2, lambda key, tokens: 10 * key + tokens[0] if tokens[0] < 7 else 0,
                  "lambda key, tokens: 10 * key + tokens[0] if tokens[0] < 7 else 0")
    shelf.start([1, 1, 5, 5, 7, 7])
    shelf.start([2, 2, 5, 5, 8])
    t.equal(shelf.start([2, 2, 5, 5, 7, 7, 9]), 4, "the number of tokens that were taken")


@ex.check("three tables share their last block, and each writes")
def three_writers(BlockStore, t):
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        shelf = Shelf(t, BlockStore, 4)
        shelf.start([1, 2])
        shelf.fork(0)
        shelf.fork(1)
        for i in order:
            shelf.add(i, 50 + i)
        for i in order:
            shelf.add(i, 60)


@ex.check("two tables that share their last block: the first one to write takes a copy, the other one writes in place")
def copy_on_write(BlockStore, t):
    for filled in (1, 2, 4, 5):
        for first in (0, 1):
            shelf = Shelf(t, BlockStore, 3)
            shelf.start(list(range(10, 10 + filled)))
            shelf.fork(0)
            shared = shelf.made[0][0][-1]
            t.holds(shelf.made[1][0][-1] is shared, "fork copies the last block, expected that both tables hold it")
            shelf.add(first, 50, look=False)
            place = (filled - 1) // 3
            t.holds(shelf.made[first][0][place] is not shared, f"t{first} writes into a block that t{1 - first} holds as well")
            shelf.look()
            shelf.add(1 - first, 60)
            t.holds(shelf.made[1 - first][0][place] is shared, "the last table that holds a block does not write in place")
            t.equal(shelf.stored(), 2 + place, "the number of blocks")


@ex.check("a block that no other table holds is written in place")
def in_place(BlockStore, t):
    for size in (3, 4):
        shelf = Shelf(t, BlockStore, size)
        shelf.start([1])
        block = shelf.made[0][0][0]
        for token in range(2, size):
            shelf.add(0, token)
            t.holds(shelf.made[0][0][0] is block, "the table has a new block, expected the one that it had")


@ex.check("when a conversation is over, its blocks are still known")
def after_the_end(BlockStore, t):
    shelf = Shelf(t, BlockStore, 2)
    shelf.start([1, 2, 3, 4, 5])
    shelf.fork(0)
    first = shelf.made[0][0][0]
    shelf.close(0)
    shelf.close(1)
    t.equal(shelf.start([1, 2, 3, 4, 6]), 4, "the number of tokens that were taken")
    t.holds(shelf.made[2][0][0] is first, "the first block is a different one than before")


@ex.check("conversations that grow side by side meet again in a block that is known")
def side_by_side(BlockStore, t):
    for size in (2, 3):
        shelf = Shelf(t, BlockStore, size)
        shelf.start([1])
        shelf.start([1])
        for token in range(20, 20 + 2 * size - 1):
            shelf.add(0, token)
            shelf.add(1, token)
        t.equal(shelf.stored(), 2, "the number of blocks of two equal conversations")


@ex.check("hundreds of calls: every table has the rows of its own tokens")
def many_calls(BlockStore, t):
    for key, called in ((digest, "digest"), (lambda key, tokens: (key + tokens[0]) % 4, "lambda key, tokens: (key + tokens[0]) % 4")):
        for size in (1, 2, 3):
            shelf = Shelf(t, BlockStore, size, key, called)
            shelf.start([1])
            for _ in range(45):
                del t.story[1:]
                i, dice = int(t.rng.integers(len(shelf.made))), t.rng.random()
                if dice < 0.65:
                    shelf.add(i, int(t.rng.integers(2)))
                elif dice < 0.8:
                    shelf.fork(i)
                elif dice < 0.85:
                    shelf.close(i)
                else:
                    shelf.start([*shelf.made[i][1], int(t.rng.integers(2))][:12])


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch12.append",
    title="A file that survives",
    points=15,
    level="hard",
    section="12.7",
    hints=[
        "`reopen` reads as many records as the counter says, and not one more. Each must continue the seal of the record before "
        "it. At the first one that does not, it stops: what came before is good.",
        "`append` first asks what the file holds (`reopen`). What the file and the conversation have in common stays. Everything "
        "after it is written, at its place: HEAD + number * RECORD.",
        "The chain goes on from the seal of the last record that stays. Seal those that stay once more, to find it: `record` gives "
        "the 12 bytes and the new seal.",
        "The counter comes last. It is also what makes the file shorter: when a turn was taken back and nothing new was said, the counter "
        "is all that is written.",
    ],
)

HEAD = given(32)
RECORD = given(12)
START = given(12345)


@given
def record(seal, token, row):
    """The 12 bytes of a record after one with this seal (START for the first), and its own seal."""
    body = struct.pack("<II", token, row)
    seal = zlib.crc32(body, seal)
    return body + struct.pack("<I", seal), seal


@given
def unpack(seal, data):
    """(token, row, its seal) of a record, or None if these bytes do not continue the seal before."""
    if len(data) != RECORD or zlib.crc32(data[:8], seal) != struct.unpack("<I", data[8:])[0]:
        return None
    return struct.unpack("<III", data)


@given
def read_count(file):
    """The counter: how many records the file says it has.

    It stands in two places of the head, which are written by turns.  A crash while one of them is
    written leaves the other, so the counter is the old one or the new one, never a mixture.
    """
    return max(_places(file))[1]


@given
def write_count(file, count):
    """Write the counter, into the older of its two places."""
    places = _places(file)
    number, place = max(places)[0] + 1, places.index(min(places))
    body = struct.pack("<II", number, count)
    file.seek(16 * place)
    file.write(body + struct.pack("<I", zlib.crc32(body)))


@given
def _places(file):
    """[(number, count), ...] of the two places; (0, 0) for one that is torn or empty."""
    found = []
    for place in (0, 16):
        file.seek(place)
        data = file.read(12)
        whole = len(data) == 12 and zlib.crc32(data[:8]) == struct.unpack("<I", data[8:])[0]
        found.append(struct.unpack("<II", data[:8]) if whole else (0, 0))
    return found


@ex.solution
def reopen(file):
    """Read the conversation that a file holds, whatever happened to it.

    Records are read as long as the counter says and each continues the seal of the record
    before it.  The first one that is torn, stale or foreign ends the conversation: it and
    everything after it is not read.

    Parameters
    ----------
    file : binary file, open for reading and writing
        HEAD bytes with the counter, then records of RECORD bytes.  It may be empty, and it
        may end anywhere.

    Returns
    -------
    (tokens, rows)
        Two lists of int, as long as each other.
    """
    count = read_count(file)
    seal, tokens, rows = START, [], []
    file.seek(HEAD)
    for _ in range(count):
        found = unpack(seal, file.read(RECORD))
        if found is None:
            break
        token, row, seal = found
        tokens.append(token)
        rows.append(row)
    return tokens, rows


@ex.solution
def append(file, tokens, rows):
    """Let a file hold a conversation, and write only what it does not hold yet.

    What the file and the conversation have in common at the beginning stays.  The
    conversation may be longer than what the file holds, shorter (a turn was taken back), or
    different from some token on (a turn was edited).

    The write may be cut off at any byte.  `reopen` must then find a beginning of the old
    conversation or of the new one, and at least what both have in common.

    Parameters
    ----------
    file : binary file, open for reading and writing
        See `reopen`.  Its `write` takes bytes.  It need not be cut: what lies after the last
        record that counts does not matter.
    tokens, rows : list of int
        The whole conversation, from its first token on.  A row depends on the tokens up to
        its own.

    Examples
    --------
    >>> import io
    >>> file = io.BytesIO()
    >>> append(file, [7, 8], [70, 80])
    >>> append(file, [7, 8, 9], [70, 80, 90])
    >>> reopen(file), len(file.getvalue()) == HEAD + 3 * RECORD
    (([7, 8, 9], [70, 80, 90]), True)
    """
    held, _ = reopen(file)
    keep = 0
    while keep < min(len(held), len(tokens)) and held[keep] == tokens[keep]:
        keep += 1
    seal, data = START, []
    for i, (token, row) in enumerate(zip(tokens, rows)):
        written, seal = record(seal, token, row)
        if i >= keep:
            data.append(written)
    file.seek(HEAD + keep * RECORD)
    file.write(b"".join(data))
    if len(tokens) != read_count(file):
        write_count(file, len(tokens))


@ex.wrong("Writes the counter first. In between, it counts records that are not written yet. Where an undone turn left old records "
          "there, they come back to life: their seals are in order.", replaces="append")
def counter_first(file, tokens, rows):
    held, _ = reopen(file)
    keep = 0
    while keep < min(len(held), len(tokens)) and held[keep] == tokens[keep]:
        keep += 1
    seal, data = START, []
    for i, (token, row) in enumerate(zip(tokens, rows)):
        written, seal = record(seal, token, row)
        if i >= keep:
            data.append(written)
    if len(tokens) != read_count(file):
        write_count(file, len(tokens))
    if data:
        file.seek(HEAD + keep * RECORD)
        file.write(b"".join(data))


@ex.wrong("Trusts the counter: reads that many records without a look at their seals. What was torn or is stale becomes part of the "
          "conversation.", replaces="reopen")
def trusts_the_counter(file):
    count = read_count(file)
    file.seek(HEAD)
    data = file.read(count * RECORD)
    whole = [data[i:i + RECORD] for i in range(0, len(data) - RECORD + 1, RECORD)]
    found = [struct.unpack("<III", piece) for piece in whole]
    return [token for token, _, _ in found], [row for _, row, _ in found]


@ex.wrong("Gives up at a torn tail: everything is lost, for one record that is not whole. What came before it is good; stop there.",
          replaces="reopen")
def all_is_lost(file):
    count = read_count(file)
    seal, tokens, rows = START, [], []
    file.seek(HEAD)
    for _ in range(count):
        found = unpack(seal, file.read(RECORD))
        if found is None:
            return [], []
        token, row, seal = found
        tokens.append(token)
        rows.append(row)
    return tokens, rows


@ex.wrong("Does not stop at a record that is broken, and reads on after it. No record after a hole belongs to the text before "
          "the hole.", replaces="reopen")
def reads_on(file):
    count = read_count(file)
    seal, tokens, rows = START, [], []
    file.seek(HEAD)
    for _ in range(count):
        data = file.read(RECORD)
        if len(data) < RECORD:
            break
        token, row, after = struct.unpack("<III", data)
        if unpack(seal, data) is not None:
            tokens.append(token)
            rows.append(row)
        seal = after
    return tokens, rows


@ex.wrong("Leaves out a record that does not fit, and looks for one that does. The first one that does not fit is the end.", replaces="reopen")
def skips_it(file):
    count = read_count(file)
    seal, tokens, rows = START, [], []
    file.seek(HEAD)
    for _ in range(count):
        found = unpack(seal, file.read(RECORD))
        if found is None:
            continue
        token, row, seal = found
        tokens.append(token)
        rows.append(row)
    return tokens, rows


@ex.wrong("Does not look at the counter: reads as long as the chain holds. After a turn was taken back, its records still lie there, "
          "with seals in order. Only the counter says that they are no longer meant.", replaces="reopen")
def without_the_counter(file):
    seal, tokens, rows = START, [], []
    file.seek(HEAD)
    while (found := unpack(seal, file.read(RECORD))) is not None:
        token, row, seal = found
        tokens.append(token)
        rows.append(row)
    return tokens, rows


@ex.wrong("After a rollback it continues the chain from the last record that the file held, not from the last one that stays. The new "
          "records follow on nothing.", replaces="append")
def wrong_link(file, tokens, rows):
    held, old = reopen(file)
    keep = 0
    while keep < min(len(held), len(tokens)) and held[keep] == tokens[keep]:
        keep += 1
    seal, data = START, []
    for token, row in zip(held, old):
        _, seal = record(seal, token, row)
    for token, row in zip(tokens[keep:], rows[keep:]):
        written, seal = record(seal, token, row)
        data.append(written)
    if data:
        file.seek(HEAD + keep * RECORD)
        file.write(b"".join(data))
    if len(tokens) != read_count(file):
        write_count(file, len(tokens))


@ex.wrong("Begins a new chain at every append. Then nothing ties the new records to the ones before them, and `reopen` stops there.",
          replaces="append")
def new_chain(file, tokens, rows):
    held, _ = reopen(file)
    keep = 0
    while keep < min(len(held), len(tokens)) and held[keep] == tokens[keep]:
        keep += 1
    seal, data = START, []
    for token, row in zip(tokens[keep:], rows[keep:]):
        written, seal = record(seal, token, row)
        data.append(written)
    if data:
        file.seek(HEAD + keep * RECORD)
        file.write(b"".join(data))
    if len(tokens) != read_count(file):
        write_count(file, len(tokens))


@ex.wrong("Compares lengths, not tokens. An edited turn is as long as the old one, or longer: its first records would stay those of the old "
          "text.", replaces="append")
def by_length(file, tokens, rows):
    held, _ = reopen(file)
    keep = min(len(held), len(tokens))
    seal, data = START, []
    for i, (token, row) in enumerate(zip(tokens, rows)):
        written, seal = record(seal, token, row)
        if i >= keep:
            data.append(written)
    if data:
        file.seek(HEAD + keep * RECORD)
        file.write(b"".join(data))
    if len(tokens) != read_count(file):
        write_count(file, len(tokens))


@ex.wrong("Writes at the end of the file. What lies there may be torn, or belong to a turn that was taken back: a record has its place by its "
          "number.", replaces="append")
def at_the_end(file, tokens, rows):
    held, _ = reopen(file)
    keep = 0
    while keep < min(len(held), len(tokens)) and held[keep] == tokens[keep]:
        keep += 1
    seal, data = START, []
    for i, (token, row) in enumerate(zip(tokens, rows)):
        written, seal = record(seal, token, row)
        if i >= keep:
            data.append(written)
    if data:
        file.seek(max(HEAD, file.seek(0, 2)))
        file.write(b"".join(data))
    if len(tokens) != read_count(file):
        write_count(file, len(tokens))


@ex.wrong("Does nothing when nothing new was said. A turn that was taken back has to leave the file as well, and the counter is how it "
          "does.", replaces="append")
def never_shorter(file, tokens, rows):
    held, _ = reopen(file)
    keep = 0
    while keep < min(len(held), len(tokens)) and held[keep] == tokens[keep]:
        keep += 1
    if keep == len(tokens):
        return
    seal, data = START, []
    for i, (token, row) in enumerate(zip(tokens, rows)):
        written, seal = record(seal, token, row)
        if i >= keep:
            data.append(written)
    file.seek(HEAD + keep * RECORD)
    file.write(b"".join(data))
    if len(tokens) != read_count(file):
        write_count(file, len(tokens))


@ex.wrong("Writes the whole conversation each time. It costs more with every turn, and a crash finds more to tear.", replaces="append")
def everything(file, tokens, rows):
    seal, data = START, []
    for token, row in zip(tokens, rows):
        written, seal = record(seal, token, row)
        data.append(written)
    file.seek(HEAD)
    file.write(b"".join(data))
    if len(tokens) != read_count(file):
        write_count(file, len(tokens))


class Cut(BaseException):
    """The machine stops in the middle of a write."""


class Disk(io.BytesIO):
    """A file that stops taking bytes after some of them, as when the machine stops."""

    def __init__(self, data=b"", left=None):
        super().__init__(data)
        self.left, self.written = left, 0

    def write(self, data):
        data = bytes(data)
        if self.left is None or len(data) <= self.left:
            self.left = self.left if self.left is None else self.left - len(data)
            self.written += len(data)
            return super().write(data)
        super().write(data[:self.left])
        raise Cut


def kept(t, mine, data, shown="tokens, rows = reopen(file)"):
    """What a file holds by the learner's `reopen`: tokens, whose rows are the right ones."""
    got = t.call(mine.reopen, Disk(data), shown=shown)
    t.holds(isinstance(got, tuple) and len(got) == 2, f"reopen gives {got!r}, expected (tokens, rows)")
    tokens, rows = got
    t.holds(isinstance(tokens, list) and isinstance(rows, list), f"reopen gives {got!r}, expected two lists")
    t.holds(rows == rows_of(tokens), f"the rows {rows} are not those of the tokens {tokens}")
    return tokens


def store(t, mine, data, tokens, left=None):
    """The bytes of a file after an append, or after as much of it as `left` bytes allow."""
    file = Disk(data, left)
    ends = "" if left is None else f"    # the machine stops after {left} bytes"
    try:
        t.call(mine.append, file, tokens, rows_of(tokens), shown=f"append(file, {tokens}, their rows){ends}")
    except LearnerError as caught:
        if not isinstance(caught.error, Cut):
            raise
        return file.getvalue(), True, file.written
    return file.getvalue(), False, file.written


def common(a, b):
    """Length of the common beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


HISTORIES = (
    [[1, 2], [1, 2, 3]],
    [[], [5]],
    [[1, 2, 3, 4], [1, 2]],
    [[1, 2, 3, 4], [1, 2], [1, 2, 3]],
    [[1, 2, 3, 4], [1, 2], [1, 2, 7, 8]],
    [[1, 2, 3, 4], [1, 2, 7, 8]],
    [[1, 2, 3, 4, 5], [1, 9], [1, 9, 3, 4, 5, 6]],
    [[1, 2, 3], [], [4, 5]],
    [[1, 2, 3, 4], [1, 2, 3, 4]],
)


@ex.check("what was stored is read again: after more was said, after a turn was taken back, after an edit")
def round_trip(mine, t):
    for history in HISTORIES:
        t.case("file is empty")
        data = b""
        for tokens in history:
            data, _, _ = store(t, mine, data, tokens)
            t.equal(kept(t, mine, data), tokens, "tokens")


@ex.check("only what is new is written")
def only_new(mine, t):
    for history in HISTORIES:
        t.case("file is empty")
        data, before = b"", []
        for tokens in history:
            head = max(0, HEAD - len(data))  # zeros in place of a head that is not there yet
            data, _, written = store(t, mine, data, tokens)
            new = len(tokens) - common(before, tokens)
            most = new * RECORD + 12 * (tokens != before) + head
            t.holds(written <= most, f"writes {written} bytes, expected at most {most}: {new} new records and the counter")
            before = tokens


@ex.check("a crash at any byte leaves a beginning of the old conversation or of the new one")
def any_byte(mine, t):
    for history in HISTORIES:
        for left in range(200):
            t.case("file is empty")
            data, cut = b"", False
            for tokens in history[:-1]:
                data, _, _ = store(t, mine, data, tokens)
            old, new = (history[-2], history[-1])
            data, cut, _ = store(t, mine, data, new, left)
            tokens = kept(t, mine, data)
            true = tokens in (old[:len(tokens)], new[:len(tokens)])
            t.holds(true, f"reopen finds {tokens}, which is a beginning of neither {old} nor {new}")
            both = common(old, new)
            t.holds(len(tokens) >= both, f"reopen finds {tokens}; the file and the conversation had {both} tokens in common")
            if not cut:
                break


@ex.check("a file that is cut short or damaged gives what comes before the damage, and never more than the counter says")
def damaged(mine, t):
    tokens = [3, 1, 4, 1, 5, 9]
    t.case("file is empty")
    data, _, _ = store(t, mine, b"", tokens)
    story = list(t.story)
    for n in range(HEAD, len(data)):
        t.case(*story, f"the file is cut to {n} of its {len(data)} bytes")
        t.equal(kept(t, mine, data[:n]), tokens[:(n - HEAD) // RECORD], "tokens")
    for at in range(HEAD, len(data)):
        spoiled = bytearray(data)
        spoiled[at] ^= 1 << at % 8
        t.case(*story, f"one bit of byte {at} is flipped")
        t.equal(kept(t, mine, bytes(spoiled)), tokens[:(at - HEAD) // RECORD], "tokens")
    for n in range(len(tokens)):
        at = HEAD + n * RECORD
        t.case(*story, f"12 zeros are put in at byte {at}")
        t.equal(kept(t, mine, data[:at] + bytes(RECORD) + data[at:]), tokens[:n], "tokens")
    for n in range(len(tokens)):
        file = Disk(data)
        write_count(file, n)
        t.case(*story, f"write_count(file, {n})")
        t.equal(kept(t, mine, file.getvalue()), tokens[:n], "tokens")
    for n in (0, 5, 16):
        t.case(f"a file of {n} zeros")
        t.equal(kept(t, mine, bytes(n)), [], "tokens")


@ex.check("crash after crash, each time going on from what is left")
def again_and_again(mine, t):
    data, old, sure = b"", [], []
    for step in range(150):
        t.case(f"a file after {step} crashes and appends; it holds {old}")
        new = old[:t.rng.integers(0, len(old) + 1)] if t.rng.random() < 0.4 else list(old)
        new = (new + t.rng.integers(0, 3, t.rng.integers(0, 4)).tolist())[:10]
        data, _, _ = store(t, mine, data, new, int(t.rng.integers(0, 60)) if t.rng.random() < 0.7 else None)
        sure = kept(t, mine, data)
        t.holds(sure in (old[:len(sure)], new[:len(sure)]), f"reopen finds {sure}, which is a beginning of neither {old} nor {new}")
        t.holds(len(sure) >= common(old, new), f"reopen finds {sure}; {common(old, new)} tokens were in common")
        old = sure
