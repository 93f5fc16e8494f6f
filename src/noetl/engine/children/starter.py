"""Preparing the execution that a task starts: its playbook from the catalog, its inputs from the task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from noetl.core.codec import canonical_bytes, parse_json
from noetl.core.errors import Failure, PlaybookInvalid, PlaybookUnknown, RequestInvalid, Terminal
from noetl.core.execution.state import ExecutionState
from noetl.core.limits import CALLER_BYTES_MAX, CHILDREN_DEPTH_MAX, TIMEOUT_SECONDS_MAX
from noetl.engine.control.states import States
from noetl.engine.payloads import Payloads
from noetl.engine.pinning.pins import Source
from noetl.engine.playbooks import Playbooks
from noetl.engine.starting import Prepared, Starter
from noetl.ports.catalog import CatalogEntry, is_catalog_id
from noetl.ports.owner import Owner
from noetl.ports.session import Fact


class FoundPlaybook(Protocol):
    @property
    def text(self) -> str: ...

    @property
    def entry(self) -> CatalogEntry: ...


class PlaybookFinder(Protocol):
    """The part of the catalog that starting a child needs."""

    async def find(self, path: str, *, version: int | None, owner: Owner) -> FoundPlaybook:
        """A version of a playbook, by default the newest.  Raises PlaybookUnknown."""
        ...

    async def find_id(self, catalog_id: int, *, owner: Owner) -> FoundPlaybook:
        """The version of this number.  Raises PlaybookUnknown."""
        ...


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a task wants to start, checked: a fact comes from outside.  With a `catalog_id` it has no path."""

    path: str
    version: int | None
    catalog_id: int | None
    payload: Mapping[str, object]
    iteration: Mapping[str, object] | None = None

    @property
    def name(self) -> str:
        return self.path or f"catalog_id {self.catalog_id}"


class ChildStarter:
    def __init__(
        self, *, states: States, playbooks: Playbooks, payloads: Payloads, starter: Starter, finder: PlaybookFinder
    ) -> None:
        self._states = states
        self._playbooks = playbooks
        self._payloads = payloads
        self._starter = starter
        self._finder = finder

    async def prepare(self, fact: Fact) -> Prepared | Failure:
        """The execution, or the failure that the task gets.  Raises RequestInvalid for a fact of another shape."""
        wanted = wanted_by(fact)
        # Looked at, never kept: the decider's cache must not go back.
        held = self._states.cached(fact.execution_id) or await self._states.fold(fact.execution_id)
        parent = held.state
        if parent.depth >= CHILDREN_DEPTH_MAX:
            chain = f"playbook {wanted.name!r} would be number {parent.depth + 2} of playbooks that start each other"
            message = f"{chain}; the limit is {CHILDREN_DEPTH_MAX} below the first"
            return Failure(kind="config", code="CHILD_DEPTH", message=message)
        try:
            return await self._prepared(wanted, fact, parent)
        except PlaybookUnknown as error:
            message = f"{error}; register it with `noetl catalog register`"
            return Failure(kind="not_found", code=error.code, message=message, details={"path": wanted.name})
        except (PlaybookInvalid, RequestInvalid) as error:
            message = f"playbook {wanted.name!r} cannot be started: {error}"
            return Failure(kind="config", code=error.code, message=message, details={"path": wanted.name})
        except Terminal as error:
            message = f"playbook {wanted.name!r} cannot be started: {error}"
            return Failure(kind="unknown", code=error.code, message=message, details={"path": wanted.name})

    async def _prepared(self, wanted: Wanted, fact: Fact, owner: ExecutionState) -> Prepared:
        if wanted.catalog_id is not None:
            found = await self._finder.find_id(wanted.catalog_id, owner=owner)
        else:
            # The version that the parent is bound to, if it is: a retry starts what the first try started.
            version = owner.playbooks.get(wanted.path) if wanted.version is None else wanted.version
            found = await self._finder.find(wanted.path, version=version, owner=owner)
        source = Source(text=found.text, file=found.entry.path, entry=found.entry)
        playbook = await self._playbooks.compile(source.text, file=source.file)
        payload = await self._inputs(wanted, fact, owner)
        return await self._starter.prepare(
            playbook, source, payload, owner=owner, is_child=True, caller=wanted.iteration
        )

    async def _inputs(self, wanted: Wanted, fact: Fact, owner: ExecutionState) -> dict[str, object]:
        """The task's input.  A small one travels with the fact and is stored only when the fact is recorded."""
        digest = wanted.payload.get("sha256")
        carried = next((payload for payload in fact.payloads if payload.reference.sha256 == digest), None)
        if carried is not None:
            value = parse_json(carried.content)
        else:
            value = await self._payloads.read_json(
                wanted.payload, tenant_id=owner.tenant_id, organization_id=owner.organization_id
            )
        if not isinstance(value, dict):
            raise RequestInvalid("its input must be a mapping")
        return dict(value)


def wanted_by(fact: Fact) -> Wanted:
    meta = fact.meta
    path, version, payload = meta.get("path"), meta.get("version"), meta.get("payload")
    catalog_id = _catalog_id(meta.get("catalog_id"))
    timeout, return_step, iteration = meta.get("timeout_seconds"), meta.get("return_step"), meta.get("iter")
    is_right = (
        isinstance(path, str)
        and bool(path) == (catalog_id is None)
        and catalog_id != 0
        and (version is None or (isinstance(version, int) and not isinstance(version, bool)))
        and isinstance(meta.get("waits"), bool)
        and isinstance(meta.get("task"), str)
        and (return_step is None or isinstance(return_step, str))
        and _is_iteration(iteration)
    )
    is_timed = isinstance(timeout, int | float) and 0 < timeout <= TIMEOUT_SECONDS_MAX
    if not is_right or not is_timed or not isinstance(payload, Mapping) or fact.payload_ref is None:
        raise RequestInvalid(f"{fact.event_type} of {fact.command_id} has another shape")
    assert isinstance(path, str)
    assert version is None or isinstance(version, int)
    assert iteration is None or isinstance(iteration, dict)
    return Wanted(path, version, catalog_id, payload, iteration)


def _is_iteration(value: object) -> bool:
    return value is None or (isinstance(value, dict) and len(canonical_bytes(value)) <= CALLER_BYTES_MAX)


def _catalog_id(value: object) -> int | None:
    """Ids travel as text; 0, which is none, for anything else."""
    if value is None:
        return None
    return int(value) if isinstance(value, str) and is_catalog_id(value) else 0
