"""Where a command would best run, as it is derived from the state and as it stands in the queue."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from noetl.core.codec import canonical_json, parse_json
from noetl.core.execution.placing.places import place_of
from noetl.core.execution.placing.sources import source_of
from noetl.core.execution.state import Command, ExecutionState
from noetl.core.locator.locality import Distance, Place, distance_named, place_from

Key = tuple[int, str]


class Wish(NamedTuple):
    """Where the data of a command is, and how far from there it may run; None leaves that to the server."""

    key: Key
    source: Place
    max_distance: Distance | None = None

    @property
    def text(self) -> str:
        """As it stands in the queue, for servers that do not know the state."""
        found: dict[str, object] = {"source": self.source.to_json()}
        if self.max_distance is not None:
            found["max_distance"] = self.max_distance.word
        return canonical_json(found)


def wish_of(state: ExecutionState, command: Command, body: Mapping[str, Any]) -> Wish | None:
    """None when nobody knows where its data is."""
    source = source_of(state, command, body)
    if source is None:
        return None
    stage = state.loop_state.get(command.step) if command.frame is not None else None
    word = stage.policy.max_distance if stage is not None else None
    return Wish(
        (state.execution_id, command.command_id), place_of(source), None if word is None else distance_named(word)
    )


def wish_in(key: Key, text: str) -> Wish:
    """The wish of a row of the queue."""
    return Wish(key, *_read(text))


@lru_cache(maxsize=1_024)
def _read(text: str) -> tuple[Place, Distance | None]:
    found: Any = parse_json(text)
    word = found.get("max_distance")
    return place_from(found["source"]), None if word is None else distance_named(word)
