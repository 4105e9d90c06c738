"""From a name or a path to a model: find the file, read its family, give the family's forward to an interpreter."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from . import checks
from .cache.dtypes import DTYPES
from .errors import InvalidOption
from .gguf import GgmlType, GgufFile
from .model import Model
from .models import read_family
from .tokenizers import load_tokenizer

if TYPE_CHECKING:
    from .engine.engine import Interpreter


def load(
    name_or_path: str | os.PathLike[str],
    *,
    backend: str = "native",
    threads: int | None = None,
    context: int | None = None,
    cache_dtype: str | None = None,
    activations: str = "f32",
    dequantize: dict[str, Callable[[np.ndarray], np.ndarray]] | None = None,
) -> Model:
    """Load a model.

    Parameters
    ----------
    name_or_path : a known name ("smollm2", see `fucina models`), or a path to a .gguf (first part of a split file too).
    backend : "native" (compiled, the default) or "naive" (plain NumPy, to be read).
    threads : of the native backend; None takes the physical cores that the process may use.
    context : positions a cache may hold; None takes the length that the model was trained with.
    cache_dtype : of keys and values.  None takes "f32" for a model whose matrices are all F32, else "f16".  "q8_0" takes
        about half the memory of "f16", rounds to 8 bits, and needs heads of a multiple of 32 numbers.
    activations : of the naive backend: "f32" is the mathematical reference, "q8" has the native one's bits.
    dequantize : of the naive backend: block decoders of your own, by format name ({"Q4_1": f}).

    Raises
    ------
    ModelNotFound, GgufError, ModelError, UnsupportedArchitecture, UnsupportedTokenizerFormat, InvalidOption
    KvCacheShapeMismatch : the model's heads do not fit `cache_dtype`.
    """
    from . import hub

    checks.one_of("backend", backend, ("native", "naive"))
    if dequantize and backend != "naive":
        raise InvalidOption('dequantize= needs backend="naive": the native kernels read blocks directly')
    checks.one_of("activations", activations, ("f32", "q8"))
    if threads is not None:
        threads = checks.integer("threads", threads, 1)
    if context is not None:
        context = checks.integer("context", context, 1)
    if cache_dtype is not None:
        checks.one_of("cache_dtype", cache_dtype, DTYPES)
    file = GgufFile(hub.find(name_or_path))
    family = read_family(file)
    tokenizer = load_tokenizer(file.metadata)
    if cache_dtype is None:
        matrices = (t for t in file.tensors.values() if len(t.shape) > 1)
        cache_dtype = "f32" if all(t.ggml_type == GgmlType.F32 for t in matrices) else "f16"
    DTYPES[cache_dtype].check(family.parts)
    trained = family.config.context_length
    if context is not None and context > trained:
        warnings.warn(
            f"context of {context} positions is longer than the {trained} this model was trained with", stacklevel=2
        )
    context = context or trained
    interpreter: Interpreter
    if backend == "naive":
        from .ops.naive import EXACT, Naive
        from .ops.native_bits import NATIVE_BITS

        interpreter = Naive(family, dequantize, NATIVE_BITS if activations == "q8" else EXACT)
    else:
        from .ops.native import Native

        interpreter = Native(family, threads=threads, context=context, cache_dtype=cache_dtype)
        file.release_pages()
    return Model(file, family, tokenizer, interpreter, context, cache_dtype)
