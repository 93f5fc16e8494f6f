"""The dead letter of a loop: a payload that lists what failed, item by item, and where its input is.

Frame by frame, and in chunks: however many failed, never all of them are in memory, and none of them is in an event."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any

from noetl.core import limits
from noetl.core.codec import canonical_bytes
from noetl.core.execution.looping.windows import merged
from noetl.core.expression import bare, find
from noetl.core.expression.views import part_of
from noetl.core.reference import MEDIA_JSON, Payload
from noetl.engine.payloads import Payloads
from noetl.engine.stored.reader import LoopRecords, Reader
from noetl.engine.stored.sources import settled
from noetl.ports.session import CommandMessage


async def dead_letter(payloads: Payloads, message: CommandMessage, stage: Mapping[str, Any]) -> list[Payload]:
    """What a `seal` command knows of items that failed or never ran, as payloads that travel with its fact: the first
    one is the letter.  Nothing when all went well.  `stage` has the outputs of all frames (`with_gathered`)."""
    owner = {"tenant_id": message.tenant_id, "organization_id": message.organization_id}
    never_ran = _never_ran(stage)
    if not any("failed" in output for output in stage["outputs"]) and not never_ran:
        return []
    letter: dict[str, Any] = {
        "execution_id": str(message.execution_id),
        "step": message.body["step"],
        "loop": stage["stage_id"],
        "total": stage["total"],
        "failed": stage["failed"],
        "never_ran": never_ran,
    }
    chunks: list[dict[str, object]] = []
    items: list[dict[str, object]] = []
    told = size = 0
    async for item in _items(payloads, stage, owner):
        if len(items) >= limits.COLLECTION_CHUNK_ROWS or size >= limits.COLLECTION_CHUNK_BYTES:
            chunks.append(await _chunk(payloads, items, told, owner))
            told += len(items)
            items, size = [], 0
        items.append(item)
        size += len(canonical_bytes(item))
    if chunks:
        chunks.append(await _chunk(payloads, items, told, owner))
        letter["chunks"] = chunks
    else:
        letter["items"] = items
    return [await payloads.keep_json(letter, media_type=MEDIA_JSON, **owner)]


async def _chunk(
    payloads: Payloads, items: list[dict[str, object]], first: int, owner: Mapping[str, str]
) -> dict[str, object]:
    payload = await payloads.keep_json(items, media_type=MEDIA_JSON, **owner)
    await payloads.store(payload)
    return {"first": first, "items": len(items), "ref": payload.reference.to_json()}


async def _items(payloads: Payloads, stage: Mapping[str, Any], owner: Mapping[str, str]) -> AsyncIterator[Any]:
    for output in stage["outputs"]:
        if "failed" in output:
            for one in await _of_frame(payloads, stage, output, owner):
                yield one


async def _of_frame(
    payloads: Payloads, stage: Mapping[str, Any], output: Mapping[str, Any], owner: Mapping[str, str]
) -> list[dict[str, object]]:
    first, end = output["first"], output["first"] + output["rows"]
    records = LoopRecords(Reader(payloads, **owner), {"total": end, "frames": [output]})
    where = {"frame": f"{stage['stage_id']}/{output['frame']}", "attempt": output["attempt"]}
    if stage.get("framewise"):
        # One outcome for all of its rows.
        error = await settled(lambda: _error(find(records, first)))
        place = {**_place(stage, output, 0), "rows": output["rows"]}
        return [{**place, "error": error, **where, "input": _input(stage, output, first)}]
    rows: Any = await settled(lambda: [_error(one) for one in _list(part_of(records, slice(first, end)))])
    return [
        {**_place(stage, output, row), "error": error, **where, "input": _input(stage, output, first + row)}
        for row, error in enumerate(rows)
        if error is not _GOOD
    ]


def _place(stage: Mapping[str, Any], output: Mapping[str, Any], row: int) -> dict[str, object]:
    """Which item of the loop it is.  Of a cursor only frame and row are known here: an index counts the rows of all
    frames before, and a stage does not remember those that went well."""
    return {"row": row} if _is_claiming(stage) else {"index": output["first"] + row}


def _is_claiming(stage: Mapping[str, Any]) -> bool:
    return "cursor" in stage and "claimed" not in stage


_GOOD: dict[str, object] = {}


def _error(record: object) -> object:
    """Why a row failed; null for one that never ran."""
    if record is None:
        return None
    error = find(record, "e")
    return bare(error) if isinstance(bare(error), Mapping) else _GOOD


def _list(value: object) -> list[object]:
    assert isinstance(value, list)
    return value


def _input(stage: Mapping[str, Any], output: Mapping[str, Any], index: int) -> dict[str, object]:
    """Where the item is that failed: a row of what the loop goes over, or of what a cursor claimed."""
    if "claim" in output:
        return {"ref": output["claim"], "row": index - output["first"]}
    reference = stage.get("collection")
    if reference is None:
        return {"event": f"loop.started/{stage['stage_id']}", "row": index}
    return {"ref": reference["ref"], "path": reference["path"], "row": index}


def _never_ran(stage: Mapping[str, Any]) -> list[list[int]]:
    """The rows of a collection that no frame was given, as half-open ranges."""
    if _is_claiming(stage):
        return []
    covered = merged(one for output in stage["outputs"] for one in _covered(output))
    return [list(one) for one in _between(covered, stage["total"])]


def _covered(output: Mapping[str, Any]) -> Iterable[tuple[int, int]]:
    if output["ref"] is not None or "failed" in output or output.get("error") is not None:
        return [(output["first"], output["first"] + output["rows"])]
    return [(first, end) for part in output.get("parts", ()) for first, end in part["ranges"]]


def _between(covered: Iterable[tuple[int, int]], total: int) -> Iterator[tuple[int, int]]:
    index = 0
    for first, end in covered:
        if index < first:
            yield index, first
        index = end
    if index < total:
        yield index, total
