"""From logits to tokens: options, sampler, logit processors, the counter-based generator."""

from .options import SamplerOptions
from .processor import AllowTokens, BanTokens, BiasTokens, LogitProcessor, compose, has_structure, reset_processor
from .sampler import Sampler, SamplerState
from .watermark import Watermark, watermark_score

__all__ = [
    "AllowTokens",
    "BanTokens",
    "BiasTokens",
    "LogitProcessor",
    "Sampler",
    "SamplerOptions",
    "SamplerState",
    "Watermark",
    "compose",
    "has_structure",
    "reset_processor",
    "watermark_score",
]
