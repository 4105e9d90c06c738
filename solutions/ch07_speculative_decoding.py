"""Chapter 07 - Speculative decoding without a draft model.

Somebody guesses the next tokens, and one pass of the model checks the whole guess. You
write the step that does this. Then you make it end where it must, and survive what goes
wrong. You also write a guesser, and you read what the engine reports about its guesses.
All of it runs on a toy first, and on a real model at the end of the chapter.

The toy below is called like the engine: `model.forward(tokens, cache)` returns one row of
scores for each token, `sampler.next(row, history)` chooses a token from a row, and
`cache.truncate(keep)` forgets rows. So code that works here works there.
"""

import random

import numpy as np

from course.exercises import Exercise, given
from course.grading import proving


@given
class InvalidDecodeState(ValueError):
    """History and cache do not belong together: len(history) != cache.len + 1."""


@given
class ToyCache:
    """A KV cache reduced to what decoding sees: one row per token, and a rewind."""

    def __init__(self):
        self.rows = []

    @property
    def len(self):
        """How many rows there are."""
        return len(self.rows)

    def truncate(self, keep):
        """Keep the first `keep` rows; at or above `len` nothing changes."""
        del self.rows[keep:]


@given
class ToyModel:
    """A pretend model over the tokens 0 to 8: a row depends on every row before it.

    `passes` notes how many rows each pass had.  With `fails_at=n` the n-th pass (from 0)
    raises an OSError once it has written `leaves` rows into the cache.
    """

    def __init__(self, fails_at=None, leaves=1):
        self.fails_at = fails_at
        self.leaves = leaves
        self.passes = []

    def forward(self, tokens, cache):
        """One pass: writes a row per token into the cache, returns a row of scores for each.

        Row i holds a score for every token that could follow tokens[i].
        """
        fails = len(self.passes) == self.fails_at
        self.passes.append(len(tokens))
        scores = []
        for i, token in enumerate(tokens):
            if fails and i >= self.leaves:
                break
            cache.rows.append(token)
            scores.append(self.row(cache.rows))
        if fails:
            raise OSError("the machine coughed in the middle of a pass")
        return scores

    def row(self, rows):
        """A score for each of the nine tokens that could come after these rows."""
        seen = 7
        for row in rows:
            seen = (31 * seen + row + 7) % 1009
        return np.array([(seen + 17) * (37 * t + 11) % 1013 / 200 for t in range(9)])


@given
class ToySampler:
    """Chooses a token from a row of scores.

    Temperature 0 takes the best one.  Any other temperature draws one random number per
    token; `draws` counts them.  The last three tokens of `history` lose `penalty` first,
    so it matters which history it is shown.  With `fails_at=n` the n-th choice (from 0)
    raises.
    """

    def __init__(self, temperature=0.0, seed=0, penalty=0.0, fails_at=None):
        self.temperature, self.penalty, self.fails_at = temperature, penalty, fails_at
        self.random = random.Random(seed)
        self.draws = 0
        self.choices = 0

    def next(self, row, history):
        """The next token."""
        if self.choices == self.fails_at:
            raise ValueError("no token is allowed here")
        self.choices += 1
        scores = np.array(row, dtype=float)
        scores[list(set(history[-3:]))] -= self.penalty
        if self.temperature == 0:
            return int(scores.argmax())
        self.draws += 1
        edges = np.cumsum(np.exp((scores - scores.max()) / self.temperature))
        return int(np.searchsorted(edges, self.random.random() * edges[-1], side="right"))


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch07.verify",
    title="Verify a draft in one pass",
    points=15,
    level="medium",
    section="07.2",
    hints=[
        "The pass needs the newest token of the history as well, since its row is not in the cache yet. So 1 + len(draft) "
        "tokens go in, and row 0 says what comes after the newest token.",
        "Go through the rows in order. Each time, let the sampler choose, append the choice to the history, and only then "
        "compare it with the draft. Is there a drafted token for the last row?",
        "Leave the loop when the rows are used up (that choice was the bonus), or when the choice is not the drafted "
        "token (it was the correction). Later rows stay unread.",
        "Whatever happened, the cache must end with the rows of all tokens of the history but the newest.",
    ],
)


@ex.solution
def verify_step(model, cache, history, draft, sampler):
    """One step of decoding that checks a draft; returns how many tokens it committed.

    A single pass runs the newest token of the history and the whole draft.  Then the
    sampler chooses a token from the first row.  It goes on with the next row as long as
    its choice is the drafted token.  Every choice is committed: it is appended to the
    history before the next one is made.

    The sampler sees one row for each token that is committed, and no others.  With an
    empty draft this is a plain step.

    Parameters
    ----------
    model : object with `forward(tokens, cache)`
        Writes one row per token into the cache, and returns one row of scores per token.
    cache : object with `len` and `truncate(keep)`
    history : list of int
        Committed tokens, prompt included; grows in place.
    draft : list of int
        A guess at what follows the history.  Not changed.
    sampler : object with `next(row, history)`, which returns a token

    Returns
    -------
    int
        How many tokens were appended to the history, at least 1.  Afterwards
        len(history) == cache.len + 1 again.

    Raises
    ------
    InvalidDecodeState
        At the start, when len(history) != cache.len + 1; nothing has been touched.

    Examples
    --------
    >>> cache, history = ToyCache(), [5]
    >>> verify_step(ToyModel(), cache, history, [], ToySampler())
    1
    >>> len(history), cache.len
    (2, 1)
    """
    if len(history) != cache.len + 1:
        raise InvalidDecodeState(f"{len(history)} tokens of history and {cache.len} rows in the cache")
    before = len(history)
    rows = model.forward([history[-1], *draft], cache)
    for i, row in enumerate(rows):
        token = sampler.next(row, history)
        history.append(token)
        if i == len(draft) or token != draft[i]:
            break
    cache.truncate(len(history) - 1)
    return len(history) - before


@ex.wrong("Forgets the carried token. The newest token of the history has no row yet: it goes into the pass before the "
          "draft. Without it every row stands one place too early.")
def forgets_carried(model, cache, history, draft, sampler):
    if len(history) != cache.len + 1:
        raise InvalidDecodeState("state")
    before = len(history)
    rows = model.forward(list(draft), cache)
    for i, row in enumerate(rows):
        token = sampler.next(row, history)
        history.append(token)
        if token != draft[i]:
            break
    cache.truncate(len(history) - 1)
    return len(history) - before


@ex.wrong("Rejected rows stay in the cache. They belong to tokens that were never said, and the next pass looks back "
          "at them. Rewind before you return.")
def keeps_rejected(model, cache, history, draft, sampler):
    if len(history) != cache.len + 1:
        raise InvalidDecodeState("state")
    before = len(history)
    for i, row in enumerate(model.forward([history[-1], *draft], cache)):
        history.append(sampler.next(row, history))
        if i == len(draft) or history[-1] != draft[i]:
            break
    return len(history) - before


@ex.wrong("Rewinds to len(history) rows, one too many: the newest token is a correction or a bonus, and the row at its "
          "place belongs to another token, or to none.")
def rewinds_too_little(model, cache, history, draft, sampler):
    if len(history) != cache.len + 1:
        raise InvalidDecodeState("state")
    before = len(history)
    for i, row in enumerate(model.forward([history[-1], *draft], cache)):
        history.append(sampler.next(row, history))
        if i == len(draft) or history[-1] != draft[i]:
            break
    cache.truncate(len(history))
    return len(history) - before


@ex.wrong("Samples every row first, and compares afterwards. The tokens may be right, but random numbers were drawn "
          "for rows that nobody wanted, so all later draws differ from plain decoding. Stop at the first row that "
          "does not agree.")
def samples_everything_first(model, cache, history, draft, sampler):
    if len(history) != cache.len + 1:
        raise InvalidDecodeState("state")
    before = len(history)
    rows = model.forward([history[-1], *draft], cache)
    chosen = [sampler.next(row, history + draft[:i]) for i, row in enumerate(rows)]
    for i, token in enumerate(chosen):
        history.append(token)
        if i == len(draft) or token != draft[i]:
            break
    cache.truncate(len(history) - 1)
    return len(history) - before


@ex.wrong("Goes on after a mismatch. The later rows look back at a drafted token that was just rejected: they say what "
          "would come in a different text.")
def goes_on(model, cache, history, draft, sampler):
    if len(history) != cache.len + 1:
        raise InvalidDecodeState("state")
    before = len(history)
    for row in model.forward([history[-1], *draft], cache):
        history.append(sampler.next(row, history))
    cache.truncate(len(history) - 1)
    return len(history) - before


@ex.wrong("Takes the bonus for the correction. At a mismatch the correction is the choice that has just been made, on "
          "the row that disagrees. The last row is of use only when the whole draft was accepted.")
def bonus_for_correction(model, cache, history, draft, sampler):
    if len(history) != cache.len + 1:
        raise InvalidDecodeState("state")
    before = len(history)
    rows = model.forward([history[-1], *draft], cache)
    for i, row in enumerate(rows[:-1]):
        token = sampler.next(row, history)
        if token != draft[i]:
            break
        history.append(token)
    history.append(sampler.next(rows[-1], history))
    cache.truncate(len(history) - 1)
    return len(history) - before


@ex.wrong("Commits the drafted token where the sampler chose a different one. A draft is a guess; what is committed is "
          "always the sampler's choice.")
def keeps_the_guess(model, cache, history, draft, sampler):
    if len(history) != cache.len + 1:
        raise InvalidDecodeState("state")
    before = len(history)
    for i, row in enumerate(model.forward([history[-1], *draft], cache)):
        token = sampler.next(row, history)
        history.append(draft[i] if i < len(draft) else token)
        if i == len(draft) or token != draft[i]:
            break
    cache.truncate(len(history) - 1)
    return len(history) - before


@ex.wrong("Loses the bonus. When the whole draft was accepted, there is one more row, and its token is free. Without a "
          "draft it is the only one.")
def loses_bonus(model, cache, history, draft, sampler):
    if len(history) != cache.len + 1:
        raise InvalidDecodeState("state")
    before = len(history)
    rows = model.forward([history[-1], *draft], cache)
    for row, guess in zip(rows, draft):
        history.append(sampler.next(row, history))
        if history[-1] != guess:
            break
    cache.truncate(len(history) - 1)
    return len(history) - before


@ex.wrong("Loses the correction. At a mismatch the sampler has chosen a token, and it is a good one. Commit it like "
          "any other, so that even the worst draft costs no token.")
def loses_correction(model, cache, history, draft, sampler):
    if len(history) != cache.len + 1:
        raise InvalidDecodeState("state")
    before = len(history)
    for i, row in enumerate(model.forward([history[-1], *draft], cache)):
        token = sampler.next(row, history)
        if i < len(draft) and token != draft[i]:
            break
        history.append(token)
    cache.truncate(len(history) - 1)
    return len(history) - before


@ex.wrong("Shows the sampler the old history for every row. Penalties look at all tokens so far, the accepted ones "
          "included. Append each choice before you ask for the next.")
def old_history(model, cache, history, draft, sampler):
    if len(history) != cache.len + 1:
        raise InvalidDecodeState("state")
    old = list(history)
    for i, row in enumerate(model.forward([history[-1], *draft], cache)):
        history.append(sampler.next(row, old))
        if i == len(draft) or history[-1] != draft[i]:
            break
    cache.truncate(len(history) - 1)
    return len(history) - len(old)


@ex.wrong("Runs each row in a pass of its own. The tokens are right, but every pass reads all the weights, so "
          "nothing was gained. All rows share one pass.")
def one_by_one(model, cache, history, draft, sampler):
    if len(history) != cache.len + 1:
        raise InvalidDecodeState("state")
    before = len(history)
    rows = [model.forward([token], cache)[0] for token in [history[-1], *draft]]
    for i, row in enumerate(rows):
        history.append(sampler.next(row, history))
        if i == len(draft) or history[-1] != draft[i]:
            break
    cache.truncate(len(history) - 1)
    return len(history) - before


@ex.wrong("Starts without a look at the promise. If it is broken already, all rows land at wrong positions: raise "
          "InvalidDecodeState before anything is touched.")
def unchecked(model, cache, history, draft, sampler):
    before = len(history)
    for i, row in enumerate(model.forward([history[-1], *draft], cache)):
        history.append(sampler.next(row, history))
        if i == len(draft) or history[-1] != draft[i]:
            break
    cache.truncate(len(history) - 1)
    return len(history) - before


