"""Whose request it is: named by headers, bound to the token, or the settings' default."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote

from starlette.requests import Request

from noetl.core.errors import RequestInvalid

TENANT_HEADER = b"noetl-tenant"
ORGANIZATION_HEADER = b"noetl-organization"
NAME_CHARS_MAX = 100


@dataclass(frozen=True, slots=True)
class Owner:
    """Tenant and organization.  `**owner` gives both as arguments."""

    tenant_id: str
    organization_id: str

    def keys(self) -> Iterator[str]:
        return iter(("tenant_id", "organization_id"))

    def __getitem__(self, name: str) -> str:
        return self.tenant_id if name == "tenant_id" else self.organization_id


def owner_of(request: Request) -> Owner:
    owner = request.state.owner
    assert isinstance(owner, Owner)
    return owner


def name_from_header(value: bytes, header: bytes) -> str:
    """A name travels percent-encoded, because a header holds no more than ASCII everywhere."""
    try:
        name = unquote(value.decode("ascii"), errors="strict")
    except UnicodeDecodeError:
        name = ""
    if not 0 < len(name) <= NAME_CHARS_MAX or not name.isprintable():
        raise RequestInvalid(
            f"{header.decode()} must be 1 to {NAME_CHARS_MAX} printable characters, percent-encoded as UTF-8"
        )
    return name
