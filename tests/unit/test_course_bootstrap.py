"""The set-up of the environment: its decisions and its messages, without a network and without installing anything."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course import __main__ as entry
from course import bootstrap, console, environment, installer, locking, pip_settings, processes
from course.console import SetupError
from course.pip_settings import ForUv

ROOT = Path(__file__).resolve().parents[2]
HERE = environment.running_version()


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout in a path with spaces and other letters, with nothing installed, that all modules look at."""
    root = tmp_path / "a é folder ✓"
    root.mkdir()
    (root / "pyproject.toml").write_text("[project]\n", encoding="utf-8")
    for module in (environment, bootstrap, installer):
        monkeypatch.setattr(module, "ROOT", root)
        monkeypatch.setattr(module, "VENV", root / ".venv")
    return root


def installed(checkout, groups=("course",), **changes):
    """Put down what a finished set-up leaves, with changes to its record."""
    venv = checkout / ".venv"
    python = environment.venv_python()
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_bytes(b"")
    (venv / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).parent}\n", encoding="utf-8")
    environment.write_state("complete", groups)
    if changes:
        path = venv / environment.STATE_NAME
        path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")


# --- which state is it in? --------------------------------------------------------------------------------------


def test_nothing_there_is_missing(checkout):
    assert environment.inspect(("course",)).kind == "missing"


def test_complete_is_ready_for_what_it_holds_and_for_less(checkout):
    installed(checkout, ("course", "model"))
    assert environment.inspect(("course", "model")).kind == "ready"
    assert environment.inspect(("course",)).kind == "ready"


def test_more_groups_make_it_outdated_and_are_named(checkout):
    installed(checkout, ("course",))
    status = environment.inspect(("course", "gemma"))
    assert (status.kind, status.groups) == ("outdated", ("course",))
    assert "gemma" in status.reason and "course" not in status.reason


def test_a_changed_pyproject_makes_it_outdated_but_line_ends_do_not(checkout):
    installed(checkout)
    (checkout / "pyproject.toml").write_bytes(b"[project]\r\n")
    assert environment.inspect(("course",)).kind == "ready"
    (checkout / "pyproject.toml").write_bytes(b"[project]\nname = 'x'\n")
    assert environment.inspect(("course",)).kind == "outdated"


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"state": "installing"}, "interrupted"), ({"root": "elsewhere"}, "moved")],
)
def test_broken_states_say_why(checkout, changes, said):
    installed(checkout, **changes)
    status = environment.inspect(("course",))
    assert status.kind == "broken" and said in status.reason


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", "null", '{"state": "complete"}'])
def test_an_unreadable_record_is_broken(checkout, content):
    installed(checkout)
    (checkout / ".venv" / environment.STATE_NAME).write_text(content, encoding="utf-8")
    assert environment.inspect(("course",)).kind == "broken"


def test_a_vanished_interpreter_is_broken(checkout):
    installed(checkout)
    environment.venv_python().unlink()
    status = environment.inspect(("course",))
    assert status.kind == "broken" and "gone" in status.reason


@pytest.mark.skipif(os.name == "nt", reason="needs symbolic links")
def test_a_dangling_link_to_the_base_interpreter_is_broken(checkout):
    installed(checkout)
    python = environment.venv_python()
    python.unlink()
    python.symlink_to(checkout / "no-such-python")
    assert environment.inspect(("course",)).kind == "broken"


def test_a_replaced_interpreter_is_noticed_from_inside(checkout, monkeypatch):
    installed(checkout, python="3.2")
    assert environment.inspect(("course",)).kind == "ready"  # from outside any suitable Python may ask
    monkeypatch.setattr(environment, "inside", lambda: True)
    status = environment.inspect(("course",))
    assert status.kind == "broken" and "replaced" in status.reason


def test_an_environment_of_somebody_else_is_foreign_and_put_aside(checkout, capsys):
    installed(checkout)
    (checkout / ".venv" / environment.STATE_NAME).unlink()
    status = environment.inspect(("course",))
    assert status.kind == "foreign"
    bootstrap._clear(status)
    assert not (checkout / ".venv").exists()
    assert (checkout / ".venv-old-1" / "pyvenv.cfg").exists()
    assert ".venv-old-1" in capsys.readouterr().out


def test_an_empty_folder_is_ours_and_removed(checkout):
    (checkout / ".venv").mkdir()
    (checkout / ".venv-removing").mkdir()  # a removal was interrupted as well
    status = environment.inspect(("course",))
    assert status.kind == "broken"
    bootstrap._clear(status)
    assert sorted(path.name for path in checkout.iterdir()) == ["pyproject.toml"]


