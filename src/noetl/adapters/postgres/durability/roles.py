"""Leases of roles on Postgres."""

from __future__ import annotations

from collections.abc import Sequence

from noetl.adapters.postgres.pool import Reader
from noetl.adapters.postgres.statements import query
from noetl.ports.durability.roles import RoleHolder, RoleLease


class PostgresRoleLeases:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def hold(self, roles: Sequence[str], *, runtime_id: int, lease_seconds: float) -> list[RoleLease]:
        rows = await self._reader.fetch(
            query("durability.sql", "hold_roles"),
            roles=list(roles),
            runtime_id=runtime_id,
            lease_seconds=lease_seconds,
        )
        return sorted((RoleLease(**dict(row)) for row in rows), key=lambda lease: lease.role)

    async def release(self, leases: Sequence[RoleLease]) -> None:
        await self._reader.fetch(
            query("durability.sql", "release_roles"),
            roles=[lease.role for lease in leases],
            runtimes=[lease.runtime_id for lease in leases],
            epochs=[lease.epoch for lease in leases],
        )

    async def holders(self) -> list[RoleHolder]:
        rows = await self._reader.fetch(query("durability.sql", "role_holders"))
        return [RoleHolder(**dict(row)) for row in rows]
