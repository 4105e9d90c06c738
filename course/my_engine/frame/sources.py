# ruff: noqa: F821
# mypy: ignore-errors
import numpy as np

# ======================================================================================================================
# 6. Where drafts come from: what was said before (chapter 07), indexes of it, and what was nearly said (08)
# ======================================================================================================================

#: ch07.drafter
#: ch08.walk
#: ch08.append
#: ch08.draft
#: ch08.recycle
#: ch08.cascade

TOP_K = 8  # candidates that a row teaches the recycler
TRIALS, LONGEST_CLASS = 8, 16  # what the first guess of odds counts for; longer matches share theirs


class Reference:
    """A document that the text may quote: a finished index, and a cursor that is shown the text.

    Parameters
    ----------
    document : list of int
    """

    def __init__(self, document):
        self.index = Automaton()
        for token in document:
            self.index.append(token)
        self.state, self.match_length = 0, 0

    def observe(self, committed):
        """Move the cursor over tokens that were settled."""
        for token in committed:
            self.state, self.match_length = walk(self.index, self.state, self.match_length, token)

    def suggest(self, context, limit):
        """What follows the match in the document."""
        start = self.index.sample[self.state] + 1
        return self.index.stream[start : start + limit]


class Odds:
    """How often the next token of a draft was right, by the number of tokens that matched before it.

    The first guess is 1 - 1 / match.  It counts as much as TRIALS trials.
    """

    def __init__(self):
        self.right = [TRIALS * (1 - 1 / max(match, 1)) for match in range(LONGEST_CLASS + 1)]
        self.tried = [TRIALS] * (LONGEST_CLASS + 1)

    def of(self, match, n):
        """The odds of n drafted tokens; with each the match is one longer."""
        places = [min(match + i, LONGEST_CLASS) for i in range(n)]
        return [self.right[i] / self.tried[i] for i in places]

    def learn(self, match, draft, committed):
        """Compare a draft with what came, up to its first wrong token; whether it was verified does not matter."""
        for i, (token, real) in enumerate(zip(draft, committed, strict=False)):
            place = min(match + i, LONGEST_CLASS)
            self.tried[place] += 1
            self.right[place] += token == real
            if token != real:
                break


class Cascade:
    """Everybody who may draft: an index of the text, one of each reference, and the recycler when none of them matches.

    Parameters
    ----------
    references : list of list of int
        Documents that the text may quote.
    """

    def __init__(self, references=()):
        conversation = Drafter(Automaton())
        self.drafters = [conversation, *(Reference(document) for document in references)]
        self.matches = [conversation.index, *self.drafters[1:]]  # who knows the length of the match
        self.names = ["conversation"] + ["reference"] * len(references)
        self.gates = [SourceGate() for _ in self.drafters]
        self.rates = [Odds() for _ in self.drafters]
        self.recycler = Recycler(k=TOP_K)
        self.chosen, self.match, self.draft = None, 0, []  # who made the latest draft, after how long a match

    def observe(self, committed):
        """Take note of tokens that were settled."""
        for drafter, gate in zip(self.drafters, self.gates, strict=True):
            drafter.observe(list(committed))
            gate.count_down(len(committed))
        self.recycler.observe(list(committed))

    def suggest(self, context, limit):
        """The draft of the source with the longest match; else recycled candidates."""
        known = [
            Source(name, place.match_length, gate.muted_for > 0)
            for name, place, gate in zip(self.names, self.matches, self.gates, strict=True)
        ]
        self.chosen, budget = choose(known, limit)
        if self.chosen is None:
            self.draft = self.recycler.suggest(context, limit)
        else:
            self.match = self.matches[self.chosen].match_length
            self.draft = self.drafters[self.chosen].suggest(context, min(limit, budget))
        return self.draft

    def odds(self):
        """How likely each token of the latest draft is; None where it was recycled: nobody counts that."""
        return None if self.chosen is None else self.rates[self.chosen].of(self.match, len(self.draft))

    def learn(self, fed, rows, drafted, accepted, committed):
        """What became of the latest draft: `rows` of logits after the tokens `fed`, and what was committed."""
        if self.chosen is not None:
            self.rates[self.chosen].learn(self.match, self.draft, committed)
            if drafted:
                self.gates[self.chosen].record(drafted, accepted)
        self.chosen, self.draft = None, []
        best = np.argpartition(np.asarray(rows), -TOP_K, axis=1)[:, -TOP_K:]
        sorted_ids = [ids[np.argsort(-row[ids], kind="stable")].tolist() for row, ids in zip(rows, best, strict=True)]
        self.recycler.observe_top_k([TopKRow(*pair) for pair in zip(fed, sorted_ids, strict=True)])
