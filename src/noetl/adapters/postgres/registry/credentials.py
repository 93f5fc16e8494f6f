"""Sealed credentials in `noetl.credential`.  Nothing here can open one."""

from __future__ import annotations

from typing import Any

from noetl.adapters.postgres.pool import Reader
from noetl.adapters.postgres.rows import iso
from noetl.adapters.postgres.statements import query
from noetl.ports.secrets import SealedCredential

FILE = "registry.sql"


class PostgresCredentials:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def put(self, credential: SealedCredential) -> None:
        await self._reader.fetch(
            query(FILE, "put_credential"),
            tenant_id=credential.tenant_id,
            organization_id=credential.organization_id,
            name=credential.name,
            type=credential.type,
            description=credential.description,
            tags=list(credential.tags),
            key_id=credential.key_id,
            nonce=credential.nonce,
            ciphertext=credential.ciphertext,
        )

    async def find(self, name: str, *, tenant_id: str, organization_id: str) -> SealedCredential | None:
        rows = await self._reader.fetch(
            query(FILE, "credential"), name=name, tenant_id=tenant_id, organization_id=organization_id
        )
        return _credential(rows[0]) if rows else None

    async def names(self, *, tenant_id: str, organization_id: str) -> list[SealedCredential]:
        rows = await self._reader.fetch(
            query(FILE, "credentials"), tenant_id=tenant_id, organization_id=organization_id
        )
        return [_credential(row) for row in rows]

    async def delete(self, name: str, *, tenant_id: str, organization_id: str) -> bool:
        rows = await self._reader.fetch(
            query(FILE, "delete_credential"), name=name, tenant_id=tenant_id, organization_id=organization_id
        )
        return bool(rows)


def _credential(row: Any) -> SealedCredential:
    values = dict(row)
    values["tags"] = tuple(values["tags"])
    values["updated_at"] = iso(values["updated_at"])
    return SealedCredential(**values)