@ex.wrong("Writes into the draft. It belongs to the drafter, who may still look at it: make a list of your own.")
def spoils_the_draft(model, cache, history, draft, sampler):
    if len(history) != cache.len + 1:
        raise InvalidDecodeState("state")
    before = len(history)
    draft.insert(0, history[-1])
    for i, row in enumerate(model.forward(draft, cache)):
        history.append(sampler.next(row, history))
        if i + 1 == len(draft) or history[-1] != draft[i + 1]:
            break
    cache.truncate(len(history) - 1)
    return len(history) - before


@ex.wrong("A plain step, without a draft, is taken whatever the state is. The promise is looked at before every step.")
def trusts_a_plain_step(model, cache, history, draft, sampler):
    if not draft:
        history.append(sampler.next(model.forward([history[-1]], cache)[0], history))
        return 1
    if len(history) != cache.len + 1:
        raise InvalidDecodeState("no")
    before = len(history)
    for i, row in enumerate(model.forward([history[-1], *draft], cache)):
        history.append(sampler.next(row, history))
        if i == len(draft) or history[-1] != draft[i]:
            break
    cache.truncate(len(history) - 1)
    return len(history) - before


@ex.wrong("The beginning of a long draft is verified, the rest is left out. How long a draft is worth its pass is for those to say "
          "who draft: the pass runs the whole of it.")
def verifies_the_beginning(model, cache, history, draft, sampler):
    if len(history) != cache.len + 1:
        raise InvalidDecodeState("no")
    before, draft = len(history), draft[:8]
    for i, row in enumerate(model.forward([history[-1], *draft], cache)):
        history.append(sampler.next(row, history))
        if i == len(draft) or history[-1] != draft[i]:
            break
    cache.truncate(len(history) - 1)
    return len(history) - before


@ex.wrong("Compares with `is not`. That asks whether two are the same object; small numbers happen to be, tokens from a vocabulary of "
          "50000 are not. Use `!=`.")
def asks_for_the_same_object(model, cache, history, draft, sampler):
    if len(history) != cache.len + 1:
        raise InvalidDecodeState("no")
    before = len(history)
    for i, row in enumerate(model.forward([history[-1], *draft], cache)):
        history.append(sampler.next(row, history))
        if i == len(draft) or history[-1] is not draft[i]:
            break
    cache.truncate(len(history) - 1)
    return len(history) - before


@ex.wrong("An error of the pass is swallowed, and the step says that it committed nothing. The caller then asks again and again: let "
          "it go on.")
def says_nothing(model, cache, history, draft, sampler):
    if len(history) != cache.len + 1:
        raise InvalidDecodeState("no")
    before = len(history)
    try:
        rows = model.forward([history[-1], *draft], cache)
    except Exception:
        return 0
    for i, row in enumerate(rows):
        history.append(sampler.next(row, history))
        if i == len(draft) or history[-1] != draft[i]:
            break
    cache.truncate(len(history) - 1)
    return len(history) - before


PROMPTS = ([5], [1, 2], [3, 1, 4, 1, 5])
# (drafted, how many of them are right), the telling cases first
DRAFTS = ((2, 0), (1, 0), (1, 1), (2, 1), (3, 1), (2, 2), (4, 3), (4, 4), (20, 17))


def prefilled(prompt):
    """A cache that holds all of a prompt but its last token, and its history."""
    cache = ToyCache()
    cache.rows += prompt[:-1]
    return cache, list(prompt)


def plain(prompt, n, sampler=None):
    """The n tokens that plain decoding adds to a prompt; it reads everything again for each."""
    tokens, sampler = list(prompt), sampler or ToySampler()
    for _ in range(n):
        tokens.append(sampler.next(ToyModel().row(tokens), tokens))
    return tokens[len(prompt):]


def guess(want, n, right):
    """n drafted tokens of which the first `right` are what will be said."""
    return [token if i < right else (token + 1) % 9 for i, token in enumerate(want[:n])]


def told(prompt, draft, right):
    """A case as a learner would type it."""
    rows = "1 row" if len(prompt) == 2 else f"{len(prompt) - 1} rows"
    return (f"history = {prompt}; the cache holds {rows}", f"draft = {draft}      # {right} of {len(draft)} right")


def one_step(verify_step, t, prompt, n, right):
    """One greedy step with a draft; returns what there is to look at."""
    want = plain(prompt, n + 1)
    draft = guess(want, n, right)
    (cache, history), model = prefilled(prompt), ToyModel()
    given = list(draft)
    t.case(*told(prompt, draft, right))
    count = t.call(verify_step, model, cache, history, given, ToySampler(), changes=True,
                   shown="verify_step(model, cache, history, draft, ToySampler())")
    t.equal(given, draft, "draft afterwards")
    return want, cache, history, model, count


@ex.check("an empty draft makes a plain step: one token")
def plain_step(verify_step, t):
    for prompt in PROMPTS:
        want, cache, history, _, count = one_step(verify_step, t, prompt, 0, 0)
        t.equal(count, 1, "the result")
        t.equal(history, prompt + want, "history")
        t.equal(cache.rows, prompt, "the list of rows in the cache")


@ex.check("greedy: n right guesses commit n + 1 tokens, those of plain decoding")
def commits(verify_step, t):
    for prompt in PROMPTS:
        for n, right in DRAFTS:
            want, _, history, _, count = one_step(verify_step, t, prompt, n, right)
            t.equal(history, prompt + want[:right + 1], "history")
            t.equal(count, right + 1, "the result")


@ex.check("afterwards the cache holds the rows of all tokens but the newest")
def rewinds(verify_step, t):
    for prompt in PROMPTS:
        for n, right in DRAFTS:
            _, cache, history, _, _ = one_step(verify_step, t, prompt, n, right)
            t.equal(cache.rows, history[:-1], f"the list of rows in the cache (history is {history})")


@ex.check("a step is one pass, of 1 + len(draft) rows")
def one_pass(verify_step, t):
    for prompt in PROMPTS:
        for n, right in ((0, 0), *DRAFTS):
            _, _, _, model, _ = one_step(verify_step, t, prompt, n, right)
            t.equal(model.passes, [1 + n], "rows of each pass")


def many_steps(verify_step, t, temperature, penalty):
    """Steps with drafts of all sorts: text, draws and cache are those of plain decoding."""
    for seed in range(4):
        prompt = PROMPTS[seed % 3]
        settings = f"ToySampler(temperature={temperature}, seed={seed}, penalty={penalty})"
        sampler = ToySampler(temperature, seed, penalty)
        want = prompt + plain(prompt, 40, ToySampler(temperature, seed, penalty))
        (cache, history), model = prefilled(prompt), ToyModel()
        t.case(told(prompt, [], 0)[0], f"sampler = {settings}")
        for _ in range(6):
            n = int(t.rng.integers(0, 5))
            draft = guess(want[len(history):], n, int(t.rng.integers(0, n + 1)))
            at = len(history)
            count = t.call(verify_step, model, cache, history, list(draft), sampler, changes=True,
                           shown=f"verify_step(model, cache, history, {draft}, sampler)")
            t.equal(history[at:], want[at:len(history)], "what was committed")
            t.holds(count == len(history) - at > 0, f"the result is {count!r}, {len(history) - at} tokens were committed")
            t.equal(cache.rows, history[:-1], "the list of rows in the cache")
            if temperature:
                t.holds(sampler.draws == len(history) - len(prompt),
                        f"{sampler.draws} random draws for {len(history) - len(prompt)} committed tokens")


class OwnToken(int):
    """A token that is an object of its own, as large numbers are in Python: equal to others, and none of them."""


@ex.check("tokens are compared by their values; an error goes on to the caller")
def by_value(verify_step, t):
    for prompt in PROMPTS:
        want = plain(prompt, 4)
        (cache, history), draft = prefilled(prompt), [OwnToken(token) for token in want[:3]]
        t.case(*told(prompt, want[:3], 3), "draft = [OwnToken(token) for token in draft]      # equal, and not the same objects")
        t.call(verify_step, ToyModel(), cache, history, draft, ToySampler(), changes=True,
               shown="verify_step(model, cache, history, draft, ToySampler())")
        t.equal(history, prompt + want, "history")
    for model, sampler, error, shown in ((ToyModel(0), ToySampler(), "OSError", "ToyModel(fails_at=0), cache, history, [1], ToySampler()"),
                                         (ToyModel(), ToySampler(fails_at=0), "ValueError",
                                          "ToyModel(), cache, history, [1], ToySampler(fails_at=0)")):
        cache, history = prefilled([5])
        t.case("history = [5]; the cache holds 0 rows")
        t.raises(error, verify_step, model, cache, history, [1], sampler, shown=f"verify_step({shown})")


@ex.check("the sampler sees the history with the accepted tokens in it")
def with_penalty(verify_step, t):
    many_steps(verify_step, t, 0.0, 3.0)


@ex.check("sampled: the tokens of plain decoding, and one random draw per committed token")
def sampled(verify_step, t):
    many_steps(verify_step, t, 1.0, 0.0)
    many_steps(verify_step, t, 0.7, 1.5)


@ex.check("a promise that is broken at the start is InvalidDecodeState, and nothing is touched")
def refuses(verify_step, t):
    for rows, tokens in ((1, 1), (0, 2), (3, 2), (2, 2)):
        for draft in ([4, 4], []):
            cache, history, model = prefilled(list(range(rows + 1)))[0], list(range(tokens)), ToyModel()
            t.case(f"history = {history}; the cache holds {rows} rows")
            t.raises("InvalidDecodeState", verify_step, model, cache, history, list(draft), ToySampler(),
                     shown=f"verify_step(model, cache, history, {draft}, ToySampler())")
            t.holds(not model.passes and cache.len == rows and len(history) == tokens,
                    "model, cache or history were touched before the error")


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch07.mid_step",
    title="A step that can end, and fail",
    points=20,
    level="hard",
    section="07.6",
    hints=[
        "There are three reasons to leave the row loop: the stop token was chosen, the rows are used up, or the choice is "
        "not the drafted token. Look at the sampler's choice, never at the draft.",
        "Which tokens are settled when an error strikes? All that are in the history by then. How many rows must the "
        "cache hold for them?",
        "The pass, the sampler and emit can all raise, and not every error is an Exception (Ctrl-C is not). One line "
        "repairs the cache after each of them. A quiet step needs the very same line.",
        "`try: ... finally: cache.truncate(len(history) - 1)`. The length of the history is read when the line runs, so "
        "it is right wherever the error struck.",
    ],
)


@ex.solution
def safe_step(model, cache, history, draft, sampler, emit, stop=None):
    """A verify step that can end the turn and survives errors; returns tokens committed.

    It works like `verify_step`: one pass, and every choice is committed while it agrees
    with the draft.  Each token is handed to `emit` right after it was appended to the
    history, before the next row is sampled.

    When the sampler chooses the token `stop`, that token is committed and emitted like
    any other, and the step ends there.  No later row is sampled, however right the draft
    may be.  A drafted `stop`, and what is drafted after it, may be left out of the pass.

    When the pass, the sampler or `emit` raises, the error goes on to the caller, Ctrl-C
    (KeyboardInterrupt) included.  Tokens that are in the history by then stay.

    On every way out the cache holds the rows of all tokens but the newest:
    len(history) == cache.len + 1.  (It does at the start; you need not check that here.)

    Parameters
    ----------
    model : object with `forward(tokens, cache)`
        When it raises, it may have written any number of its rows.
    cache, history, draft, sampler
        As in `verify_step`.
    emit : callable
        Called with each committed token, in order.
    stop : int, optional
        The token that ends a turn.  It may be token 0; None means that there is none.

    Returns
    -------
    int
        How many tokens were appended to the history.

    Examples
    --------
    >>> cache, history, seen = ToyCache(), [5], []
    >>> safe_step(ToyModel(), cache, history, [1, 1], ToySampler(), seen.append)
    1
    >>> history == [5] + seen, cache.len
    (True, 1)
    """
    before = len(history)
    try:
        rows = model.forward([history[-1], *draft], cache)
        for i, row in enumerate(rows):
            token = sampler.next(row, history)
            history.append(token)
            emit(token)
            if token == stop or i == len(draft) or token != draft[i]:
                break
    finally:
        cache.truncate(len(history) - 1)
    return len(history) - before


@ex.wrong("Looks for the stop token when the step is over. If it stood inside the accepted draft, later tokens were "
          "committed too. Look at every choice, at once.")
