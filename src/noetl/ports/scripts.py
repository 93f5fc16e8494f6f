"""Scripts that are files of this machine."""

from __future__ import annotations

from typing import Protocol


class ScriptFiles(Protocol):
    """Files below the configured script roots, and nothing else."""

    @property
    def roots(self) -> tuple[str, ...]:
        """Where is looked, in this order; for messages."""
        ...

    async def read(self, uri: str) -> bytes:
        """The content of the first file of this path below a root.  Raises ScriptUnavailable."""
        ...
