"""The command starts quickly, and leaves a process that only borrows it as it was."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from fucina.cli import main
from fucina.cli.quick_start import UNUSED, quick_start, started
from tests.chat_model import write_chat_model

ROOT = Path(__file__).resolve().parents[2]


def test_everything_is_put_back(monkeypatch):
    monkeypatch.delitem(sys.modules, "cffi", raising=False)
    monkeypatch.setitem(sys.modules, "coverage", sys)  # in use: it stays
    with quick_start():
        assert not gc.isenabled()
        with pytest.raises(ImportError):
            import cffi  # noqa: F401
        assert sys.modules["coverage"] is sys
    assert gc.isenabled() and sys.modules["coverage"] is sys and "cffi" not in sys.modules


def test_collecting_begins_once_the_model_is_there():
    before = gc.get_freeze_count()
    started()  # where nothing was held off, nothing is changed
    assert gc.isenabled() and gc.get_freeze_count() == before
    try:
        with quick_start():
            started()
            assert gc.isenabled() and gc.get_freeze_count() > before
    finally:
        gc.unfreeze()


def test_a_borrowed_command_changes_nothing(capsys):
    before = set(sys.modules)
    assert main(["--version"]) == 0
    assert gc.isenabled() and not {n for n in UNUSED if sys.modules.get(n, n) is None and n not in before}


@pytest.mark.parametrize(
    ("words", "absent"),
    [
        (["--help"], ["numpy", "numba", "regex", "jinja2", "fucina.model"]),
        (["--version"], ["numpy", "numba", "regex", "jinja2", "fucina.model"]),
        (["chat", "--help"], ["numpy", "numba", "regex", "jinja2", "fucina.model"]),
        (["models"], ["numpy", "numba", "regex", "jinja2", "fucina.model"]),
        (["tokenize", "hi", "-m", "MODEL"], ["numba", "jinja2", "fucina.model"]),
        (["generate", "ab", "-n", "2", "--model", "MODEL"], ["coverage", "cffi", "yaml", "jinja2", "fucina.chat"]),
    ],
)
def test_what_a_command_imports(tmp_path, words, absent):
    model = write_chat_model(tmp_path / "chat.gguf")
    code = (
        "import sys, atexit\n"
        "from fucina.cli import main\n"
        f"sys.argv = ['fucina'] + {[w.replace('MODEL', str(model)) for w in words]!r}\n"
        f"status = main()\nfound = sorted(set({absent!r}) & set(sys.modules))\nsys.exit(f'{{found}} {{status}}')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stderr.endswith("[] 0\n"), done.stderr