def never_stops(model, cache, history, draft, sampler, emit, stop=None):
    before = len(history)
    try:
        for i, row in enumerate(model.forward([history[-1], *draft], cache)):
            token = sampler.next(row, history)
            history.append(token)
            emit(token)
            if i == len(draft) or token != draft[i]:
                break
    finally:
        cache.truncate(len(history) - 1)
    return len(history) - before


@ex.wrong("Cuts the history after the stop token when the step is over. The text is right, but later rows were "
          "sampled. Their random numbers are used up, so the next turn differs from plain decoding. Leave the loop "
          "at the stop token.")
def cuts_afterwards(model, cache, history, draft, sampler, emit, stop=None):
    before = len(history)
    try:
        for i, row in enumerate(model.forward([history[-1], *draft], cache)):
            token = sampler.next(row, history)
            history.append(token)
            if stop not in history[before:-1]:
                emit(token)
            if i == len(draft) or token != draft[i]:
                break
    finally:
        if stop in history[before:]:
            del history[history.index(stop, before) + 1:]
        cache.truncate(len(history) - 1)
    return len(history) - before


@ex.wrong("Throws the stop token away. Here it is committed and emitted like any other, as in chapter 05. Whether to "
          "show it is up to the reader.")
def drops_the_stop(model, cache, history, draft, sampler, emit, stop=None):
    before = len(history)
    try:
        for i, row in enumerate(model.forward([history[-1], *draft], cache)):
            token = sampler.next(row, history)
            if token == stop:
                break
            history.append(token)
            emit(token)
            if i == len(draft) or token != draft[i]:
                break
    finally:
        cache.truncate(len(history) - 1)
    return len(history) - before


@ex.wrong("Token 0 never ends the step: `if stop` asks whether the stop token is different from 0, not whether there "
          "is one.")
def zero_is_none(model, cache, history, draft, sampler, emit, stop=None):
    before = len(history)
    try:
        for i, row in enumerate(model.forward([history[-1], *draft], cache)):
            token = sampler.next(row, history)
            history.append(token)
            emit(token)
            if (stop and token == stop) or i == len(draft) or token != draft[i]:
                break
    finally:
        cache.truncate(len(history) - 1)
    return len(history) - before


@ex.wrong("Rewinds only where nothing went wrong. An error jumps over that line, and drafted rows stay in the cache. "
          "What must happen on every way out belongs into a `finally`.")
def only_when_quiet(model, cache, history, draft, sampler, emit, stop=None):
    before = len(history)
    for i, row in enumerate(model.forward([history[-1], *draft], cache)):
        token = sampler.next(row, history)
        history.append(token)
        emit(token)
        if token == stop or i == len(draft) or token != draft[i]:
            break
    cache.truncate(len(history) - 1)
    return len(history) - before


@ex.wrong("Rewinds only where something failed. That was enough in chapter 05, where a quiet step leaves nothing to "
          "clean up. Here a quiet step leaves the rows of rejected drafts: rewind on every way out.")
def only_when_failed(model, cache, history, draft, sampler, emit, stop=None):
    before = len(history)
    try:
        for i, row in enumerate(model.forward([history[-1], *draft], cache)):
            token = sampler.next(row, history)
            history.append(token)
            emit(token)
            if token == stop or i == len(draft) or token != draft[i]:
                break
    except BaseException:
        cache.truncate(len(history) - 1)
        raise
    return len(history) - before


@ex.wrong("Takes the whole step back. But its first tokens were chosen with random numbers that are used up, and "
          "somebody has seen them. What is in the history stays; only the cache is rewound.")
def takes_all_back(model, cache, history, draft, sampler, emit, stop=None):
    before = len(history)
    try:
        for i, row in enumerate(model.forward([history[-1], *draft], cache)):
            token = sampler.next(row, history)
            history.append(token)
            emit(token)
            if token == stop or i == len(draft) or token != draft[i]:
                break
    except BaseException:
        del history[before:]
        cache.truncate(before - 1)
        raise
    cache.truncate(len(history) - 1)
    return len(history) - before


@ex.wrong("Rewinds the cache to its length before the step, although tokens were committed meanwhile: now their rows "
          "are missing. Take the length of the history when you rewind, not before.")
def rewinds_to_the_start(model, cache, history, draft, sampler, emit, stop=None):
    before = len(history)
    try:
        for i, row in enumerate(model.forward([history[-1], *draft], cache)):
            token = sampler.next(row, history)
            history.append(token)
            emit(token)
            if token == stop or i == len(draft) or token != draft[i]:
                break
    except BaseException:
        cache.truncate(before - 1)
        raise
    cache.truncate(len(history) - 1)
    return len(history) - before


@ex.wrong("Drops as many rows as were drafted, counted from the end of the cache. But a pass that failed halfway has "
          "written fewer, and some drafted rows may belong to committed tokens. Count from the history.")
def counts_from_the_end(model, cache, history, draft, sampler, emit, stop=None):
    before = len(history)
    try:
        for i, row in enumerate(model.forward([history[-1], *draft], cache)):
            token = sampler.next(row, history)
            history.append(token)
            emit(token)
            if token == stop or i == len(draft) or token != draft[i]:
                break
    except BaseException:
        cache.truncate(max(0, cache.len - len(draft) - 1))
        raise
    cache.truncate(len(history) - 1)
    return len(history) - before


@ex.wrong("Emits a token before it is in the history. If emit raises, somebody has seen a token that was never said. "
          "Append first, then emit.")
def emits_first(model, cache, history, draft, sampler, emit, stop=None):
    before = len(history)
    try:
        for i, row in enumerate(model.forward([history[-1], *draft], cache)):
            token = sampler.next(row, history)
            emit(token)
            history.append(token)
            if token == stop or i == len(draft) or token != draft[i]:
                break
    finally:
        cache.truncate(len(history) - 1)
    return len(history) - before


@ex.wrong("Emits the tokens when the whole step is done. If the sampler raises in between, settled tokens are never "
          "shown, and emit comes too late to stop anything. Emit each token as soon as it is committed.")
def emits_at_the_end(model, cache, history, draft, sampler, emit, stop=None):
    before = len(history)
    try:
        for i, row in enumerate(model.forward([history[-1], *draft], cache)):
            token = sampler.next(row, history)
            history.append(token)
            if token == stop or i == len(draft) or token != draft[i]:
                break
        for token in history[before:]:
            emit(token)
    finally:
        cache.truncate(len(history) - 1)
    return len(history) - before


@ex.wrong("The error is lost: the caller believes that all went well. A `return` inside `finally` does that, and so "
          "does an `except` without `raise`.")
def swallows(model, cache, history, draft, sampler, emit, stop=None):
    before = len(history)
    try:
        for i, row in enumerate(model.forward([history[-1], *draft], cache)):
            token = sampler.next(row, history)
            history.append(token)
            emit(token)
            if token == stop or i == len(draft) or token != draft[i]:
                break
    except BaseException:
        pass
    cache.truncate(len(history) - 1)
    return len(history) - before


@ex.wrong("Catches Exception only. Ctrl-C is a KeyboardInterrupt, which is no Exception: it passes by, and nothing "
          "is rewound. A `finally` runs for all of them.")
def misses_ctrl_c(model, cache, history, draft, sampler, emit, stop=None):
    before = len(history)
    try:
        for i, row in enumerate(model.forward([history[-1], *draft], cache)):
            token = sampler.next(row, history)
            history.append(token)
            emit(token)
            if token == stop or i == len(draft) or token != draft[i]:
                break
    except Exception:
        cache.truncate(len(history) - 1)
        raise
    cache.truncate(len(history) - 1)
    return len(history) - before


@ex.wrong("What is drafted from `stop` on is deleted from the draft itself. It may be left out of the pass, but the list belongs to "
          "whoever made it: `draft[:draft.index(stop)]` is one of your own.")
def cuts_the_list_itself(model, cache, history, draft, sampler, emit, stop=None):
    before = len(history)
    if stop in draft:
        del draft[draft.index(stop):]
    try:
        for i, row in enumerate(model.forward([history[-1], *draft], cache)):
            token = sampler.next(row, history)
            history.append(token)
            emit(token)
            if token == stop or i == len(draft) or token != draft[i]:
                break
    finally:
        cache.truncate(len(history) - 1)
    return len(history) - before


@ex.wrong("A pass for each token: all is exact, and nothing is saved. A verify step reads the weights once, for the newest token and "
          "the whole draft.")
def a_pass_for_each(model, cache, history, draft, sampler, emit, stop=None):
    before = len(history)
    try:
        for wanted in [*draft, None]:
            token = sampler.next(model.forward([history[-1]], cache)[0], history)
            history.append(token)
            emit(token)
            if token == stop or token != wanted:
                break
    finally:
        cache.truncate(len(history) - 1)
    return len(history) - before


class Listener:
    """An emit that notes what it is given; it may raise at one of the tokens (from 0)."""

    def __init__(self, fails_at=None, error=BrokenPipeError):
        self.seen, self.fails_at, self.error = [], fails_at, error

    def __call__(self, token):
        self.seen.append(token)
        if len(self.seen) - 1 == self.fails_at:
            raise self.error("nobody listens")


def expect_settled(t, prompt, settled, cache, history, seen):
    """History, cache and listener agree on what was settled."""
    t.equal(history, prompt + settled, "history")
    t.equal(cache.rows, history[:-1], f"the list of rows in the cache (history is {history})")
    t.equal(seen, settled, "what was emitted")


def goes_on_plainly(safe_step, t, prompt, settled, cache, history):
    """After an error the next step says what plain decoding says."""
    want = plain(prompt, len(settled) + 1)
    t.call(safe_step, ToyModel(), cache, history, [], ToySampler(), Listener(), changes=True,
           shown="safe_step(ToyModel(), cache, history, [], ToySampler(), emit)      # and on it goes")
    t.equal(history, prompt + want, "history after the next step")


@ex.check("a quiet step: the tokens of a verify step, emitted in order")
def quiet(safe_step, t):
    for prompt in PROMPTS:
        for n, right in ((0, 0), *DRAFTS):
            want = plain(prompt, n + 1)
            draft = guess(want, n, right)
            (cache, history), emit, model = prefilled(prompt), Listener(), ToyModel()
            t.case(*told(prompt, draft, right))
            given = list(draft)
            count = t.call(safe_step, model, cache, history, given, ToySampler(), emit, changes=True,
                           shown="safe_step(model, cache, history, draft, ToySampler(), emit)")
            t.equal(given, draft, "draft afterwards")
            expect_settled(t, prompt, want[:right + 1], cache, history, emit.seen)
            t.equal(count, right + 1, "the result")
            t.equal(model.passes, [1 + n], "rows of each pass")


def ends_at(safe_step, t, prompt, draft, right, stop, sampler=None):
    """One step with a stop token; returns what there is to look at."""
    (cache, history), emit, model, given = prefilled(prompt), Listener(), ToyModel(), list(draft)
    seed = "" if sampler is None else "temperature=1.0, seed=3"
    t.case(*told(prompt, draft, right))
    t.call(safe_step, model, cache, history, given, sampler or ToySampler(), emit, stop, changes=True,
           shown=f"safe_step(model, cache, history, draft, ToySampler({seed}), emit, stop={stop})")
    t.equal(given, draft, "draft afterwards")
    t.holds(len(model.passes) == 1, f"{len(model.passes)} passes: a step is one")
    return cache, history, emit.seen


def with_stop_at(n, k, sampler=ToySampler):
    """Prompts whose next n tokens hold at place k (from 0) a token that stands nowhere before it."""
    for prompt in ([5], [1, 2], [3, 1, 4, 1, 5], [7], [2, 6, 6], [8, 0], [4, 4], [0]):
        want = plain(prompt, n, sampler())
        if want[k] not in want[:k]:
            yield prompt, want


@ex.check("a stop token inside an accepted draft: it is the last token that is committed")
def inside(safe_step, t):
    for n, k in ((2, 0), (1, 0), (3, 1), (2, 1), (4, 2)):
        for prompt, want in with_stop_at(n + 1, k):
            cache, history, seen = ends_at(safe_step, t, prompt, want[:n], n, want[k])
            expect_settled(t, prompt, want[:k + 1], cache, history, seen)


@ex.check("no random number is drawn for a row after the stop token")
def draws(safe_step, t):
    for n, k in ((1, 0), (3, 0), (3, 1), (2, 1)):
        for prompt, want in with_stop_at(n + 1, k, lambda: ToySampler(1.0, 3)):
            sampler = ToySampler(1.0, 3)
            ends_at(safe_step, t, prompt, want[:n], n, want[k], sampler)
            t.holds(sampler.draws == k + 1, f"{sampler.draws} random draws; plain decoding ends after {k + 1}")


