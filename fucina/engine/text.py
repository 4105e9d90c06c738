"""The text of a stream: what its tokens spell, piece by piece, up to a stop text."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..checks import shown
from ..errors import InvalidOption
from ..interrupts import HoldInterrupts

if TYPE_CHECKING:
    from ..tokenizers import Tokenizer
    from .scheduler import Scheduler
    from .stream import Stream

Result = TypeVar("Result")


def stop_texts(stop: Any) -> tuple[str, ...]:
    """Return the stop texts that an option gives: one, several, or None for none.

    An empty text stops nothing.  Raises InvalidOption for anything else.
    """
    stops = (stop,) if isinstance(stop, str) else () if stop is None else stop
    stops = tuple(stops) if isinstance(stops, Iterable) else (stops,)
    if not all(isinstance(s, str) for s in stops):
        raise InvalidOption(f"stop must be text or a sequence of texts, got {shown(stop)}")
    return stops


class StopText:
    """Finds stop texts in a stream and holds back only what may still become one.

    `push` takes new text and returns what is safe to show.  Of several stops the one that ends first wins; at a tie the
    longest.  Nothing of the stop is ever shown, nothing before it is lost.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [s for s in stops if s]
        self._held = ""
        self.fired: str | None = None

    def push(self, text: str) -> str:
        """Text that can be shown now.  Sets `fired` when a stop is complete."""
        if self.fired is not None:
            return ""
        held = self._held + text
        ends = [(at + len(s), -len(s), s) for s in self._stops if (at := held.find(s)) >= 0]
        if ends:
            end, minus_length, self.fired = min(ends)
            self._held = ""
            return held[: end + minus_length]
        keep = max(
            (k for s in self._stops for k in range(1, min(len(s), len(held) + 1)) if held.endswith(s[:k])), default=0
        )
        cut = len(held) - keep
        self._held = held[cut:]
        return held[:cut]

    def flush(self) -> str:
        """What was held back, once no more text will come."""
        held, self._held = self._held, ""
        return held


class StreamText:
    """What the committed tokens of a stream spell.

    `take` is a stream's `on_token`.  The text goes on from a prompt: a space at its beginning belongs to it, also where
    the tokenizer would drop one at the beginning of a text.

    Parameters
    ----------
    tokenizer : of the model.
    stops : texts that end the stream; none of such a text is shown.
    write : called with each piece as it is decided, and to return at once, since Ctrl-C waits for it; one that raises
        ends its stream, and is not called again.

    Attributes
    ----------
    completed : whether a committed token completed a stop text.
    began, first, latest : clock readings, in seconds: when the stream began, and of the first and latest token (or 0).
    """

    def __init__(
        self, tokenizer: Tokenizer, stops: Sequence[str] = (), write: Callable[[str], Any] | None = None
    ) -> None:
        self.tokenizer, self.stops, self._write = tokenizer, tuple(stops), write
        self.began, self.first, self.latest = perf_counter(), 0.0, 0.0
        self.completed = False
        self._stop = StopText(self.stops)
        self._decoder = tokenizer.stream(begins=False)
        self._pieces: list[str] = []
        self._shown = 0

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self._pieces)

    @property
    def fired(self) -> str | None:
        """The stop text that ended the stream."""
        return self._stop.fired

    def take(self, token: int) -> bool:
        """Take a committed token; return whether it completes a stop text."""
        self.latest = perf_counter()
        self.first = self.first or self.latest
        text = self._stop.push(self._decoder.push(token))
        self.completed = self._stop.fired is not None
        self._add(text)
        return self.completed

    def finish(self) -> Exception | None:
        """End the text: give out what was held back, half a character (as U+FFFD) or the beginning of a stop text.

        Returns
        -------
        What the writer raised, if it did.
        """
        try:
            with HoldInterrupts():  # what is taken from decoder and stop stands in the text
                self._add(self._stop.push(self._decoder.flush()) + self._stop.flush())
        except Exception as error:
            return error
        return None

    def unread(self) -> str:
        """The text since `unread` was called last."""
        new = "".join(self._pieces[self._shown :])
        self._shown = len(self._pieces)
        return new

    def _add(self, text: str) -> None:
        if text:
            self._pieces.append(text)
        if text and self._write is not None:
            write, self._write = self._write, None  # one that fails is not called again
            write(text)
            self._write = write


class TextStream(Generic[Result]):
    """Iterator over the text of one stream, in pieces as they are decided.

    Pieces are never half a character, and joined they are the result's text.  An error comes after the text before it.

    Parameters
    ----------
    scheduler, stream, text : runs the passes; what they run for; its text.
    settle : ends the stream for good; may be called more than once.
    peek : the result so far.

    Attributes
    ----------
    stream : the stream that is read.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        stream: Stream,
        text: StreamText,
        settle: Callable[[], Result],
        peek: Callable[[], Result],
    ) -> None:
        self._scheduler, self.stream, self._text = scheduler, stream, text
        self._settle, self._peek = settle, peek
        self._pieces = self._run()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return next(self._pieces)

    def cancel(self) -> None:
        """End the stream at its next token; from any thread.  The iterator then ends by itself."""
        self.stream.cancel()

    def close(self) -> None:
        """End the stream now.  The text so far stays."""
        self.stream.cancel()
        self._pieces.close()
        self._settle()  # in case it was never started

    @property
    def result(self) -> Result:
        """The result so far, as if the reader closed it now; complete when the iterator has ended."""
        ended = inspect.getgeneratorstate(self._pieces) == inspect.GEN_CLOSED
        return self._settle() if ended else self._peek()

    def _run(self) -> Generator[str, None, None]:
        try:
            for _ in self._scheduler.run(self.stream):
                if piece := self._text.unread():
                    yield piece
        except Exception as error:  # of the pass itself
            self.stream.fail(error)
        except BaseException:  # closed by its reader, or Ctrl-C
            self.stream.cancel()
            raise
        finally:
            self._settle()
        if piece := self._text.unread():
            yield piece
        if self.stream.error is not None:
            raise self.stream.error
