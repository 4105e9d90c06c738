"""A loaded model: an engine, and the text around it.  `loading.py` makes it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from .engine import Engine
from .gguf import GgufFile
from .gguf.fingerprint import fingerprint

if TYPE_CHECKING:
    from .engine.engine import Interpreter
    from .generation import Generation, GenerationStream, Prompt
    from .models import LoadedFamily
    from .tokenizers import Tokenizer


class Model(Engine):
    """A model that is ready to run; made by `fucina.load`.

    Attributes
    ----------
    config : sizes of the family's model (`vocab_size`, `n_layers`, `dim`, ...).
    weights : its tensors, by the names that the family gives them.
    tokenizer : text to ids and back.
    chat_template : Jinja source of the model's chat template, or None.
    metadata : of the file.
    path : the file.  context : positions that a state may hold.  cache_dtype : "f16", "q8_0" or "f32".
    """

    def __init__(
        self,
        file: GgufFile,
        family: LoadedFamily,
        tokenizer: Tokenizer,
        interpreter: Interpreter,
        context: int,
        cache_dtype: str,
    ) -> None:
        super().__init__(family, interpreter, context, cache_dtype, _name(fingerprint(file), interpreter.arithmetic))
        self.tokenizer = tokenizer
        self.n_tokens = min(self.n_tokens, tokenizer.n_vocab)
        self.path: Path = file.path
        self.metadata = file.metadata
        self.chat_template: str | None = file.metadata.str("tokenizer.chat_template", default=None)
        self._file = file

    def __repr__(self) -> str:
        return f"Model({self.path.name}, backend={self.backend}, context={self.context}, cache={self.cache_dtype})"

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that one decoded token reads: all tensors, without an embedding that is not the output too."""
        tied = self.weights.output is self.weights.embedding
        return sum(t.nbytes for t in self._file.tensors.values() if tied or t.name != self.weights.embedding.name)

    @overload
    def generate(self, prompt: Prompt, *, stream: Literal[False] = False, **options: Any) -> Generation: ...
    @overload
    def generate(self, prompt: Prompt, *, stream: Literal[True], **options: Any) -> GenerationStream: ...
    @overload
    def generate(self, prompt: Prompt, *, stream: bool, **options: Any) -> Generation | GenerationStream: ...
    def generate(self, prompt: Prompt, *, stream: bool = False, **options: Any) -> Generation | GenerationStream:
        """Continue a prompt; see `fucina.generation.generate` for the options."""
        from .generation import generate

        return generate(self, prompt, stream=stream, **options)

    def embed(self, texts: str | Sequence[str | Sequence[int]], pooling: str = "last") -> np.ndarray:
        """Vectors of texts, float32 [texts, dim], each of length 1; see `fucina.embedding.embed`."""
        from .embedding import embed

        return embed(self, texts, pooling)


def _name(weights: bytes, arithmetic: str) -> bytes:
    """The fingerprint of a model, another one if its rows have different bits than the native ones: no state goes across."""
    if not arithmetic:
        return weights
    return hashlib.blake2b(weights + arithmetic.encode(), digest_size=16, person=b"fucina.bits").digest()
