"""The slot pool: rows that one request has computed serve the next one that begins with the same tokens.

    pool = SlotPool(model, memory="1GiB")
    with pool.acquire(ids) as slot:
        ... a Stream or a Conversation goes on from slot.state, which holds rows of ids[:slot.cached] ...
        slot.release(tokens)

It needs no server and no chat.
"""

from .pool import SlotPool
from .slot import Slot
from .stats import PoolStats

__all__ = ["PoolStats", "Slot", "SlotPool"]
