"""Sources are called by Spark without an event loop; stores and the ledger are reached with one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from noetl.adapters.spark.sources.access import Access, refused
from noetl.ports.data.sources import SourceAccess, SourceStores

T = TypeVar("T")


def reached(access: Access) -> SourceAccess:
    """NoETL's own stores and ledger.  Raises ToolFailed."""
    if access.own is None:
        reason = access.own_refusal or "it was registered without a home or a server: use noetl.spark.register(spark)"
        raise refused(f"this source reaches neither payloads nor the ledger: {reason}")
    return access.own


def check_owner(access: SourceAccess, tenant_id: str | None, organization_id: str | None) -> None:
    """Raises ToolFailed for what belongs to somebody else than the job."""
    own = (access.tenant_id, access.organization_id)
    if access.is_confined and (tenant_id, organization_id) != own:
        raise refused(
            f"it belongs to tenant {tenant_id}, organization {organization_id}, and this job to tenant {own[0]}, "
            f"organization {own[1]}: a job reaches only what is its own"
        )


def waited(access: SourceAccess, work: Callable[[SourceStores], Awaitable[T]]) -> T:
    """What some work with open stores gives."""

    async def run() -> T:
        async with access.opened() as stores:
            return await work(stores)

    return asyncio.run(run())
