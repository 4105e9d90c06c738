"""From a prompt to text: one stream, run to its end."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload
from weakref import WeakKeyDictionary

import numpy as np

from . import checks, defaults
from .engine.scheduler import Scheduler
from .engine.stream import Stream
from .engine.text import StreamText, TextStream, stop_texts
from .errors import ContextFull, EmptyInput, InvalidOption, MatcherFailed, SharedStream
from .sampling import Sampler, SamplerOptions, compose, reset_processor, structure_of
from .sampling.grammar import check_grammar, note_circle
from .saving import SavedText
from .speculative.factory import Document, make_drafter, stats_of

if TYPE_CHECKING:
    import os

    from .engine.drafts import Drafter
    from .model import Model
    from .sampling import Constraint, Grammar, LogitProcessor
    from .speculative import DraftSource, Options, Stats

Prompt = str | bytes | Sequence[int] | np.ndarray


@dataclass(frozen=True, slots=True)
class Generation:
    """What a generation produced.

    text : the continuation, without the stop text.  tokens : all ids that were produced, one that completed a stop text
    included; an end token is not.
    finish_reason : "stop" (end token or stop text), "length" (max_tokens or the context is used up), "cancelled" (its
    reader closed it, or has not read it to its end) or "error".
    stop : the stop text that fired, or None.  prompt_tokens : ids in the prompt.  seed : of the sampler.
    prefill_seconds, decode_seconds : wall time of the two phases; `decode_rate` is tokens per second of the second.
    speculation : counts of a drafter's steps, or None.
    complete : with a grammar, whether the text is a whole sentence of it: what max_tokens cuts is not, whatever stands
    there; None without a grammar.
    reused_prefix : ids of the prompt whose rows were in a cache already, so that they were not computed.
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
    complete: bool | None = None
    reused_prefix: int = 0

    def __str__(self) -> str:
        return self.text

    @property
    def decode_rate(self) -> float:
        """Tokens per second after the first one; 0.0 if there was only one."""
        steps = len(self.tokens) - 1
        return steps / self.decode_seconds if steps > 0 and self.decode_seconds > 0 else 0.0

    @property
    def cached_tokens(self) -> int:
        """`reused_prefix`, by the name that it has in chat APIs."""
        return self.reused_prefix


class GenerationStream(TextStream[Generation]):
    """Text pieces of a generation; `result` is its `Generation`."""


def finish_reason(stream: Stream, text: StreamText) -> str:
    """Return how a stream ended, in the words of `Generation.finish_reason`."""
    if stream.error is not None:
        return "error"
    if stream.stop_token is not None or text.fired is not None:
        return "stop"
    return "length" if stream.finish == "length" else "cancelled"


def is_complete(grammar: Grammar, constraint: Constraint, stream: Stream, text: StreamText) -> bool:
    """Return whether a reply is a whole sentence of its grammar, and over."""
    cut = text.fired is not None or (stream.stop_token is not None and not constraint.ended)  # by something else
    if not cut:
        return constraint.complete
    with contextlib.suppress(MatcherFailed):  # too much work to say: then nothing is promised
        return grammar.matches(text.text)
    return False