@ex.check("an error in the pass goes on to the caller: no token, no row more than before")
def pass_fails(safe_step, t):
    for prompt in PROMPTS:
        for n, leaves in ((0, 1), (2, 1), (2, 3), (3, 0), (3, 2)):
            draft = plain(prompt, n)
            (cache, history), emit = prefilled(prompt), Listener()
            t.case(*told(prompt, draft, n))
            t.raises("OSError", safe_step, ToyModel(0, leaves), cache, history, draft, ToySampler(), emit,
                     shown=f"safe_step(ToyModel(fails_at=0, leaves={leaves}), cache, history, draft, ToySampler(), emit)")
            expect_settled(t, prompt, [], cache, history, emit.seen)
            goes_on_plainly(safe_step, t, prompt, [], cache, history)


@ex.check("an error in the sampler: the tokens before it are settled, the promise holds")
def sampler_fails(safe_step, t):
    for prompt in PROMPTS:
        for n, k in ((2, 0), (2, 1), (3, 2), (3, 3), (0, 0)):
            draft = plain(prompt, n)
            (cache, history), emit = prefilled(prompt), Listener()
            t.case(*told(prompt, draft, n))
            t.raises("ValueError", safe_step, ToyModel(), cache, history, draft, ToySampler(fails_at=k), emit,
                     shown=f"safe_step(ToyModel(), cache, history, draft, ToySampler(fails_at={k}), emit)")
            expect_settled(t, prompt, draft[:k], cache, history, emit.seen)
            goes_on_plainly(safe_step, t, prompt, draft[:k], cache, history)


@ex.check("an error in emit: its token is settled too, the promise holds")
def emit_fails(safe_step, t):
    for prompt in PROMPTS:
        for n, k in ((2, 0), (3, 1), (3, 3), (0, 0)):
            want = plain(prompt, n + 1)
            (cache, history), emit = prefilled(prompt), Listener(k)
            t.case(*told(prompt, want[:n], n), f"emit raises BrokenPipeError at token number {k + 1}")
            t.raises("BrokenPipeError", safe_step, ToyModel(), cache, history, want[:n], ToySampler(), emit,
                     shown="safe_step(ToyModel(), cache, history, draft, ToySampler(), emit)")
            expect_settled(t, prompt, want[:k + 1], cache, history, emit.seen)
            goes_on_plainly(safe_step, t, prompt, want[:k + 1], cache, history)


@ex.check("Ctrl-C in the middle of a step: the same")
def ctrl_c(safe_step, t):
    for prompt in PROMPTS:
        for n, k in ((3, 0), (3, 2)):
            want = plain(prompt, n + 1)
            (cache, history), emit = prefilled(prompt), Listener(k, KeyboardInterrupt)
            t.case(*told(prompt, want[:n], n), f"Ctrl-C while token number {k + 1} is emitted")
            t.raises("KeyboardInterrupt", safe_step, ToyModel(), cache, history, want[:n], ToySampler(), emit,
                     shown="safe_step(ToyModel(), cache, history, draft, ToySampler(), emit)")
            expect_settled(t, prompt, want[:k + 1], cache, history, emit.seen)
    want, (cache, history), emit = plain([5], 3), prefilled([5]), Listener(1, GeneratorExit)
    t.case(*told([5], want[:2], 2), "emit raises a GeneratorExit at token number 2: it is no Exception either")
    t.raises("GeneratorExit", safe_step, ToyModel(), cache, history, want[:2], ToySampler(), emit,
             shown="safe_step(ToyModel(), cache, history, draft, ToySampler(), emit)")
    expect_settled(t, [5], want[:2], cache, history, emit.seen)


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch07.drafter",
    title="A prompt-lookup drafter",
    points=15,
    level="medium",
    section="07.7",
    hints=[
        "Keep a dict that leads from n tokens to the place in the text right after them, the latest one. Then `suggest` "
        "looks up the last n tokens of the context, and needs no search at all.",
        "When a token arrives, which n tokens does it follow? Those at the end of the text *before* it is appended. That "
        "is the moment to note the place.",
        "In observe, for each token: the key is tuple(self.text[-self.n:]). If it has n tokens, it now leads to "
        "len(self.text). Then append the token. In suggest, return a slice of the text that begins at that place.",
    ],
)


@ex.solution
class PromptLookup:
    """Proposes what followed the same n tokens the last time.

    It has the two methods of `fucina.speculative.DraftSource`, so that it can draft for
    the real engine.  The engine calls `observe` with the prompt, and then with the tokens
    of every step, in order.  It calls `suggest` before a step.

    Parameters
    ----------
    n : int
        How many tokens must be the same, at least 1.

    Attributes
    ----------
    text : list of int
        All tokens that were observed.
    after : dict
        For you: whatever helps to find a place without searching.

    Examples
    --------
    >>> source = PromptLookup(n=2)
    >>> source.observe([5, 6, 7, 8, 5, 6])
    >>> source.suggest([5, 6, 7, 8, 5, 6], limit=3)
    [7, 8, 5]
    """

    @given
    def __init__(self, n=2):
        self.n = n
        self.text = []
        self.after = {}

    def observe(self, committed):
        """Take note of tokens that now follow all earlier ones.

        Note the places here, so that `suggest` need not search.  A call costs the same
        however long the text is, and so does a call of `suggest`.

        Parameters
        ----------
        committed : list of int
            One or several tokens; a piece can be shorter than n.  Not changed.
        """
        for token in committed:
            key = tuple(self.text[-self.n:])
            if len(key) == self.n:
                self.after[key] = len(self.text)
            self.text.append(token)

    def suggest(self, context, limit):
        """Return what followed the last n tokens of the context, the last time they occurred.

        Of several places the latest counts.  The end of the text itself does not count:
        nothing follows there yet.

        Parameters
        ----------
        context : list of int
            The text so far; it ends with the newest token.  Not changed.
        limit : int
            The most tokens to return; fewer where the text ends.

        Returns
        -------
        list of int
            Empty when these n tokens were not seen before, or the context is shorter than n.
        """
        place = self.after.get(tuple(context[-self.n:]))
        return [] if place is None else self.text[place:place + limit]


@ex.wrong("Finds its own end. The newest n tokens are noted before anything follows them, so `suggest` always finds "
          "the end of the text, where nothing follows. Note a place when its next token arrives.")
class FindsItself(PromptLookup):
    def observe(self, committed):
        for token in committed:
            self.text.append(token)
            if len(self.text) >= self.n:
                self.after[tuple(self.text[-self.n:])] = len(self.text)


@ex.wrong("Keeps the first place for ever. Text tends to go on as it did the last time: let a later place replace an "
          "earlier one.")
class FirstPlace(PromptLookup):
    def observe(self, committed):
        for token in committed:
            key = tuple(self.text[-self.n:])
            if len(key) == self.n:
                self.after.setdefault(key, len(self.text))
            self.text.append(token)


@ex.wrong("Looks for the n tokens inside one piece only. `observe` gets the text in pieces, often of one token. What "
          "counts are the last n tokens of the whole text.")
class InsideOnePiece(PromptLookup):
    def observe(self, committed):
        for i, token in enumerate(committed):
            key = tuple(committed[max(0, i - self.n):i])
            if len(key) == self.n:
                self.after[key] = len(self.text)
            self.text.append(token)


@ex.wrong("Learns from the prompt and from nothing else. What the model says is text as well, and often repeats "
          "itself.")
class PromptOnly(PromptLookup):
    def observe(self, committed):
        if not self.text:
            super().observe(committed)


@ex.wrong("The draft begins with the n tokens that were looked up. They stand in the context already: begin after "
          "them.")
class RepeatsTheMatch(PromptLookup):
    def suggest(self, context, limit):
        place = self.after.get(tuple(context[-self.n:]))
        return [] if place is None else self.text[place - self.n:place - self.n + limit]


@ex.wrong("Uses the digits of the ids, joined to one string, as a key. The ids 1, 11 and the ids 11, 1 give the same "
          "key: a tuple of the tokens keeps them apart.")
class RunsDigitsTogether(PromptLookup):
    def observe(self, committed):
        for token in committed:
            if len(self.text) >= self.n:
                self.after["".join(map(str, self.text[-self.n:]))] = len(self.text)
            self.text.append(token)

    def suggest(self, context, limit):
        place = self.after.get("".join(map(str, context[-self.n:])))
        return [] if place is None or len(context) < self.n else self.text[place:place + limit]


@ex.wrong("Returns more than `limit` tokens. Every drafted token is a row that somebody pays for.")
class IgnoresTheLimit(PromptLookup):
    def suggest(self, context, limit):
        place = self.after.get(tuple(context[-self.n:]))
        return [] if place is None else self.text[place:]


@ex.wrong("Proposes one token only. After the same n tokens the text may stay the same for long: propose up to "
          "`limit`.")
class OneToken(PromptLookup):
    def suggest(self, context, limit):
        place = self.after.get(tuple(context[-self.n:]))
        return [] if place is None or limit < 1 else [self.text[place]]


@ex.wrong("Looks at the last two tokens, whatever n is.")
class AlwaysTwo(PromptLookup):
    def __init__(self, n=2):
        super().__init__(2)


@ex.wrong("Searches the text in `suggest`. The drafts are right, but every step reads a text that becomes longer and "
          "longer. Note in `observe` where each group of n tokens stands.")
class Searches(PromptLookup):
    def observe(self, committed):
        self.text.extend(committed)

    def suggest(self, context, limit):
        found = list(context[-self.n:])
        for place in reversed(range(self.n, len(self.text))):
            if self.text[place - self.n:place] == found and len(found) == self.n:
                return self.text[place:place + limit]
        return []


@ex.wrong("Notes the whole text again in each `observe`. The notes are right, but a call costs more and more as the "
          "text grows. Earlier places are noted already: add the new ones.")
class NotesEverythingAgain(PromptLookup):
    def observe(self, committed):
        self.text.extend(committed)
        for place in range(self.n, len(self.text)):
            self.after[tuple(self.text[place - self.n:place])] = place


@ex.wrong("Makes the text anew for each token: `self.text + [token]` copies all of it. `append` adds a token and leaves the "
          "others where they are.")
class CopiesTheText(PromptLookup):
    def observe(self, committed):
        for token in committed:
            key = tuple(self.text[-self.n:])
            if len(key) == self.n:
                self.after[key] = len(self.text)
            self.text = self.text + [token]


@ex.wrong("Copies everything from the place to the end of the text, and cuts that to `limit`. The draft is right, but the "
          "place may lie far back: put both ends into one slice.")
class CutsAfterwards(PromptLookup):
    def suggest(self, context, limit):
        place = self.after.get(tuple(context[-self.n:]))
        return [] if place is None else self.text[place:][:limit]


@ex.wrong("Returns eight tokens at most, whatever `limit` is. The caller says how long a draft may be.")
class HasALimitOfItsOwn(PromptLookup):
    def suggest(self, context, limit):
        return super().suggest(context, min(limit, 8))


def lookup_case(PromptLookup, t, n, pieces, limit, want, context=None):
    """One source is told the pieces of a text; its draft must be `want`."""
    t.case(f"source = PromptLookup(n={n})")
    source = PromptLookup(n)
    for piece in pieces:
        t.call(source.observe, list(piece), shown=f"source.observe({list(piece)})")
    context = [token for piece in pieces for token in piece] if context is None else context
    got = t.call(source.suggest, list(context), limit, shown=f"source.suggest({list(context)}, limit={limit})")
    t.equal(got, want, "the draft")


def looked_up(text, n, limit):
    """The draft by brute force, from the end of the text backwards."""
    places = [i for i in range(n, len(text)) if text[i - n:i] == text[-n:]]
    return text[places[-1]:][:limit] if places and len(text) > n else []


@ex.check("the draft is what followed the same n tokens")
def follows(PromptLookup, t):
    lookup_case(PromptLookup, t, 2, [[5, 6, 7, 5, 6]], 1, [7])
    lookup_case(PromptLookup, t, 2, [[5, 6, 7, 8, 9, 5, 6]], 4, [7, 8, 9, 5])
    lookup_case(PromptLookup, t, 2, [[5, 6, 7, 5, 6]], 9, [7, 5, 6])
    lookup_case(PromptLookup, t, 2, [[*range(40), 0, 1]], 33, [*range(2, 35)])