def test_layouts_of_both_systems():
    assert environment.venv_python(Path("v"), windows=True) == Path("v/Scripts/python.exe")
    assert environment.venv_python(Path("v"), windows=False) == Path("v/bin/python")
    assert environment.scripts_folder(Path("v"), windows=True) == Path("v/Scripts")


def test_children_inherit_nothing_of_another_environment(monkeypatch, checkout):
    for name in ("PYTHONPATH", "PYTHONHOME", "CONDA_PREFIX", "PIP_USER", "UV_PYTHON", "VIRTUAL_ENV"):
        monkeypatch.setenv(name, "elsewhere")
    monkeypatch.setenv("HTTPS_PROXY", "kept")
    variables = environment.child_environment()
    assert "elsewhere" not in variables.values()
    assert variables["VIRTUAL_ENV"] == str(checkout / ".venv") and variables["HTTPS_PROXY"] == "kept"
    assert variables["PATH"].startswith(str(environment.scripts_folder()) + os.pathsep)


# --- installing, with the steps replaced ------------------------------------------------------------------------


@pytest.fixture
def steps(checkout, monkeypatch):
    """Record the steps in place of running them; `fail` maps a step's number to the error that it raises."""

    class Steps(list):
        fail: ClassVar[dict[str, SetupError]] = {}

    done = Steps()

    def step(title, command, lock=None, variables=None):
        done.append((title, command))
        if title[0] in done.fail:
            raise done.fail[title[0]]
        environment.venv_python().parent.mkdir(exist_ok=True)
        environment.venv_python().write_bytes(b"")
        (checkout / ".venv" / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).parent}\n", encoding="utf-8")

    monkeypatch.setattr(installer, "step", step)
    monkeypatch.setattr(installer, "settings_of_pip", ForUv)
    monkeypatch.setattr(installer, "compile_own", lambda: None)
    monkeypatch.setattr(installer, "_write_settings", lambda: None)
    monkeypatch.setattr(installer, "check_disk", lambda need: None)
    return done


def test_a_fresh_set_up_takes_three_steps_and_then_none(checkout, steps):
    bootstrap.ensure(("course", "model"))
    assert [title[:3] for title, _ in steps] == ["1/3", "2/3", "3/3"]
    assert {"--group=course", "--group=model"} <= set(steps[2][1])
    assert steps[2][1][-1] == str(checkout)  # one argument, whatever letters it holds
    bootstrap.ensure(("course",))
    assert len(steps) == 3


def test_an_interrupted_set_up_is_made_again_from_the_start(checkout, steps):
    steps.fail = {"3": SetupError("no")}
    with pytest.raises(SetupError):
        bootstrap.ensure(("course",))
    (checkout / ".venv" / "half-written").write_bytes(b"")
    steps.fail = {}
    bootstrap.ensure(("course",))
    assert len(steps) == 6 and not (checkout / ".venv" / "half-written").exists()


def test_an_update_keeps_the_groups_that_were_there_and_the_version_of_python(checkout, steps):
    installed(checkout, ("model",), python="3.99")
    bootstrap.ensure(("course",))
    assert [title[:3] for title, _ in steps] == ["3/3"]
    state = environment.read_state()
    assert (state["groups"], state["python"]) == (["course", "model"], "3.99")


@pytest.mark.parametrize(("kind", "after"), [("network", "outdated"), ("disk", "broken"), ("other", "broken")])
def test_a_failed_update_keeps_a_whole_environment_and_distrusts_a_half_one(checkout, steps, kind, after):
    installed(checkout, ("model",))
    steps.fail = {"3": SetupError("no", kind)}
    with pytest.raises(SetupError):
        bootstrap.ensure(("course",))
    assert environment.inspect(("course",)).kind == after


@pytest.mark.parametrize(("number", "said"), [(errno.EROFS, "Copy the whole folder"), (errno.ENOSPC, "disk is full")])
def test_errors_of_the_file_system_are_explained(checkout, steps, monkeypatch, capsys, number, said):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(bootstrap, "_install", refuse)
    assert bootstrap.main(["list"]) == 1
    assert said in capsys.readouterr().err


