"""What a race found: rows, as text, HTML and JSON."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from course.figures.svg import columns
from course.my_engine import Assembly
from course.race.plan import LAST_STEP, NUMPY, Entry, Plan
from fucina.measure.results import Spread, rounded

HEADER = ("text", "who", "yours", "tokens/s", "passes", "accepted", "tokens")
SAVED = ("text", "piece", "against", "passes saved", "seconds saved")


@dataclass(slots=True)
class Row:
    """One contestant on one text.

    pieces : exercises at work.  yours : how many of them are the learner's.  seconds : of each round, for `n` tokens.
    steps : passes.  equal : what the comparison of its tokens said.  failure : what ended it; "" if nothing did.
    """

    entry: Entry
    text: str
    pieces: tuple[str, ...]
    yours: int
    n: int = 0
    seconds: list[float] = field(default_factory=list)
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    equal: str = ""
    failure: str = ""

    @classmethod
    def of(cls, entry: Entry, text: str, pieces: tuple[str, ...], yours: tuple[str, ...]) -> Row:
        """A row that has not run yet."""
        return cls(entry, text, pieces, len(set(pieces) & set(yours)))

    def enter(self, got: dict[str, Any]) -> None:
        """Enter a run."""
        self.n = len(got["tokens"])
        self.seconds.append(got["seconds"])
        self.steps, self.drafted, self.accepted = got["steps"], got["drafted"], got["accepted"]

    def compare(self, tokens: list[int], want: list[int], whose: str) -> None:
        """Note how many tokens are those of a reference."""
        same = next((i for i, (a, b) in enumerate(zip(tokens, want, strict=False)) if a != b), len(want))
        self.equal = f"{same} of {len(want)} equal {whose}"

    @property
    def rate(self) -> Spread | None:
        """Tokens per second, over the rounds; None where nothing ran."""
        return None if self.failure or not self.seconds else Spread.of([self.n / s for s in self.seconds])

    @property
    def share(self) -> str:
        """How many of the pieces at work are the learner's."""
        return f"{self.yours} of {len(self.pieces)}" if self.pieces else ""

    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        if self.failure:
            return (self.text, self.entry.who, self.share, "did not run", "", "", self.failure)
        rate = self.rate
        speed = f"{rate.median:.1f}" if rate and self.entry.timed else ""
        accepted = f"{self.accepted} of {self.drafted}" if self.drafted else ""
        return (self.text, self.entry.who, self.share, speed, f"{self.steps} for {self.n}", accepted, self.equal)

    def as_json(self) -> dict[str, Any]:
        """The row with every round."""
        rate = self.rate
        return {
            "text": self.text,
            "who": self.entry.who,
            "side": self.entry.side,
            "forward": self.entry.forward,
            "how": self.entry.how,
            "pieces": list(self.pieces),
            "pieces_yours": self.yours,
            "tokens": self.n,
            "seconds": self.seconds,
            "tokens_per_second": rate and {"median": rate.median, "low": rate.low, "high": rate.high},
            "passes": self.steps,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "equal": self.equal,
            "failure": self.failure,
        }


