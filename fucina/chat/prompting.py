"""The turns that messages, texts and tokens begin: how a prompt is made, for `Conversation` and for batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import checks
from ..errors import TrailingAssistantMessage, UnknownMessages
from ..sampling import Grammar
from ..sampling.grammar import check_grammar
from .constrained import TurnGrammar, think_off_for
from .formats import ChatFormat
from .messages import Message, check_conversation, check_messages
from .saved import SavedConversation
from .story import Story
from .template import ChatTemplate
from .turn import Turn, Write

UserMessage = str | Sequence[Any]  # text, or a list of text parts


class PromptedConversation(SavedConversation):
    """A conversation that makes its own prompts; `Conversation` adds the public methods.

    Attributes
    ----------
    think_off : whether replies begin without reasoning.
    """

    think_off: bool
    _template: ChatFormat | ChatTemplate | None

    def _checked_opening(self, system: str | None) -> list[Message]:
        """The messages before the first turn: the system message, if there is one and the template takes it."""
        opening: list[Message] = [] if system is None else list(check_messages([{"role": "system", "content": system}]))
        if isinstance(self._template, ChatTemplate) and opening:
            self._template.render([*opening, {"role": "user", "content": ""}])  # one that it refuses should fail here
        return opening

    def _send_turn(self, user: UserMessage, write: Write | None = None, grammar: TurnGrammar = ...) -> Turn:
        self._end_turn()
        grammar = self.grammar if grammar is ... else check_grammar(grammar)
        template = self._chosen_template()
        message = check_messages([{"role": "user", "content": user}])[0]
        think_off = self._think_off(grammar)
        if isinstance(template, ChatFormat) and (self.history or self._story.opening == self._story.system):
            ids = template.encode_turn(
                self.model.tokenizer, message["content"], self.system, not self.history, think_off
            )
            return self._append(ids, message, write, grammar)
        if not self._story.complete:
            raise UnknownMessages(
                "the model's template renders whole conversations, and not all messages of this one are known; "
                "continue it with send_rendered or send_rendered_reuse, or choose a built-in format (template=)"
            )
        ids = self._encode(template, [*self.messages, message], think_off)
        return self._begin(self._story, ids, message, write, grammar=grammar)

    def _messages_turn(self, messages: Sequence[Message], grammar: TurnGrammar = ...) -> Turn:
        self._end_turn()
        grammar = self.grammar if grammar is ... else check_grammar(grammar)
        checked: list[Message] = list(check_conversation(messages))
        if checked[-1]["role"] == "assistant":
            raise TrailingAssistantMessage("the last message is the assistant's; expected one to answer")
        ids = self._encode(self._chosen_template(), checked, self._think_off(grammar))
        base = Story(checked[:-1], [], checked[:-1])
        return self._begin(base, ids, checked[-1], None, self._story, grammar)

    def _reuse_turn(self, ids: Sequence[int], write: Write | None = None) -> Turn:
        self._end_turn()
        ids = checks.token_ids("ids", ids, self.model.n_tokens)
        base = self._story._replace(messages=[], turns=(), complete=False)
        return self._begin(base, ids, None, write, before=self._story)

    def _think_off(self, grammar: Grammar | None) -> bool:
        """Whether the model is asked not to reason: a grammar governs a reply from its first token on."""
        if grammar is None or self._template is None:
            return self.think_off
        told = any(record.grammar is not None for record in self._story.turns)
        return think_off_for(self.model, self._template, self.think_off, told)

    def _chosen_template(self) -> ChatFormat | ChatTemplate:
        if self._template is None:
            self._template = ChatTemplate.of(self.model)  # raises: there is none
        return self._template

    def _encode(self, template: ChatFormat | ChatTemplate, messages: Sequence[Message], think_off: bool) -> list[int]:
        if isinstance(template, ChatFormat):
            return template.encode_messages(self.model.tokenizer, messages, think_off)
        variables: dict[str, Any] = {"enable_thinking": False} if think_off else {}
        return template.encode(self.model.tokenizer, messages, **variables)
