"""What the environment may say about Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from noetl.adapters.spark.runtime.options import SparkOptions
from noetl.core.errors import SettingsInvalid
from noetl.settings import read_settings
from noetl.wiring.spark import spark_options

HOME = {"NOETL_HOME": "/somewhere"}


def test_without_a_word_spark_is_local_and_below_the_home() -> None:
    settings = read_settings(HOME)
    options = spark_options(settings)
    assert (options.master, options.is_local, options.has_ui, options.java_home) == ("local[*]", True, True, None)
    assert (options.folder, options.classes) == (Path("/somewhere/spark"), Path("/somewhere/spark/classes"))
    assert 1024**3 <= options.memory_bytes <= 8 * 1024**3
    assert (settings.spark_jobs, settings.spark_idle_seconds) == (4, 900.0)


def test_every_variable_counts() -> None:
    words = {
        **HOME,
        "NOETL_SPARK_MASTER": "spark://host:7077",
        "NOETL_SPARK_DRIVER_MEMORY_MB": "2048",
        "NOETL_SPARK_JOBS_MAX": "7",
        "NOETL_SPARK_IDLE_SECONDS": "5",
        "NOETL_SPARK_CLASSES_DIR": "/shared/classes",
        "NOETL_SPARK_UI": "0",
        "JAVA_HOME": "/opt/java",
    }
    settings = read_settings(words)
    options = spark_options(settings)
    assert (options.master, options.is_local, options.has_ui) == ("spark://host:7077", False, False)
    assert (options.memory_bytes, options.classes) == (2 * 1024**3, Path("/shared/classes"))
    assert options.java_home == Path("/opt/java")
    assert (settings.spark_jobs, settings.spark_idle_seconds) == (7, 5.0)
    assert SparkOptions.from_plain(options.to_plain()) == options


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NOETL_SPARK_MASTER", "localhost"),
        ("NOETL_SPARK_MASTER", "local[0]"),
        ("NOETL_SPARK_MASTER", "local[]"),
        ("NOETL_SPARK_MASTER", "local[*] --conf x"),
        ("NOETL_SPARK_DRIVER_MEMORY_MB", "100"),
        ("NOETL_SPARK_DRIVER_MEMORY_MB", "2g"),
        ("NOETL_SPARK_JOBS_MAX", "0"),
        ("NOETL_SPARK_IDLE_SECONDS", "0"),
        ("NOETL_SPARK_UI", "yes"),
    ],
)
def test_a_wrong_value_stops_the_start_and_names_the_variable(name: str, value: str) -> None:
    with pytest.raises(SettingsInvalid, match=name):
        read_settings({**HOME, name: value})


@pytest.mark.parametrize("master", ["local", "local[1]", "local[*]", "local[4,2]", "yarn", "k8s://https://host:6443"])
def test_masters_of_every_kind_are_taken(master: str) -> None:
    assert read_settings({**HOME, "NOETL_SPARK_MASTER": master}).spark_master == master
