"""Large bodies of one command on their way to the payload store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from noetl.core.results.index import Node
from noetl.engine.payloads import Payloads
from noetl.engine.work.calling.redact import Redactor


class PayloadBodySink:
    """The sink that a tool is given: it stores for one owner and knows no other, and it stores no secret that the
    redactor has seen."""

    def __init__(
        self, payloads: Payloads, *, tenant_id: str, organization_id: str, redactor: Redactor | None = None
    ) -> None:
        self._payloads = payloads
        self._redactor = redactor or Redactor()
        self._tenant_id = tenant_id
        self._organization_id = organization_id

    async def keep(self, chunks: AsyncIterator[bytes], *, media_type: str) -> dict[str, object]:
        reference = await self._payloads.keep_stream(
            self._redactor.guarded(chunks),
            tenant_id=self._tenant_id,
            organization_id=self._organization_id,
            media_type=media_type,
        )
        return reference.to_json()

    async def keep_json(self, chunks: AsyncIterator[bytes], *, index: Callable[[], Node]) -> dict[str, object]:
        reference = await self._payloads.keep_indexed(
            self._redactor.guarded(chunks),
            index=index,
            tenant_id=self._tenant_id,
            organization_id=self._organization_id,
        )
        return reference.to_json()
