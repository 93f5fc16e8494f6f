"""Every metric that a process may show: its kind and what it means.  One that is not here is a defect, not a surprise.

`docs/reference/metrics.md` is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"


@dataclass(frozen=True, slots=True)
class Described:
    kind: str
    meaning: str


METRICS: Mapping[str, Described] = {
    "noetl_storage_ipc_admission_attempts_total": Described(
        COUNTER, "Tables that were to be put into shared memory (tier 1.5)."
    ),
    "noetl_storage_ipc_admission_success_total": Described(COUNTER, "Tables that were put into shared memory."),
    "noetl_storage_ipc_admission_failures_total": Described(
        COUNTER, "Tables that were not put into shared memory, by reason; they are durable all the same."
    ),
    "noetl_storage_ipc_read_attempts_total": Described(COUNTER, "Tables that were looked for in shared memory."),
    "noetl_storage_ipc_read_hits_total": Described(COUNTER, "Tables that were found in shared memory."),
    "noetl_storage_ipc_read_misses_total": Described(
        COUNTER, "Tables that were not found in shared memory, by reason."
    ),
    "noetl_storage_ipc_durable_fallback_reads_total": Described(
        COUNTER, "Tables that were read from behind shared memory after a miss."
    ),
    "noetl_storage_ipc_bytes_in_use": Described(GAUGE, "Bytes of shared memory that tables of this node hold."),
    "noetl_storage_ipc_budget_bytes": Described(GAUGE, "Bytes of shared memory that tables of this node may hold."),
    "noetl_storage_ipc_read_hit_ratio": Described(GAUGE, "Hits of all reads of shared memory since the start."),
    "tier15_budget_exhaustion_total": Described(
        COUNTER, "Tables that were not put into shared memory because its budget was used up."
    ),
    "noetl_reference_resolve_ms": Described(
        HISTOGRAM, "Milliseconds from a reference to its table, by the tier where it was found."
    ),
    "noetl_event_result_bytes": Described(HISTOGRAM, "Bytes of the results in appended events."),
    "noetl_storage_disk_cache_hits_total": Described(COUNTER, "Reads that the local disk cache (tier 2) answered."),
    "noetl_storage_disk_cache_hit_bytes_total": Described(COUNTER, "Bytes that the local disk cache answered with."),
    "noetl_storage_disk_cache_misses_total": Described(COUNTER, "Reads that went past the local disk cache."),
    "noetl_storage_disk_cache_miss_bytes_total": Described(COUNTER, "Bytes that were read past the local disk cache."),
    "noetl_storage_disk_cache_filled_bytes_total": Described(COUNTER, "Bytes that came into the local disk cache."),
    "noetl_storage_disk_cache_evicted_bytes_total": Described(COUNTER, "Bytes that left it to make room."),
    "noetl_storage_disk_cache_corrupt_total": Described(COUNTER, "Entries of it that were damaged; each was a miss."),
    "noetl_storage_disk_cache_failures_total": Described(COUNTER, "Times it could not be used; nothing waits for it."),
    "noetl_jobs_started_total": Described(COUNTER, "Jobs of a compute engine that tasks of this process have begun."),
    "noetl_jobs_failed_total": Described(COUNTER, "Those whose task failed."),
    "noetl_jobs_lost_total": Described(COUNTER, "Those that failed because their driver was lost."),
    "noetl_process_info": Described(GAUGE, "Always 1; the labels say which process and version this is."),
}


def family_of(name: str) -> str:
    """The metric that a sample belongs to: a histogram has three kinds of them."""
    for ending in ("_bucket", "_sum", "_count"):
        stem = name.removesuffix(ending)
        if stem != name and stem in METRICS and METRICS[stem].kind == HISTOGRAM:
            return stem
    return name
