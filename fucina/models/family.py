"""What every family has: a config, tables of tensors, a forward, and what its streams keep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Any

import numpy as np

from ..cache.parts import Part
from ..errors import ModelError
from ..gguf import GgufFile
from ..gguf.weights import Weight, WeightFinder
from ..ops.rope import RopeSpec, yarn_factors
from ..ops.vocabulary import LoadedFamily
from .keys import WIDTH, Keys
from .table import read_table, table, tensor

MAX_CONTEXT = 1 << 24  # positions
MAX_LAYERS = 4096
MAX_EXPERTS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Sizes that every family has.

    dim : width of a row between layers.  vocab_size : rows of the embedding matrix, at least the tokenizer's tokens.
    context_length : positions that the model was trained with.  eps : of every RMS norm.
    """

    n_layers: int
    dim: int
    ffn_dim: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    eps: float
    rope: RopeSpec

    @property
    def q_dim(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        """Width of all key heads together."""
        return self.kv_heads * self.head_dim

    def layer(self, i: int) -> Any:
        """Whose attributes are the shapes of the tensors of layer i: a family whose layers differ has sizes for each."""
        return self

    @classmethod
    def read(cls, keys: Keys, find: WeightFinder) -> Any:
        """The config of a file.  A family extends this where it has more sizes or another RoPE."""
        return cls(**common_sizes(keys, find), rope=read_rope(keys, head_dim(keys), "half"))


@table
class Weights:
    """Tensors outside of the layers.  A file without an output matrix uses the embedding for it (a tied output)."""

    embedding: Weight = tensor("token_embd", "vocab_size", "dim")
    layers: tuple[Any, ...]
    output_norm: Weight = tensor("output_norm", "dim")
    output: Weight = tensor("output", "vocab_size", "dim", otherwise="embedding")


@dataclass(frozen=True, slots=True)
class Family:
    """How a family is read from a file and run.

    architecture : its name in files.
    config : class with `read(keys, find)`.
    forward : forward(ops, config, weights) -> logits [rows asked for, vocab].
    layers : layers(config) -> the table of each layer's tensors.
    parts : parts(config) -> what a stream keeps, one part per slot.
    """

    architecture: str
    config: type[Config]
    forward: Callable[..., Any]
    layers: Callable[[Any], Sequence[type]]
    parts: Callable[[Any], Sequence[Part]]
    weights: type = Weights

    def read(self, file: GgufFile) -> LoadedFamily:
        """Config and weights of a file of this family.

        Raises
        ------
        ModelError, GgufError : metadata or tensors are missing, out of range, not known or do not fit together.
        """
        find, keys = WeightFinder(file), Keys(file.metadata, self.architecture)
        config = self.config.read(keys, find)
        _check_vocabulary(file, config)
        keys.check_all_known()
        tables = enumerate(self.layers(config))
        layers = tuple(read_table(table, find, config.layer(i), f"blk.{i}.") for i, table in tables)
        weights = read_table(self.weights, find, config, layers=layers)
        find.check_all_used()
        return LoadedFamily(self.architecture, config, weights, self.forward, tuple(self.parts(config)))


# --- metadata that families share -------------------------------------------------------------------------------------


def head_dim(keys: Keys) -> int:
    """Width of a head, even."""
    heads = keys.count("attention.head_count", 1, WIDTH)
    default = keys.count("embedding_length", 1, WIDTH) // heads
    n = keys.count("attention.key_length", 2, WIDTH, default=default)
    if n % 2:
        raise ModelError(f"{keys.architecture}: heads of {n} numbers; expected an even count, RoPE turns pairs")
    return n


def model_sizes(keys: Keys, find: WeightFinder) -> dict[str, Any]:
    """The fields of `Config` that say nothing about heads and feed-forward."""
    vocab_size = find.rows("token_embd.weight")
    keys.count("vocab_size", 1, vocab_size, default=vocab_size)
    return {
        "n_layers": keys.count("block_count", 1, MAX_LAYERS),
        "dim": keys.count("embedding_length", 1, WIDTH),
        "vocab_size": vocab_size,
        "context_length": keys.count("context_length", 1, MAX_CONTEXT),
        "eps": keys.number("attention.layer_norm_rms_epsilon", 1e-30, 1.0),
    }


def common_sizes(
    keys: Keys, find: WeightFinder, width: int | None = None, ffn: str = "feed_forward_length"
) -> dict[str, Any]:
    """The fields of `Config` but `rope`, of an attention family with heads of one width.

    width : of a head, where attention.key_length and attention.value_length say something else.
    ffn : the key of ffn_dim.
    """
    arch, n = keys.architecture, head_dim(keys) if width is None else width
    heads = keys.count("attention.head_count", 1, WIDTH)
    kv_heads = keys.count("attention.head_count_kv", 1, heads, default=heads)
    if heads % kv_heads:
        raise ModelError(f"{arch}: {heads} query heads cannot share {kv_heads} key heads evenly")
    if width is None:
        keys.count("attention.value_length", n, n, default=n)
    sizes = model_sizes(keys, find)
    return sizes | {"ffn_dim": keys.count(ffn, 1, WIDTH), "heads": heads, "kv_heads": kv_heads, "head_dim": n}


def read_rope(keys: Keys, width: int, pairing: str, *, yarn: bool = False) -> RopeSpec:
    """RoPE of heads of `width` numbers, with linear scaling where the file asks for it; with YaRN, if `yarn`."""
    dims = keys.count("rope.dimension_count", 2, width, default=width)
    if dims % 2:
        raise ModelError(
            f"{keys.architecture}.rope.dimension_count is {dims}, expected an even count: RoPE turns pairs"
        )
    base = rope_base(keys, "rope.freq_base")
    kinds = ("none", "linear", "yarn") if yarn else ("none", "linear")
    kind = keys.choice("rope.scaling.type", *kinds, default="linear")  # a factor without a type is linear scaling
    old = keys.number("rope.scale_linear", 1e-6, 1e6, default=1.0)  # the key's first name
    factor = keys.number("rope.scaling.factor", 1e-6, 1e6, default=old)
    if kind == "yarn":
        if base <= 1 or factor < 1:
            raise ModelError(
                f"{keys.architecture}: YaRN with base {base:g} and factor {factor:g}; expected a base above 1 and a "
                "factor of at least 1"
            )
        trained = keys.count("context_length", 1, MAX_CONTEXT)
        context = keys.count("rope.scaling.original_context_length", 1, MAX_CONTEXT, default=trained)
        fast = keys.number("rope.scaling.yarn_beta_fast", 1e-6, 1e6, default=32.0)
        slow = keys.number("rope.scaling.yarn_beta_slow", 1e-6, 1e6, default=1.0)
        factors = yarn_factors(dims, base, factor, context, fast, slow)
        return RopeSpec(dims, base, pairing, factors, magnitude=1 + 0.1 * log(factor))
    return RopeSpec(dims, base, pairing, None, 1.0 / factor if kind == "linear" else 1.0)


def with_factors(rope: RopeSpec, find: WeightFinder) -> RopeSpec:
    """The same RoPE with the file's frequency factors, where it has some: llama 3 stretches its slow frequencies."""
    if not find.has("rope_freqs.weight"):
        return rope
    factors = find("rope_freqs.weight", rope.dims // 2).float32()
    if not (np.isfinite(factors) & (factors > 0)).all():
        raise ModelError("rope_freqs.weight holds factors that are not positive and finite")
    before = np.ones(rope.dims // 2) if rope.freq_factors is None else np.array(rope.freq_factors)
    return replace(rope, freq_factors=tuple((before * factors).tolist()))


def rope_base(keys: Keys, key: str) -> float:
    """Base of RoPE's frequencies; 10000 where the file has none."""
    return keys.number(key, 1.0, 1e15, default=10_000.0)


def _check_vocabulary(file: GgufFile, config: Any) -> None:
    tokens = len(file.metadata.strings("tokenizer.ggml.tokens", default=[]))
    if tokens > config.vocab_size:
        raise ModelError(
            f"the tokenizer has {tokens} tokens, token_embd.weight only {config.vocab_size} rows: "
            "some tokens would have no embedding"
        )
