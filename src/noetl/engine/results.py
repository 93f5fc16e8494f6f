"""Results behind references, read whole.

A list pipeline keeps each task's result once.  A loop keeps its rows in the outputs of its frames.  Templates read less
than the whole: see `engine.stored`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from noetl.core.expression import bare
from noetl.core.expression.views import (
    Record,
    failed_view,
    loop_summary,
    pipeline_result,
    row_result,
)
from noetl.engine.payloads import Payloads
from noetl.engine.stored.reader import LoopRecords, Reader
from noetl.engine.stored.sources import settled

__all__ = [
    "Record",
    "failed_view",
    "loop_records",
    "loop_result",
    "loop_summary",
    "pipeline_result",
    "read_result",
    "row_result",
]


def loop_result(document: Mapping[str, Any], records: Iterable[Record]) -> dict[str, object]:
    """The result of a loop (dsl §4.7)."""
    return {**loop_summary(document), "results": [row_result(record) for record in records]}


async def loop_records(payloads: Payloads, document: Mapping[str, Any], **owner: str) -> list[Record]:
    """All records of a loop in item order."""
    records = LoopRecords(Reader(payloads, **owner), document)
    return cast("list[Record]", await settled(lambda: bare(records)))


async def read_result(
    payloads: Payloads, reference: Mapping[str, Any], *, tenant_id: str, organization_id: str
) -> object:
    """The result behind a recorded reference, as a playbook sees it."""
    reader = Reader(payloads, tenant_id=tenant_id, organization_id=organization_id)
    return await settled(lambda: bare(reader.result(reference)))
