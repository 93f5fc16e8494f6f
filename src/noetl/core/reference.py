"""References to payloads and the one shape of an event's result.

`RESULT_SHAPE` is the schema: the Python type, the CHECK of the ledger's table and the documentation come from
it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
MEDIA_TEXT = "text/plain; charset=utf-8"
MEDIA_ARROW = "application/vnd.apache.arrow.stream"
MEDIA_PARTED = "application/vnd.noetl.parted+json"
"""A value of which parts are payloads of their own: `{"value": …, "parts": [[path, reference], …]}`."""

STORE_SMALL = "db"
STORE_LARGE = "file"
"""Where bytes are: small ones in the table beside the ledger, the others in files."""

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
        for name in ("row_count", "schema_digest", "compression", "index", "ipc"):
            value = getattr(self, name)
            if value is not None:
                document[name] = value
        return document


def reference_from_json(document: Mapping[str, object]) -> Reference:
    try:
        return Reference(**document)  # type: ignore[arg-type]
    except TypeError as error:
        raise EnvelopeInvalid(f"not a reference: {error}") from error


@dataclass(frozen=True, slots=True)
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
    parent_ref: Reference | None = None
    context: Mapping[str, object] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        return {
            "status": self.status,
            "reference": self.reference.to_json() if self.reference else None,
            "parent_ref": self.parent_ref.to_json() if self.parent_ref else None,
            "context": dict(self.context),
        }


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
