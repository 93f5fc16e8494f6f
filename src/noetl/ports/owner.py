"""Whose request it is."""

from __future__ import annotations

from typing import Protocol


class Owner(Protocol):
    """The tenant and the organization that everything is scoped by."""

    @property
    def tenant_id(self) -> str: ...

    @property
    def organization_id(self) -> str: ...
