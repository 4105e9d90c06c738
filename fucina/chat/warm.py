"""A cache that outlives its conversation, with the tokens whose rows it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import checks
from ..engine.stream import rewind_point
from ..errors import InvalidOption, InvalidPrefix

if TYPE_CHECKING:
    from ..cache import State
    from ..model import Model


@dataclass(frozen=True, slots=True)
class WarmState:
    """A state and the tokens whose rows it holds, after `prefix_rows` rows that belong to no token.

    `newest` is the last token of a reply that was cut off: it comes after the others, its row is yet to be computed.
    """

    cache: State
    tokens: Sequence[int]
    prefix_rows: int = 0
    newest: int | None = None

    @classmethod
    def of(cls, state: State, tokens: Sequence[int], prefix_rows: int) -> WarmState:
        """The warm state of a text whose rows, or all but the last, are in a state."""
        rows = state.len - prefix_rows
        rest = list(tokens[rows : rows + 1])
        return cls(state, list(tokens[:rows]), prefix_rows, rest[0] if rest else None)


def adopt(model: Model, warm: WarmState) -> tuple[State, int, list[int]]:
    """Return the state of a warm start, its rows of prefix, and the tokens of the text that goes on.

    Raises
    ------
    InvalidOption : it is no WarmState.
    KvCacheShapeMismatch : the state was not made by this model.  InvalidPrefix : it holds fewer rows than the prefix.
    TokenOutOfRange, InvalidOption : its tokens are none of the model.
    """
    if not isinstance(warm, WarmState):
        raise InvalidOption(f"a warm start needs a WarmState, got {type(warm).__name__}")
    state, vocab = warm.cache, model.n_tokens
    model.check_state(state)
    prefix = checks.integer("prefix_rows", warm.prefix_rows, 0, error=InvalidPrefix)
    if prefix > state.len:
        raise InvalidPrefix(f"a prefix of {prefix} rows was declared, the cache holds {state.len}")
    tokens = checks.token_ids("tokens", warm.tokens, vocab)
    newest = [] if warm.newest is None else checks.token_ids("newest", [warm.newest], vocab)
    rows = state.len - prefix
    known = tokens[:rows]
    if rows > len(known):
        state.rewind(rewind_point(state, prefix + len(known), prefix))
    if len(known) == len(tokens) and prefix + len(tokens) < state.capacity:
        known += newest
    return state, prefix, known
