"""Data sources for databases and web services: called directly, as Spark's processes call them, or through Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from noetl.adapters.spark.sources.access import Access, GrantedSource, granted
from noetl.adapters.spark.sources.http.source import HttpSource
from noetl.adapters.spark.sources.postgres.source import PostgresSource
from tests.support.spark import shared_session

CANARY = "canary-7f3a-secret"
FILTERS = "spark.sql.python.filterPushdown.enabled"


def postgres_access(dsn: str, *, pushes_filters: bool = False) -> Access:
    """A login under the name `db` whose password is a canary: the server of the tests trusts its socket."""
    given = Access(is_one_machine=True, pushes_filters=pushes_filters)
    return given.with_secrets("postgres", {"db": {"dsn": dsn, "password": CANARY}})


def source(kind: type[GrantedSource], access: Access, options: Mapping[str, object]) -> Any:
    """A source with options, as Spark makes it."""
    return granted(kind, access)({name: str(value) for name, value in options.items()})


def parts_of(made: Any, struct: StructType | None = None) -> list[list[dict[str, Any]]]:
    """The rows of each partition, read in this process."""
    reader = made.reader(made.schema() if struct is None else struct)
    return [_rows(reader, part) for part in reader.partitions()]


def _rows(reader: Any, part: InputPartition) -> list[dict[str, Any]]:
    return [row for batch in reader.read(part) for row in batch.to_pylist()]


def registered(access: Access) -> SparkSession:
    """A session of its own with the sources in it, made the active one: Spark looks for them there."""
    session = shared_session().newSession()
    session.conf.set(FILTERS, str(access.pushes_filters).lower())
    # First: a name that the active session knows is taken for one of this session too.
    activate(session)
    for kind in (PostgresSource, HttpSource):
        session.dataSource.register(granted(kind, access))
    return session


def activate(session: SparkSession) -> None:
    jvm: Any = session._jvm
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)


def read(session: SparkSession, format_: str, **options: object) -> Any:
    texts = {name: str(value) for name, value in options.items()}
    return session.read.format(format_).options(**texts).load()


def postgres(session: SparkSession, **options: object) -> Any:
    return read(session, "noetl_postgres", auth="db", **options)


def save(frame: Any, *, mode: str = "append", **options: object) -> None:
    texts = {name: str(value) for name, value in options.items()}
    frame.write.format("noetl_postgres").options(auth="db", **texts).mode(mode).save()
