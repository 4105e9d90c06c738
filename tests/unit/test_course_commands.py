"""The commands `start` and `test`: the command lines that they build."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from course import build, start, testing


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text("def test_a(): pass\n", encoding="utf-8")
    return tmp_path


def test_everything_is_tested_by_default(tree):
    command = testing.pytest_command(["-n0"], tree)
    assert command[-2:] == ["tests", "-n0"] and "--nbval-lax" in command
    (tree / "notebooks").mkdir()
    (tree / "notebooks" / "00_a.ipynb").write_text("{}", encoding="utf-8")
    (tree / "tests" / "nbval_sanitize.cfg").write_text("", encoding="utf-8")
    command = testing.pytest_command(["-s"], tree)
    assert command[-3:] == ["tests", "notebooks/00_a.ipynb", "-s"]
    assert command[command.index("--nbval-sanitize-with") + 1] == str(tree / "tests" / "nbval_sanitize.cfg")


@pytest.mark.parametrize("named", ["tests/test_a.py", "tests/test_a.py::test_a", "tests"])
def test_named_files_alone_are_tested(tree, named):
    assert testing.pytest_command(["-k", "a", named], tree)[-3:] == ["-k", "a", named]


@pytest.mark.parametrize("cores", [2, 3, 64])
def test_a_process_per_core_but_few(cores):
    assert testing.side_by_side(["-x"], cores) == ["-n", str(min(cores, 4)), "--dist", "loadfile"]


@pytest.mark.parametrize("alone", [["--pdb"], ["-s"], ["-n0"], ["-n", "3"], ["--numprocesses=1"], ["--co", "-q"]])
def test_one_process_where_an_option_wants_it(alone):
    assert testing.side_by_side(alone, 2) == []
    assert testing.side_by_side([], 1) == []


def test_tests_and_builds_know_a_folder_that_cannot_be_written(tree, monkeypatch, capsys):
    (tree / "file").write_text("", encoding="utf-8")
    monkeypatch.setattr(testing, "VENV", tree / "file")
    folder = testing.cache_folder()
    assert folder.is_dir() and tree not in folder.parents
    assert str(folder / "hypothesis") in testing.environment_for_tests().values()
    folder.rmdir()
    monkeypatch.setattr(build, "NOTEBOOKS", tree / "file")
    assert build.build([], check=False) == 2
    assert "cannot write in file/" in capsys.readouterr().err


@pytest.mark.parametrize("code", [0, 1, 5])
def test_the_exit_code_is_that_of_the_program(code):
    program = f"import sys, course.processes as p; sys.exit(p.become([sys.executable, '-c', 'exit({code})']))"
    assert subprocess.run([sys.executable, "-c", program], cwd=start.ROOT).returncode == code


def test_a_failing_test_fails_the_command(tree):
    (tree / "tests" / "test_b.py").write_text("def test_b(): assert 1 == 2\n", encoding="utf-8")
    program = (
        "import sys; from pathlib import Path; from course import testing\n"
        "testing.ROOT = testing.VENV = root = Path(sys.argv[1]); plain = testing.pytest_command\n"
        "testing.pytest_command = lambda arguments: plain(arguments, root)\n"
        "sys.exit(testing.main(sys.argv[2:]))"
    )

    def run(*arguments):
        command = [sys.executable, "-c", program, str(tree), *arguments]
        return subprocess.run(command, cwd=start.ROOT, capture_output=True, encoding="utf-8")

    answer = run()
    assert answer.returncode == 1 and "1 failed, 1 passed" in answer.stdout.splitlines()[-1]
    assert run("tests/test_a.py").returncode == 0
    assert run("-k", "nothing-of-that-name").returncode == 5


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ctrl_c_reaches_the_tests_even_when_started_in_the_background(monkeypatch, tree):
    monkeypatch.setattr(testing, "VENV", tree)
    seen = []
    monkeypatch.setattr(testing, "become", lambda *_: seen.append(signal.getsignal(signal.SIGINT)) or 0)
    monkeypatch.setattr(testing, "ROOT", tree)
    monkeypatch.chdir(tree)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert testing.main([]) == 0
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIG_DFL]


def test_jupyter_opens_the_first_chapter_if_it_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr(start, "ROOT", tmp_path)
    assert "--LabApp.default_url=/lab" in start.jupyter_command(None, True, [])
    (tmp_path / "notebooks").mkdir()
    (tmp_path / start.FIRST).write_text("{}", encoding="utf-8")
    command = start.jupyter_command(8890, False, ["--debug"])
    assert "--LabApp.default_url=/lab/tree/notebooks/00_welcome.ipynb" in command
    assert {"--ServerApp.port=8890", "--no-browser"} <= set(command) and command[-1] == "--debug"
    assert f"--ServerApp.root_dir={tmp_path}" in command


@pytest.mark.parametrize("bad", [["--port", "x"], ["--port", "0"], ["--port", "70000"], ["--nonsense"]])
def test_bad_options_of_start_are_refused(bad, capsys):
    with pytest.raises(SystemExit) as caught:
        start._parse(bad)
    assert caught.value.code == 2
    assert "error" in capsys.readouterr().err


def test_what_follows_two_dashes_is_for_jupyter():
    options, extra = start._parse(["--port", "9000", "--", "--debug", "--port=1"])
    assert (options.port, extra) == (9000, ["--debug", "--port=1"])


def test_notebooks_are_signed_once(tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat")
    sign = pytest.importorskip("nbformat.sign")
    monkeypatch.setattr(start, "VENV", tmp_path)
    signed = []
    monkeypatch.setattr(sign, "NotebookNotary", lambda: SimpleNamespace(sign=signed.append))
    path = tmp_path / "a.ipynb"
    nbformat.write(nbformat.v4.new_notebook(), path)
    start.trust([path])
    start.trust([path])
    assert len(signed) == 1
    path.write_text("not json", encoding="utf-8")
    start.trust([path])  # an edited notebook may be anything
