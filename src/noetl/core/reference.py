"""References to payloads and the one shape of an event's result.

`RESULT_SHAPE` is the schema: the Python type, the CHECK of the ledger's table and the documentation come from
it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from noetl.core.codec import canonical_bytes, sha256_hex
from noetl.core.errors import EnvelopeInvalid
from noetl.core.limits import EVENT_RESULT_BYTES_MAX
from noetl.core.locator import payload_locator

MEDIA_JSON = "application/json"
MEDIA_PIPELINE = "application/vnd.noetl.pipeline+json"
MEDIA_LOOP = "application/vnd.noetl.loop+json"
MEDIA_COLLECTION = "application/vnd.noetl.collection+json"
MEDIA_FRAME = "application/vnd.noetl.frame+json"
MEDIA_INDEX = "application/vnd.noetl.index+json"
MEDIA_PLAYBOOK = "application/vnd.noetl.playbook+yaml"
MEDIA_SCRIPT = "text/x-script; charset=utf-8"
MEDIA_LOG = "application/vnd.noetl.log"
MEDIA_TEXT = "text/plain; charset=utf-8"
MEDIA_ARROW = "application/vnd.apache.arrow.stream"
MEDIA_PARTED = "application/vnd.noetl.parted+json"
"""A value of which parts are payloads of their own: `{"value": …, "parts": [[path, reference], …]}`."""

_PARTED = {
    MEDIA_JSON: MEDIA_PARTED,
    MEDIA_PIPELINE: f"{MEDIA_PARTED}; of=pipeline",
    MEDIA_FRAME: f"{MEDIA_PARTED}; of=frame",
}
_WHOLE = {parted: whole for whole, parted in _PARTED.items()}

STORE_SMALL = "db"
STORE_LARGE = "file"
"""Where bytes are: small ones in the table beside the ledger, the others in files unless the settings name another
store (`core/storage.py`)."""
STORE_ANY = ""
"""In a reference that was made from a bare digest: whichever store of large payloads has it."""

# Member of a result → the JSON types it may have.
RESULT_SHAPE: Mapping[str, tuple[str, ...]] = {
    "context": ("object",),
    "parent_ref": ("object", "null"),
    "reference": ("object", "null"),
    "status": ("string",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Content address of immutable bytes, with what a reader must know before it opens them."""

    kind: str
    uri: str
    sha256: str
    media_type: str
    bytes: int
    store: str
    row_count: int | None = None
    schema_digest: str | None = None
    compression: str | None = None
    plain_bytes: int | None = None
    """Of rows in columns: how many bytes they have as JSON, exactly or, when they are many, at least."""
    index: Mapping[str, object] | None = None
    """Where the index of a large JSON payload is: `sha256` and `bytes` of a payload in the same store.  A hint: who
    does not know it reads the whole."""
    ipc: Mapping[str, Mapping[str, object]] | None = None
    """Segments of shared memory that hold the rows of this payload, or of payloads that it names, by their digests:
    `node`, `name`, `until`.  A hint that may be stale: it is never part of a payload's content."""

    def to_json(self) -> dict[str, object]:
        document: dict[str, object] = {
            "kind": self.kind,
            "uri": self.uri,
            "sha256": self.sha256,
            "media_type": self.media_type,
            "bytes": self.bytes,
            "store": self.store,
        }
        for name in ("row_count", "schema_digest", "compression", "plain_bytes", "index", "ipc"):
            value = getattr(self, name)
            if value is not None:
                document[name] = value
        return document


def reference_from_json(document: Mapping[str, object]) -> Reference:
    try:
        return Reference(**document)  # type: ignore[arg-type]
    except TypeError as error:
        raise EnvelopeInvalid(f"not a reference: {error}") from error


def check_hints(document: object) -> None:
    """Refuse a hint to shared memory that stands without the durable reference of what it holds, however deep: when the
    segment is swept, nobody could read it again."""
    waiting = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            if _is_hint(value.get("ipc")) and not any(value.get(name) for name in _DURABLE):
                raise EnvelopeInvalid("`ipc` names shared memory without a durable reference beside it (`uri`)")
            waiting.extend(value.values())
        elif isinstance(value, list | tuple):
            waiting.extend(value)


# What says where the durable copy is, in the envelopes that workers write.
_DURABLE = ("uri", "ref", "locator")


def _is_hint(value: object) -> bool:
    """A place in shared memory, or places by the digest of what they hold.  Anything else that a user calls `ipc` is
    data."""
    if not isinstance(value, Mapping) or not value:
        return False
    places = [value] if "name" in value else list(value.values())
    return all(isinstance(place, Mapping) and {"node", "name"} <= place.keys() for place in places)


def parted_media(media_type: str) -> str:
    """The media type of a document of which parts are payloads of their own."""
    return _PARTED[media_type]


def is_parted(media_type: object) -> bool:
    return media_type in _WHOLE


def held_media(media_type: str) -> str:
    """What a payload holds, whether parts of it are elsewhere or not."""
    return _WHOLE.get(media_type, media_type)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Payload:
    """Bytes on their way to a store, already addressed."""

    reference: Reference
    content: bytes = field(repr=False)
    tenant_id: str
    organization_id: str


def address(
    content: bytes,
    *,
    media_type: str,
    store: str,
    tenant_id: str,
    organization_id: str,
    kind: str = "payload",
) -> Payload:
    digest = sha256_hex(content)
    reference = Reference(
        kind=kind,
        uri=payload_locator(tenant_id, organization_id, digest),
        sha256=digest,
        media_type=media_type,
        bytes=len(content),
        store=store,
    )
    return Payload(reference, content, tenant_id, organization_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What an event says about an outcome: a status, where the bytes are, and a few bounded scalars."""

    status: str
    reference: Reference | None = None
    parent_ref: int | None = None
    """The id of the result that led to this one."""
    context: Mapping[str, object] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        return {
            "status": self.status,
            "reference": self.reference.to_json() if self.reference else None,
            "parent_ref": parent_document(self.parent_ref),
            "context": dict(self.context),
        }


def parent_document(ref_id: int | None) -> dict[str, object] | None:
    """`parent_ref` as results have it."""
    return None if ref_id is None else {"ref_id": ref_id}


def parent_of(result: Mapping[str, Any] | None) -> int | None:
    """The id of the result that led to a recorded one."""
    parent = result.get("parent_ref") if result is not None else None
    return None if parent is None else parent.get("ref_id")


def check_result(result: object) -> None:
    """Refuse what the ledger's CHECK would refuse, before a batch is built around it."""
    if not isinstance(result, dict) or set(result) != set(RESULT_SHAPE):
        raise EnvelopeInvalid(f"a result has exactly the members {', '.join(RESULT_SHAPE)}")
    for member, types in RESULT_SHAPE.items():
        if _json_type(result[member]) not in types:
            raise EnvelopeInvalid(f"result.{member} must be {' or '.join(types)}")


def check_result_size(result: object) -> None:
    size = len(canonical_bytes(result))
    if size > EVENT_RESULT_BYTES_MAX:
        raise EnvelopeInvalid(
            f"result has {size} bytes, the limit is {EVENT_RESULT_BYTES_MAX}: hand data over by reference"
        )


def _json_type(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "object"
    return "string" if isinstance(value, str) else "other"
