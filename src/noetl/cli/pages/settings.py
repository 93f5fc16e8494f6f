"""docs/reference/settings.md: every environment variable, with the default that `settings.py` gives it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from noetl.core.limits import PAYLOAD_INLINE_BYTES_MAX
from noetl.settings import Settings, read_settings

Default = Callable[[Settings], object]
HOME = Path("/home-of-the-page")
_MEGABYTE, _GIGABYTE = 1024**2, 1024**3


def _none(_settings: Settings) -> object:
    return None


# Page section → variable → (default, meaning).
VARIABLES: Mapping[str, Mapping[str, tuple[Default, str]]] = {
    "Everywhere": {
        "NOETL_HOME": (lambda _: "~/.noetl", "the folder of everything that this machine keeps"),
        "NOETL_TENANT_ID": (lambda s: s.tenant_id, "the tenant of whoever says nothing else"),
        "NOETL_ORGANIZATION_ID": (lambda s: s.organization_id, "the organization of whoever says nothing else"),
        "NOETL_LOG_LEVEL": (lambda s: s.log_level, "DEBUG, INFO, WARNING or ERROR"),
        "NOETL_LOG_FORMAT": (
            lambda s: s.log_format,
            "json, text, or auto: JSON from processes that serve unless they are in a terminal; see logs.md",
        ),
        "NOETL_SERVER_URL": (
            _none,
            "the server of the command line and workers, or several with commas; without one, the embedded host",
        ),
        "NOETL_TOKEN": (_none, "the token of clients; a server beyond loopback needs one"),
        "NOETL_WORKER_TOKEN": (_none, "the token of workers"),
    },
    "Servers and the embedded host": {
        "NOETL_HOST": (lambda s: s.host, "where a server listens; beyond loopback only with a token"),
        "NOETL_PORT": (lambda s: s.port, "its port; 0 is any free one"),
        "NOETL_TOKENS_FILE": (_none, "more tokens, as digests with scopes and owners"),
        "NOETL_SESSION_LEASE_SECONDS": (
            lambda s: s.session_lease_seconds,
            "how long a worker may be silent until its work goes to others",
        ),
        "NOETL_POSTGRES_DSN": (_none, "the database; without it a private Postgres below the home"),
        "NOETL_POSTGRES_OS_USER": (_none, "the user that the private Postgres runs as when we are root"),
        "NOETL_POSTGRES_POOL_MAX_SIZE": (lambda s: s.reader_connections, "connections for reading"),
        "NOETL_SHARD_COUNT": (lambda s: s.shard_count, "shards of a new database"),
        "NOETL_EVENT_RESULT_CONTEXT_MAX_BYTES": (
            lambda s: s.event_result_context_bytes,
            "bytes of `result.context` in an event; a larger one is refused, never cut",
        ),
        "NOETL_ENV_ALLOW": (_none, "variables that playbooks may read as `env`, with commas; recorded with executions"),
        "NOETL_SCRIPT_ROOTS": (
            lambda s: s.script_roots[0].relative_to(s.home),
            "folders of scripts, with colons; the default is below the home",
        ),
    },
    "The control plane": {
        "NOETL_SHARD_LEASE_SEC": (
            lambda s: s.control.shard_lease_seconds,
            "a server that is silent for so long has lost its shards",
        ),
        "NOETL_SHARD_HEARTBEAT_SEC": (lambda s: s.control.shard_heartbeat_seconds, "how often it renews them"),
        "NOETL_PROJECTION_BATCH_WINDOW_MS": (
            lambda s: s.control.projection_window_ms,
            "how long a projector gathers events of a shard",
        ),
        "NOETL_PROJECTION_BATCH_SIZE": (lambda s: s.control.projection_batch_events, "events of one batch of it"),
        "NOETL_PROJECTION_POLL_MS": (
            lambda s: s.control.projection_poll_ms,
            "how often it looks when nothing wakes it",
        ),
        "NOETL_CHECKPOINT_INTERVAL_MS": (
            lambda s: s.control.checkpoint_interval_ms,
            "between two checkpoints of a shard in which something happens",
        ),
        "NOETL_SNAPSHOT_INTERVAL_EVENTS": (
            lambda s: s.control.snapshot_interval_events,
            "events of an execution between two snapshots of it",
        ),
        "NOETL_BG_POOL_MAX_SIZE": (
            lambda s: s.control.background_connections,
            "connections for what nobody waits for",
        ),
        "NOETL_LOCALITY_PREFERENCE": (
            lambda s: s.control.locality_preference,
            "how far from its data anything runs while somebody nearer can: `node`, `cluster`, `zone`, `region`, `any`",
        ),
        "NOETL_RETENTION_DAYS": (
            lambda s: s.control.retention_days,
            "days after which a partition of the ledger is reported as one that could go",
        ),
        "NOETL_PROJECTOR_METRICS_HOST": (
            lambda s: s.control.projector_metrics_host,
            "where a projector answers `/health` and `/metrics`",
        ),
        "NOETL_PROJECTOR_METRICS_PORT": (_none, "its port; without one it answers nowhere"),
    },
    "Workers": {
        "NOETL_WORKER_SLOTS": (
            lambda s: s.worker_slots,
            "commands at a time; of pool `spark` it is `NOETL_SPARK_JOBS_MAX`",
        ),
        "NOETL_WORKER_POOL": (lambda s: s.worker_pool, "the pool that a worker belongs to"),
        "NOETL_WORKER_GRACE_SECONDS": (lambda s: s.worker_grace_seconds, "seconds to end what runs after SIGTERM"),
        "NOETL_WORKER_METRICS_PORT": (
            lambda s: s.worker_metrics_port,
            "where a worker answers `/health` and `/metrics`",
        ),
        "NOETL_WORKER_METRICS_HOST": (lambda s: s.worker_metrics_host, "on which address it does"),
        "NOETL_NODE_ID": (_none, "the name of the machine that workers and shared memory go by"),
        "NOETL_ZONE": (_none, "its zone; places say how far a worker is from its data"),
        "NOETL_REGION": (_none, "its region"),
        "NOETL_CLUSTER_ID": (_none, "its cluster"),
    },
    "Tools": {
        "NOETL_PYTHON_CHILDREN_MAX": (lambda s: s.python_children, "processes for user code"),
        "NOETL_PYTHON_MEMORY_MB": (lambda s: s.python_memory_bytes // _MEGABYTE, "memory of each"),
        "NOETL_DUCKDB_MEMORY_MB": (lambda s: s.duckdb_memory_bytes // _MEGABYTE, "memory of a duckdb task"),
        "NOETL_DUCKDB_THREADS": (lambda s: s.duckdb_threads, "threads of a duckdb task"),
        "NOETL_HTTP_ALLOW": (
            _none,
            "addresses beyond the public internet for the http tool, with commas: `loopback`, networks, names; "
            "on a laptop `loopback`",
        ),
        "NOETL_ARTIFACT_ROOTS": (_none, "folders that the artifact tool may read and write, with colons"),
    },
    "Spark": {
        "NOETL_SPARK_MASTER": (lambda s: s.spark_master, "where jobs run: `local[*]`, `local[N]`, or a cluster"),
        "NOETL_SPARK_DRIVER_MEMORY_MB": (
            _none,
            "memory of a driver; without it a quarter of the machine's, 1 to 8 GiB",
        ),
        "NOETL_SPARK_JOBS_MAX": (lambda s: s.spark_jobs, "jobs at a time in a worker"),
        "NOETL_SPARK_IDLE_SECONDS": (lambda s: s.spark_idle_seconds, "a driver without a job ends after this time"),
        "NOETL_SPARK_CLASSES_DIR": (
            lambda _: "spark/classes",
            "the folder of class archives, which make starts quick; the default is below the home",
        ),
        "NOETL_SPARK_UI": (lambda s: int(s.spark_ui), "1 or 0: whether drivers show Spark's UI, on loopback"),
    },
    "Secrets": {
        "NOETL_CREDENTIAL_KEY": (_none, "the key of stored credentials; the embedded host makes one below the home"),
        "NOETL_CREDENTIAL_KEY_FILE": (_none, "a file with it"),
        "NOETL_PAYLOAD_KEY": (
            _none,
            "a key that payloads are sealed with at rest; without one they are stored as they are",
        ),
        "NOETL_PAYLOAD_KEY_FILE": (_none, "a file with it"),
        "NOETL_AUTH_ENV_ALLOW": (_none, "variables that playbooks may use as credentials, with commas"),
    },
    "Payloads and tables": {
        "NOETL_DEFAULT_STORE_TIER": (
            lambda s: s.storage.tier,
            "the durable store of large payloads: file, s3, gcs, azure, memory",
        ),
        "NOETL_STORAGE_CLOUD_TIER": (_none, "the same for clouds; beside another tier a cloud that is only read"),
        "NOETL_STORAGE_BUCKET": (_none, "the bucket, or the container, of a cloud"),
        "NOETL_STORAGE_PREFIX": (_none, "what the names of its objects begin with"),
        "NOETL_STORAGE_ENDPOINT": (_none, "its address, where it is not the cloud's own"),
        "NOETL_STORAGE_REGION": (_none, "its region"),
        "NOETL_STORAGE_LOCAL_CACHE_DIR": (
            _none,
            "the folder of the disk cache (tier 2) before a store that is far away",
        ),
        "NOETL_STORAGE_LOCAL_CACHE_GB": (lambda s: s.storage.cache_bytes / _GIGABYTE, "how large it may become"),
        "NOETL_PAYLOAD_INLINE_BYTES": (
            lambda s: PAYLOAD_INLINE_BYTES_MAX if s.payload_inline_bytes is None else s.payload_inline_bytes,
            "payloads up to this size lie beside the ledger, in the same commit as their event; at most the default",
        ),
        "NOETL_TIER1_MEMORY_MB": (
            lambda s: s.tier1_memory_bytes // _MEGABYTE,
            "memory of a process for tables that it has opened (tier 1); 0 keeps none",
        ),
        "NOETL_TIER15_BUDGET_MB": (
            lambda s: s.tier15_budget_bytes // _MEGABYTE,
            "shared memory of a node for tables (tier 1.5); 0 switches it off",
        ),
        "NOETL_TIER15_GRACE_SECONDS": (
            lambda s: s.tier15_grace_seconds,
            "how long a table stays there beyond its lease",
        ),
        "NOETL_CURSOR_FRAME_IPC_ENABLED": (
            lambda s: s.shares_frame_rows,
            "whether tables that rows of loops give go there too; they are durable either way",
        ),
        "NOETL_GC_GRACE_HOURS": (lambda s: s.gc_grace_hours, "hours that a payload which nothing names stays"),
        "NOETL_GC_TTL_DAYS": (lambda s: s.gc_ttl_days, "days after which it goes at once"),
    },
}


def settings_markdown() -> str:
    settings = read_settings({"NOETL_HOME": str(HOME)})
    lines = [
        "# Settings",
        "",
        "Generated by `noetl.cli.reference` from `cli/pages/settings.py`; a test compares it with what is read.",
        "A value that is out of range stops the start, and the message names the variable.",
    ]
    for section, variables in VARIABLES.items():
        lines += ["", f"## {section}", "", *_table(variables, settings)]
    return "\n".join(lines) + "\n"


def _table(variables: Mapping[str, tuple[Default, str]], settings: Settings) -> Iterable[str]:
    yield "| variable | default | meaning |"
    yield "|---|---|---|"
    for name, (default, meaning) in variables.items():
        yield f"| `{name}` | {_written(default(settings))} | {meaning} |"


def _written(value: object) -> str:
    if value is None:
        return ""
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"
