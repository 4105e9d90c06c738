"""The grader's own test: deliberate faults in a copy of it, each of which must turn the integrity suite red.

To stay quick, each fault names the tests of the suite that are run against it, and they are shown to be green without
the fault.  A grader that lies is worse than none; this keeps `test_course_integrity.py` from becoming a suite that a
broken grader passes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from course.source import ROOT

SUITE = "tests/unit/test_course_integrity.py"
FAULTS = {
    "always passes": (
        "wrong_solution_gets",
        "course/grading/outcome.py",
        "return PASSED if checks and all(check.passed for check in checks) else NOT_YET",
        "return PASSED",
    ),
    "grades the solution instead of the learner's file": (
        "untouched_starter",
        "course/grading/__init__.py",
        "return grade_text(exercise.name, text, str(path), course, **options)",
        "return grade_text(exercise.name, chapter.solved(), str(path), course, **options)",
    ),
    "swallows the learner's exception": (
        "other_ways_out",
        "course/grading/core.py",
        'result.what, result.trace = f"raises {describe(caught.error)}", learner.trimmed(caught.error, path)',
        'result.status = "passed"',
    ),
    "skips the last check": (
        "earns_everything",
        "course/grading/core.py",
        "checks = list(exercise.checks)",
        "checks = list(exercise.checks)[:-1]",
    ),
    "exit code is always 0": (
        "truth_by_its_exit_code",
        "course/platform.py",
        "return 0 if grades and all(result.passed for result in grades) else 1",
        "return 0",
    ),
    "takes a failed comparison for a pass": (
        "wrong_solution_gets",
        "course/grading/core.py",
        "    except Failed as failed:\n",
        "    except Failed as failed:\n        result.status = 'passed'\n",
    ),
    "runs the untouched starter": (
        "untouched_starter",
        "course/grading/core.py",
        "        if not written:\n",
        "        if False:\n",
    ),
    "names the first wrong solution, whatever happened": (
        "wrong_solution_gets",
        "course/grading/core.py",
        "same = [row for row in known if row[2] == mine]",
        "same = known[:1]",
    ),
    "does not look at changed inputs": (
        "changing_the_inputs",
        "course/grading/tools.py",
        "not _same(old, args[i])",
        "False",
    ),
    "reports another file than it executed": (
        "grade_names_the_text",
        "course/grading/core.py",
        "NOT_YET, path, digest(text))",
        'NOT_YET, path, digest(""))',
    ),
    "lets solutions be imported": (
        "importing_the_solution",
        "course/grading/guard.py",
        "        self.tripped = what\n        raise",
        "        raise",
    ),
    "starters keep the solution": (
        "untouched_starter",
        "course/parser.py",
        "        return Definition(node.name, self.cut(node), starter, doc, True)",
        "        return Definition(node.name, self.cut(node), self.cut(node), doc, True)",
    ),
    "gives full points for half the checks": (
        "wrong_solution_gets",
        "course/grading/outcome.py",
        "return min(int(self.points * share), self.points - 1)",
        "return self.points",
    ),
}


def copy_project(folder: Path) -> None:
    """What the integrity suite needs, in a folder of its own."""
    skip = shutil.ignore_patterns("__pycache__", "*.tmp")
    for name in ("course", "solutions"):
        shutil.copytree(ROOT / name, folder / name, ignore=skip)
    (folder / "exercises").mkdir()
    shutil.copy(ROOT / "exercises" / "manifest.json", folder / "exercises")
    (folder / "tests" / "unit").mkdir(parents=True)
    for name in ("tests/__init__.py", "tests/unit/__init__.py", "tests/unit/course_kit.py", SUITE):
        shutil.copy(ROOT / name, folder / name)


def run_suite(folder: Path, tests: str) -> subprocess.CompletedProcess:
    """The tests of the copy's integrity suite whose names hold `tests`, to the first failure, with two chapters."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(folder),
        "--import-mode=importlib",
        "-k",
        f"({tests}) and (ch00 or ch05)",
        SUITE,
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        encoding="utf-8",
        errors="replace",
        check=False,
    )


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_caught(fault: str, tmp_path: Path) -> None:
    copy_project(tmp_path)
    tests, name, old, new = FAULTS[fault]
    text = (tmp_path / name).read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{name} has changed: this fault must be put in anew"
    (tmp_path / name).write_text(text.replace(old, new), encoding="utf-8")
    result = run_suite(tmp_path, tests)
    assert result.returncode == 1, result.stdout[-2000:] + result.stderr[-2000:]
    # a starter that keeps solution text is refused even earlier, when exercises are generated
    assert "1 failed" in result.stdout or "the starter holds solution text" in result.stdout


def test_without_a_fault_the_same_tests_are_green(tmp_path: Path) -> None:
    """Otherwise every fault above would look caught."""
    copy_project(tmp_path)
    tests = " or ".join(sorted({fault[0] for fault in FAULTS.values()}))
    result = run_suite(tmp_path, tests)
    assert result.returncode == 0, result.stdout[-3000:]
    assert "skipped" not in result.stdout and " 0 passed" not in result.stdout
