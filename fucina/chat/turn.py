"""One reply under way: prefill, decode steps, text, and a state that is whole however it ends.

`Turn` is run by `Conversation` alone and by `TurnBatch` together with others; both do the same things to it in the same
order, so a reply cannot depend on its company.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from ..decoding import DecodeStream
from ..errors import CannotRewind
from ..generation import Generation, StopText
from ..ops.rows import MAX_ROWS
from ..sampling import reset_processor

if TYPE_CHECKING:
    from ..model import Model
    from .state import ConversationState

Write = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Reply(Generation):
    """What the assistant answered: a `Generation`, and what only a conversation knows.

    text : exactly the pieces that were streamed, joined.
    tokens : those that now stand in the conversation; a token that completed a stop text does not.
    finish_reason : "stop" (end token or stop text), "length" (max_tokens or the context is used up), "cancelled" or
    "error".
    prompt_tokens : all tokens before the reply.  reused_prefix : those of them that were in the cache already.
    stop_index : which of the stop texts fired, or None.
    error : what ended the reply, in a batch that isolates failures.
    sampled : tokens that were paid for: one that completed a stop text counts, an end token does not.
    """

    reused_prefix: int = 0
    stop_index: int | None = None
    error: Exception | None = None
    sampled: int = 0


class Turn:
    """One reply, from its prompt on.  It begins at once: the prompt is put into the conversation's history.

    Parameters
    ----------
    conversation : whose cache, history, sampler and decoder are used.
    keep : tokens of the history that stay.
    ids : the prompt's tokens behind them, at least one.
    restore : tokens of the history that stay if the turn fails or is cancelled before its first token.
    note : of the caller; handed back with the turn when it is settled.
    write : called with each piece of text.
    """

    def __init__(
        self,
        conversation: ConversationState,
        keep: int,
        ids: Sequence[int],
        restore: int,
        note: Any = None,
        write: Write | None = None,
    ) -> None:
        c = self.conversation = conversation
        self.keep, self.restore, self.note, self.write = keep, restore, note, write
        self._rows_before = c.cache.len
        if c.cache.len > c.prefix_rows + keep and not c.cache.can_truncate:
            raise CannotRewind(
                "the state of this model cannot drop positions; continue the conversation, or start a new one"
            )
        reset_processor(c.sampler.processor)  # may fail: before anything has changed
        c.cache.truncate(c.prefix_rows + keep)
        del c.history[keep:]
        self.reused = min(keep, c.cache.len - c.prefix_rows)
        c.history.extend(ids)
        self.prompt_end = len(c.history)
        room = c.capacity - c.prefix_rows - self.prompt_end
        self.stream = DecodeStream(
            c.cache, c.sampler, c.history, self._take, c.stop_ids, max(1, min(c.max_tokens, room)), c.prefix_rows
        )
        self.stream.ended = room < 1  # every token that is committed has its place in the cache
        self.reply: Reply | None = None
        self.cancelled = False
        self._prefilled, self._completed = False, False  # a committed token completed a stop text
        self._logits: np.ndarray | None = None
        self._stops = StopText(c.stop)
        self._detokenizer = c.model.tokenizer.stream()
        self._text: list[str] = []
        self._shown = 0
        self._began = perf_counter()
        self._decoding = self._latest = 0.0  # when prefill was done, when the latest token came

    # --- what a runner does -----------------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """Whether tokens of the prompt are still to be computed."""
        return not self._prefilled and self.reply is None

    @property
    def live(self) -> bool:
        """Whether decode steps are to come, prefill being done."""
        return self._prefilled and not self.stream.ended and not self.cancelled and self.reply is None

    def cancel(self) -> None:
        """End the turn at its next token, or its next pass of prefill; from any thread."""
        self.cancelled = True

    def bootstrap(self) -> None:
        """Commit the first token, from the logits of the prefill."""
        logits, self._logits = self._logits, None
        if self.live and logits is not None:
            self.conversation.decoder.bootstrap_step(self.stream, logits)

    def pieces(self) -> Generator[str, None, None]:
        """Run the turn alone, and give its text as it is decided."""
        fault: Exception | None = None
        try:
            while self.waiting and not self.cancelled:
                prefill_pass(self.conversation.model, [self])
            self.bootstrap()
            while self.live:
                if piece := self._unshown():
                    yield piece
                if self.live:  # nobody has ended the turn in between
                    self.conversation.decoder.step(self.stream)
        except Exception as error:
            fault = error
        except BaseException:  # closed by its reader, or Ctrl-C
            self.cancel()
            raise
        finally:
            self.settle(fault)
        if piece := self._unshown():  # first what was committed, then the error that came after it
            yield piece
        if fault is not None:
            raise fault

    def settle(self, error: Exception | None = None) -> Reply:
        """End the turn, the first time it is called: history, cache and messages fit together afterwards."""
        if self.reply is None:
            late = self._end_text()
            error = late if error is None else error
            if self._completed:
                self.conversation.history.pop()  # the token that completed the stop text: its row was never computed
            self.reply = self._describe(error)
            if self.reply.finish_reason in ("error", "cancelled") and not self.reply.tokens:
                self._undo()
            rows = self.conversation.prefix_rows + len(self.conversation.history)
            if self.conversation.cache.len > rows and self.conversation.cache.can_truncate:
                self.conversation.cache.truncate(rows)  # a draft's, if Ctrl-C came between the pass and its tokens
            self.stream.ended = True
            self.conversation._settled(self, self.reply)
        return self.reply

    # --- inside -----------------------------------------------------------------------------------------------------

    def _take(self, token: int) -> bool:
        """Take a committed token; true if the turn ends with it."""
        self._latest = perf_counter()
        text = self._stops.push(self._detokenizer.push(token))
        self._completed = self._stops.fired is not None
        self._emit(text)
        return self._completed or self.cancelled

    def _emit(self, text: str) -> None:
        if text:
            self._text.append(text)
            if self.write is not None:
                write, self.write = self.write, None  # one that fails is not called again
                write(text)
                self.write = write

    def _unshown(self) -> str:
        fresh = "".join(self._text[self._shown :])
        self._shown = len(self._text)
        return fresh

    def _end_text(self) -> Exception | None:
        """Give out what was held back: half a character (as U+FFFD), or what might have become a stop text."""
        try:
            self._emit(self._stops.push(self._detokenizer.flush()) + self._stops.flush())
        except Exception as error:  # the writer's
            return error
        return None

    def _describe(self, error: Exception | None) -> Reply:
        c, fired, now = self.conversation, self._stops.fired, perf_counter()
        tokens = c.history[self.prompt_end :]
        if error is not None:
            reason = "error"
        elif fired is not None or self.stream.stop_token is not None:
            reason = "stop"
        else:
            reason = "cancelled" if self.cancelled and self.stream.remaining > 0 else "length"
        return Reply(
            "".join(self._text),
            tokens,
            reason,
            fired,
            self.prompt_end,
            c.sampler.options.seed,
            (self._decoding or now) - self._began,
            max(0.0, self._latest - self._decoding),
            copy(getattr(c.decoder, "stats", None)),
            self.reused,
            None if fired is None else c.stop.index(fired),
            error,
            len(tokens) + self._completed,
        )

    def _undo(self) -> None:
        """Leave nothing of this turn."""
        c = self.conversation
        del c.history[self.restore :]
        c.cache.truncate(min(c.prefix_rows + self.restore, self._rows_before))


class ReplyStream:
    """Iterator over the text of one reply.

    Pieces are never half a character, and joined they are `result.text`.  `close()`, or the next thing that is done
    with the conversation, ends the reply; what was said by then stays, and a message that got no token of an answer is
    dropped.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._pieces = turn.pieces()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return next(self._pieces)

    def cancel(self) -> None:
        """End the reply at its next token; from any thread.  The iterator then ends by itself."""
        self._turn.cancel()

    def close(self) -> None:
        """End the reply now."""
        self._turn.cancel()
        self._pieces.close()
        self._turn.settle()  # in case it was never started

    @property
    def result(self) -> Reply:
        """The reply so far; complete when the iterator has ended."""
        return self._turn.reply or self._turn._describe(None)


def prefill_pass(model: Model, turns: Sequence[Turn]) -> None:
    """Run one pass of at most 128 rows over prompts that are not yet in the cache, in the order of `turns`."""
    requests: list[tuple[Any, list[int], str]] = []
    chosen, room = [], MAX_ROWS
    for turn in turns:
        c = turn.conversation
        done = c.cache.len - c.prefix_rows
        ids = c.history[done : min(done + room, turn.prompt_end)]
        if not ids:
            break
        requests.append((c.cache, ids, "last" if done + len(ids) == turn.prompt_end else "none"))
        chosen.append(turn)
        room -= len(ids)
    out = model.forward_rows(requests)
    now = perf_counter()
    for turn, (_, _, want), logits in zip(chosen, requests, out, strict=True):
        if want == "last":
            turn._prefilled, turn._logits, turn._decoding = True, logits, now
