"""Leases of roles in memory, by the clock of the database."""

from __future__ import annotations

from collections.abc import Sequence

from noetl.adapters.memory.database import MemoryDatabase
from noetl.adapters.memory.faults import Faults
from noetl.adapters.memory.tables import RoleRow
from noetl.ports.durability.roles import RoleHolder, RoleLease


class MemoryRoleLeases:
    def __init__(self, database: MemoryDatabase, faults: Faults | None = None) -> None:
        self._database = database
        self._faults = faults or Faults()

    async def hold(self, roles: Sequence[str], *, runtime_id: int, lease_seconds: float) -> list[RoleLease]:
        def hold() -> list[RoleLease]:
            rows, now = self._database.tables.roles, self._database.clock.monotonic()
            held = []
            for role in sorted(roles):
                row = rows.get(role, RoleRow(None, 0, float("-inf")))
                has_run_out = row.leased_until < now
                if row.runtime_id != runtime_id and not has_run_out:
                    continue
                is_new = row.runtime_id != runtime_id or has_run_out
                rows[role] = RoleRow(runtime_id, row.epoch + is_new, now + lease_seconds)
                held.append(RoleLease(role=role, runtime_id=runtime_id, epoch=rows[role].epoch))
            return held

        return await self._faults.around("hold_roles", hold)

    async def release(self, leases: Sequence[RoleLease]) -> None:
        def release() -> None:
            rows = self._database.tables.roles
            for lease in leases:
                row = rows.get(lease.role)
                if row is not None and (row.runtime_id, row.epoch) == (lease.runtime_id, lease.epoch):
                    rows[lease.role] = RoleRow(None, row.epoch, float("-inf"))

        await self._faults.around("release_roles", release)

    async def holders(self) -> list[RoleHolder]:
        def read() -> list[RoleHolder]:
            rows, now = self._database.tables.roles, self._database.clock.monotonic()
            return [
                RoleHolder(
                    role=role,
                    runtime_id=row.runtime_id,
                    epoch=row.epoch,
                    seconds_left=max(0.0, row.leased_until - now),
                )
                for role, row in sorted(rows.items())
            ]

        return await self._faults.around("role_holders", read)
