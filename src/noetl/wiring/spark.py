"""Spark as the settings describe it."""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from noetl.adapters.spark.driver.compute import DriverCompute
from noetl.adapters.spark.driver.settings import DriverSettings
from noetl.adapters.spark.runtime import archive
from noetl.adapters.spark.runtime.java import FoundJava, find_java
from noetl.adapters.spark.runtime.launch import jars, spark_folder, spark_version
from noetl.adapters.spark.runtime.options import SparkOptions
from noetl.core.errors import SparkUnavailable
from noetl.settings import Settings

PREPARE_SECONDS_MAX = 900.0


def spark_options(settings: Settings) -> SparkOptions:
    folder = settings.home / "spark"
    return SparkOptions(
        folder=folder,
        classes=settings.spark_classes or folder / "classes",
        master=settings.spark_master,
        driver_memory_bytes=settings.spark_driver_memory_bytes,
        has_ui=settings.spark_ui,
        java_home=settings.java_home,
    )


def spark_compute(settings: Settings) -> DriverCompute:
    """Where this process runs Spark jobs.  Nothing starts before the first one."""
    made = DriverSettings(
        runtime=spark_options(settings),
        folder=settings.home / "spark" / "drivers",
        jobs_max=settings.spark_jobs,
        idle_seconds=settings.spark_idle_seconds,
    )
    return DriverCompute(made)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkPlace:
    """What a driver would find here.  Nothing was started to know it."""

    options: SparkOptions
    spark_version: str
    java: FoundJava
    archive_file: Path
    archive_state: archive.State
    archive_failure: str | None


def look_at_spark(settings: Settings) -> SparkPlace:
    """Raises SparkUnavailable."""
    options = spark_options(settings)
    found, known = find_java(options), jars(spark_folder())
    file = archive.archive_file(options, found.java, known)
    return SparkPlace(
        options=options,
        spark_version=spark_version(),
        java=found,
        archive_file=file,
        archive_state=archive.state(options, found.java, known),
        archive_failure=archive.failure(file),
    )


def prepare_spark(settings: Settings) -> SparkPlace:
    """Build the class archive now, and wait for it.  Raises SparkUnavailable."""
    place = look_at_spark(settings)
    if place.archive_state != "ready":
        command = archive.builder_command(place.options, later=False)
        # The builder leaves the reason of a failure in this folder, so here is where a wrong folder is told.
        _check_folder(place.options.classes)
        try:
            subprocess.run(command, check=False, timeout=PREPARE_SECONDS_MAX, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired as error:
            raise SparkUnavailable(f"the class archive was not built in {PREPARE_SECONDS_MAX:g} s") from error
    return look_at_spark(settings)


def _check_folder(classes: Path) -> None:
    try:
        classes.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=classes):
            pass
    except OSError as error:
        where = f"the class archive cannot be kept in {classes}: {error.strerror}"
        raise SparkUnavailable(f"{where}. NOETL_SPARK_CLASSES_DIR names another folder") from error