@ex.check("nothing to go by: an empty draft")
def nothing_there(PromptLookup, t):
    for pieces in ([], [[5]], [[5, 6]], [[5, 6, 7]], [[5, 6, 7, 6]]):
        lookup_case(PromptLookup, t, 2, pieces, 4, [])
    lookup_case(PromptLookup, t, 2, [[5, 6, 7, 5, 6, 7]], 4, [], context=[7])
    lookup_case(PromptLookup, t, 2, [[5, 6, 7, 5, 6]], 0, [])


@ex.check("of several places the latest counts")
def latest(PromptLookup, t):
    lookup_case(PromptLookup, t, 2, [[5, 6, 1, 5, 6, 2, 5, 6]], 1, [2])
    lookup_case(PromptLookup, t, 2, [[5, 6, 1, 5, 6], [2, 5, 6]], 2, [2, 5])


@ex.check("the text may come in pieces of any size")
def in_pieces(PromptLookup, t):
    text = [5, 6, 7, 8, 5, 6]
    for cuts in ([6], [5, 1], [1, 5], [1, 1, 1, 1, 1, 1], [2, 3, 1], [0, 3, 0, 3]):
        pieces, at = [], 0
        for size in cuts:
            pieces.append(text[at:at + size])
            at += size
        lookup_case(PromptLookup, t, 2, pieces, 3, [7, 8, 5])


@ex.check("n can be 1, or more than 2")
def other_lengths(PromptLookup, t):
    lookup_case(PromptLookup, t, 1, [[5, 6, 7, 6]], 2, [7, 6])
    lookup_case(PromptLookup, t, 3, [[1, 2, 3, 4, 1, 2, 3]], 2, [4, 1])
    lookup_case(PromptLookup, t, 3, [[1, 2, 3, 4, 9, 2, 3]], 2, [])


@ex.check("on random texts the draft is that of a search through everything")
def random_texts(PromptLookup, t):
    for _ in range(40):
        n, size = int(t.rng.integers(1, 4)), int(t.rng.integers(1, 30))
        # ids whose digits, one after the other, can be read in more than one way
        text = [(1, 11, 111)[token] for token in t.rng.integers(0, 3, size)]
        cut = int(t.rng.integers(0, size + 1))
        limit = int(t.rng.integers(0, 6))
        lookup_case(PromptLookup, t, n, [text[:cut], text[cut:]], limit, looked_up(text, n, limit))


class Token(int):
    """A token that counts how often tokens are compared or looked up; the count is that of its text."""

    def __new__(cls, token, touched):
        self = super().__new__(cls, token)
        self.touched = touched
        return self

    def __eq__(self, other):
        self.touched[0] += 1
        return int(self) == int(other)

    def __hash__(self):
        self.touched[0] += 1
        return int(self)


class Counted(list):
    """A list that counts the items that are copied out of it."""

    def __init__(self, items, copies):
        super().__init__(items)
        self.copies = copies

    def __getitem__(self, at):
        got = super().__getitem__(at)
        self.copies[0] += len(got) if isinstance(at, slice) else 1
        return got

    def __iter__(self):
        for item in super().__iter__():
            self.copies[0] += 1
            yield item

    def __add__(self, other):
        return self[:] + list(other)

    def __radd__(self, other):
        return list(other) + self[:]

    def copy(self):
        return self[:]


@ex.check("neither method becomes slower as the text grows")
def cost(PromptLookup, t):
    for n, size in ((2, 400), (3, 4000)):
        touched, copies = [0], [0]
        ends, half = list(range(50, 50 + n)), size // 2
        text = [Token(token, touched) for token in (*t.rng.integers(0, 50, half), *ends, *t.rng.integers(0, 50, half), *ends)]
        t.case(f"# text: {len(text)} tokens; in its middle stands {ends}, and at its end again", f"source = PromptLookup(n={n})")
        source = PromptLookup(n)
        t.call(source.observe, text[:-1], shown="source.observe(text[:-1])", changes=True)
        for name, *args in (("observe", text[-1:]), ("suggest", Counted(text, copies), 4)):
            if type(source.text) is list:
                source.text = Counted(source.text, copies)
            touched[0] = copies[0] = 0
            t.call(getattr(source, name), *args, changes=True,
                   shown="source.observe(text[-1:])" if name == "observe" else "source.suggest(text, limit=4)")
            most = 20 * n + 20
            t.holds(touched[0] <= most,
                    f"{name} compares or looks up far more tokens than a short text would need: it goes through the text")
            t.holds(copies[0] <= most, f"{name} copies far more tokens than a short text would need, only to read a few")


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch07.read_the_log",
    title="Read five lines of a log",
    points=10,
    level="medium",
    section="07.9",
    hints=[
        "Begin with the extremes. Which line never verified anything? Which one was turned off for most of its steps? "
        "Which one verified in nearly every step, and what came of it?",
        "Divide: accepted by drafted says how good the guesses were, verify by steps says how often there was a guess "
        "worth trying. `off` counts passes for which the source was not even asked.",
        "Check the claims by hand, line by line. One of the turns ended at a stop token, in the middle of a verify. The "
        "stop token is not committed, and it is neither a correction nor a bonus.",
    ],
)

# Five runs of SmolLM2; tests/unit/test_course_log_lines.py makes them again.
LINES = given({
    "a": "steps=119 (verify 117, fallback 2, off 0) committed=120 (1.01 tok/step) "
         "drafted=1767 accepted=0 (0.0% acc) bonus=0 rejected=117",
    "b": "steps=9 (verify 5, fallback 4, off 0) committed=45 (5.00 tok/step) "
         "drafted=46 accepted=36 (78.3% acc) bonus=3 rejected=1",
    "c": "steps=157 (verify 8, fallback 6, off 143) committed=160 (1.02 tok/step) "
         "drafted=23 accepted=2 (8.7% acc) bonus=1 rejected=7",
    "d": "steps=145 (verify 22, fallback 123, off 0) committed=160 (1.10 tok/step) "
         "drafted=65 accepted=14 (21.5% acc) bonus=1 rejected=21",
    "e": "steps=119 (verify 0, fallback 119, off 0) committed=120 (1.01 tok/step) "
         "drafted=0 accepted=0 (0.0% acc) bonus=0 rejected=0",
})

SITUATIONS = given({
    1: "the model copies a text that stands in its prompt",
    2: "the model explains something; the engine's own index drafts",
    3: "the model tells a story; a weak source drafts, and a gate watches it",
    4: "a source that always claims to be right, and is never stopped",
    5: "a source that never proposes anything",
    6: "speculation that was disabled from the start",
})

REASONS = given({
    1: "whole drafts were right, because the next words had been read before",
    2: "the first drafts lost time, so the source was not asked any more",
    3: "nearly every pass carried a long draft, wrong from its first token on",
    4: "there was never a draft, so no pass had a second row",
    5: "few steps had a draft worth its rows, and one token in five was right",
    6: "rejected tokens were taken out of the text again",
    7: "the drafts made the model say something else",
})

CLAIMS = given({
    1: "steps == verify + fallback + off",
    2: "rejected == drafted - accepted",
    3: "verify == bonus + rejected",
    4: "committed == 1 + steps + accepted",
})


@ex.solution
def read_the_log():
    """Say what each of the LINES tells, and which CLAIMS about their fields hold.

    Each line is the report of a real run.  Find its situation, and the reason why its
    fields look as they do.  Two of the REASONS are wrong for every run.

    Then judge the claims.  A claim holds if it is true in all five lines.  If not, name
    a line in which it is false.

    Returns
    -------
    dict
        "a" to "e" : (int, int)
            The line's number in SITUATIONS, and its number in REASONS.
        "claims" : dict of int to str or None
            For each number in CLAIMS: None if the claim holds, else the letter of a line
            in which it does not.

    Examples
    --------
    >>> sorted(read_the_log())
    ['a', 'b', 'c', 'claims', 'd', 'e']
    """
    return {
        "a": (4, 3),
        "b": (1, 1),
        "c": (3, 2),
        "d": (2, 5),
        "e": (5, 4),
        "claims": {1: None, 2: "b", 3: "b", 4: "b"},
    }


@ex.wrong("Line a is not the run with the gate: its `off` is 0, so nobody ever turned drafting off. It paid for a "
          "draft in nearly every step. In line c, `off` is 143.")
def takes_the_liar_for_the_gate():
    return {"a": (3, 3), "b": (1, 1), "c": (4, 2), "d": (2, 5), "e": (5, 4),
            "claims": {1: None, 2: "b", 3: "b", 4: "b"}}


@ex.wrong("`fallback` and `off` are different things. Disabled speculation asks nobody for a draft: each step would "
          "count as `off`. In line e somebody was asked in every step, and had nothing to say.")
def takes_silence_for_disabled():
    return {"a": (4, 3), "b": (1, 1), "c": (3, 2), "d": (2, 5), "e": (6, 4),
            "claims": {1: None, 2: "b", 3: "b", 4: "b"}}


@ex.wrong("Line b is the copy: 36 of its 46 drafted tokens are right, and it needs 9 steps for 45 tokens. In line d "
          "most steps are plain ones.")
def takes_the_longer_text_for_the_copy():
    return {"a": (4, 3), "b": (2, 5), "c": (3, 2), "d": (1, 1), "e": (5, 4),
            "claims": {1: None, 2: "b", 3: "b", 4: "b"}}


@ex.wrong("A draft never changes what is said, and nothing is taken out of the text: a rejected token was never in "
          "it. The fields tell how many passes the text took.")
def drafts_change_the_text():
    return {"a": (4, 6), "b": (1, 1), "c": (3, 6), "d": (2, 7), "e": (5, 4),
            "claims": {1: None, 2: "b", 3: "b", 4: "b"}}


@ex.wrong("`rejected` counts verifies that ended with a correction, not tokens. In line b a single rejection throws "
          "away what was left of its draft.")
def rejected_counts_tokens():
    return {"a": (4, 3), "b": (1, 1), "c": (3, 2), "d": (2, 5), "e": (5, 4),
            "claims": {1: None, 2: None, 3: "b", 4: "b"}}


@ex.wrong("A claim may hold in four lines and break in one. Put the numbers of every line into the claim, the odd line "
          "first: which run is much shorter than the others? How may a verify end that has no bonus and no correction?")
def every_verify_ends_in_two_ways():
    return {"a": (4, 3), "b": (1, 1), "c": (3, 2), "d": (2, 5), "e": (5, 4),
            "claims": {1: None, 2: "b", 3: None, 4: None}}


@ex.wrong("Every step is exactly one of the three: a verify, a fallback, or one with drafting off. The first claim "
          "holds in all lines.")
def steps_are_missing():
    return {"a": (4, 3), "b": (1, 1), "c": (3, 2), "d": (2, 5), "e": (5, 4),
            "claims": {1: "b", 2: "b", 3: "b", 4: "b"}}


def fields_of(line):
    """The counts of a line, by name."""
    words = line.replace("(", " ").replace(")", " ").replace(",", " ").replace("=", " ").split()
    return {name: int(words[words.index(name) + 1]) for name in
            ("steps", "verify", "fallback", "off", "committed", "drafted", "accepted", "bonus", "rejected")}


def check_line(read_the_log, t, letter, situation, reason):
    """The situation first, then the reason."""
    t.case()
    answer = t.call(read_the_log)
    pair = answer.get(letter) if isinstance(answer, dict) else None
    t.holds(isinstance(pair, tuple) and len(pair) == 2,
            f'the answer for "{letter}" is {pair!r}, expected (number of a situation, number of a reason)')
    t.story.append(f"{letter}: {LINES[letter]}")
    t.holds(pair[0] == situation, f"situation {pair[0]!r} does not fit line {letter}")
    t.holds(pair[1] == reason, f"situation {situation} is right; reason {pair[1]!r} is not the reason for line {letter}")


@ex.check("line a: its situation, and the reason for its fields")
def line_a(read_the_log, t):
    check_line(read_the_log, t, "a", 4, 3)


@ex.check("line b: its situation, and the reason for its fields")
def line_b(read_the_log, t):
    check_line(read_the_log, t, "b", 1, 1)


@ex.check("line c: its situation, and the reason for its fields")
def line_c(read_the_log, t):
    check_line(read_the_log, t, "c", 3, 2)


@ex.check("line d: its situation, and the reason for its fields")
def line_d(read_the_log, t):
    check_line(read_the_log, t, "d", 2, 5)


@ex.check("line e: its situation, and the reason for its fields")
def line_e(read_the_log, t):
    check_line(read_the_log, t, "e", 5, 4)


