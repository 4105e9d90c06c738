"""Chapter 11 - Constrained decoding.

A reply that must be a date, a JSON object, one of six cities: before each choice, forbid
every token that cannot go on to such a text.  You write the mask of a row.  You lift an
automaton that reads bytes to a vocabulary of tokens.  You look ahead: what must follow, and
how much of a draft may follow.  Then you write a processor that forces a phrase, and a source
of drafts that a grammar makes faster.  At the end your code constrains a real model.
"""

import numpy as np

from course.automata import Automaton as Machine
from course.exercises import Exercise, given


@given
class AllTokensMasked(ValueError):
    """No token is left to choose from."""


@given
class Automaton:
    """Says which bytes may come next.

    `edges[state]` : a dict: a byte that may follow -> the state after it.  State 0 is the start.
    `accepting` : the set of states in which a text may end.
    """

    def __init__(self, edges, accepting):
        self.edges, self.accepting = edges, set(accepting)

    def step(self, state, byte):
        """The state after one more byte, or None where that byte may not follow."""
        return self.edges[state].get(byte)

    def read(self, data, state=0):
        """The state after some bytes, or None."""
        for byte in data:
            state = self.step(state, byte)
            if state is None:
                break
        return state


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch11.mask",
    title="Mask a row",
    points=5,
    level="easy",
    section="11.2",
    hints=[
        "Begin with a row in which everything is forbidden: np.full(len(logits), -np.inf). Then bring back what is "
        "allowed.",
        "row[allowed] = logits[allowed] copies all allowed logits at once. The end token comes back the same way, but "
        "only after a whole sentence.",
        "The sampler divides by the sum of what is left by itself. So return logits, not probabilities. If every entry is "
        "still -inf, raise.",
    ],
)


@ex.solution
def mask_row(logits, allowed, complete, end):
    """Forbid every token that may not come next.

    Parameters
    ----------
    logits : float array [vocab]
        As the model gave them, finite numbers.  Not changed.
    allowed : list of int
        The tokens of text that may come next; may be empty.  The end token is not among them.
    complete : bool
        Whether the text so far is a whole sentence.  It may be one and still go on.
    end : int
        The token that ends a reply.  It may be chosen after a whole sentence, and only there.

    Returns
    -------
    float array [vocab]
        A new row, of the same float type or of float64: the same logits where a token may come
        next, -inf everywhere else.  It goes to a sampler, which makes probabilities of it.

    Raises
    ------
    AllTokensMasked
        No token may come next.

    Examples
    --------
    >>> mask_row(np.array([1.0, 2.0, 3.0, 4.0]), [1], False, 3).tolist()
    [-inf, 2.0, -inf, -inf]
    >>> mask_row(np.array([1.0, 2.0, 3.0, 4.0]), [1], True, 3).tolist()
    [-inf, 2.0, -inf, 4.0]
    """
    row = np.full(len(logits), -np.inf)
    row[allowed] = logits[allowed]
    if complete:
        row[end] = logits[end]
    if not np.isfinite(row).any():
        raise AllTokensMasked("nothing may come next")
    return row


@ex.wrong("Takes 100 off the forbidden logits. That is strong advice and no ban: where the allowed tokens lie far enough "
          "below, a forbidden one still wins. Only -inf is a ban.")
def shifts(logits, allowed, complete, end):
    keep = [*allowed, *([end] if complete else [])]
    if not keep:
        raise AllTokensMasked("nothing may come next")
    row = logits - 100.0
    row[keep] = logits[keep]
    return row


@ex.wrong("Sets forbidden logits to 0. A logit of 0 is an ordinary one: where the others are negative, it wins.")
def sets_to_zero(logits, allowed, complete, end):
    keep = [*allowed, *([end] if complete else [])]
    if not keep:
        raise AllTokensMasked("nothing may come next")
    row = np.zeros(len(logits))
    row[keep] = logits[keep]
    return row


@ex.wrong("Returns probabilities. The sampler takes them for logits and normalises a second time: then all the allowed "
          "tokens are nearly equally likely, and the forbidden ones are possible again.")
def normalises_twice(logits, allowed, complete, end):
    keep = [*allowed, *([end] if complete else [])]
    if not keep:
        raise AllTokensMasked("nothing may come next")
    row = np.zeros(len(logits))
    row[keep] = np.exp(logits[keep] - logits[keep].max())
    return row / row.sum()


@ex.wrong("Returns log-probabilities of the allowed tokens. The probabilities come out right, but penalties and other "
          "parts of a sampler work on the model's own logits: leave those as they are.")
def log_probabilities(logits, allowed, complete, end):
    row = np.full(len(logits), -np.inf)
    keep = [*allowed, *([end] if complete else [])]
    if not keep:
        raise AllTokensMasked("nothing may come next")
    row[keep] = logits[keep] - logits[keep].max() - np.log(np.exp(logits[keep] - logits[keep].max()).sum())
    return row


@ex.wrong("Forgets the end token. A reply that is a whole sentence could then never end: it must go on for as long as "
          "it can, and where it cannot there is nothing left to choose.")
def forgets_the_end(logits, allowed, complete, end):
    row = np.full(len(logits), -np.inf)
    row[allowed] = logits[allowed]
    if not np.isfinite(row).any():
        raise AllTokensMasked("nothing may come next")
    return row


@ex.wrong("The end token is always allowed. The model may then stop in the middle of a sentence, and the reply is "
          "not what was promised.")
def always_ends(logits, allowed, complete, end):
    row = np.full(len(logits), -np.inf)
    row[allowed] = logits[allowed]
    row[end] = logits[end]
    return row


@ex.wrong("After a whole sentence only the end is allowed. But 12 is a whole number, and 123 is one as well: where the "
          "text may go on, the model chooses.")
def must_end(logits, allowed, complete, end):
    row = np.full(len(logits), -np.inf)
    keep = [end] if complete else allowed
    row[keep] = logits[keep]
    if not np.isfinite(row).any():
        raise AllTokensMasked("nothing may come next")
    return row


@ex.wrong("The other way round: it forbids what is allowed.")
def forbids_the_allowed(logits, allowed, complete, end):
    row = np.array(logits, dtype=float)
    row[allowed] = -np.inf
    if not complete:
        row[end] = -np.inf
    if not np.isfinite(row).any():
        raise AllTokensMasked("nothing may come next")
    return row


@ex.wrong("Where nothing may come next it returns a row of -inf. No sampler can choose from that: raise "
          "AllTokensMasked, so that the fault is found where it is.")
def never_raises(logits, allowed, complete, end):
    row = np.full(len(logits), -np.inf)
    row[allowed] = logits[allowed]
    if complete:
        row[end] = logits[end]
    return row


@ex.wrong("Works in the caller's own array. The row may be needed again, by another sampler or for a comparison: "
          "make a new one.")
def in_place(logits, allowed, complete, end):
    keep = [*allowed, *([end] if complete else [])]
    if not keep:
        raise AllTokensMasked("nothing may come next")
    kept = logits[keep]
    logits[:] = -np.inf
    logits[keep] = kept
    return logits


def expected_row(logits, allowed, complete, end):
    """The row, entry by entry."""
    return np.array([v if i in allowed or (complete and i == end) else -np.inf for i, v in enumerate(logits)])


@ex.check("allowed logits stay as they are, all others become -inf")
def masks(mask_row, t):
    for logits in ([1.0, 2.0, 3.0, 4.0], [-300.0, 500.0, -200.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0]):
        for allowed in ([1], [0, 2], [2, 0]):
            row = np.array(logits)
            t.case()
            t.equal(t.call(mask_row, row, allowed, False, len(row) - 1), expected_row(row, allowed, False, len(row) - 1))


@ex.check("the end token is allowed after a whole sentence, where the text may go on as well, and nowhere else")
def ends(mask_row, t):
    row = np.array([0.5, -1.0, 3.0, 2.0])
    for allowed in ([1], [], [3, 1]):
        for complete in (True, False):
            if allowed or complete:
                t.case()
                t.equal(t.call(mask_row, row, allowed, complete, 0), expected_row(row, allowed, complete, 0))


@ex.check("where nothing may come next it raises AllTokensMasked")
def raises(mask_row, t):
    for n in (1, 4):
        t.case()
        t.raises("AllTokensMasked", mask_row, np.arange(float(n)), [], False, 0)


@ex.check("random rows: the probabilities that a sampler makes of the row are the model's own, of allowed tokens alone")
def random_rows(mask_row, t):
    for n in (3, 8, 40):
        for _ in range(4):
            row = t.rng.normal(size=n) * 9
            allowed = [int(i) for i in t.rng.permutation(n - 1)[:t.rng.integers(1, n)]]
            complete = bool(t.rng.integers(2))
            t.case()
            got = t.call(mask_row, row, allowed, complete, n - 1)
            t.equal(got, expected_row(row, allowed, complete, n - 1))


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch11.lift",
    title="From bytes to tokens, along a trie",
    points=20,
    level="hard",
    section="11.4",
    hints=[
        "A node of the trie can be a pair: a dict from a byte to the next node, and a list of the ids of all tokens that "
        "end there. Several tokens may spell the same bytes.",
        "Walk both at once: begin with the root and `state`. For each byte that leads on in the trie, ask the automaton "
        "for its next state. None means that this whole branch is forbidden.",
        "Every node that you reach is allowed text. So every id that stands at it is an allowed token, wherever the "
        "automaton is then, and the branch goes on below it.",
        "State 0 is a state like any other, and false in Python: compare with None. Special tokens stand for no text "
        "(b\"\"), so they have no place in the trie.",
    ],
)


