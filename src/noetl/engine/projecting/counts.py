"""What a projector counts about itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator

from noetl.ports.data.counters import Histogram, Sample

_LAG_MS_BOUNDS = (10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000)
LAG_SHOWN_SECONDS = 1.0


class ProjectorCounts:
    def __init__(self) -> None:
        self.events = 0
        self.batches = 0
        self.rows = 0
        self.quarantined = 0
        self.stale = 0
        self.rebuilds = 0
        self.errors: Counter[str] = Counter()
        self.lag_ms: dict[int, int] = {}
        self._lagged_at: dict[int, float] = {}
        self._lags = Histogram("noetl_projector_batch_lag_ms", _LAG_MS_BOUNDS)
        self.last_batch_events = 0
        self.last_batch_ms = 0.0

    def lagged(self, shard_id: int, lag_ms: int, *, now: float) -> None:
        """How old the oldest event of a commit was when it was projected."""
        self.lag_ms[shard_id] = lag_ms
        self._lagged_at[shard_id] = now
        self._lags.add(lag_ms)

    def is_quiet(self, shard_id: int, *, now: float) -> None:
        """Everything of a shard is projected.  What its last commit took is shown for a while."""
        if now - self._lagged_at.get(shard_id, float("-inf")) > LAG_SHOWN_SECONDS:
            self.lag_ms[shard_id] = 0

    def keep_only(self, shard_ids: Container[int]) -> None:
        self.lag_ms = {shard: lag for shard, lag in self.lag_ms.items() if shard in shard_ids}
        self._lagged_at = {shard: at for shard, at in self._lagged_at.items() if shard in shard_ids}

    def error(self, kind: str) -> None:
        self.errors[kind] += 1

    def samples(self) -> Iterator[Sample]:
        yield "noetl_projector_events_total", {}, self.events
        yield "noetl_projector_batches_total", {}, self.batches
        yield "noetl_projector_rows_total", {}, self.rows
        yield "noetl_projector_quarantined_total", {}, self.quarantined
        yield "noetl_projector_stale_records_total", {}, self.stale
        yield "noetl_projector_rebuilds_total", {}, self.rebuilds
        yield "noetl_projector_last_batch_events", {}, self.last_batch_events
        yield "noetl_projector_last_batch_ms", {}, self.last_batch_ms
        for kind, count in sorted(self.errors.items()):
            yield "noetl_projector_errors_total", {"kind": kind}, count
        for shard_id, lag_ms in sorted(self.lag_ms.items()):
            yield "noetl_projection_lag_ms", {"shard": str(shard_id)}, lag_ms
        yield from self._lags.samples()
