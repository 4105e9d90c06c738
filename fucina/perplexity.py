"""Perplexity: how surprised a model is by a text.

The text's tokens are cut into chunks.  Each chunk is read from its beginning, and the model is asked for every token of its
second half, so that each has at least half a chunk before it.  The perplexity is exp of the mean of -log p over these
tokens: a model that always wavers between n equally likely tokens has n.  This is the field's usual way (llama.cpp's `llama-perplexity` does the same), so figures can be compared, as long
as chunks have the same length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from . import checks
from .errors import InvalidOption, TooShort

if TYPE_CHECKING:
    from .engine import Engine
    from .model import Model

CHUNK = 512
ROWS = 64  # whose logits are held at once


@dataclass(frozen=True, slots=True)
class Perplexity:
    """What a text gave.

    Attributes
    ----------
    value : exp of the mean of -log p.
    error : one standard error of it, if its tokens were independent.
    tokens : how many were asked for.  chunks : of how many.
    chunk : tokens in each.
    """

    value: float
    error: float
    tokens: int
    chunks: int
    chunk: int


def perplexity(
    model: Model, text: str | bytes, chunk: int = CHUNK, progress: Callable[[int, int, float], None] | None = None
) -> Perplexity:
    """Return the perplexity of a text under a model.

    Parameters
    ----------
    text : markers of control tokens in it are plain text.
    chunk : tokens per chunk, at least 4, at most the model's context; the rest after the last whole chunk is left out.
    progress : called after each chunk with its number from 1 on, the number of chunks, and the perplexity so far.

    Raises
    ------
    TooShort : the text has fewer tokens than two chunks.
    InvalidOption : chunk is out of its range.
    """
    tokenizer = model.tokenizer
    bos = tokenizer.bos if tokenizer.add_bos else None
    return perplexity_of_tokens(model, tokenizer.encode_prompt(text, special=False), chunk, bos, progress)


def perplexity_of_tokens(
    engine: Engine,
    ids: Sequence[int],
    chunk: int = CHUNK,
    bos: int | None = None,
    progress: Callable[[int, int, float], None] | None = None,
) -> Perplexity:
    """Return the perplexity of token ids; `bos`, if it is one, takes the place of each chunk's first token.

    Raises as `perplexity`.
    """
    chunk = checks.integer("chunk", chunk, 4)
    if chunk > engine.context:
        raise InvalidOption(f"a chunk of {chunk} tokens is longer than the context of {engine.context}")
    if len(ids) < 2 * chunk:
        raise TooShort(f"the text has {len(ids)} tokens; two chunks of {chunk} need {2 * chunk}")
    tokens = engine.check_tokens(ids)
    half, chunks = chunk // 2, len(tokens) // chunk
    losses: list[np.ndarray] = []
    for i in range(chunks):
        part = tokens[i * chunk : (i + 1) * chunk].copy()
        targets = part[half + 1 :].copy()
        if bos is not None:
            part[0] = bos
        state = engine.new_cache(chunk)
        engine.forward_rows([(state, part[:half], "none")])
        for start in range(half, chunk - 1, ROWS):
            rows = engine.forward(part[start : min(start + ROWS, chunk - 1)], state)
            losses.append(negative_log_probabilities(rows, targets[start - half : start - half + ROWS]))
        if progress is not None:
            progress(i + 1, chunks, math.exp(min(float(np.concatenate(losses).mean()), 700.0)))
    every = np.concatenate(losses)
    mean = float(every.mean())
    value = math.exp(mean) if mean < 700.0 else math.inf
    return Perplexity(value, value * float(every.std()) / math.sqrt(len(every) - 1), len(every), chunks, chunk)


def negative_log_probabilities(rows: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return -log softmax(row)[target] of each row: float64 [m].

    rows : float [m, vocab].  targets : int [m].
    """
    highest = rows.max(axis=1, keepdims=True)
    total = np.exp(rows - highest).sum(axis=1, dtype=np.float64)
    return np.log(total) - (rows[np.arange(len(rows)), targets].astype(np.float64) - highest[:, 0])
