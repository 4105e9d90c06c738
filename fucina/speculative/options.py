"""The settings of speculative decoding, checked where they are made, and what a run reports."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from .. import checks
from ..engine.cost_table import CostTable, default_table
from ..errors import InvalidOption, ProbeStepsZero, RateWindowTooSmall, ReprobeAfterZero
from ..ops.rows import MAX_ROWS

# name -> (lowest, highest) of the whole numbers
_WHOLE = {
    "max_draft": (0, MAX_ROWS - 1),
    "min_draft": (1, MAX_ROWS - 1),
    "first_draft": (0, MAX_ROWS - 1),
    "topk_feedback": (0, 1024),
    "rate_window": (0, 1 << 20),
    "min_window_drafted": (0, 1 << 31),
    "reprobe_after": (0, 1 << 62),
    "reprobe_max": (0, 1 << 62),
    "probe_steps": (0, 1 << 31),
}


@dataclass(frozen=True, slots=True)
class Options:
    """How and when to speculate.  Nothing here changes which tokens are committed.

    Attributes
    ----------
    max_draft : drafted tokens per step at most, up to 127; 0 drafts nothing.
    min_draft : a shorter draft is not verified, at least 1.
    enabled : False takes plain steps only.
    topk_feedback : how many of the best tokens of each verified row a source is given, if it takes them.
    rate_window : verifies that the gate looks back at, at least 2.
    min_window_drafted : drafted tokens that must be in the window before the gate judges.
    min_speedup : tokens per plain step of time below which the gate turns drafting off.
    probe_margin : how much more than `min_speedup` a probe must show to turn drafting on again.
    reprobe_after, reprobe_max : plain steps before the first probe, and at most after failed ones (each doubles).
    probe_steps : verifies of a probe.
    cost_table : a CostTable, or points (rows, cost); default: the package's own.
    adapt_budget : verify as many drafted tokens as are expected to win most, where the source knows their odds; where
        it does not, draft less when less is accepted, and in whole tiles of the kernels where that is cheaper.
    first_draft : for sources without odds, with `adapt_budget`: drafted tokens of a first verify at most, at the start
        or after a pause; what is accepted of them sets the next budget.
    max_loss, loss_credit : drafts may have cost, in all, at most `max_loss` times the plain steps so far plus
        `loss_credit` plain steps; see `fucina.speculative.ledger`.  With min_speedup = 0, or either infinite, there is
        no such limit.

    Raises
    ------
    RateWindowTooSmall, ProbeStepsZero, ReprobeAfterZero, CostTableEmpty
        A setting with which the gate could not work.
    InvalidOption
        Another value out of its range; the message names the field.
    """

    max_draft: int = 16
    min_draft: int = 2
    enabled: bool = True
    topk_feedback: int = 8
    rate_window: int = 16
    min_window_drafted: int = 8
    min_speedup: float = 1.0
    probe_margin: float = 0.10
    reprobe_after: int = 128
    reprobe_max: int = 1024
    probe_steps: int = 4
    cost_table: CostTable | Iterable[tuple[int, float]] = field(default_factory=default_table)
    adapt_budget: bool = True
    first_draft: int = 3
    max_loss: float = 0.01
    loss_credit: float = 1.0

    def __post_init__(self) -> None:
        for name, (low, high) in _WHOLE.items():
            object.__setattr__(self, name, checks.integer(name, getattr(self, name), low, high))
        for name in ("min_speedup", "probe_margin"):
            checks.real(name, getattr(self, name), 0)
        for name in ("max_loss", "loss_credit"):
            checks.real(name, getattr(self, name), 0, infinite=True)
        if self.rate_window < 2:
            raise RateWindowTooSmall(f"rate_window must be at least 2 verifies, got {self.rate_window}")
        if self.probe_steps == 0:
            raise ProbeStepsZero("probe_steps must be at least 1, got 0")
        if self.reprobe_after == 0:
            raise ReprobeAfterZero("reprobe_after must be at least 1, got 0")
        if self.reprobe_max < self.reprobe_after:
            raise InvalidOption(
                f"reprobe_max must be at least reprobe_after, {self.reprobe_after}, got {self.reprobe_max}"
            )
        object.__setattr__(self, "cost_table", CostTable.of(self.cost_table))

    @property
    def table(self) -> CostTable:
        """The cost table."""
        assert isinstance(self.cost_table, CostTable)
        return self.cost_table


@dataclass(slots=True)
class Stats:
    """Counts of a decoder's steps; `steps == spec_steps + fallback_steps + disabled_steps`.

    Attributes
    ----------
    spec_steps : steps that verified a draft.
    fallback_steps : plain steps because there was no draft, or too short a one.
    disabled_steps : plain steps because the gate was off.
    drafted, accepted : tokens verified, and those of them that were committed.
    rejected_steps : verifies that ended with a correction.
    bonus : verifies that committed one token more than was drafted.
    committed : tokens committed, those from a prefill's logits included.
    """

    steps: int = 0
    spec_steps: int = 0
    fallback_steps: int = 0
    disabled_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    rejected_steps: int = 0
    bonus: int = 0
    committed: int = 0

    def count(self, kind: str, drafted: int, accepted: int, committed: int, sampled: int) -> None:
        """Enter a step; `sampled` rows were sampled, the one of a stop token included."""
        self.steps += 1
        self.spec_steps += kind == "verify"
        self.fallback_steps += kind == "fallback"
        self.disabled_steps += kind == "off"
        self.drafted += drafted
        self.accepted += accepted
        if drafted:
            self.bonus += committed > drafted
            self.rejected_steps += accepted < sampled <= drafted

    @property
    def tokens_per_step(self) -> float:
        """Committed tokens per step; 0.0 before the first."""
        return self.committed / self.steps if self.steps else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted part of the drafted tokens; 0.0 if there are none."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def summary(self) -> str:
        """One line for people."""
        return (
            f"spec: steps={self.steps} "
            f"(verify {self.spec_steps}, fallback {self.fallback_steps}, off {self.disabled_steps}) "
            f"committed={self.committed} ({self.tokens_per_step:.2f} tok/step) "
            f"drafted={self.drafted} accepted={self.accepted} ({100 * self.acceptance_rate:.1f}% acc) "
            f"bonus={self.bonus} rejected={self.rejected_steps}"
        )

    def as_dict(self) -> dict[str, float]:
        """All counts and both ratios, for scripts."""
        counts = {f.name: getattr(self, f.name) for f in fields(self)}
        return {**counts, "tokens_per_step": self.tokens_per_step, "acceptance_rate": self.acceptance_rate}
