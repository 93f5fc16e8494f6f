"""What the use cases of the control plane share, wired once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from noetl.core.event import Event
from noetl.core.limits import EVENT_RESULT_BYTES_MAX
from noetl.engine.control.sessions import Sessions
from noetl.engine.control.states import States
from noetl.engine.control.watch import Watchers
from noetl.engine.playbooks import Playbooks
from noetl.engine.sharing.counts import ControlCounts
from noetl.ports.clock import Clock, IdSource
from noetl.ports.ledger import Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlParts:
    ledger: Ledger
    states: States
    playbooks: Playbooks
    sessions: Sessions
    watchers: Watchers
    ids: IdSource
    clock: Clock
    on_commit: Callable[[Iterable[Event]], None] | None = None
    """Gets the events of every commit of this process, in order: whoever follows the ledger need not read them."""
    context_bytes_max: int = EVENT_RESULT_BYTES_MAX
    """How large the context in a worker's result may be."""
    counts: ControlCounts = field(default_factory=ControlCounts)
