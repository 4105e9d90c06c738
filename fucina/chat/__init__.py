"""Conversations: chat templates and formats, and a session that reuses its cache from turn to turn."""

from .formats import ChatFormat
from .session import ChatSession
from .template import ChatTemplate

__all__ = ["ChatFormat", "ChatSession", "ChatTemplate"]
