"""The environment of Spark's JVM, which its Python workers inherit."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from noetl.adapters.spark.runtime.options import LOCAL_HOST, SparkOptions
from noetl.adapters.spark.runtime.scratch import Scratch

# Our own settings hold secrets.  Those of another Spark would mix two installations.  And a Python that may not keep
# what it compiled compiles pandas anew in every worker.
_DROPPED = ("NOETL_", "PYSPARK_", "SPARK_HOME", "SPARK_CONNECT_MODE", "PYTHONDONTWRITEBYTECODE", "JAVA_HOME")


def jvm_environment(
    options: SparkOptions, *, java_home: Path, spark_home: Path, scratch: Scratch, answer: Path
) -> dict[str, str]:
    """`answer` is the file in which the JVM says how it can be reached."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_DROPPED)}
    ours = {
        "JAVA_HOME": str(java_home),
        "PYSPARK_PYTHON": sys.executable,
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(answer),
        "SPARK_CONNECT_MODE": "0",
    }
    if options.is_local:
        # The UI listens where this says.  And without SPARK_HOME workers import the pyspark that is installed: it is
        # compiled and its folders are cached, while the archive in Spark's home is read again for every task.
        ours |= {"SPARK_LOCAL_IP": LOCAL_HOST, "SPARK_LOCAL_DIRS": str(scratch.folder)}
    else:
        ours["SPARK_HOME"] = str(spark_home)
    return {**kept, **ours}


def conf_folders(environment: Mapping[str, str]) -> list[str]:
    """Folders with settings of Spark and Hadoop that an administrator named."""
    names = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR")
    return [environment[name] for name in names if environment.get(name)]
