"""Tools: plugins that perform a task of one kind.  Found through the entry point group `noetl.tools`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from noetl.core.errors import Failure
from noetl.ports.secrets import Credential


class BodySink(Protocol):
    """Where a tool puts a body that is too large to hold."""

    async def keep(self, chunks: AsyncIterator[bytes], *, media_type: str) -> Mapping[str, object]:
        """Store the bytes; returns the reference as it is recorded."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """What a reference names: the value of a result, or the bytes of anything else (`content`)."""

    uri: str
    size_bytes: int
    content_type: str | None
    """None when nothing but the content tells."""
    value: object = None
    content: bytes | None = None
    compression: str | None = None


class ArtifactStore(Protocol):
    """Stored results and bytes of whoever asks."""

    async def read(self, reference: Mapping[str, object] | str) -> Artifact:
        """What a recorded reference or a `noetl://` address names.  Raises ToolFailed."""
        ...

    async def keep(self, content: bytes, *, media_type: str, compression: str | None) -> Mapping[str, object]:
        """Store bytes, compressed if asked; returns the reference as it is recorded.  Raises ToolFailed."""
        ...


@dataclass(frozen=True, slots=True)
class Script:
    """The text that a task runs instead of one in its own fields, ready to be run, and where it came from."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call: rendered fields and input, and who asks."""

    fields: Mapping[str, object]
    input: Mapping[str, object]
    names: Mapping[str, object]
    context: Mapping[str, object] | None
    timeout_seconds: float
    tenant_id: str
    organization_id: str
    execution_id: int
    step: str
    label: str
    auth: Credential | Mapping[str, Credential] | None = None
    """The resolved `auth`: one credential, or by alias."""
    sink: BodySink | None = None
    artifacts: ArtifactStore | None = None
    script: Script | None = None
    """Wins over every field that could hold the text."""
    is_row: bool = False
    """One of many equal calls of a frame: a tool may send them on together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a tool returned.  With a failure, `value` is what it could still give."""

    value: object = None
    failure: Failure | None = None
    stdout: str = ""
    traceback: str | None = None
    facts: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSettings:
    """What a tool may need to know when it is made."""

    python_children: int
    python_memory_bytes: int
    http_allow: tuple[str, ...] = ()
    """Addresses beyond the public internet that the http tool may reach: `loopback`, networks, names."""
    postgres_private_hosts: tuple[str, ...] = ()
    """Socket folders of the control plane's own server: the postgres tool enters only as the roles made for tools."""
    artifact_roots: tuple[str, ...] = ()
    """Folders below which the artifact tool may read and write files."""


class Tool(Protocol):
    @property
    def kind(self) -> str: ...

    async def start(self) -> None: ...

    async def run(self, call: ToolCall) -> ToolResult:
        """Perform one call.  The tool keeps `timeout_seconds` itself and fails with kind `timeout`."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class Renderer(Protocol):
    """Renders templates with loops under a time limit, outside the worker's process."""

    async def render(
        self,
        source: object,
        names: Mapping[str, object],
        *,
        now: str | None,
        timeout_seconds: float,
        tenant: str,
        organization: str,
        strict: bool = False,
    ) -> object: ...