@dataclass(frozen=True, slots=True)
class Race:
    """What was measured, with machine, versions and date in `stamp`."""

    stamp: dict[str, Any]
    assembly: Assembly
    plan: Plan
    rows: list[Row]
    notes: list[str]

    def row(self, text: str, who: str) -> Row:
        """The row of a contestant on a text (KeyError if there is none)."""
        for row in self.rows:
            if (row.text, row.entry.who) == (text, who):
                return row
        raise KeyError((text, who))

    def speedups(self) -> dict[str, float]:
        """Text -> how many times faster all of the learner's pieces are than loop and cache alone; 0.0 if one failed."""
        out = {}
        for text in dict.fromkeys(row.text for row in self.rows):
            rates = {r.entry.how: r.rate for r in self.rows if r.text == text and r.entry.bought}
            all_of_it, alone = rates.get(LAST_STEP), rates.get("cache")
            out[text] = all_of_it.median / alone.median if all_of_it and alone else 0.0
        return out

    @property
    def failed(self) -> list[Row]:
        """Rows of the learner's and of ours that did not run, or whose tokens are wrong."""
        return [row for row in self.rows if row.failure and row.entry.side != "llama.cpp"]

    def bought(self) -> list[dict[str, Any]]:
        """What each step of the ladder saves against the step before: passes and seconds, for 100 tokens."""
        out = []
        for text in dict.fromkeys(row.text for row in self.rows):
            steps = [row for row in self.rows if row.text == text and row.entry.bought and row.rate]
            for before, row in zip(steps, steps[1:], strict=False):
                assert before.rate is not None and row.rate is not None
                out.append(
                    {
                        "text": text,
                        "piece": row.entry.bought,
                        "against": before.entry.bought,
                        "passes_saved": 100 * (before.steps / before.n - row.steps / row.n),
                        "seconds_saved": 100 / before.rate.median - 100 / row.rate.median,
                    }
                )
        return out

    def as_json(self) -> str:
        """Everything, for scripts."""
        document = {
            "schema": 1,
            "stamp": self.stamp,
            "plan": {"rounds": self.plan.rounds, "numpy_rounds": self.plan.numpy_rounds, "texts": self.plan.texts},
            "pieces": [{"exercise": p.exercise, "who": p.who, "reason": p.reason} for p in self.assembly.pieces],
            "rows": [row.as_json() for row in self.rows],
            "bought": self.bought(),
            "notes": self.notes,
        }
        return json.dumps(rounded(document), indent=1)

    def lines(self) -> list[str]:
        """The plain-text form, ASCII."""
        out = [self.assembly.summary, self._measured(), ""]
        out += _table(HEADER, [row.cells() for row in self.rows if row.entry.timed])
        proofs = [(r.entry.who, r.share, r.failure or r.equal) for r in self.rows if not r.entry.timed]
        out += ["", *_table(("tokens of", "yours", "tokens"), proofs)]
        out += ["", "What each piece saves, for 100 tokens:"]
        out += _table(SAVED, [_saved(entry) for entry in self.bought()])
        out += ["", *self._remarks()]
        return [line.encode("ascii", "backslashreplace").decode("ascii") for line in out]

    def _measured(self) -> str:
        s = self.stamp
        named = [name for name in ("fucina", "python", "numpy", "numba", "llama.cpp") if name in s["versions"]]
        versions = ", ".join(f"{name} {s['versions'][name]}" for name in named)
        cores = s["machine"]["cores"]
        return f"{s['date']}, {s['machine']['cpu']}, {cores} core{'s' * (cores != 1)}, {versions}; {s['command']}"

    def _remarks(self) -> list[str]:
        exact = any(row.entry.forward == NUMPY for row in self.rows)
        why = (
            "The forward in NumPy runs on one thread, and is compared with our float32 reference. Your other rows run on our "
            "compiled forward and are compared with it; it rounds activations to 8 bits, and so may say different words."
        )
        return ([why] if exact else []) + self.notes

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        say = html.escape
        proofs = [(r.entry.who, r.share, r.failure or r.equal) for r in self.rows if not r.entry.timed]
        page = [
            f"<div><b>{say(self.assembly.summary)}</b></div>",
            _page(HEADER, [row.cells() for row in self.rows if row.entry.timed]),
            _page(("tokens of", "yours", "tokens"), proofs),
            "<div>What each piece saves, for 100 tokens:</div>",
            _page(SAVED, [_saved(entry) for entry in self.bought()]),
            *(f"<div>{say(remark)}</div>" for remark in [self._measured(), *self._remarks()]),
        ]
        return {"text/html": "".join(page), "text/plain": repr(self)}


def _saved(entry: dict[str, Any]) -> tuple[str, ...]:
    saved = f"{entry['passes_saved']:+.0f}", f"{entry['seconds_saved']:+.2f}"
    return (entry["text"], entry["piece"], entry["against"], *saved)


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    table = [header, *rows]
    widths = [max(columns(row[i]) for row in table) for i in range(len(header))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in table]
    return [lines[0], "  ".join("-" * min(w, 60) for w in widths), *lines[1:]]


def _page(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    style = ' style="text-align:left"'
    head = "".join(f"<th{style}>{html.escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td{style}>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
