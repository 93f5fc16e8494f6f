"""Rows of `noetl.result_ref`: what an event says about the result that it names, as a pure function of the event.

On Postgres a view of the ledger says the same; a test compares."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from noetl.core.event import Event
from noetl.core.reference import MEDIA_COLLECTION, STORE_LARGE, STORE_SMALL

_DIGITS = 20
SMALL_ADDRESS = "noetl.payload"
"""Where small payloads are: rows of this table."""


class ResultRef(NamedTuple):
    """One result that has a payload.  `ref_id` is the id of the event that names it, `parent_ref_id` that of the result
    that led to it; `auth_reference` has names of credentials, never what they hold."""

    ref_id: int
    execution_id: int
    position: int
    tenant_id: str
    organization_id: str
    event_type: str
    status: str
    uri: str
    sha256: str
    created_at: str
    step: str | None = None
    task: str | None = None
    command_id: str | None = None
    stage_id: str | None = None
    frame_id: str | None = None
    kind: str | None = None
    media_type: str | None = None
    bytes: int | None = None
    row_count: int | None = None
    schema_digest: str | None = None
    store_tier: str | None = None
    physical_address: str | None = None
    correlation: Mapping[str, object] | None = None
    auth_reference: tuple[str, ...] | None = None
    parent_ref_id: int | None = None


def result_ref(event: Event) -> ResultRef | None:
    """None for an event whose result refers to nothing."""
    result: Any = event.result
    reference = result["reference"] if result is not None else None
    if reference is None or not _text(reference.get("uri")) or not _text(reference.get("sha256")):
        return None
    meta: Mapping[str, Any] = event.meta
    names = meta.get("credentials")
    parent = result["parent_ref"]
    return ResultRef(
        ref_id=event.event_id,
        execution_id=event.execution_id,
        position=event.position,
        tenant_id=event.tenant_id,
        organization_id=event.organization_id,
        event_type=event.event_type,
        status=result["status"],
        uri=reference["uri"],
        sha256=reference["sha256"],
        created_at=event.event_time,
        step=meta.get("step"),
        task=meta.get("task"),
        command_id=event.command_id,
        stage_id=event.stage_id,
        frame_id=event.frame_id,
        kind=reference.get("kind"),
        media_type=reference.get("media_type"),
        bytes=_number(reference.get("bytes")),
        row_count=_number(reference.get("row_count")),
        schema_digest=reference.get("schema_digest"),
        store_tier=reference.get("store"),
        physical_address=physical_address(reference.get("store"), reference["uri"], reference["sha256"]),
        correlation=_correlation(event),
        auth_reference=tuple(names) if names is not None else None,
        parent_ref_id=_number(parent.get("ref_id")) if parent is not None else None,
    )


class Role(StrEnum):
    """Whose result it is."""

    STEP = "step"
    LOOP = "loop"
    FRAME = "frame"
    COLLECTION = "collection"
    ANSWER = "answer"
    CHILD = "child"
    EXECUTION = "execution"


_ENDS = {"frame": Role.FRAME, "child": Role.CHILD, "playbook": Role.EXECUTION}
_QUESTION = re.compile(r"#[0-9]+/(?:eval|gather)/[0-9]+$")
_SEAL = "/seal"


def role_of(ref: ResultRef) -> Role:
    """Of a step or loop, of a frame, what a worker answered to a question of the router, what a task got of a child, or
    of an execution."""
    known = _ENDS.get(ref.event_type.partition(".")[0])
    if known is not None:
        return known
    command_id = ref.command_id or ""
    if command_id.endswith(_SEAL):
        return Role.LOOP
    if _QUESTION.search(command_id):
        return Role.COLLECTION if ref.media_type == MEDIA_COLLECTION else Role.ANSWER
    return Role.STEP


def stage_of(ref: ResultRef) -> str | None:
    """The stage of a loop whose result this is."""
    return str(ref.command_id).removesuffix(_SEAL) if role_of(ref) is Role.LOOP else None


def physical_address(store: object, uri: str, sha256: str) -> str | None:
    """Where the bytes are within their store: a row of the table of small ones, a path below the folder of files, a key
    below the prefix of a bucket.  The form in which a key of the operator seals them is the store's own affair."""
    if store == STORE_SMALL:
        return f"{SMALL_ADDRESS}/{sha256}"
    words = uri.split("/")
    if store is None or len(words) < 6:
        return None
    tenant, organization = (word.replace(".", "%2E") for word in (words[3], words[5]))
    below = f"{sha256[:2]}/{sha256}" if store == STORE_LARGE else sha256
    return f"{tenant}/{organization}/{below}"


def _correlation(event: Event) -> dict[str, object] | None:
    """Of a frame: the epoch of its loop, the index of its first row, and which page of the loop it is."""
    if event.stage_id is None or event.frame_id is None:
        return None
    page = event.frame_id.rpartition("/")[2]
    return {
        "loop_epoch": event.stage_id,
        "index": _number(event.meta.get("first")),
        "page": int(page) if page.isascii() and page.isdigit() else None,
    }


def _text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _number(value: object) -> int | None:
    digits = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < _DIGITS else None