@ex.solution
def make_trie(pieces):
    """Arrange the tokens of a vocabulary by their bytes.

    Parameters
    ----------
    pieces : list of bytes
        pieces[i] is the text of token i.  b"" is a special token, which stands for no text.
        Two tokens may have the same bytes.

    Returns
    -------
    Anything that `allowed_tokens` can walk.

    Examples
    --------
    >>> trie = make_trie([b"a", b"ab", b"b"])
    """
    root = ({}, [])
    for token, piece in enumerate(pieces):
        node = root
        for byte in piece:
            node = node[0].setdefault(byte, ({}, []))
        if piece:
            node[1].append(token)
    return root


@ex.solution
def allowed_tokens(automaton, state, trie):
    """Return the tokens that may come next.

    A token may come next if the automaton can read all of its bytes from `state` on.  The
    text need not be a whole sentence afterwards.

    Tokens that begin alike are looked at together: for each beginning the automaton makes one
    step per byte, however many tokens share it.

    Parameters
    ----------
    automaton : Automaton
    state : int
        Where the text so far has led.
    trie : what `make_trie` returned

    Returns
    -------
    list of int
        Ids, ascending.

    Examples
    --------
    >>> abc = Automaton([{97: 1}, {98: 2}, {99: 3}, {}], accepting={3})  # the bytes of "abc"
    >>> trie = make_trie([b"a", b"ab", b"b", b"ac", b""])
    >>> allowed_tokens(abc, 0, trie), allowed_tokens(abc, 1, trie)
    ([0, 1], [2])
    """
    found = []
    waiting = [(trie, state)]
    while waiting:
        (children, tokens), here = waiting.pop()
        found += tokens
        for byte, child in children.items():
            after = automaton.step(here, byte)
            if after is not None:
                waiting.append((child, after))
    return sorted(found)


@ex.wrong("Accepts a token when its first byte may follow. The rest of it would then be said as well, whether it is "
          "allowed or not.", replaces="allowed_tokens")
def first_byte(automaton, state, trie):
    def below(node):
        return node[1] + [i for child in node[0].values() for i in below(child)]

    return sorted(i for byte, child in trie[0].items() if automaton.step(state, byte) is not None for i in below(child))


@ex.wrong("Accepts a token only where the text may end after it. But a token may end in the middle of a sentence: the next "
          "one goes on from there.", replaces="allowed_tokens")
def must_be_whole(automaton, state, trie):
    found, waiting = [], [(trie, state)]
    while waiting:
        (children, tokens), here = waiting.pop()
        if here in automaton.accepting:
            found += tokens
        after = [(child, automaton.step(here, byte)) for byte, child in children.items()]
        waiting += [(child, state) for child, state in after if state is not None]
    return sorted(found)


@ex.wrong("Stops at the first token of a branch. A token may be the beginning of a longer one, and both may be allowed.",
          replaces="allowed_tokens")
def shortest_only(automaton, state, trie):
    found, waiting = [], [(trie, state)]
    while waiting:
        (children, tokens), here = waiting.pop()
        found += tokens
        if not tokens:
            after = [(child, automaton.step(here, byte)) for byte, child in children.items()]
            waiting += [(child, state) for child, state in after if state is not None]
    return sorted(found)


@ex.wrong("Keeps only the longest tokens: one that is the beginning of another is lost. The model may want the short one.",
          replaces="allowed_tokens")
def longest_only(automaton, state, trie):
    found, waiting = [], [(trie, state)]
    while waiting:
        (children, tokens), here = waiting.pop()
        after = [(child, automaton.step(here, byte)) for byte, child in children.items()]
        on = [(child, state) for child, state in after if state is not None]
        waiting += on
        if not on:
            found += tokens
    return sorted(found)


@ex.wrong("Always begins at state 0, so it gives the tokens that may begin a text, not those that may go on with this one.",
          replaces="allowed_tokens")
def from_the_start(automaton, state, trie):
    found, waiting = [], [(trie, 0)]
    while waiting:
        (children, tokens), here = waiting.pop()
        found += tokens
        after = [(child, automaton.step(here, byte)) for byte, child in children.items()]
        waiting += [(child, state) for child, state in after if state is not None]
    return sorted(found)


@ex.wrong("Takes state 0 for a refusal, since 0 is false in Python. The start is a state to which a text may come back: "
          "compare with None.", replaces="allowed_tokens")
def zero_is_refused(automaton, state, trie):
    found, waiting = [], [(trie, state)]
    while waiting:
        (children, tokens), here = waiting.pop()
        found += tokens
        after = [(child, automaton.step(here, byte)) for byte, child in children.items()]
        waiting += [(child, state) for child, state in after if state]
    return sorted(found)


@ex.wrong("A byte that is refused is skipped, and the branch goes on below it. A token is said whole: one refused byte "
          "forbids it.", replaces="allowed_tokens")
def skips_bytes(automaton, state, trie):
    found, waiting = [], [(trie, state, False)]
    while waiting:
        (children, tokens), here, read = waiting.pop()
        found += tokens if read else []
        for byte, child in children.items():
            after = automaton.step(here, byte)
            waiting.append((child, here if after is None else after, after is not None))
    return sorted(found)


@ex.wrong("The ids come in the order of the walk. The contract says ascending: then two masks can be compared.",
          replaces="allowed_tokens")
def unsorted(automaton, state, trie):
    found, waiting = [], [(trie, state)]
    while waiting:
        (children, tokens), here = waiting.pop()
        found += tokens
        after = [(child, automaton.step(here, byte)) for byte, child in children.items()]
        waiting += [(child, state) for child, state in after if state is not None]
    return found


@ex.wrong("Right, but every token is read from its first byte. Tokens that begin alike share that work: this is what "
          "the trie is for. With a whole vocabulary it makes the difference.", replaces="allowed_tokens")
def one_by_one(automaton, state, trie):
    def reads(piece):
        here = state
        for byte in piece:
            here = automaton.step(here, byte)
            if here is None:
                return False
        return True

    listed, waiting = [], [(trie, b"")]
    while waiting:
        (children, tokens), piece = waiting.pop()
        listed += [(token, piece) for token in tokens]
        waiting += [(child, piece + bytes([byte])) for byte, child in children.items()]
    return sorted(token for token, piece in listed if reads(piece))


@ex.wrong("Right, but every byte is looked up twice: once to see whether it may follow, once to see where it leads. With a whole "
          "vocabulary that is half of the work. Keep the answer of the first call.", replaces="allowed_tokens")
def steps_twice(automaton, state, trie):
    found, waiting = [], [(trie, state)]
    while waiting:
        (children, tokens), here = waiting.pop()
        found += tokens
        waiting += [(child, automaton.step(here, byte)) for byte, child in children.items()
                    if automaton.step(here, byte) is not None]
    return sorted(found)


@ex.wrong("Cuts refused branches out of the trie. They are refused here and now; at another place of a text, or by another "
          "automaton, they may be allowed, and then they are missing.", replaces="allowed_tokens")
def prunes(automaton, state, trie):
    found, waiting = [], [(trie, state)]
    while waiting:
        (children, tokens), here = waiting.pop()
        found += tokens
        for byte in list(children):
            after = automaton.step(here, byte)
            if after is None:
                del children[byte]
            else:
                waiting.append((children[byte], after))
    return sorted(found)


@ex.wrong("Keeps the answer for each state with the trie, and gives it to every automaton. State 3 of another automaton is "
          "another place.", replaces="allowed_tokens")
def remembers_by_state(automaton, state, trie):
    kept = trie[0].setdefault(None, {})
    if state not in kept:
        found, waiting = [], [(trie, state)]
        while waiting:
            (children, tokens), here = waiting.pop()
            found += tokens
            for byte, child in children.items():
                after = None if byte is None else automaton.step(here, byte)
                if after is not None:
                    waiting.append((child, after))
        kept[state] = sorted(found)
    return kept[state]


@ex.wrong("Takes byte 0 for the end of a token, since 0 is false in Python. It is a byte like any other.", replaces="make_trie")
def ends_at_zero(pieces):
    root = ({}, [])
    for token, piece in enumerate(pieces):
        node = root
        for byte in piece:
            if not byte:
                break
            node = node[0].setdefault(byte, ({}, []))
        if node is not root:
            node[1].append(token)
    return root


