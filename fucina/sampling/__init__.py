"""From logits to tokens: options, sampler, logit processors, the counter-based generator."""

from .options import SamplerOptions
from .processor import AllowTokens, BanTokens, BiasTokens, LogitProcessor, compose, members, reset_processor
from .sampler import Sampler, SamplerState

__all__ = [
    "AllowTokens",
    "BanTokens",
    "BiasTokens",
    "LogitProcessor",
    "Sampler",
    "SamplerOptions",
    "SamplerState",
    "compose",
    "members",
    "reset_processor",
]
