"""Texts to vectors: `Model.embed`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from . import checks
from .engine import HiddenStream, Scheduler

if TYPE_CHECKING:
    from .model import Model

STREAMS = 16  # texts that are computed side by side


def embed(model: Model, texts: str | Sequence[str | Sequence[int]], pooling: str = "last") -> np.ndarray:
    """Vectors of texts: hidden states after the last norm, scaled to length 1.

    A text's vector has the same bits whichever texts are embedded with it.  Any model gives vectors; those of models that
    were trained for it are good ones.

    Parameters
    ----------
    texts : a text, or several; each a string or token ids.  Strings get the tokens that the model wants around a text.
    pooling : "last" takes the hidden state of the last token, "mean" the mean over all tokens.

    Returns
    -------
    float32 [texts, dim]; a single text has one row.

    Raises
    ------
    EmptyInput, InvalidOption, InvalidText, TokenOutOfRange, KvCacheOverflow
    """
    items = [texts] if isinstance(texts, str) else checks.listed("texts", texts, "texts")
    ids = [
        text_ids(model, text) if isinstance(text, str) else checks.token_ids(f"texts[{i}]", text, model.n_tokens)
        for i, text in enumerate(items)
    ]
    if not ids:
        return np.empty((0, model.config.dim), np.float32)
    scheduler, n = Scheduler(model), min(len(ids), STREAMS)
    streams = [HiddenStream(ids[k::n], model.new_cache, pooling) for k in range(n)]
    for stream in streams:
        scheduler.add(stream)
    while scheduler.step() is not None:
        pass
    found = np.empty((len(ids), model.config.dim), np.float32)
    for k, stream in enumerate(streams):
        if stream.error is not None:
            raise stream.error
        found[k::n] = stream.vectors
    return found


def text_ids(model: Model, text: str) -> list[int]:
    """The tokens of a text that is to become a vector: with BOS and EOS where the model wants them."""
    tokenizer = model.tokenizer
    ids = tokenizer.encode_prompt(text)
    if tokenizer.add_eos and tokenizer.eos is not None and ids[-1:] != [tokenizer.eos]:
        ids = [*ids, tokenizer.eos]
    return ids
