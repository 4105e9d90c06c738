"""Real processes, killed while they append (see `tests.kv_killed`)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from course.source import ROOT

pytestmark = pytest.mark.skipif(os.name != "posix", reason="children are forks, which only POSIX systems have")


def killed(tmp_path, count, seed):
    command = [sys.executable, "-m", "tests.kv_killed", str(tmp_path), str(count), str(seed)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{count} killed"), done.stdout
    return done.stdout


def test_processes_that_are_killed_leave_a_true_prefix(tmp_path):
    killed(tmp_path, 14, 0)


@pytest.mark.slow
def test_hundreds_of_processes_that_are_killed_leave_a_true_prefix(tmp_path):
    print(killed(tmp_path, 420, 1000))
