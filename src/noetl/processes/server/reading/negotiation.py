"""Which format a reader wants: by name in `format`, or by media type in `Accept`."""

from __future__ import annotations

from enum import StrEnum

from noetl.processes.server.problems import Refusal

NOT_ACCEPTABLE = 406
_RANGES_MAX = 50


class Format(StrEnum):
    JSON = "json"
    NDJSON = "ndjson"
    CSV = "csv"
    ARROW = "arrow"
    PARQUET = "parquet"
    TABLE = "table"
    RAW = "raw"
    """The stored bytes as they are."""


MEDIA_TYPES = {
    Format.JSON: "application/json",
    Format.NDJSON: "application/x-ndjson",
    Format.CSV: "text/csv; charset=utf-8; header=present",
    Format.ARROW: "application/vnd.apache.arrow.stream",
    Format.PARQUET: "application/vnd.apache.parquet",
    Format.TABLE: "text/plain; charset=utf-8",
}
_OTHER_NAMES = {"application/ndjson": Format.NDJSON, "application/jsonl": Format.NDJSON}
_BY_MEDIA_TYPE = {text.partition(";")[0]: found for found, text in MEDIA_TYPES.items()} | _OTHER_NAMES
FORMATS = "json (application/json), " + ", ".join(
    f"{found} ({text.partition(';')[0]})" for found, text in MEDIA_TYPES.items() if found is not Format.JSON
)


def chosen(accept: str | None, own: str | None) -> Format:
    """The format that a reader likes best; the stored bytes have the media type `own`.  Whoever likes anything gets
    JSON.  Raises Refusal."""
    ranges = _ranges(accept or "*/*")
    own_plain = None if own is None else own.partition(";")[0].strip().lower()
    best: tuple[float, Format] | None = None
    for weight, kind in ranges:
        found = _matching(kind, own_plain)
        if found is not None and weight > 0 and (best is None or weight > best[0]):
            best = (weight, found)
    if best is None:
        raise Refusal(NOT_ACCEPTABLE, "not_acceptable", f"none of what Accept names can be given: there is {FORMATS}")
    return best[1]


def _matching(kind: str, own: str | None) -> Format | None:
    """The format of a media range, if there is one."""
    if kind in _BY_MEDIA_TYPE:
        return _BY_MEDIA_TYPE[kind]
    if own is not None and kind == own:
        return Format.RAW
    return {"*/*": Format.JSON, "application/*": Format.JSON, "text/*": Format.CSV}.get(kind)


def _ranges(accept: str) -> list[tuple[float, str]]:
    """Media ranges with their weights, in the order in which they are written."""
    found: list[tuple[float, str]] = []
    for one in accept.split(",")[:_RANGES_MAX]:
        kind, *parameters = (part.strip().lower() for part in one.split(";"))
        weight = next((part[2:] for part in parameters if part.startswith("q=")), "1")
        try:
            found.append((min(max(float(weight), 0.0), 1.0), kind))
        except ValueError:
            found.append((0.0, kind))
    return found
