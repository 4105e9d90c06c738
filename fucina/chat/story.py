"""The contents of a conversation, as one immutable record that is replaced as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ..sampling import Grammar
    from .messages import Message
    from .turn import Reply, Turn


class TurnRecord(NamedTuple):
    """What belongs to a turn: tokens before it, tokens up to its reply, messages before it (None: not by `send`), grammar."""

    start: int
    prompt_end: int
    messages: int | None
    grammar: Grammar | None


class Story(NamedTuple):
    """The contents of a conversation.

    opening : the messages before the first turn: the system message, if there is one, and those that came with it.
    tokens : all tokens, between turns.  messages : the opening, then those of `send` and their replies.
    turns : a record per turn.  complete : whether `messages` is the whole conversation.
    turn : the reply that is being made.  latest : the latest reply.
    """

    opening: list[Message]
    tokens: list[int]
    messages: list[Message]
    turns: tuple[TurnRecord, ...] = ()
    complete: bool = True
    turn: Turn | None = None
    latest: Reply | None = None

    @property
    def system(self) -> list[Message]:
        """The system message at the beginning, as a list of one, or of none."""
        return [m for m in self.opening[:1] if m["role"] == "system"]

    def without(self, turns: int) -> Story:
        """The story without its latest turns."""
        if turns == 0:
            return self
        first = self.turns[-turns]
        tokens = self.tokens[: first.start]
        if not tokens:
            return Story(self.opening, [], list(self.opening), latest=self.latest)
        messages = self.messages
        for record in self.turns[-turns:]:
            if record.messages is not None:
                messages = messages[: record.messages]
                break
        return self._replace(tokens=tokens, messages=messages, turns=self.turns[:-turns])

    def after(self, turn: Turn, reply: Reply) -> Story:
        """The story with a turn that has ended."""
        tokens = turn.stream.tokens[: turn.stream.prompt_end + len(reply.tokens)]
        known = None if turn.user is None else len(self.messages)
        record = TurnRecord(
            turn.start, turn.stream.prompt_end, known, None if turn.constrained is None else turn.constrained.grammar
        )
        messages = self.messages
        if turn.user is not None:
            messages = [*messages, turn.user, {"role": "assistant", "content": reply.text}]
        complete = self.complete and known is not None
        return Story(self.opening, tokens, messages, (*self.turns, record), complete, None, reply)
