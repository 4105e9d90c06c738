"""From logits to tokens: options, sampler, logit processors, the counter-based generator."""

from fucina.sampling.options import SamplerOptions
from fucina.sampling.processor import AllowTokens, BanTokens, BiasTokens, LogitProcessor, compose, has_structure
from fucina.sampling.sampler import Sampler, SamplerState

__all__ = [
    "AllowTokens",
    "BanTokens",
    "BiasTokens",
    "LogitProcessor",
    "Sampler",
    "SamplerOptions",
    "SamplerState",
    "compose",
    "has_structure",
]
