"""What all tests share: hypothesis without a deadline, since the first call of a kernel compiles it; a command line."""

import pytest
from hypothesis import settings

from fucina.cli import main

settings.register_profile("fucina", deadline=None, print_blob=True)
settings.load_profile("fucina")


@pytest.fixture
def cli(capsys):
    """Run the command in this process: (exit code, stdout, stderr)."""

    def run(*arguments):
        status = main([str(a) for a in arguments])
        return (status, *capsys.readouterr())

    return run
