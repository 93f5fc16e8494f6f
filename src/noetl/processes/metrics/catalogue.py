"""Every metric that a process may show: its kind and what it means.  One that is not here is a defect, not a surprise.

`docs/reference/metrics.md` is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"


SERVER, WORKER, PROJECTOR = "server", "worker", "projector"
EVERYBODY = (SERVER, WORKER, PROJECTOR)


@dataclass(frozen=True, slots=True)
class Described:
    """`roles` are the processes that show it from their start; a server is also the embedded host.  Without one it is
    shown when there is something to tell."""

    kind: str
    meaning: str
    roles: tuple[str, ...] = ()


METRICS: Mapping[str, Described] = {
    "noetl_storage_ipc_admission_attempts_total": Described(
        COUNTER, "Tables that were to be put into shared memory (tier 1.5).", (SERVER, WORKER)
    ),
    "noetl_storage_ipc_admission_success_total": Described(
        COUNTER, "Tables that were put into shared memory.", (SERVER, WORKER)
    ),
    "noetl_storage_ipc_admission_failures_total": Described(
        COUNTER,
        "Tables that were not put into shared memory, by reason; they are durable all the same.",
        (SERVER, WORKER),
    ),
    "noetl_storage_ipc_read_attempts_total": Described(
        COUNTER, "Tables that were looked for in shared memory.", (SERVER, WORKER)
    ),
    "noetl_storage_ipc_read_hits_total": Described(
        COUNTER, "Tables that were found in shared memory.", (SERVER, WORKER)
    ),
    "noetl_storage_ipc_read_misses_total": Described(
        COUNTER, "Tables that were not found in shared memory, by reason.", (SERVER, WORKER)
    ),
    "noetl_storage_ipc_durable_fallback_reads_total": Described(
        COUNTER, "Tables that were read from behind shared memory after a miss.", (SERVER, WORKER)
    ),
    "noetl_storage_ipc_bytes_in_use": Described(GAUGE, "Bytes of shared memory that tables of this node hold."),
    "noetl_storage_ipc_budget_bytes": Described(GAUGE, "Bytes of shared memory that tables of this node may hold."),
    "noetl_storage_ipc_read_hit_ratio": Described(
        GAUGE, "Hits of all reads of shared memory since the start.", (SERVER, WORKER)
    ),
    "tier15_budget_exhaustion_total": Described(
        COUNTER, "Tables that were not put into shared memory because its budget was used up.", (SERVER, WORKER)
    ),
    "noetl_reference_resolve_ms": Described(
        HISTOGRAM, "Milliseconds from a reference to its table, by the tier where it was found."
    ),
    "noetl_event_result_bytes": Described(HISTOGRAM, "Bytes of the results in appended events.", (SERVER,)),
    "noetl_storage_disk_cache_hits_total": Described(COUNTER, "Reads that the local disk cache (tier 2) answered."),
    "noetl_storage_disk_cache_hit_bytes_total": Described(COUNTER, "Bytes that the local disk cache answered with."),
    "noetl_storage_disk_cache_misses_total": Described(COUNTER, "Reads that went past the local disk cache."),
    "noetl_storage_disk_cache_miss_bytes_total": Described(COUNTER, "Bytes that were read past the local disk cache."),
    "noetl_storage_disk_cache_filled_bytes_total": Described(COUNTER, "Bytes that came into the local disk cache."),
    "noetl_storage_disk_cache_evicted_bytes_total": Described(COUNTER, "Bytes that left it to make room."),
    "noetl_storage_disk_cache_corrupt_total": Described(COUNTER, "Entries of it that were damaged; each was a miss."),
    "noetl_storage_disk_cache_failures_total": Described(COUNTER, "Times it could not be used; nothing waits for it."),
    "noetl_jobs_started_total": Described(
        COUNTER, "Jobs of a compute engine that tasks of this process have begun.", (SERVER, WORKER)
    ),
    "noetl_jobs_failed_total": Described(COUNTER, "Those whose task failed.", (SERVER, WORKER)),
    "noetl_jobs_lost_total": Described(COUNTER, "Those that failed because their driver was lost.", (SERVER, WORKER)),
    "noetl_requests_open": Described(
        GAUGE, "Requests with a body that are under way: those that start work, and the others.", (SERVER,)
    ),
    "noetl_requests_open_bytes": Described(GAUGE, "Bytes of their bodies.", (SERVER,)),
    "noetl_requests_refused_total": Described(
        COUNTER, "Requests that were refused with 503 because too much was.", (SERVER,)
    ),
    "noetl_worker_concurrency": Described(
        GAUGE,
        "Commands that this worker wants under way at a time; after refusals or slow commits fewer than slots.",
        (WORKER,),
    ),
    "noetl_worker_slowed_total": Described(COUNTER, "Times this worker halved them.", (WORKER,)),
    "noetl_checkpoint_age_ms": Described(
        GAUGE,
        "Milliseconds that the first event behind the last checkpoint of a shard has been there; 0 without one.  Shown "
        "by the process that has the role.",
    ),
    "noetl_checkpoints_total": Described(COUNTER, "Checkpoints that this process has committed.", (SERVER,)),
    "noetl_snapshots_total": Described(
        COUNTER, "Snapshots of folded states that this process has saved.", (SERVER, PROJECTOR)
    ),
    "noetl_snapshots_dropped_total": Described(
        COUNTER,
        "Snapshots that were not taken because too many waited; recovery folds more instead.",
        (SERVER, PROJECTOR),
    ),
    "noetl_role_held": Described(GAUGE, "1 while this process has the role, else 0.", (SERVER,)),
    "noetl_reaper_released_total": Described(
        COUNTER, "Commands that were given back because their session was dead.", (SERVER,)
    ),
    "noetl_reaper_cleared_total": Described(
        COUNTER, "Rows of the queue that were left of executions that had ended.", (SERVER,)
    ),
    "noetl_partitions_ahead": Described(
        GAUGE, "Quarters of the ledger that are there, from the present one on.", (SERVER,)
    ),
    "noetl_partitions_droppable": Described(
        GAUGE, "Quarters of the ledger that are older than the retention and have no open execution.", (SERVER,)
    ),
    "noetl_projection_lag_ms": Described(
        GAUGE,
        "Milliseconds from the oldest event of the last commit of a shard's projection to that commit, by the clock of "
        "the database; 0 when everything is projected.",
        (PROJECTOR,),
    ),
    "noetl_projector_batch_lag_ms": Described(
        HISTOGRAM, "The same, of every commit of every shard.", (SERVER, PROJECTOR)
    ),
    "noetl_projector_events_total": Described(COUNTER, "Events that this process has projected.", (SERVER, PROJECTOR)),
    "noetl_projector_batches_total": Described(COUNTER, "Commits of rows with their watermarks.", (SERVER, PROJECTOR)),
    "noetl_projector_rows_total": Described(COUNTER, "Rows of executions that were in them.", (SERVER, PROJECTOR)),
    "noetl_projector_quarantined_total": Described(
        COUNTER, "Executions that this process could not fold any further; their row says why.", (SERVER, PROJECTOR)
    ),
    "noetl_projector_stale_records_total": Described(
        COUNTER,
        "Events of commits that were refused because the shard was somebody else's by then.",
        (SERVER, PROJECTOR),
    ),
    "noetl_projector_rebuilds_total": Described(
        COUNTER, "Shards that were folded again from their first event.", (SERVER, PROJECTOR)
    ),
    "noetl_projector_errors_total": Described(
        COUNTER, "Trouble, by kind: `unavailable`, `gap` (the shard is halted), `ledger_restored`."
    ),
    "noetl_projector_last_batch_events": Described(GAUGE, "Events of the last commit.", (SERVER, PROJECTOR)),
    "noetl_projector_last_batch_ms": Described(GAUGE, "Milliseconds that it took.", (SERVER, PROJECTOR)),
    "noetl_inputs_waiting": Described(GAUGE, "Inputs that wait to be decided.", (SERVER,)),
    "noetl_inputs_decided_total": Described(COUNTER, "Inputs whose consequences are committed.", (SERVER,)),
    "noetl_inputs_refused_total": Described(COUNTER, "Inputs that were refused, by the code of the error."),
    "noetl_commits_total": Described(COUNTER, "Commits of decisions.", (SERVER,)),
    "noetl_commit_events_total": Described(COUNTER, "Events that were in them.", (SERVER,)),
    "noetl_commit_misses_total": Described(
        COUNTER, "Commits that were decided again because somebody else had appended, or owned the shard.", (SERVER,)
    ),
    "noetl_commit_conflicts_total": Described(
        COUNTER, "Commits that the ledger refused: a transition was there, or a row was not valid.", (SERVER,)
    ),
    "noetl_commit_unknown_total": Described(COUNTER, "Commits whose outcome had to be looked for.", (SERVER,)),
    "noetl_facts_recorded_total": Described(
        COUNTER, "Inputs that were recorded in shards of other servers.", (SERVER,)
    ),
    "noetl_facts_late_total": Described(
        COUNTER, "Facts that were refused for good: their attempt or their execution had ended.", (SERVER,)
    ),
    "noetl_sessions": Described(GAUGE, "Sessions of workers at this server, its own included.", (SERVER,)),
    "noetl_session_slots": Described(GAUGE, "Their slots by pool: `all` and `free`."),
    "noetl_queue_commands": Described(
        GAUGE, "Commands in the queue of the whole ledger by pool: `waiting`, and `held` by a session."
    ),
    "noetl_frame_backlog_total": Described(
        GAUGE,
        "Frames of the whole ledger that are not done: `waiting`, and `held` by a session, by what their loop is over "
        "(`collection`, `cursor`).  `all`/`all` is the sum, for autoscalers.",
        (SERVER,),
    ),
    "noetl_frame_backlog_detail_total": Described(GAUGE, "The same by tenant and organization."),
    "noetl_frames_ended_total": Described(COUNTER, "Frames whose end this server recorded.", (SERVER,)),
    "noetl_frame_rows_total": Described(COUNTER, "Their rows, by outcome.", (SERVER,)),
    "noetl_frames_reclaimed_total": Described(
        COUNTER, "Frames that were given to another session, because theirs was gone.", (SERVER,)
    ),
    "noetl_claims_placed_total": Described(
        COUNTER,
        "Commands and frames whose data is at a known place, by how far from there they were given out, and whether "
        "that was near enough.",
    ),
    "noetl_frame_lease_seconds": Described(HISTOGRAM, "How long a session had a frame that ended.", (SERVER,)),
    "frame_p95_lease_duration": Described(
        GAUGE, "Seconds that 95 of 100 frames were held at most, of the last thousand."
    ),
    "noetl_limit_in_use": Described(
        GAUGE,
        "Permits of shared limits in the hands of sessions of this server, by the name of the limit; the sum over all "
        "servers is what counts.",
    ),
    "noetl_limit_waiting": Described(GAUGE, "Calls of theirs that wait for a permit."),
    "noetl_limit_granted_total": Described(
        COUNTER, "Permits that this server granted; one that a call took over from the call before it counts once."
    ),
    "noetl_timers_due": Described(GAUGE, "Timers of the whole ledger whose time has passed.", (SERVER,)),
    "noetl_shard_owner": Described(
        GAUGE, "Always 1: this instance owns the shard.  None for one that nobody owns.", (SERVER,)
    ),
    "noetl_shard_undecided_events": Described(
        GAUGE, "Events of a shard behind its last decision; its owner decides them.", (SERVER,)
    ),
    "noetl_shards_owned": Described(GAUGE, "Shards that this server owns.", (SERVER,)),
    "noetl_shards_taken_total": Described(COUNTER, "Shards that it took over.", (SERVER,)),
    "noetl_shards_lost_total": Described(
        COUNTER, "Shards that it lost to others: it was silent for too long.", (SERVER,)
    ),
    "noetl_shards_handed_over_total": Described(COUNTER, "Shards that it let go for others.", (SERVER,)),
    "noetl_servers_alive": Described(GAUGE, "Servers on this ledger, as this one knows it.", (SERVER,)),
    "noetl_process_resident_bytes": Described(
        GAUGE, "Memory that this process has, where the system tells.", EVERYBODY
    ),
    "noetl_process_info": Described(GAUGE, "Always 1; the labels say which process and version this is.", EVERYBODY),
}


def family_of(name: str) -> str:
    """The metric that a sample belongs to: a histogram has three kinds of them."""
    for ending in ("_bucket", "_sum", "_count"):
        stem = name.removesuffix(ending)
        if stem != name and stem in METRICS and METRICS[stem].kind == HISTOGRAM:
            return stem
    return name
