"""The grade of code that had to be stopped, or that ended the process that ran it."""

from __future__ import annotations

from typing import Any

from course.grading.outcome import NOT_YET, CheckResult, Grade
from course.source import ExerciseSource, digest


def why_stopped(event: dict[str, Any], memory_mb: int) -> str:
    """What happened to the code, as the end of a sentence about it, from what the worker said last."""
    if event.get("limit") == "memory":
        return f"was stopped: it takes more memory than the {memory_mb} MB that an exercise may use"
    if event.get("limit") == "time":
        return (
            "was stopped: it did not come to an end in the time that an exercise may take. Is there a loop whose "
            "condition never changes, or does it do too much?"
        )
    if event.get("code") is None:
        return "was stopped: it broke the connection to the grader. Does it write to a file that it did not open?"
    return f"ended the whole process (exit code {event.get('code')}) instead of returning"


def partial_grade(
    request: dict, exercise: ExerciseSource, results: list[CheckResult], running: str, what: str, event: dict[str, Any]
) -> Grade:
    """The grade of code that had to be stopped: what was found until then stays."""
    trace = [f"{request['path']}, line {event['line']}", "    " + event["text"]] if event.get("line") else []
    grade = Grade.of(exercise, NOT_YET, request["path"], digest(request["text"]), checks=results)
    if running:
        results.append(CheckResult(running, "failed", what, trace=trace))
        known = {result.text for result in results}
        results += [CheckResult(text, "not run") for text in exercise.checks if text not in known]
    else:
        grade.message, grade.trace = f"your code {what}", trace
    return grade
