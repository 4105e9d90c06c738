"""A conversation with a model: one cache that grows from turn to turn, and every way to continue it.

Two kinds of prompt.  A built-in `ChatFormat` renders *one turn*, which goes behind what is in the cache.  A model's own
`ChatTemplate`, and every `…_reuse` method, brings the *whole* conversation: the longest common prefix of its tokens and
those in the cache is kept, the rest is dropped and computed (facts 8.3).  So whatever a template does to older turns
costs time, never correctness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import defaults
from ..decoders import Document, make_decoder
from ..errors import InvalidOption, NoSuchTurn, UnknownMessages
from ..generation import stop_texts
from ..sampling import LogitProcessor, Sampler, SamplerOptions
from .formats import ChatFormat
from .messages import Message, check_messages
from .state import ConversationState, WarmState, check_ids, rendered_ids
from .template import ChatTemplate
from .turn import Reply, ReplyStream, Turn, Write

if TYPE_CHECKING:
    from ..model import Model


@dataclass(frozen=True, slots=True)
class _Mark:
    """Where a turn stands: tokens before it, tokens up to its reply, messages before it (None: not made by `send`)."""

    start: int
    prompt_end: int
    messages: int | None


class Conversation(ConversationState):
    """A conversation of several turns.

    Parameters
    ----------
    model : Model
    system : str, optional
        A system message that opens the conversation.
    template : ChatFormat, its name, or ChatTemplate, optional
        How `send` makes a prompt; default: the model's own template.  A format costs less a turn.
    capacity : int, optional
        Positions of the cache: the whole conversation must fit.  Default: the model's context.
    max_tokens : int
        Most tokens of one reply.
    think_off : bool
        Prime replies with an empty reasoning block (a format), or tell the template `enable_thinking=False`.
    stop : str or sequence of str
        Texts that end a reply; none of such a text is given out, and nothing before it is lost.
    extra_stop_ids : sequence of int
        Tokens that end a reply, besides the format's stop marker and the tokenizer's own.
    processor : LogitProcessor, optional
        Reset at the start of every turn.
    speculation : bool, speculative.Options, draft source or decoder
        See `fucina.generation.generate`: the same replies, in less time where text repeats itself.
    references : sequence
        With speculation=True or Options: documents that replies may quote; see also `add_spec_reference`.
    sampling
        Fields of `SamplerOptions`.  The draws go on from turn to turn.

    Attributes
    ----------
    messages : list of dict
        What `send` has seen and said, the system message included.
    system : str or None
        The system message; `reset` may change it.

    Further attributes are those of `ConversationState`.

    Raises
    ------
    ChatTemplateError : the system message is no text, or the template refuses it.
    InvalidOption, InvalidSamplerOption, TokenOutOfRange, KvCacheOverflow : an option is out of its range.
    EmptyInput : a reference has no token.
    """

    def __init__(
        self,
        model: Model,
        system: str | None = None,
        *,
        template: ChatFormat | ChatTemplate | str | None = None,
        capacity: int | None = None,
        max_tokens: int = defaults.REPLY_TOKENS,
        think_off: bool = False,
        stop: str | Sequence[str] = (),
        extra_stop_ids: Sequence[int] = (),
        processor: LogitProcessor | None = None,
        speculation: Any = False,
        references: Document | Sequence[Document] = (),
        _warm: WarmState | None = None,
        **sampling: Any,
    ):
        if isinstance(max_tokens, bool) or not isinstance(max_tokens, (int, np.integer)) or max_tokens < 1:
            raise InvalidOption(f"max_tokens must be an integer of at least 1, got {max_tokens!r}")
        stops = stop_texts(stop)
        sampler = Sampler(SamplerOptions.of(sampling), processor)
        self.think_off = bool(think_off)
        self._template = _choose_template(model, template)
        self._open(system)
        stop_ids = self._find_stop_ids(model, extra_stop_ids)
        decoder = make_decoder(model, speculation, references)
        warm = WarmState(model.new_cache(capacity), ()) if _warm is None else _warm
        super().__init__(model, sampler, decoder, stops, stop_ids, int(max_tokens), warm)
        self.messages: list[Message] = list(self._opening)
        self._marks: list[_Mark] = []
        self._told = not self.history  # `messages` is the whole conversation

    def _find_stop_ids(self, model: Model, extra: Sequence[int]) -> frozenset[int]:
        tokenizer = model.tokenizer
        form = self._template if isinstance(self._template, ChatFormat) else ChatFormat.detect(model.chat_template)
        marker = None if form is None else tokenizer.token_id(form.stop_marker)
        own = tokenizer.eog_ids if marker is None else tokenizer.eog_ids | {marker}
        return frozenset(own) | frozenset(check_ids(model, extra, "extra_stop_ids"))

    @classmethod
    def init_warm(cls, model: Model, warm: WarmState, system: str | None = None, **options: Any) -> Conversation:
        """Return a conversation that goes on from a cache: what another one's `take_cache` gave, or a copy of its rows.

        Options are those of the constructor; the capacity is the cache's.  Rows behind the tokens are dropped.
        Raises InvalidPrefix (fewer rows than the prefix), KvCacheShapeMismatch (a cache of another model).
        """
        return cls(model, system, _warm=warm, **options)

    # --- replies ------------------------------------------------------------------------------------------------------

    def send(self, user: str | Sequence[Any], stream: bool = False) -> Reply | ReplyStream:
        """Say something and return the reply.

        Parameters
        ----------
        user : text, or a list of text parts as in messages of chat APIs.
        stream : return a `ReplyStream` of text pieces instead of waiting for the end.

        Raises
        ------
        ContextFull : the conversation with this message does not fit; nothing has changed.
        ChatTemplateError : there is no template, it refuses the message, or that is no text; nothing has changed.
        UnknownMessages : the template renders whole conversations, and this one was not led by `send` alone.
        """
        return self._answer(self._send_turn(user), stream)

    def send_rendered(self, rendered: str, stream: bool = False) -> Reply | ReplyStream:
        """Continue with text that is rendered already.

        Special tokens in it are parsed, so that it must not hold what a user wrote as it is.

        Raises
        ------
        EmptyMessages, ContextFull : it has no token, or does not fit.  InvalidText, InvalidOption : it is no text.
        """
        self._end_turn()
        ids = rendered_ids(self.model, rendered)
        return self._answer(self._append(ids if self.history else self.model.tokenizer.with_bos(ids)), stream)

    def send_tokens_reuse(self, ids: Sequence[int], stream: bool = False) -> Reply | ReplyStream:
        """Answer a whole conversation given as tokens; what the cache shares with it is not computed again.

        The last token is always computed, since logits are not kept.  `reused_prefix` tells how many were not.

        Raises
        ------
        EmptyMessages : there is no token.  ContextFull : they do not fit.
        TokenOutOfRange : an id is none of the vocabulary.  InvalidOption : `ids` is no sequence.
        """
        return self._answer(self._reuse_turn(ids), stream)

    def send_rendered_reuse(self, rendered: str, stream: bool = False) -> Reply | ReplyStream:
        """`send_tokens_reuse` with the rendered text of a whole conversation; special tokens in it are parsed."""
        return self.send_tokens_reuse(self.model.tokenizer.with_bos(rendered_ids(self.model, rendered)), stream)

    def regenerate(self, stream: bool = False) -> Reply | ReplyStream:
        """Replace the latest reply by another one to the same prompt, which is not computed again.

        The draws go on, so that it is another reply unless it is greedy.
        Raises NoSuchTurn if nothing has been said yet.
        """
        self._end_turn()
        if not self._marks:
            raise NoSuchTurn("there is no reply to make again: nothing has been said in this conversation")
        mark = self._marks[-1]
        user = None if mark.messages is None else self.messages[mark.messages]
        if isinstance(self._template, ChatTemplate) and user is not None:
            ids = self._encode(self._template, [*self.messages[: mark.messages], user])
        else:
            ids = self.history[: mark.prompt_end]
        turn = self._reuse(ids, user, restore=mark.start)
        self._drop(mark)
        return self._answer(turn, stream)

    def undo(self, turns: int = 1) -> None:
        """Take back the latest turns, message and reply; raises NoSuchTurn (not so many), InvalidOption (no number)."""
        if isinstance(turns, bool) or not isinstance(turns, (int, np.integer)):
            raise InvalidOption(f"turns must be an integer, got {turns!r}")
        self._end_turn()
        if not 0 <= turns <= len(self._marks):
            raise NoSuchTurn(f"{turns} turns cannot be undone, the conversation has {len(self._marks)}")
        for _ in range(turns):
            mark = self._marks[-1]
            self._drop(mark)
            self._rewind(mark.start)
        if not self.history:
            self.messages, self._told = list(self._opening), True

    def reset(self, system: str | None | EllipsisType = ...) -> None:
        """Forget everything but the system message and a preloaded prefix; the draws go on.

        Parameters
        ----------
        system : another system message, or None for none; left out, it stays.

        Raises
        ------
        ChatTemplateError : the system message is no text, or the template refuses it; nothing has changed.
        """
        self._end_turn()
        if system is not ...:
            self._open(system)
        self._rewind(0)
        self._marks.clear()
        self.messages, self._told = list(self._opening), True

    def _open(self, system: str | None) -> None:
        """Check the system message and keep it."""
        opening: list[Message] = [] if system is None else list(check_messages([{"role": "system", "content": system}]))
        if isinstance(self._template, ChatTemplate) and opening:
            self._template.render([*opening, {"role": "user", "content": ""}])  # one that it refuses should fail here
        self._opening: list[Message] = opening
        self.system: str | None = opening[0]["content"] if opening else None

    # --- inside: turns are made here, for this class and for batches --------------------------------------------------

    def _send_turn(self, user: str | Sequence[Any], write: Write | None = None) -> Turn:
        self._end_turn()
        if self._template is None:
            self._template = ChatTemplate.of(self.model)  # says that there is none
        message = check_messages([{"role": "user", "content": user}])[0]
        if isinstance(self._template, ChatFormat):
            ids = self._template.encode_turn(
                self.model.tokenizer, message["content"], self.system, not self.history, self.think_off
            )
            return self._append(ids, message, write)
        if not self._told:
            raise UnknownMessages(
                "the model's template renders whole conversations, and not all messages of this one are known; "
                "continue it with send_rendered or send_rendered_reuse, or choose a built-in format (template=)"
            )
        return self._reuse(self._encode(self._template, [*self.messages, message]), message, write=write)

    def _encode(self, template: ChatTemplate, messages: Sequence[Message]) -> list[int]:
        variables: dict[str, Any] = {"enable_thinking": False} if self.think_off else {}
        return template.encode(self.model.tokenizer, messages, **variables)

    def _reuse_turn(self, ids: Sequence[int], write: Write | None = None) -> Turn:
        self._end_turn()
        turn = self._reuse(check_ids(self.model, ids), write=write)
        self._marks.clear()
        self.messages, self._told = [], False
        return turn

    def _settled(self, turn: Turn, reply: Reply) -> None:
        """A turn has ended: enter it, unless it left nothing."""
        super()._settled(turn, reply)
        if reply.finish_reason in ("error", "cancelled") and not reply.tokens:
            return
        known = None if turn.note is None else len(self.messages)
        self._marks.append(_Mark(min(turn.keep, turn.restore), turn.prompt_end, known))
        if known is None:
            self._told = False
        else:
            self.messages += [turn.note, {"role": "assistant", "content": reply.text}]

    def _drop(self, mark: _Mark) -> None:
        self._marks.remove(mark)
        if mark.messages is not None:
            del self.messages[mark.messages :]


def _choose_template(
    model: Model, template: ChatFormat | ChatTemplate | str | None
) -> ChatFormat | ChatTemplate | None:
    names = [f.value for f in ChatFormat]
    if template in names:
        return ChatFormat(template)
    if not isinstance(template, (ChatFormat, ChatTemplate, type(None))):
        known = f"{', '.join(names)}, a ChatFormat or a ChatTemplate"
        raise InvalidOption(f"template must be one of {known}, got {template!r}")
    return ChatTemplate.of(model) if template is None and model.chat_template is not None else template
