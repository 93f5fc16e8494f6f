"""The tools of a process, and what they may use."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

from noetl.adapters.objects.scripts import read_script
from noetl.adapters.postgres.embedded import ServerAddress
from noetl.ports.data.compute import SparkCompute
from noetl.ports.tool import Tool, ToolSettings
from noetl.settings import Settings
from noetl.wiring.job_sources import job_sources


def tools_of(
    settings: Settings,
    *,
    server: ServerAddress | None = None,
    is_laptop: bool = True,
    spark: SparkCompute | None = None,
    has_home: bool = True,
) -> dict[str, Tool]:
    """Every installed tool, found through its entry point.  On a laptop the user's own services are on loopback.
    `server` is the private Postgres, where the postgres tool may only be one of the users' roles.  `spark` is the
    caller's to close, after the tools; its jobs reach payloads only where those of the home are the control plane's
    (`has_home`)."""
    allowed = settings.http_allow
    if allowed is None:
        allowed = ("loopback",) if is_laptop else ()
    made = ToolSettings(
        python_children=settings.python_children,
        python_memory_bytes=settings.python_memory_bytes,
        http_allow=allowed,
        postgres_private_hosts=(str(server.socket_dir),) if server is not None else (),
        artifact_roots=tuple(str(root) for root in settings.artifact_roots),
        duckdb_folder=str(settings.home / "duckdb"),
        duckdb_memory_bytes=settings.duckdb_memory_bytes,
        duckdb_threads=settings.duckdb_threads,
        spark=spark,
        spark_folder=settings.home / "spark" / "jobs" if spark is not None else None,
        spark_sources=job_sources(settings, has_home=has_home, has_database=server is not None),
    )
    return {entry.name: entry.load()(made) for entry in entry_points(group="noetl.tools")}


def tool_kinds() -> frozenset[str]:
    return frozenset(entry.name for entry in entry_points(group="noetl.tools"))


def local_script(uri: str, roots: tuple[Path, ...]) -> bytes:
    """A script of this machine, for a client that sends it along.  Raises ScriptUnavailable."""
    return read_script(uri, roots)
