"""Conversations whose rows come from a pool and go back to it: for servers, where each request brings all messages.

The pool is asked when a prompt is known: with the first turn, not before.  So the rows that it has are found by all
tokens of the prompt.  The rows of a system message are given to the pool at their end, before the rest of the prompt
is computed.  From there other conversations can go on, in models with windows and recurrent parts as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from ..cache import pool as rows
from ..engine.drafts import common_prefix
from ..errors import TrailingAssistantMessage
from .conversation import Conversation
from .messages import Message, check_conversation
from .story import Story
from .turn import Reply, ReplyStream, Turn

if TYPE_CHECKING:
    from ..cache import State
    from ..cache.pool import Slot
    from ..model import Model
    from .warm import WarmState

PROBES = ("a", "0")  # two messages that begin with different tokens


class PooledConversation(Conversation):
    """A conversation whose rows come from a pool; `close`, or the end of a `with` block, gives them back.

    Made by `SlotPool.conversation`, which tells its parameters and errors; `once` gives the rows back with a reply, and
    ends there.
    """

    def __init__(
        self, pool: SlotPool, messages: Sequence[Message] = (), tenant: str = "", once: bool = False, **options: Any
    ) -> None:
        super().__init__(pool.model, **options)
        self._pool, self._tenant, self._once = pool, tenant, once
        self._slot: Slot | None = None
        self._next: Slot | None = None  # for the turn that begins
        if messages:
            self._know(messages)

    def close(self) -> None:
        """End the conversation, a reply that is being made with it; the pool gets its rows.  Twice is no error."""
        if self._state is not None:
            self._end_turn()
            slot, self._slot = self._slot, None
            try:
                if slot is not None:
                    slot.release(self.history)
            finally:
                super().close()
        else:
            super().close()

    def take_cache(self) -> WarmState:
        """End the conversation and give its cache away, with its tokens: the pool does not get it back.

        Raises
        ------
        ConversationClosed : it was taken already.
        """
        warm = super().take_cache()
        slot, self._slot = self._slot, None
        if slot is not None:
            slot.discard()
        return warm

    def _know(self, messages: Sequence[Message]) -> None:
        """Begin with messages that were said elsewhere."""
        checked: list[Message] = list(check_conversation(messages))
        if checked[-1]["role"] == "assistant":
            tokens = self._encode(self._chosen_template(), checked, self.think_off)
        elif all(message["role"] == "system" for message in checked):
            tokens = []
        else:
            raise TrailingAssistantMessage(
                f"the last message is the {checked[-1]['role']}'s, and nothing answers it; expected a reply after it, or "
                "SlotPool.send(messages)"
            )
        self._story = Story(checked, tokens, list(checked))

    # --- the state of a turn ------------------------------------------------------------------------------------------

    def _state_for(self, ids: Sequence[int], base: Story) -> tuple[State, int]:
        if self.cache.len:
            return super()._state_for(ids, base)
        slot = self._pool.acquire(ids, tenant=self._tenant, capacity=self.cache.capacity)
        try:
            cached, state = slot.cached, slot.state
            for end in sorted({self._system_end(ids, base), slot.shared}):
                if state.len < end < len(ids):
                    self.model.forward_rows([(state, ids[state.len : end], "none")])
                    slot.store(ids[:end])
        except BaseException:
            slot.discard()
            raise
        self._next = slot
        return state, cached

    def _take_state(self, state: State) -> None:
        if self._next is not None and self._next.state is state:
            before, self._slot, self._next = self._slot, self._next, None
            self._state = state
            if before is not None:
                before.discard()

    def _system_end(self, ids: Sequence[int], base: Story) -> int:
        """Where the tokens of a prompt stop to depend on the system message alone; 0 if there is none."""
        if not base.system:
            return 0
        template = self._chosen_template()
        ends = [
            common_prefix(
                ids[:-1], self._encode(template, [*base.system, {"role": "user", "content": text}], self.think_off)
            )
            for text in PROBES
        ]
        return min(ends)

    def _enter(self, turn: Turn, reply: Reply) -> None:
        super()._enter(turn, reply)
        if self._once:
            self.close()


class SlotPool(rows.SlotPool):
    """A pool of rows, `fucina.cache.pool.SlotPool`, and conversations that use it.

    Parameters and further methods are those of the pool.
    """

    model: Model

    def conversation(self, messages: Sequence[Message] = (), *, tenant: str = "", **options: Any) -> Conversation:
        """A conversation that goes on after messages, with rows that the pool has of them.

        The pool gets its rows when it is closed:

            with pool.conversation(messages) as c:
                c.send("And then?")

        Parameters
        ----------
        messages : what was said so far: nothing, a system message, or a conversation that ends with a reply.
        tenant : whose rows it may use: those of others are never found.
        options : those of `Conversation`; the system message is one of the messages.

        Raises
        ------
        TrailingAssistantMessage : the last message waits for an answer, which `send` gives, or for results of tools.
        ChatTemplateError, InvalidOption, … : as `Conversation`.
        """
        return PooledConversation(self, messages, tenant, **options)

    @overload
    def send(
        self, messages: Sequence[Message], *, stream: Literal[False] = False, tenant: str = "", **options: Any
    ) -> Reply: ...
    @overload
    def send(
        self, messages: Sequence[Message], *, stream: Literal[True], tenant: str = "", **options: Any
    ) -> ReplyStream: ...
    @overload
    def send(
        self, messages: Sequence[Message], *, stream: bool, tenant: str = "", **options: Any
    ) -> Reply | ReplyStream: ...
    def send(
        self, messages: Sequence[Message], *, stream: bool = False, tenant: str = "", **options: Any
    ) -> Reply | ReplyStream:
        """Answer one request: all messages of a conversation, the last one to be answered.

        The pool gets the rows as soon as the reply is complete; `Reply.cached_tokens` says how many it had.

        Parameters
        ----------
        stream : return a `ReplyStream` of text pieces, to be read to its end or closed.
        tenant, options : as in `conversation`.

        Raises
        ------
        TrailingAssistantMessage : the last message is the assistant's.
        EmptyMessages, ChatTemplateError, ContextFull : as `Conversation.send_messages_reuse`.
        """
        conversation = PooledConversation(self, (), tenant, True, **options)
        try:
            return conversation.send_messages_reuse(messages, stream)
        except BaseException:
            conversation.close()
            raise
