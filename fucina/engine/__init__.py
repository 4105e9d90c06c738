"""From token ids to token ids: passes, streams, and the scheduler that runs them.  Text lives above."""

from .call import Hidden
from .cost_table import CostTable, default_table
from .drafts import Draft, Drafter, PassStats, Verified, common_prefix
from .engine import Engine, Request, Tokens
from .hidden import HiddenStream
from .scheduler import Scheduler
from .stream import Stream
from .verify_cost import VerifyCost

__all__ = [
    "CostTable",
    "Draft",
    "Drafter",
    "Engine",
    "Hidden",
    "HiddenStream",
    "PassStats",
    "Request",
    "Scheduler",
    "Stream",
    "Tokens",
    "Verified",
    "VerifyCost",
    "common_prefix",
    "default_table",
]
