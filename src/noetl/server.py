"""`python -m noetl.server`."""

import sys

from noetl.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["server", *sys.argv[1:]]))
