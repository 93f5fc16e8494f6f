"""What the API is made over, wired once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from noetl.core.reference import Payload
from noetl.engine.catalog import CatalogService
from noetl.engine.credentials import CredentialService
from noetl.engine.doctor.doctor import Doctor
from noetl.engine.executions import ExecutionService
from noetl.engine.forking.retrying import RetryService
from noetl.engine.frames import FrameService
from noetl.engine.logs import LogBook
from noetl.engine.payloads import Payloads
from noetl.engine.permits.desk import PermitDesk
from noetl.engine.projecting.status import StatusService
from noetl.engine.reading.items import ItemService
from noetl.engine.reading.service import ResultService
from noetl.engine.reading.trace import TraceService
from noetl.engine.sessions.keeper import Keeper
from noetl.ports.data.counters import Counted
from noetl.ports.data.logs import LogSink
from noetl.ports.data.payloads import LargePayloadStore
from noetl.ports.data.sources import LedgerReading
from noetl.ports.queue import Queue
from noetl.ports.secrets import SealedCredentials
from noetl.ports.serving.permits import PermitBooks
from noetl.ports.serving.roster import Roster
from noetl.ports.serving.runtimes import Runtimes
from noetl.ports.serving.shards import Shards
from noetl.processes.server.owners import Owner


class SmallPayloads(Protocol):
    async def put(self, payload: Payload) -> None: ...

    async def find(self, sha256: str, *, tenant_id: str, organization_id: str) -> tuple[bytes, str] | None:
        """Bytes and their media type."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkParts:
    keeper: Keeper
    queue: Queue
    payloads: Payloads
    small: SmallPayloads
    large: LargePayloadStore
    credentials: SealedCredentials
    frames: FrameService
    logs: LogSink
    permits: PermitDesk


@dataclass(frozen=True, slots=True)
class ServerBooks:
    """Where it stands which processes are there and who owns what."""

    runtimes: Runtimes
    shards: Shards
    roster: Roster


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiParts:
    """`facts` are what `/api/health` says; `not_ready` gives the reason why this process is not ready, or None;
    `on_stop` is called when a client asks the process to end."""

    service: ExecutionService
    status: StatusService
    credentials: CredentialService
    catalog: CatalogService
    logs: LogBook
    results: ResultService
    traces: TraceService
    items: ItemService
    retries: RetryService
    ledger: LedgerReading
    doctor: Doctor
    owner: Owner
    facts: Callable[[], Mapping[str, object]]
    not_ready: Callable[[], Awaitable[str | None]]
    on_stop: Callable[[], None]
    counted: Callable[[], Iterable[Counted]]
    """What `/metrics` shows."""
    limits: PermitBooks | None = None
    servers: ServerBooks | None = None
    only_reads: bool = False
    work: WorkParts | None = None
    """What workers of other processes need; None in a process that gives out no work."""
