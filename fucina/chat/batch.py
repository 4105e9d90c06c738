"""Several conversations answered together: every pass has rows of all of them.

A pass reads the weights once, whatever number of rows it has, so that N replies take much less than N times as long.
Each row has the bits that it would have alone, so each reply is the one that its conversation would give alone, with
drafts (`speculation=True`) as without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..engine.scheduler import Scheduler
from ..errors import (
    BatchLengthMismatch,
    DuplicateBatchConversation,
    DuplicateCache,
    EmptyBatch,
    InvalidOption,
    MixedBatchModels,
    SharedBatchProcessor,
    SharedStream,
)
from ..interrupts import HoldInterrupts
from ..sampling import Grammar
from ..sampling.grammar import check_grammar
from .constrained import TurnGrammar
from .conversation import Conversation, UserMessage
from .mailbox import Mailbox
from .token_conversation import TokenConversation
from .turn import Reply, Turn, Write

if TYPE_CHECKING:
    from ..model import Model

Writers = Sequence[Write | None] | None

PATIENCE = 0.02  # seconds that a step waits for one slow writer, when no stream goes on


def send_batch(
    conversations: Sequence[Conversation],
    users: Sequence[UserMessage],
    writers: Writers = None,
    grammars: Grammar | Sequence[TurnGrammar] | None = None,
) -> list[Reply]:
    """Send one message to each of several conversations and return their replies.

    Parameters
    ----------
    conversations : of one model, each once.
    users : the message to each; see `Conversation.send`.
    writers : called with the pieces of each reply's text as they are decided; None for a reply that is not streamed.
        Each is called on a thread of its own: a slow reader delays no other reply.
    grammars : one for all replies, or one for each (None for none); default: those of the conversations.

    Raises
    ------
    EmptyBatch : there is no conversation.  BatchLengthMismatch : the lists differ in length.
    MixedBatchModels, DuplicateBatchConversation, DuplicateCache, SharedBatchProcessor : they do not go together.
    InvalidOption : one of the arguments is no sequence, or holds something else.
    Exception : what a reply fails with (of several, the first in the order of the conversations), once the others have
        ended as they would alone.  The reply that fails stays as far as it got; without a token its message is dropped.
        An error of the shared pass, or Ctrl-C, ends all of them there.  Every conversation can go on.
    """
    conversations, users, writers = _check(conversations, users, writers)
    of_each = _grammars(grammars, len(conversations))
    batch = TurnBatch(conversations[0].model)
    try:
        for c, user, write, grammar in zip(conversations, users, writers, of_each, strict=True):
            batch.send(c, user, write, grammar)
        while batch.busy:
            batch.step()
    finally:
        batch.close()
    replies = [turn.settle() for turn in batch.turns]
    for reply in replies:
        if reply.error is not None:
            raise reply.error
    return replies


def send_batch_tokens_reuse(
    conversations: Sequence[Conversation], ids_list: Sequence[Sequence[int]], writers: Writers = None
) -> list[Reply]:
    """`Conversation.send_tokens_reuse` for several conversations together; a failure ends its own reply only.

    A stream whose prompt does not fit, whose writer fails (a client that left) or whose sampler refuses ends with
    finish_reason "error" and the exception in `error`; the others go on, undisturbed.  Parameters and errors are
    otherwise those of `send_batch`; what is raised is an error of the batch, or of the shared pass.
    """
    conversations, ids_list, writers = _check(conversations, ids_list, writers)
    batch = TurnBatch(conversations[0].model)
    replies: list[Callable[[], Reply]] = []
    try:
        for c, ids, write in zip(conversations, ids_list, writers, strict=True):
            try:
                replies.append(batch.send_tokens_reuse(c, ids, write).settle)
            except Exception as error:
                replies.append(lambda c=c, error=error: _refused(c, error))  # type: ignore[misc]
        while batch.busy:
            batch.step()
    finally:
        batch.close()
    return [reply() for reply in replies]


class TurnBatch:
    """Turns that are run together; they may join and leave between steps.

    Attributes
    ----------
    turns : list of Turn
        All that were added, in order.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.turns: list[Turn] = []
        self.scheduler = Scheduler(model)
        self._mailboxes: dict[int, Mailbox] = {}  # by id(turn)

    def send(
        self, conversation: Conversation, user: UserMessage, write: Write | None = None, grammar: TurnGrammar = ...
    ) -> Turn:
        """Let a conversation take part with a message (see `Conversation.send`); its prompt is computed first.

        Raises the errors of `Conversation.send`, and those of `send_batch` for streams that do not go together.
        """
        return self._add(conversation, lambda put: conversation._send_turn(user, put, grammar), write)

    def send_tokens_reuse(self, conversation: Conversation, ids: Sequence[int], write: Write | None = None) -> Turn:
        """Let a conversation take part with a whole prompt (see `Conversation.send_tokens_reuse`)."""
        return self._add(conversation, lambda put: conversation._reuse_turn(ids, put), write)

    def _add(self, conversation: Conversation, begin: Callable[[Write | None], Turn], write: Write | None) -> Turn:
        _check_together(self.model, [*(t.conversation for t in self.turns if t.reply is None), conversation])
        mailbox = None if write is None else Mailbox(write)
        turn = begin(None if mailbox is None else mailbox.put)
        with HoldInterrupts():
            try:
                self.scheduler.add(turn.stream)
            except SharedStream as error:
                turn.settle(error)
                raise
            self.turns.append(turn)
            if mailbox is not None:
                mailbox.failed = turn.cancel
                self._mailboxes[id(turn)] = mailbox
        return turn

    @property
    def busy(self) -> bool:
        """Whether a step has something to do."""
        return any(turn.reply is None for turn in self.turns)

    def step(self) -> None:
        """Run one pass: the next rows of every reply, and parts of the prompts that wait.

        A turn that ends, or fails by itself, is settled.  An error of the shared pass is raised, and ends every turn
        that is under way.
        """
        try:
            self.scheduler.step()
        except Exception as error:
            self.close(error)
            raise
        waiting = [turn for turn in self.turns if turn.reply is None]
        none_live = not any(turn.live for turn in waiting)
        for turn in waiting:
            if turn.live:
                continue
            mailbox = self._mailboxes.get(id(turn))
            if mailbox is None:
                self._settle(turn)
                continue
            turn.text.finish()  # the last piece
            if mailbox.close(PATIENCE if none_live else 0):  # a slow writer is waited for once no other reply goes on
                self._settle(turn, mailbox.error)

    def close(self, error: Exception | None = None) -> None:
        """End all replies that are under way."""
        for turn in self.turns:
            if turn.reply is None:
                turn.cancel()
                self._settle(turn, error)
        for mailbox in self._mailboxes.values():  # of a turn that was settled when Ctrl-C came
            mailbox.close()

    def _settle(self, turn: Turn, error: Exception | None = None) -> None:
        turn.settle(error)
        self.scheduler.remove(turn.stream)
        mailbox = self._mailboxes.pop(id(turn), None)
        if mailbox is not None:
            mailbox.close()


