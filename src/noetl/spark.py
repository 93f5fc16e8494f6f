"""Spark for notebooks and programs: a session as playbooks have it, and NoETL's data sources in any session.

    import noetl.spark
    spark = noetl.spark.session()
    frame = noetl.spark.result(380649622449684480, "join")
    locator = noetl.spark.save(frame.where("amount > 0"))

It is set by the same variables as everything else (`NOETL_HOME`, `NOETL_SPARK_…`); `import noetl` does not load it."""

from __future__ import annotations

import atexit
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from noetl.adapters.spark.session import DataFrame, OpenSession, SparkSession, open_session
from noetl.adapters.spark.sources.access import Access, Carried
from noetl.adapters.spark.sources.payloads.saving import save
from noetl.adapters.spark.sources.postgres.snapshot import held_snapshot
from noetl.adapters.spark.sources.registering import register_sources
from noetl.core.locator import result_locator
from noetl.settings import Settings, read_settings
from noetl.wiring.source_credentials import opened_credentials, registered_credentials
from noetl.wiring.sources import source_access
from noetl.wiring.spark import spark_options

__all__ = ["postgres_snapshot", "register", "result", "save", "session"]

_opened: list[OpenSession] = []
"""At most one: pyspark has one JVM in a process."""


def session(*, name: str = "notebook", credentials: Collection[str] = (), **conf: object) -> SparkSession:
    """The session of this process, with NoETL's defaults and sources; started when there is none.

    `conf` are settings of Spark, as in `session(**{"spark.sql.shuffle.partitions": 8})`.  They go over the defaults; in
    a session that runs already, only those can be set that a running one takes.  `credentials` are names of registered
    ones that are opened now; others are looked up when a source names one.  Raises SparkUnavailable, ToolFailed."""
    settings = read_settings()
    given = {key: _text(value) for key, value in conf.items()}
    active = SparkSession.getActiveSession()
    if active is not None:
        for key, value in given.items():
            active.conf.set(key, value)
        return active
    _close()
    opened = open_session(spark_options(settings), given, name=name)
    _opened.append(opened)
    _register(opened.spark, settings, credentials)
    return opened.spark


def register(spark: SparkSession, *, credentials: Collection[str] = ()) -> None:
    """Make `noetl` and the other sources known to a session that somebody else made.  `credentials` as for `session`.
    Raises ToolFailed."""
    _register(spark, read_settings(), credentials)


def result(execution_id: int | str, step: str, *, part: str = "rows") -> DataFrame:
    """The rows that a step of an execution gave, or a part of its result, such as `daily.rows`."""
    settings = read_settings()
    locator = result_locator(settings.tenant_id, settings.organization_id, int(execution_id), step)
    return session().read.format("noetl").option("part", part).load(locator)


@contextmanager
def postgres_snapshot(auth: str) -> Iterator[str]:
    """One moment of a Postgres for as many reads as are made in the block: give its name as the option `snapshot`.
    The server keeps old rows until the block ends.  Raises ToolFailed."""
    with held_snapshot(_access(read_settings(), (auth,)), {"auth": auth}) as name:
        yield name


def _register(spark: SparkSession, settings: Settings, names: Collection[str]) -> None:
    register_sources(spark, _access(settings, names))


def _access(settings: Settings, names: Collection[str]) -> Access:
    allowed = ("loopback",) if settings.http_allow is None else settings.http_allow
    registered = registered_credentials(settings)
    server = registered.embedded()
    return Access(
        own=source_access(settings),
        credentials={one.name: Carried.of(one) for one in opened_credentials(settings, names)},
        resolve=registered,
        http_allow=allowed,
        private_hosts=() if server is None else (str(server.socket_dir),),
    )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _close() -> None:
    while _opened:
        _opened.pop().close()


atexit.register(_close)
