"""Making the sources known to a session."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession

from noetl.adapters.spark.sources.access import Access, GrantedSource, granted
from noetl.adapters.spark.sources.events.source import EventsSource
from noetl.adapters.spark.sources.http.source import HttpSource
from noetl.adapters.spark.sources.payloads.source import NoetlSource
from noetl.adapters.spark.sources.postgres.source import PostgresSource

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
SOURCES: tuple[type[GrantedSource], ...] = (NoetlSource, EventsSource, PostgresSource, HttpSource)


def register_sources(spark: SparkSession, access: Access, sources: tuple[type[GrantedSource], ...] = SOURCES) -> None:
    """Once per session, with what its sources may use.  A session that hands filters to Python sources must say so
    before: Spark asks a source that takes them, and refuses it when the setting is off.

    The session becomes the active one of this thread: in that one Spark looks for the source of a write, whichever
    session the rows are of, and for a name that is taken already."""
    jvm: Any = spark._jvm
    jvm.SparkSession.setActiveSession(spark._jsparkSession)
    context = spark.sparkContext
    given = replace(
        access,
        pushes_filters=str(spark.conf.get(PUSHDOWN, "false")).lower() == "true",
        is_one_machine=str(context.master).startswith("local"),
        cores=context.defaultParallelism,
    )
    for source in sources:
        spark.dataSource.register(granted(source, given))