# --- what a failure says ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        ("error: Failed to fetch: `https://x/simple/numpy/`\n  cause: dns error: failed to lookup address", "network"),
        ("Failed to establish a new connection: [Errno -3]\nERROR: No matching distribution found for uv", "network"),
        ("invalid peer certificate: UnknownIssuer (error sending request)", "certificate"),
        ("failed to write: No space left on device (os error 28)", "disk"),
        ("OSError: [Errno 28] No space left on device", "disk"),
        ("failed to create file: Permission denied (os error 13)", "permission"),
        ("Because numba>=0.68.0 has no usable wheels and you require numba", "platform"),
        ("something new", "other"),
    ],
)  # fmt: skip
def test_causes_are_recognised_and_each_has_advice(output, kind):
    assert installer.cause_of(output) == kind
    assert installer.advice_for(kind).isascii() and "{" not in installer.advice_for(kind)


def test_a_failing_step_shows_its_last_lines_and_what_to_do(monkeypatch, capsys):
    monkeypatch.setattr(installer, "ROOT", Path.cwd())
    code = "print('noise\\n' * 99); print('dns error: no such host'); raise SystemExit(3)"
    with pytest.raises(SetupError) as caught:
        installer.step("1/1 Trying", [sys.executable, "-c", code])
    assert caught.value.kind == "network"
    assert "exit code 3" in str(caught.value) and "| dns error" in str(caught.value)
    assert str(caught.value).count("noise") < 12 and capsys.readouterr().out == "1/1 Trying\n"


def test_a_step_that_cannot_start_says_so(tmp_path):
    with pytest.raises(SetupError, match="could not be started"):
        installer.step("1/1 Trying", [str(tmp_path / "nothing")])


@pytest.mark.parametrize("module", ["venv", "ensurepip"])
def test_a_python_without_venv_is_told_what_to_install(monkeypatch, module):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else real(name))
    with pytest.raises(SetupError, match=rf"lacks the standard module {module}(.|\n)*apt install python{HERE}-venv"):
        installer.check_interpreter()


def test_a_disk_that_is_too_small_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(SetupError, match="GB are free") as caught:
        installer.check_disk(1e9, tmp_path)
    assert caught.value.kind == "disk"


# --- the console ------------------------------------------------------------------------------------------------


@given(st.text(), st.sampled_from(["ascii", "cp1252", "cp437", "utf-8"]))
def test_any_text_can_be_said_on_any_console(text, encoding):
    import io

    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
    console.say(text, stream)
    assert stream.buffer.getvalue().endswith(b"\n")


def test_all_that_the_set_up_says_is_ascii():
    for module in (bootstrap, console, environment, installer, locking, entry, pip_settings, processes):
        assert Path(module.__file__).read_text(encoding="utf-8").isascii(), module.__name__


# --- one at a time ----------------------------------------------------------------------------------------------


def test_a_second_start_waits_for_the_first(tmp_path):
    waited = []
    code = (
        "import sys, time; from pathlib import Path; from course.locking import exclusive\n"
        "with exclusive(Path(sys.argv[1]), lambda: None): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "lock")], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout.readline().strip() == b"held"

        def release():
            waited.append(True)
            holder.stdin.close()

        with locking.exclusive(tmp_path / "lock", release, poll=0.01):
            assert waited == [True]


@pytest.mark.skipif(os.name == "nt", reason="descriptors are not handed on")
def test_the_lock_outlives_a_killed_holder_while_its_child_works(tmp_path):
    code = (
        "import subprocess, sys; from pathlib import Path; from course.locking import exclusive\n"
        "with exclusive(Path(sys.argv[1]), lambda: None) as lock:\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'input()'], pass_fds=(lock,))\n"
        "    print('held', flush=True); child.wait()"
    )
    reader, writer = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "lock")], cwd=ROOT, stdin=reader, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as holder:  # fmt: skip
        assert holder.stdout.readline().strip() == b"held"
        holder.kill()
        holder.wait()
        waited = []

        def release():
            waited.append(True)
            os.write(writer, b"\n")  # lets the orphan end

        with locking.exclusive(tmp_path / "lock", release, poll=0.01):
            assert waited == [True]
    os.close(reader)
    os.close(writer)


# --- the first lines --------------------------------------------------------------------------------------------


def test_the_bounds_of_python_are_those_of_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    low, high = (".".join(map(str, version)) for version in (entry.LOWEST, entry.BEYOND))
    assert project["requires-python"] == f">={low},<{high}"
    assert sorted(map(int, (version.partition(".")[2] for version in entry.PREFERRED))) == list(
        range(entry.LOWEST[1], entry.BEYOND[1])
    )


@pytest.mark.parametrize(("version", "fits"), [((2, 7), 0), ((3, 10), 0), ((3, 11), 1), ((3, 15), 1), ((3, 16), 0)])
def test_which_pythons_are_suitable(version, fits):
    assert entry.suitable(version) == bool(fits)


