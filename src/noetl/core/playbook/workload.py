"""The effective workload: the playbook's defaults under the request's payload."""

from __future__ import annotations

from collections.abc import Mapping


def merge(defaults: Mapping[str, object], payload: Mapping[str, object]) -> dict[str, object]:
    """Deep merge: the payload wins on scalars and lists, mappings merge."""
    merged = dict(defaults)
    for key, value in payload.items():
        known = merged.get(key)
        merged[key] = merge(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return merged


def request_payload(payload: Mapping[str, object]) -> dict[str, object]:
    """A payload whose `ctx` or `workload` holds a mapping has that mapping one level up."""
    result = dict(payload)
    for key in ("workload", "ctx"):
        inner = result.get(key)
        if isinstance(inner, dict):
            del result[key]
            result = merge(result, inner)
    return result