@ex.check("claims: those that hold, and a line that disproves each of the others")
def claims(read_the_log, t):
    t.case()
    answer = t.call(read_the_log)
    judged = answer.get("claims") if isinstance(answer, dict) else None
    t.holds(isinstance(judged, dict) and set(judged) == set(CLAIMS),
            f'the answer for "claims" is {judged!r}, expected a dict with the keys 1 to {len(CLAIMS)}')
    for number, claim in CLAIMS.items():
        letter = judged[number]
        left, right = claim.split(" == ")
        sides = {name: (eval(left, {}, fields), eval(right, {}, fields))
                 for name, fields in ((name, fields_of(line)) for name, line in LINES.items())}
        t.holds(letter is None or letter in LINES, f"claim {number}: {letter!r} is no line, expected None or a letter")
        if letter is None:
            t.holds(all(a == b for a, b in sides.values()), f"claim {number} does not hold in all five lines")
        else:
            a, b = sides[letter]
            t.holds(a != b, f"claim {number} is true in line {letter}: {a} == {b}")


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch07.prove",
    title="Prove a verify step",
    points=20,
    level="hard",
    section="07.6",
    cpu_seconds=8.0,
    hints=[
        "Which promises does the contract of `verify_step` make? Write them down first: text, result, rows in the cache, "
        "number of passes, random draws, the draft, the error. Each promise is one comparison.",
        "Where do the right tokens come from? Never from the step that you are judging. Decode the plain way: "
        "`sampler.next(ToyModel().row(tokens), tokens)`, once for each token, with a sampler of your own.",
        "One case shows little. Try no draft; drafts of up to five tokens of which the first 0, 1, ... all are right; a right "
        "token at a wrong place; several steps one after the other; a temperature; a penalty; rows too many and too few.",
        "Put the cases into loops of `assert` with a text, all inside `try:`, and `except Exception as error: return "
        "repr(error)`. Where an error is due, look afterwards at what was touched: history, cache.rows, model.passes.",
    ],
)


@given
def says_five(model, cache, history, draft, sampler):
    """A wrong step to try your proof on: it always commits the token 5."""
    model.forward([history[-1]], cache)
    history.append(5)
    return 1


@ex.solution
def prove(step):
    """Look for a case in which a verify step breaks its contract.

    `step` is called as `step(model, cache, history, draft, sampler)` and claims to do what
    the contract of `verify_step` says (at the top of this file). You bring everything else:
    models, caches, samplers, drafts, and the answers to compare with.

    A wrong step may break any of its promises, in all cases or in few. It may also raise
    where it should not: that is a counterexample, too. A right step may be written in any
    style. How it gets there is not your business, as long as every promise is kept.

    Parameters
    ----------
    step : callable
        Takes its five arguments by position. You may call it up to 1000 times.

    Returns
    -------
    str or None
        None when you found nothing wrong. Otherwise a text, your counterexample.

    Examples
    --------
    >>> prove(says_five) is None
    False
    """
    def expected(prompt, n, sampler):
        tokens = list(prompt)
        for _ in range(n):
            tokens.append(sampler.next(ToyModel().row(tokens), tokens))
        return tokens[len(prompt):]

    def one(cache, history, draft, right, sampler, want):
        """One step against what plain decoding says next; `right` drafted tokens are right."""
        model, given, before = ToyModel(), list(draft), list(history)
        draws = sampler.draws
        count = step(model, cache, history, given, sampler)
        case = f"history {before}, draft {draft}"
        assert history == before + want[:right + 1], f"{case}: the history is {history}"
        assert count == right + 1, f"{case}: returned {count}"
        assert cache.rows == history[:-1], f"{case}: the cache holds {cache.rows} for {history}"
        assert model.passes == [1 + len(draft)], f"{case}: passes of {model.passes} rows"
        assert given == draft, f"{case}: the draft is {given} now"
        if sampler.temperature:
            assert sampler.draws - draws == right + 1, f"{case}: {sampler.draws - draws} draws"

    def drafts(want):
        """Drafts for what comes next, each with the number of tokens that are right."""
        yield [], 0
        for n in range(1, 6):
            for right in range(n + 1):
                wrong = [(token + 1) % 9 for token in want[right:n]]
                yield want[:right] + wrong, right
        other = next((token for token in want[1:5] if token != want[0]), None)
        if other is not None:
            yield [other, want[0]], 0

    try:
        for temperature, penalty in ((0.0, 0.0), (0.0, 3.0), (1.0, 0.0), (0.7, 1.5)):
            for seed, prompt in enumerate(([5], [1, 2], [3, 1, 4, 1, 5])):
                settings = (temperature, seed, penalty)
                want = expected(prompt, 6, ToySampler(*settings))
                for draft, right in drafts(want):
                    cache, history = ToyCache(), list(prompt)
                    cache.rows += prompt[:-1]
                    one(cache, history, draft, right, ToySampler(*settings), want)
                want = expected(prompt, 60, ToySampler(*settings))
                cache, history, sampler = ToyCache(), list(prompt), ToySampler(*settings)
                cache.rows += prompt[:-1]
                for i in range(15):
                    rest = want[len(history) - len(prompt):]
                    right = i % 4
                    one(cache, history, rest[:right] + [(rest[right] + 1) % 9], right, sampler, rest)
        for tokens, rows in (([1], 1), ([1, 2], 0), ([1, 2], 3), ([1, 2, 3, 4], 0), ([], 0)):
            cache, history, model = ToyCache(), list(tokens), ToyModel()
            cache.rows += [4] * rows
            try:
                step(model, cache, history, [4, 4], ToySampler())
            except InvalidDecodeState:
                pass
            else:
                return f"{len(tokens)} tokens and {rows} rows: no InvalidDecodeState"
            if history != tokens or cache.rows != [4] * rows or model.passes:
                return f"{len(tokens)} tokens and {rows} rows: something was touched before the error"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


@ex.wrong("Says that nothing is wrong, whatever it is given. A proof that never fails proves nothing: try it on "
          "`says_five` first.")
def content(step):
    return None


@ex.wrong("Calls every step wrong, right ones too. A proof that always fails is of no use either: what it complains of must "
          "be a broken promise.")
def never_content(step):
    return "I do not trust this step."


@ex.wrong("Tries the happy path only: one step, greedy, with a draft that is right. Most faults wait elsewhere: in a wrong "
          "draft, in a rewind, in a draw, in a refusal.")
def happy_path(step):
    history, cache = [5], ToyCache()
    want = list(history)
    for _ in range(3):
        want.append(ToySampler().next(ToyModel().row(want), want))
    try:
        step(ToyModel(), cache, history, want[1:3], ToySampler())
    except Exception as error:
        return repr(error)
    return None if history == want else f"{history} is not {want}"


@ex.wrong("Compares the step with itself: what it says with drafts, with what it says without. A step that is wrong in both "
          "agrees with itself. The right answer must come from somewhere else.")
def compares_with_itself(step):
    try:
        said = []
        for draft in ([], [1, 2], [6], [0, 3, 3]):
            history, cache = [5], ToyCache()
            for _ in range(8):
                step(ToyModel(), cache, history, list(draft), ToySampler())
            said.append(history[:9])
    except Exception as error:
        return repr(error)
    return None if said.count(said[0]) == 4 else f"with drafts and without: {said}"


@ex.wrong("Looks at the text and at nothing else. A step can say all the right tokens and still leave rows in the cache, "
          "use up random numbers, spoil the draft, or take a pass for each token: promises that are broken for later.")
def text_only(step):
    try:
        for prompt in ([5], [1, 2], [3, 1, 4, 1, 5]):
            want = list(prompt)
            for _ in range(6):
                want.append(ToySampler().next(ToyModel().row(want), want))
            for n in range(5):
                for right in range(n + 1):
                    at = len(prompt)
                    draft = want[at:at + right] + [(t + 1) % 9 for t in want[at + right:at + n]]
                    cache, history = ToyCache(), list(prompt)
                    cache.rows += prompt[:-1]
                    step(ToyModel(), cache, history, draft, ToySampler())
                    if history != want[:at + right + 1]:
                        return f"{draft}: {history}"
    except Exception as error:
        return repr(error)
    return None


@ex.wrong("Demands what nobody promised: that `truncate` is called once in each step. A step that has nothing to forget need not "
          "call it, and calling it twice does no harm. Look at what is left, not at how it came about.")
def demands_a_way(step):
    class Watched(ToyCache):
        calls = 0

        def truncate(self, keep):
            self.calls += 1
            super().truncate(keep)

    for draft in ([], [1], [2, 2]):
        cache, history = Watched(), [5]
        try:
            step(ToyModel(), cache, history, draft, ToySampler())
        except Exception as error:
            return repr(error)
        if cache.calls != 1:
            return f"truncate was called {cache.calls} times"
    return None


@ex.wrong("Goes on until a step has said enough. A wrong step may say nothing at all, and then the loop never ends: give it "
          "a bound.")
def waits_for_ever(step):
    history, cache = [5], ToyCache()
    want = list(history)
    for _ in range(12):
        want.append(ToySampler().next(ToyModel().row(want), want))
    while len(history) < 12:
        try:
            step(ToyModel(), cache, history, [], ToySampler())
        except Exception as error:
            return repr(error)
    return None if history == want[:12] else f"{history}"


def verifier(fault="", error=ValueError):
    """A verify step with one fault, named by a word; without a word it is right."""

    def step(model, cache, history, draft, sampler):
        n, before = len(draft), len(history)
        off = before - cache.len - 1
        if off and fault not in ("unchecked", "late") and not (fault == "half" and off > 0):
            raise error("history and cache do not belong together")
        fed = [history[-1], *draft]
        if fault == "spoils":
            draft.insert(0, fed[0])
            draft, fed = fed[1:], draft
        if fault == "one_by_one":
            rows = [model.forward([token], cache)[0] for token in fed]
        else:
            rows = model.forward(fed, cache)
        if off and fault == "late":
            raise error("history and cache do not belong together")
        ahead = [sampler.next(row, history + draft[:i]) for i, row in enumerate(rows)] if fault == "ahead" else None
        old = list(history)
        for i, row in enumerate(rows):
            if fault == "no_bonus" and i == n:
                break
            seen = old if fault == "old_history" else history
            if ahead:
                token = ahead[i]
            elif fault == "own_choice":
                token = int(np.argmax(row))
            else:
                token = sampler.next(row, seen)
            if fault == "peeks" and i == n and n:
                sampler.next(row, history)
            accepted = i < n and token == draft[i]
            if fault == "anywhere":
                accepted = i < n and token in draft
            if fault == "no_correction" and i < n and not accepted:
                break
            if fault == "bonus_for_correction" and i < n and not accepted:
                token = sampler.next(rows[-1], history)
            history.append(draft[i] if fault == "believes" and i < n else token)
            goes_on = fault == "goes_on" and i < n
            if not accepted and not goes_on or fault == "gives_up" and i == 2 or fault == "zero" and token == 0:
                break
        keep = len(history) - 1
        keep += {"too_little": 1, "too_far": -1, "keeps_rows": n + 1}.get(fault, 0)
        if fault == "one_short" and len(history) - before > n:
            keep -= n > 0
        cache.truncate(max(0, keep))
        return len(history) - before - (fault == "accepted_only")

    return step


