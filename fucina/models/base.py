"""What the family files share: readers of common metadata, each with its checks."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import ModelError
from ..gguf import GgufFile, Metadata


def attention_sizes(meta: Metadata, arch: str) -> tuple[int, int, int, int]:
    """(dim, heads, kv_heads, head_dim) of an attention layer; ModelError where they do not fit together."""
    dim = meta.int(f"{arch}.embedding_length")
    heads = meta.int(f"{arch}.attention.head_count")
    kv_heads = meta.int(f"{arch}.attention.head_count_kv", default=heads)
    for name, value in (("embedding_length", dim), ("head_count", heads), ("head_count_kv", kv_heads)):
        if value < 1:
            raise ModelError(f"{arch} {name} must be at least 1, got {value}")
    head_dim = meta.int(f"{arch}.attention.key_length", default=dim // heads)
    v_dim = meta.int(f"{arch}.attention.value_length", default=head_dim)
    if heads % kv_heads:
        raise ModelError(f"{arch}: {heads} query heads cannot share {kv_heads} key heads evenly")
    if v_dim != head_dim:
        raise ModelError(f"{arch}: key_length {head_dim} and value_length {v_dim} must be equal in this family")
    if head_dim < 2 or head_dim % 2:
        raise ModelError(f"{arch}: key_length must be even and at least 2, got {head_dim}")
    return dim, heads, kv_heads, head_dim


def vocab_size(file: GgufFile) -> int:
    """Rows of the embedding matrix."""
    shape = file.tensor("token_embd.weight").shape
    if len(shape) != 2:
        raise ModelError(f"token_embd.weight has shape {list(shape)}, expected [vocab, dim]")
    return shape[0]


def rope_scale(meta: Metadata, arch: str) -> float:
    """Factor on every RoPE frequency; ModelError names a scaling that is not implemented."""
    kind = meta.str(f"{arch}.rope.scaling.type", default="none")
    if kind == "none":
        return 1.0
    if kind == "linear":
        factor = meta.float(f"{arch}.rope.scaling.factor")
        if not factor > 0:
            raise ModelError(f"{arch}.rope.scaling.factor must be positive, got {factor}")
        return 1.0 / factor
    raise ModelError(f"{arch}.rope.scaling.type is {kind!r}; implemented: none, linear")


def layer_names(n_layers: int) -> Iterator[str]:
    """Prefixes of the layers' tensor names."""
    if n_layers < 1:
        raise ModelError(f"block_count must be at least 1, got {n_layers}")
    return (f"blk.{i}" for i in range(n_layers))
