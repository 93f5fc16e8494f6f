"""`python -m noetl.worker`."""

import sys

from noetl.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["worker", *sys.argv[1:]]))
