"""`python -m noetl`."""

import sys

from noetl.cli.main import main

sys.exit(main())