def right_steps(error):
    """Right verify steps in many other styles than the chapter's, each with a word on it.

    They use what the contract names, and nothing else: a proof may bring a model, a cache and a sampler of its own.
    """

    def refuse(cache, history):
        if cache.len != len(history) - 1:
            raise error("no")

    def recursive(model, cache, history, draft, sampler):
        refuse(cache, history)

        def settle(rows, guesses):
            history.append(sampler.next(rows[0], history))
            if guesses and guesses[0] == history[-1]:
                return 1 + settle(rows[1:], guesses[1:])
            return 1

        count = settle(model.forward([history[-1]] + draft, cache), draft)
        cache.truncate(len(history) - 1)
        return count

    def generated(llm, kv, text, guess, chooser):
        refuse(kv, text)
        rows = iter(llm.forward(text[-1:] + list(guess), kv))

        def choices():
            for wanted in [*guess, None]:
                text.append(chooser.next(next(rows), text))
                yield text[-1]
                if text[-1] != wanted:
                    return

        count = sum(1 for _ in choices())
        kv.truncate(len(text) - 1)
        return count

    def vectorised(a, b, c, d, e):
        refuse(b, c)
        scores = a.forward([c[-1], *d], b)
        chosen = np.full(len(d) + 1, -1)
        for i in range(len(scores)):
            chosen[i] = e.next(scores[i], c + [int(token) for token in chosen[:i]])
            if i < len(d) and chosen[i] != d[i]:
                break
        new = chosen[chosen >= 0].tolist()
        c += new
        b.truncate(len(c) - 1)
        return len(new)

    def in_finally(model, cache, history, draft, sampler):
        refuse(cache, history)
        start, i = len(history), 0
        try:
            scores = model.forward([history[-1], *draft], cache)
            while True:
                history.append(sampler.next(scores[i], list(history)))
                if draft[i:i + 1] != history[-1:]:
                    return len(history) - start
                i += 1
        finally:
            cache.truncate(len(history) - 1)

    def only_when_needed(model, cache, history, draft, sampler):
        refuse(cache, history)
        size = len(history)
        for row, guess in zip(model.forward([history[-1], *draft], cache), draft + [None]):
            history.append(sampler.next(row, history))
            if history[-1] != guess:
                break
        if cache.len >= len(history):
            cache.truncate(len(history) - 1)
        return len(history) - size

    class Stepper:
        class Refused(error):
            """Derived from the error of the contract."""

        def __call__(self, model, cache, history, draft, sampler):
            if cache.len + 1 != len(history):
                raise self.Refused("no")
            rows, done = model.forward([history[-1], *draft], cache), 0
            agrees = True
            while agrees:
                history.append(sampler.next(rows[done], history))
                agrees = done < len(draft) and history[-1] == draft[done]
                done += 1
            cache.truncate(cache.len)
            cache.truncate(len(history) - 1)
            return done

    return {
        "written recursively": recursive,
        "written with a generator, and with other names for its arguments": generated,
        "keeps its choices in an array": vectorised,
        "rewinds in a `finally`, and shows the sampler a copy of the history": in_finally,
        "calls `truncate` only when there is something to forget": only_when_needed,
        "an object; calls `truncate` twice, and raises a class derived from InvalidDecodeState": Stepper(),
    }


def watched(step):
    """The step, which may be called as often as the contract says."""
    return proving.counted(step, 1000)


def error_of(prove):
    """The InvalidDecodeState of the file in which a proof stands."""
    return proving.home(prove).get("InvalidDecodeState", InvalidDecodeState)


def must_find(prove, t, fault, hint):
    """The proof must have a counterexample against a step with this fault."""
    proving.finds(t, prove, watched(verifier(fault, error_of(prove))), shown="prove(step)", hint=hint)


@ex.check("a right step is spared, written as in the chapter")
def spares_one(prove, t):
    proving.spares(t, prove, watched(verifier(error=error_of(prove))), shown="prove(step)", style="written as in the chapter",
                   vital=True)


@ex.check("right steps in other styles are spared")
def spares_styles(prove, t):
    for style, step in right_steps(error_of(prove)).items():
        proving.spares(t, prove, watched(step), shown="prove(step)", style=style)


@ex.check("wrong step 1 is found: it trusts the draft more than the sampler")
def finds_01(prove, t):
    must_find(prove, t, "believes",
              "What does it commit where a drafted token is wrong?")


@ex.check("wrong step 2 is found: its correction comes from a wrong place")
def finds_02(prove, t):
    must_find(prove, t, "bonus_for_correction",
              "What does it commit where a drafted token is wrong?")


@ex.check("wrong step 3 is found: it does not know when to end")
def finds_03(prove, t):
    must_find(prove, t, "goes_on",
              "What does it commit where a drafted token is wrong?")


@ex.check("wrong step 4 is found: it forgets something at the end of a draft")
def finds_04(prove, t):
    must_find(prove, t, "no_bonus",
              "How many tokens must come out of a draft that is right to its end?")


@ex.check("wrong step 5 is found: the worst draft costs it a token")
def finds_05(prove, t):
    must_find(prove, t, "no_correction",
              "How many tokens must come out of a draft that is wrong from the start?")


@ex.check("wrong step 6 is found: it compares generously")
def finds_06(prove, t):
    must_find(prove, t, "anywhere",
              "A token can be right, and drafted, and stand at another place.")


@ex.check("wrong step 7 is found: long drafts disappoint it")
def finds_07(prove, t):
    must_find(prove, t, "gives_up",
              "How long are your longest drafts that are all right?")


@ex.check("wrong step 8 is found: one token of the vocabulary is special to it")
def finds_08(prove, t):
    must_find(prove, t, "zero",
              "Which tokens do your drafts contain? One of them is False to a careless `if`.")


@ex.check("wrong step 9 is found: it reports what it did not do")
def finds_09(prove, t):
    must_find(prove, t, "accepted_only",
              "The text is right. What does it return?")


@ex.check("wrong step 10 is found: it leaves something behind in the cache")
def finds_10(prove, t):
    must_find(prove, t, "keeps_rows",
              "Its text is right. Which rows does it leave after a draft that was wrong?")


@ex.check("wrong step 11 is found: it tidies the cache, but not quite")
def finds_11(prove, t):
    must_find(prove, t, "too_little",
              "Its text is right. Which rows does it leave after a draft that was wrong?")


@ex.check("wrong step 12 is found: it tidies the cache with zeal")
def finds_12(prove, t):
    must_find(prove, t, "too_far",
              "Its text is right. Compare every row in the cache with the history.")


@ex.check("wrong step 13 is found: it tidies the cache where there is nothing to tidy")
def finds_13(prove, t):
    must_find(prove, t, "one_short",
              "Its text is right. Compare every row in the cache, after drafts of every kind.")


@ex.check("wrong step 14 is found: it is exact, and saves nothing")
def finds_14(prove, t):
    must_find(prove, t, "one_by_one",
              "Everything that it says and leaves is right. What did it cost?")


@ex.check("wrong step 15 is found: what comes after a wrong draft will suffer")
def finds_15(prove, t):
    must_find(prove, t, "ahead",
              "Its tokens are right. What has it used up for them?")


@ex.check("wrong step 16 is found: what comes after a right draft will suffer")
def finds_16(prove, t):
    must_find(prove, t, "peeks",
              "Its tokens are right. What has it used up for them?")


@ex.check("wrong step 17 is found: it believes that it knows better than the sampler")
def finds_17(prove, t):
    must_find(prove, t, "own_choice",
              "Who may choose a token? At temperature 0 and without a penalty nobody sees the difference.")


@ex.check("wrong step 18 is found: it shows the sampler yesterday's paper")
def finds_18(prove, t):
    must_find(prove, t, "old_history",
              "Some samplers look at more than the row.")


@ex.check("wrong step 19 is found: it does not leave alone what it was lent")
def finds_19(prove, t):
    must_find(prove, t, "spoils",
              "Text, cache and draws are right. There is one argument more.")


@ex.check("wrong step 20 is found: it starts whatever the state is")
def finds_20(prove, t):
    must_find(prove, t, "unchecked",
              "What must happen when history and cache do not belong together?")


@ex.check("wrong step 21 is found: it notices only one of two ways to be wrong")
def finds_21(prove, t):
    must_find(prove, t, "half",
              "History and cache can disagree in two directions.")


@ex.check("wrong step 22 is found: it notices too late")
def finds_22(prove, t):
    must_find(prove, t, "late",
              "It raises the right error. What had it done by then?")



# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch07.ban",
    title="A ban, a draft, and what must come",
    points=15,
    level="medium",
    section="07.7",
    hints=[
        "Every row of a verify step passes through `next`. So the ban holds for drafted tokens as well, without a word "
        "about drafts: a banned token is never chosen, so a banned guess is never accepted.",
        "What is banned depends on `history[-1]`, and on nothing that you remember from the last call: a step may fail, and "
        "the next one begins again from the history. Write into a copy of the row.",
        "`forced`: take the newest token; while exactly one of `range(self.vocab)` is allowed after it and the limit is not "
        "reached, that one is the next, and it is the newest now.",
    ],
)


@given
class AllTokensMasked(ValueError):
    """A ban leaves no token that could be chosen."""


@ex.solution
class Ban:
    """A sampler under a ban that depends on the text: some tokens may not come after some others.

    It has the face of a sampler, so a verify step uses it like any other. And it knows
    sometimes what must come: where the ban leaves a single token, a drafter need not guess.

    Parameters
    ----------
    sampler : object with `next(row, history)`
        Chooses from what is allowed.
    after : dict of int to set of int
        after[t] may not come after the token t. A token that is no key bans nothing. Not changed.
    vocab : int
        The tokens are 0 ... vocab - 1.

    Examples
    --------
    >>> ban = Ban(ToySampler(), {5: {2, 3}, 0: {0, 1, 2, 3, 4, 5, 6, 8}}, vocab=9)
    >>> row = np.array([0., 1, 9, 8, 7, 0, 0, 0, 0])
    >>> ban.next(row, [1, 5])
    4
    >>> ban.forced([1, 0], limit=4)
    [7]
    """

    @given
    def __init__(self, sampler, after, vocab):
        self.sampler = sampler
        self.after = after
        self.vocab = vocab

    def next(self, row, history):
        """The next token: what the sampler chooses when the banned scores are minus infinity.

        The sampler sees all other scores as they are, and the whole history. The row is
        not changed: it belongs to the model. With drafts and without, the same
        history and row give the same token, so nothing may be remembered between two calls.

        Raises
        ------
        AllTokensMasked
            When no token is allowed; the sampler is not asked then.
        """
        banned = list(self.after.get(history[-1], ()))
        if len(banned) == self.vocab:
            raise AllTokensMasked(f"no token may come after {history[-1]}")
        row = np.array(row, dtype=float)
        row[banned] = -np.inf
        return self.sampler.next(row, history)

    def forced(self, history, limit):
        """The tokens that must come next, at most `limit`: a draft that cannot be wrong.

        As long as exactly one token is allowed after the newest one, it must come, and the
        question is the same for the token after it. Empty when there is a choice at once.
        """
        newest, tokens = history[-1], []
        while len(tokens) < limit:
            allowed = set(range(self.vocab)) - set(self.after.get(newest, ()))
            if len(allowed) != 1:
                break
            newest = allowed.pop()
            tokens.append(newest)
        return tokens


@ex.wrong("Writes the ban into the row itself. The row belongs to the model, and whoever looks at it afterwards sees scores "
          "that it never gave. Work on a copy.")
class InTheRow(Ban):
    def next(self, row, history):
        banned = list(self.after.get(history[-1], ()))
        if len(banned) == self.vocab:
            raise AllTokensMasked("none")
        row[banned] = -np.inf
        return self.sampler.next(row, history)


@ex.wrong("Remembers the newest token by itself: the one that it chose last. After a step that failed, or another stream, "
          "that is not the end of the history. The history is handed in for this reason.")
class Remembers(Ban):
    def next(self, row, history):
        newest = getattr(self, "chosen", history[-1])
        banned = list(self.after.get(newest, ()))
        if len(banned) == self.vocab:
            raise AllTokensMasked("none")
        row = np.array(row, dtype=float)
        row[banned] = -np.inf
        self.chosen = self.sampler.next(row, history)
        return self.chosen


@ex.wrong("Takes points off instead of forbidding. A score that is high enough comes through all the same: minus infinity is a "
          "ban, a number is an opinion.")
class TakesPointsOff(Ban):
    def next(self, row, history):
        banned = list(self.after.get(history[-1], ()))
        if len(banned) == self.vocab:
            raise AllTokensMasked("none")
        row = np.array(row, dtype=float)
        row[banned] -= 3.0
        return self.sampler.next(row, history)


@ex.wrong("Draws again until the token is allowed. At temperature 0 it never ends or chooses something else, and with a "
          "temperature a token takes one draw or three: all later draws move. Forbid first, draw once.")
class DrawsAgain(Ban):
    def next(self, row, history):
        banned = self.after.get(history[-1], ())
        if len(banned) == self.vocab:
            raise AllTokensMasked("none")
        for _ in range(9):
            token = self.sampler.next(row, history)
            if token not in banned:
                return token
        row = np.array(row, dtype=float)
        row[list(banned)] = -np.inf
        return self.sampler.next(row, history)


@ex.wrong("Asks the sampler although nothing is allowed. What comes back then is any token, or no number at all: notice it "
          "first, and say so with AllTokensMasked.")
class NeverMasked(Ban):
    def next(self, row, history):
        row = np.array(row, dtype=float)
        row[list(self.after.get(history[-1], ()))] = -np.inf
        return self.sampler.next(row, history)


@ex.wrong("Knows one forced token and stops. After it the next may be forced as well: ask again, with the forced token as the "
          "newest.")
