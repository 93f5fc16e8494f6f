"""Keeping rows of a notebook: one call, which gives back how to find them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from noetl.adapters.spark.sources.payloads.pointer import read_pointer


def save(frame: DataFrame, *, partition_by: str | Sequence[str] = ()) -> str:
    """Write rows as a new dataset; its locator.  The sources must be registered in the frame's session.

    The commit is made by another process beside the JVM: it leaves the locator in a file, which is read here."""
    names = [partition_by] if isinstance(partition_by, str) else list(partition_by)
    jvm: Any = frame.sparkSession._jvm
    jvm.SparkSession.setActiveSession(frame.sparkSession._jsparkSession)
    with tempfile.TemporaryDirectory(prefix="noetl-save-") as folder:
        output = Path(folder) / "saved.noetl"
        writer = frame.write.format("noetl").mode("overwrite")
        if names:
            writer = writer.option("partition_by", json.dumps(names))
        writer.save(str(output))
        reference = read_pointer(output)
    assert reference is not None, "a write that succeeded has named its dataset"
    return reference.uri
