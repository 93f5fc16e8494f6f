"""Settings: read once from the environment, validated, never changed.  A wrong value means no start."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from noetl.core.errors import SettingsInvalid
from noetl.core.limits import PYTHON_CHILDREN_MAX, PYTHON_MEMORY_BYTES_MAX
from noetl.core.shards import SHARD_COUNT_DEFAULT, SHARD_COUNT_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every setting with its variable; `postgres_dsn` may hold a secret, so there is no generated repr."""

    home: Path
    tenant_id: str
    organization_id: str
    postgres_dsn: str | None
    postgres_os_user: str | None
    shard_count: int
    worker_slots: int
    python_children: int
    python_memory_bytes: int
    reader_connections: int
    log_level: str

    def __repr__(self) -> str:
        return f"Settings(home={self.home})"


LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    source = os.environ if environment is None else environment
    level = source.get("NOETL_LOG_LEVEL", "WARNING").upper()
    if level not in LOG_LEVELS:
        raise SettingsInvalid(f"NOETL_LOG_LEVEL must be one of {', '.join(LOG_LEVELS)}, not {level!r}")
    dsn = source.get("NOETL_POSTGRES_DSN") or None
    if dsn is not None and not dsn.startswith(("postgres://", "postgresql://")):
        raise SettingsInvalid("NOETL_POSTGRES_DSN must be a postgresql:// URL")
    home = source.get("NOETL_HOME") or "~/.noetl"
    return Settings(
        home=Path(home).expanduser().absolute(),
        tenant_id=_name(source, "NOETL_TENANT_ID"),
        organization_id=_name(source, "NOETL_ORGANIZATION_ID"),
        postgres_dsn=dsn,
        postgres_os_user=source.get("NOETL_POSTGRES_OS_USER") or None,
        shard_count=_number(source, "NOETL_SHARD_COUNT", SHARD_COUNT_DEFAULT, 1, SHARD_COUNT_MAX),
        worker_slots=_number(source, "NOETL_WORKER_SLOTS", 16, 1, 1024),
        python_children=_number(source, "NOETL_PYTHON_CHILDREN_MAX", PYTHON_CHILDREN_MAX, 1, 256),
        python_memory_bytes=1024**2
        * _number(source, "NOETL_PYTHON_MEMORY_MB", PYTHON_MEMORY_BYTES_MAX // 1024**2, 64, 1024**2),
        reader_connections=_number(source, "NOETL_POSTGRES_POOL_MAX_SIZE", 8, 1, 1000),
        log_level=level,
    )


def _name(source: Mapping[str, str], variable: str) -> str:
    value = source.get(variable, "default")
    if not value or len(value) > 100 or any(not character.isprintable() for character in value):
        raise SettingsInvalid(f"{variable} must be 1 to 100 printable characters")
    return value


def _number(source: Mapping[str, str], variable: str, default: int, low: int, high: int) -> int:
    text = source.get(variable)
    if text is None or text == "":
        return default
    try:
        value = int(text)
    except ValueError as error:
        raise SettingsInvalid(f"{variable} must be a whole number, not {text!r}") from error
    if not low <= value <= high:
        raise SettingsInvalid(f"{variable} must be between {low} and {high}, not {value}")
    return value
