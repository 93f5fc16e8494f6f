"""`noetl://` names.  The only place that builds and parses them."""

from __future__ import annotations

from urllib.parse import quote

SCHEME = "noetl://"


def _segment(value: str) -> str:
    return quote(value, safe="")


def payload_locator(tenant_id: str, organization_id: str, sha256: str) -> str:
    return f"{SCHEME}tenant/{_segment(tenant_id)}/org/{_segment(organization_id)}/payloads/sha256/{sha256}"


def producer_locator(tenant_id: str, organization_id: str, kind: str, name: str) -> str:
    return f"{SCHEME}tenant/{_segment(tenant_id)}/org/{_segment(organization_id)}/{kind}/{_segment(name)}"
