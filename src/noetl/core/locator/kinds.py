"""Everything that has a locator: a closed list, each with one shape, and the way between a shape and its text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from noetl.core.errors import LocatorInvalid
from noetl.core.locator.locality import LEVELS, NOWHERE, Place
from noetl.core.locator.segments import decoded, encoded, joined, refused, split

OWNER_WORDS = ("tenant", "org")
ORDER = (*OWNER_WORDS, *LEVELS)


class Kind(StrEnum):
    TENANT = "tenant"
    ORGANIZATION = "organization"
    REGION = "region"
    ZONE = "zone"
    CLUSTER = "cluster"
    NODE = "node"
    WORKER = "worker"
    HOST = "host"
    SERVER = "server"
    PROJECTOR = "projector"
    STREAM = "stream"
    EVENT_STREAM = "event_stream"
    PAYLOAD = "payload"
    CACHE_ENTRY = "cache_entry"
    CACHE_SEGMENT = "cache_segment"
    PROJECTION_SHARD = "projection_shard"
    EXECUTION = "execution"
    RESULT = "result"
    STAGE = "stage"
    FRAME = "frame"
    FRAME_LEASE = "frame_lease"
    CATALOG_ENTRY = "catalog_entry"
    SCRIPT = "script"
    OLD_RESULT = "old_result"
    """A result as it was named before locators had owners: read, and never made anew."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The segments behind the owner and the place: words, and fields in braces.  `is_placed` says that a place may
    stand before them; `is_owned` that an owner must."""

    text: str
    is_placed: bool = False
    is_owned: bool = True
    segments: tuple[str, ...] = field(init=False)
    fields: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        segments = tuple(self.text.split("/"))
        object.__setattr__(self, "segments", segments)
        object.__setattr__(self, "fields", tuple(one[1:-1] for one in segments if one.startswith("{")))

    def fits(self, segments: Sequence[str]) -> bool:
        """Whether the words are at their places."""
        if len(segments) != len(self.segments):
            return False
        return all(mine.startswith("{") or mine == one for mine, one in zip(self.segments, segments, strict=True))


# A kind that is not here is an owner or a place, and has no segments of its own.
SHAPES: Mapping[Kind, Shape] = {
    Kind.HOST: Shape("host/{name}", is_placed=True),
    Kind.SERVER: Shape("server/{name}", is_placed=True),
    Kind.PROJECTOR: Shape("projector/{name}", is_placed=True),
    Kind.STREAM: Shape("stream/{name}", is_placed=True),
    Kind.EVENT_STREAM: Shape("stream/events/{execution_id}/{shard_id}", is_placed=True),
    Kind.PAYLOAD: Shape("payloads/sha256/{sha256}"),
    Kind.CACHE_ENTRY: Shape("cache/{tier}/sha256/{sha256}", is_placed=True),
    Kind.CACHE_SEGMENT: Shape("segment/{name}", is_placed=True),
    Kind.PROJECTION_SHARD: Shape("projection/{name}/shard/{shard_id}"),
    Kind.EXECUTION: Shape("execution/{execution_id}"),
    Kind.RESULT: Shape("execution/{execution_id}/result/{step}"),
    Kind.STAGE: Shape("execution/{execution_id}/stage/{stage_id}"),
    Kind.FRAME: Shape("execution/{execution_id}/stage/{stage_id}/frame/{frame}"),
    Kind.FRAME_LEASE: Shape("execution/{execution_id}/stage/{stage_id}/frame/{frame}/lease/{attempt}"),
    Kind.CATALOG_ENTRY: Shape("catalog/{path}/version/{version}"),
    Kind.SCRIPT: Shape("script/{uri}"),
    Kind.OLD_RESULT: Shape("execution/{execution_id}/result/{step}/{ref}", is_owned=False),
}
_NUMBERS = frozenset(("execution_id", "shard_id", "frame", "attempt", "version"))
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Locator:
    """What a locator says.  `names` has the fields of its kind's shape, in their order."""

    kind: Kind
    tenant_id: str | None = None
    organization_id: str | None = None
    place: Place = NOWHERE
    names: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> str:
        """A field by its name.  It must be one of this kind's."""
        return self.names[SHAPES[self.kind].fields.index(name)]

    def number(self, name: str) -> int:
        assert name in _NUMBERS, name
        return int(self[name])


# --- text ------------------------------------------------------------------------------------------------


def build(locator: Locator) -> str:
    """The text of a locator.  Raises LocatorInvalid."""
    shape = SHAPES.get(locator.kind)
    segments: list[str] = []
    for word, value in _around(locator):
        segments += (word, encoded(value, word))
    if shape is None:
        _check_kind(locator)
        return joined(segments)
    owners = [name for name in (locator.tenant_id, locator.organization_id) if name is not None]
    if len(owners) != (len(OWNER_WORDS) if shape.is_owned else 0) or len(locator.names) != len(shape.fields):
        raise LocatorInvalid(
            f"the locator of a {locator.kind} has {'an' if shape.is_owned else 'no'} owner, and "
            f"exactly {', '.join(shape.fields)}"
        )
    if locator.place != NOWHERE and not shape.is_placed:
        raise LocatorInvalid(f"a {locator.kind} is the same everywhere: its locator has no place")
    values = iter(zip(shape.fields, locator.names, strict=True))
    for segment in shape.segments:
        segments.append(_written(*next(values)) if segment.startswith("{") else segment)
    return joined(segments)


