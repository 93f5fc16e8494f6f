"""Where results were made: the fold of what claims say about the workers that took something.

All of it is one member of the state, which no checksum of a state covers: where something ran says nothing about what
came of it.  It is bounded by the steps and by what is open, never by the number of frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from noetl.core import kinds
from noetl.core.codec import canonical_json, parse_json
from noetl.core.errors import LocatorInvalid
from noetl.core.event import Event
from noetl.core.limits import PLACES_COUNTED_MAX
from noetl.core.locator.locality import Place, place_from


class Places(NamedTuple):
    """Places as canonical JSON.  `held` is where the last attempt at an open command was claimed; `made` where the
    result of a step's last run is; `collections` where an open loop's collection is; `rows` how many rows of an open
    loop were run where."""

    held: Mapping[str, str] = {}
    made: Mapping[str, str] = {}
    collections: Mapping[str, str] = {}
    rows: Mapping[str, Mapping[str, int]] = {}


NO_PLACES = Places()


@lru_cache(maxsize=1_024)
def place_of(text: str) -> Place:
    """The place that a text of the state stands for."""
    known: Any = parse_json(text)
    return place_from(known)


def text_of(locality: object) -> str | None:
    """A place as the state keeps it; None of what is none."""
    if not isinstance(locality, Mapping) or not locality:
        return None
    if not all(isinstance(value, str) and value for value in locality.values()):
        return None
    try:
        return canonical_json(place_from(locality).to_json())
    except LocatorInvalid:
        return None  # of a release that knows more levels: better no place than a wrong one


def most_rows(counts: Mapping[str, int]) -> str | None:
    """Where most of the rows were run; of several the first by name."""
    return min(counts, key=lambda place: (-counts[place], place), default=None)


# --- the fold --------------------------------------------------------------------------------------------


class Known(NamedTuple):
    """What the fold of places must know of the state before an event."""

    places: Places
    commands: Mapping[str, Any]
    digests: Callable[[], Mapping[str, str]]
    """Which step's result has a digest."""


def placed(known: Known, event: Event) -> Places:
    """The places after an event; the same object when it says nothing about them."""
    fold = _FOLDS.get(event.event_type)
    found = known.places if fold is None else fold(known, event)
    return NO_PLACES if found == NO_PLACES else found


def _claimed(known: Known, event: Event) -> Places:
    places, command_id = known.places, event.frame_id or event.command_id or ""
    command = known.commands.get(command_id)
    if command is None or command.attempt >= event.meta["attempt"]:
        return places
    return places._replace(held=_with(places.held, command_id, text_of(event.meta.get("locality"))))


def _ended(known: Known, event: Event) -> Places:
    places, command = known.places, known.commands.get(event.command_id or "")
    if command is None:
        return places
    where = places.held.get(command.command_id)
    places = places._replace(held=_with(places.held, command.command_id, None))
    reference: Any = (event.result or {}).get("reference")
    if command.kind == "collect":
        # A collection that was found in a result, and not made, is where that result is.
        found = known.digests().get(reference["sha256"]) if reference is not None else None
        where = where if found is None else places.made.get(found)
        where = where if reference is not None else None
        return places._replace(collections=_with(places.collections, command.step, where))
    if command.kind not in ("step", "seal"):
        return places
    if command.kind == "seal":
        where = most_rows(places.rows.get(command.step, {})) or where
        places = _closed(places, command.step, f"{command.step}#{command.run}")
    return places._replace(made=_with(places.made, command.step, where if reference is not None else None))


def _frame_ended(known: Known, event: Event) -> Places:
    places, command = known.places, known.commands.get(event.frame_id or "")
    where = places.held.get(event.frame_id or "")
    if command is None or where is None:
        return places
    outcomes: Any = event.meta["outcomes"]
    counts = _counted(places.rows.get(command.step, {}), where, outcomes["success"] + outcomes["failed"])
    held = _with(places.held, command.command_id, None)
    return places._replace(held=held, rows={**places.rows, command.step: counts})


def _loop_done(known: Known, event: Event) -> Places:
    """A loop that nobody seals: it could not begin, or the execution is ending."""
    if event.meta["status"] in ("ok", "failed"):
        return known.places
    step = str(event.meta["step"])
    places = _closed(known.places, step, event.stage_id or "")
    return places._replace(made=_with(places.made, step, None))


def _closed(places: Places, step: str, stage_id: str) -> Places:
    """Without what is kept of an open loop; of its frames some may have been taken back."""
    return places._replace(
        held={command: where for command, where in places.held.items() if not command.startswith(f"{stage_id}/")},
        collections=_with(places.collections, step, None),
        rows={name: counts for name, counts in places.rows.items() if name != step},
    )


def _counted(counts: Mapping[str, int], place: str, rows: int) -> dict[str, int]:
    """Of too many places the one with the fewest rows is forgotten: only the one with the most is asked for."""
    found = {**counts, place: counts.get(place, 0) + rows}
    if len(found) > PLACES_COUNTED_MAX:
        del found[min((one for one in found if one != place), key=lambda one: (found[one], one))]
    return found


def _with(known: Mapping[str, str], name: str, where: str | None) -> Mapping[str, str]:
    if where is not None:
        return {**known, name: where}
    return {one: place for one, place in known.items() if one != name} if name in known else known


_FOLDS: Mapping[str, Callable[[Known, Event], Places]] = {
    kinds.COMMAND_CLAIMED: _claimed,
    kinds.FRAME_STARTED: _claimed,
    kinds.COMMAND_COMPLETED: _ended,
    kinds.COMMAND_FAILED: _ended,
    kinds.FRAME_COMMITTED: _frame_ended,
    kinds.FRAME_FAILED: _frame_ended,
    kinds.LOOP_DONE: _loop_done,
    # Nothing of it runs any more.
    **dict.fromkeys(
        (kinds.PLAYBOOK_COMPLETED, kinds.PLAYBOOK_FAILED, kinds.EXECUTION_CANCELLED), lambda _known, _event: NO_PLACES
    ),
}
