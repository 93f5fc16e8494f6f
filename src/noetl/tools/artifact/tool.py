"""The tool itself."""

from __future__ import annotations

import asyncio
import gzip
from functools import partial

from noetl.core.errors import Failure, ToolFailed
from noetl.ports.tool import ArtifactStore, ToolCall, ToolResult, ToolSettings
from noetl.tools.artifact.contents import JSON, packed, shown, shown_parts, unpacked, value_of
from noetl.tools.artifact.files import Files
from noetl.tools.artifact.request import FILE, Request, request_of
from noetl.tools.artifact.tabular import packed_rows

THREAD_BYTES_MIN = 64 * 1024
"""What is larger is packed and unpacked in a thread: everything else of the worker would wait meanwhile."""


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
            data, content_type = await _read(content, None, is_compressed=is_compressed)
            return shown(data, uri=request.uri, size_bytes=len(content), content_type=content_type)
        content, content_type = await _packed(request, request.path)
        await asyncio.to_thread(self._files.write, request.path, content)
        return {"uri": request.uri, "size_bytes": len(content), "content_type": content_type}

    @staticmethod
    async def _stored(request: Request, store: ArtifactStore | None) -> ToolResult:
        if store is None:
            message = "artifact: this worker has no store of results"
            raise ToolFailed(Failure(kind="storage_access", code="NO_STORE", message=message))
        if request.action == "put":
            content, content_type = await _packed(request, None)
            compression = "gzip" if request.is_compressed else None
            reference = await store.keep(content, media_type=content_type, compression=compression)
            facts = {"uri": reference["uri"], "size_bytes": reference["bytes"], "content_type": content_type}
            return ToolResult(value={**facts, "ref": dict(reference)})
        assert request.reference is not None
        found = await store.read(request.reference)
        data, kind = found.value, found.content_type or JSON
        if found.content is not None:
            data, kind = await _read(found.content, found.content_type, is_compressed=found.compression == "gzip")
        value = shown(data, uri=found.uri, size_bytes=found.size_bytes, content_type=kind)
        return ToolResult(value=value, parts=shown_parts(found.parts))


async def _packed(request: Request, path: str | None) -> tuple[bytes, str]:
    """The bytes of the data and their content type; those of a file as they stand in it."""
    data = request.data
    # How large anything else becomes is known when it is packed.
    is_small = (
        data is None
        or isinstance(data, bool | int | float)
        or (isinstance(data, str) and len(data) <= THREAD_BYTES_MIN)
    )
    pack = partial(_pack, data, path, is_compressed=request.is_compressed and path is not None)
    return pack() if is_small else await asyncio.to_thread(pack)


def _pack(data: object, path: str | None, *, is_compressed: bool) -> tuple[bytes, str]:
    rows = None if path is None else packed_rows(data, path)
    content, content_type = rows or packed(data)
    return gzip.compress(content, mtime=0) if is_compressed else content, content_type


async def _read(content: bytes, content_type: str | None, *, is_compressed: bool) -> tuple[object, str]:
    read = partial(_unpack, content, content_type, is_compressed=is_compressed)
    # A few compressed bytes may be many.
    return await asyncio.to_thread(read) if is_compressed or len(content) > THREAD_BYTES_MIN else read()


def _unpack(content: bytes, content_type: str | None, *, is_compressed: bool) -> tuple[object, str]:
    return value_of(unpacked(content, is_compressed=is_compressed), content_type)
