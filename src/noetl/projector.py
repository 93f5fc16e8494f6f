"""`python -m noetl.projector`."""

import sys

from noetl.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["projector", *sys.argv[1:]]))