def test_the_first_files_use_old_syntax_only():
    import ast

    for name in ("__init__.py", "__main__.py"):
        source = (ROOT / "course" / name).read_text(encoding="utf-8")
        assert source.isascii()
        tree = ast.parse(source, feature_version=(3, 4))
        assert not [node for node in ast.walk(tree) if isinstance(node, (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr))]


def test_an_unsuitable_python_hands_over_to_one_that_fits(monkeypatch, capsys):
    calls = []
    monkeypatch.setattr(entry, "suitable", lambda version: False)
    monkeypatch.setattr(entry, "other_pythons", lambda: iter([["bad"], ["good"]]))
    monkeypatch.setattr(entry, "works", lambda command: command == ["good"])
    monkeypatch.setattr(subprocess, "call", lambda command: calls.append(command) or 7)
    assert entry.main(["test", "-x"]) == 7
    assert calls == [["good", entry.HERE, "test", "-x"]]
    assert "Using good" in capsys.readouterr().err


def test_an_unsuitable_python_alone_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(entry, "suitable", lambda version: False)
    monkeypatch.setattr(entry, "other_pythons", lambda: iter([]))
    assert entry.main([]) == 2
    assert "3.11 to 3.15" in capsys.readouterr().err


def test_started_as_a_folder_the_modules_do_not_hide_the_standard_library(monkeypatch):
    monkeypatch.setattr(sys, "path", [entry.HERE, *sys.path])
    entry.fix_path()
    assert entry.HERE not in sys.path and entry.ROOT in sys.path


@pytest.mark.parametrize("how", [["-m", "course"], [str(ROOT / "course")]])
def test_help_needs_no_environment(tmp_path, how):
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    answer = subprocess.run(
        [sys.executable, *how, "--help"], cwd=tmp_path, env=variables, capture_output=True, encoding="utf-8", check=True
    )
    assert "python3 -m course [COMMAND]" in answer.stdout and answer.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "command", "rest"),
    [
        ([], "start", []),
        (["--no-browser"], "start", ["--no-browser"]),
        (["test", "-k", "x"], "test", ["-k", "x"]),
        (["check", "--help"], "check", ["--help"]),
        (["--help"], "help", []),
    ],
)
def test_the_command_is_split_off(arguments, command, rest):
    assert bootstrap.split_command(arguments) == (command, rest)


# --- paths in any letters, locales with few -----------------------------------------------------------------------


def test_the_checkout_is_importable_in_every_locale(checkout, tmp_path):
    """The editable install writes a plain path, over which Python stumbles where the locale knows ASCII only."""
    site = tmp_path / "site"
    site.mkdir()
    (checkout / "found_in_checkout.py").write_text("value = 17\n", encoding="utf-8")
    (site / "_editable_impl_fucina.pth").write_text(f"{checkout}\n", encoding="utf-8")
    (site / "other.pth").write_text("# not ours\n", encoding="utf-8")
    installer.put_on_path(site)
    assert all(path.read_bytes().isascii() for path in site.glob("*.pth"))
    assert (site / "other.pth").read_text(encoding="utf-8") == "# not ours\n"
    program = "import os, site, sys; site.addsitedir(os.environ['SITE']); import found_in_checkout as f; print(f.value)"
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "PYTHON", "LANG"))}
    for few in ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"PYTHONUTF8": "1"}):
        answer = subprocess.run(
            [sys.executable, "-c", program],
            env={**variables, **few, "SITE": str(site)},
            capture_output=True,
            encoding="utf-8",
            cwd=tmp_path,
        )
        assert answer.stdout.strip() == "17", answer.stderr


@pytest.mark.skipif(os.name == "nt", reason="file names of POSIX are bytes")
def test_an_environment_made_in_one_locale_is_ready_in_another(checkout):
    import shutil

    for name in ("course/environment.py", "course/__init__.py"):
        (checkout / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, checkout / name)
    installed(checkout)
    program = (
        "import course.environment as e; print(e.inspect(('course',)).kind, e.read_state()['root'].encode('utf-8'))"
    )
    answers = set()
    for few in ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"PYTHONUTF8": "1"}):
        answer = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": "", **few},
            capture_output=True,
            encoding="utf-8",
            cwd=checkout,
        )
        assert answer.stdout.startswith("ready "), answer.stderr + answer.stdout
        answers.add(answer.stdout)
    assert len(answers) == 1
