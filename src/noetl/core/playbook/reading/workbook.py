"""`workbook` → tools by name, which replace the tasks of kind `workbook` that ask for them (dsl §9.8)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from noetl.core.limits import WORKBOOK_ENTRIES_MAX
from noetl.core.playbook.document import Findings, Path, Spot
from noetl.core.playbook.reading.kinds import read_kind

KIND = "workbook"
ENTRY_KEYS = frozenset(("name", "tool", "input", "args", "desc", "description", "assert", "kind", "title"))
# What the step that uses an entry says about its own task; everything else is the entry's.
_CALL_KEYS = frozenset(
    ("spec", "set", "output", "output_select", "timeout", "timeout_seconds", "retry", "auth", "limit")
)
_SELECTING_KEYS = frozenset(("kind", "name", "task", "input", "args", "desc", "assert"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A tool with its arguments.  An argument that is null must be given by whoever uses it."""

    tool: Mapping[str, object]
    input: Mapping[str, object]
    place: Path = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """What a task that asks for an entry becomes: the fields of the entry's tool, and where they stand."""

    fields: Mapping[str, object]
    place: Path


def read_workbook(value: object, findings: Findings, kinds: frozenset[str]) -> Mapping[str, Entry]:
    """Entries by name; a list of `{name, tool}`, or a mapping from names to tools."""
    entries: dict[str, Entry] = {}
    root = Spot(findings, KIND, (KIND,))
    if value is None:
        return entries
    if not isinstance(value, list | dict):
        root.error("workbook_shape", "must be a list of {name, tool}, or a mapping from names to tools")
        return entries
    if len(value) > WORKBOOK_ENTRIES_MAX:
        root.error("workbook_shape", f"{len(value):,} entries, the limit is {WORKBOOK_ENTRIES_MAX:,}")
        return entries
    for name, given, key in _named(value, root):
        spot = Spot(findings, f"workbook entry {name!r}", (KIND, key))
        if name in entries:
            spot.error("duplicate_workbook", "is declared twice")
            continue
        entry = _entry(given, spot, kinds)
        if entry is not None:
            entries[name] = entry
    return entries


def _named(value: list[object] | dict[str, object], root: Spot) -> Iterator[tuple[str, object, str | int]]:
    if isinstance(value, dict):
        yield from ((name, given, name) for name, given in value.items())
        return
    for number, given in enumerate(value):
        name = given.get("name") if isinstance(given, dict) else None
        if isinstance(name, str) and name:
            yield name, given, number
        else:
            root.error("workbook_shape", "an entry is a mapping with `name` and `tool`", number)


def _entry(given: object, spot: Spot, kinds: frozenset[str]) -> Entry | None:
    if not isinstance(given, dict):
        spot.error("workbook_shape", "must be a mapping with `tool`")
        return None
    tool, at_tool = given.get("tool"), spot.at("tool")
    if tool is None and "kind" in given:
        # The entry is the tool itself.
        tool, at_tool = {key: one for key, one in given.items() if key not in ("input", "args")}, spot
    elif isinstance(tool, dict):
        spot.warn_unknown(given, ENTRY_KEYS)
    if not isinstance(tool, dict) or "kind" not in tool:
        at_tool.error("workbook_shape", "tool must be a mapping with `kind`")
        return None
    if read_kind(tool["kind"], at_tool, kinds | {KIND}) == KIND:
        at_tool.error("workbook_shape", "an entry cannot be of kind workbook", "kind")
        return None
    arguments: dict[str, object] = {}
    for source, place in (
        (tool.get("input", tool.get("args")), at_tool),
        (given.get("input", given.get("args")), spot),
    ):
        if isinstance(source, dict):
            arguments.update(source)
        elif source is not None:
            place.error("input_shape", "input must be a mapping", "input")
    fields = {key: one for key, one in tool.items() if key not in ("input", "args", "assert", "name", "desc")}
    return Entry(tool=fields, input=arguments, place=at_tool.place)


def replaced(
    call: Mapping[str, object], spot: Spot, *, step_input: Mapping[str, object], entries: Mapping[str, Entry]
) -> Replaced | None:
    """The task that a use of an entry stands for; None after saying what is wrong with it."""
    key = "task" if "task" in call else "name"
    name = call.get(key)
    entry = entries.get(name) if isinstance(name, str) else None
    if entry is None:
        spot.error("unknown_workbook", f"{key}: the workbook has no entry {name!r}{spot.near(str(name), entries)}", key)
        return None
    for other in call:
        if other not in _CALL_KEYS and other not in _SELECTING_KEYS:
            spot.warn("unknown_key", f"{other!r} is ignored, the workbook entry {name!r} says what runs", other)
    given = call.get("input", call.get("args"))
    if given is not None and not isinstance(given, dict):
        spot.error("input_shape", "input must be a mapping", "input")
    arguments = {**entry.input, **step_input, **(given if isinstance(given, dict) else {})}
    missing = {argument for argument, default in entry.input.items() if default is None and arguments[argument] is None}
    if missing:
        wanted = ", ".join(map(repr, sorted(missing)))
        spot.warn("workbook_argument", f"the workbook entry {name!r} wants {wanted} in input", key)
    own = {one: value for one, value in call.items() if one in _CALL_KEYS}
    arguments = {argument: value for argument, value in arguments.items() if argument not in missing}
    return Replaced(fields={**entry.tool, **own, "input": arguments}, place=entry.place)
