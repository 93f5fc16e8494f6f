"""A real Spark session for tests.

`shared_session()` is one for each test process and the right choice for most tests: take `.newSession()` of it when you
set something.  A JVM costs seconds, so only tests that break or configure one start their own."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from noetl.adapters.spark.runtime import archive
from noetl.adapters.spark.runtime.launch import jars, spark_folder
from noetl.adapters.spark.runtime.options import SparkOptions
from noetl.adapters.spark.session import OpenSession, SparkSession, open_session

ROOT = Path(__file__).parents[2]
CLASSES = ROOT / ".venv" / "spark-classes"
"""The class archive of all test runs of this checkout: it must not be in anybody's home."""

QUICK_CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.eventLog.enabled": "false",
    # These JVMs end before code that is optimized to the last has paid for the time of its compiler.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    # Functions of test modules travel to workers by their names.
    "spark.executorEnv.PYTHONPATH": str(ROOT),
}


def quick_options(folder: Path) -> SparkOptions:
    return SparkOptions(folder=folder, classes=CLASSES, master="local[2]", driver_memory_bytes=1024**3, has_ui=False)


@functools.cache
def shared_open_session() -> OpenSession:
    """The session of this test process: started when first asked for, ended when Python ends."""
    folder = Path(tempfile.mkdtemp(prefix="noetl-test-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    options = quick_options(folder)
    opened = open_session(options, QUICK_CONF, name="tests")
    atexit.register(opened.close)
    # For the next test process and the next run; at the lowest priority.
    archive.build_later(replace(options, folder=CLASSES), opened.jvm.java, jars(spark_folder()))
    return opened


def shared_session() -> SparkSession:
    return shared_open_session().spark
