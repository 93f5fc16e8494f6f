"""Where the data of a command is: a pure function of the state.

- a command that was begun before goes on where its rows were claimed, or its resume point was written;
- a frame reads its collection where that was made;
- whatever reads the frames of a loop does so where most of the rows were run;
- anything else is best run where the largest of the results that it reads was made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from noetl.core.execution.placing.places import NO_PLACES, most_rows
from noetl.core.execution.state import Command, ExecutionState


def source_of(state: ExecutionState, command: Command, body: Mapping[str, Any]) -> str | None:
    """The place as the state keeps it; None when nothing is known of it."""
    places = state.places
    if places is NO_PLACES or places == NO_PLACES:
        return None
    is_begun = command.resume is not None or (command.frame is not None and command.frame.claim is not None)
    if is_begun and command.command_id in places.held:
        return places.held[command.command_id]
    if command.kind == "seal":
        return most_rows(places.rows.get(command.step, {}))
    if command.frame is not None and command.step in places.collections:
        return places.collections[command.step]
    return _largest(state, body)


def _largest(state: ExecutionState, body: Mapping[str, Any]) -> str | None:
    made = state.places.made
    found = [(size, step) for step, size in _read(state, body) if step in made]
    return made[max(found)[1]] if found else None


def _read(state: ExecutionState, body: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """The steps whose results a command reads, by name or through a variable, with the sizes of what it reads."""
    for step, result in body["steps"].items():
        if result["ref"] is not None:
            yield step, result["ref"].get("bytes") or 0
    entries = [*body["ctx"].values(), *body["workload"].values(), *body.get("args", {}).values()]
    collection = body.get("stage", {}).get("collection")
    references = [entry["ref"] for entry in (*entries, *filter(None, (collection,))) if "ref" in entry]
    if references:
        steps = digests_of(state)
        for reference in references:
            step = steps.get(reference.get("sha256"))
            if step is not None:
                yield step, reference.get("bytes") or 0


def digests_of(state: ExecutionState) -> dict[str, str]:
    """Which step's last result has a digest."""
    return {
        str(result.reference["sha256"]): step
        for step, result in state.step_results.items()
        if result.reference is not None and "sha256" in result.reference
    }
