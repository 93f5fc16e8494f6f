"""Values of which parts are stored already, on their way into a payload: the parts are named and not copied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from noetl.core.codec import ordered_bytes
from noetl.core.expression.views.pipelines import with_parts
from noetl.core.reference import MEDIA_JSON, Payload, Reference, parted_media, reference_from_json
from noetl.core.results.parts import Parts, plain_bytes, split, unique
from noetl.engine.payloads import Payloads
from noetl.engine.stored.reader import Reader
from noetl.engine.stored.sources import settled


@dataclass(frozen=True, slots=True)
class Kept:
    """A value that has an address."""

    reference: Reference
    payloads: list[Payload]
    """What must travel with the event that names it."""
    size: int
    """How many bytes it has as JSON, as far as that is known: with its parts, each payload counted once."""


async def keep_value(payloads: Payloads, value: object, *, media_type: str, has_parts: bool, **owner: str) -> Kept:
    """Address a value.  One that is nothing but a part has an address already.  `has_parts` says whether it is worth
    looking for parts, which takes a look at everything."""
    document, parts = await settled(lambda: split(value)) if has_parts else (value, {})
    if not parts:
        payload = await payloads.keep_json(document, media_type=media_type, **owner)
        return Kept(payload.reference, [payload], payload.reference.bytes)
    size = sum(plain_bytes(one) for one in unique(parts))
    if () in parts and media_type == MEDIA_JSON:
        return Kept(reference_from_json(parts[()]._reference), [], size)
    named = {"value": document, "parts": [[list(place), durable(part._reference)] for place, part in parts.items()]}
    payload = await payloads.keep_json(named, media_type=parted_media(media_type), **owner)
    reference = replace(payload.reference, ipc=hints_of(parts))
    around = len(ordered_bytes(document)) - len("null") * len(parts)
    return Kept(reference, [replace(payload, reference=reference)], size + around)


async def read_parted(payloads: Payloads, reference: Mapping[str, Any], **owner: str) -> Any:
    """A document of ours in which parts that are stored on their own are views.  Callers must not change it."""
    reader = Reader(payloads, **owner)
    return await settled(lambda: with_parts(reader.payload(reference).root()))


def copied(value: Any) -> Any:
    """A copy of plain data in which parts are the same views."""
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value


def durable(reference: Mapping[str, Any]) -> dict[str, Any]:
    """A reference as it may stand in a payload: what is true for a while only would give equal content other names."""
    return {name: member for name, member in reference.items() if name != "ipc"}


def hints_of(parts: Parts) -> dict[str, Mapping[str, object]] | None:
    """Where the tables of a value are in shared memory."""
    found: dict[str, Mapping[str, object]] = {}
    for reference in unique(parts):
        if len(found) < HINTS_MAX:
            found.update(reference.get("ipc") or {})
    return found or None


HINTS_MAX = 4
"""An event has little room, and a hint that is missing costs only time."""
