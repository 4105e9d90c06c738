"""Small vocabularies made by formula, so that tokenizers can be tested without any model."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np

from fucina.gguf import Metadata

DATA = Path(__file__).parent.parent / "data" / "tokenizers"


def fixture(name: str) -> dict[str, Any]:
    """A file of expected ids."""
    return json.loads((DATA / name).read_text(encoding="utf-8"))


def stand_ins() -> list[str]:
    """The printable stand-in of each byte in byte-level BPE vocabularies."""
    shifted = iter(range(256, 512))
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    return [chr(byte if byte in printable else next(shifted)) for byte in range(256)]


def pair_vocabulary(pre: str | None) -> dict[str, Any]:
    """Every byte, every pair of bytes in a shuffled order of merges, some words that no merge reaches, three markers.

    Since any two neighbours merge, the ids change with nearly every change of a word's border.
    """
    s = stand_ins()
    pairs = [divmod(i * 40503 % 65536, 256) for i in range(65536)]
    tokens = s + [s[a] + s[b] for a, b in pairs]
    tokens += ["Ġthe", "hello", "123", "ĠĠĠ", "<|im_start|>", "<|im_end|>", "<tool>"]
    values = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": [f"{s[a]} {s[b]}" for a, b in pairs],
        "tokenizer.ggml.token_type": np.array([1] * (len(tokens) - 3) + [3, 3, 4], np.int32),
    }
    return values if pre is None else values | {"tokenizer.ggml.pre": pre}


def small_bpe(**changes: Any) -> dict[str, Any]:
    """The example of the reference with all single bytes: `h i` merges; `<|im_end|>` ends a turn."""
    tokens = ["<|im_end|>", *stand_ins(), "hi"]
    values = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "merges": ["h i"],
        "token_type": np.array([3] + [1] * 257, np.int32),
        "eos_token_id": 0,
    }
    return _metadata(values | changes)


def small_spm(**changes: Any) -> dict[str, Any]:
    """SentencePiece over a few letters: all strings of up to three, with scores full of ties; bytes; markers."""
    letters = ["\u2581", "a", "b", "é"]
    words = ["".join(w) for n in (1, 2, 3) for w in itertools.product(letters, repeat=n)]
    words = [w for i, w in enumerate(words) if len(w) == 1 or i * 7 % 5]  # not all, so that some merges lead nowhere
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words, "<t>", "  ", "<|eot_id|>"]
    values = {
        "model": "llama",
        "tokens": tokens,
        "scores": np.array([0.0] * 259 + [-float(i * 13 % 11) for i in range(len(words))] + [0.0] * 3, np.float32),
        "token_type": np.array([2, 3, 3] + [6] * 256 + [1] * len(words) + [4, 4, 3], np.int32),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    return _metadata(values | changes)


def _metadata(values: dict[str, Any]) -> dict[str, Any]:
    """With the keys of a GGUF; a value of None takes the key away."""
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


def metadata(values: dict[str, Any]) -> Metadata:
    """As a GGUF reader gives it."""
    return Metadata.from_dict(values)
