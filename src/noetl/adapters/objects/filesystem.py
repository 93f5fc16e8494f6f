"""Payloads as files: written to a temporary name, synced, renamed, directory synced.  Then the event may name them."""

from __future__ import annotations

import asyncio
import os
import secrets
from pathlib import Path
from urllib.parse import quote

from noetl.core.codec import sha256_hex
from noetl.core.errors import PayloadCorrupt, PayloadMissing
from noetl.core.reference import Payload, Reference


class FilePayloads:
    def __init__(self, root: Path) -> None:
        self._root = root

    async def put(self, payload: Payload) -> None:
        await asyncio.to_thread(self._write, payload)

    async def get(self, reference: Reference, *, tenant_id: str, organization_id: str) -> bytes:
        path = self._path(tenant_id, organization_id, reference.sha256)
        return await asyncio.to_thread(self._read, path, reference)

    def _path(self, tenant_id: str, organization_id: str, sha256: str) -> Path:
        """Digest names below encoded tenant and organization: nothing of a user's text becomes a path."""
        assert len(sha256) == 64
        assert sha256.isalnum()
        owner = self._root / quote(tenant_id, safe="").replace(".", "%2E")
        return owner / quote(organization_id, safe="").replace(".", "%2E") / sha256[:2] / sha256

    def _write(self, payload: Payload) -> None:
        path = self._path(payload.tenant_id, payload.organization_id, payload.reference.sha256)
        if path.exists():
            # Reuse renews the time, so that a collector's grace starts again.
            os.utime(path)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        # A name of its own for each writer: two may store the same content at the same moment.
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        with temporary.open("wb") as file:
            file.write(payload.content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        # Up to the root, for each of these folders may be new.
        for folder in (path.parent, *path.parents[1:4]):
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    @staticmethod
    def _read(path: Path, reference: Reference) -> bytes:
        try:
            content = path.read_bytes()
        except FileNotFoundError as error:
            raise PayloadMissing(f"{reference.uri} is not in the file store") from error
        if sha256_hex(content) != reference.sha256:
            raise PayloadCorrupt(f"{reference.uri}: the file has another digest")
        return content
