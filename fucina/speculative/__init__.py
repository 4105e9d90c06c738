"""Speculative decoding without a draft model: exact, and only where it wins time."""

from .batch import BatchDecoder, BatchMember
from .cascade import CascadeOptions, SpeculationIndex
from .core import SpeculativeDecoder
from .cost_gate import CostGate, VerifyCost
from .cost_table import CostTable, default_table
from .options import Options, Stats
from .recycling import TokenRecycling
from .sam_index import Cursor, FrozenSource, SamIndex
from .source import DraftSource, StepRecord, TopKRow, wants_top_k

__all__ = [
    "BatchDecoder",
    "BatchMember",
    "CascadeOptions",
    "CostGate",
    "CostTable",
    "Cursor",
    "DraftSource",
    "FrozenSource",
    "Options",
    "SamIndex",
    "SpeculationIndex",
    "SpeculativeDecoder",
    "Stats",
    "StepRecord",
    "TokenRecycling",
    "TopKRow",
    "VerifyCost",
    "default_table",
    "wants_top_k",
]
