"""Every family, everything that is asked of one; see `tests/every_family.py`."""

import pytest

from fucina.models import FAMILIES
from tests.every_family import COLUMNS, page_table
from tests.toys.real import KEYS


def test_every_family_takes_part():
    assert list(KEYS) == list(FAMILIES), "a new family needs an entry in tests/toys/real.py, in the order of FAMILIES"
    assert list(page_table()) == list(FAMILIES), "run python -m tests.every_family"


@pytest.mark.parametrize("column", list(COLUMNS))
@pytest.mark.parametrize("name", list(FAMILIES))
def test_family(name, column):
    assert COLUMNS[column](name) == page_table()[name][column]
