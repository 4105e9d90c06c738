"""Speculative decoding without a draft model: exact, and only where it wins time."""

from ..engine.cost_table import CostTable, default_table
from ..engine.drafts import Draft, Drafter
from ..engine.verify_cost import VerifyCost
from .cascade import CascadeOptions, SpeculationIndex
from .constrained import ConstrainedSource
from .cost_gate import CostGate
from .drafter import SourceDrafter
from .factory import make_drafter
from .options import Options, Stats
from .recycling import TokenRecycling
from .sam_index import Cursor, FrozenSource, SamIndex
from .source import DraftSource, StepRecord, TopKRow, wants_top_k

__all__ = [
    "CascadeOptions",
    "ConstrainedSource",
    "CostGate",
    "CostTable",
    "Cursor",
    "Draft",
    "DraftSource",
    "Drafter",
    "FrozenSource",
    "Options",
    "SamIndex",
    "SourceDrafter",
    "SpeculationIndex",
    "Stats",
    "StepRecord",
    "TokenRecycling",
    "TopKRow",
    "VerifyCost",
    "default_table",
    "make_drafter",
    "wants_top_k",
]
