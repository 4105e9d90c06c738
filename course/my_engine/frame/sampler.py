# ruff: noqa: F821
# mypy: ignore-errors
import numpy as np

# ======================================================================================================================
# 4. From a row of logits to a token (chapter 04)
# ======================================================================================================================

#: given ch04 CounterRng
#: ch04.softmax_temperature
#: ch04.top_p
#: ch04.min_p
#: ch04.draw
#: ch04.penalties
#: ch04.ban


class Sampler:
    """Chooses the tokens of one stream: ban, penalties, then the best token or one draw.

    Parameters
    ----------
    temperature : float
        0 takes the best token.
    top_p, min_p : float
        Cuts; 1.0 and 0.0 keep every token.
    repeat, frequency, presence, last_n
        Penalties, as in `penalise`.
    seed : int
    banned : list of int
        Tokens that are never chosen.
    """

    def __init__(
        self,
        temperature=0.0,
        top_p=1.0,
        min_p=0.0,
        repeat=1.0,
        frequency=0.0,
        presence=0.0,
        last_n=64,
        seed=0,
        banned=(),
    ):
        self.temperature, self.top_p, self.min_p = temperature, top_p, min_p
        self.penalties = (last_n, repeat, frequency, presence)
        self.penalises = (repeat, frequency, presence) != (1.0, 0.0, 0.0)
        self.rng = CounterRng(seed)
        self.ban = Ban(list(banned)) if banned else None

    def next(self, logits, history):
        """The next token of the stream."""
        row = np.array(logits, np.float32)
        if self.ban is not None:
            self.ban.process(row, history)
        if self.penalises:
            row = penalise(row, list(history), *self.penalties).astype(np.float32)
        if self.temperature <= 0:
            token = draw(np.array([row.argmax()]), np.ones(1), self.rng, greedy=True)
        else:
            p = softmax(row, self.temperature)
            ids = min(top_p(p, self.top_p), min_p(p, self.min_p), key=len)  # each is a beginning of the other
            token = draw(ids, p[ids], self.rng)
        if self.ban is not None:
            self.ban.commit(token)
        return int(token)
