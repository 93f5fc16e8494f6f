"""Results as they are kept, and as a playbook sees them.

A list pipeline keeps each task's result once.  A loop keeps its rows in the outputs of its frames: a record is
`{"v": value}` of a single tool, `{"p": {order, results}}` of a list pipeline, with `"e"` beside it when the row
failed, or null when it never ran."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from noetl.core.reference import MEDIA_LOOP, MEDIA_PIPELINE
from noetl.engine.payloads import Payloads

Record = Mapping[str, Any] | None


def pipeline_result(order: list[str], results: Mapping[str, object]) -> dict[str, object]:
    """The result of a list pipeline: labels, the same map under `results`, and the merged keys of mappings."""
    merged: dict[str, object] = {}
    for label in order:
        value = results[label]
        if isinstance(value, dict):
            merged.update({key: item for key, item in value.items() if key not in results})
    last = results[order[-1]] if order else None
    if order and not isinstance(last, dict):
        merged["data"] = last
    return {**merged, **results, "results": dict(results), "_prev": last}


def failed_view(error: Mapping[str, object] | None, partial: object) -> dict[str, object]:
    base = dict(partial) if isinstance(partial, dict) else {}
    return {**base, "status": "error", "error": error}


def row_result(record: Record) -> object:
    """What `results[i]` of a loop is."""
    if record is None:
        return None
    kept = record.get("p")
    value = record.get("v") if kept is None else pipeline_result(kept["order"], kept["results"])
    return failed_view(record["e"], value) if "e" in record else value


def loop_result(document: Mapping[str, Any], records: Iterable[Record]) -> dict[str, object]:
    """The result of a loop (dsl §4.7)."""
    return {**loop_summary(document), "results": [row_result(record) for record in records]}


def loop_summary(document: Mapping[str, Any]) -> dict[str, object]:
    stats = {name: document[name] for name in ("total", "success", "failed")}
    return {"stats": stats, "count": document["total"], "status": document["status"]}


async def frame_records(payloads: Payloads, output: Mapping[str, Any], **owner: str) -> list[Record]:
    """The records of one frame in item order, from its output or from the parts that were persisted before it was
    lost; what is nowhere failed with the frame."""
    if output.get("records") is not None:
        return list(output["records"])
    if output["ref"] is not None:
        document = await payloads.read_json(output["ref"], **owner)
        return list(document["records"])
    found: dict[int, Record] = {}
    for part in output.get("parts", ()):
        document = await payloads.read_json(part["ref"], **owner)
        found.update(dict(document["rows"]))
    lost: Record = {"e": output["error"]} if output.get("error") is not None else None
    return [found.get(index, lost) for index in range(output["first"], output["first"] + output["rows"])]


async def loop_records(payloads: Payloads, document: Mapping[str, Any], **owner: str) -> list[Record]:
    """All records of a loop in item order; rows of frames that never ran are null."""
    records: list[Record] = [None] * document["total"]
    for output in document["frames"]:
        first = output["first"]
        found = await frame_records(payloads, output, **owner)
        records[first : first + len(found)] = found
    return records


async def read_result(
    payloads: Payloads, reference: Mapping[str, Any], *, tenant_id: str, organization_id: str
) -> object:
    """The result behind a recorded reference, as a playbook sees it."""
    owner = {"tenant_id": tenant_id, "organization_id": organization_id}
    document = await payloads.read_json(reference, **owner)
    media_type = reference.get("media_type")
    if media_type == MEDIA_PIPELINE:
        return pipeline_result(document["order"], document["results"])
    if media_type == MEDIA_LOOP:
        return loop_result(document, await loop_records(payloads, document, **owner))
    return document


def result_extras(reference: Mapping[str, Any] | None, value: object) -> dict[str, object] | None:
    """Names of a result beside its own: `data` of a loop are its rows; `_ref` and its companions exist only for what is
    stored outside the database."""
    if reference is None:
        return None
    extras: dict[str, object] = {}
    if reference.get("media_type") == MEDIA_LOOP and isinstance(value, dict):
        extras = {"data": value["results"], "result": value["results"]}
    if reference.get("store") != "db":
        size = reference["bytes"]
        tier = "kv" if size < 1_048_576 else "disk"
        extras |= {"_ref": dict(reference), "_store": tier, "_size_bytes": size, "_preview": None}
    return extras or None
