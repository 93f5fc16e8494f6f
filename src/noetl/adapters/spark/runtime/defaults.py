"""The settings of every session of ours.  A job's `conf` has the last word over each of them.

Those about types are with the types, and `session.py` adds them."""

from __future__ import annotations

import os
import re

from noetl.adapters.spark.runtime.options import LOCAL_HOST, SparkOptions
from noetl.adapters.spark.runtime.scratch import Scratch

DAEMON_MODULE = "noetl.adapters.spark.runtime.daemon"
_PARTITIONS_PER_CORE = 2
_LOCAL_THREADS = re.compile(r"local\[(\d+|\*)(?:,\s*\d+)?\]")


def session_conf(options: SparkOptions, scratch: Scratch, *, name: str) -> dict[str, str]:
    conf = {
        "spark.app.name": name,
        "spark.master": options.master,
        "spark.driver.memory": f"{options.memory_bytes // 1024**2}m",
        # Jobs of several executions run at the same time in one driver: none waits for all tasks of another.
        "spark.scheduler.mode": "FAIR",
        "spark.sql.adaptive.enabled": "true",
        # Tables of one session only; a metastore would leave files in whatever folder the process was started.
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(options.warehouse),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.python.filterPushdown.enabled": "true",
        # Damage in a page is an error and not a wrong value; they are always written.
        "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": options.events.as_uri(),
        "spark.eventLog.compress": "true",
        "spark.eventLog.rolling.enabled": "true",
        "spark.ui.enabled": str(options.has_ui).lower(),
        "spark.ui.showConsoleProgress": "false",
        # A page of another site could ask for it; jobs are cancelled by cancelling their execution.
        "spark.ui.killEnabled": "false",
    }
    if options.is_local:
        conf |= _local_conf(options, scratch)
    return conf


def _local_conf(options: SparkOptions, scratch: Scratch) -> dict[str, str]:
    return {
        "spark.driver.host": LOCAL_HOST,
        "spark.driver.bindAddress": LOCAL_HOST,
        "spark.sql.shuffle.partitions": str(_PARTITIONS_PER_CORE * cores_of(options.master)),
        "spark.python.daemon.module": DAEMON_MODULE,
        "spark.python.unix.domain.socket.enabled": "true",
        # Who can open the folder can speak to a worker: there is no other check on these sockets.
        "spark.python.unix.domain.socket.dir": str(scratch.private),
    }


def cores_of(master: str) -> int:
    """How many tasks run at a time on a local master."""
    match = _LOCAL_THREADS.fullmatch(master)
    if match is None:
        return 1
    return len(os.sched_getaffinity(0)) if match.group(1) == "*" else int(match.group(1))