@ex.wrong("Leaves out tokens that are only blanks or line ends. They are text: a grammar may ask for them.", replaces="make_trie")
def no_blanks(pieces):
    root = ({}, [])
    for token, piece in enumerate(pieces):
        node = root
        for byte in piece:
            node = node[0].setdefault(byte, ({}, []))
        if piece.strip():
            node[1].append(token)
    return root


@ex.wrong("Of several tokens with the same bytes only the last one is kept. The model may want any of them.",
          replaces="make_trie")
def last_of_the_same(pieces):
    root = ({}, [])
    for token, piece in enumerate(pieces):
        node = root
        for byte in piece:
            node = node[0].setdefault(byte, ({}, []))
        if piece:
            node[1][:] = [token]
    return root


@ex.wrong("Special tokens got into the trie, at its root, where every text may go on. They stand for no text: allowing "
          "one here would let the model end its turn in the middle of a sentence.", replaces="make_trie")
def special_too(pieces):
    root = ({}, [])
    for token, piece in enumerate(pieces):
        node = root
        for byte in piece:
            node = node[0].setdefault(byte, ({}, []))
        node[1].append(token)
    return root


@ex.wrong("Marks only the first token of each branch: where the bytes of a longer token run through, it is lost.",
          replaces="make_trie")
def loses_longer(pieces):
    root = ({}, [])
    for token, piece in enumerate(pieces):
        node = root
        for byte in piece:
            if node[1]:
                break
            node = node[0].setdefault(byte, ({}, []))
        else:
            node[1].extend([token] if piece else [])
    return root


@ex.wrong("Large and small letters are taken for the same. They are different bytes, and an automaton may read one of them only.",
          replaces="make_trie")
def in_small_letters(pieces):
    root = ({}, [])
    for token, piece in enumerate(pieces):
        node = root
        for byte in piece.lower():
            node = node[0].setdefault(byte, ({}, []))
        if piece:
            node[1].append(token)
    return root


def tokens_by_trial(automaton, state, pieces):
    """Read every token alone."""
    return [i for i, piece in enumerate(pieces) if piece and automaton.read(piece, state) is not None]


def machine(t, pattern, kind=Automaton):
    """The automaton of an expression, told as code."""
    made = Machine.of(pattern)
    t.case(f"automaton = Automaton({made.edges}, {set(made.accepting) or 'set()'})  # {pattern}")
    return kind(made.edges, made.accepting)


class Watched(dict):
    """The edges of a state; counts how often a byte is looked up in them."""

    looks = 0

    def get(self, *arguments):
        self.looks += 1
        return super().get(*arguments)

    def __getitem__(self, byte):
        self.looks += 1
        return super().__getitem__(byte)

    def __contains__(self, byte):
        self.looks += 1
        return super().__contains__(byte)


class Counting(Automaton):
    """An automaton that counts its steps, and what is looked up in its edges beside them."""

    def __init__(self, edges, accepting):
        super().__init__([Watched(ways) for ways in edges], accepting)
        self.steps = 0

    def step(self, state, byte):
        self.steps += 1
        return dict.get(self.edges[state], byte)

    @property
    def looks(self):
        return sum(ways.looks for ways in self.edges)


def lifted(mine, t, pattern, pieces, states=None):
    """Compare the learner's tokens with those by trial, at some states."""
    for state in range(len(Machine.of(pattern).edges)) if states is None else states:
        automaton = machine(t, pattern)
        trie = t.call(mine.make_trie, pieces, shown=f"trie = make_trie({pieces!r})")
        got = t.call(mine.allowed_tokens, automaton, state, trie, shown=f"allowed_tokens(automaton, {state}, trie)")
        t.equal(got, tokens_by_trial(automaton, state, pieces))


@ex.check("a token is allowed when all its bytes may follow, wherever it ends")
def whole_tokens(mine, t):
    lifted(mine, t, "abc", [b"a", b"b"], [0])
    lifted(mine, t, "abc", [b"ab", b"ac", b"abc", b"abcd"], [0])
    lifted(mine, t, "abc", [b"a", b"ab", b"xab", b"b", b"bc", b"c"])


@ex.check("tokens that are beginnings of others, tokens of the same bytes, special tokens")
def awkward_vocabularies(mine, t):
    lifted(mine, t, "aaa?", [b"aa", b"a", b"aaa", b"a", b"aa"])
    lifted(mine, t, "ab", [b"", b"b", b"a", b"", b"ab"])
    lifted(mine, t, "a[Bb] ?", [b"A", b"a", b"B", b"b", b"aB", b"AB", b"b ", b" "])


@ex.check("a text may come back to state 0")
def back_to_the_start(mine, t):
    lifted(mine, t, "(ab)*", [b"a", b"b", b"ab", b"ba", b"bab"])
    lifted(mine, t, "[ab]*", [b"a", b"b", b"ab", b"abba"])


@ex.check("bytes, not characters: a token may end inside one")
def inside_a_character(mine, t):
    lifted(mine, t, "\u00e9|\u00e8", [b"\xc3", b"\xa9", "\u00e9".encode(), b"\xa8", b"e", "\u00ea".encode()])


@ex.check("every byte counts: 0, blanks and line ends, 255")
def odd_bytes(mine, t):
    edges, accepting = [{0: 1, 32: 0, 255: 2}, {0: 2, 10: 1}, {}], {2}
    pieces = [b"\x00", b"\x00\x00", b" ", b"  \xff", b"\n", b"\x00\n", b"\n\x00", b"\xff", b"a\x00"]
    for state in range(3):
        t.case(f"automaton = Automaton({edges}, {accepting})")
        automaton = Automaton(edges, accepting)
        trie = t.call(mine.make_trie, pieces, shown=f"trie = make_trie({pieces!r})")
        got = t.call(mine.allowed_tokens, automaton, state, trie, shown=f"allowed_tokens(automaton, {state}, trie)")
        t.equal(got, tokens_by_trial(automaton, state, pieces))


@ex.check("one trie serves every state and every automaton, as often as it is asked")
def one_trie(mine, t):
    pieces = [b"a", b"b", b"ab", b"abc", b"c", b"cc", b"x"]
    patterns = ("abc", "(ab|c)*", "x|cc")
    first = machine(t, patterns[0])
    t.case("automata: abc, (ab|c)* and x|cc")
    trie = t.call(mine.make_trie, pieces, shown=f"trie = make_trie({pieces!r})")
    automata = [first, *(Automaton(m.edges, m.accepting) for m in map(Machine.of, patterns[1:]))]
    places = [(i, state) for i, automaton in enumerate(automata) for state in range(len(automaton.edges))]
    for i, state in [*places, *reversed(places)]:
        got = t.call(mine.allowed_tokens, automata[i], state, trie, shown=f"allowed_tokens({patterns[i]}, {state}, trie)")
        t.equal(got, tokens_by_trial(automata[i], state, pieces))


@ex.check("random expressions and vocabularies: the tokens that reading each alone would find")
def random_lifts(mine, t):
    for pattern in ("(a|ab)(c|bcd)*", "a{2,4}b?", "([ab]c)+", "(abc|abd|x)*c", "a*(b|cc)a*"):
        for n in (4, 12, 40):
            pieces = [bytes(t.rng.choice(list(b"abcdx"), size=int(t.rng.integers(0, 5))).tolist()) for _ in range(n)]
            lifted(mine, t, pattern, pieces)


@ex.check("a beginning that many tokens share is read once")
def shared_beginnings(mine, t):
    beginning = b"abcdefghijklmnop"
    pieces = [beginning + bytes([byte]) for byte in b"qrstuvwxyz" * 3]
    automaton = machine(t, beginning.decode() + "[a-z]", Counting)
    t.case("automaton: reads abcdefghijklmnop, then one letter",
           "pieces: thirty tokens that begin with abcdefghijklmnop and end with one letter more")
    trie = t.call(mine.make_trie, pieces, shown="trie = make_trie(pieces)")
    got = t.call(mine.allowed_tokens, automaton, 0, trie, shown="allowed_tokens(automaton, 0, trie)")
    t.equal(got, list(range(30)))
    nodes = len(beginning) + 10
    t.holds(automaton.steps <= nodes,
            f"the automaton made {automaton.steps} steps; the trie has {nodes} nodes, and one step for each is enough")
    t.holds(automaton.looks <= 2 * nodes,
            f"{automaton.looks} bytes were looked up in the automaton's edges; the trie has {nodes} nodes")


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch11.look_ahead",
    title="What must follow, and what may",
    points=10,
    level="medium",
    section="11.5",
    hints=[
        "`forced_bytes`: go on while exactly one byte leads on. Where a text may end there is a choice too: to end it.",
        "A circle of states may force bytes for ever, so the limit belongs into the condition of the loop.",
        "`valid_prefix`: keep a state of your own, and let each token move it. At the first token that does not fit, "
        "return how many did.",
        "A token that stands for no text (b\"\"), and an id outside the vocabulary, do not fit anywhere.",
    ],
)


