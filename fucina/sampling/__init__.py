"""From logits to tokens: options, sampler, logit processors, the counter-based generator."""

from .grammar import Constraint, Grammar
from .options import SamplerOptions
from .processor import (
    AllowTokens,
    BanTokens,
    BiasTokens,
    LogitProcessor,
    compose,
    has_structure,
    members,
    reset_processor,
    structure_of,
)
from .sampler import Sampler, SamplerState

__all__ = [
    "AllowTokens",
    "BanTokens",
    "BiasTokens",
    "Constraint",
    "Grammar",
    "LogitProcessor",
    "Sampler",
    "SamplerOptions",
    "SamplerState",
    "compose",
    "has_structure",
    "members",
    "reset_processor",
    "structure_of",
]
