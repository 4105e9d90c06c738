"""The fast interpreter of the op vocabulary.

    forward(ops, config, weights)          a family, written once
        │   recorder.py, recording.py      each op becomes a few kernel calls over symbolic tensors
        ▼
    records ─ schedule.py ─> chains ─> steps        what runs back to back, side by side, one after the other
        │   buffers.py, program.py         memory and tables
        ▼
    program ── team.py, planner.py, loop.py ──> a pass: plan the chunks, publish, take part, done

`interpreter.Native` puts it together.
"""

from .interpreter import Native

__all__ = ["Native"]