@ex.solution
def forced_bytes(automaton, state, limit):
    """Return the bytes that must follow.

    A byte must follow where it is the only one that may, and the text may not end.

    Parameters
    ----------
    automaton : Automaton
    state : int
        Where the text so far has led.
    limit : int
        At most this many.

    Returns
    -------
    bytes
        b"" where there is a choice.

    Examples
    --------
    >>> abc_or_abd = Automaton([{97: 1}, {98: 2}, {99: 3, 100: 3}, {}], accepting={3})
    >>> forced_bytes(abc_or_abd, 0, 99), forced_bytes(abc_or_abd, 2, 99)
    (b'ab', b'')
    """
    found = []
    while len(found) < limit and state not in automaton.accepting and len(automaton.edges[state]) == 1:
        ((byte, state),) = automaton.edges[state].items()
        found.append(byte)
    return bytes(found)


@ex.solution
def valid_prefix(automaton, state, pieces, tokens):
    """Return how many of some tokens may follow, one after another, from the first on.

    It only looks: the caller's state stays where it is.

    Parameters
    ----------
    automaton : Automaton
    state : int
        Where the text so far has led.
    pieces : list of bytes
        pieces[i] is the text of token i; b"" for a special token, which may not follow here.
    tokens : list of int
        A draft.  Ids outside the vocabulary may be among them; they may not follow either.

    Returns
    -------
    int

    Examples
    --------
    >>> abc = Automaton([{97: 1}, {98: 2}, {99: 3}, {}], accepting={3})
    >>> pieces = [b"a", b"ab", b"b", b"c"]
    >>> valid_prefix(abc, 0, pieces, [0, 2, 3]), valid_prefix(abc, 0, pieces, [1, 2, 3])
    (3, 1)
    """
    for i, token in enumerate(tokens):
        if not 0 <= token < len(pieces) or not pieces[token]:
            return i
        state = automaton.read(pieces[token], state)
        if state is None:
            return i
    return len(tokens)


@ex.wrong("Goes on through a state in which the text may end. Ending is a choice as well: from there on nothing is forced.",
          replaces="forced_bytes")
def never_ends(automaton, state, limit):
    found = []
    while len(found) < limit and len(automaton.edges[state]) == 1:
        ((byte, state),) = automaton.edges[state].items()
        found.append(byte)
    return bytes(found)


@ex.wrong("Where several bytes may follow it takes the first of them. What is forced is what cannot be otherwise.",
          replaces="forced_bytes")
def takes_the_first(automaton, state, limit):
    found = []
    while len(found) < limit and state not in automaton.accepting and automaton.edges[state]:
        byte, state = next(iter(automaton.edges[state].items()))
        found.append(byte)
    return bytes(found)


@ex.wrong("Looks one byte ahead only. Go on while there is no choice.", replaces="forced_bytes")
def one_byte(automaton, state, limit):
    if limit < 1 or state in automaton.accepting or len(automaton.edges[state]) != 1:
        return b""
    return bytes(automaton.edges[state])


@ex.wrong("The limit is not kept.", replaces="forced_bytes")
def without_limit(automaton, state, limit):
    found = []
    while len(found) < 500 and state not in automaton.accepting and len(automaton.edges[state]) == 1:
        ((byte, state),) = automaton.edges[state].items()
        found.append(byte)
    return bytes(found)


@ex.wrong("Makes characters of the bytes, and bytes of the characters again. A byte above 127 becomes two.", replaces="forced_bytes")
def through_text(automaton, state, limit):
    found = ""
    while len(found) < limit and state not in automaton.accepting and len(automaton.edges[state]) == 1:
        ((byte, state),) = automaton.edges[state].items()
        found += chr(byte)
    return found.encode()


@ex.wrong("Leaves out the beginning of a character when the rest of it is not forced. These are bytes, whatever they may become.",
          replaces="forced_bytes")
def whole_characters(automaton, state, limit):
    found = []
    while len(found) < limit and state not in automaton.accepting and len(automaton.edges[state]) == 1:
        ((byte, state),) = automaton.edges[state].items()
        found.append(byte)
    return bytes(found).decode(errors="ignore").encode()


@ex.wrong("Stops at byte 0, since 0 is false in Python. It is a byte like any other.", replaces="forced_bytes")
def stops_at_zero(automaton, state, limit):
    found = []
    while len(found) < limit and state not in automaton.accepting and len(automaton.edges[state]) == 1:
        ((byte, state),) = automaton.edges[state].items()
        if not byte:
            break
        found.append(byte)
    return bytes(found)


@ex.wrong("Every token is judged from the same place. After the first token the text is somewhere else, and the second "
          "one has to fit there.", replaces="valid_prefix")
def stands_still(automaton, state, pieces, tokens):
    for i, token in enumerate(tokens):
        if not 0 <= token < len(pieces) or not pieces[token] or automaton.read(pieces[token], state) is None:
            return i
    return len(tokens)


@ex.wrong("Goes on after a refused token and counts later ones too. What follows a refused token belongs to a text that "
          "nobody will say.", replaces="valid_prefix")
def counts_all(automaton, state, pieces, tokens):
    count = 0
    for token in tokens:
        after = automaton.read(pieces[token], state) if 0 <= token < len(pieces) and pieces[token] else None
        if after is not None:
            state, count = after, count + 1
    return count


@ex.wrong("Counts up to the last whole sentence. A draft may end in the middle of one: its tokens may follow all the same.",
          replaces="valid_prefix")
def whole_sentences(automaton, state, pieces, tokens):
    best = 0
    for i, token in enumerate(tokens):
        if not 0 <= token < len(pieces) or not pieces[token]:
            break
        state = automaton.read(pieces[token], state)
        if state is None:
            break
        if state in automaton.accepting:
            best = i + 1
    return best


@ex.wrong("A special token passes: it has no bytes, so no byte of it is refused. It stands for no text, and a draft that "
          "holds one ends before it.", replaces="valid_prefix")
def special_passes(automaton, state, pieces, tokens):
    for i, token in enumerate(tokens):
        if not 0 <= token < len(pieces):
            return i
        state = automaton.read(pieces[token], state)
        if state is None:
            return i
    return len(tokens)


@ex.wrong("Looks up ids that the vocabulary does not have. A source may propose anything: such an id may not follow, and "
          "a negative one would count from the end of the list.", replaces="valid_prefix")
def trusts_ids(automaton, state, pieces, tokens):
    for i, token in enumerate(tokens):
        if not pieces[token]:
            return i
        state = automaton.read(pieces[token], state)
        if state is None:
            return i
    return len(tokens)


@ex.wrong("All or nothing: a draft of which one token is refused counts for nothing. The tokens before that one may follow.",
          replaces="valid_prefix")
def all_or_nothing(automaton, state, pieces, tokens):
    for token in tokens:
        if state is None or not 0 <= token < len(pieces) or not pieces[token]:
            return 0
        state = automaton.read(pieces[token], state)
    return 0 if state is None else len(tokens)


@ex.wrong("Takes a token of blanks for one without text. A blank is text.", replaces="valid_prefix")
def blanks_are_nothing(automaton, state, pieces, tokens):
    for i, token in enumerate(tokens):
        if not 0 <= token < len(pieces) or not pieces[token].strip():
            return i
        state = automaton.read(pieces[token], state)
        if state is None:
            return i
    return len(tokens)


@ex.wrong("Counts bytes, not tokens.", replaces="valid_prefix")
def counts_bytes(automaton, state, pieces, tokens):
    count = 0
    for token in tokens:
        if not 0 <= token < len(pieces) or not pieces[token]:
            return count
        state = automaton.read(pieces[token], state)
        if state is None:
            return count
        count += len(pieces[token])
    return count


def forced_by_trial(automaton, state, limit):
    """Bytes that are the only way on, one at a time."""
    found = b""
    while len(found) < limit:
        here = automaton.read(found, state)
        ways = [bytes([byte]) for byte in range(256) if automaton.read(found + bytes([byte]), state) is not None]
        if here in automaton.accepting or len(ways) != 1:
            break
        found += ways[0]
    return found


PATTERNS = ("abc|abd", "ab*", "abc", "a?b", "(ab)*cd", "x(yz)+", "q[ab]rs", "aa?a?")


@ex.check("forced: bytes without an alternative, up to the limit")
def forced(mine, t):
    for limit in (99, 1, 0):
        for pattern in PATTERNS:
            for state in range(len(Machine.of(pattern).edges)):
                automaton = machine(t, pattern)
                got = t.call(mine.forced_bytes, automaton, state, limit,
                             shown=f"forced_bytes(automaton, {state}, {limit})")
                t.equal(got, forced_by_trial(automaton, state, limit))


@ex.check("forced: the text may end, or go round in a circle")
def circles(mine, t):
    for edges, accepting in (([{97: 0}], []), ([{97: 1}, {98: 0}], []), ([{97: 1}, {98: 0}], [1])):
        automaton = Automaton(edges, accepting)
        for limit in (1, 5, 20):
            t.case(f"automaton = Automaton({edges}, {set(accepting) or 'set()'})")
            got = t.call(mine.forced_bytes, automaton, 0, limit, shown=f"forced_bytes(automaton, 0, {limit})")
            t.equal(got, forced_by_trial(automaton, 0, limit))


