"""The processes on this ledger and the shards that they own."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from noetl.ports.serving.roster import SessionRow
from noetl.ports.serving.runtimes import Runtime
from noetl.ports.serving.shards import OwnedShard
from noetl.processes.server.bodies import answer
from noetl.processes.server.parts import ServerBooks


class ShardView(BaseModel):
    shard_id: int
    owner: str | None = Field(description="the process that decides it; null when it is free")
    owner_runtime_id: str | None
    owner_url: str | None
    epoch: int = Field(description="rises with every owner; an earlier one can write nothing any more")
    lease_seconds: float | None = Field(description="what is left of its owner's lease; negative when it has run out")
    position: int = Field(description="of the last event")
    decided_position: int = Field(description="every event up to here is decided")
    lag: int = Field(description="events that nobody has decided yet")
    projected_position: int | None = Field(description="every event up to here is shown")
    projection_lag: int | None = Field(description="events that are not shown yet")


class ShardsView(BaseModel):
    shards: list[ShardView]


class RuntimeView(BaseModel):
    runtime_id: str
    instance: str
    kind: str
    url: str | None
    version: str | None
    node_number: int
    started_at: str
    heartbeat_at: str
    lease_seconds: float
    is_alive: bool


class WorkerSessionView(BaseModel):
    session_id: str
    worker_id: str
    pool: str
    kinds: list[str] | None = Field(description="of tasks that it can run; null for all")
    slots: int
    place: dict[str, str] = Field(description="region, zone, cluster and node, as far as it says")


class RuntimesView(BaseModel):
    runtimes: list[RuntimeView]
    sessions: list[WorkerSessionView]


def router(books: ServerBooks) -> APIRouter:
    found = APIRouter(tags=["servers"])

    @found.get("/api/shards", responses={200: {"model": ShardsView}})
    async def shards(_request: Request) -> Response:
        """Every shard with its owner, the owner's lease, and how far it is decided and shown."""
        return answer({"shards": [_shard(one) for one in await books.shards.look()]})

    @found.get("/api/runtimes", responses={200: {"model": RuntimesView}})
    async def runtimes(_request: Request) -> Response:
        """The processes that are alive, and those that died lately; the newest first.  And the worker sessions of all
        servers, with the places where the workers are."""
        known, living = await books.runtimes.known(), await books.roster.living()
        return answer({"runtimes": [_runtime(one) for one in known], "sessions": [_session(one) for one in living]})

    return found


def _shard(one: OwnedShard) -> dict[str, object]:
    head = one.head
    last = head.next_position - 1
    is_owned = one.owner_runtime_id is not None
    return {
        "shard_id": head.shard_id,
        "owner": one.owner_instance if is_owned else None,
        "owner_runtime_id": str(one.owner_runtime_id) if is_owned else None,
        "owner_url": one.owner_url,
        "epoch": head.epoch,
        "lease_seconds": one.lease_seconds,
        "position": last,
        "decided_position": head.decided_position,
        "lag": last - head.decided_position,
        "projected_position": one.projected_position,
        "projection_lag": None if one.projected_position is None else max(last - one.projected_position, 0),
    }


def _session(one: SessionRow) -> dict[str, object]:
    return {
        "session_id": str(one.session_id),
        "worker_id": one.worker_id,
        "pool": one.pool,
        "kinds": None if one.kinds is None else sorted(one.kinds),
        "slots": one.slots,
        "place": one.place.to_json(),
    }


def _runtime(one: Runtime) -> dict[str, object]:
    return {
        "runtime_id": str(one.runtime_id),
        "instance": one.instance,
        "kind": one.kind,
        "url": one.url,
        "version": one.version,
        "node_number": one.node_number,
        "started_at": one.started_at,
        "heartbeat_at": one.heartbeat_at,
        "lease_seconds": one.lease_seconds,
        "is_alive": one.lease_seconds > 0,
    }
