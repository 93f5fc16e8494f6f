"""Sealed credentials in memory."""

from __future__ import annotations

from dataclasses import replace

from noetl.adapters.memory.faults import Faults
from noetl.ports.clock import Clock
from noetl.ports.secrets import SealedCredential


class MemoryCredentials:
    def __init__(self, clock: Clock, faults: Faults | None = None) -> None:
        self._clock = clock
        self._faults = faults or Faults()
        self._rows: dict[tuple[str, str, str], SealedCredential] = {}

    async def put(self, credential: SealedCredential) -> None:
        key = (credential.tenant_id, credential.organization_id, credential.name)

        def write() -> None:
            self._rows[key] = replace(credential, updated_at=self._clock.now())

        await self._faults.around("put_credential", write)

    async def find(self, name: str, *, tenant_id: str, organization_id: str) -> SealedCredential | None:
        key = (tenant_id, organization_id, name)
        return await self._faults.around("credential", lambda: self._rows.get(key))

    async def names(self, *, tenant_id: str, organization_id: str) -> list[SealedCredential]:
        def read() -> list[SealedCredential]:
            own = [self._rows[key] for key in sorted(self._rows) if key[:2] == (tenant_id, organization_id)]
            return [replace(row, nonce=b"", ciphertext=b"") for row in own]

        return await self._faults.around("credentials", read)

    async def delete(self, name: str, *, tenant_id: str, organization_id: str) -> bool:
        key = (tenant_id, organization_id, name)
        return await self._faults.around("delete_credential", lambda: self._rows.pop(key, None) is not None)
