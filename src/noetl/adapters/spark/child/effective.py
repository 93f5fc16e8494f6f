"""The configuration of a job as it is recorded: what differs from Spark's own defaults, without secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping

from noetl.core import limits

HIDDEN = "[hidden]"
_SECRET_NAME = re.compile(r"secret|passw|token|key|credential", re.IGNORECASE)
_URL_LOGIN = re.compile(r"(?<=://)[^/\s@]+@")
_INNER_SECRET = re.compile(r"([\w.-]*(?:secret|passw|token|key|credential)[\w.-]*\s*[=:]\s*)[^\s,;&]+", re.IGNORECASE)
# They differ from start to start, or are what the launcher always adds: no choice of anybody.
_NOISE = (
    "spark.app.id",
    "spark.app.startTime",
    "spark.app.submitTime",
    "spark.driver.bindAddress",
    "spark.driver.extraJavaOptions",
    "spark.driver.host",
    "spark.driver.port",
    "spark.executor.extraJavaOptions",
    "spark.executor.id",
    "spark.local.dir",
    "spark.python.unix.domain.socket.",
    "spark.repl.",
    "spark.serializer.objectStreamReset",
    "spark.sql.artifact.isolation.enabled",
    "spark.submit.",
)


def effective(conf: Mapping[str, str], asked: Mapping[str, str]) -> dict[str, str]:
    """Bounded; what the job asked for comes first when there is too much."""
    names = sorted(
        (name for name in conf if name in asked or not name.startswith(_NOISE)),
        key=lambda name: (name not in asked, name),
    )
    chosen = names[: limits.SPARK_CONF_TOLD_MAX]
    return {name: told(name, conf[name]) for name in sorted(chosen)}


def told(name: str, value: str) -> str:
    if _SECRET_NAME.search(name):
        return HIDDEN
    shown = _INNER_SECRET.sub(rf"\1{HIDDEN}", _URL_LOGIN.sub(f"{HIDDEN}@", value))
    most = limits.SPARK_CONF_VALUE_CHARS_MAX
    return shown if len(shown) <= most else shown[: most - 1] + "…"
