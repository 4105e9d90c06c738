"""A server: many requests at once, and everybody gets exactly the tokens that they would get alone.

`Worker` is the engine's side, and needs nothing but fucina.  The HTTP side (`fucina.serve.app`) needs the extra
`fucina[serve]`.
"""

from .jobs import Done, Event, Failed, GenerateRequest, Job, TextDelta, TokenLogprob
from .worker import Observer, Worker

__all__ = [
    "Done",
    "Event",
    "Failed",
    "GenerateRequest",
    "Job",
    "Observer",
    "TextDelta",
    "TokenLogprob",
    "Worker",
]
