"""The tool itself."""

from __future__ import annotations

import asyncio
import gzip

from noetl.core.errors import Failure, ToolFailed
from noetl.ports.tool import ArtifactStore, ToolCall, ToolResult, ToolSettings
from noetl.tools.artifact.contents import JSON, packed, shown, shown_parts, unpacked, value_of
from noetl.tools.artifact.files import Files
from noetl.tools.artifact.request import FILE, Request, request_of
from noetl.tools.artifact.tabular import packed_rows


class ArtifactTool:
    kind = "artifact"

    def __init__(self, settings: ToolSettings) -> None:
        self._files = Files(settings.artifact_roots)

    async def start(self) -> None:
        return None

    async def close(self) -> None:
        return None

    async def run(self, call: ToolCall) -> ToolResult:
        request = request_of(call)
        try:
            async with asyncio.timeout(call.timeout_seconds):
                if request.scheme == FILE:
                    return ToolResult(value=await self._file(request))
                return await self._stored(request, call.artifacts)
        except TimeoutError:
            message = f"artifact: {request.action} took longer than {call.timeout_seconds:g} s"
            return ToolResult(failure=Failure(kind="timeout", message=message))

    async def _file(self, request: Request) -> dict[str, object]:
        assert request.path is not None
        assert request.uri is not None
        if request.action == "get":
            content = await asyncio.to_thread(self._files.read, request.path)
            is_compressed = request.is_compressed or request.path.endswith(".gz")
            data, content_type = value_of(unpacked(content, is_compressed=is_compressed))
            return shown(data, uri=request.uri, size_bytes=len(content), content_type=content_type)
        content, content_type = packed_rows(request.data, request.path) or packed(request.data)
        if request.is_compressed:
            content = gzip.compress(content, mtime=0)
        await asyncio.to_thread(self._files.write, request.path, content)
        return {"uri": request.uri, "size_bytes": len(content), "content_type": content_type}

    @staticmethod
    async def _stored(request: Request, store: ArtifactStore | None) -> ToolResult:
        if store is None:
            message = "artifact: this worker has no store of results"
            raise ToolFailed(Failure(kind="storage_access", code="NO_STORE", message=message))
        if request.action == "put":
            content, content_type = packed(request.data)
            compression = "gzip" if request.is_compressed else None
            reference = await store.keep(content, media_type=content_type, compression=compression)
            facts = {"uri": reference["uri"], "size_bytes": reference["bytes"], "content_type": content_type}
            return ToolResult(value={**facts, "ref": dict(reference)})
        assert request.reference is not None
        found = await store.read(request.reference)
        data, kind = found.value, found.content_type or JSON
        if found.content is not None:
            plain = unpacked(found.content, is_compressed=found.compression == "gzip")
            data, kind = value_of(plain, found.content_type)
        value = shown(data, uri=found.uri, size_bytes=found.size_bytes, content_type=kind)
        return ToolResult(value=value, parts=shown_parts(found.parts))
