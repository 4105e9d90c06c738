"""From a prompt to text: prefill, then decode steps until something ends it.

A step (`fucina.decoding`) commits one token, or several where a draft was accepted; the loop does not know which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from . import defaults
from .decoders import make_decoder
from .decoding import Decoder, DecodeStream
from .errors import ContextFull, EmptyInput, InvalidOption

if TYPE_CHECKING:
    from .cache import KvCache
    from .decoders import Document
    from .model import Model
    from .sampling import LogitProcessor
    from .speculative import DraftSource, Options, Stats


@dataclass(frozen=True, slots=True)
class Generation:
    """What a generation produced.

    text : the continuation, without the stop text.  tokens : all ids that were produced: one that completed a stop text
    is among them, an end token is not.
    finish_reason : "stop" (end token or stop text) or "length" (max_tokens or the context is used up).
    stop : the stop text that fired, or None.  prompt_tokens : ids in the prompt.  seed : of the sampler.
    prefill_seconds, decode_seconds : wall time of the two phases; `decode_rate` is tokens a second of the second.
    speculation : counts of a speculative decoder's steps, or None.
    """

    text: str
    tokens: list[int]
    finish_reason: str
    stop: str | None
    prompt_tokens: int
    seed: int
    prefill_seconds: float
    decode_seconds: float
    speculation: Stats | None = None

    def __str__(self) -> str:
        return self.text

    @property
    def decode_rate(self) -> float:
        """Tokens a second after the first one; 0.0 if there was only one."""
        steps = len(self.tokens) - 1
        return steps / self.decode_seconds if steps > 0 and self.decode_seconds > 0 else 0.0


def stop_texts(stop: Any) -> tuple[str, ...]:
    """Return the stop texts that an option gives: one, several, or None for none; raises InvalidOption for else."""
    stops = (stop,) if isinstance(stop, str) else () if stop is None else stop
    stops = tuple(stops) if isinstance(stops, Iterable) else (stops,)
    if not all(isinstance(s, str) for s in stops):
        raise InvalidOption(f"stop must be text or a sequence of texts, got {stop!r}")
    return stops


class StopText:
    """Finds stop texts in a stream and holds back only what may still become one.

    `push` takes new text and returns what is safe to show.  Of several stops the one that ends first wins; at a tie the
    longest.  Nothing of the stop is ever shown, nothing before it is lost.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [s for s in stops if s]  # an empty stop never matches
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


class GenerationStream:
    """Iterator over pieces of text as they are decided; `result` holds the Generation once it has ended.

    Pieces are never half a character, and joined they equal `result.text`.  `close()` (or leaving the loop) ends the
    generation; the result then holds what was produced so far.  A `cache` that is given already holds rows of a proper
    prefix of `ids`; only the rest is prefilled.  A `decoder` that speculates changes how many tokens a piece holds.
    """

    def __init__(
        self,
        model: Model,
        ids: list[int],
        max_tokens: int,
        sampler: Any,
        stops: Sequence[str],
        ends: frozenset[int],
        cache: KvCache | None = None,
        decoder: Decoder | None = None,
    ) -> None:
        self._ends, self._cache = ends, cache
        self.decoder = Decoder(model) if decoder is None else decoder
        self._model, self._ids, self._max_tokens, self._sampler = model, ids, max_tokens, sampler
        self._stops = StopText(stops)
        self._tokens: list[int] = []
        self._text: list[str] = []
        self._shown = 0
        self._detokenizer = model.tokenizer.stream()
        self._times, self._start = [0.0, 0.0], 0.0
        self._finish_reason = "length"
        self._pieces = self._run()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        """End the generation now."""
        self._pieces.close()

    @property
    def result(self) -> Generation:
        """What has been produced so far; complete when the iterator has ended."""
        return Generation(
            "".join(self._text),
            list(self._tokens),
            self._finish_reason,
            self._stops.fired,
            len(self._ids),
            self._sampler.options.seed,
            *self._times,
            copy(getattr(self.decoder, "stats", None)),
        )

    def _take(self, token: int) -> bool:
        """Take a committed token; true if it completes a stop text."""
        self._tokens.append(token)
        self._times[1] = perf_counter() - self._start
        self._text.append(self._stops.push(self._detokenizer.push(token)))
        return self._stops.fired is not None

    def _unshown(self) -> str:
        fresh = "".join(self._text[self._shown :])
        self._shown = len(self._text)
        return fresh

    def _run(self) -> Iterator[str]:
        model, decoder, ids = self._model, self.decoder, self._ids
        cache = self._cache
        if cache is None:
            cache = model.new_cache(min(model.context, len(ids) + self._max_tokens))
        stream = DecodeStream(cache, self._sampler, list(ids), self._take, self._ends, self._max_tokens)
        start = perf_counter()
        logits = model.forward_rows([(cache, ids[cache.len :], "last")])[0]  # an own cache holds a true prefix
        self._start = perf_counter()
        self._times[0] = self._start - start
        fault = _attempt(decoder.bootstrap_step, stream, logits)
        while True:
            if stream.stop_token is not None or self._stops.fired is not None:
                self._finish_reason = "stop"
            if piece := self._unshown():  # first what was committed, then the error that came after it
                yield piece
            if fault is not None:
                raise fault
            if stream.ended or stream.room < 1:
                break
            fault = _attempt(decoder.step, stream)
        self._text.append(self._stops.push(self._detokenizer.flush()) + self._stops.flush())
        if self._stops.fired is not None:
            self._finish_reason = "stop"
        if piece := self._unshown():
            yield piece


