"""Conversations: chat templates and formats, one conversation, several of them in one pass."""

from .batch import TurnBatch, send_batch, send_batch_tokens_reuse
from .conversation import Conversation
from .formats import ChatFormat
from .pooled import SlotPool
from .template import ChatTemplate
from .turn import Reply, ReplyStream
from .warm import WarmState

__all__ = [
    "ChatFormat",
    "ChatTemplate",
    "Conversation",
    "Reply",
    "ReplyStream",
    "SlotPool",
    "TurnBatch",
    "WarmState",
    "send_batch",
    "send_batch_tokens_reuse",
]
