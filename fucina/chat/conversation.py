"""A conversation with a model: one cache that grows from turn to turn, and every way to continue it.

Two kinds of prompt.  A built-in `ChatFormat` renders *one turn*, which goes after what is in the cache.  A model's own
`ChatTemplate`, and every `..._reuse` method, brings the *whole* conversation: the longest common prefix of its tokens
and those in the cache is kept, the rest is dropped and computed.  So whatever a template does to older turns costs
time, never correctness.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Literal, overload

from .. import checks, defaults
from ..engine.text import stop_texts
from ..errors import (
    InvalidOption,
    NoSuchTurn,
)
from ..sampling import Grammar, LogitProcessor, Sampler, SamplerOptions
from ..sampling.grammar import check_grammar
from ..speculative.factory import Document, make_drafter
from .constrained import TurnGrammar
from .formats import ChatFormat
from .messages import Message
from .prompting import PromptedConversation, UserMessage
from .prompts import choose_template, rendered_ids, stop_ids
from .story import Story
from .template import ChatTemplate
from .turn import Reply, ReplyStream
from .warm import WarmState, adopt

if TYPE_CHECKING:
    import os

    from ..cache import State
    from ..model import Model


class Conversation(PromptedConversation):
    """A conversation of several turns.

    Parameters
    ----------
    model : Model
    system : str, optional
        A system message that opens the conversation.
    template : ChatFormat, its name, or ChatTemplate, optional
        How `send` makes a prompt; default: the model's own template.  A format takes less time per turn.
    capacity : int, optional
        Positions of the cache: the whole conversation must fit.  Default: the model's context.
    max_tokens : int
        Tokens of one reply at most.
    think_off : bool
        Begin replies with an empty reasoning block (a format), or give the template `enable_thinking=False`.
    stop : str or sequence of str
        Texts that end a reply; none of such a text is given out, and nothing before it is lost.  An empty text stops
        nothing.
    extra_stop_ids : sequence of int
        Tokens that end a reply, besides the format's stop marker and the tokenizer's own.
    processor : LogitProcessor, optional
        Reset at the start of every turn.
    grammar : fucina.Grammar, optional
        Every reply is one of its sentences (`Reply.complete`); reasoning is off meanwhile.
    speculation : bool, speculative.Options, draft source or drafter
        See `fucina.generation.generate`: the same replies, in less time where text repeats itself.
    references : sequence
        With speculation=True or Options: documents that replies may quote; see also `add_spec_reference`.
    save : path, optional
        A file that the conversation is kept in, turn by turn.  If it holds one already, that goes on: messages, rows and
        draws are as if it had never been closed.  See `close`, `restored`, `save_error`.
    sampling
        Fields of `SamplerOptions`.  The draws go on from turn to turn, and from a file, unless it has another seed.

    Attributes are those of `TokenConversation` and `SavedConversation`.

    Raises
    ------
    ChatTemplateError : the system message is no text, or the template refuses it.
    InvalidOption, InvalidSamplerOption, TokenOutOfRange, KvCacheOverflow : an option is out of its range.
    EmptyInput : a reference has no token.
    KvFileError, KvFileLocked : the file is another model's or none of ours, or somebody else writes it.
    SystemMismatch, NotASavedConversation, ContextFull : the file holds something else, or too much.  It stays as it is.

    Warns
    -----
    SaveCut : the file is damaged, and its end is lost.  SaveFailed : a turn could not be written.
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
        stop: str | Sequence[str] | None = (),
        extra_stop_ids: Sequence[int] = (),
        processor: LogitProcessor | None = None,
        grammar: Grammar | None = None,
        speculation: Any = False,
        references: Document | Sequence[Document] = (),
        save: str | os.PathLike[str] | None = None,
        _warm: WarmState | EllipsisType = ...,
        **sampling: Any,
    ):
        self.model = model
        self.max_tokens = checks.integer("max_tokens", max_tokens, 1)
        self.stop = stop_texts(stop)
        self.sampler = Sampler(SamplerOptions.of(sampling), processor)
        self.think_off, self.grammar = bool(think_off), check_grammar(grammar)
        self._template = choose_template(model, template)
        opening = self._checked_opening(system)
        self.stop_ids = stop_ids(model, self._template, extra_stop_ids)
        self.drafter = make_drafter(model, speculation, references)
        tokens: list[int] = []
        self.prefix_rows = 0
        if _warm is ...:
            self._state: State | None = model.new_cache(capacity)
        else:
            self._state, self.prefix_rows, tokens = adopt(model, _warm)
        self._story = Story(opening, tokens, list(opening), complete=not tokens)
        if save is not None:
            self._open_file(save, system, "seed" in sampling)

    @classmethod
    def init_warm(cls, model: Model, warm: WarmState, system: str | None = None, **options: Any) -> Conversation:
        """Return a conversation that goes on from a cache: what another one's `take_cache` gave, or a copy of its rows.

        Options are those of the constructor; the capacity is the cache's.  Rows after the tokens are dropped.
        Raises InvalidPrefix (fewer rows than the prefix), KvCacheShapeMismatch (a cache of another model or dtype),
        InvalidOption (`warm` is no WarmState).
        """
        return cls(model, system, _warm=warm, **options)

    # --- replies ------------------------------------------------------------------------------------------------------

    @overload
    def send(self, user: UserMessage, stream: Literal[False] = False, grammar: TurnGrammar = ...) -> Reply: ...
    @overload
    def send(self, user: UserMessage, stream: Literal[True], grammar: TurnGrammar = ...) -> ReplyStream: ...
    @overload
    def send(self, user: UserMessage, stream: bool, grammar: TurnGrammar = ...) -> Reply | ReplyStream: ...
    def send(self, user: UserMessage, stream: bool = False, grammar: TurnGrammar = ...) -> Reply | ReplyStream:
        """Send a message and return the reply.

        Parameters
        ----------
        user : text, or a list of text parts as in messages of chat APIs.
        stream : return a `ReplyStream` of text pieces instead of waiting for the end.
        grammar : of this reply alone, or None for none; default: the conversation's.

        Raises
        ------
        ContextFull : the conversation with this message leaves no position for a reply; nothing has changed.
        ChatTemplateError : there is no template, it refuses the message, or that is no text; nothing has changed.
        UnknownMessages : the template renders whole conversations, and not all messages of this one came from `send`.
        """
        return self._answer(self._send_turn(user, None, grammar), stream)

    @overload
    def send_rendered(self, rendered: str, stream: Literal[False] = False) -> Reply: ...
    @overload
    def send_rendered(self, rendered: str, stream: Literal[True]) -> ReplyStream: ...
    @overload
    def send_rendered(self, rendered: str, stream: bool) -> Reply | ReplyStream: ...
    def send_rendered(self, rendered: str, stream: bool = False) -> Reply | ReplyStream:
        """Continue with text that is rendered already.

        Special tokens in it are parsed, so that it must not hold what a user wrote as it is.

        Raises
        ------
        EmptyMessages, ContextFull : it has no token, or does not fit.  InvalidText, InvalidOption : it is no text.
        """
        self._end_turn()
        ids = rendered_ids(self.model, rendered)
        ids = ids if self.history else self.model.tokenizer.with_bos(ids)
        return self._answer(self._append(ids), stream)

    @overload
    def send_tokens_reuse(self, ids: Sequence[int], stream: Literal[False] = False) -> Reply: ...
    @overload
    def send_tokens_reuse(self, ids: Sequence[int], stream: Literal[True]) -> ReplyStream: ...
    @overload
    def send_tokens_reuse(self, ids: Sequence[int], stream: bool) -> Reply | ReplyStream: ...
    def send_tokens_reuse(self, ids: Sequence[int], stream: bool = False) -> Reply | ReplyStream:
        """Answer a whole conversation given as tokens; what the cache shares with it is not computed again.

        The last token is always computed, since logits are not kept.  `reused_prefix` counts those that were not.

        Raises
        ------
        EmptyMessages : there is no token.  ContextFull : they do not fit.
        TokenOutOfRange : an id is none of the vocabulary.  InvalidOption : `ids` is no sequence.
        """
        return self._answer(self._reuse_turn(ids), stream)

    @overload
    def send_rendered_reuse(self, rendered: str, stream: Literal[False] = False) -> Reply: ...
    @overload
    def send_rendered_reuse(self, rendered: str, stream: Literal[True]) -> ReplyStream: ...
    @overload
    def send_rendered_reuse(self, rendered: str, stream: bool) -> Reply | ReplyStream: ...
    def send_rendered_reuse(self, rendered: str, stream: bool = False) -> Reply | ReplyStream:
        """`send_tokens_reuse` with the rendered text of a whole conversation; special tokens in it are parsed."""
        return self.send_tokens_reuse(self.model.tokenizer.with_bos(rendered_ids(self.model, rendered)), stream)

    @overload
    def send_messages_reuse(
        self, messages: Sequence[Message], stream: Literal[False] = False, grammar: TurnGrammar = ...
    ) -> Reply: ...
    @overload
    def send_messages_reuse(
        self, messages: Sequence[Message], stream: Literal[True], grammar: TurnGrammar = ...
    ) -> ReplyStream: ...
    @overload
    def send_messages_reuse(
        self, messages: Sequence[Message], stream: bool, grammar: TurnGrammar = ...
    ) -> Reply | ReplyStream: ...
    def send_messages_reuse(
        self, messages: Sequence[Message], stream: bool = False, grammar: TurnGrammar = ...
    ) -> Reply | ReplyStream:
        """`send_tokens_reuse` with the messages of a whole conversation, which are this one's from now on.

        Raises
        ------
        TrailingAssistantMessage : the last message is the assistant's; expected one to answer.
        EmptyMessages, ChatTemplateError, ContextFull : as `send` does.
        """
        return self._answer(self._messages_turn(messages, grammar), stream)

    @overload
    def regenerate(self, stream: Literal[False] = False) -> Reply: ...
    @overload
    def regenerate(self, stream: Literal[True]) -> ReplyStream: ...
    @overload
    def regenerate(self, stream: bool) -> Reply | ReplyStream: ...
    def regenerate(self, stream: bool = False) -> Reply | ReplyStream:
        """Replace the latest reply by another one to the same prompt, which is not computed again.

        The draws go on, so that it is another reply unless it is greedy.
        Raises NoSuchTurn if there is no reply yet.
        """
        self._end_turn()
        if not self._story.turns:
            raise NoSuchTurn("there is no reply to make again: this conversation has no turn yet")
        record, base = self._story.turns[-1], self._story.without(1)
        user = None if record.messages is None else self.messages[record.messages]
        if isinstance(self._template, ChatTemplate) and user is not None:
            ids = self._encode(self._template, [*base.messages, user], self._think_off(record.grammar))
        else:
            ids = self.history[: record.prompt_end]
        return self._answer(self._begin(base, ids, user, None, self._story, record.grammar), stream)

    def undo(self, turns: int = 1) -> None:
        """Take back the latest turns, message and reply; raises NoSuchTurn (fewer exist), InvalidOption (no number)."""
        if isinstance(turns, bool) or not hasattr(turns, "__index__"):
            raise InvalidOption(f"turns must be an integer, got {checks.shown(turns)}")
        self._end_turn()
        if not 0 <= turns <= len(self._story.turns):
            number = checks.shown(turns)
            raise NoSuchTurn(f"{number} turns cannot be undone, the conversation has {len(self._story.turns)}")
        self._become(self._story.without(int(turns)))

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
        opening = self._story.system if system is ... else self._checked_opening(system)
        self._become(Story(opening, [], list(opening), latest=self._story.latest))
