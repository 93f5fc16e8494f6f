"""The upcasters of this release.  The ledger keeps what was written for ever; an event that was written under an older
version of its schema is brought to the present one before it is folded, and never stored again.

There is none today: every kind is at its first version."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from noetl.core.codec import canonical_bytes, sha256_hex
from noetl.core.errors import LedgerCorrupt
from noetl.core.event import Event
from noetl.core.kinds import KINDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Upcaster:
    """From one version of a schema to a later one.  `revision` rises whenever what it makes of an event changes: a
    snapshot that was folded through the old form no longer fits."""

    schema_name: str
    version: int
    to_version: int
    convert: Callable[[Event], Event]
    revision: int = 1

    def __post_init__(self) -> None:
        assert self.to_version > self.version, "an upcaster advances the version"


class Upcasters:
    def __init__(self, known: Sequence[Upcaster] = (), *, current: Mapping[str, int] | None = None) -> None:
        self._known = {(one.schema_name, one.version): one for one in known}
        assert len(self._known) == len(known), "one way forward from each version of a schema"
        self._current = (
            {kind.event_type: kind.schema_version for kind in KINDS.values()} if current is None else current
        )
        described = [[one.schema_name, one.version, one.to_version, one.revision] for one in known]
        self.digest = sha256_hex(canonical_bytes([sorted(described), dict(self._current)]))
        """Tells this registry from every other that folds some event differently."""

    def upcast(self, event: Event) -> Event:
        """The event at the present version of its schema.  Raises LedgerCorrupt when nothing leads there."""
        current = self._current.get(event.event_type)
        if event.schema_version == current or current is None:
            return event
        while event.schema_version < current:
            step = self._known.get((f"noetl.{event.event_type}", event.schema_version))
            if step is None or step.to_version > current:
                raise LedgerCorrupt(_no_way(event, current))
            event = step.convert(event)._replace(schema_version=step.to_version)
        if event.schema_version > current:
            raise LedgerCorrupt(_no_way(event, current))
        return event


def _no_way(event: Event, current: int) -> str:
    return (
        f"event {event.event_id} of execution {event.execution_id} has version {event.schema_version} of "
        f"noetl.{event.event_type}, this release knows {current} and nothing leads there: use a newer release"
    )


UPCASTERS = Upcasters()
