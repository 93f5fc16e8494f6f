"""What a worker says about its drivers."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from noetl.adapters.spark.runtime.options import SparkOptions

CHILD_MODULE = "noetl.adapters.spark.child.main"
_INHERITED = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "SPARK_CONF_DIR",
)
_PREFIXES = ("LC_", "HADOOP_", "YARN_", "KRB5")
# Words in names of variables that hold secrets, such as HADOOP_CREDSTORE_PASSWORD.
_SECRET_WORDS = ("PASS", "PWD", "SECRET", "TOKEN", "CREDENTIAL", "PRIVATE", "APIKEY", "API_KEY", "ACCESS_KEY")


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSettings:
    runtime: SparkOptions
    folder: Path
    """Where drivers keep their own files; each has a folder below it that goes with the driver."""
    jobs_max: int = 4
    """Jobs at a time, over all drivers."""
    idle_seconds: float = 900.0
    """A driver without a job ends after this time."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Settings of every driver, below those of jobs."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What a driver gets beside what it inherits."""
    is_builder: bool = True
    """Whether drivers have the class archive built when there is none."""
    module: str = CHILD_MODULE


def command(settings: DriverSettings, descriptor: int) -> list[str]:
    return [sys.executable, "-P", "-X", "utf8", "-m", settings.module, str(descriptor)]


def environment(settings: DriverSettings) -> dict[str, str]:
    """What Spark, Hadoop and Python look for, and nothing else: user code sees it, and ours holds secrets."""
    inherited = {name: value for name, value in os.environ.items() if _is_inherited(name)}
    found = {**inherited, **settings.environment}
    package_root = str(Path(__file__).parents[4])
    if package_root != sysconfig.get_path("purelib"):
        known = found.get("PYTHONPATH")
        found["PYTHONPATH"] = os.pathsep.join((package_root, known) if known else (package_root,))
    return found


def _is_inherited(name: str) -> bool:
    if name in _INHERITED:
        return True
    return name.startswith(_PREFIXES) and not any(word in name.upper() for word in _SECRET_WORDS)
