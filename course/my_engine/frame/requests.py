# ruff: noqa: F821
# mypy: ignore-errors

# ======================================================================================================================
# 9. Requests that begin alike (chapter 12)
# ======================================================================================================================

#: ch12.pool


class KeptRows:
    """A cache of either forward, with the face that a pool wants."""

    def __init__(self, model, capacity):
        self.model, self.cache = model, model.new_cache(capacity)

    @property
    def len(self):
        """Rows that count."""
        return self.cache.len

    def truncate(self, keep):
        """Keep the first `keep` rows."""
        self.cache.truncate(keep)

    def copy_from(self, other, keep):
        """Hold the first `keep` rows of another cache."""
        self.model.copy_rows(other.cache, self.cache, keep)


class Server:
    """Answers requests one after the other; what their caches hold is kept for the next ones.

    Parameters
    ----------
    model : NumPyModel or CompiledModel
    slots : how many caches rest at most
    capacity : positions of each
    """

    def __init__(self, model, slots, capacity):
        self.model = model
        self.pool = Pool(slots, lambda: KeptRows(model, capacity))

    def answer(self, ids, max_tokens, sampler=None, emit=None, stop=None):
        """Go on with a text.

        Returns
        -------
        (tokens, cached) : the new ones; how many tokens of `ids` were not run.
        """
        history = list(ids)
        slot, cached = self.pool.acquire(list(ids))
        try:
            cache = slot.cache.cache
            read_on(self.model, cache, history)
            chooser = OneRow(self.model, Sampler() if sampler is None else sampler, history)
            decode(chooser, cache, history, max_tokens, (lambda token: None) if emit is None else emit, stop)
        finally:
            self.pool.release(slot, list(history))
        return history[len(ids) :], cached


# ======================================================================================================================
# A later chapter has its place here: a grammar that constrains the sampler (11)
# ======================================================================================================================
