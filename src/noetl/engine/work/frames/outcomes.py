"""How a frame ended, as the one fact about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from noetl.core import kinds
from noetl.core.errors import Failure
from noetl.core.limits import WARNINGS_MAX
from noetl.core.reference import Payload, Reference, Result
from noetl.engine.results import Record
from noetl.engine.work.facts import failed as failed_fact
from noetl.engine.work.pipeline.outcome import recorded_error
from noetl.ports.session import CommandMessage, Fact


def failed_in(records: Iterable[Record]) -> int:
    return sum(record is not None and "e" in record for record in records)


def ranges_of(indexes: Sequence[int]) -> list[list[int]]:
    """Sorted indexes as half-open ranges."""
    ranges: list[list[int]] = []
    for index in indexes:
        if ranges and ranges[-1][1] == index:
            ranges[-1][1] = index + 1
        else:
            ranges.append([index, index + 1])
    return ranges


def counted(records: Sequence[Record], rows: int, *, is_framewise: bool) -> dict[str, int]:
    """How the rows ended.  A pipeline that ran once for all of them ended for all of them."""
    failed, skipped = failed_in(records), sum(record is None for record in records)
    if is_framewise:
        failed, skipped = (rows if failed else 0), (rows if skipped else 0)
    return {"success": rows - failed - skipped, "failed": failed, "skipped": skipped}


def error_of(records: Sequence[Record], stage: Mapping[str, Any], outcomes: Mapping[str, int]) -> dict[str, Any] | None:
    """Why the frame failed, if it did: the first row that failed says it."""
    if not stage["best_effort"]:
        for number, record in enumerate(records):
            if record is not None and "e" in record:
                is_framewise = stage.get("process") == "frame"
                where = f"frame {stage['number'] - 1}" if is_framewise else f"item {stage['first'] + number}"
                return _row_error(where, record["e"])
    if outcomes["skipped"]:
        message = f"{outcomes['skipped']} rows did not run"
        return {"kind": "cancelled", "code": "drained", "retryable": False, "message": message}
    return None


def _row_error(where: str, error: Mapping[str, Any]) -> dict[str, object]:
    failure = Failure(
        kind=error["kind"],
        code=error["code"],
        status=error["status"],
        retryable=error["retryable"],
        message=f"{where}: {error['message']}",
        exception_type=error["exception_type"],
    )
    return recorded_error(failure)


def exceeded(stage: Mapping[str, Any], *, wall_ms: float, size: int) -> list[str]:
    """The soft bounds that a frame went beyond: told, and nothing else."""
    warnings = []
    seconds, bytes_max = stage.get("max_seconds"), stage.get("max_bytes")
    if seconds is not None and wall_ms > seconds * 1000:
        warnings.append(f"the frame took {wall_ms / 1000:.1f} s, more than max_seconds {seconds:g}")
    if bytes_max is not None and size > bytes_max:
        warnings.append(f"the frame gave {size:,} bytes, more than max_bytes {bytes_max:,}")
    return warnings


def ended_fact(
    message: CommandMessage,
    *,
    error: Mapping[str, object] | None,
    reference: Reference | None,
    meta: Mapping[str, object],
    writes: Sequence[Mapping[str, object]] = (),
    payloads: Sequence[Payload] = (),
) -> Fact:
    context = {} if error is None else {"error": error}
    status = "ok" if error is None else "error"
    return Fact(
        execution_id=message.execution_id,
        command_id=message.command_id,
        attempt=message.attempt,
        event_type=kinds.FRAME_COMMITTED if error is None else kinds.FRAME_FAILED,
        result=Result(status=status, reference=reference, context=context).to_json(),
        writes=writes or None,
        meta=meta,
        payloads=payloads,
    )


def empty_fact(message: CommandMessage, warnings: Sequence[str]) -> Fact:
    """A claim that found no row: its slot is at its end."""
    meta: dict[str, object] = {"outcomes": {"success": 0, "failed": 0, "skipped": 0}, "claim": "none"}
    if warnings:
        meta["warnings"] = list(warnings)[:WARNINGS_MAX]
    return ended_fact(message, error=None, reference=None, meta=meta)


def unclaimed_fact(message: CommandMessage, failure: Failure, *, is_recorded: bool) -> Fact:
    """No rows: they could not be claimed, or nobody can tell whether they were."""
    fact = failed_fact(message, failure)
    return fact if is_recorded else fact._replace(meta={**fact.meta, "claim": "failed"})
