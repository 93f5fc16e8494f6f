"""The result of a step on its way into the ledger: stored, measured, and what of it travels with its event."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from noetl.core import limits
from noetl.core.codec import canonical_bytes, ordered_bytes
from noetl.core.credential_keys import is_credential
from noetl.core.expression import FailedView, PipelineView, Undefined, bare, find, lookup, view_of
from noetl.core.expression.views import MISSING, is_mapping, place_of
from noetl.core.playbook.compiled import CompiledStep
from noetl.core.playbook.storage.hints import EXTRA_NAMES, Hints, Selection
from noetl.core.reference import Payload, Reference
from noetl.core.results.failures import error_of
from noetl.engine.stored.extras import extras_of
from noetl.engine.stored.reader import Reader
from noetl.engine.work.parting import Kept
from noetl.engine.work.pipeline.run import Ended


@dataclass(frozen=True, slots=True)
class Seen:
    """What there is of a result: its envelope as later commands will carry it, and its view."""

    envelope: dict[str, Any]
    view: object

    def context(self) -> dict[str, object]:
        """What its event says of it."""
        names = ("stored", "selected", "meta", "error")
        return {name: self.envelope[name] for name in names if self.envelope.get(name)}


def kept_document(step: CompiledStep, ended: Ended) -> object:
    """The result as it is stored: each task's result once."""
    if not step.is_pipeline:
        return ended.last.value if ended.last is not None else None
    document: dict[str, object] = {"order": ended.run.order, "results": ended.run.results}
    return {**document, "x": ended.run.stored} if ended.run.stored else document


def size_of(step: CompiledStep, document: object, size: int) -> int:
    """The JSON size of the raw task results, each counted once (dsl §8.5); `size` is that of the whole document."""
    if not step.is_pipeline or not isinstance(document, dict):
        return size
    order = document["order"]
    around = {**document, "results": dict.fromkeys(order, 0)}
    return size - len(ordered_bytes(around)) + len(order)


def seen_result(step: CompiledStep, ended: Ended, kept: Kept | None, error: Mapping[str, object] | None) -> Seen:
    """How a step's result looks to everybody else; `error` is what is recorded of its failure.  Raises Absent."""
    document = kept_document(step, ended)
    size = 0 if kept is None else size_of(step, document, kept.size)
    reference = None if kept is None else kept.reference
    return _seen(lambda extras: _view(step, document, extras), step.hints, reference, size, error)


def seen_loop(
    reader: Reader,
    step: CompiledStep,
    document: Mapping[str, Any],
    *,
    payload: Payload,
    size: int,
    error: Mapping[str, object] | None,
) -> Seen:
    """How the result of a loop looks to everybody else; `size` is that of its rows.  Raises Absent."""
    # Rows that were few enough to be kept in the document have their bytes there.
    size = max(size, payload.reference.bytes)
    return _seen(lambda extras: reader.loop(document, extras), step.hints, payload.reference, size, error)


def _seen(
    view_with: Callable[[Mapping[str, object]], object],
    hints: Hints,
    address: Reference | None,
    size: int,
    error: Mapping[str, object] | None,
) -> Seen:
    """`view_with` makes the view of the result with names beside its own."""
    reference = None if address is None else address.to_json()
    envelope: dict[str, Any] = {"status": "ok" if error is None else "error", "ref": reference}
    extras: dict[str, object] = {}
    if address is not None:
        stored = external(hints, size, view_with({}))
        if stored is not None:
            envelope["stored"] = stored
        extras = extras_of(reference, stored, lambda: view_with({}))
    view = view_with(extras)
    if error is not None:
        envelope["error"] = error
        return Seen(envelope, FailedView(error_of(error), view))
    if hints.select:
        envelope["selected"] = selected(hints.select, view)
        names = {alias: _value(view, path) for alias, path, _ in envelope["selected"] if alias is not None}
        view = view_with({**extras, **names})
    return Seen(envelope, view)


def _view(step: CompiledStep, document: Any, extras: Mapping[str, object] | None) -> object:
    if not step.is_pipeline:
        return view_of(document, extras=extras)
    return PipelineView(document["order"], document["results"], extras=extras, tasks=document.get("x"))


def external(hints: Hints, size: int, view: object) -> dict[str, object] | None:
    """What is recorded of a result that counts as stored externally; None for one that does not."""
    stored = hints.stored(size)
    own = sorted(name for name in EXTRA_NAMES if is_mapping(view) and find(view, name) is not MISSING)
    return {**stored, "own": own} if stored is not None and own else stored


def selected(selections: Sequence[Selection], view: object) -> list[list[object]]:
    """The selected fields that there are: with their values as far as these fit into an event; one that has a name of
    its own at least with its place."""
    found: list[list[object]] = []
    valued: dict[int, object] = {}
    for selection in selections:
        value, place = _value(view, selection.path), _place(view, selection.path)
        is_other = selection.alias is not None and selection.path != (selection.alias,)
        if isinstance(value, Undefined) or place is None or (is_other and _has(view, selection.alias)):
            continue
        size = len(canonical_bytes(bare(value)))
        if size <= limits.ATOM_BYTES_MAX and not is_credential([tuple(map(str, selection.path))], bare(value)):
            valued[len(found)] = bare(value)
        found.append([selection.alias, list(selection.path), {"a": list(place)}])
    total = len(canonical_bytes([entry for entry in found if entry[0] is not None]))
    for number, value in valued.items():
        entry = [*found[number][:2], {"v": value}]
        grown = total + len(canonical_bytes(entry)) - (len(canonical_bytes(found[number])) if entry[0] else 0)
        if grown <= limits.SELECTED_BYTES_MAX:
            found[number], total = entry, grown
    return [entry for entry in found if entry[0] is not None or "v" in entry[2]]  # type: ignore[operator]


def _has(view: object, name: object) -> bool:
    """Whether a result has a key of its own under a name; what it would be called beside is no key."""
    return place_of(view, name) == (name,)


def _value(view: object, path: Sequence[str | int]) -> object:
    value = view
    for key in path:
        value = lookup(value, key, ".".join(map(str, path)))
    return value


def _place(view: object, path: Sequence[str | int]) -> tuple[str | int, ...] | None:
    place: tuple[str | int, ...] = ()
    subject = view
    for key in path:
        below = place_of(subject, key)
        if below is None:
            return None
        place += below
        subject = lookup(subject, key, "path")
    return place
