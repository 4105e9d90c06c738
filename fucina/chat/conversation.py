"""A conversation with a model: one cache that grows from turn to turn, and every way to continue it.

Two kinds of prompt.  A built-in `ChatFormat` renders *one turn*, which goes after what is in the cache.  A model's own
`ChatTemplate`, and every `..._reuse` method, brings the *whole* conversation: the longest common prefix of its tokens
and those in the cache is kept, the rest is dropped and computed.  So whatever a template does to older turns costs
time, never correctness.

What a conversation knows is one immutable record, `Story`, replaced by one assignment when a turn begins, ends, or is
taken back.  The state's rows always belong to a prefix of the story's tokens: before the story changes, the state goes
back to what the old and the new one share.  So Ctrl-C at any moment leaves a conversation that can go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from types import EllipsisType
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import checks, defaults
from ..engine.drafts import common_prefix
from ..engine.scheduler import Scheduler
from ..engine.stream import Stream, rewind_point
from ..engine.text import StreamText, stop_texts
from ..errors import (
    ContextFull,
    ConversationClosed,
    EmptyMessages,
    InvalidOption,
    InvalidPrefix,
    NoSuchTurn,
    UnknownMessages,
)
from ..sampling import LogitProcessor, Sampler, SamplerOptions, reset_processor
from ..speculative.factory import Document, make_drafter, reference_ids, reference_source
from .formats import ChatFormat
from .messages import Message, check_messages
from .prompts import choose_template, rendered_ids, stop_ids
from .template import ChatTemplate
from .turn import Reply, ReplyStream, Turn, Write
from .warm import WarmState, adopt

if TYPE_CHECKING:
    from ..cache import State
    from ..model import Model
    from ..speculative import Stats


class TurnRecord(NamedTuple):
    """Where a turn stands: tokens before it, tokens up to its reply, messages before it (None: not made by `send`)."""

    start: int
    prompt_end: int
    messages: int | None


class Story(NamedTuple):
    """What a conversation knows.

    opening : the system message, if there is one.
    tokens : all tokens, between turns.  messages : what `send` has seen and said, the system message included.
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


