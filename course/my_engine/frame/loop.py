# mypy: ignore-errors

# ======================================================================================================================
# 5. The loop (chapter 05)
# ======================================================================================================================

#: ch05.decode_loop

WIDEST = 64  # rows of a pass over a prompt


class OneRow:
    """A model and a sampler with the face that `decode` wants: one token in, the next one out."""

    def __init__(self, model, sampler, history):
        self.model, self.sampler, self.history = model, sampler, history

    def step(self, token, cache):
        """One row into the cache, and the token that is chosen after it."""
        return self.sampler.next(self.model.forward([token], cache)[-1], self.history)


def read_prompt(model, history, capacity):
    """A cache with the rows of all tokens but the last."""
    cache = model.new_cache(capacity)
    read_on(model, cache, history)
    return cache


def read_on(model, cache, history):
    """Run what the cache does not hold yet of a text, all but its last token."""
    while (at := cache.len) < len(history) - 1:
        model.forward_rows([(cache, history[at : min(at + WIDEST, len(history) - 1)], "none")])


def decode_without_cache(model, history, max_tokens, sampler, emit, stop=None):
    """What a cache is for: without one, each token costs a pass over the whole text."""
    for _ in range(max_tokens):
        row = model.forward_rows([(model.new_cache(len(history)), list(history), "last")])[0][-1]
        history.append(sampler.next(row, history))
        emit(history[-1])
        if history[-1] == stop:
            break
