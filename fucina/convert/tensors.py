"""From the names of published models to those of GGUF: tables, and what happens to a tensor on the way."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import ConvertError
from .config import Config
from .lazy import Numbers, applied, constant, numbers, reshaped, stacked, take_rows
from .safetensors import SafeTensor

Change = Callable[[Config, Numbers], Numbers]


@dataclass(frozen=True, slots=True)
class To:
    """A tensor of GGUF: its name (without `blk.3.` in a layer), and what makes it."""

    name: str
    change: Change = lambda _, x: x


Table = Mapping[str, "str | To | tuple[To, ...]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """How one kind of published model becomes a family of GGUF.

    architecture : of GGUF.  classes : names of `architectures` in config.json.
    metadata : metadata(config) -> keys without the architecture's prefix.
    layer : names after `model.layers.3.`.  outside : names of all other tensors.
    extra : extra(config) -> further tensors that are made from the config.
    tied : whether the output is the embedding where the config does not say.
    """

    architecture: str
    classes: tuple[str, ...]
    metadata: Callable[[Config], dict[str, Any]]
    layer: Table
    outside: Table = field(default_factory=dict)
    extra: Callable[[Config], dict[str, np.ndarray]] = lambda _: {}
    tied: bool = False


def plus_one(_: Config, x: Numbers) -> Numbers:
    """The weight of a norm that multiplies with 1 + weight."""
    return applied(x, lambda values: values + np.float32(1))


def interleaved(heads: str) -> Change:
    """Rows of queries or keys so that RoPE turns neighbours, not the halves of a head; heads : the key of their count."""

    def change(c: Config, x: Numbers) -> Numbers:
        n = c.count(heads, default=c.count("num_attention_heads"))
        if x.n_rows % (2 * n):
            raise ConvertError(f"tensor {x.name} has the shape {list(x.shape)}; expected {n} heads of an even width")
        index = np.arange(x.n_rows).reshape(n, 2, -1).swapaxes(1, 2).reshape(-1)
        return take_rows(x, index, x.n_rows)

    return change


def half_of_each(which: int) -> Change:
    """The first or second half of the rows of each expert."""

    def change(_: Config, x: Numbers) -> Numbers:
        if len(x.shape) != 3 or x.shape[1] % 2:
            raise ConvertError(f"tensor {x.name} has the shape {list(x.shape)}; expected [experts, 2 * width, inputs]")
        experts, both, _inputs = x.shape
        index = np.arange(x.n_rows).reshape(experts, 2, both // 2)[:, which].reshape(-1)
        return take_rows(x, index, x.n_rows, experts, both // 2)

    return change


def squeezed(_: Config, x: Numbers) -> Numbers:
    """[channels, 1, taps] -> [channels, taps]"""
    return reshaped(x, x.shape[0], x.shape[-1])


# --- tables that families share ------------------------------------------------------------------------------------

OUTSIDE: Table = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
ATTENTION: Table = {
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
}
HEAD_NORMS: Table = {
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
}
NORMS: Table = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
}
FFN: Table = {
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
EXPERTS: Table = {
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.experts.gate_proj.weight": "ffn_gate_exps.weight",
    "mlp.experts.up_proj.weight": "ffn_up_exps.weight",
    "mlp.experts.down_proj.weight": "ffn_down_exps.weight",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    "mlp.experts.gate_up_proj": (
        To("ffn_gate_exps.weight", half_of_each(0)),
        To("ffn_up_exps.weight", half_of_each(1)),
    ),
}

# --- from a model's tensors to a file's ------------------------------------------------------------------------------

# Names of models that also see and hear: the text model inside.
_PREFIXES = (
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)
# Parts that a text model does without, and what they are.
_LEFT_OUT = {
    "vision": re.compile(r"(model\.)?(vision_tower|visual|embed_vision|multi_modal_projector|vision_embedder)\."),
    "hearing": re.compile(r"(model\.)?(audio_tower|embed_audio)\."),
    "prediction of further tokens": re.compile(r"(model\.)?mtp\."),
}
_BUFFER = re.compile(r".*\.rotary_emb\.inv_freq")
_LAYER = re.compile(r"model\.layers\.(\d{1,5})\.(.+)")
_EXPERT = re.compile(r"(mlp\.experts)\.(\d{1,6})\.(.+)")


def renamed(tensors: Mapping[str, SafeTensor], source: Source, c: Config) -> tuple[dict[str, Numbers], list[str]]:
    """The tensors of the GGUF file, in its order, and what was left out.

    Raises
    ------
    ConvertError : a name is not known, occurs twice, an expert is missing, or a shape is not what the config says.
    """
    tied, n_layers = c.flag("tie_word_embeddings", default=source.tied), c.count("num_hidden_layers")
    outside = {**OUTSIDE, **source.outside}
    made: dict[str, Numbers] = {}
    experts: dict[tuple[str, str], dict[int, Numbers]] = defaultdict(dict)
    left_out: dict[str, int] = defaultdict(int)
    for full in sorted(tensors):
        what = next((what for what, names in _LEFT_OUT.items() if names.match(full)), None)
        name = _plain(full)
        layer = _LAYER.fullmatch(name)
        if layer and int(layer[1]) >= n_layers:
            what = "prediction of further tokens"
        if what or _BUFFER.fullmatch(name) or (tied and name == "lm_head.weight"):
            left_out[what or ""] += 1
            continue
        x = numbers(tensors[full])
        if layer is None:
            _add(made, outside, "", name, full, c, x)
        elif expert := _EXPERT.fullmatch(layer[2]):
            group = experts[f"blk.{int(layer[1])}.", f"{expert[1]}.{expert[3]}"]
            if group.setdefault(int(expert[2]), x) is not x:
                raise ConvertError(f"tensor {full} occurs twice")
        else:
            _add(made, source.layer, f"blk.{int(layer[1])}.", layer[2], full, c, x)
    for (prefix, name), group in experts.items():
        if sorted(group) != list(range(len(group))):
            missing = next(i for i in range(len(group)) if i not in group)
            raise ConvertError(f"expert {missing} of {len(group)} like {next(iter(group.values())).name} is missing")
        parts = [group[i] for i in range(len(group))]
        _add(made, source.layer, prefix, name, parts[0].name, c, stacked(parts))
    if not tied and "output.weight" not in made:
        raise ConvertError("lm_head.weight is missing; expected it, since tie_word_embeddings of config.json is false")
    for name, values in source.extra(c).items():
        made[name] = constant(name, values)
    return dict(sorted(made.items(), key=_place)), [f"{n} tensors of {what}" for what, n in left_out.items() if what]


def _plain(name: str) -> str:
    """The name that the tensor has in a model of text alone."""
    for start, instead in _PREFIXES:
        if name.startswith(start):
            return instead + name.removeprefix(start)
    return name


def _add(made: dict[str, Numbers], table: Table, prefix: str, name: str, full: str, c: Config, x: Numbers) -> None:
    found = table.get(name)
    if found is None:
        raise ConvertError(
            f"tensor {full!a} is not known in this kind of model: leaving it out may change what is computed"
        )
    targets: Sequence[To] = found if isinstance(found, tuple) else (To(found) if isinstance(found, str) else found,)
    for to in targets:
        if prefix + to.name in made:
            raise ConvertError(f"tensor {full} makes {prefix + to.name}, which another one has made already")
        made[prefix + to.name] = to.change(c, x)


def _place(item: tuple[str, Any]) -> tuple[int, str]:
    block = re.match(r"blk\.(\d+)\.", item[0])
    return (int(block[1]) if block else -1), item[0]
