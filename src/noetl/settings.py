"""Settings: read once from the environment, validated, never changed.  A wrong value means no start."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict
from urllib.parse import urlsplit

from noetl.core.codec import canonical_bytes
from noetl.core.errors import EnvelopeInvalid, SettingsInvalid
from noetl.core.limits import (
    DUCKDB_MEMORY_BYTES_MAX,
    DUCKDB_THREADS_MAX,
    ENV_BYTES_MAX,
    ENV_NAMES_MAX,
    EVENT_CONTEXT_BYTES_MIN,
    EVENT_RESULT_BYTES_MAX,
    PAYLOAD_INLINE_BYTES_MAX,
    PLACE_NAME_CHARS_MAX,
    PYTHON_CHILDREN_MAX,
    PYTHON_MEMORY_BYTES_MAX,
)
from noetl.core.locator.locality import DISTANCES
from noetl.core.secret import KEY_RULE, Secret, key_from_text
from noetl.core.shards import SHARD_COUNT_DEFAULT, SHARD_COUNT_MAX
from noetl.core.storage import CREDENTIAL_VARIABLES, Storage, storage_from


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlSettings:
    """How processes on one ledger share the work, and how far behind it what is derived may be."""

    shard_lease_seconds: float = 6.0
    """A server that is silent for so long has lost its shards."""
    shard_heartbeat_seconds: float = 2.0
    projection_window_ms: int = 100
    projection_batch_events: int = 500
    projection_poll_ms: int = 100
    checkpoint_interval_ms: int = 1000
    snapshot_interval_events: int = 10_000
    """So many events of an execution after its last snapshot, the next one is taken."""
    background_connections: int = 4
    """Connections for what nobody waits for."""
    locality_preference: str = "any"
    """How far from its data something may run while somebody nearer can: a word of `DISTANCES`."""
    retention_days: int = 30
    """Partitions that are older are reported as what could go."""
    projector_metrics_host: str = "127.0.0.1"
    projector_metrics_port: int | None = None


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
    log_format: str = "auto"
    credential_key: Secret[bytes] | None = field(default=None, compare=False)
    credential_key_file: Path | None = None
    payload_key: Secret[bytes] | None = field(default=None, compare=False)
    """Seals payloads at rest; without one they are stored as they are."""
    payload_key_file: Path | None = None
    storage: Storage = field(default_factory=Storage)
    """Which stores hold payloads that are too large for the database."""

    is_owner_named: bool = False
    """Whether the environment names the tenant or the organization: then a client says so to its server."""
    host: str = "127.0.0.1"
    port: int = 8082
    token: str | None = field(default=None, compare=False)
    worker_token: str | None = field(default=None, compare=False)
    tokens_file: Path | None = None
    server_url: str | None = None
    server_urls: tuple[str, ...] = ()
    """Several servers on one ledger: the first is asked, the others when it is away."""
    session_lease_seconds: float = 3.0
    event_result_context_bytes: int = EVENT_RESULT_BYTES_MAX
    """How large the context in a worker's result may be; more is refused."""
    worker_pool: str = "default"
    worker_grace_seconds: float = 25.0
    worker_metrics_host: str = "127.0.0.1"
    worker_metrics_port: int | None = None
    """Where a worker answers `/health` and `/metrics`; None is nowhere."""
    http_allow: tuple[str, ...] | None = None
    """Addresses beyond the public internet for the http tool; None leaves it to the shape of the process."""
    auth_environment: Mapping[str, Secret[str]] = field(default_factory=dict, compare=False)
    """Variables that playbooks may use as credentials, with their values."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that playbooks may read as `env`, with their values; they are recorded with every execution."""
    script_roots: tuple[Path, ...] = ()
    """Folders below which scripts are looked for, in this order."""
    artifact_roots: tuple[Path, ...] = ()
    """Folders below which the artifact tool may read and write files."""
    duckdb_memory_bytes: int = DUCKDB_MEMORY_BYTES_MAX
    duckdb_threads: int = DUCKDB_THREADS_MAX
    node_id: str = "localhost"
    """This machine, among those whose processes share memory with each other only."""
    payload_inline_bytes: int | None = None
    """Payloads up to this size lie beside the ledger, in the same commit as their event; None is the limit."""
    tier1_memory_bytes: int = 128 * 1024**2
    """Open tables that a process keeps."""
    tier15_budget_bytes: int = 1024**3
    """Shared memory of all processes of this node together; 0 switches it off."""
    tier15_grace_seconds: float = 30.0
    """How long a segment stays behind the end of its lease."""
    shares_frame_rows: bool = True
    """Whether tables that rows of loops give are also put into shared memory; they are durable either way."""
    place: Mapping[str, str] = field(default_factory=dict)
    """Where a worker runs: node, zone, region, cluster."""
    gc_grace_hours: int = 24
    """How long a payload that nothing names stays: longer than anybody takes from storing one to its event."""
    gc_ttl_days: int = 90
    """What nothing names and is older than this goes at once."""
    spark_master: str = "local[*]"
    spark_driver_memory_bytes: int | None = None
    """Memory of a driver's JVM; None is a share of the machine's."""
    spark_jobs: int = 4
    """Spark jobs that a worker runs at a time."""
    spark_idle_seconds: float = 900.0
    """A driver without a job ends after this time."""
    spark_classes: Path | None = None
    """The folder of class archives; None is below the home."""
    spark_ui: bool = True
    java_home: Path | None = None
    control: ControlSettings = field(default_factory=ControlSettings)

    def __repr__(self) -> str:
        return f"Settings(home={self.home})"


LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
LOG_FORMATS = LOG_AUTO, LOG_JSON, LOG_TEXT = ("auto", "json", "text")


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    source = os.environ if environment is None else environment
    level = source.get("NOETL_LOG_LEVEL", "WARNING").upper()
    if level not in LOG_LEVELS:
        raise SettingsInvalid(f"NOETL_LOG_LEVEL must be one of {', '.join(LOG_LEVELS)}, not {level!r}")
    dsn = source.get("NOETL_POSTGRES_DSN") or None
    if dsn is not None and not dsn.startswith(("postgres://", "postgresql://")):
        raise SettingsInvalid("NOETL_POSTGRES_DSN must be a postgresql:// URL")
    home = Path(source.get("NOETL_HOME") or "~/.noetl").expanduser().absolute()
    return Settings(
        home=home,
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
        log_format=_log_format(source),
        credential_key=_key(source, "NOETL_CREDENTIAL_KEY"),
        credential_key_file=_path(source, "NOETL_CREDENTIAL_KEY_FILE"),
        payload_key=_key(source, "NOETL_PAYLOAD_KEY"),
        payload_key_file=_path(source, "NOETL_PAYLOAD_KEY_FILE"),
        storage=storage_from(source),
        is_owner_named=any(source.get(name) for name in ("NOETL_TENANT_ID", "NOETL_ORGANIZATION_ID")),
        host=source.get("NOETL_HOST") or "127.0.0.1",
        port=_number(source, "NOETL_PORT", 8082, 0, 65_535),
        token=_token(source, "NOETL_TOKEN"),
        worker_token=_token(source, "NOETL_WORKER_TOKEN"),
        tokens_file=_path(source, "NOETL_TOKENS_FILE"),
        session_lease_seconds=_seconds(source, "NOETL_SESSION_LEASE_SECONDS", 3.0, 0.3, 3600.0),
        event_result_context_bytes=_number(
            source,
            "NOETL_EVENT_RESULT_CONTEXT_MAX_BYTES",
            EVENT_RESULT_BYTES_MAX,
            EVENT_CONTEXT_BYTES_MIN,
            EVENT_RESULT_BYTES_MAX,
        ),
        worker_pool=_name(source, "NOETL_WORKER_POOL"),
        worker_grace_seconds=_seconds(source, "NOETL_WORKER_GRACE_SECONDS", 25.0, 0.0, 86_400.0),
        worker_metrics_host=source.get("NOETL_WORKER_METRICS_HOST") or "127.0.0.1",
        worker_metrics_port=_number(source, "NOETL_WORKER_METRICS_PORT", 0, 0, 65_535) or None,
        http_allow=_list(source, "NOETL_HTTP_ALLOW"),
        auth_environment=_auth_environment(source),
        env=_env(source),
        script_roots=_roots(source, "NOETL_SCRIPT_ROOTS", home / "scripts"),
        artifact_roots=_roots(source, "NOETL_ARTIFACT_ROOTS"),
        duckdb_memory_bytes=1024**2
        * _number(source, "NOETL_DUCKDB_MEMORY_MB", DUCKDB_MEMORY_BYTES_MAX // 1024**2, 64, 1024**2),
        duckdb_threads=_number(source, "NOETL_DUCKDB_THREADS", DUCKDB_THREADS_MAX, 1, 256),
        node_id=source.get("NOETL_NODE_ID") or socket.gethostname(),
        payload_inline_bytes=_number(source, "NOETL_PAYLOAD_INLINE_BYTES", 0, 0, PAYLOAD_INLINE_BYTES_MAX)
        if source.get("NOETL_PAYLOAD_INLINE_BYTES")
        else None,
        tier1_memory_bytes=1024**2 * _number(source, "NOETL_TIER1_MEMORY_MB", 128, 0, 1024**2),
        tier15_budget_bytes=1024**2 * _number(source, "NOETL_TIER15_BUDGET_MB", 1024, 0, 1024**2),
        tier15_grace_seconds=_seconds(source, "NOETL_TIER15_GRACE_SECONDS", 30.0, 0.0, 3600.0),
        shares_frame_rows=_switch(source, "NOETL_CURSOR_FRAME_IPC_ENABLED", default=True),
        place=_place(source),
        gc_grace_hours=_number(source, "NOETL_GC_GRACE_HOURS", 24, 1, 24 * 365),
        gc_ttl_days=_number(source, "NOETL_GC_TTL_DAYS", 90, 1, 36_500),
        control=_control(source),
        **_servers(source),
        **_spark(source),
    )


def _place(source: Mapping[str, str]) -> dict[str, str]:
    found = {name: source[variable] for name, variable in _PLACE.items() if source.get(variable)}
    for name, value in found.items():
        if len(value) > PLACE_NAME_CHARS_MAX or not value.isprintable():
            raise SettingsInvalid(f"{_PLACE[name]} must be at most {PLACE_NAME_CHARS_MAX} printable characters")
    return found


def _distance(source: Mapping[str, str], variable: str) -> str:
    word = source.get(variable) or "any"
    if word not in DISTANCES:
        raise SettingsInvalid(f"{variable} must be one of {', '.join(DISTANCES)}, not {word!r}")
    return word


def _log_format(source: Mapping[str, str]) -> str:
    found = source.get("NOETL_LOG_FORMAT", LOG_AUTO).lower()
    if found not in LOG_FORMATS:
        raise SettingsInvalid(f"NOETL_LOG_FORMAT must be one of {', '.join(LOG_FORMATS)}, not {found!r}")
    return found


def _control(source: Mapping[str, str]) -> ControlSettings:
    found = ControlSettings(
        shard_lease_seconds=_seconds(source, "NOETL_SHARD_LEASE_SEC", 6.0, 0.3, 3600.0),
        shard_heartbeat_seconds=_seconds(source, "NOETL_SHARD_HEARTBEAT_SEC", 2.0, 0.1, 1200.0),
        projection_window_ms=_number(source, "NOETL_PROJECTION_BATCH_WINDOW_MS", 100, 1, 60_000),
        projection_batch_events=_number(source, "NOETL_PROJECTION_BATCH_SIZE", 500, 1, 100_000),
        projection_poll_ms=_number(source, "NOETL_PROJECTION_POLL_MS", 100, 1, 60_000),
        checkpoint_interval_ms=_number(source, "NOETL_CHECKPOINT_INTERVAL_MS", 1000, 10, 3_600_000),
        snapshot_interval_events=_number(source, "NOETL_SNAPSHOT_INTERVAL_EVENTS", 10_000, 1, 10_000_000),
        background_connections=_number(source, "NOETL_BG_POOL_MAX_SIZE", 4, 1, 64),
        locality_preference=_distance(source, "NOETL_LOCALITY_PREFERENCE"),
        retention_days=_number(source, "NOETL_RETENTION_DAYS", 30, 1, 36_500),
        projector_metrics_host=source.get("NOETL_PROJECTOR_METRICS_HOST") or "127.0.0.1",
        projector_metrics_port=_number(source, "NOETL_PROJECTOR_METRICS_PORT", 0, 0, 65_535) or None,
    )
    if found.shard_lease_seconds < 2 * found.shard_heartbeat_seconds:
        raise SettingsInvalid("NOETL_SHARD_LEASE_SEC must be at least twice NOETL_SHARD_HEARTBEAT_SEC")
    return found


SPARK_MEMORY_MB_MIN = 512
"""Spark refuses a driver with less."""
_SPARK_MASTER = re.compile(
    r"local(\[(\*|[1-9]\d*)(, ?(\*|[1-9]\d*))?\])?|local-cluster\[[\d*,. ]+\]|yarn|(spark|k8s)://[\w.:/\[\],-]+"
)
_PLACE = {"node": "NOETL_NODE_ID", "zone": "NOETL_ZONE", "region": "NOETL_REGION", "cluster": "NOETL_CLUSTER_ID"}
TOKEN_CHARS_MIN = 16


def server_url(text: str | None, name: str) -> str | None:
    """The address of a server: scheme, host and port, and nothing else."""
    if not text:
        return None
    parts = urlsplit(text)
    try:
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc:
        # Not quoted: somebody may have put a password into it.
        raise SettingsInvalid(f"{name} must be http://host:port or https://host:port, without path and user")
    return f"{parts.scheme}://{parts.netloc}"


class _Servers(TypedDict):
    server_url: str | None
    server_urls: tuple[str, ...]


def _servers(source: Mapping[str, str]) -> _Servers:
    urls = server_urls(source.get("NOETL_SERVER_URL"), "NOETL_SERVER_URL")
    return {"server_url": urls[0] if urls else None, "server_urls": urls}


def server_urls(text: str | None, name: str) -> tuple[str, ...]:
    """The addresses of servers on one ledger, with commas between them."""
    found = (server_url(part.strip(), name) for part in (text or "").split(","))
    return tuple(dict.fromkeys(url for url in found if url is not None))


def _token(source: Mapping[str, str], variable: str) -> str | None:
    value = source.get(variable)
    if not value:
        return None
    if len(value) < TOKEN_CHARS_MIN or not value.isascii() or not value.isprintable() or " " in value:
        raise SettingsInvalid(f"{variable} must be at least {TOKEN_CHARS_MIN} ASCII characters without spaces")
    return value


def _path(source: Mapping[str, str], variable: str) -> Path | None:
    text = source.get(variable)
    return Path(text).expanduser().absolute() if text else None


def _auth_environment(source: Mapping[str, str]) -> dict[str, Secret[str]]:
    names = _list(source, "NOETL_AUTH_ENV_ALLOW") or ()
    for name in names:
        if name.startswith("NOETL_"):
            raise SettingsInvalid(f"NOETL_AUTH_ENV_ALLOW names {name}: the settings of NoETL are not for playbooks")
    return {name: Secret(source[name]) for name in names if source.get(name)}


def _roots(source: Mapping[str, str], variable: str, *default: Path) -> tuple[Path, ...]:
    text = source.get(variable)
    if text is None:
        return default
    roots = tuple(Path(part).expanduser() for part in text.split(os.pathsep) if part)
    for root in roots:
        if not root.is_absolute() or root == Path(root.anchor):
            raise SettingsInvalid(f"{variable} must be absolute folders below the root of the file system, not {root}")
    return roots


def _env(source: Mapping[str, str]) -> dict[str, str]:
    """What is recorded is no secret any more: the settings of this program and credentials are refused."""
    names = _list(source, "NOETL_ENV_ALLOW") or ()
    secrets = _list(source, "NOETL_AUTH_ENV_ALLOW") or ()
    for name in names:
        if not name.isidentifier():
            raise SettingsInvalid(f"NOETL_ENV_ALLOW must be names of variables with commas between them, not {name!r}")
        if name.startswith("NOETL_"):
            raise SettingsInvalid(f"NOETL_ENV_ALLOW names {name}: the settings of NoETL are not for playbooks")
        if name in secrets:
            raise SettingsInvalid(f"NOETL_ENV_ALLOW names {name}, which NOETL_AUTH_ENV_ALLOW makes a credential")
    found = {name: source[name] for name in names if name in source}
    try:
        size = len(canonical_bytes(found))
    except EnvelopeInvalid as error:
        raise SettingsInvalid("NOETL_ENV_ALLOW names a variable whose value is no text") from error
    if len(names) > ENV_NAMES_MAX or size > ENV_BYTES_MAX:
        limit = f"{ENV_NAMES_MAX} variables of {ENV_BYTES_MAX:,} bytes together"
        raise SettingsInvalid(f"NOETL_ENV_ALLOW names more than {limit}: they are recorded with every execution")
    return found


class _Spark(TypedDict):
    spark_master: str
    spark_driver_memory_bytes: int | None
    spark_jobs: int
    spark_idle_seconds: float
    spark_classes: Path | None
    spark_ui: bool
    java_home: Path | None


def _spark(source: Mapping[str, str]) -> _Spark:
    memory = _number(source, "NOETL_SPARK_DRIVER_MEMORY_MB", 0, SPARK_MEMORY_MB_MIN, 1024**2)
    return {
        "spark_master": _master(source),
        "spark_driver_memory_bytes": 1024**2 * memory or None,
        "spark_jobs": _number(source, "NOETL_SPARK_JOBS_MAX", 4, 1, 64),
        "spark_idle_seconds": _seconds(source, "NOETL_SPARK_IDLE_SECONDS", 900.0, 1.0, 7 * 86_400.0),
        "spark_classes": _path(source, "NOETL_SPARK_CLASSES_DIR"),
        "spark_ui": _switch(source, "NOETL_SPARK_UI", default=True),
        "java_home": _path(source, "JAVA_HOME"),
    }


def _master(source: Mapping[str, str]) -> str:
    master = source.get("NOETL_SPARK_MASTER") or "local[*]"
    if not _SPARK_MASTER.fullmatch(master):
        raise SettingsInvalid(
            f"NOETL_SPARK_MASTER must be local[*], local[N], spark://host:port, yarn or k8s://host:port, not {master!r}"
        )
    return master


def _switch(source: Mapping[str, str], variable: str, *, default: bool) -> bool:
    text = source.get(variable, "").lower()
    if not text:
        return default
    if text not in ("0", "1", "false", "true"):
        raise SettingsInvalid(f"{variable} must be true or false, or 1 or 0, not {text!r}")
    return text in ("1", "true")


def _key(source: Mapping[str, str], variable: str) -> Secret[bytes] | None:
    text = source.get(variable)
    if not text:
        return None
    if source.get(f"{variable}_FILE"):
        raise SettingsInvalid(f"set {variable} or {variable}_FILE, not both")
    try:
        return key_from_text(text)
    except ValueError:
        # The cause would quote what was meant as a key.
        raise SettingsInvalid(f"{variable} must be {KEY_RULE}") from None


def _name(source: Mapping[str, str], variable: str) -> str:
    value = source.get(variable, "default")
    if not value or len(value) > 100 or any(not character.isprintable() for character in value):
        raise SettingsInvalid(f"{variable} must be 1 to 100 printable characters")
    return value


def _list(source: Mapping[str, str], variable: str) -> tuple[str, ...] | None:
    text = source.get(variable)
    return None if text is None else tuple(part.strip() for part in text.split(",") if part.strip())


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


def _seconds(source: Mapping[str, str], variable: str, default: float, low: float, high: float) -> float:
    text = source.get(variable)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError as error:
        raise SettingsInvalid(f"{variable} must be a number of seconds, not {text!r}") from error
    if not low <= value <= high:
        raise SettingsInvalid(f"{variable} must be between {low:g} and {high:g} seconds, not {text}")
    return value


def environment_text(name: str) -> str | None:
    """A variable that a user of Spark names as the place of a connection string."""
    return os.environ.get(name)


def cloud_variables(kind: str, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """What opens a cloud, for processes that get it by value and not from their environment."""
    source = os.environ if environment is None else environment
    return {name: source[name] for name in CREDENTIAL_VARIABLES.get(kind, ()) if source.get(name)}
