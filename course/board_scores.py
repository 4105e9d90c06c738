"""What the boards count: costs of passes, exact whole numbers, the same on every machine.

A pass of several rows costs what a table says, in hundredths of a pass of one row (about what the engine measures).  An
entry that changes what is said, or breaks the rules of its board, does not count: `NotCounted` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from course.board_texts import Text, texts
from course.ours import ours
from fucina.speculative.sam_index import SamIndex

COSTS = (0, 100, 118, 147, 158, 195, 210, 240, 265)  # of a pass of 0, 1, 2, ... rows
LIMIT = 16  # drafted tokens of a step
PATIENCE = 60.0  # seconds of one entry


class NotCounted(Exception):
    """An entry does not count; the message says which rule it breaks."""


def cost(rows: int) -> int:
    """Hundredths of a plain step that a pass of so many rows costs."""
    return COSTS[rows] if rows < len(COSTS) else COSTS[-1] + 32 * (rows - len(COSTS) + 1)


def called(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call an entry's code; what it raises becomes the reason why it does not count."""
    try:
        return function(*arguments)
    except Exception as error:
        raise NotCounted(f"{what} raises {type(error).__name__}: {error}") from error


def draft_of(drafter: Any, said: list[int], limit: int) -> list[int]:
    """One draft, held to the rules."""
    shown = list(said)
    draft = called("suggest", drafter.suggest, shown, limit)
    if shown != said:
        raise NotCounted("suggest changes the context that it is shown")
    if not isinstance(draft, list) or not all(isinstance(token, int) for token in draft):
        raise NotCounted(f"suggest returns {draft!r:.60}, expected a list of ints")
    if len(draft) > limit:
        raise NotCounted(f"suggest returns {len(draft)} tokens, at most {limit} are allowed")
    return draft


def follow(text: Text, drafter: Any, gate: Any = None) -> int:
    """Hundredths of steps that are saved while a model says `text`, with a drafter and perhaps a gate before it.

    The model says the text whatever is drafted: a wrong guess costs its rows and nothing else.
    """
    begin = perf_counter()
    ids, at, paid = list(text.ids), text.prompt, 0
    called("observe", drafter.observe, ids[:at])
    while at < len(ids):
        limit = LIMIT
        if gate is not None:
            limit = 0
            if called("allows", gate.allows):
                limit = max(0, min(LIMIT, int(called("budget", gate.budget))))
        draft = draft_of(drafter, ids[:at], limit) if limit else []
        accepted = 0
        while accepted < len(draft) and at + accepted < len(ids) and draft[accepted] == ids[at + accepted]:
            accepted += 1
        committed = min(accepted + 1, len(ids) - at)
        paid += cost(1 + len(draft))
        if gate is not None and draft:
            called("record", gate.record, committed, min(accepted, committed), len(draft), cost(1 + len(draft)) / 100)
        called("observe", drafter.observe, ids[at : at + committed])
        at += committed
        if perf_counter() - begin > PATIENCE:
            raise NotCounted(f"it takes more than {PATIENCE:.0f} seconds")
    return 100 * (len(ids) - text.prompt) - paid


def drafter_scores(make: Callable[[], Any], held_out: bool) -> dict[str, int]:
    """Hundredths of steps saved by a new drafter on each text."""
    return {text.kind: follow(text, called("making it", make)) for text in texts(held_out)}


def gate_scores(make: Callable[[], Any], held_out: bool) -> dict[str, int]:
    """Hundredths of steps saved by one gate before an eager drafter, text after text, as in a long conversation."""
    gate, scores = called("making it", make), {}
    for text in texts(held_out):
        scores[text.kind] = follow(text, ours("ch07.drafter")(1), gate)
    return scores


LENGTHS = {False: (40, 12, 9, 9, 30, 5, 22), True: (33, 33, 8, 50, 14, 14, 6, 3)}


def lockstep_scores(function: Callable[..., Any], held_out: bool) -> dict[str, int]:
    """Hundredths of steps saved against one stream after the other, for three sets of streams."""
    module = ours("ch06.lockstep").__globals__
    open_stream, toy = module["open_stream"], module["ToyModel"]
    lengths = LENGTHS[held_out]
    scores = {}
    for name, chosen in (("all of them", lengths), ("the first four", lengths[:4]), ("the last five", lengths[-5:])):
        alone = [open_stream([i + 1, 5], n) for i, n in enumerate(chosen)]
        together = [open_stream([i + 1, 5], n) for i, n in enumerate(chosen)]
        for stream in alone:
            ours("ch06.lockstep")(toy(), [stream])
        model = toy()
        called("it", function, model, together)
        for i, (a, b) in enumerate(zip(alone, together, strict=True)):
            if a.history != b.history or not b.ended:
                raise NotCounted(f"stream {i} says {b.history[-4:]} in the end, alone it says {a.history[-4:]}")
        paid = sum(cost(sum(rows)) for rows in model.passes)
        scores[name] = 100 * sum(stream.added for stream in alone) - paid
    return scores


def total(scores: dict[str, int]) -> float:
    """A board's number: steps saved, all parts together."""
    return sum(scores.values()) / 100


class Silent:
    """A drafter that never drafts, or a gate that never allows."""

    def observe(self, tokens: Sequence[int]) -> None:
        """Nothing to note."""

    def suggest(self, context: Sequence[int], limit: int) -> list[int]:
        """No draft."""
        return []

    def allows(self) -> bool:
        """Never."""
        return False


class Always:
    """A gate that always allows eight tokens."""

    def __init__(self, tokens: int = 8) -> None:
        self.tokens = tokens

    def allows(self) -> bool:
        """Always."""
        return True

    def budget(self) -> int:
        """As many as it was made for."""
        return self.tokens

    def record(self, committed: int, accepted: int, drafted: int, cost: float) -> None:
        """It learns nothing."""


class Short:
    """The engine's suffix index, with as many tokens as its match is long."""

    def __init__(self) -> None:
        self.index = SamIndex()

    def observe(self, tokens: Sequence[int]) -> None:
        """Take note."""
        self.index.observe(tokens)

    def suggest(self, context: Sequence[int], limit: int) -> list[int]:
        """A longer match earns a longer draft."""
        return list(self.index.suggest(context, min(limit, self.index.match_len())))


def one_after_another(model: Any, streams: Sequence[Any]) -> None:
    """Streams in turn, each alone."""
    for stream in streams:
        ours("ch06.lockstep")(model, [stream])


def four_at_a_time(model: Any, streams: Sequence[Any]) -> None:
    """Each pass takes the four streams that have most to say."""
    while live := [stream for stream in streams if not stream.ended]:
        chosen = sorted(live, key=lambda stream: stream.added - stream.max_tokens)[:4]
        rows = model.forward_rows([(stream.cache, [stream.history[-1]], "all") for stream in chosen])
        for stream, logits in zip(chosen, rows, strict=True):
            token = stream.choose(logits[-1])
            stream.history.append(token)
            stream.ended = token == stream.stop or stream.added == stream.max_tokens
            stream.emit(token)