class Conversation:
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
        Prime replies with an empty reasoning block (a format), or tell the template `enable_thinking=False`.
    stop : str or sequence of str
        Texts that end a reply; none of such a text is given out, and nothing before it is lost.  An empty text stops
        nothing.
    extra_stop_ids : sequence of int
        Tokens that end a reply, besides the format's stop marker and the tokenizer's own.
    processor : LogitProcessor, optional
        Reset at the start of every turn.
    speculation : bool, speculative.Options, draft source or drafter
        See `fucina.generation.generate`: the same replies, in less time where text repeats itself.
    references : sequence
        With speculation=True or Options: documents that replies may quote; see also `add_spec_reference`.
    sampling
        Fields of `SamplerOptions`.  The draws go on from turn to turn.

    Attributes
    ----------
    model, sampler, drafter : what makes the replies.
    stop, stop_ids, max_tokens : what ends them.
    prefix_rows : int
        Rows of the cache before the first token; see `note_prefix_rows`.

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
        stop: str | Sequence[str] | None = (),
        extra_stop_ids: Sequence[int] = (),
        processor: LogitProcessor | None = None,
        speculation: Any = False,
        references: Document | Sequence[Document] = (),
        _warm: WarmState | EllipsisType = ...,
        **sampling: Any,
    ):
        self.model = model
        self.max_tokens = checks.integer("max_tokens", max_tokens, 1)
        self.stop = stop_texts(stop)
        self.sampler = Sampler(SamplerOptions.of(sampling), processor)
        self.think_off = bool(think_off)
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

    @classmethod
    def init_warm(cls, model: Model, warm: WarmState, system: str | None = None, **options: Any) -> Conversation:
        """Return a conversation that goes on from a cache: what another one's `take_cache` gave, or a copy of its rows.

        Options are those of the constructor; the capacity is the cache's.  Rows after the tokens are dropped.
        Raises InvalidPrefix (fewer rows than the prefix), KvCacheShapeMismatch (a cache of another model or dtype),
        InvalidOption (`warm` is no WarmState).
        """
        return cls(model, system, _warm=warm, **options)

    # --- what it knows ------------------------------------------------------------------------------------------------

    @property
    def history(self) -> list[int]:
        """All tokens, those of a reply that is being made included.  The cache holds rows of a prefix of them."""
        turn = self._story.turn
        return self._story.tokens if turn is None else turn.stream.tokens

    @property
    def system(self) -> str | None:
        """The system message; `reset` may change it."""
        opening = self._story.opening
        return opening[0]["content"] if opening else None

    @property
    def messages(self) -> list[Message]:
        """What `send` has seen and said, the system message included."""
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
                "the cache of this conversation was taken away; start another one with init_warm()"
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
                f"{rows!r} rows of prefix were declared; the cache holds {self.cache.len} and the conversation "
                f"{len(self.history)} tokens: expected as many rows, and no token"
            )
        self.prefix_rows = int(rows)

    # --- speculation --------------------------------------------------------------------------------------------------

    @property
    def spec_stats(self) -> Stats | None:
        """Counts of all speculative steps so far; None if this conversation decodes plainly."""
        return copy(getattr(self.drafter, "stats", None))

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

    # --- replies ------------------------------------------------------------------------------------------------------

    def send(self, user: str | Sequence[Any], stream: bool = False) -> Reply | ReplyStream:
        """Say something and return the reply.

        Parameters
        ----------
        user : text, or a list of text parts as in messages of chat APIs.
        stream : return a `ReplyStream` of text pieces instead of waiting for the end.

        Raises
        ------
        ContextFull : the conversation with this message leaves no room for a reply; nothing has changed.
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
        ids = ids if self.history else self.model.tokenizer.with_bos(ids)
        return self._answer(self._append(ids), stream)

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
        if not self._story.turns:
            raise NoSuchTurn("there is no reply to make again: nothing has been said in this conversation")
        record, base = self._story.turns[-1], self._without(1)
        user = None if record.messages is None else self.messages[record.messages]
        if isinstance(self._template, ChatTemplate) and user is not None:
            ids = self._encode(self._template, [*base.messages, user])
        else:
            ids = self.history[: record.prompt_end]
        return self._answer(self._begin(base, ids, user), stream)

    def undo(self, turns: int = 1) -> None:
        """Take back the latest turns, message and reply; raises NoSuchTurn (not so many), InvalidOption (no number)."""
        if isinstance(turns, bool) or not hasattr(turns, "__index__"):
            raise InvalidOption(f"turns must be an integer, got {turns!r}")
        self._end_turn()
        if not 0 <= turns <= len(self._story.turns):
            raise NoSuchTurn(f"{turns} turns cannot be undone, the conversation has {len(self._story.turns)}")
        self._become(self._without(int(turns)))

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
        opening = self._story.opening if system is ... else self._checked_opening(system)
        self._become(Story(opening, [], list(opening), latest=self._story.latest))

    def cancel(self) -> None:
        """End the reply that is being made at its next token, from any thread; without one, do nothing.

        What was said by then stays.  A message that got no token of an answer is dropped.
        """
        turn = self._story.turn
        if turn is not None:
            turn.cancel()

    # --- inside: turns are made here, for this class and for batches --------------------------------------------------

    def _checked_opening(self, system: str | None) -> list[Message]:
        """The messages before the first turn: the system message, if there is one and the template takes it."""
        opening: list[Message] = [] if system is None else list(check_messages([{"role": "system", "content": system}]))
        if isinstance(self._template, ChatTemplate) and opening:
            self._template.render([*opening, {"role": "user", "content": ""}])  # one that it refuses should fail here
        return opening

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
        if not self._story.complete:
            raise UnknownMessages(
                "the model's template renders whole conversations, and not all messages of this one are known; "
                "continue it with send_rendered or send_rendered_reuse, or choose a built-in format (template=)"
            )
        ids = self._encode(self._template, [*self.messages, message])
        return self._begin(self._story, ids, message, write)

    def _reuse_turn(self, ids: Sequence[int], write: Write | None = None) -> Turn:
        self._end_turn()
        base = self._story._replace(messages=[], turns=(), complete=False)
        return self._begin(base, checks.token_ids("ids", ids, self.model.config.vocab_size), None, write)

    def _encode(self, template: ChatTemplate, messages: Sequence[Message]) -> list[int]:
        variables: dict[str, Any] = {"enable_thinking": False} if self.think_off else {}
        return template.encode(self.model.tokenizer, messages, **variables)

    def _append(self, ids: list[int], user: Message | None = None, write: Write | None = None) -> Turn:
        """Begin a turn whose prompt goes after the history."""
        if not ids:
            raise EmptyMessages("there is nothing to answer: the prompt has no token")
        return self._begin(self._story, [*self._story.tokens, *ids], user, write)

    def _begin(self, base: Story, ids: list[int], user: Message | None, write: Write | None = None) -> Turn:
        """Begin a turn whose prompt is the whole conversation; what the state shares with it stays.

        If the turn leaves nothing, the conversation becomes `base`.
        """
        if not ids:
            raise EmptyMessages("there is nothing to answer: the prompt has no token")
        room = self.capacity - self.prefix_rows - len(ids)
        if room < 1:
            prefix = f" after {self.prefix_rows} rows of prefix" if self.prefix_rows else ""
            raise ContextFull(
                f"the conversation has {len(ids)} tokens with this message{prefix}, and the context holds "
                f"{self.capacity}, the reply included; start a new one"
            )
        reset_processor(self.sampler.processor)  # may fail: before anything has changed
        self._keep_rows(ids)
        text = StreamText(self.model.tokenizer, self.stop, write)
        stream = Stream(
            self.cache,
            list(ids),
            self.sampler,
            self.drafter,
            stop_tokens=self.stop_ids,
            max_tokens=min(self.max_tokens, room),
            on_token=text.take,
            prefix_rows=self.prefix_rows,
        )
        turn = Turn(self, base, stream, text, user)
        self._story = base._replace(turn=turn)
        return turn

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
        """A turn has ended: enter it, unless it left nothing."""
        if self._story.turn is not turn:
            return  # entered before
        if reply.finish_reason in ("error", "cancelled") and not reply.tokens:
            self._become(turn.base._replace(turn=None, latest=reply))
            return
        base = turn.base
        tokens = turn.stream.tokens[: turn.stream.prompt_end + len(reply.tokens)]
        known = None if turn.user is None else len(base.messages)
        record = TurnRecord(turn.start, turn.stream.prompt_end, known)
        messages = base.messages
        if turn.user is not None:
            messages = [*messages, turn.user, {"role": "assistant", "content": reply.text}]
        complete = base.complete and known is not None
        self._become(Story(base.opening, tokens, messages, (*base.turns, record), complete, None, reply))

    def _without(self, turns: int) -> Story:
        """The story without its latest turns."""
        story = self._story
        if turns == 0:
            return story
        first = story.turns[-turns]
        kept = story.turns[:-turns]
        messages = story.messages
        for record in story.turns[-turns:]:
            if record.messages is not None:
                messages = messages[: record.messages]
                break
        tokens = story.tokens[: first.start]
        if not tokens:
            return Story(story.opening, [], list(story.opening), latest=story.latest)
        return story._replace(tokens=tokens, messages=messages, turns=kept)

    def _become(self, story: Story) -> None:
        """Let the story be another one; the state keeps the rows that both have."""
        self._keep_rows(story.tokens)
        self._story = story

    def _keep_rows(self, tokens: Sequence[int]) -> None:
        """Let the state hold rows of tokens that stand at the beginning of `tokens` as well as of the history."""
        cached = self.cache.len - self.prefix_rows
        keep = common_prefix(self.history[:cached], tokens)
        if keep < cached:
            self.cache.rewind(rewind_point(self.cache, self.prefix_rows + keep, self.prefix_rows))
