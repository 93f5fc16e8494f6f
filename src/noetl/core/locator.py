"""`noetl://` names.  The only place that builds and parses them."""

from __future__ import annotations

import re
from urllib.parse import quote

SCHEME = "noetl://"
_PAYLOAD = re.compile(re.escape(SCHEME) + r"tenant/[^/]+/org/[^/]+/payloads/sha256/([0-9a-f]{64})")


def _segment(value: str) -> str:
    return quote(value, safe="")


def payload_locator(tenant_id: str, organization_id: str, sha256: str) -> str:
    return f"{SCHEME}tenant/{_segment(tenant_id)}/org/{_segment(organization_id)}/payloads/sha256/{sha256}"


def payload_digest(uri: str) -> str | None:
    """The digest that the locator of a payload ends with; whose payload it is, is for the caller to check."""
    match = _PAYLOAD.fullmatch(uri)
    return None if match is None else match[1]


def producer_locator(tenant_id: str, organization_id: str, kind: str, name: str) -> str:
    return f"{SCHEME}tenant/{_segment(tenant_id)}/org/{_segment(organization_id)}/{kind}/{_segment(name)}"