@ex.check("forced: every byte counts, 0, line ends, 255, and the first half of a character")
def forced_odd_bytes(mine, t):
    edges, accepting = [{0: 1}, {195: 2}, {168: 3, 169: 3}, {255: 4}, {10: 5}, {}], {5}
    for limit in (99, 2, 1):
        for state in (3, 0, 1, 2, 4, 5):
            automaton = Automaton(edges, accepting)
            t.case(f"automaton = Automaton({edges}, {accepting})")
            got = t.call(mine.forced_bytes, automaton, state, limit, shown=f"forced_bytes(automaton, {state}, {limit})")
            t.equal(got, forced_by_trial(automaton, state, limit))


def valid_by_trial(automaton, state, pieces, tokens):
    """The longest beginning whose bytes can be read as a whole."""
    known = next((i for i, x in enumerate(tokens) if not 0 <= x < len(pieces) or not pieces[x]), len(tokens))
    fits = [n for n in range(known + 1) if automaton.read(b"".join(pieces[x] for x in tokens[:n]), state) is not None]
    return max(fits)


def judged(mine, t, pattern, state, pieces, tokens):
    """One draft, told as code."""
    automaton = machine(t, pattern)
    t.story.append(f"pieces = {pieces!r}")
    got = t.call(mine.valid_prefix, automaton, state, pieces, tokens,
                 shown=f"valid_prefix(automaton, {state}, pieces, {tokens})")
    t.equal(got, valid_by_trial(automaton, state, pieces, tokens))


@ex.check("valid: as many tokens as can follow one another, whole sentence or not")
def valid(mine, t):
    pieces = [b"a", b"ab", b"b", b"c"]
    for tokens in ([], [0], [3], [0, 2], [0, 2, 3], [1, 3], [1, 2, 3], [0, 0, 2], [1, 0, 3], [1, 3, 3]):
        judged(mine, t, "abc", 0, pieces, tokens)
    judged(mine, t, "abc", 1, pieces, [2, 3])
    judged(mine, t, "(ab)*c", 0, pieces, [1, 1, 0, 2, 3])
    judged(mine, t, "a *b", 0, [b"a", b" ", b"  b"], [0, 1, 1, 2])


@ex.check("valid: special tokens and unknown ids end a draft")
def strangers(mine, t):
    pieces = [b"a", b"", b"b"]
    for tokens in ([0, 1, 2], [1], [0, 7], [0, -1], [3], [0, 2, 1]):
        judged(mine, t, "(ab)*", 0, pieces, tokens)


@ex.check("valid: random drafts")
def random_drafts(mine, t):
    for pattern in ("(a|ab)(c|bcd)*", "([ab]c)+", "(abc|abd|x)*c"):
        pieces = [b"a", b"ab", b"b", b"bc", b"c", b"", b"abc", b"d", b"ca", b"x"]
        for _ in range(12):
            tokens = [int(i) for i in t.rng.integers(-1, len(pieces) + 1, size=int(t.rng.integers(1, 7)))]
            judged(mine, t, pattern, 0, pieces, tokens)


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch11.phrase",
    title="A ban, and a phrase that must follow",
    points=15,
    level="medium",
    section="11.8",
    hints=[
        "One number is the whole state: how many tokens of the phrase have been said, or that none is due. Only `commit` "
        "and `reset` change it.",
        "While a phrase is due, `process` forbids everything but its next token. Otherwise it forbids the banned tokens.",
        "`forced_tokens` returns what is left of the phrase, not the whole of it, and changes nothing.",
        "`valid_prefix` goes through the tokens with a copy of the number: each of them may begin the phrase or be a part "
        "of it. The same two rules as in `process` and `commit` decide.",
    ],
)


@ex.solution
class Phrase:
    """A processor that bans tokens, and forces a phrase after a trigger.

    In chapter 04 a processor banned tokens.  This one also knows what must follow: once
    `trigger` was chosen, the tokens of `phrase` follow, one by one, and nothing else.
    Then everything but the banned tokens may follow again, until the next trigger.

    Parameters
    ----------
    banned : list of int
        May be empty.
    trigger : int
    phrase : list of int
        At least one token.

    Raises
    ------
    ValueError
        A token of the phrase is banned, or is the trigger.

    Examples
    --------
    >>> p, row = Phrase(banned=[0], trigger=1, phrase=[2, 3]), np.zeros(4)
    >>> p.process(row, [])
    >>> row.tolist()
    [-inf, 0.0, 0.0, 0.0]
    >>> p.commit(1)
    >>> p.forced_tokens(limit=8), p.valid_prefix([2, 3, 0])
    ([2, 3], 2)
    """

    def __init__(self, banned, trigger, phrase):
        """Keep the three; no phrase is due yet."""
        if set(phrase) & {*banned, trigger}:
            raise ValueError("the phrase holds a banned token or its own trigger")
        self.banned, self.trigger, self.phrase = banned, trigger, phrase
        self.due = 0

    def process(self, logits, history):
        """Forbid in `logits`, a float array [vocab], in place, what may not come next.

        It may be called several times before a token is chosen, and must not change what it
        will say the next time.
        """
        if self.due:
            token = self.phrase[-self.due]
            kept = logits[token]
            logits[:] = -np.inf
            logits[token] = kept
        else:
            logits[self.banned] = -np.inf

    def commit(self, token):
        """Take note that `token` was chosen."""
        if self.due:
            self.due -= 1
        elif token == self.trigger:
            self.due = len(self.phrase)

    def reset(self):
        """A new turn begins: no phrase is due."""
        self.due = 0

    def forced_tokens(self, limit):
        """Return what must follow now: what is left of the phrase, at most `limit` tokens.

        A look ahead: it changes nothing.  An empty list where there is a choice.
        """
        return self.phrase[len(self.phrase) - self.due:][:limit]

    def valid_prefix(self, tokens):
        """Return how many of `tokens`, from the first on, could be chosen one after another.

        A look ahead: it changes nothing.
        """
        due = self.due
        for i, token in enumerate(tokens):
            if (token != self.phrase[-due]) if due else (token in self.banned):
                return i
            due = due - 1 if due else len(self.phrase) * (token == self.trigger)
        return len(tokens)


@ex.wrong("Looking ahead moves it on: `forced_tokens` takes the phrase for said. A draft may be cut or rejected, and without "
          "drafts nobody asks. So the mask would depend on the drafts. Only `commit` may change the state.")
class DependsOnTheDraft(Phrase):
    def forced_tokens(self, limit):
        found = super().forced_tokens(limit)
        self.due -= len(found)
        return found


@ex.wrong("`valid_prefix` leaves the processor where its draft would lead. It is a look ahead: work with a copy of the state.")
class WalksWithTheDraft(Phrase):
    def valid_prefix(self, tokens):
        count = super().valid_prefix(tokens)
        for token in tokens[:count]:
            self.commit(token)
        return count


@ex.wrong("Forgets to advance: `commit` notices the trigger, but no token of the phrase. Its first token is then forced again "
          "and again.")
class NeverAdvances(Phrase):
    def commit(self, token):
        if token == self.trigger:
            self.due = len(self.phrase)


@ex.wrong("Advances in `process`. A row may be looked at without a token being chosen from it: when a step fails and is run "
          "again, for example. Only `commit` says that a token was chosen.")
class AdvancesInProcess(Phrase):
    def process(self, logits, history):
        super().process(logits, history)
        self.due = max(0, self.due - 1)

    def commit(self, token):
        if token == self.trigger:
            self.due = len(self.phrase)


@ex.wrong("Looks at the last token of `history` to see whether the phrase is due, so it knows the trigger but not how much of "
          "the phrase was said. And the history holds the prompt too, which nobody has chosen in this turn.")
class AsksTheHistory(Phrase):
    def process(self, logits, history):
        if history and history[-1] == self.trigger:
            self.due = len(self.phrase)
        super().process(logits, history)


@ex.wrong("The phrase is advice, not a must: its next token gets a bonus of 100. Another one may still win. Forbid all the "
          "others.")
class OnlyAdvice(Phrase):
    def process(self, logits, history):
        if self.due:
            logits[self.phrase[-self.due]] += 100
        else:
            logits[self.banned] = -np.inf


@ex.wrong("Makes a new row and gives it nobody. `process` returns nothing: it changes the row that it was given, in place.")
class NewRow(Phrase):
    def process(self, logits, history):
        super().process(logits.copy() if self.due else logits, history)


@ex.wrong("Takes an empty history for the begin of a turn. A turn begins with `reset`; what is due depends on that and on `commit` "
          "alone.")
class BeginsByHistory(Phrase):
    def process(self, logits, history):
        if not history:
            self.reset()
        super().process(logits, history)


@ex.wrong("`forced_tokens` always returns the whole phrase, also when a part of it has been said. What must follow is the rest.")
class TheWholePhrase(Phrase):
    def forced_tokens(self, limit):
        return self.phrase[:limit] if self.due else []


