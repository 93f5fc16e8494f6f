"""`postgres`: statements in a database of the user (dsl §9.4).

The field `pool` is a hint and changes nothing: connections are shared by credential anyway."""

from __future__ import annotations

import asyncio

from noetl.clients.postgres.failures import pg_facts
from noetl.clients.postgres.target import credential_of
from noetl.core.errors import Failure, ToolFailed
from noetl.ports.tool import ToolCall, ToolResult, ToolSettings
from noetl.tools.postgres.claims import PostgresClaims
from noetl.tools.postgres.notices import notices
from noetl.tools.postgres.pools import Pools
from noetl.tools.postgres.request import read_request
from noetl.tools.postgres.results import Results, run_all


class PostgresTool(PostgresClaims):
    """Runs tasks, and claims the rows of cursors over the same connections."""

    kind = "postgres"

    def __init__(self, settings: ToolSettings) -> None:
        super().__init__(Pools(settings.postgres_private_hosts))

    async def start(self) -> None:
        return None

    async def close(self) -> None:
        await self._pools.close()

    async def run(self, call: ToolCall) -> ToolResult:
        until = asyncio.get_running_loop().time() + call.timeout_seconds
        results = Results(call.tables, is_row=call.is_row)
        failure: Failure | None = None
        try:
            request = read_request(call.fields, None if call.script is None else call.script.text)
            credential = credential_of(call.auth, call.fields.get("auth") or call.fields.get("credential"))
            pool = self._pools.of(credential, tenant_id=call.tenant_id, organization_id=call.organization_id)
            async with pool.connection(until) as connection:
                with notices(connection, call.log):
                    failure = await run_all(
                        connection,
                        request,
                        results,
                        until=until,
                        timeout_seconds=call.timeout_seconds,
                        place=pool.place,
                    )
        except ToolFailed as error:
            failure = error.failure
        is_failed = failure is not None
        return ToolResult(
            value=results.value(is_failed=is_failed),
            parts=results.parts(is_failed=is_failed),
            failure=failure,
            facts=pg_facts(failure),
        )