def _attempt(step: Callable[..., int], *arguments: Any) -> Exception | None:
    try:
        step(*arguments)
    except Exception as error:
        return error
    return None


def generate(
    model: Model,
    prompt: str | bytes | Sequence[int] | np.ndarray,
    max_tokens: int = defaults.GENERATE_TOKENS,
    temperature: float = defaults.TEMPERATURE,
    seed: int = defaults.SEED,
    stop: str | Sequence[str] = (),
    stream: bool = False,
    ignore_eos: bool = False,
    processor: LogitProcessor | None = None,
    speculative: bool | Options | DraftSource | Decoder = False,
    references: Document | Sequence[Document] = (),
    **sampling: Any,
) -> Generation | GenerationStream:
    """Continue a prompt.

    Parameters
    ----------
    prompt : text (the tokenizer's BOS policy applies) or token ids (taken as they are).
    max_tokens : at most this many tokens, at least 1.
    temperature : 0 is greedy: always the likeliest token.
    seed : of the sampler; the same seed gives the same tokens.
    stop : text or texts that end the generation; none of it is returned.
    stream : return a `GenerationStream` of text pieces instead of waiting for the end.
    ignore_eos : go on after a token that ends a text (to measure, or to compare with a reference).
    processor : a `fucina.sampling.LogitProcessor`.  It is reset here, then sees every row of logits before anything else,
        and every chosen token once.  Several: `fucina.sampling.compose`.
    speculative : draft tokens and verify several in one pass: the same tokens, in less time where text repeats itself.
        True, or `fucina.speculative.Options`, or a draft source, or a `SpeculativeDecoder` made by hand.
    references : with speculative=True or Options, documents that the text may quote: texts, or token ids.
    sampling : further fields of `fucina.SamplerOptions` (top_k, top_p, min_p, penalties).

    Returns
    -------
    Generation, or GenerationStream if `stream`.

    Raises
    ------
    EmptyInput : the prompt, or a reference, has no token.  ContextFull : it does not fit in the context.
    TokenOutOfRange, InvalidOption, InvalidSamplerOption
    """
    from .sampling import Sampler, SamplerOptions, reset_processor

    if isinstance(max_tokens, bool) or not isinstance(max_tokens, (int, np.integer)) or max_tokens < 1:
        raise InvalidOption(f"max_tokens must be an integer of at least 1, got {max_tokens!r}")
    stops = stop_texts(stop)
    options = SamplerOptions.of({"temperature": temperature, "seed": seed, **sampling})
    if isinstance(prompt, (str, bytes)):
        ids = model.tokenizer.encode_prompt(prompt)
    elif isinstance(prompt, (Sequence, np.ndarray)):
        ids = model.check_tokens(prompt).tolist() if len(prompt) else []
    else:
        raise InvalidOption(f"prompt must be text or a sequence of token ids, got {type(prompt).__name__}")
    if not ids:
        raise EmptyInput("the prompt has no token; give at least one character, or a BOS token")
    if len(ids) > model.context:
        raise ContextFull(f"the prompt has {len(ids)} tokens, the context holds {model.context}")
    sampler = Sampler(options, processor)
    ends = frozenset() if ignore_eos else model.tokenizer.eog_ids
    decoder = make_decoder(model, speculative, references)
    reset_processor(processor)
    out = GenerationStream(model, ids, int(max_tokens), sampler, stops, ends, decoder=decoder)
    if stream:
        return out
    for _ in out:
        pass
    return out.result
