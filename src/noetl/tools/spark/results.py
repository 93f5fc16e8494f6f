"""What a job left, as the value of its task: outputs as postgres and duckdb give their rows, with verdicts beside.

Nothing is half-written: a job that failed publishes its verdicts and no rows, neither outputs nor a quarantine."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from noetl.core.codec import canonical_bytes
from noetl.core.limits import JOB_RECORDED_BYTES_MAX
from noetl.ports.data.compute import BROKEN_RULES, Expectation, JobDataset, JobIntent, JobOutcome, JobOutput, Verdict
from noetl.ports.data.datasets import LandedDataset, LandedPart
from noetl.ports.tool import DatasetSink, Place
from noetl.tools.patience import patiently

QUARANTINE, EXPECT = "quarantine", "expect"
_VERDICTS_TOLD_MAX = 20
_MESSAGE_CHARS_MAX = 200


@dataclass(slots=True)
class Results:
    """The value of a task, while its datasets are made durable."""

    value: object = None
    parts: dict[Place, Mapping[str, object]] = field(default_factory=dict)
    written: list[dict[str, object]] = field(default_factory=list)
    """What was kept, for the facts about the job."""
    folder: Path | None = None


async def kept_results(
    outcome: JobOutcome,
    outputs: Iterable[JobOutput],
    sink: DatasetSink,
    *,
    expectations: Iterable[Expectation] = (),
    folder: Path | None = None,
) -> Results:
    """Make every dataset durable that may be published, and say where it is.  Raises ToolFailed, also for a file that
    is not in the job's folder."""
    found = Results(folder=folder)
    names = [output.name for output in outputs]
    is_failed = outcome.failure is not None
    value: dict[str, object] = {}
    for dataset in () if is_failed else outcome.datasets:
        place = _place(QUARANTINE, dataset.name) if dataset.is_quarantine else _place(dataset.name)
        await _keep(dataset, place, value, found, sink)
    if not is_failed:
        _add_empty(outcome.datasets, [rule.of for rule in expectations if rule.is_quarantine], value)
        value |= {name: one for name, one in outcome.values.items() if name}
    if outcome.verdicts:
        value[EXPECT] = [_verdict(one) for one in outcome.verdicts]
    is_bare = names == [""] and "" in outcome.values and not is_failed and not value
    if is_bare:
        found.value = outcome.values[""]
        return found
    if not is_failed and "" in outcome.values:
        value["value"] = outcome.values[""]
    if value or not is_failed:
        found.value = {"status": "error" if is_failed else "success", **value}
    return found


async def _keep(dataset: JobDataset, place: Place, value: dict[str, object], found: Results, sink: DatasetSink) -> None:
    landed = LandedDataset(
        parts=[
            LandedPart(path=Path(part.path), row_count=part.row_count, partition=part.partition)
            for part in dataset.parts
        ],
        arrow_schema=base64.b64decode(dataset.arrow_schema),
        partition_by=dataset.partition_by,
        root=found.folder,
    )
    reference = await patiently(lambda: sink.keep(landed))
    document = {
        "status": "success",
        "rows": None,
        "dataset": reference.get("uri"),
        "row_count": dataset.row_count,
        "columns": list(dataset.columns),
    }
    at = value
    for key in place:
        at = at.setdefault(str(key), {})  # type: ignore[assignment]
    at.update(document)
    found.parts[(*place, "rows")] = reference
    name = ".".join(map(str, place)) or "rows"
    found.written.append(
        {"name": name, "rows": dataset.row_count, "files": len(dataset.parts), "sha256": reference.get("sha256")}
    )


def _add_empty(datasets: Sequence[JobDataset], guarded: Collection[str], value: dict[str, object]) -> None:
    """What may have a quarantine has one, also without a row: who reads it need not know whether anything broke."""
    outputs = [one for one in datasets if not one.is_quarantine]
    full = {one.name for one in datasets if one.is_quarantine}
    for output in outputs:
        if output.name not in full and (output.name in guarded or ("" in guarded and len(outputs) == 1)):
            at = value
            for key in _place(QUARANTINE, output.name):
                at = at.setdefault(str(key), {})  # type: ignore[assignment]
            at |= {
                "status": "success",
                "rows": [],
                "dataset": None,
                "row_count": 0,
                "columns": [*output.columns, BROKEN_RULES],
            }


def _place(*names: str) -> Place:
    return tuple(name for name in names if name)


def _verdict(verdict: Verdict) -> dict[str, object]:
    """As playbooks see it."""
    document: dict[str, object] = {
        "name": verdict.name,
        "rule": verdict.kind,
        "met": verdict.is_met,
        "rows": verdict.rows,
        "broken": verdict.broken,
    }
    more = {"of": verdict.of or None, "message": verdict.message, "quarantine": verdict.quarantine}
    return {**document, **{key: one for key, one in more.items() if one is not None}}


def job_facts(job_id: str, intent: JobIntent | None, outcome: JobOutcome, results: Results) -> dict[str, object]:
    """What the end of the command says about the job: where it ran, what it cost, what it wrote, what was expected.
    Small: what does not fit is left out, the least telling first."""
    found: dict[str, object] = {"job": job_id}
    if intent is not None:
        where = {"application": intent.application_id, "ui": intent.ui, "event_log": intent.event_log}
        found |= {key: one for key, one in where.items() if one is not None}
    found |= {name: one for name, one in asdict(outcome.facts).items() if one and name != "jobs"}
    found["jobs"] = list(outcome.facts.jobs)
    if results.written:
        found["outputs"] = results.written
    if outcome.verdicts:
        found["expect"] = [_told(one) for one in outcome.verdicts[:_VERDICTS_TOLD_MAX]]
        found["expect_broken"] = sum(not one.is_met for one in outcome.verdicts)
    for name in ("jobs", "outputs", "expect", "event_log"):
        if len(canonical_bytes(found)) <= JOB_RECORDED_BYTES_MAX:
            break
        found.pop(name, None)
    return found


def _told(verdict: Verdict) -> dict[str, object]:
    document = {"name": verdict.name, "of": verdict.of, "met": verdict.is_met, "broken": verdict.broken}
    if verdict.message:
        document["message"] = verdict.message[:_MESSAGE_CHARS_MAX]
    return {key: one for key, one in document.items() if one != ""}
