# ruff: noqa: F821
# mypy: ignore-errors

# ======================================================================================================================
# 8. Many streams, one weight pass (chapter 06)
# ======================================================================================================================


def greedy(logits):
    """The most likely token."""
    return int(logits.argmax())


#: given ch06 Stream
#: ch06.admit
#: ch06.lockstep
#: ch06.isolate


def read_prompts(model, streams, isolate=True, limit=WIDEST):
    """Shared passes, until each stream has one token without a row.  Those that have begin to decode meanwhile."""
    while any(not s.ended and len(s.history) > s.cache.len + 1 for s in streams):
        requests = next_pass(streams, limit)
        out = model.forward_rows([(stream.cache, list(tokens), want) for stream, tokens, want in requests])
        for (stream, _, want), rows in zip(requests, out, strict=True):
            if want != "last":
                continue
            try:
                stream.take(rows[-1])
            except Exception as error:
                if not isolate:
                    raise
                stream.error, stream.ended = error, True


def batch(model, streams, isolate=True):
    """Decode several streams together until all have ended; with `isolate`, a failure stays in its stream."""
    read_prompts(model, streams, isolate)
    if isolate:
        while step(model, streams):
            pass
    else:
        lockstep(model, streams)
