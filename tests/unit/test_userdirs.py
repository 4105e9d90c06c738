"""Folders that environment variables name: `~` is the home folder, relative paths are refused (the course has a folder
of its own, where its relative paths begin: test_course_progress.py)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fucina import hub
from fucina.errors import InvalidOption
from fucina.kernels import cache_folder
from fucina.userdirs import cache_home, foreign_folder, named_folder

ROOT = Path(__file__).resolve().parents[2]
OURS = {
    "FUCINA_HOME": lambda: hub.models_folder().parent,
    "FUCINA_CACHE_DIR": lambda: cache_folder._roots()[0],
}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("variable", OURS)
def test_a_tilde_is_the_home_folder(home, monkeypatch, variable):
    for value, expected in (("~/x", home / "x"), ("~", home), (str(home / "a b"), home / "a b")):
        monkeypatch.setenv(variable, value)
        assert OURS[variable]() == expected
    assert os.listdir(home) == []  # nothing is made by asking


@pytest.mark.parametrize("variable", OURS)
@pytest.mark.parametrize("value", ["x", "./x", "../x", ".", "~nobody-of-this-name/x", "x/~"])
def test_relative_paths_are_refused(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidOption, match=f"{variable} is '{value}'; expected the full path"):
        OURS[variable]()


@pytest.mark.parametrize("variable", OURS)
def test_an_empty_value_is_none(monkeypatch, variable):
    monkeypatch.delenv(variable, raising=False)
    default = OURS[variable]()
    monkeypatch.setenv(variable, "")
    assert OURS[variable]() == default and named_folder(variable) is None


def test_variables_of_others_are_obeyed_or_ignored(home, monkeypatch):
    for value, expected in ((str(home / "c"), home / "c"), ("~/c", home / "c"), ("c", None), ("", None)):
        monkeypatch.setenv("NUMBA_CACHE_DIR", value)
        assert foreign_folder("NUMBA_CACHE_DIR") == expected
    if sys.platform.startswith("linux"):
        monkeypatch.setenv("XDG_CACHE_HOME", "relative")
        assert cache_home() == home / ".cache"
        monkeypatch.setenv("XDG_CACHE_HOME", str(home / "c"))
        assert cache_home() == home / "c"


@pytest.mark.parametrize(
    ("variable", "words"),
    [("FUCINA_HOME", ["fucina", "models"])],
)
def test_a_command_says_it_in_one_line(tmp_path, variable, words):
    module = "fucina.cli" if words[0] == "fucina" else words[0]
    code = f"import sys; from {module} import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, *words[1:]],
        env={**os.environ, variable: "relative", "PYTHONPATH": str(ROOT)},
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"{variable} is 'relative'" in done.stderr
    assert os.listdir(tmp_path) == []


def test_kernels_are_kept_by_the_same_rule(home, monkeypatch):
    monkeypatch.setenv("FUCINA_CACHE_DIR", "~/kernels")
    monkeypatch.setenv("NUMBA_CACHE_DIR", "relative")
    roots = cache_folder._roots()
    assert roots[0] == home / "kernels" and all(root.is_absolute() for root in roots)
    monkeypatch.setenv("FUCINA_CACHE_DIR", "kernels")
    with pytest.raises(InvalidOption, match="FUCINA_CACHE_DIR is 'kernels'"):
        cache_folder._roots()
