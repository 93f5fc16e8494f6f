"""Results and what led to them: reads of `noetl.result_ref` and of the events beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from noetl.core.event import Event
from noetl.core.results.references import ResultRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """One result on the way back.  `depth` is the shortest way to it, `meta` what its event says besides; null when the
    event is not kept any more."""

    ref: ResultRef
    depth: int = 0
    meta: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """Results in the order of their depth; `is_cut` says that there were more than a bound allows."""

    results: Sequence[Traced] = field(default_factory=tuple)
    is_cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Frames:
    """The frames of one loop that have ended: how many, and the first of them."""

    execution_id: int
    stage_id: str
    total: int
    shown: Sequence[Traced]


class Lineage(Protocol):
    """Every method sees the results of one tenant and organization; all others do not exist."""

    async def ended(self, execution_id: int, transition_key: str) -> Event | None:
        """The event of one transition."""
        ...

    async def of_stage(
        self, execution_id: int, stage_id: str, *, kinds: Sequence[str], after_position: int, limit: int
    ) -> list[Event]:
        """The events of some kinds about a stage, in order; of an execution that the caller may see."""
        ...

    async def walk(
        self, ref_ids: Sequence[int], *, tenant_id: str, organization_id: str, depth_max: int, results_max: int
    ) -> Walk:
        """Some results, what led to them and what they were made of, and so on."""
        ...

    async def frames(
        self, stages: Sequence[tuple[int, str]], *, tenant_id: str, organization_id: str, frames_max: int
    ) -> list[Frames]:
        """What the loops of some stages (execution and stage id) were worked off in."""
        ...
