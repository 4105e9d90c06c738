"""Logit processors: transforms of a row of logits that a sampler applies before it chooses."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from .. import checks
from ..errors import InvalidOption, InvalidSamplerOption, TokenOutOfRange

_FLOAT32_MAX = float(np.finfo(np.float32).max)
_MAX_TOKEN = (1 << 31) - 1


@runtime_checkable
class LogitProcessor(Protocol):
    """What a sampler calls.  One processor belongs to one stream and one thread.

    A processor that remembers nothing may leave `reset` out (see `reset_processor`).  One that has *structure*, a grammar
    for example, may have more; each of these looks ahead and changes nothing:

    - `mask() -> ndarray`, uint32 [words]: bit i % 32 of word i // 32 says whether token i may be chosen next; one that it
      has no bit for may not.  And `permits(token) -> bool`: what the mask says of one token, for less.  The sampler asks
      for these instead of `process`, where no other processor comes after this one.
    - `forced_tokens(limit) -> list of int` and `valid_prefix(tokens) -> int`: see `has_structure`.
    - `prepare()`: what can be done before the logits are there; the scheduler calls it beside a pass.
    """

    def process(self, logits: np.ndarray, history: Sequence[int]) -> None:
        """Change `logits` (float32 [vocab], the sampler's own copy) in place; -inf forbids a token."""

    def commit(self, token: int) -> None:
        """Enter a chosen token: called exactly once for each, on every path."""

    def reset(self) -> None:
        """Forget the tokens committed so far: called when a turn starts."""


def check_processor(processor: LogitProcessor | None) -> LogitProcessor | None:
    """Return `processor`; raise InvalidOption where it is a class, or lacks `process` or `commit`."""
    missing = [name for name in ("process", "commit") if not callable(getattr(processor, name, None))]
    if processor is not None and (missing or isinstance(processor, type)):
        found = f"the class {processor.__name__}" if isinstance(processor, type) else f"{type(processor).__name__}"
        lacks = f" without {' and '.join(missing)}" if missing else ""
        raise InvalidOption(f"processor must be an object with process and commit, got {found}{lacks}")
    return processor


def has_structure(processor: LogitProcessor | None) -> bool:
    """Whether a processor knows what may follow beyond the next token, so that it can draft.

    It then has `forced_tokens(limit)`, the tokens that spell what must follow, and `valid_prefix(tokens)`, how many of
    some tokens it would allow.
    """
    return all(callable(getattr(processor, name, None)) for name in ("forced_tokens", "valid_prefix"))


def has_mask(processor: LogitProcessor) -> bool:
    """Whether a processor says which tokens may be chosen: it has `mask()` and `permits(token)`, see `LogitProcessor`."""
    return all(callable(getattr(processor, name, None)) for name in ("mask", "permits"))


def structure_of(processor: LogitProcessor | None) -> Any:
    """Return the member of a composition that has structure, the first if several have; None if none has."""
    return next(filter(has_structure, members(processor)), None)


def reset_processor(processor: LogitProcessor | None) -> None:
    """Reset a processor if there is one and it has a `reset`."""
    reset = getattr(processor, "reset", None)
    if reset is not None:
        reset()


class _Stateless:
    """`commit` and `reset` of a processor that remembers nothing."""

    __slots__ = ()

    def commit(self, token: int) -> None:
        """Do nothing: there is nothing to remember."""

    def reset(self) -> None:
        """Do nothing: there is nothing to forget."""


class BiasTokens(_Stateless):
    """Adds a number to chosen logits.

    Parameters
    ----------
    biases : mapping of token id to float
        Finite, or -inf to ban.

    Raises
    ------
    TokenOutOfRange
        An id is negative or not an integer; `process` raises it for ids beyond the row.
    InvalidSamplerOption
        A bias is no number, NaN or +inf, or finite and beyond float32.
    """

    __slots__ = ("_ids", "_values")

    def __init__(self, biases: Mapping[int, float]):
        self._ids = _token_ids(biases)
        self._values = np.array([_bias(token, value) for token, value in biases.items()], dtype=np.float32)

    def process(self, logits: np.ndarray, history: Sequence[int]) -> None:
        """Add the biases."""
        _check_inside(self._ids, logits)
        logits[self._ids] += self._values


class BanTokens(_Stateless):
    """Forbids tokens.

    Parameters
    ----------
    tokens : iterable of int
        Raises TokenOutOfRange as `BiasTokens` does.
    """

    __slots__ = ("_ids",)

    def __init__(self, tokens: Iterable[int]):
        self._ids = _token_ids(tokens)

    def process(self, logits: np.ndarray, history: Sequence[int]) -> None:
        """Set the banned logits to -inf."""
        _check_inside(self._ids, logits)
        logits[self._ids] = -np.inf


class AllowTokens(_Stateless):
    """Forbids every token but the given ones.

    Parameters
    ----------
    tokens : iterable of int
        Raises TokenOutOfRange as `BiasTokens` does.
    """

    __slots__ = ("_ids",)

    def __init__(self, tokens: Iterable[int]):
        self._ids = _token_ids(tokens)

    def process(self, logits: np.ndarray, history: Sequence[int]) -> None:
        """Set every other logit to -inf."""
        _check_inside(self._ids, logits)
        allowed = logits[self._ids]
        logits.fill(-np.inf)
        logits[self._ids] = allowed


class _Chain:
    """Several processors, one after another."""

    __slots__ = ("processors",)

    def __init__(self, processors: Sequence[LogitProcessor]):
        self.processors = tuple(processors)

    def process(self, logits: np.ndarray, history: Sequence[int]) -> None:
        """Apply each in order."""
        for processor in self.processors:
            processor.process(logits, history)

    def commit(self, token: int) -> None:
        """Pass the token to each in order."""
        for processor in self.processors:
            processor.commit(token)

    def reset(self) -> None:
        """Reset each."""
        for processor in self.processors:
            reset_processor(processor)


def members(processor: LogitProcessor | None) -> tuple[LogitProcessor, ...]:
    """Return the processors that a composition holds, in order; another processor alone; nothing for None."""
    if processor is None:
        return ()
    return processor.processors if isinstance(processor, _Chain) else (processor,)


def compose(*processors: LogitProcessor | None) -> LogitProcessor | None:
    """Return one processor that applies `processors` in order (None entries are skipped).

    No processor at all gives None, a single one itself.  A composition among them counts as its members.

    Raises
    ------
    InvalidSamplerOption
        One object is given twice: it would be committed twice for each token.
    """
    chosen = [member for processor in processors for member in members(processor)]
    if len({id(processor) for processor in chosen}) != len(chosen):
        raise InvalidSamplerOption("one logit processor is given twice: it would be given every token twice")
    if len(chosen) < 2:
        return chosen[0] if chosen else None
    return _Chain(chosen)


def _bias(token: int, value: float) -> float:
    real = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not real or not (value == -math.inf or abs(value) <= _FLOAT32_MAX):
        raise InvalidSamplerOption(
            f"bias of token {token} must be finite in float32, or -inf, got {checks.shown(value)}"
        )
    return float(value)


def _token_ids(tokens: Iterable[int]) -> np.ndarray:
    ids = [checks.integer("a token id", token, 0, _MAX_TOKEN, TokenOutOfRange) for token in tokens]
    return np.array(ids, dtype=np.int64)


def _check_inside(ids: np.ndarray, logits: np.ndarray) -> None:
    if len(ids) and ids.max() >= len(logits):
        raise TokenOutOfRange(f"token {ids.max()} is outside this model's vocabulary of {len(logits)} tokens")
