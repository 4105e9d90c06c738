"""A tiny model with control tokens and a chat template, made from the tiny llama fixture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fucina.gguf import GgmlType, GgufFile, Metadata, write_gguf

from .models import TINY

MARKERS = ("<|im_start|>", "<|im_end|>")

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def chat_vocabulary(metadata: Metadata, template: str | None = CHATML, words: tuple[str, ...] = ()) -> dict[str, Any]:
    """Tokenizer keys of a model, with two control tokens more, the last of them the end of a turn, then `words`."""
    keys: dict[str, Any] = {key: metadata.entry(key) for key in metadata if key.startswith("tokenizer.")}
    vocab = list(metadata.strings("tokenizer.ggml.tokens"))
    keys["tokenizer.ggml.tokens"] = [*vocab, *(word.encode() for word in (*MARKERS, *words))]
    keys["tokenizer.ggml.token_type"] = np.array([1] * len(vocab) + [3] * len(MARKERS) + [1] * len(words), np.int32)
    keys["tokenizer.ggml.eos_token_id"] = np.uint32(len(vocab) + 1)
    if template is not None:
        keys["tokenizer.chat_template"] = template
    return keys


def write_chat_model(path: Path, template: str | None = CHATML, words: tuple[str, ...] = ()) -> Path:
    """Write the tiny llama with two control tokens more (ids 256 and 257, `<|im_end|>` the end of a turn).

    `words` (ASCII) are further ordinary tokens, from id 258 on; no merge makes them, so that only a model can say them.
    """
    source = GgufFile(TINY / "llama.gguf")
    vocab = source.metadata.strings("tokenizer.ggml.tokens")
    metadata: dict[str, Any] = {key: source.metadata.entry(key) for key in source.metadata}
    metadata |= chat_vocabulary(source.metadata, template, words)
    metadata["llama.vocab_size"] = np.uint32(len(vocab) + len(MARKERS) + len(words))
    generator = np.random.default_rng(0)
    tensors = {}
    for name, info in source.tensors.items():
        values = info.data.view(np.float32).reshape(info.shape)
        if info.shape[0] == len(vocab):
            more = generator.normal(size=(len(MARKERS) + len(words), *info.shape[1:])).astype(np.float32) * values.std()
            values = np.concatenate([values, more])
        tensors[name] = (values, GgmlType.F32)
    write_gguf(path, metadata, tensors)
    source.close()
    return path
