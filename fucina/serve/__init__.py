"""A server: many requests at once, and everybody gets exactly the tokens that they would get alone.

`Worker` is the engine's side, and needs nothing but fucina.  `App` (an ASGI application) and `Server` (which runs it)
need the extra `fucina[serve]`.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from ..errors import ServerNotEnabled
from .jobs import Done, Event, Failed, GenerateRequest, Job, TextDelta, TokenLogprob
from .observer import Observer
from .vectors import VectorRequest
from .worker import Worker

if TYPE_CHECKING:
    from .app import App
    from .gate import Rules
    from .listening import Server
    from .models import Models, Offer

_HTTP = {"App": ".app", "Models": ".models", "Offer": ".models", "Rules": ".gate", "Server": ".listening"}
PACKAGES = ("starlette", "uvicorn", "prometheus_client")
INSTALL = 'pip install "fucina[serve]"'

__all__ = [
    "App",
    "Done",
    "Event",
    "Failed",
    "GenerateRequest",
    "Job",
    "Models",
    "Observer",
    "Offer",
    "Rules",
    "Server",
    "TextDelta",
    "TokenLogprob",
    "VectorRequest",
    "Worker",
    "check_packages",
]


def check_packages() -> None:
    """Raise ServerNotEnabled where a package that the HTTP side needs is not installed."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ServerNotEnabled(f"the server needs {', '.join(missing)}; {INSTALL} installs what is missing")


def __getattr__(name: str) -> Any:
    if name not in _HTTP:
        raise AttributeError(f"module 'fucina.serve' has no attribute {name!r}")
    check_packages()
    return getattr(importlib.import_module(_HTTP[name], __name__), name)