@ex.wrong("`forced_tokens` returns the phrase although nothing is forced: the trigger has not been chosen.")
class AlwaysForced(Phrase):
    def forced_tokens(self, limit):
        return self.phrase[len(self.phrase) - self.due:][:limit] if self.due else self.phrase[:limit]


@ex.wrong("`forced_tokens` does not keep the limit.")
class WithoutLimit(Phrase):
    def forced_tokens(self, limit):
        return super().forced_tokens(len(self.phrase))


@ex.wrong("`valid_prefix` asks only whether a token is banned. While a phrase is due, its next token alone may follow.")
class ValidForgetsThePhrase(Phrase):
    def valid_prefix(self, tokens):
        return next((i for i, token in enumerate(tokens) if token in self.banned), len(tokens))


@ex.wrong("`valid_prefix` does not see a trigger inside the draft. After it the phrase must follow, in the draft as well.")
class ValidMissesTheTrigger(Phrase):
    def valid_prefix(self, tokens):
        rest = self.forced_tokens(len(self.phrase))
        for i, token in enumerate(tokens):
            if (token != rest[i]) if i < len(rest) else (token in self.banned):
                return i
        return len(tokens)


@ex.wrong("`valid_prefix` lets banned tokens pass. The mask would forbid them, so verifying them is wasted.")
class ValidForgetsTheBan(Phrase):
    def valid_prefix(self, tokens):
        banned, self.banned = self.banned, []
        try:
            return super().valid_prefix(tokens)
        finally:
            self.banned = banned


@ex.wrong("The ban is gone once a phrase has been said.")
class BansOnlyAtFirst(Phrase):
    def commit(self, token):
        super().commit(token)
        if token == self.phrase[-1]:
            self.banned = []


@ex.wrong("`reset` forgets nothing: a turn that ended in the middle of a phrase makes the next turn begin with the rest of it.")
class NeverForgets(Phrase):
    def reset(self):
        pass


@ex.wrong("Accepts a phrase with a banned token, or with its own trigger. Nothing could follow then, or it would never end: say "
          "so when the processor is made.")
class AcceptsAnything(Phrase):
    def __init__(self, banned, trigger, phrase):
        self.banned, self.trigger, self.phrase = banned, trigger, phrase
        self.due = 0


@ex.wrong("The trigger may be chosen although it is banned. A ban holds for every token: what is triggered then, nobody asks.")
class ExemptsTheTrigger(Phrase):
    def process(self, logits, history):
        kept = logits[self.trigger]
        super().process(logits, history)
        if not self.due:
            logits[self.trigger] = kept


@ex.wrong("Keeps its place in the class, so that all its objects share it. Each stream has a processor of its own, and they are at "
          "different places.")
class OneForAll(Phrase):
    place = {"due": 0}

    def __init__(self, banned, trigger, phrase):
        super().__init__(banned, trigger, phrase)

    due = property(lambda self: self.place["due"], lambda self, due: self.place.update(due=due))


@ex.wrong("Gives its own list away. Who takes the tokens may append to the list, or shorten it, and the phrase changes with it: "
          "return a copy.")
class GivesItsList(Phrase):
    def forced_tokens(self, limit):
        return self.phrase if self.due == len(self.phrase) <= limit else super().forced_tokens(limit)


@ex.wrong("Takes a limit of 0 for no limit. At most 0 tokens are none.")
class ZeroIsUnlimited(Phrase):
    def forced_tokens(self, limit):
        return super().forced_tokens(limit or len(self.phrase))


@ex.wrong("Refuses a trigger that is banned. Such a processor never comes to its phrase, and that is no contradiction: only a phrase "
          "that could not be said is an error.")
class RefusesMore(Phrase):
    def __init__(self, banned, trigger, phrase):
        if trigger in banned:
            raise ValueError("the trigger is banned")
        super().__init__(banned, trigger, phrase)


PHRASES = (([], 1, [2]), ([0], 1, [2, 3]), ([0, 4], 3, [1, 2, 1]))


def made(t, Phrase, banned, trigger, phrase):
    """A processor, told as code."""
    t.case(f"p = Phrase({banned}, {trigger}, {phrase})")
    return t.call(Phrase, [*banned], trigger, [*phrase], shown=None)  # lists of its own, whatever it does with them


def told(t, p, *tokens):
    """Commits, told as code."""
    for token in tokens:
        t.call(p.commit, token, shown=f"p.commit({token})")


def shown_row(t, p, history=()):
    """What `process` makes of a row that likes the banned tokens."""
    logits = np.array([300.0, -1.0, -250.0, 2.0, 5.0])
    t.call(p.process, logits, list(history), shown=f"p.process(row, {list(history)})", changes=True)
    return logits


def row_with(*allowed):
    return np.array([v if i in allowed else -np.inf for i, v in enumerate([300.0, -1.0, -250.0, 2.0, 5.0])])


@ex.check("bans at first, forces the phrase after the trigger, bans again")
def bans_and_forces(Phrase, t):
    for banned, trigger, phrase in (PHRASES[1], PHRASES[2], PHRASES[0]):
        p = made(t, Phrase, banned, trigger, phrase)
        t.story.append("row = np.array([300.0, -1.0, -250.0, 2.0, 5.0])")
        free = row_with(*(i for i in range(5) if i not in banned))
        t.equal(shown_row(t, p), free, "the row")
        told(t, p, phrase[0])  # nothing begins without the trigger
        t.equal(shown_row(t, p), free, "the row")
        told(t, p, trigger)
        for token in phrase:
            for history in ([trigger], []):  # a row may be looked at twice, and the history does not matter
                row = shown_row(t, p, history)
                same = bool((row == row_with(*range(5))).all())
                t.holds(not same, "the row is as it was before: `process` changes the row that it is given, and returns nothing")
                t.equal(row, row_with(token), "the row")
            told(t, p, token)
        t.equal(shown_row(t, p), free, "the row")


@ex.check("a trigger that is banned is forbidden like any other token")
def banned_trigger(Phrase, t):
    p = made(t, Phrase, [0, 1], 1, [2, 3])
    t.equal(shown_row(t, p), row_with(2, 3, 4), "the row")
    t.equal(t.call(p.valid_prefix, [4, 1, 2], shown="p.valid_prefix([4, 1, 2])"), 1)


@ex.check("the prompt does not trigger it, reset forgets a phrase that was begun")
def begins_anew(Phrase, t):
    p = made(t, Phrase, [0], 1, [2, 3])
    t.equal(shown_row(t, p, [4, 1]), row_with(1, 2, 3, 4), "the row")
    for said in ([1], [1, 2]):
        p = made(t, Phrase, [0], 1, [2, 3])
        told(t, p, *said)
        t.call(p.reset, shown="p.reset()")
        t.equal(shown_row(t, p), row_with(1, 2, 3, 4), "the row")


@ex.check("forced_tokens: the rest of the phrase, at most limit, and it changes nothing")
def forces(Phrase, t):
    for banned, trigger, phrase in PHRASES[1:]:
        for n in range(-1, len(phrase) + 1):
            p = made(t, Phrase, banned, trigger, phrase)
            told(t, p, *([trigger, *phrase[:n]] if n >= 0 else []))
            for limit in (1, 2, 8, 0, 8):
                got = t.call(p.forced_tokens, limit, shown=f"p.forced_tokens({limit})")
                t.equal(got, (phrase[n:] if n >= 0 else [])[:limit])


@ex.check("forced_tokens: what is done with the list that it returned changes nothing")
def gives_a_copy(Phrase, t):
    for limit in (2, 8):
        p = made(t, Phrase, [0], 1, [2, 3])
        told(t, p, 1)
        got = t.call(p.forced_tokens, limit, shown=f"got = p.forced_tokens({limit})")
        t.equal(got, [2, 3])
        got.append(4)
        t.story.append("got.append(4)")
        t.equal(t.call(p.forced_tokens, 8, shown="p.forced_tokens(8)"), [2, 3])
        t.equal(t.call(p.valid_prefix, [2, 3, 4, 1, 2, 3, 4], shown="p.valid_prefix([2, 3, 4, 1, 2, 3, 4])"), 7)


@ex.check("two processors are at places of their own")
def two_streams(Phrase, t):
    p = made(t, Phrase, [0], 1, [2, 3])
    q = t.call(Phrase, [4], 0, [1, 1, 3], shown="q = Phrase([4], 0, [1, 1, 3])")
    told(t, p, 1, 2)
    t.equal(t.call(q.forced_tokens, 8, shown="q.forced_tokens(8)"), [])
    t.call(q.commit, 0, shown="q.commit(0)")
    t.equal(t.call(p.forced_tokens, 8, shown="p.forced_tokens(8)"), [3])
    t.call(q.reset, shown="q.reset()")
    t.equal(t.call(p.forced_tokens, 8, shown="p.forced_tokens(8)"), [3])


def could_follow(banned, trigger, phrase, said, tokens):
    """How many may follow: a list of what is due, token by token."""
    due, count = [], 0
    for i, token in enumerate([*said, *tokens]):
        if i >= len(said):
            if (token != due[0]) if due else (token in banned):
                return count
            count += 1
        due = due[1:] if due else list(phrase) if token == trigger else []
    return count


