"""The process from which Spark forks its Python workers, in place of Spark's own.

It has loaded what workers need before it forks, so each begins with that; and it moves all of it out of the reach of
the garbage collector, which Spark calls after every task: with pandas and pyarrow on the heap that was most of the time
of a small task.  Nothing here may start a thread that a fork would lose: the only one is of pyarrow's allocator, which
renews it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from io import BufferedReader
from typing import IO

import pandas
import pyarrow
import pyarrow.compute
import pyspark.sql.conversion
import pyspark.sql.pandas.serializers
import pyspark.sql.pandas.types
import pyspark.worker
from pyspark import daemon

Run = Callable[[BufferedReader, IO[bytes]], None]
LOADED = (pandas, pyarrow.compute, pyspark.worker, pyspark.sql.conversion)
"""Named so that nobody takes the imports for useless."""


def without_archives(path: list[str]) -> list[str]:
    """The search path without Spark's jar: every task makes Python read its table of contents again, and there is no
    module of Python in it."""
    return [entry for entry in path if not entry.endswith(".jar")]


def unless_dismissed(run: Run) -> Run:
    """Spark hangs up on workers that had nothing to do for a minute, and on all when it stops.  One that waits for its
    next task then just goes; Spark's own would answer with an exception, and print that nobody takes it."""

    def begin(infile: BufferedReader, outfile: IO[bytes]) -> None:
        try:
            is_dismissed = not infile.peek(1)
        except ConnectionError:
            is_dismissed = True
        if is_dismissed:
            sys.exit(1)  # anything but 0, which would ask for the next task
        run(infile, outfile)

    return begin


def main() -> None:
    sys.path[:] = without_archives(sys.path)
    for entry in [entry for entry in sys.path_importer_cache if entry.endswith(".jar")]:
        del sys.path_importer_cache[entry]
    pyspark.worker.main = unless_dismissed(pyspark.worker.main)
    gc.collect()
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
