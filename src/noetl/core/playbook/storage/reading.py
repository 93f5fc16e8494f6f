"""`output`, `output_select` and `spec.result` → hints.  A shape that nobody can follow is an error; a store that this
installation does not have is none: the automatic one takes its place."""

from __future__ import annotations

import re
from collections.abc import Mapping

from noetl.core.codec import canonical_bytes
from noetl.core.limits import PREVIEW_BYTES_MAX, RESULT_BYTES_MAX, SELECTED_BYTES_MAX, SELECTED_FIELDS_MAX
from noetl.core.playbook.document import Spot
from noetl.core.playbook.storage.hints import AUTO, NO_HINTS, TIER_LARGE, TIER_SMALL, Hints, Path, Selection

STORES: Mapping[str, str | None] = {
    "auto": AUTO,
    "kv": TIER_SMALL,
    "disk": TIER_LARGE,
    "object": TIER_LARGE,
    "db": "db",
    "postgres": "db",
    **dict.fromkeys(("memory", "s3", "gcs", "eventlog")),
}
"""The kinds of the language; None for those that need a backend which is not there."""
STORE_KEYS = frozenset(("kind", "ttl", "compression", "bucket", "prefix", "credential"))
OUTPUT_KEYS = frozenset(("store", "inline_max_bytes", "preview_max_bytes", "scope", "select", "output_select"))
_STEP_OF_PATH = re.compile(r"\.?([^.\[\]]+)|\[(-?[0-9]{1,9})\]|\[(?:'([^']*)'|\"([^\"]*)\")\]")


def read_hints(value: object, spot: Spot) -> Hints:
    """`output` of a step or a tool, `spec.result` of a tool."""
    if value is None:
        return NO_HINTS
    if not isinstance(value, dict):
        spot.error("output_shape", "output must be a mapping with store, inline_max_bytes, select and the like")
        return NO_HINTS
    spot.warn_unknown(value, OUTPUT_KEYS)
    return Hints(
        store=_store(value.get("store"), spot.at("store")),
        inline_max_bytes=_bytes(value, "inline_max_bytes", RESULT_BYTES_MAX, spot),
        preview_max_bytes=_bytes(value, "preview_max_bytes", PREVIEW_BYTES_MAX, spot),
        select=(
            *_selections(value.get("select"), spot.at("select")),
            *read_selected(value.get("output_select"), spot.at("output_select")).select,
        ),
    )


def read_selected(value: object, spot: Spot) -> Hints:
    """`output_select`: names and dotted paths."""
    return Hints(select=tuple(_selections(value, spot)))


def step_output(entry: Mapping[str, object], spot: Spot) -> Hints:
    """All that a step says: its `output`, and `output_select` beside it."""
    found = read_hints(entry.get("output"), spot.at("output"))
    return found.under(read_selected(entry.get("output_select"), spot.at("output_select")))


def tool_hints(fields: Mapping[str, object], spot: Spot) -> Hints:
    """All that a tool says: `spec.result` below `output` below its own `output_select`."""
    spec = fields.get("spec")
    result = spec.get("result") if isinstance(spec, dict) else None
    found = read_hints(result, spot.at("spec", "result")).under(read_hints(fields.get("output"), spot.at("output")))
    return found.under(read_selected(fields.get("output_select"), spot.at("output_select")))


def _store(value: object, spot: Spot) -> str:
    if value is None:
        return AUTO
    if not isinstance(value, dict):
        spot.error("output_shape", "output.store must be a mapping with `kind`")
        return AUTO
    spot.warn_unknown(value, STORE_KEYS)
    for key in value:
        if key in STORE_KEYS and key != "kind":
            spot.warn("not_applied", f"output.store.{key} is not applied by this release", key)
    kind = value.get("kind", AUTO)
    if not isinstance(kind, str):
        spot.error("output_shape", "output.store.kind must be a word", "kind")
        return AUTO
    found = STORES.get(kind.lower())
    if found is None:
        known = kind.lower() in STORES
        what = "is not available in this installation" if known else f"is not known{spot.near(kind, STORES)}"
        spot.warn("store_kind", f"store kind {kind!r} {what}: auto is used", "kind")
        return AUTO
    return found


def _bytes(value: Mapping[str, object], key: str, most: int, spot: Spot) -> int | None:
    number = value.get(key)
    if isinstance(number, str) and number.strip().isdecimal():
        number = int(number)
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= most:
        spot.error("output_shape", f"output.{key} must be a whole number from 0 to {most:,}, not {number!r}", key)
        return None
    return number


def _selections(value: object, spot: Spot) -> list[Selection]:
    if value is None:
        return []
    if not isinstance(value, list):
        spot.error("select_shape", "a selection is a list of paths, or of mappings with `path` and `as`")
        return []
    if len(value) > SELECTED_FIELDS_MAX:
        spot.error("select_shape", f"{len(value):,} selected fields, the limit is {SELECTED_FIELDS_MAX}")
        return []
    found = [_selection(entry, spot.at(number)) for number, entry in enumerate(value)]
    selections = [selection for selection in found if selection is not None]
    if sum(map(_bytes_of, selections)) > SELECTED_BYTES_MAX // 2:
        spot.error("select_shape", "the selected fields have too long names: they must fit into an event")
        return []
    return selections


def _bytes_of(selection: Selection) -> int:
    """About how much an event needs to say where a field is."""
    return 2 * len(canonical_bytes([selection.alias, list(selection.path)]))


def _selection(entry: object, spot: Spot) -> Selection | None:
    text, alias = entry, None
    if isinstance(entry, dict):
        spot.warn_unknown(entry, frozenset(("path", "as")))
        text, alias = entry.get("path"), entry.get("as")
        if alias is not None and (not isinstance(alias, str) or not alias.isidentifier()):
            spot.error("select_shape", f"`as` must be an identifier, not {alias!r}", "as")
            return None
    path = path_of(text) if isinstance(text, str) else None
    if path is None:
        spot.error("select_shape", f"{text!r} is no path such as `name`, `a.b` or `$.a.rows[0]`")
        return None
    return Selection(path, alias if isinstance(alias, str) else None)


def path_of(text: str) -> Path | None:
    """The keys of a path; `$` in front stands for the result."""
    rest = text.strip()
    if rest == "$" or rest.startswith(("$.", "$[")):
        rest = rest[1:]
    elif rest.startswith("."):
        return None
    keys: list[str | int] = []
    place = 0
    while place < len(rest):
        match = _STEP_OF_PATH.match(rest, place)
        if match is None:
            return None
        place = match.end()
        name, index, single, double = match.groups()
        keys.append(int(index) if index is not None else next(one for one in (name, single, double) if one is not None))
    return tuple(keys) or None