@ex.check("valid_prefix: a draft may begin or end inside the phrase, and asking changes nothing")
def judges(Phrase, t):
    for banned, trigger, phrase in PHRASES:
        for said in ([trigger], [trigger, phrase[0]], []):
            p = made(t, Phrase, banned, trigger, phrase)
            told(t, p, *said)
            drafts = [[], [4], [0], [trigger], [trigger, *phrase], [trigger, *phrase, 2], phrase, [*phrase, 0], [trigger, 4]]
            for draft in [*drafts, *([int(i) for i in t.rng.integers(0, 5, size=4)] for _ in range(6))]:
                got = t.call(p.valid_prefix, draft, shown=f"p.valid_prefix({draft})")
                t.equal(got, could_follow(banned, trigger, phrase, said, draft))


@ex.check("a phrase with a banned token or with its trigger is refused")
def refused(Phrase, t):
    for banned, trigger, phrase in (([2], 1, [2, 3]), ([0], 1, [3, 1]), ([0, 3], 1, [2, 3])):
        def make(banned, trigger, phrase):
            Phrase(banned, trigger, phrase)
            return "a processor"

        t.case()
        t.raises("ValueError", make, banned, trigger, phrase, shown=f"Phrase({banned}, {trigger}, {phrase})")
    p = made(t, Phrase, [0, 1], 1, [2, 3])  # a trigger may be banned: then it never comes
    t.equal(t.call(p.valid_prefix, [4, 1], shown="p.valid_prefix([4, 1])"), 1)


def toy_row(history):
    """What a pretend model says after a history."""
    seen = 7
    for token in history:
        seen = (31 * seen + token + 7) % 1009
    return np.array([(seen + 17) * (37 * i + 11) % 1013 / 200 for i in range(5)])


def spoken(p, n, speculative):
    """n tokens, plain or with forced drafts; a pass ends at the first token that was not drafted."""
    history = [4]
    while len(history) < n + 1:
        draft = p.forced_tokens(2) if speculative else []
        for i in range(len(draft) + 1):
            row = toy_row(history)
            p.process(row, history)
            token = int(row.argmax())
            history.append(token)
            p.commit(token)
            if i == len(draft) or token != draft[i]:
                break
    return history[1:n + 1]


@ex.check("with drafts and without, the same tokens")
def same_tokens(Phrase, t):
    for banned, trigger, phrase in PHRASES:
        runs = []
        for speculative in (False, True):
            p = made(t, Phrase, banned, trigger, phrase)
            runs.append(t.call(spoken, p, 40, speculative, shown=f"forty tokens, {'with' if speculative else 'without'} drafts"))
        first = next((i for i in range(40) if runs[0][i] != runs[1][i]), None)
        t.holds(first is None, f"token {first} differs: with drafts {runs[1][first or 0]}, without {runs[0][first or 0]}")


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch11.source",
    title="A source of drafts that knows the grammar",
    points=20,
    level="hard",
    section="11.9",
    hints=[
        "`suggest` asks the processor first. If something is forced, that is the draft, and the inner source is not asked.",
        "Otherwise ask the inner source, take at most `limit` tokens, and keep processor.valid_prefix(...) of them.",
        "The inner source counts how well it drafts. So it must hear how much of its draft is used, whoever cuts it: you, or "
        "the decoder through `truncate_pending`. A forced draft was not its own.",
        "One attribute remembers whose the latest draft was. What was committed is told to the inner source every time, also "
        "after a forced draft: it keeps the text.",
    ],
)


@ex.solution
class GrammarSource:
    """Another source of drafts, under a grammar.

    Parameters
    ----------
    processor : object with `forced_tokens(limit)` and `valid_prefix(tokens)`
        What must follow, and how many tokens of a draft may.
    inner : object with `suggest(context, limit)`, `observe(committed)` and `truncate_pending(n)`
        The source that drafts where there is a choice.

    Tokens come from both as any sequence, a list or a tuple for example.
    """

    def __init__(self, processor, inner):
        """Keep the two."""
        self.processor, self.inner = processor, inner
        self.from_inner = False

    def suggest(self, context, limit):
        """Return a draft: at most `limit` tokens that may follow `context`.

        What must follow is the whole draft, and the inner source is not asked then.  Where
        nothing is forced, the inner source drafts.  Of its draft, only the tokens before the first
        refused one are kept.  If that is less than it proposed, it is told the number with
        `truncate_pending`.

        Parameters
        ----------
        context : list of int
            The text so far.
        limit : int

        Returns
        -------
        list of int
        """
        forced = list(self.processor.forced_tokens(limit))[:limit]
        self.from_inner = not forced
        if forced:
            return forced
        proposed = list(self.inner.suggest(context, limit))
        valid = self.processor.valid_prefix(proposed[:limit])
        if valid < len(proposed):
            self.inner.truncate_pending(valid)
        return proposed[:valid]

    def truncate_pending(self, n):
        """The decoder verifies only the first `n` tokens of the latest draft.

        The inner source is told, if that draft was its own.
        """
        if self.from_inner:
            self.inner.truncate_pending(n)

    def observe(self, committed):
        """Pass on which tokens became text, whoever drafted them."""
        self.inner.observe(committed)


@ex.wrong("Asks the inner source first, and the grammar only where that has nothing. A guess is right now and then. What is "
          "forced is right always, so it comes first.")
class InnerFirst(GrammarSource):
    def suggest(self, context, limit):
        proposed = list(self.inner.suggest(context, limit))
        valid = self.processor.valid_prefix(proposed[:limit])
        self.from_inner = bool(valid)
        if valid < len(proposed):
            self.inner.truncate_pending(valid)
        return proposed[:valid] or list(self.processor.forced_tokens(limit))[:limit]


@ex.wrong("Asks the inner source even where a draft is forced. It then waits to hear how its own draft did, and counts the "
          "forced tokens for it.")
class AsksBoth(GrammarSource):
    def suggest(self, context, limit):
        self.inner.suggest(context, limit)
        return super().suggest(context, limit)


@ex.wrong("Puts a guess after the forced tokens. The inner source drafted for the text as it is, not for the text after them.")
class AddsAGuess(GrammarSource):
    def suggest(self, context, limit):
        draft = super().suggest(context, limit)
        if not self.from_inner and len(draft) < limit:
            draft = draft + list(self.inner.suggest(context, limit - len(draft)))
        return draft


@ex.wrong("Never cuts: refused tokens are drafted too. The mask rejects them, so every row that was spent on them, and after "
          "them, is lost.")
class NeverCuts(GrammarSource):
    def suggest(self, context, limit):
        forced = list(self.processor.forced_tokens(limit))[:limit]
        self.from_inner = not forced
        return forced or list(self.inner.suggest(context, limit))[:limit]


@ex.wrong("Keeps the first refused token. `valid_prefix` counts what may follow: the token at that place may not.")
class OneTooMany(GrammarSource):
    def suggest(self, context, limit):
        forced = list(self.processor.forced_tokens(limit))[:limit]
        self.from_inner = not forced
        if forced:
            return forced
        proposed = list(self.inner.suggest(context, limit))
        valid = self.processor.valid_prefix(proposed[:limit])
        if valid + 1 < len(proposed):
            self.inner.truncate_pending(valid + 1)
        return proposed[:valid + 1]


@ex.wrong("Throws out the refused token and keeps what came after it. Those tokens were a guess at another text.")
class LeavesAHole(GrammarSource):
    def suggest(self, context, limit):
        forced = list(self.processor.forced_tokens(limit))[:limit]
        self.from_inner = not forced
        if forced:
            return forced
        proposed = list(self.inner.suggest(context, limit))[:limit]
        kept = []
        for token in proposed:
            if self.processor.valid_prefix([*kept, token]) == len(kept) + 1:
                kept.append(token)
        if len(kept) < len(proposed):
            self.inner.truncate_pending(len(kept))
        return kept


@ex.wrong("Throws the whole draft away if one token of it is refused. The tokens before that one are as good as ever.")
class AllOrNothing(GrammarSource):
    def suggest(self, context, limit):
        forced = list(self.processor.forced_tokens(limit))[:limit]
        self.from_inner = not forced
        if forced:
            return forced
        proposed = list(self.inner.suggest(context, limit))
        if self.processor.valid_prefix(proposed[:limit]) < len(proposed):
            self.inner.truncate_pending(0)
            return []
        return proposed


@ex.wrong("Cuts the draft and does not tell the inner source. That one counts the missing tokens as rejected, thinks badly of "
          "itself, and is muted.")
class CutsInSilence(GrammarSource):
    def suggest(self, context, limit):
        forced = list(self.processor.forced_tokens(limit))[:limit]
        self.from_inner = not forced
        if forced:
            return forced
        proposed = list(self.inner.suggest(context, limit))[:limit]
        return proposed[:self.processor.valid_prefix(proposed)]


