"""One configured Spark session in this process: for drivers, notebooks, benchmarks and tests."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from py4j.clientserver import ClientServer, JavaParameters, PythonParameters
from py4j.java_gateway import java_import
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.sql import DataFrame, SparkSession

from noetl.adapters.spark.runtime.launch import Gateway, Jvm, start_jvm
from noetl.adapters.spark.runtime.options import SparkOptions
from noetl.adapters.spark.types.conf import TYPE_CONF
from noetl.core.errors import SparkUnavailable

__all__ = ["DataFrame", "OpenSession", "SparkSession", "connect", "open_session"]

END_SECONDS_MAX = 10.0
# What pyspark knows by short names in the JVM.
_IMPORTED = [
    "org.apache.spark.SparkConf",
    "org.apache.spark.api.java.*",
    "org.apache.spark.api.python.*",
    "org.apache.spark.ml.python.*",
    "org.apache.spark.mllib.api.python.*",
    "org.apache.spark.resource.*",
    "org.apache.spark.sql.Encoders",
    "org.apache.spark.sql.OnSuccessCall",
    "org.apache.spark.sql.functions",
    "org.apache.spark.sql.classic.*",
    "org.apache.spark.sql.api.python.*",
    "org.apache.spark.sql.hive.*",
    "scala.Tuple2",
]


@dataclass(slots=True, kw_only=True)
class OpenSession:
    """A session and the JVM that we started for it."""

    spark: SparkSession
    jvm: Jvm
    _gateway: ClientServer = field(repr=False)

    @property
    def application_id(self) -> str:
        return str(self.spark.sparkContext.applicationId)

    @property
    def ui(self) -> str | None:
        return self.spark.sparkContext.uiWebUrl

    @property
    def event_log(self) -> str | None:
        """The file or folder in which Spark writes what happens."""
        found = self.spark.sparkContext._jsc.sc().eventLogger()
        return str(found.get().logWriter().logPath()) if found.isDefined() else None

    def close(self, seconds: float = END_SECONDS_MAX) -> None:
        """Stop the session and end the JVM, whatever state they are in."""
        # A JVM that is gone cannot be asked to stop.
        with contextlib.suppress(Py4JError, OSError):
            self.spark.stop()
        _forget(self._gateway)
        self.jvm.end(seconds)


def open_session(options: SparkOptions, conf: Mapping[str, str] | None = None, *, name: str = "noetl") -> OpenSession:
    """A new JVM with a session.  `conf` goes over our defaults.  Raises SparkUnavailable."""
    return connect(start_jvm(options, conf, name=name))


def connect(jvm: Jvm) -> OpenSession:
    """The session of a JVM that was started.  Raises SparkUnavailable, and then the JVM has ended."""
    with contextlib.ExitStack() as unless_done:
        unless_done.callback(jvm.end, 0.0)
        if SparkContext._active_spark_context is not None:
            raise SparkUnavailable("this process has a Spark session already: stop it first, or use it")
        session = _attached(jvm, jvm.gateway())
        unless_done.pop_all()
    return session


def _attached(jvm: Jvm, where: Gateway) -> OpenSession:
    gateway = ClientServer(
        java_parameters=JavaParameters(port=where.port, auth_token=where.secret, auto_convert=True),
        python_parameters=PythonParameters(port=0, eager_load=False),
    )
    known: Any = gateway
    known.proc = jvm.process
    for name in _IMPORTED:
        java_import(gateway.jvm, name)
    try:
        conf = SparkConf(_jvm=gateway.jvm)
        for key, value in TYPE_CONF.items():
            conf.setIfMissing(key, value)
        context = SparkContext(conf=conf, gateway=gateway)
        # Workers are the Python that we are; pyspark would take what a variable of the environment says.
        context.pythonExec = sys.executable
        return OpenSession(spark=SparkSession(context), jvm=jvm, _gateway=gateway)
    except Py4JError as error:
        reason = _reason(error)  # asks the JVM
        _forget(gateway)
        # Without the cause: to show that, the JVM would be asked again.
        raise SparkUnavailable(f"Spark did not start: {reason}") from None


def _reason(error: Py4JError) -> str:
    exception = getattr(error, "java_exception", None)
    text = str(exception.getMessage() or exception) if exception is not None else str(error)
    return text.partition("\n")[0]


def _forget(gateway: ClientServer) -> None:
    """Make room for another JVM in this process: pyspark keeps one for ever."""
    with contextlib.suppress(Py4JError, OSError):
        gateway.shutdown()
    if SparkContext._gateway is gateway:
        SparkContext._gateway = None
        SparkContext._jvm = None
