"""A conversation as tokens: a state that grows from turn to turn, and the story whose tokens it holds rows of.

All that a conversation holds is one immutable record, `Story`, replaced by one assignment when a turn begins, ends, or
is taken back.  The state's rows always belong to a prefix of the story's tokens: before the story changes, the state
goes back to what the old and the new one share.  So Ctrl-C at any moment leaves a conversation that can go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..checks import shown
from ..engine.drafts import Drafter, common_prefix
from ..engine.scheduler import Scheduler
from ..engine.stream import Stream, rewind_point
from ..engine.text import StreamText
from ..errors import ContextFull, ConversationClosed, EmptyMessages, InvalidPrefix
from ..interrupts import HoldInterrupts
from ..sampling import Grammar, Sampler, reset_processor
from ..speculative.factory import Document, reference_ids, reference_source, stats_of
from .constrained import Constrained, TurnGrammar, constrain_turn
from .story import Story
from .turn import Reply, ReplyStream, Turn, Write
from .warm import WarmState

if TYPE_CHECKING:
    from ..cache import State
    from ..model import Model
    from ..speculative import Stats
    from .messages import Message


class TokenConversation:
    """What every kind of prompt shares; `Conversation` adds messages and templates.

    Attributes
    ----------
    model, sampler, drafter : make the replies.
    grammar : of every reply, unless one is given with the message; or None.
    stop, stop_ids, max_tokens : end them.
    prefix_rows : int
        Rows of the cache before the first token; see `note_prefix_rows`.
    """

    model: Model
    sampler: Sampler
    drafter: Drafter | None
    grammar: Grammar | None
    stop: tuple[str, ...]
    stop_ids: frozenset[int]
    max_tokens: int
    prefix_rows: int
    _state: State | None
    _story: Story
    _constrained: Constrained | None = None  # what the latest turn has put into sampler and drafter

    # --- contents -----------------------------------------------------------------------------------------------------

    @property
    def history(self) -> list[int]:
        """All tokens, those of a reply that is being made included.  The cache holds rows of a prefix of them."""
        turn = self._story.turn
        return self._story.tokens if turn is None else turn.stream.tokens

    @property
    def system(self) -> str | None:
        """The system message; `reset` may change it."""
        return next((m["content"] for m in self._story.system), None)

    @property
    def messages(self) -> list[Message]:
        """The messages of `send` and their replies, the system message included."""
        return self._story.messages

    @property
    def reused_prefix(self) -> int:
        """Of the latest reply: prompt tokens whose rows were in the cache already."""
        return 0 if self._story.latest is None else self._story.latest.reused_prefix

    @property
    def fired_stop(self) -> int | None:
        """Of the latest reply: which of the stop texts ended it."""
        return None if self._story.latest is None else self._story.latest.stop_index

    @property
    def cache(self) -> State:
        """The state; ConversationClosed once it was taken away."""
        if self._state is None:
            raise ConversationClosed(
                "this conversation was closed, or its cache taken away; start another one, with init_warm() from a cache"
            )
        return self._state

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
        cached = self.cache.len - self.prefix_rows
        if missing := self.history[cached:-1]:  # rows that a broken turn has cost
            self.model.forward_rows([(self.cache, missing, "none")])
        warm = WarmState.of(self.cache, self.history, self.prefix_rows)
        self._state = None
        return warm

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
                f"{shown(rows)} rows of prefix were declared; the cache holds {self.cache.len} and the conversation "
                f"{len(self.history)} tokens: expected as many rows, and no token"
            )
        self.prefix_rows = int(rows)

    # --- speculation --------------------------------------------------------------------------------------------------

    @property
    def spec_stats(self) -> Stats | None:
        """Counts of all speculative steps so far; None if this conversation decodes plainly."""
        return stats_of(self.drafter)

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
        source = reference_source(self.drafter)
        source.add_reference(reference_ids(self.model, document))

    def clear_references(self) -> None:
        """Drop all documents; raises SpeculationDisabled, ReferencesUnsupported as `add_spec_reference` does."""
        reference_source(self.drafter).clear_references()

    # --- turns --------------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """End the reply that is being made at its next token, from any thread; without one, do nothing.

        The text so far stays.  A message that got no token of an answer is dropped.
        """
        turn = self._story.turn
        if turn is not None:
            turn.cancel()

    def _append(
        self,
        ids: list[int],
        user: Message | None = None,
        write: Write | None = None,
        grammar: TurnGrammar = ...,
    ) -> Turn:
        """Begin a turn whose prompt goes after the history."""
        if not ids:
            raise EmptyMessages("there is nothing to answer: the prompt has no token")
        return self._begin(self._story, [*self._story.tokens, *ids], user, write, grammar=grammar)

    def _begin(
        self,
        base: Story,
        ids: list[int],
        user: Message | None,
        write: Write | None = None,
        before: Story | None = None,
        grammar: TurnGrammar = ...,
    ) -> Turn:
        """Begin a turn whose prompt is the whole conversation; what the state shares with it stays.

        The turn is entered after those of `base`.  If it ends without a token, the conversation becomes `before`, by
        default the same.
        """
        if not ids:
            raise EmptyMessages("there is nothing to answer: the prompt has no token")
        left = self.capacity - self.prefix_rows - len(ids)  # positions
        if left < 1:
            prefix = f" after {self.prefix_rows} rows of prefix" if self.prefix_rows else ""
            raise ContextFull(
                f"the conversation has {len(ids)} tokens with this message{prefix}, and the context holds "
                f"{self.capacity}, the reply included; start a new one"
            )
        with HoldInterrupts():
            self._constrained = constrain_turn(self, grammar, self._constrained)
        reset_processor(self.sampler.processor)  # may fail: before anything has changed
        self._keep_rows(ids)
        text = StreamText(self.model.tokenizer, self.stop, write)
        state, cached = self._state_for(ids, base)
        state.checkpoint()  # so that a recurrent state can come back here when the turn is undone or made again
        stream = Stream(
            state,
            list(ids),
            self.sampler,
            self.drafter,
            stop_tokens=self.stop_ids,
            max_tokens=min(self.max_tokens, left),
            on_token=text.take,
            prefix_rows=self.prefix_rows,
        )
        stream.reused = min(stream.reused, cached)
        turn = Turn(self, base, before or base, stream, text, user, self._constrained)
        with HoldInterrupts():
            self._take_state(state)
            self._story = base._replace(turn=turn)
        return turn

    def _state_for(self, ids: Sequence[int], base: Story) -> tuple[State, int]:
        """The state that a turn with this prompt goes on from, and how many tokens of it need not be computed."""
        return self.cache, self.cache.len - self.prefix_rows

    def _take_state(self, state: State) -> None:
        """Let the state that `_state_for` gave be this conversation's."""

    def _answer(self, turn: Turn, stream: bool) -> Reply | ReplyStream:
        scheduler = Scheduler(self.model)
        scheduler.add(turn.stream)
        out = ReplyStream(scheduler, turn.stream, turn.text, turn.settle, turn.describe)
        if stream:
            return out
        for _ in out:
            pass
        return out.result

    def _end_turn(self) -> None:
        """End the reply that is being made, if its reader has left it; ConversationClosed if there is no cache."""
        turn = self._story.turn
        if self._state is not None and turn is not None:
            turn.cancel()
            turn.settle()
        _ = self.cache

    def _enter(self, turn: Turn, reply: Reply) -> None:
        """Enter a turn that has ended, unless it gained no token."""
        if self._story.turn is not turn:
            return  # entered before
        if reply.finish_reason in ("error", "cancelled") and not reply.tokens:
            self._become(turn.before._replace(latest=reply))
            return
        self._become(turn.base.after(turn, reply))

    def _become(self, story: Story) -> None:
        """Let the story be another one; the state keeps the rows that both have."""
        self._keep_rows(story.tokens)
        self._story = story

    def _keep_rows(self, tokens: Sequence[int]) -> None:
        """Let the state hold rows of the tokens with which both `tokens` and the history begin, and no others."""
        cached = self.cache.len - self.prefix_rows
        keep = common_prefix(self.history[:cached], tokens)
        if keep < cached:
            self.cache.rewind(rewind_point(self.cache, self.prefix_rows + keep, self.prefix_rows))
