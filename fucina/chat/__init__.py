"""Conversations: the model's own chat template, and a session that reuses its cache from turn to turn."""

from .session import ChatSession
from .template import ChatTemplate

__all__ = ["ChatSession", "ChatTemplate"]
