"""`python -m fucina` is the `fucina` command."""

import sys

from fucina.cli import main

sys.exit(main())
