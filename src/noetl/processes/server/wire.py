"""The worker protocol on the server's side: commands become lines, facts become what the engine knows.

A fact is checked here as far as a shape can be checked; whether it may be recorded is the decider's to say."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from noetl.core.codec import canonical_json
from noetl.core.errors import EnvelopeInvalid, LeaseLost, NoetlError, RequestInvalid
from noetl.core.limits import FACTS_AT_ONCE_MAX, PAYLOAD_INLINE_BYTES_MAX, SESSION_SLOTS_MAX
from noetl.core.locator import payload_locator
from noetl.core.reference import Payload, address, check_hints
from noetl.engine.payloads import STORE_SMALL
from noetl.engine.sessions.keeper import Told
from noetl.engine.sessions.remote import RemoteSession
from noetl.engine.sessions.voice import Word
from noetl.ports.session import CommandMessage, Fact

KEEP_ALIVE = b'{"keep_alive":true}\n'
FACT_ID_CHARS_MAX = 200
MEDIA_TYPE_CHARS_MAX = 200
_HEX = frozenset("0123456789abcdef")


class PayloadIn(msgspec.Struct, forbid_unknown_fields=True):
    media_type: str
    content: bytes


class FactIn(msgspec.Struct, forbid_unknown_fields=True):
    execution_id: str
    command_id: str
    attempt: int
    event_type: str
    fact_id: str | None = None
    session_id: str | None = None
    result: dict[str, Any] | None = None
    writes: list[dict[str, Any]] | None = None
    meta: dict[str, Any] = msgspec.field(default_factory=dict)
    payload_ref: dict[str, Any] | None = None
    payloads: list[PayloadIn] = msgspec.field(default_factory=list)


class FactsIn(msgspec.Struct, forbid_unknown_fields=True):
    session_id: str
    facts: list[msgspec.Raw]


class BeatIn(msgspec.Struct, forbid_unknown_fields=True):
    slots: Annotated[int, msgspec.Meta(ge=0, le=SESSION_SLOTS_MAX)] | None = None


class IndexIn(msgspec.Struct, forbid_unknown_fields=True):
    sha256: str
    bytes: int


class HintIn(msgspec.Struct, forbid_unknown_fields=True):
    """Where rows lie in the shared memory of a node; whoever follows it checks what is found there."""

    node: str
    name: str
    until: str


class ReferenceIn(msgspec.Struct, forbid_unknown_fields=True):
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
    index: IndexIn | None = None
    ipc: dict[str, HintIn] | None = None


_facts = msgspec.json.Decoder(FactsIn)
_fact = msgspec.json.Decoder(FactIn)
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


# --- down ---------------------------------------------------------------------------------------------------


def line_of(word: Word) -> bytes:
    """One line of the stream."""
    if isinstance(word, CommandMessage):
        return f'{{"command":{canonical_json(command_view(word))}}}\n'.encode()
    stop = {
        "execution_id": str(word.execution_id),
        "command_id": word.command_id,
        "attempt": word.attempt,
        "drain": word.drain,
    }
    return f'{{"stop":{canonical_json(stop)}}}\n'.encode()


def command_view(message: CommandMessage) -> dict[str, object]:
    return {
        "execution_id": str(message.execution_id),
        "command_id": message.command_id,
        "tenant_id": message.tenant_id,
        "organization_id": message.organization_id,
        "attempt": message.attempt,
        "body": message.body,
    }


def end_line(error: NoetlError) -> bytes:
    return f'{{"end":{canonical_json({"code": error.code, "detail": str(error)})}}}\n'.encode()


# --- up -----------------------------------------------------------------------------------------------------


def read_batch(content: bytes) -> tuple[str, list[msgspec.Raw]]:
    """The session and its facts, each still to be read: one that cannot be read spoils no other."""
    try:
        batch = _facts.decode(content)
    except _UNREADABLE as error:
        raise RequestInvalid(f"the batch cannot be read: {error}") from error
    if len(batch.facts) > FACTS_AT_ONCE_MAX:
        raise RequestInvalid(f"{len(batch.facts)} facts are too many for one batch: send at most {FACTS_AT_ONCE_MAX}")
    return batch.session_id, batch.facts


def read_single(content: bytes) -> FactIn:
    fact = read_fact(content)
    if fact.session_id is None:
        raise RequestInvalid("session_id is missing")
    return fact


def read_fact(content: bytes | msgspec.Raw) -> FactIn:
    try:
        fact = _fact.decode(content)
    except _UNREADABLE as error:
        raise EnvelopeInvalid(f"the fact cannot be read: {error}") from error
    if fact.fact_id is not None and not 0 < len(fact.fact_id) <= FACT_ID_CHARS_MAX:
        raise EnvelopeInvalid(f"fact_id must have 1 to {FACT_ID_CHARS_MAX} characters")
    return fact


def slots_of(content: bytes) -> int | None:
    """How many commands a heartbeat asks for; None when it says nothing about it."""
    if not content:
        return None
    try:
        return msgspec.json.decode(content, type=BeatIn).slots
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestInvalid(f"the body is no heartbeat: {error}") from error


def session_id_of(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) >= 2**63:
        raise LeaseLost(f"session {text[:40]!r} has ended or never was: register again")
    return int(text)


def told_of(fact: FactIn, session: RemoteSession) -> Told:
    """The fact as the engine knows it.  Its payloads belong to whom the command belongs to, whatever a worker says."""
    if fact.fact_id is not None and session.answers.find(fact.fact_id) is not None:
        # Answered before; what it says is not looked at again.
        return Told(fact.fact_id, Fact(0, fact.command_id, fact.attempt, fact.event_type))
    text = fact.execution_id
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise EnvelopeInvalid("execution_id must be a number as text")
    message = session.message(int(text), fact.command_id, fact.attempt)
    for place, reference in _references(fact):
        check_reference(place, reference, message)
    check_hints(fact.result)
    return Told(
        fact.fact_id,
        Fact(
            execution_id=message.execution_id,
            command_id=message.command_id,
            attempt=message.attempt,
            event_type=fact.event_type,
            result=fact.result,
            writes=fact.writes,
            meta=fact.meta,
            payload_ref=fact.payload_ref,
            payloads=[_payload(one, message) for one in fact.payloads],
        ),
    )


def is_media_type(text: str) -> bool:
    """It is sent back as a header, so it must be able to be one."""
    return 0 < len(text) <= MEDIA_TYPE_CHARS_MAX and text.isascii() and text.isprintable()


def _payload(one: PayloadIn, message: CommandMessage) -> Payload:
    if not is_media_type(one.media_type):
        raise EnvelopeInvalid(f"media_type must be 1 to {MEDIA_TYPE_CHARS_MAX} printable ASCII characters")
    if len(one.content) > PAYLOAD_INLINE_BYTES_MAX:
        raise EnvelopeInvalid(
            f"a payload has {len(one.content):,} bytes, with a fact travel at most {PAYLOAD_INLINE_BYTES_MAX:,}: "
            "put it with PUT /api/payloads first"
        )
    return address(
        one.content,
        media_type=one.media_type,
        store=STORE_SMALL,
        tenant_id=message.tenant_id,
        organization_id=message.organization_id,
    )


def _references(fact: FactIn) -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    if fact.result is not None and fact.result.get("reference") is not None:
        found.append(("result.reference", fact.result["reference"]))
    if fact.payload_ref is not None:
        found.append(("payload_ref", fact.payload_ref))
    found += [("writes", write["ref"]) for write in fact.writes or () if write.get("ref") is not None]
    return found


def check_reference(place: str, document: object, message: CommandMessage) -> None:
    """A reference that nobody could open, or that names what belongs to somebody else, never reaches the ledger."""
    try:
        reference = msgspec.convert(document, ReferenceIn)
    except (msgspec.ValidationError, RecursionError) as error:
        raise EnvelopeInvalid(f"{place} is not a reference: {error}") from error
    for one in (reference, reference.index):
        if one is not None and (len(one.sha256) != 64 or not _HEX.issuperset(one.sha256) or one.bytes < 0):
            raise EnvelopeInvalid(f"{place}: sha256 must be a lower-case hexadecimal digest, bytes a size")
    if reference.uri != payload_locator(message.tenant_id, message.organization_id, reference.sha256):
        raise EnvelopeInvalid(f"{place}: the uri is not that of this digest for the command's tenant and organization")


def answer_of(error: NoetlError | None, *, is_held: bool) -> dict[str, object]:
    if error is None:
        return {"status": "ok", "is_held": is_held}
    return {"status": "refused", "code": error.code, "detail": str(error), "is_held": is_held}
