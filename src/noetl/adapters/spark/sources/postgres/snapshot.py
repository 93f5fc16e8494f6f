"""One moment for several reads.

Nothing of a data source lives as long as its query: the process that plans is gone when tasks begin.  So whoever wants
all partitions, or several tables, at one moment holds the snapshot open from outside, and gives its name by the option
`snapshot`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from noetl.adapters.spark.sources.access import Access
from noetl.adapters.spark.sources.postgres.connecting import server_of
from noetl.adapters.spark.sources.postgres.statements import statement


@contextmanager
def held_snapshot(access: Access, options: Mapping[str, str]) -> Iterator[str]:
    """The name of a snapshot that is there as long as the block.  `options` are `auth` or `dsn_env` of the source."""
    server = server_of(access, options)
    with asyncio.Runner() as runner:
        reading = server.reading()
        connection = runner.run(reading.__aenter__())
        try:
            yield str(runner.run(connection.fetchval(statement("reading.sql", "export_snapshot"))))
        finally:
            runner.run(reading.__aexit__(None, None, None))
