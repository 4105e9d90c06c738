"""What grading says: the result of each check, and the grade of one exercise, both JSON both ways."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any

from course.source import ExerciseSource

PASSED = "passed"
NOT_YET = "not yet"
NOT_ATTEMPTED = "not attempted"


@dataclass(slots=True)
class CheckResult:
    """One property of the contract and what happened.

    `status` is `passed`, `failed` or `not run`; `what` says what the learner's code did, `case` is the smallest
    counterexample as lines of code, `trace` the learner's own traceback, trimmed to their file.
    """

    text: str
    status: str
    what: str = ""
    case: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    printed: str = ""

    @property
    def passed(self) -> bool:
        """Whether the property held in every case."""
        return self.status == "passed"

    def signature(self) -> tuple[str, str, str, str]:
        """What a known wrong solution must share with the learner's code to be named: no line numbers in it."""
        return self.text, self.status, self.what, "\n".join(self.case)


@dataclass(slots=True)
class Grade:
    """The grade of one exercise.

    `path` and `digest` are those of the text that was really executed.  `message` is set where no check could run
    (syntax error, missing definition, not attempted); `misconception` where the code behaves as a known wrong
    solution does, and `sure` tells whether it does so in every check or only in the first that fails.
    """

    exercise: str
    title: str
    points: int
    outcome: str
    bonus: bool = False
    path: str = ""
    digest: str = ""
    line: int = 0
    checks: list[CheckResult] = field(default_factory=list)
    message: str = ""
    trace: list[str] = field(default_factory=list)
    misconception: str = ""
    wrong: str = ""
    sure: bool = False
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @classmethod
    def of(cls, exercise: ExerciseSource, outcome: str, path: str, digest: str, **fields: Any) -> Grade:
        """A grade of `exercise`."""
        about = (exercise.name, exercise.title, exercise.points, outcome, exercise.bonus)
        return cls(*about, path=path, digest=digest, **fields)

    @property
    def passed(self) -> bool:
        """Whether every check of the contract held."""
        return self.outcome == PASSED

    @property
    def unknown(self) -> str:
        """The name that the code uses and nothing defines, where that is what went wrong first; else an empty string."""
        first = next((check.what for check in self.checks if check.status == "failed"), self.message)
        found = re.search(r"\braises NameError: name '(\w+)' is not defined", first)
        return found[1] if found else ""

    @property
    def score(self) -> int:
        """Points earned: all on a pass; else the share of the checks that hold, 0 when the first of them fails."""
        if self.passed:
            return self.points
        if self.outcome == NOT_ATTEMPTED or not self.checks or not self.checks[0].passed:
            return 0
        share = sum(check.passed for check in self.checks) / len(self.checks)
        return min(int(self.points * share), self.points - 1)

    def to_json(self) -> dict[str, Any]:
        """Plain data, with the score."""
        return {**asdict(self), "score": self.score}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Grade:
        """The grade that `to_json` wrote."""
        fields = {key: value for key, value in data.items() if key in cls.__dataclass_fields__}
        fields["checks"] = [CheckResult(**check) for check in data.get("checks", [])]
        return cls(**fields)


def judge(checks: list[CheckResult]) -> str:
    """The outcome that a full list of results means; no check at all is never a pass."""
    return PASSED if checks and all(check.passed for check in checks) else NOT_YET
