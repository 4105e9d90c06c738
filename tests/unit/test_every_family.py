"""Every family, everything that is asked of one; see `tests/every_family.py`."""

import pytest

from fucina.cli import main
from fucina.gguf import GgufFile
from fucina.models import FAMILIES
from tests.every_family import COLUMNS, page_table
from tests.toy_families import toy_path
from tests.toys.real import KEYS


def test_every_family_takes_part():
    assert list(KEYS) == list(FAMILIES), "a new family needs an entry in tests/toys/real.py, in the order of FAMILIES"
    assert list(page_table()) == list(FAMILIES), "run python -m tests.every_family"


@pytest.mark.parametrize("column", list(COLUMNS))
@pytest.mark.parametrize("name", list(FAMILIES))
def test_family(name, column):
    assert COLUMNS[column](name) == page_table()[name][column]


@pytest.mark.parametrize("name", list(FAMILIES))
def test_info_names_everything(name, capsys):
    """Every key of the architecture with a value, and every format."""
    path = toy_path(name, "quantised")
    assert main(["info", str(path)]) == 0
    shown = capsys.readouterr().out
    file = GgufFile(path)
    listed = {line.split()[0]: line.split(maxsplit=1)[1:] for line in shown.splitlines() if line.strip()}
    assert all(listed.get(key) for key in KEYS[name])
    for tensor in file.tensors.values():
        assert f"\n{tensor.ggml_type.name} " in shown
    assert name in shown
    file.close()
