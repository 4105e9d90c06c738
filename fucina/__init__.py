"""fucina: language models on a CPU, in Python that can be read.

    >>> import fucina
    >>> m = fucina.load("smollm2")
    >>> m.generate("The capital of France is", max_tokens=8).text    # doctest: +SKIP

Every row of a forward pass has the same bits whatever runs beside it: batches, reused state and verified drafts are
exact because of that.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from . import gguf
    from .cache import State
    from .chat import (
        ChatFormat,
        ChatTemplate,
        Conversation,
        Reply,
        SlotPool,
        WarmState,
        send_batch,
        send_batch_tokens_reuse,
    )
    from .errors import FucinaError
    from .generation import Generation, GenerationStream
    from .loading import load
    from .model import Model
    from .sampling import Grammar, Sampler, SamplerOptions

# Names are imported when first used: `fucina --help` and error paths should not wait for numba.
_WHERE = {
    "ChatFormat": ".chat",
    "ChatTemplate": ".chat",
    "Conversation": ".chat",
    "FucinaError": ".errors",
    "Generation": ".generation",
    "GenerationStream": ".generation",
    "Grammar": ".sampling",
    "State": ".cache",
    "Model": ".model",
    "Reply": ".chat",
    "Sampler": ".sampling",
    "SamplerOptions": ".sampling",
    "SlotPool": ".chat",
    "WarmState": ".chat",
    "load": ".loading",
    "send_batch": ".chat",
    "send_batch_tokens_reuse": ".chat",
}
_MODULES = ("cache", "chat", "errors", "gguf", "hub", "kernels", "models", "ops", "sampling", "tokenizers")

__all__ = [*_WHERE, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name], __name__), name)
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module 'fucina' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE, *_MODULES])
