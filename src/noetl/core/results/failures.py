"""A failure as playbooks see it, from what the ledger keeps of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def error_of(recorded: Mapping[str, Any] | None) -> dict[str, object] | None:
    """Absent facts are null (dsl §8.4)."""
    if recorded is None:
        return None
    details = recorded.get("details") or {}
    return {
        "kind": recorded.get("kind"),
        "retryable": recorded.get("retryable"),
        "code": recorded.get("code"),
        "message": recorded.get("message"),
        "status": recorded.get("status"),
        "status_code": recorded.get("status"),
        "http_status": recorded.get("status"),
        "retry_after": recorded.get("retry_after"),
        "pg_code": details.get("sqlstate"),
        "exception_type": recorded.get("exception_type"),
        "details": details or None,
    }