def parse(text: str) -> Locator:
    """What a text names; it is the one text of that.  Raises LocatorInvalid."""
    around, rest = _divided(text, split(text))
    tenant_id, organization_id = (around.pop(word, None) for word in OWNER_WORDS)
    place = Place(**around)
    if organization_id is None and (place != NOWHERE or (tenant_id is not None and rest)):
        raise refused(text, "everything but a tenant belongs to an organization: begin with tenant/NAME/org/NAME")
    if organization_id is not None and tenant_id is None:
        raise refused(text, "an organization belongs to a tenant: begin with tenant/NAME")
    if not rest:
        kind = _kind_around(text, tenant_id, organization_id, place)
        return Locator(kind=kind, tenant_id=tenant_id, organization_id=organization_id, place=place)
    kind = _kind_of(text, rest, has_owner=organization_id is not None)
    if place != NOWHERE and not SHAPES[kind].is_placed:
        raise refused(text, f"a {kind} is the same everywhere: its locator has no place")
    names = _names(text, SHAPES[kind], rest)
    return Locator(kind=kind, tenant_id=tenant_id, organization_id=organization_id, place=place, names=names)


def _divided(text: str, segments: Sequence[str]) -> tuple[dict[str, str], Sequence[str]]:
    """The owner and the place by their words, and the segments behind them."""
    around: dict[str, str] = {}
    last, rest = "", segments
    while rest and rest[0] in ORDER:
        word = rest[0]
        if last and ORDER.index(word) <= ORDER.index(last):
            raise refused(text, f"{word!r} stands behind {last!r}: the order is {', '.join(ORDER)}, each once")
        if len(rest) == 1:
            raise refused(text, f"it ends with {word!r} and not with its name")
        around[word] = decoded(rest[1])
        last, rest = word, rest[2:]
    return around, rest


def _around(locator: Locator) -> Iterator[tuple[str, str]]:
    """The owner and the place, from coarse to fine."""
    for word, value in zip(OWNER_WORDS, (locator.tenant_id, locator.organization_id), strict=True):
        if value is not None:
            yield word, value
    yield from locator.place.pairs()


def _check_kind(locator: Locator) -> None:
    words = [word for word, _ in _around(locator)]
    needed = words[: len(OWNER_WORDS)] == list(OWNER_WORDS) or words == ["tenant"]
    named = {"org": "organization"}.get(words[-1], words[-1]) if words else None
    if not needed or locator.names or named != locator.kind:
        raise LocatorInvalid(f"the locator of a {locator.kind} ends with the name of the {locator.kind}")


def _kind_around(text: str, tenant_id: str | None, organization_id: str | None, place: Place) -> Kind:
    """What is named by an owner or a place alone."""
    if place != NOWHERE:
        return Kind(place.pairs()[-1][0])
    if tenant_id is None:
        raise refused(text, "it names nothing: begin with tenant/NAME")
    return Kind.TENANT if organization_id is None else Kind.ORGANIZATION


def _kind_of(text: str, rest: Sequence[str], *, has_owner: bool) -> Kind:
    for kind, shape in SHAPES.items():
        if shape.fits(rest) and shape.is_owned is has_owner:
            return kind
    alike = [shape.text for shape in SHAPES.values() if shape.segments[0] == rest[0]]
    if alike:
        raise refused(text, f"behind owner and place it must be {' or '.join(alike)}")
    known = sorted({shape.segments[0] for shape in SHAPES.values()})
    raise refused(text, f"there is no kind {rest[0]!r}: there are {', '.join((*ORDER, *known))}")


def _names(text: str, shape: Shape, rest: Sequence[str]) -> tuple[str, ...]:
    values = [decoded(one) for one, mine in zip(rest, shape.segments, strict=True) if mine.startswith("{")]
    for name, value in zip(shape.fields, values, strict=True):
        reason = _fault(name, value)
        if reason is not None:
            raise refused(text, reason)
    return tuple(values)


def _written(name: str, value: str) -> str:
    reason = _fault(name, value)
    if reason is not None:
        raise LocatorInvalid(f"no locator can be made: {reason}")
    return encoded(value, name)


def _fault(name: str, value: str) -> str | None:
    """What is wrong with the value of a field."""
    if name == "sha256":
        return None if _DIGEST.fullmatch(value) else "a digest has 64 hexadecimal digits in lower case"
    if name in _NUMBERS and (not _NUMBER.fullmatch(value) or int(value) >= 2**63):
        return f"{name} must be a number below 2^63 in decimal digits, without zeros before it, not {value[:40]!r}"
    return None
