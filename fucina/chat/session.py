"""A conversation of several turns over one cache.

Every turn renders the whole conversation anew and compares its tokens with those whose rows are in the cache: the
longest common prefix is kept, the rest is dropped and prefilled (facts 8.3).  So whatever a template does to older
turns costs time, never correctness.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..errors import ContextFull, InvalidOption
from ..generation import Generation, GenerationStream
from ..sampling import LogitProcessor, Sampler, SamplerOptions
from .messages import Message
from .template import ChatTemplate

if TYPE_CHECKING:
    from ..model import Model


class Reply:
    """Iterator over the text of one assistant turn; `result` and `reused` describe it.

    When it ends, by itself or by `close()`, the text so far has become the assistant's message.  If it is broken off
    before the first token, the conversation is as it was before `send`.
    """

    def __init__(self, session: ChatSession, ids: list[int], reused: int, stream: GenerationStream):
        self._session, self._ids, self._stream = session, ids, stream
        self._open = True
        self.reused = reused

    @property
    def result(self) -> Generation:
        """What has been generated so far."""
        return self._stream.result

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        try:
            return next(self._stream)
        except BaseException as error:  # the end, an error, Ctrl-C: in each case the conversation stays usable
            self._settle(complete=isinstance(error, StopIteration))
            raise

    def close(self) -> None:
        """End the turn now."""
        self._stream.close()
        self._settle(complete=False)

    def _settle(self, complete: bool) -> None:
        if self._open:
            self._open = False
            self._session._finish(self._ids, self._stream.result, complete)


class ChatSession:
    """A conversation with a model.

    Parameters
    ----------
    model : Model
        With a chat template.
    system : str, optional
        A system message that opens the conversation.
    options : SamplerOptions, optional
        Default: greedy.  The draws go on from turn to turn.
    max_tokens : int
        Most tokens of one reply.
    stop : sequence of str
        Texts that end a reply.
    context : int, optional
        Positions of the cache; default: the model's context.
    processor : LogitProcessor, optional
        Reset at the start of every turn.

    Attributes
    ----------
    messages : list of dict
        The conversation so far, the system message included.

    Raises
    ------
    ChatTemplateError
        The model has no chat template, or one that does not compile.
    """

    def __init__(
        self,
        model: Model,
        system: str | None = None,
        options: SamplerOptions | None = None,
        max_tokens: int = 512,
        stop: Sequence[str] = (),
        context: int | None = None,
        processor: LogitProcessor | None = None,
    ):
        if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
            raise InvalidOption(f"max_tokens must be an integer of at least 1, got {max_tokens!r}")
        self.model = model
        self.template = ChatTemplate.of(model)
        self.messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self.template.encode(model.tokenizer, self.messages)  # a bad system message should fail here
        self._sampler = Sampler(options, processor)
        self._max_tokens, self._stop = max_tokens, tuple(stop)
        self._cache = model.new_cache(context)
        self._tokens: list[int] = []  # of the rows in the cache, and perhaps a few more
        self._reply: Reply | None = None

    def send(self, text: str) -> Reply:
        """Add a user message and return the reply, to be iterated: nothing is computed before that.

        Raises
        ------
        ContextFull
            The conversation with this message does not fit; nothing has changed.
        ChatTemplateError
            The message is no text, or the template refuses it; nothing has changed.
        """
        self._end_reply()
        messages = [*self.messages, {"role": "user", "content": text}]
        ids = self.template.encode(self.model.tokenizer, messages)
        capacity = self._cache.capacity
        if len(ids) > capacity:
            raise ContextFull(
                f"the conversation has {len(ids)} tokens with this message, the context holds {capacity}; start a new one"
            )
        self.messages = messages
        reused = common_prefix(self._tokens[: self._cache.len], ids[:-1])  # the last token's logits are wanted
        self._cache.truncate(reused)
        self._tokens = ids
        if self._sampler.processor is not None:
            self._sampler.processor.reset()
        stream = GenerationStream(
            self.model, ids, self._max_tokens, self._sampler, self._stop, self.model.tokenizer.eog_ids, cache=self._cache
        )
        self._reply = Reply(self, ids, reused, stream)
        return self._reply

    def reset(self) -> None:
        """Forget everything but the system message; the draws go on."""
        self._end_reply()
        self.messages = self.messages[:1] if self.messages and self.messages[0]["role"] == "system" else []

    @property
    def used(self) -> int:
        """Positions of the cache in use."""
        return self._cache.len

    @property
    def capacity(self) -> int:
        """Positions of the cache."""
        return self._cache.capacity

    def _end_reply(self) -> None:
        if self._reply is not None:
            self._reply.close()
            self._reply = None

    def _finish(self, ids: list[int], result: Generation, complete: bool) -> None:
        self._tokens = ids + result.tokens
        if complete or result.tokens:
            self.messages.append({"role": "assistant", "content": result.text})
        else:
            self.messages.pop()  # the user's message: it was never answered


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many leading items of `a` and `b` are equal."""
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n
