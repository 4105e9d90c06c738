"""One reply under way, and what became of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..engine.drafts import common_prefix
from ..engine.stream import Stream
from ..engine.text import StreamText, TextStream
from ..generation import Generation, finish_reason, is_complete
from ..sampling.grammar import note_circle
from ..speculative.factory import stats_of

if TYPE_CHECKING:
    from .constrained import Constrained
    from .messages import Message
    from .story import Story
    from .token_conversation import TokenConversation

Write = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Reply(Generation):
    """What the assistant answered: a `Generation`, with fields that only conversations have.

    text : exactly the pieces that were streamed, joined.
    tokens : those that are part of the conversation now; a token that completed a stop text is not.
    finish_reason : "stop" (end token or stop text), "length" (max_tokens or the context is used up), "cancelled" or
    "error".
    prompt_tokens : all tokens before the reply.
    stop_index : which of the stop texts fired, or None.
    error : what ended the reply, in a batch that isolates failures.
    sampled : tokens that were computed: one that completed a stop text counts, an end token does not.
    """

    stop_index: int | None = None
    error: Exception | None = None
    sampled: int = 0


class ReplyStream(TextStream[Reply]):
    """Text pieces of a reply; `result` is its `Reply`."""


class Turn:
    """One reply, from its prompt on.

    Attributes
    ----------
    stream : whose tokens are the conversation's while the turn goes on.
    text : the text of the reply.
    base : the conversation that this turn is entered into.
    before : the conversation as it was, and is again if this turn ends without a token.
    start : tokens that the prompt shares with `base`.
    user : the message that is answered; None if it is not known.
    constrained : the grammar that the reply follows, and its place in it; or None.
    reply : None until the turn is settled.
    """

    def __init__(
        self,
        conversation: TokenConversation,
        base: Story,
        before: Story,
        stream: Stream,
        text: StreamText,
        user: Message | None,
        constrained: Constrained | None = None,
    ) -> None:
        self.conversation, self.base, self.before = conversation, base, before
        self.stream, self.text, self.user = stream, text, user
        self.constrained = constrained
        self.start = common_prefix(base.tokens, stream.tokens[:-1])
        self.reply: Reply | None = None

    @property
    def live(self) -> bool:
        """Whether passes are still to come."""
        return self.reply is None and not self.stream.check_end()

    @property
    def begun(self) -> bool:
        """Whether the prompt is computed and the first token is there."""
        return self.stream.committed > 0

    def cancel(self) -> None:
        """End the turn at its next token, or its next pass of prefill; from any thread."""
        self.stream.cancel()

    def settle(self, error: Exception | None = None) -> Reply:
        """End the turn, the first time it is called, and enter it into the conversation."""
        if self.reply is None:
            stream = self.stream
            if error is not None and stream.error is None:
                stream.fail(error)
            if not stream.check_end():
                stream.cancel()
                stream.check_end()
            late = self.text.finish()
            if late is not None and stream.error is None:
                stream.fail(late)
            reply = self.describe()
            self.conversation._enter(self, reply)
            self.reply = reply
            if self.constrained is not None:
                note_circle(reply.tokens, reply.finish_reason)
        return self.reply

    def describe(self) -> Reply:
        """The reply so far."""
        if self.reply is not None:
            return self.reply
        stream, text, now = self.stream, self.text, perf_counter()
        tokens = stream.tokens[stream.prompt_end :]
        sampled = len(tokens)
        if text.completed:
            tokens.pop()  # the token that completed the stop text: its row was never computed
        return Reply(
            text.text,
            tokens,
            finish_reason(stream, text),
            text.fired,
            stream.prompt_end,
            self.conversation.sampler.options.seed,
            (text.first or now) - text.began,
            text.latest - text.first,
            stats_of(stream.drafter),
            None if self.constrained is None else is_complete(*self.constrained, stream, text),
            stream.reused,
            None if text.fired is None else text.stops.index(text.fired),
            stream.error,
            sampled,
        )
