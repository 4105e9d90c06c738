"""The tokens of a conversation and the cache that holds their rows: what is true of every way to lead one.

Between turns the cache holds the rows of all tokens of `history`, or of all but the newest: a reply that was cut off
has a last token whose row nobody has needed yet.  The next turn computes it with its prompt.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..decoders import Document, reference_ids, reference_source
from ..decoding import common_prefix
from ..errors import (
    ContextFull,
    ConversationClosed,
    EmptyMessages,
    InvalidOption,
    InvalidPrefix,
    KvCacheShapeMismatch,
    TokenOutOfRange,
)
from .turn import Reply, ReplyStream, Turn, Write

if TYPE_CHECKING:
    from ..cache import KvCache
    from ..decoding import Decoder
    from ..model import Model
    from ..sampling import Sampler
    from ..speculative import Stats


@dataclass(frozen=True, slots=True)
class WarmState:
    """A cache and the tokens whose rows it holds, behind `prefix_rows` rows that belong to no token.

    `newest` is the last token of a reply that was cut off: it stands behind the others, its row is yet to be computed.
    """

    cache: KvCache
    tokens: Sequence[int]
    prefix_rows: int = 0
    newest: int | None = None


class ConversationState:
    """Base of `Conversation`: cache, history, and turns on tokens.

    Attributes
    ----------
    model, sampler, decoder : what makes the replies.
    stop, stop_ids, max_tokens : what ends them.
    history : list of int
        Tokens of the conversation; see above.
    prefix_rows : int
        Rows of the cache in front of the first token; see `note_prefix_rows`.
    reused_prefix, fired_stop : int; int or None
        Of the latest reply: prompt tokens that were in the cache already; which of the stop texts ended it.
    """

    def __init__(
        self,
        model: Model,
        sampler: Sampler,
        decoder: Decoder,
        stop: tuple[str, ...],
        stop_ids: frozenset[int],
        max_tokens: int,
        warm: WarmState,
    ):
        self.model, self.sampler, self.decoder = model, sampler, decoder
        self.stop, self.stop_ids, self.max_tokens = stop, stop_ids, max_tokens
        self.reused_prefix = 0
        self.fired_stop: int | None = None
        self._turn: Turn | None = None
        cache = warm.cache
        if cache.fingerprint != model.fingerprint:
            raise KvCacheShapeMismatch("the cache belongs to another model; use this model's new_cache()")
        if not 0 <= warm.prefix_rows <= cache.len:
            raise InvalidPrefix(f"a prefix of {warm.prefix_rows} rows was declared, the cache holds {cache.len}")
        self.prefix_rows = int(warm.prefix_rows)
        tokens = check_ids(model, warm.tokens)
        self.history = tokens[: cache.len - self.prefix_rows]
        cache.truncate(self.prefix_rows + len(self.history))
        if warm.newest is not None and len(self.history) == len(tokens) and cache.len < cache.capacity:
            self.history += check_ids(model, [warm.newest])
        self._cache: KvCache | None = cache

    # --- the cache ----------------------------------------------------------------------------------------------------

    @property
    def cache(self) -> KvCache:
        """The cache; ConversationClosed once it was taken away."""
        if self._cache is None:
            raise ConversationClosed(
                "the cache of this conversation was taken away; start another one with init_warm()"
            )
        return self._cache

    @property
    def used(self) -> int:
        """Positions of the cache in use."""
        return self.cache.len

    @property
    def capacity(self) -> int:
        """Positions that the conversation may have."""
        return min(self.cache.capacity, self.model.context)

    def take_cache(self) -> WarmState:
        """End the conversation and give its cache away, with its tokens.

        Raises
        ------
        ConversationClosed : it was taken already.
        """
        self._end_turn()
        cache = self.cache
        rows = cache.len - self.prefix_rows
        tokens, newest = self.history[:rows], self.history[rows:]
        self._cache = None
        return WarmState(cache, tokens, self.prefix_rows, newest[0] if newest else None)

    def note_prefix_rows(self, rows: int) -> None:
        """Declare the rows that the cache holds a preloaded prefix: they belong to no token and are never dropped.

        Once, before the first turn, after the rows have been written into `cache`.

        Raises
        ------
        InvalidPrefix : the conversation has begun, or the cache does not hold exactly `rows` rows.
        """
        self._end_turn()
        if self.history or self.cache.len != rows:
            raise InvalidPrefix(
                f"{rows!r} rows of prefix were declared; the cache holds {self.cache.len} and the conversation "
                f"{len(self.history)} tokens: expected as many rows, and no token"
            )
        self.prefix_rows = int(rows)

    # --- speculation --------------------------------------------------------------------------------------------------

    @property
    def spec_stats(self) -> Stats | None:
        """Counts of all speculative steps so far; None if this conversation decodes plainly."""
        return copy(getattr(self.decoder, "stats", None))

    def add_spec_reference(self, document: Document) -> None:
        """Add a document that replies may quote, at any moment, also between the pieces of a reply.

        It is matched with the whole conversation at once.  It changes which drafts are made, never a reply.

        Parameters
        ----------
        document : text (markers in it are text), or token ids of the model.

        Raises
        ------
        SpeculationDisabled : this conversation decodes plainly.
        ReferencesUnsupported : its draft source takes no references.
        EmptyInput, InvalidOption, InvalidText, TokenOutOfRange : the document has no token, or is none.
        """
        source = reference_source(self.decoder)
        source.add_reference(reference_ids(self.model, document))

    def clear_references(self) -> None:
        """Drop all documents; raises SpeculationDisabled, ReferencesUnsupported as `add_spec_reference` does."""
        reference_source(self.decoder).clear_references()

    # --- turns --------------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """End the reply that is being made at its next token, from any thread; without one, do nothing.

        What was said by then stays.  A message that got no token of an answer is dropped.
        """
        turn = self._turn
        if turn is not None:
            turn.cancel()

    def _append(self, ids: list[int], note: Any = None, write: Write | None = None) -> Turn:
        """Begin a turn whose prompt goes behind the history."""
        self._check_room(len(self.history) + len(ids), bool(ids))
        kept = len(self.history)
        self._turn = Turn(self, kept, ids, kept, note, write)
        return self._turn

    def _reuse(self, ids: list[int], note: Any = None, write: Write | None = None, restore: int | None = None) -> Turn:
        """Begin a turn whose prompt is the whole conversation; what the cache shares with it stays."""
        self._check_room(len(ids), bool(ids))
        kept = common_prefix(
            self.history[: self.cache.len - self.prefix_rows], ids[:-1]
        )  # the last row's logits are wanted
        self._turn = Turn(self, kept, ids[kept:], kept if restore is None else min(kept, restore), note, write)
        return self._turn

    def _check_room(self, tokens: int, any_new: bool) -> None:
        if not any_new:
            raise EmptyMessages("there is nothing to answer: the prompt has no token")
        if self.prefix_rows + tokens > self.capacity:
            behind = f" behind {self.prefix_rows} rows of prefix" if self.prefix_rows else ""
            raise ContextFull(
                f"the conversation has {tokens} tokens with this message{behind}, the context holds {self.capacity}; "
                "start a new one"
            )

    def _answer(self, turn: Turn, stream: bool) -> Reply | ReplyStream:
        out = ReplyStream(turn)
        if stream:
            return out
        for _ in out:
            pass
        return out.result

    def _end_turn(self) -> None:
        """End the reply that is being made, if its reader has left it; ConversationClosed if there is no cache."""
        if self._cache is not None and self._turn is not None:
            self._turn.cancel()
            self._turn.settle()
        _ = self.cache

    def _settled(self, turn: Turn, reply: Reply) -> None:
        """A turn has ended."""
        self._turn = None
        self.reused_prefix, self.fired_stop = reply.reused_prefix, reply.stop_index

    def _rewind(self, tokens: int) -> None:
        del self.history[tokens:]
        self.cache.truncate(self.prefix_rows + tokens)


def check_ids(model: Model, ids: Iterable[int], name: str = "ids") -> list[int]:
    """Return token ids as integers; `name` is what an error calls them.

    Raises
    ------
    InvalidOption : `ids` is a text, or nothing that can be listed.
    TokenOutOfRange : an id is none of the model's vocabulary.
    """
    if isinstance(ids, (str, bytes)) or not isinstance(ids, (Iterable, np.ndarray)):
        raise InvalidOption(f"{name} must be a sequence of token ids, got {type(ids).__name__}")
    if isinstance(ids, np.ndarray) and ids.ndim != 1:
        raise InvalidOption(f"{name} must have one dimension, got {ids.ndim}")
    vocab, checked = model.config.vocab_size, []
    for token in ids:
        try:
            number = -1 if isinstance(token, (bool, np.bool_)) else operator.index(token)
        except TypeError:
            number = -1
        if not 0 <= number < vocab:
            raise TokenOutOfRange(f"token id {token!r} is outside the vocabulary of {vocab}")
        checked.append(number)
    return checked


def rendered_ids(model: Model, rendered: str) -> list[int]:
    """Return the ids of a rendered text, its special tokens parsed; raises InvalidOption if it is none."""
    if not isinstance(rendered, str):
        raise InvalidOption(f"a rendered conversation must be text, got {type(rendered).__name__}")
    return model.tokenizer.encode(rendered)