@overload
def generate(
    model: Model, prompt: Prompt, max_tokens: int = ..., *, stream: Literal[False] = False, **options: Any
) -> Generation: ...
@overload
def generate(
    model: Model, prompt: Prompt, max_tokens: int = ..., *, stream: Literal[True], **options: Any
) -> GenerationStream: ...
@overload
def generate(
    model: Model, prompt: Prompt, max_tokens: int = ..., *, stream: bool, **options: Any
) -> Generation | GenerationStream: ...
def generate(
    model: Model,
    prompt: Prompt,
    max_tokens: int = defaults.GENERATE_TOKENS,
    temperature: float = defaults.TEMPERATURE,
    seed: int = defaults.SEED,
    stop: str | Sequence[str] | None = (),
    stream: bool = False,
    ignore_eos: bool = False,
    processor: LogitProcessor | None = None,
    grammar: Grammar | None = None,
    speculative: bool | Options | DraftSource | Drafter = False,
    references: Document | Sequence[Document] = (),
    special: bool = True,
    save: str | os.PathLike[str] | None = None,
    **sampling: Any,
) -> Generation | GenerationStream:
    """Continue a prompt.

    Parameters
    ----------
    prompt : text (the tokenizer's BOS policy applies) or token ids (taken as they are).
    max_tokens : at most this many tokens, at least 1.
    temperature : 0 is greedy: always the likeliest token.
    seed : of the sampler; the same seed gives the same tokens.
    stop : text or texts that end the generation; none of it is returned.  An empty text stops nothing.
    stream : return a `GenerationStream` of text pieces instead of waiting for the end.
    ignore_eos : go on after a token that ends a text (to measure, or to compare with a reference).
    processor : a `fucina.sampling.LogitProcessor`.  It is reset here, then sees every row of logits before anything else,
        and every chosen token once.  Several: `fucina.sampling.compose`.
    grammar : a `fucina.Grammar`: the text will be one of its sentences, unless max_tokens or a stop text cuts it
        (`Generation.complete`).  See docs/grammars.md.
    speculative : draft tokens and verify several in one pass: the same tokens, in less time where text repeats itself.
        True, or `fucina.speculative.Options`, or a draft source, or a `SourceDrafter` made by hand.
    references : with speculative=True or Options, documents that the text may quote: texts, or token ids.
    special : whether control markers written in a text prompt (`<|im_end|>`) become their tokens.  Text that comes
        from a user should be given with special=False, or to a `Conversation`, which never parses it.
    save : a file that prompt and continuation are stored in, with their rows; what the prompt shares with the text that is
        there already is not computed again (`Generation.cached_tokens`).  Stored at the end, in the place of that text.
    sampling : further fields of `fucina.SamplerOptions` (top_k, top_p, min_p, penalties).

    Returns
    -------
    Generation, or GenerationStream if `stream`.

    Raises
    ------
    EmptyInput : the prompt, or a reference, has no token.  ContextFull : it does not fit in the context.
    TokenOutOfRange, InvalidOption, InvalidSamplerOption
    SharedStream : the processor has structure (a constraint), and a stream that goes on has it too.
    MatcherFailed : the grammar leads into a dead end, or reached a limit; the text before it was given out.
    KvFileInvalid, KvFileLocked, KvFileError : the file is another model's, in use, or cannot be opened.
    NotASavedText : it holds a conversation, which the text would replace.

    Warns
    -----
    SaveCut, SaveFailed : the file is damaged, or cannot be written; the text is complete nevertheless.
    UnboundedReply : a reply under a grammar repeated one token until max_tokens.
    """
    max_tokens = checks.integer("max_tokens", max_tokens, 1)
    stops = stop_texts(stop)
    options = SamplerOptions.of({"temperature": temperature, "seed": seed, **sampling})
    ids = _prompt_ids(model, prompt, special)
    max_tokens = min(max_tokens, model.context - len(ids) + 1)  # the last token needs no row
    if check_grammar(grammar) is not None and ignore_eos:
        raise InvalidOption("ignore_eos=True and a grammar exclude each other: a finished sentence can only be ended")
    constraint = None if grammar is None else grammar.constraint(model)
    sampler = Sampler(options, compose(processor, constraint))
    ends = frozenset() if ignore_eos else model.tokenizer.eog_ids
    drafter = make_drafter(model, speculative, references, structure_of(sampler.processor))
    structure = structure_of(processor)
    if structure is not None:
        _check_unused(structure)
    reset_processor(processor)
    text = StreamText(model.tokenizer, stops)
    state = model.new_cache(min(model.context, len(ids) + max_tokens))
    kept = None if save is None else SavedText(save, model, state, ids)
    run = Stream(state, ids, sampler, drafter, stop_tokens=ends, max_tokens=max_tokens, on_token=text.take)
    scheduler = Scheduler(model)
    scheduler.add(run)

    noted: list[bool] = []

    def result() -> Generation:
        return Generation(
            text.text,
            run.tokens[run.prompt_end :],
            finish_reason(run, text),
            text.fired,
            run.prompt_end,
            options.seed,
            max(0.0, text.first - text.began),
            text.latest - text.first,
            stats_of(drafter),
            None if grammar is None or constraint is None else is_complete(grammar, constraint, run, text),
            run.reused,
        )

    def settle() -> Generation:
        if not run.check_end():
            run.cancel()
            run.check_end()
        text.finish()
        if kept is not None:
            kept.store(state, run.tokens)
        done = result()
        if constraint is not None and not noted:
            noted.append(True)
            note_circle(done.tokens, done.finish_reason)
        return done

    out = GenerationStream(scheduler, run, text, settle, result)
    if structure is not None:
        _open[out] = run, structure
    if stream:
        return out
    for _ in out:
        pass
    return out.result


_open: WeakKeyDictionary[GenerationStream, tuple[Stream, Any]] = WeakKeyDictionary()  # while their readers keep them


def _check_unused(structure: Any) -> None:
    """Refuse a processor that is at a place in the text of a stream that goes on."""
    for run, used in list(_open.values()):
        if run.finish is None and structure is used:
            raise SharedStream(
                "the processor belongs to a stream that goes on; close that one first, or give each its own: "
                "grammar.constraint(model)"
            )


def _prompt_ids(model: Model, prompt: Prompt, special: bool) -> list[int]:
    """The tokens of a prompt: at least one, and no more than the context holds."""
    if isinstance(prompt, (str, bytes)):
        ids = model.tokenizer.encode_prompt(prompt, special)
    elif isinstance(prompt, (bytearray, memoryview)) or not isinstance(prompt, (Sequence, np.ndarray)):
        raise InvalidOption(f"prompt must be text or a sequence of token ids, got {type(prompt).__name__}")
    else:
        ids = checks.token_ids("prompt", prompt, model.n_tokens)
    if not ids:
        raise EmptyInput("the prompt has no token; give at least one character, or a BOS token")
    if len(ids) > model.context:
        raise ContextFull(f"the prompt has {len(ids)} tokens, the context holds {model.context}")
    return ids
