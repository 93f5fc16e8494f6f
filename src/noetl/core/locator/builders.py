"""A builder for each kind of locator."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from noetl.core.errors import LocatorInvalid
from noetl.core.locator.kinds import Kind, Locator, build, parse
from noetl.core.locator.locality import NOWHERE, Place

PRODUCERS = frozenset((Kind.HOST, Kind.SERVER, Kind.WORKER, Kind.PROJECTOR))
_PAYLOADS_WORDS = "payloads/sha256"


def _built(kind: Kind, tenant_id: str, organization_id: str, *names: str | int, place: Place = NOWHERE) -> str:
    """`names` are the fields of the kind's shape, in their order."""
    values = tuple(map(str, names))
    return build(Locator(kind=kind, tenant_id=tenant_id, organization_id=organization_id, place=place, names=values))


# --- owners and places -----------------------------------------------------------------------------------


def tenant_locator(tenant_id: str) -> str:
    return build(Locator(kind=Kind.TENANT, tenant_id=tenant_id))


@lru_cache(maxsize=1_024)
def organization_locator(tenant_id: str, organization_id: str) -> str:
    return build(Locator(kind=Kind.ORGANIZATION, tenant_id=tenant_id, organization_id=organization_id))


def place_locator(tenant_id: str, organization_id: str, place: Place) -> str:
    """A region, zone, cluster, node or worker: the finest that is known of a place."""
    if place == NOWHERE:
        raise LocatorInvalid("the locator of a place needs a region, zone, cluster, node or worker")
    kind = Kind(place.pairs()[-1][0])
    return build(Locator(kind=kind, tenant_id=tenant_id, organization_id=organization_id, place=place))


def worker_locator(tenant_id: str, organization_id: str, worker_id: str, place: Place = NOWHERE) -> str:
    return place_locator(tenant_id, organization_id, replace(place, worker=worker_id))


# --- processes and what is between them ------------------------------------------------------------------


def host_locator(tenant_id: str, organization_id: str, name: str, place: Place = NOWHERE) -> str:
    return _built(Kind.HOST, tenant_id, organization_id, name, place=place)


def server_locator(tenant_id: str, organization_id: str, name: str, place: Place = NOWHERE) -> str:
    return _built(Kind.SERVER, tenant_id, organization_id, name, place=place)


def projector_locator(tenant_id: str, organization_id: str, name: str, place: Place = NOWHERE) -> str:
    return _built(Kind.PROJECTOR, tenant_id, organization_id, name, place=place)


def producer_locator(tenant_id: str, organization_id: str, kind: str, name: str) -> str:
    """Who makes events: a process of one of the kinds that do."""
    if kind not in PRODUCERS:
        raise LocatorInvalid(f"no {kind!r} makes events: {', '.join(sorted(PRODUCERS))} do")
    if kind == Kind.WORKER:
        return worker_locator(tenant_id, organization_id, name)
    return _built(Kind(kind), tenant_id, organization_id, name)


def stream_locator(tenant_id: str, organization_id: str, name: str, place: Place = NOWHERE) -> str:
    return _built(Kind.STREAM, tenant_id, organization_id, name, place=place)


def event_stream_locator(
    tenant_id: str, organization_id: str, execution_id: int, shard_id: int, place: Place = NOWHERE
) -> str:
    """The events of one execution as they are distributed."""
    return _built(Kind.EVENT_STREAM, tenant_id, organization_id, execution_id, shard_id, place=place)


# --- data ------------------------------------------------------------------------------------------------


def payload_locator(tenant_id: str, organization_id: str, sha256: str) -> str:
    """The same as any other builder gives; this one is called for every payload and must be quick."""
    if len(sha256) != 64 or sha256.strip("0123456789abcdef"):
        return _built(Kind.PAYLOAD, tenant_id, organization_id, sha256)
    return f"{organization_locator(tenant_id, organization_id)}/{_PAYLOADS_WORDS}/{sha256}"


def payload_digest(uri: object) -> str | None:
    """The digest that the locator of a payload ends with; None of anything else.  Whose payload it is, is for the
    caller to check."""
    try:
        found = parse(uri) if isinstance(uri, str) else None
    except LocatorInvalid:
        return None
    return found["sha256"] if found is not None and found.kind is Kind.PAYLOAD else None


def cache_entry_locator(tenant_id: str, organization_id: str, tier: str, sha256: str, place: Place = NOWHERE) -> str:
    """A copy of a payload in a cache of some place."""
    return _built(Kind.CACHE_ENTRY, tenant_id, organization_id, tier, sha256, place=place)


def cache_segment_locator(tenant_id: str, organization_id: str, name: str, place: Place = NOWHERE) -> str:
    """A segment of shared memory on a node."""
    return _built(Kind.CACHE_SEGMENT, tenant_id, organization_id, name, place=place)


def projection_shard_locator(tenant_id: str, organization_id: str, name: str, shard_id: int) -> str:
    return _built(Kind.PROJECTION_SHARD, tenant_id, organization_id, name, shard_id)


# --- executions ------------------------------------------------------------------------------------------


def execution_locator(tenant_id: str, organization_id: str, execution_id: int) -> str:
    return _built(Kind.EXECUTION, tenant_id, organization_id, execution_id)


def result_locator(tenant_id: str, organization_id: str, execution_id: int, step: str) -> str:
    return _built(Kind.RESULT, tenant_id, organization_id, execution_id, step)


def stage_locator(tenant_id: str, organization_id: str, execution_id: int, stage_id: str) -> str:
    return _built(Kind.STAGE, tenant_id, organization_id, execution_id, stage_id)


def frame_locator(tenant_id: str, organization_id: str, execution_id: int, stage_id: str, frame: int) -> str:
    return _built(Kind.FRAME, tenant_id, organization_id, execution_id, stage_id, frame)


def frame_lease_locator(
    tenant_id: str, organization_id: str, execution_id: int, stage_id: str, *, frame: int, attempt: int
) -> str:
    return _built(Kind.FRAME_LEASE, tenant_id, organization_id, execution_id, stage_id, frame, attempt)


# --- the catalog -----------------------------------------------------------------------------------------


def catalog_entry_locator(tenant_id: str, organization_id: str, path: str, version: int) -> str:
    return _built(Kind.CATALOG_ENTRY, tenant_id, organization_id, path, version)


def script_locator(tenant_id: str, organization_id: str, uri: str) -> str:
    return _built(Kind.SCRIPT, tenant_id, organization_id, uri)
