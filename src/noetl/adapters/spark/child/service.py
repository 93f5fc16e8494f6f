"""What a driver does once its JVM answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from noetl.adapters.spark.child.jobs import Desk
from noetl.adapters.spark.child.link import Link
from noetl.adapters.spark.child.output import Voices
from noetl.adapters.spark.child.progress import Books
from noetl.adapters.spark.child.roster import Roster
from noetl.adapters.spark.driver.process import signal_name
from noetl.adapters.spark.driver.wire import Message
from noetl.adapters.spark.job.perform import perform
from noetl.adapters.spark.runtime.archive import build_later
from noetl.adapters.spark.runtime.launch import jars, spark_folder
from noetl.adapters.spark.runtime.options import SparkOptions
from noetl.adapters.spark.session import OpenSession
from noetl.adapters.spark.session import connect as connected

__all__ = ["Service", "connected", "signal_name"]

STOP_SECONDS_MAX = 4.0


class Service:
    def __init__(
        self, session: OpenSession, *, conf: Mapping[str, str], link: Link, voices: Voices, flush: Callable[[], None]
    ) -> None:
        """`conf` is what the driver was started with."""
        self._session = session
        self.is_stopping = False
        parts = Desk(
            session=session,
            conf=conf,
            link=link,
            voices=voices,
            flush=flush,
            books=Books(session.spark),
            perform=perform,
        )
        self._roster = Roster(parts)

    def hear(self, message: Message) -> None:
        self._roster.hear(message)

    def stop(self) -> None:
        """Politely, so that Spark closes its event log and removes its files; but nobody waits for user code."""
        self.is_stopping = True
        if self._roster.is_idle:
            self._session.close(STOP_SECONDS_MAX)

    def build_archive_later(self, options: SparkOptions) -> None:
        """Behind the first job: on a small machine it would take the time of that."""
        java = self._session.jvm.java
        self._roster.when_idle(lambda: build_later(options, java, jars(spark_folder())))
