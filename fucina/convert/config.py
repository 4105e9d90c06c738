"""`config.json`, read so that no key is overlooked.

A key that is not read may still change the mathematics, and then the converted model would run and be wrong.  So every
key must have been read with its range, or be known to change nothing; any other is refused with its value.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from .. import checks
from ..errors import ConvertError

REQUIRED: Any = object()
MAX_COUNT = 1 << 24

# Keys that do not change what is computed from a text.
_MADE = (  # how the model was made, and what kind it is
    "architectures model_type transformers_version initializer_range attention_dropout router_aux_loss_coef aux_loss_alpha"
    " seq_aux _name_or_path name_or_path unsloth_version unsloth_fixed is_llama_config language_model_only"
)
_RUN = (  # how a library runs it
    "torch_dtype dtype mamba_ssm_dtype use_cache pretraining_tp ep_size auto_map transformers.js_config return_dict"
    " output_router_logits output_attentions output_hidden_states chunk_size_feed_forward cache_implementation"
    " attn_implementation _attn_implementation _attn_implementation_autoset problem_type task_specific_params"
)
_TEXTS = (  # ids that mark texts, which the tokenizer's files name too; vocabularies of other inputs
    "bos_token_id eos_token_id pad_token_id sep_token_id decoder_start_token_id tokenizer_class id2label label2id"
    " vocab_size_per_layer_input is_encoder_decoder"
)
_FURTHER = "num_nextn_predict_layers mtp_num_hidden_layers mtp_use_dedicated_embeddings"  # layers that are left out
IRRELEVANT = frozenset(" ".join((_MADE, _RUN, _TEXTS, _FURTHER)).split())
# Mathematics that is not implemented, with the values that switch it off.
SWITCHED_OFF: dict[str, tuple[Any, ...]] = {
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "use_bidirectional_attention": (False, None),
    "attn_logit_softcapping": (None, 0, 0.0),
    "add_cross_attention": (False, None),
    "is_decoder": (False, True, None),
    "is_causal": (True, None),
    "rope_interleaved": (False, None),
    "quantization_config": (None,),
    "output_multiplier": (1, 1.0, None),
}


class Config:
    """The keys of a config, each read with its range.

    values : the parsed object (of the text model, where there are several).  what : the name of it in messages.
    """

    def __init__(self, values: Mapping[str, Any], what: str = "config.json") -> None:
        self.values, self.what = values, what
        self._known: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """The value as it is, whatever it is; `default` where it is missing or null."""
        self._known.add(key)
        value = self.values.get(key)
        return default if value is None else value

    def _needed(self, key: str, default: Any) -> Any:
        value = self.get(key, default)
        if value is REQUIRED:
            raise ConvertError(f"{self.what} has no {key}, which this model needs")
        return value

    def count(self, key: str, low: int = 1, high: int = MAX_COUNT, default: Any = REQUIRED) -> int:
        """An integer in [low, high]."""
        value = self._needed(key, default)
        if type(value) is not int or not low <= value <= high:
            raise ConvertError(f"{self.what} has {key} {checks.shown(value)}; expected an integer from {low} to {high}")
        return value

    def number(self, key: str, low: float, high: float, default: Any = REQUIRED) -> float:
        """A finite number in [low, high]."""
        value = self._needed(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise ConvertError(
                f"{self.what} has {key} {checks.shown(value)}; expected a number from {low:g} to {high:g}"
            )
        if not isfinite(value):
            raise ConvertError(f"{self.what} has {key} {value}; expected a finite number")
        return float(value)

    def flag(self, key: str, default: Any = REQUIRED) -> bool:
        """A boolean."""
        value = self._needed(key, default)
        if not isinstance(value, bool):
            raise ConvertError(f"{self.what} has {key} {checks.shown(value)}; expected true or false")
        return value

    def choice(self, key: str, *implemented: Any, default: Any = REQUIRED) -> Any:
        """One of the values that are implemented."""
        value = self._needed(key, default)
        if not any(type(value) is type(v) and value == v for v in implemented):
            names = ", ".join(map(repr, implemented))
            raise ConvertError(f"{self.what} has {key} {checks.shown(value)}; implemented: {names}")
        return value

    def names(self, key: str, n: int, *implemented: str) -> list[str] | None:
        """One of some names for each layer, or None where there is no such key."""
        values = self.get(key)
        if values is None:
            return None
        if not isinstance(values, list) or len(values) != n or not all(v in implemented for v in values):
            raise ConvertError(
                f"{self.what} has {key} {checks.shown(values)}; expected {n} names of: {', '.join(implemented)}"
            )
        return values

    def counts(self, key: str, default: list[int]) -> list[int]:
        """A list of integers that are not negative."""
        value = self.get(key, default)
        if not isinstance(value, list) or any(type(n) is not int or not 0 <= n <= MAX_COUNT for n in value):
            raise ConvertError(f"{self.what} has {key} {checks.shown(value)}; expected a list of integers")
        return value

    def part(self, key: str) -> Config | None:
        """An object inside of this one, or None where it is missing or empty."""
        value = self.get(key)
        if value is None or value == {}:
            return None
        if not isinstance(value, dict):
            raise ConvertError(f"{self.what} has {key} {checks.shown(value)}; expected an object")
        return Config(value, f"{key} of {self.what}")

    def ignore(self, *keys: str) -> None:
        """These keys change nothing in this model."""
        self._known.update(keys)

    def check_all_known(self) -> None:
        """ConvertError if there is a key that was not read and may change what is computed."""
        for key, value in self.values.items():
            if key in self._known or key in IRRELEVANT:
                continue
            found = f"{self.what} has {checks.shown(key)} {checks.shown(value)}"
            if key not in SWITCHED_OFF:
                raise ConvertError(f"{found}, which is not known: it may change what is computed")
            off = SWITCHED_OFF[key]
            if not any(type(value) is type(v) and value == v for v in off):
                raise ConvertError(f"{found}, which is not implemented; expected {off[0]!r}")
