"""Small published models: folders as a trained model comes in, with random weights and known logits.

tests/data/convert holds, for each, config.json and the weights as transformers 5.24 writes them, and the logits that it
computes in float32 for every third position of a text.  The tokenizer is made here by formula.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from .models import DATA
from .unit.tokenizer_vocabularies import stand_ins

PUBLISHED = DATA / "convert"
NAMES = sorted(path.stem for path in PUBLISHED.glob("*.safetensors"))
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def split(pattern: str) -> dict[str, Any]:
    """The part of a pre-tokenizer that cuts by an expression."""
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
DEEPSEEK3 = [
    split(r"\p{N}{1,3}"),
    split("[一-龥぀-ゟ゠-ヿ]+"),
    split(
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
]
PRE = {"llama": [split(LLAMA3)], "qwen3": [split(QWEN2)], "qwen35": [split(QWEN35)], "deepseek": DEEPSEEK3}


def byte_level(pre: list[dict[str, Any]], **model: Any) -> dict[str, Any]:
    """A `tokenizer.json` of all bytes, a few merges and three markers: 300 ids."""
    s = stand_ins()
    pairs = ["Ġ t", "h e", "i n", "Ġt he", "e r", "1 2", "12 3", "Ġ Ġ", "ĠĠ Ġ", "Ċ Ċ"]
    pairs += [f"{s[a]} {s[b]}" for a, b in zip(b"etaoinshrdlucmfwypvbgkq", b"dhtnrsteeiloamewyesrogu", strict=True)]
    words = [*s, *(pair.replace(" ", "") for pair in pairs)]
    vocab = {text: i for i, text in enumerate(dict.fromkeys(words))}
    return {
        "version": "1.0",
        "added_tokens": markers(len(vocab), ["<|begin|>", "<|im_end|>", "<|endoftext|>"]),
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*pre, BYTE_LEVEL]},
        "post_processor": None,
        "decoder": BYTE_LEVEL,
        "model": {"type": "BPE", "vocab": vocab, "merges": pairs, "byte_fallback": False, **model},
    }


def in_characters() -> dict[str, Any]:
    """A `tokenizer.json` over characters with byte tokens, as that of Gemma."""
    first = ["<pad>", "<eos>", "<bos>", "<unk>"]
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    letters = ["▁", *"etaoinshr"]
    pairs = ["▁ t", "h e", "i n", "▁t he", "e r", "▁ ▁", "▁▁ ▁▁", "▁▁ ▁", "▁ ▁▁"]
    words = [*first, *pieces, *letters, *(pair.replace(" ", "") for pair in pairs)]
    vocab = {text: i for i, text in enumerate(dict.fromkeys(words))}
    return {
        "version": "1.0",
        "added_tokens": [{**t, "id": vocab[t["content"]]} for t in markers(0, first)],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        },
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": vocab,
            "merges": pairs,
        },
    }


def markers(start: int, texts: list[str]) -> list[dict[str, Any]]:
    """Entries of `added_tokens`."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return [{"id": start + i, "content": text, **flags} for i, text in enumerate(texts)]


def tokenizer(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """tokenizer.json and tokenizer_config.json for a model of this name."""
    if name.startswith("gemma"):
        return in_characters(), {
            "bos_token": "<bos>",
            "eos_token": "<eos>",
            "pad_token": "<pad>",
            "add_bos_token": True,
        }
    family = next((f for f in ("qwen35", "qwen3", "deepseek") if name.startswith(f)), "llama")
    described = byte_level(PRE[family], ignore_merges=family == "llama")
    return described, {
        "bos_token": "<|begin|>" if family != "qwen3" else None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "add_bos_token": family == "llama",
        "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
    }


def published(name: str, folder: Path) -> Path:
    """A folder with the model of this name, as it would be downloaded."""
    target = folder / name
    target.mkdir(parents=True)
    shutil.copyfile(PUBLISHED / f"{name}.safetensors", target / "model.safetensors")
    shutil.copyfile(PUBLISHED / f"{name}.json", target / "config.json")
    for file, value in zip(("tokenizer.json", "tokenizer_config.json"), tokenizer(name), strict=True):
        (target / file).write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
    return target