def _check(
    conversations: Iterable[Conversation], prompts: Iterable[Any], writers: Iterable[Write | None] | None
) -> tuple[list[Conversation], list[Any], list[Write | None]]:
    """Return three lists with one entry per stream, or raise an error if they make no batch."""
    streams = _listed("conversations", conversations)
    for c in streams:
        if not isinstance(c, Conversation):
            raise InvalidOption(f"conversations must be a sequence of Conversation, it holds a {type(c).__name__}")
    n = len(streams)
    if n == 0:
        raise EmptyBatch("a batch needs at least one conversation, got none")
    messages = [] if isinstance(prompts, (str, bytes)) else _listed("prompts", prompts)
    to = [None] * n if writers is None else _listed("writers", writers)
    if len(messages) != n or len(to) != n:
        got = "a single text" if isinstance(prompts, (str, bytes)) else f"{len(messages)} prompts"
        got += "" if writers is None else f", {len(to)} writers"
        raise BatchLengthMismatch(
            f"expected one prompt, and one writer if any, for each of {n} conversations, got {got}"
        )
    _check_together(streams[0].model, streams)
    return streams, messages, to


def _grammars(given: Grammar | Sequence[TurnGrammar] | None, n: int) -> list[TurnGrammar]:
    """The grammar of each of n turns."""
    if given is None or isinstance(given, Grammar):
        return [... if given is None else given] * n
    grammars: list[TurnGrammar] = _listed("grammars", given)
    if len(grammars) != n:
        raise BatchLengthMismatch(f"expected a grammar, or None, for each of {n} conversations, got {len(grammars)}")
    return [grammar if grammar is ... else check_grammar(grammar) for grammar in grammars]


def _listed(name: str, items: Iterable[Any]) -> list[Any]:
    if not isinstance(items, Iterable):
        raise InvalidOption(f"{name} must be a sequence with one entry per conversation, got {type(items).__name__}")
    return list(items)


def _check_together(model: Model, conversations: Sequence[TokenConversation]) -> None:
    """Raise an error if conversations cannot share passes."""
    n = len(conversations)
    if any(c.model is not model for c in conversations):
        raise MixedBatchModels("the conversations of a batch share their passes, so they must belong to one model")
    if len({id(c) for c in conversations}) < n:
        raise DuplicateBatchConversation("one conversation appears twice in the batch; every stream needs its own")
    if len({id(c.cache) for c in conversations}) < n:
        raise DuplicateCache("two conversations of the batch have one cache; every stream needs its own")
    processors = [p for c in conversations for p in c.sampler.processors]
    if len({id(p) for p in processors}) < len(processors):
        raise SharedBatchProcessor(
            "two conversations of the batch share a logit processor, which is one stream's state"
        )


def _refused(c: Conversation, error: Exception) -> Reply:
    """The reply of a stream whose prompt was refused."""
    return Reply("", [], "error", None, 0, c.sampler.options.seed, 0.0, 0.0, error=error)
