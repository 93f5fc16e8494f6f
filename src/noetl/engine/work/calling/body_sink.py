"""Large bodies of one command on their way to the payload store."""

from __future__ import annotations

from collections.abc import AsyncIterator

from noetl.engine.payloads import Payloads


class PayloadBodySink:
    """The sink that a tool is given: it stores for one owner and knows no other."""

    def __init__(self, payloads: Payloads, *, tenant_id: str, organization_id: str) -> None:
        self._payloads = payloads
        self._tenant_id = tenant_id
        self._organization_id = organization_id

    async def keep(self, chunks: AsyncIterator[bytes], *, media_type: str) -> dict[str, object]:
        reference = await self._payloads.keep_stream(
            chunks, tenant_id=self._tenant_id, organization_id=self._organization_id, media_type=media_type
        )
        return reference.to_json()