class OneForced(Ban):
    def forced(self, history, limit):
        allowed = set(range(self.vocab)) - set(self.after.get(history[-1], ()))
        return list(allowed)[:limit] if len(allowed) == 1 else []


@ex.wrong("Drafts where there is still a choice. Two tokens are allowed, and it takes the first: that is a guess, and may be "
          "rejected. Forced is what has no alternative.")
class Guesses(Ban):
    def forced(self, history, limit):
        newest, tokens = history[-1], []
        while len(tokens) < limit:
            allowed = sorted(set(range(self.vocab)) - set(self.after.get(newest, ())))
            if not 1 <= len(allowed) <= 2:
                break
            newest = allowed[0]
            tokens.append(newest)
        return tokens


@ex.wrong("Pays no attention to `limit`. Forced tokens can go round in a circle, and then the draft would never end.")
class NoLimit(Ban):
    def forced(self, history, limit):
        newest, tokens = history[-1], []
        while len(tokens) < 64:
            allowed = set(range(self.vocab)) - set(self.after.get(newest, ()))
            if len(allowed) != 1:
                break
            newest = allowed.pop()
            tokens.append(newest)
        return tokens


@ex.wrong("Bans with a number, -1e9. It is far below what this toy says, but a score may be lower still: minus infinity is a "
          "ban, a number is an opinion.")
class BansWithANumber(Ban):
    def next(self, row, history):
        banned = list(self.after.get(history[-1], ()))
        if len(banned) == self.vocab:
            raise AllTokensMasked("none")
        row = np.array(row, dtype=float)
        row[banned] = -1e9
        return self.sampler.next(row, history)


@ex.wrong("Shows the sampler the end of the history only. How far a penalty looks back is the sampler's business: hand it all.")
class ShowsTheEnd(Ban):
    def next(self, row, history):
        banned = list(self.after.get(history[-1], ()))
        if len(banned) == self.vocab:
            raise AllTokensMasked("none")
        row = np.array(row, dtype=float)
        row[banned] = -np.inf
        return self.sampler.next(row, history[-3:])


@ex.wrong("Rounds the scores to float32. Two that were different may be equal then, and another token wins. What is not "
          "banned stays as it is.")
class Rounds(Ban):
    def next(self, row, history):
        banned = list(self.after.get(history[-1], ()))
        if len(banned) == self.vocab:
            raise AllTokensMasked("none")
        row = np.array(row, dtype=np.float32)
        row[banned] = -np.inf
        return self.sampler.next(row, history)


@ex.wrong("Writes into `after`: `setdefault` adds a key for each token that it is asked about. The rules belong to whoever made "
          "them: `get` looks and leaves nothing.")
class AddsRules(Ban):
    def next(self, row, history):
        self.after.setdefault(history[-1], set())
        return super().next(row, history)


@ex.wrong("Takes for granted that some token is allowed after each one that must come. A ban may leave none: what must come ends "
          "there, and that is no error of the drafter.")
class StumblesAtTheEnd(Ban):
    def forced(self, history, limit):
        out, newest = [], history[-1]
        while len(out) < limit:
            allowed = [token for token in range(self.vocab) if token not in self.after.get(newest, ())]
            if len(allowed) > 1:
                break
            newest = allowed[0]
            out.append(newest)
        return out


@ex.wrong("Knows a single vocabulary: that of the toy, 9 tokens. How many there are is in `vocab`.")
class KnowsOneVocabulary(Ban):
    def next(self, row, history):
        self.vocab = 9
        return super().next(row, history)

    def forced(self, history, limit):
        self.vocab = 9
        return super().forced(history, limit)


def but(*allowed):
    """All tokens of the toy but these: what to ban so that only these may come."""
    return set(range(9)) - set(allowed)


RULES = {
    "nothing is banned": {},
    "three bans": {0: {1, 2}, 5: {0, 4, 8}, 3: {3}},
    "a circle": {1: but(2), 2: but(3), 3: but(4, 0), 4: but(1), 0: {0}, 7: but(1), 8: but(1, 7)},
}


def copied(rules):
    """Rules of their own for each ban, so that one that changes them changes no other case."""
    return {token: set(banned) for token, banned in rules.items()}


def turns(Ban, t, rules, temperature, draft_of, n=40):
    """The tokens of n or more under a ban, step by step with drafts from `draft_of(ban, history)`, and the sampler."""
    step, sampler = verifier(), ToySampler(temperature, seed=4)
    t.case(f"ban = Ban(ToySampler({temperature}, seed=4), {rules}, vocab=9)")
    ban = t.call(Ban, sampler, copied(rules), 9, shown=None)
    model, (cache, history) = ToyModel(), prefilled([6, 2, 8])
    for _ in range(n):
        draft = draft_of(ban, history)
        t.call(step, model, cache, history, list(draft), ban, changes=True,
               shown=f"verify_step(model, cache, {history}, draft={draft}, ban)")
        t.story[1:] = t.story[-1:]
        if len(history) > n:
            break
    return history, sampler, model


def forced_of(t):
    """A drafter that asks the ban itself what must come."""
    return lambda ban, history: t.call(ban.forced, list(history), 4, shown=f"ban.forced({history}, limit=4)")


def knows(want):
    """A drafter that knows the text."""
    return lambda ban, history: want[len(history):len(history) + 3]


def alone(rules, temperature, n=40):
    """The same tokens by brute force, one by one."""
    history, sampler = [6, 2, 8], ToySampler(temperature, seed=4)
    while len(history) <= n + 4:
        row = ToyModel().row(history)
        row[list(rules.get(history[-1], ()))] = -np.inf
        history.append(sampler.next(row, history))
    return history


@ex.check("what is banned never comes, however high its score")
def never_comes(Ban, t):
    for rules in RULES.values():
        for temperature in (0.0, 2.0):
            history, *_ = turns(Ban, t, rules, temperature, lambda ban, history: [])
            bad = [(a, b) for a, b in zip(history[2:], history[3:]) if b in rules.get(a, ())]
            t.holds(not bad, f"{bad[:1]} stands in the text {history}, although {rules} bans it")


@ex.check("greedy: the same text with drafts and without, banned guesses included")
def same_greedy(Ban, t):
    for rules in RULES.values():
        want = alone(rules, 0.0)
        for drafts in (lambda ban, history: [], lambda ban, history: [1, 1, 2], knows(want)):
            history, *_ = turns(Ban, t, rules, 0.0, drafts)
            t.equal(history, want[:len(history)], "the text")


@ex.check("sampled: the same text with drafts and without, one draw for each token")
def same_sampled(Ban, t):
    for rules in RULES.values():
        want = alone(rules, 1.5)
        for drafts in (lambda ban, history: [], knows(want)):
            history, sampler, _ = turns(Ban, t, rules, 1.5, drafts)
            t.equal(history, want[:len(history)], "the text")
            t.holds(sampler.draws == len(history) - 3, f"{sampler.draws} draws for {len(history) - 3} tokens")


@ex.check("the same question has the same answer, in whatever order questions come; the row stays as it was")
def no_memory(Ban, t):
    rules = {1: {2}, 2: {3}, 3: {4}}
    t.case(f"ban = Ban(ToySampler(), {rules}, vocab=9)")
    ban = t.call(Ban, ToySampler(), copied(rules), 9, shown=None)
    for newest, best in ((1, 2), (2, 3), (1, 2), (3, 4), (3, 2), (2, 2), (1, 4)):
        row = np.zeros(9)
        row[best], row[8] = 5.0, 1.0
        want = 8 if best in rules[newest] else best
        t.equal(int(t.call(ban.next, row, [7, newest])), want, "the token")


class Witness:
    """A sampler that keeps what it is shown."""

    def next(self, row, history):
        self.row, self.history = np.array(row, dtype=float), list(history)
        return 0


@ex.check("the sampler sees minus infinity for what is banned, all else as it is, and the whole history; no rule is added")
def shown_to_the_sampler(Ban, t):
    for newest, rules in ((5, {}), (5, {5: {2, 3}}), (0, {0: {0, 1, 8}, 3: {4}})):
        witness, row = Witness(), np.arange(9) / 3 - 1e12
        history, kept = [6, 2, 8, 1, 7, newest], copied(rules)
        t.case(f"row = np.arange(9) / 3 - 1e12; ban = Ban(sampler, {rules}, vocab=9)")
        ban = t.call(Ban, witness, rules, 9, shown=None)
        t.call(ban.next, row.copy(), list(history), shown=f"ban.next(row, {history})")
        row[list(kept.get(newest, ()))] = -np.inf
        t.holds(hasattr(witness, "row"), "the sampler was not asked")
        t.equal(witness.row, row, "the row that the sampler saw")
        t.equal(witness.history, history, "the history that the sampler saw")
        t.call(ban.forced, list(history), 2, shown=f"ban.forced({history}, limit=2)")
        t.equal(rules, kept, "the dict of rules afterwards")


@ex.check("where nothing is allowed: AllTokensMasked, and the sampler is not asked")
def masked(Ban, t):
    for temperature in (0.0, 1.0):
        sampler = ToySampler(temperature)
        t.case(f"sampler = ToySampler({temperature})")
        ban = t.call(Ban, sampler, {4: but()}, 9, shown="ban = Ban(sampler, {4: set(range(9))}, vocab=9)")
        t.raises("AllTokensMasked", ban.next, np.zeros(9), [1, 4], shown="ban.next(row, [1, 4])")
        t.holds(sampler.choices == 0, "the sampler was asked all the same")
        t.case(f"sampler = ToySampler({temperature})")
        ban = t.call(Ban, sampler, {4: but()}, 12, shown="ban = Ban(sampler, {4: set(range(9))}, vocab=12)")
        t.holds(t.call(ban.next, np.zeros(12), [1, 4], shown="ban.next(row, [1, 4])") in (9, 10, 11), "a banned token was chosen")
        ban = t.call(Ban, ToySampler(temperature), {4: but() - {7, 8}}, 7, shown="ban = Ban(sampler, {4: set(range(7))}, vocab=7)")
        t.raises("AllTokensMasked", ban.next, np.zeros(7), [1, 4], shown="ban.next(row, [1, 4])")


@ex.check("forced: all that must come, nothing that need not, never more than the limit")
def must_come(Ban, t):
    rules = RULES["a circle"]
    for newest, limit, want in ((1, 4, [2, 3]), (7, 4, [1, 2, 3]), (7, 2, [1, 2]), (8, 4, []), (5, 4, []), (4, 0, []),
                                (3, 4, [])):
        t.case(f"ban = Ban(ToySampler(), {rules}, vocab=9)")
        ban = t.call(Ban, ToySampler(), copied(rules), 9, shown=None)
        got = t.call(ban.forced, [6, newest], limit, shown=f"ban.forced([6, {newest}], limit={limit})")
        t.equal(got, want, "the draft")
    for vocab, rules, want in ((9, {1: but(2), 2: but()}, [2]), (9, {1: but()}, []), (4, {1: {0, 1, 3}, 2: {1, 2}}, [2]),
                               (12, {1: but(2)}, []), (12, {1: but(2) | {9, 10, 11}}, [2])):
        t.case(f"ban = Ban(ToySampler(), {rules}, vocab={vocab})")
        ban = t.call(Ban, ToySampler(), copied(rules), vocab, shown=None)
        t.equal(t.call(ban.forced, [6, 1], 4, shown="ban.forced([6, 1], limit=4)"), want, "the draft")
    endless = {1: but(2), 2: but(1)}
    t.case(f"ban = Ban(ToySampler(), {endless}, vocab=9)")
    ban = t.call(Ban, ToySampler(), endless, 9, shown=None)
    t.equal(t.call(ban.forced, [1], 6, shown="ban.forced([1], limit=6)"), [2, 1, 2, 1, 2, 1], "the draft")


@ex.check("forced tokens as drafts are all accepted, and the text is the same")
def forced_drafts(Ban, t):
    rules, drafted = RULES["a circle"], []

    def drafts(ban, history):
        draft = forced_of(t)(ban, history)
        drafted.append(len(draft))
        return draft

    for temperature in (0.0, 1.5):
        drafted.clear()
        want = alone(rules, temperature)
        history, _, model = turns(Ban, t, rules, temperature, drafts)
        t.equal(history, want[:len(history)], "the text")
        t.holds(len(history) - 3 == sum(drafted) + len(model.passes),
                f"{sum(drafted)} tokens were drafted in {len(model.passes)} passes, which committed {len(history) - 3}")
