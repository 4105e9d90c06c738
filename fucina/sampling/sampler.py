"""From a row of logits to a token: processor, penalties, then greedy or one random draw."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import checks
from ..errors import AllTokensMasked, InvalidLogits, InvalidOption, InvalidSamplerOption, NonFiniteLogits
from ..kernels.softmax_weights import MAX_VOCAB
from .options import SamplerOptions
from .processor import LogitProcessor, check_processor, has_mask, members, reset_processor
from .rng import MASK, CounterRng

FEW = 8  # where at most one token in so many is allowed, these are looked at alone
BEST = 8  # greedy decoding asks a grammar about so many tokens before it asks for a mask


@dataclass(frozen=True, slots=True)
class SamplerState:
    """What must be saved to continue a stream's draws: the seed and how many were made."""

    seed: int
    position: int


class Sampler:
    """Chooses the tokens of one stream.

    Parameters
    ----------
    options : SamplerOptions, optional
        Default: greedy.
    processor : LogitProcessor, optional
        Sees every row before anything else, and every chosen token once.

    Attributes
    ----------
    options : SamplerOptions
    processor : LogitProcessor or None
    rng : CounterRng
        `rng.position` draws have been made: exactly one per sampled token, none for greedy ones or when `next` raises.

    Raises
    ------
    InvalidOption
        `processor` is a class, or has no `process` or no `commit`.

    Notes
    -----
    Order: processor, penalties, greedy shortcut, top-k, temperature, top-p, min-p, one draw.  Every cut is exact over
    the whole vocabulary: `reference.choose` is the definition.  Equal logits are ordered by lowest id.  One sampler
    belongs to one stream and one thread.
    """

    __slots__ = ("_grammar", "_ids", "_others", "_processor", "_row", "_scratch", "options", "rng")

    def __init__(self, options: SamplerOptions | None = None, processor: LogitProcessor | None = None):
        self.options = SamplerOptions() if options is None else options
        self.processor = processor
        self.rng = CounterRng(self.options.seed)
        self._row = np.empty(0, np.float32)
        self._ids: np.ndarray | None = None
        self._scratch: tuple[np.ndarray, ...] = ()

    def next(self, logits: np.ndarray, history: Sequence[int] = ()) -> int:
        """Choose the next token of the stream.

        Parameters
        ----------
        logits : float [vocab] or [1, vocab]
            Never modified: processors and penalties work on a copy.
        history : sequence of int
            The stream's tokens so far, prompt included; penalties look at its end.

        Returns
        -------
        int
            A token id.

        Raises
        ------
        InvalidLogits
            `logits` is not one non-empty row of numbers.
        NonFiniteLogits
            A logit is NaN or +inf.
        AllTokensMasked
            Every logit is -inf.
        """
        token, position = self.choose(logits, history)
        self.commit(token, position)
        return token

    def choose(self, logits: np.ndarray, history: Sequence[int] = ()) -> tuple[int, int]:
        """Choose as `next` does, but change nothing yet: returns the token, and the `position` to commit it with."""
        options = self.options
        row = self._as_row(logits)
        others, grammar = self._others, self._grammar
        if others or options.penalises:
            self._row[:] = row
            row = self._row
            for processor in others:
                processor.process(row, history)
            if options.penalises:
                self._penalise(row, np.array(history[-options.repeat_last_n :], dtype=np.int64))
        return self._pick(row) if grammar is None else self._pick_allowed(row, grammar)

    def _pick_allowed(self, row: np.ndarray, grammar: Any) -> tuple[int, int]:
        """Choose among the tokens that a processor with a mask allows: what the row with -inf at all others would give.

        A penalty leaves -inf as it is, so the mask may come after the penalties.  The first token that is allowed, from
        the best one on, is the best of all that are: greedy decoding seldom needs a mask.  Few tokens are looked at
        alone: in the order that decides (logit downwards, equal ones by lowest id) they stand before all that are -inf.
        """
        if self.options.greedy and (token := _first_allowed(row, grammar)) is not None:
            return token, self.rng.position
        from ..kernels.sieve import siever

        vocab = len(row)
        if self._ids is None or len(self._ids) != vocab // FEW:
            self._ids = np.empty(vocab // FEW, np.int64)
        allowed = siever()(row, _checked(grammar.mask()), len(self._ids), self._ids, self._row)
        if not allowed:
            raise AllTokensMasked(f"the processor allows none of {vocab} tokens")
        if allowed > len(self._ids):
            return self._pick(self._row)
        return self._pick(self._row[:allowed], self._ids)

    def _pick(self, row: np.ndarray, ids: np.ndarray | None = None) -> tuple[int, int]:
        """Choose from logits that are final; `ids` are their tokens, by default 0, 1, 2, ..."""
        best = int(row.argmax())  # the first maximum; a NaN wins over everything
        highest = float(row[best])
        if math.isnan(highest) or highest == np.inf:
            token = best if ids is None else ids[best]
            raise NonFiniteLogits(f"logit {token} of {len(row)} is {highest}: expected finite values or -inf")
        if highest == -np.inf:
            raise AllTokensMasked(f"all {len(row)} logits are -inf: no token is left to choose")
        position = self.rng.position
        if not self.options.greedy:
            best, position = self._draw(row, highest), position + 1
        return (best if ids is None else int(ids[best])), position

    def commit(self, token: int, position: int) -> None:
        """Enter a chosen token: the processor is given it, and its draw counts.

        If the processor raises, nothing was drawn.
        """
        if self._processor is not None:
            self._processor.commit(token)
        self.rng.position = position

    def reset(self) -> None:
        """Start the draws of the seed again, and reset the processor."""
        self.rng = CounterRng(self.options.seed)
        reset_processor(self.processor)

    @property
    def processor(self) -> LogitProcessor | None:
        """The logit processor, or a composition of several."""
        return self._processor

    @processor.setter
    def processor(self, processor: LogitProcessor | None) -> None:
        every = members(check_processor(processor))
        self._grammar: Any = every[-1] if every and has_mask(every[-1]) else None
        self._others = every if self._grammar is None else every[:-1]
        self._processor = processor

    @property
    def processors(self) -> tuple[LogitProcessor, ...]:
        """The logit processors, those of a composition one by one."""
        return members(self._processor)

    def state(self) -> SamplerState:
        """Return the place in the stream of draws, for `restore`.  A processor's state is its own."""
        return SamplerState(self.rng.seed, self.rng.position)

    def restore(self, state: SamplerState) -> None:
        """Continue from a place that `state` returned.

        Raises
        ------
        InvalidSamplerOption
            Seed or position is not an integer in [0, 2**64).
        """
        seed = checks.integer("seed", state.seed, 0, MASK, InvalidSamplerOption)
        self.rng = CounterRng(seed, checks.integer("position", state.position, 0, MASK, InvalidSamplerOption))

    def _as_row(self, logits: np.ndarray) -> np.ndarray:
        row = np.asarray(logits)
        if row.ndim == 2 and row.shape[0] == 1:
            row = row[0]
        if row.ndim != 1 or row.size == 0 or row.dtype.kind not in "fiu":
            raise InvalidLogits(
                f"expected one non-empty row of logits [vocab] or [1, vocab], got shape {np.shape(logits)} of {row.dtype}"
            )
        if row.size > MAX_VOCAB:
            raise InvalidLogits(f"a row of {row.size} logits is longer than the {MAX_VOCAB} that the sampler supports")
        if len(self._row) != row.size:
            self._row = np.empty(row.size, np.float32)
            self._scratch = ()
        return np.ascontiguousarray(row, dtype=np.float32)

    def _penalise(self, row: np.ndarray, window: np.ndarray) -> None:
        from ..kernels.penalties import penaliser

        o = self.options
        window.sort()
        penaliser()(row, window, o.repeat_penalty, o.frequency_penalty, o.presence_penalty)

    def _draw(self, row: np.ndarray, highest: float) -> int:
        from ..kernels.draw import drawer  # here, so that greedy decoding compiles nothing

        n = row.size
        if not self._scratch or len(self._scratch[0]) < n:
            kinds = (np.int32, np.float32, np.int64, np.int64, None, np.int32, np.float32)
            self._scratch = tuple(np.ones(n, np.int64) if kind is None else np.empty(n, kind) for kind in kinds)
        o = self.options
        u = self.rng.peek()
        return drawer()(
            row, highest, o.temperature, o.top_k, o.top_p, o.min_p, u, *(part[:n] for part in self._scratch)
        )


def _first_allowed(row: np.ndarray, grammar: Any) -> int | None:
    """Return the best token of a row if it is allowed, else the next best; None if none of the BEST best is."""
    best = int(row.argmax())
    if not math.isfinite(row[best]):  # a fault, which `_pick` names if it is allowed
        return None
    if grammar.permits(best):
        return best
    from ..kernels.top_k import top_ids

    for token in top_ids(row[None], BEST)[0, 1:].tolist():  # -1 after the end of a small vocabulary
        if token < 0 or row[token] == -np.inf:
            return None
        if grammar.permits(token):
            return int(token)
    return None


def _checked(mask: Any) -> np.ndarray:
    """Return a processor's mask as the kernel wants it."""
    if not isinstance(mask, np.ndarray) or mask.ndim != 1 or mask.dtype != np.uint32:
        raise InvalidOption(f"mask() of a processor must return an array uint32 [words], got {checks.shown(mask)}")
    return np.ascontiguousarray(mask)