@ex.wrong("Takes more than `limit` tokens from the inner source.")
class BeyondTheLimit(GrammarSource):
    def suggest(self, context, limit):
        forced = list(self.processor.forced_tokens(limit))[:limit]
        self.from_inner = not forced
        if forced:
            return forced
        proposed = list(self.inner.suggest(context, limit))
        valid = self.processor.valid_prefix(proposed)
        if valid < len(proposed):
            self.inner.truncate_pending(valid)
        return proposed[:valid]


@ex.wrong("Takes more than `limit` forced tokens.")
class ForcedBeyondTheLimit(GrammarSource):
    def suggest(self, context, limit):
        forced = list(self.processor.forced_tokens(limit))
        self.from_inner = not forced
        return forced or super().suggest(context, limit)


@ex.wrong("Tells the inner source that its draft was cut, when the draft was forced. It has not drafted anything.")
class TellsTheWrongOne(GrammarSource):
    def truncate_pending(self, n):
        self.inner.truncate_pending(n)


@ex.wrong("Does not pass on that the decoder cut the inner source's draft.")
class KeepsTheCut(GrammarSource):
    def truncate_pending(self, n):
        pass


@ex.wrong("Judges each token alone. Whether the second may follow depends on the first: ask about all of them at once.")
class OneByOne(GrammarSource):
    def suggest(self, context, limit):
        forced = list(self.processor.forced_tokens(limit))[:limit]
        self.from_inner = not forced
        if forced:
            return forced
        proposed = list(self.inner.suggest(context, limit))
        valid = next((i for i, token in enumerate(proposed[:limit]) if not self.processor.valid_prefix([token])), limit)
        if valid < len(proposed):
            self.inner.truncate_pending(valid)
        return proposed[:valid]


@ex.wrong("Tells the inner source of one cut only. The decoder may cut a draft again, which you have cut before: the last number "
          "counts.")
class TellsOnce(GrammarSource):
    def truncate_pending(self, n):
        super().truncate_pending(n)
        self.from_inner = False


@ex.wrong("After a forced draft it does not tell the inner source what was committed. That one then has a hole in its text, and "
          "finds its matches in a text that nobody said.")
class HoleInTheText(GrammarSource):
    def observe(self, committed):
        if self.from_inner:
            self.inner.observe(committed)


class Letters:
    """A pretend grammar: after `forces` tokens of 7, 8, 9 there is a choice of all ids below 5."""

    def __init__(self, forces=()):
        self.forces = list(forces)

    def forced_tokens(self, limit):
        return self.forces[:limit]

    def valid_prefix(self, tokens):
        return next((i for i, token in enumerate(tokens) if token >= 5), len(tokens))


class Obstinate(Letters):
    """Forces more than it was asked for, and gives a tuple."""

    def forced_tokens(self, limit):
        return tuple(self.forces)


class Noting:
    """A source that proposes always the same, a tuple, and notes what it is told."""

    def __init__(self, proposes):
        self.proposes, self.notes = tuple(proposes), []

    def suggest(self, context, limit):
        self.notes.append(("suggest", list(context), limit))
        return self.proposes

    def truncate_pending(self, n):
        self.notes.append(("truncate_pending", n))

    def observe(self, committed):
        self.notes.append(("observe", list(committed)))


class Rising(Letters):
    """A pretend grammar: each token is larger than the one before; the text so far ends with 2."""

    def valid_prefix(self, tokens):
        text = [2, *tokens]
        return next((i for i in range(len(tokens)) if text[i + 1] <= text[i]), len(tokens))


def sourced(t, GrammarSource, forces, proposes, processor=Letters):
    """A source over a pretend grammar, told as code."""
    t.case(f"must follow now: {list(forces)}; ids of 5 and more are refused; the inner source proposes {list(proposes)}")
    inner, grammar = Noting(proposes), processor(forces)
    return t.call(GrammarSource, grammar, inner, shown="source = GrammarSource(processor, inner)"), inner, grammar


def suggested(t, source, limit, want):
    """One suggestion."""
    got = t.call(source.suggest, [1, 2], limit, shown=f"source.suggest([1, 2], {limit})")
    t.holds(isinstance(got, list), f"the result is {got!r}, expected a list")
    t.equal(got, want)


@ex.check("what must follow is the draft, and the inner source is not asked")
def forced_first(GrammarSource, t):
    for forces, limit, kind in (([7], 4, Letters), ([7, 8, 9], 8, Letters), ([7, 8, 9], 2, Letters), ([7, 8, 9], 2, Obstinate)):
        source, inner, _ = sourced(t, GrammarSource, forces, [1, 2, 3], kind)
        suggested(t, source, limit, forces[:limit])
        t.equal(inner.notes, [], "what the inner source was told")


@ex.check("elsewhere the inner source drafts, cut before its first refused token, and hears of the cut")
def cut(GrammarSource, t):
    for proposes in ([], [1], [1, 2, 3], [6], [1, 6], [1, 2, 6, 3], [6, 1, 2], [1, 6, 6, 2]):
        source, inner, _ = sourced(t, GrammarSource, [], proposes)
        valid = next((i for i, token in enumerate(proposes) if token >= 5), len(proposes))
        suggested(t, source, 8, proposes[:valid])
        cuts = [("truncate_pending", valid)] if valid < len(proposes) else []
        t.equal(inner.notes, [("suggest", [1, 2], 8), *cuts], "what the inner source was told")


@ex.check("an inner source that proposes more than the limit is cut to it, and hears of that")
def limited(GrammarSource, t):
    for proposes, limit in (([1, 2, 3], 2), ([1, 2, 3, 4], 1), ([1, 6, 3], 2), ([1, 2, 6], 2)):
        source, inner, _ = sourced(t, GrammarSource, [], proposes)
        valid = next((i for i, token in enumerate(proposes[:limit]) if token >= 5), limit)
        suggested(t, source, limit, proposes[:valid])
        t.equal(inner.notes, [("suggest", [1, 2], limit), ("truncate_pending", valid)], "what the inner source was told")


@ex.check("whether a token may follow depends on the tokens before it; a limit of 0 gives no draft")
def judged_together(GrammarSource, t):
    for proposes, valid in (([3, 4, 7], 3), ([4, 3], 1), ([3, 5, 4, 6], 2), ([1, 3], 0), ([3, 3], 1)):
        t.case(f"each token must be larger than the one before, the text ends with 2; the inner source proposes {proposes}")
        inner = Noting(proposes)
        source = t.call(GrammarSource, Rising(), inner, shown="source = GrammarSource(processor, inner)")
        suggested(t, source, 8, proposes[:valid])
        cuts = [("truncate_pending", valid)] if valid < len(proposes) else []
        t.equal(inner.notes, [("suggest", [1, 2], 8), *cuts], "what the inner source was told")
    source, _, _ = sourced(t, GrammarSource, [], [1, 2])
    suggested(t, source, 0, [])


@ex.check("a cut by the decoder reaches the inner source if the draft was its own")
def cut_outside(GrammarSource, t):
    source, inner, _ = sourced(t, GrammarSource, [], [1, 2])
    t.call(source.truncate_pending, 0, shown="source.truncate_pending(0)  # nobody has drafted yet")
    t.equal(inner.notes, [], "what the inner source was told")
    for forces, proposes in (([], [1, 2, 3]), ([7, 8], [1, 2])):
        source, inner, _ = sourced(t, GrammarSource, forces, proposes)
        suggested(t, source, 8, forces or proposes)
        t.call(source.truncate_pending, 1, shown="source.truncate_pending(1)")
        told_of = [] if forces else [("suggest", [1, 2], 8), ("truncate_pending", 1)]
        t.equal(inner.notes, told_of, "what the inner source was told")


@ex.check("the decoder may cut a draft that was cut before, and more than once")
def cut_twice(GrammarSource, t):
    source, inner, _ = sourced(t, GrammarSource, [], [1, 2, 3, 6, 4])
    suggested(t, source, 8, [1, 2, 3])
    for n in (2, 1):
        t.call(source.truncate_pending, n, shown=f"source.truncate_pending({n})")
    cuts = [("truncate_pending", n) for n in (3, 2, 1)]
    t.equal(inner.notes, [("suggest", [1, 2], 8), *cuts], "what the inner source was told")


@ex.check("what was committed always reaches the inner source; whose draft it was is decided anew each time")
def keeps_the_text(GrammarSource, t):
    source, inner, grammar = sourced(t, GrammarSource, [7, 8], [1, 2])
    for forces in ([7, 8], [], [7]):
        grammar.forces = forces
        t.story.append(f"must follow now: {forces}")
        suggested(t, source, 8, forces or [1, 2])
        t.call(source.truncate_pending, 1, shown="source.truncate_pending(1)")
        t.call(source.observe, [3, 4], shown="source.observe([3, 4])")
    t.equal(inner.notes, [("observe", [3, 4]), ("suggest", [1, 2], 8), ("truncate_pending", 1), ("observe", [3, 4]),
                          ("observe", [3, 4])], "what the inner source was told")
