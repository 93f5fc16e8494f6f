"""What data sources inside Spark reach: rows behind locators, payload stores, and the ledger to read.

A source is planned in one process, read in others and committed in a third.  What it needs travels to all of them as
one value, which can be pickled; it never stands in an option or a setting of Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from noetl.core.reference import Reference
from noetl.ports.data.payloads import LargePayloadStore

EventRow = Sequence[object]
"""The members of one event, in the order of EVENT_COLUMNS; documents as JSON text, times with their zone."""

EVENT_COLUMNS = (
    "shard_id",
    "position",
    "execution_id",
    "event_id",
    "tenant_id",
    "organization_id",
    "stream_id",
    "stream_version",
    "aggregate_type",
    "aggregate_id",
    "event_type",
    "schema_name",
    "schema_version",
    "event_time",
    "ingest_time",
    "producer",
    "causation_id",
    "correlation_id",
    "transition_key",
    "command_id",
    "stage_id",
    "frame_id",
    "parent_event_id",
    "parent_execution_id",
    "payload_ref",
    "result",
    "writes",
    "meta",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerHeads:
    """The last position of every shard, in one life of the ledger."""

    incarnation: str
    positions: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventWindow:
    """Events of one shard behind one position, up to another one; of one owner, and perhaps of some kinds only."""

    shard_id: int
    after_position: int
    until_position: int
    tenant_id: str
    organization_id: str
    execution_id: int | None = None
    event_types: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPage:
    """Some events in the order of their positions.  All that a window has up to `position` are among them."""

    rows: Sequence[EventRow]
    position: int


class LedgerReading(Protocol):
    """The ledger for readers.  It never waits for, or holds up, who appends."""

    async def heads(self) -> LedgerHeads: ...

    async def events(self, window: EventWindow, *, rows_max: int) -> EventPage: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRows:
    """Rows that are no table: a list in a JSON payload."""

    rows: Sequence[object]


class SourceStores(Protocol):
    """Open connections; for one event loop."""

    @property
    def large(self) -> LargePayloadStore: ...

    @property
    def ledger(self) -> LedgerReading: ...

    async def content(self, reference: Reference, *, tenant_id: str, organization_id: str) -> bytes:
        """The verified bytes of a payload of any size, from whichever store has it."""
        ...

    async def located(self, locator: str, path: str) -> Reference | PlainRows:
        """Where the rows are that a locator names: a table or a dataset, or the rows themselves.  `path` chooses a part
        of a result, as the API does.  Raises LocatorInvalid, PayloadMissing, ResultUnknown, ResultNotTabular."""
        ...


class SourceAccess(Protocol):
    """How to open them, in any process.  It holds what opens the stores, so it has no text form."""

    @property
    def tenant_id(self) -> str: ...

    @property
    def organization_id(self) -> str: ...

    @property
    def is_confined(self) -> bool:
        """Whether nothing may be reached that belongs to another tenant or organization."""
        ...

    @property
    def has_files(self) -> bool:
        """Whether payloads of the file store are plain files of this machine."""
        ...

    @property
    def landing(self) -> Path | None:
        """A folder for new files that the store can take over without a copy; None when any folder does."""
        ...

    def opened(self) -> AbstractAsyncContextManager[SourceStores]: ...
