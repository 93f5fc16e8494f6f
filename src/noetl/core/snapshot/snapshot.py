"""A state at a position, with everything that says whether it may be used instead of folding again.

A snapshot is never the authority: whatever does not fit exactly is treated as if it were not there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from noetl.core.codec import canonical_bytes, ordered_bytes, parse_json, sha256_hex
from noetl.core.execution.state import ExecutionState
from noetl.core.snapshot.fields import coder_of
from noetl.core.snapshot.version import CODE_VERSION
from noetl.core.upcasting.registry import UPCASTERS

_CODER = coder_of(ExecutionState)
_DIGEST_CHARS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A row of `noetl.projection_snapshot`.

    `checksum` is that of the folded state, independent of the order of keys: two folds of the same events have the
    same.  `payload_root` stands for all payloads that the state names, and for where they were made."""

    execution_id: int
    position: int
    tenant_id: str
    organization_id: str
    shard_id: int
    stream_version: int
    last_event_id: int
    code_version: str
    upcaster_digest: str
    payload_root: str
    checksum: str
    state: bytes = field(repr=False)


def state_document(state: ExecutionState) -> dict[str, Any]:
    """The state as JSON, exactly; keys in the order of the state."""
    document: dict[str, Any] = _CODER.encode(state)
    return document


def state_from_document(document: Mapping[str, Any]) -> ExecutionState:
    state: ExecutionState = _CODER.decode(document)
    return state


def state_checksum(state: ExecutionState) -> str:
    """What tells two states apart.  Replay, projections and snapshots compare this one."""
    return _checksum(state_document(state))


def take(state: ExecutionState, *, shard_id: int, position: int) -> Snapshot:
    document = state_document(state)
    return Snapshot(
        execution_id=state.execution_id,
        position=position,
        tenant_id=state.tenant_id,
        organization_id=state.organization_id,
        shard_id=shard_id,
        stream_version=state.version,
        last_event_id=state.last_event_id,
        code_version=CODE_VERSION,
        upcaster_digest=UPCASTERS.digest,
        payload_root=_payload_root(document),
        checksum=_checksum(document),
        state=ordered_bytes(document),
    )


def restore(snapshot: Snapshot) -> ExecutionState | None:
    """The state of a snapshot; None when it does not fit this release or is not what was written."""
    if (snapshot.code_version, snapshot.upcaster_digest) != (CODE_VERSION, UPCASTERS.digest):
        return None
    try:
        document: Any = parse_json(snapshot.state)
        if not isinstance(document, dict) or _checksum(document) != snapshot.checksum:
            return None
    except (ValueError, RecursionError):
        return None
    if _payload_root(document) != snapshot.payload_root:
        return None
    state = state_from_document(document)
    named = (state.execution_id, state.version, state.last_event_id, state.tenant_id, state.organization_id)
    stored = (
        *(snapshot.execution_id, snapshot.stream_version, snapshot.last_event_id),
        *(snapshot.tenant_id, snapshot.organization_id),
    )
    return state if named == stored else None


def _checksum(document: Mapping[str, Any]) -> str:
    """Where something ran is no content: states that differ in nothing else are the same."""
    return sha256_hex(canonical_bytes({name: value for name, value in document.items() if name != "places"}))


def _payload_root(document: Mapping[str, Any]) -> str:
    digests = sorted(set(_digests(document)))
    if "places" in document:
        digests.append(sha256_hex(canonical_bytes(document["places"])))
    return sha256_hex("\n".join(digests).encode("ascii"))


def _digests(document: object) -> Iterator[str]:
    """The digests of all references in a document, however deep."""
    waiting = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            digest = value.get("sha256")
            if isinstance(digest, str) and "uri" in value and len(digest) == _DIGEST_CHARS and digest.isascii():
                yield digest
            waiting.extend(value.values())
        elif isinstance(value, list | tuple):
            waiting.extend(value)
