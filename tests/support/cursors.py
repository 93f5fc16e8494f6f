"""A simulated execution with a cursor loop: whoever uses it plays the workers that claim.

Claims, ends and results become events by the code of the control plane and of the worker."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from noetl.core import kinds
from noetl.core.errors import Failure
from noetl.core.event import Event
from noetl.core.reference import Result
from noetl.engine.work.frames.outcomes import empty_fact, unclaimed_fact
from noetl.engine.work.frames.sealing import cursor_result
from noetl.engine.work.pipeline.outcome import atom_document
from noetl.ports.session import CommandMessage
from tests.support.loops import Looping, Outcome, tell
from tests.support.playbooks import JsonObject, address_of, graph, step

NO_CONNECTION = Failure(kind="db_connection", code="CONN_REFUSED", message="cannot connect", retryable=True)
CLAIM = "UPDATE work SET taken = true RETURNING * -- {{ __frame_max_rows }}"


def cursor_step(
    name: str,
    *targets: str | JsonObject,
    claim: str = CLAIM,
    slots: object = 1,
    mode: str | None = None,
    options: JsonObject | None = None,
    auth: object = "pg",
    frame: JsonObject | None = None,
    **keys: Any,
) -> JsonObject:
    cursor: JsonObject = {"kind": "postgres", "auth": auth, "claim": claim}
    if options is not None:
        cursor["options"] = options
    spec: JsonObject = {"max_in_flight": slots}
    if frame is not None:
        spec["frame"] = frame
    if mode is not None:
        keys["spec"] = {"policy": {"failure": {"mode": mode}}}
    return step(name, *targets, loop={"cursor": cursor, "iterator": "row", "spec": spec}, **keys)


def draining(*targets: str | JsonObject, **keys: Any) -> Draining:
    """An execution that begins with a cursor loop."""
    names = dict.fromkeys(str(target if isinstance(target, str) else target["step"]) for target in targets)
    return Draining(graph(cursor_step("drain", *targets, **keys), *(step(name) for name in names)))


@dataclass(slots=True)
class Draining(Looping):
    """`turn` answers a whole turn of a slot, the other methods parts of it."""

    _xids: Iterator[int] = field(default_factory=lambda: itertools.count(700))

    def claim(self, frame_id: str, rows: int, *, number: int | None = None, xid: str | None = None) -> Event:
        """A worker's claim has returned rows, and they are recorded."""
        command = self._held(frame_id)
        index = self._keep({"total": rows, "rows": [{"id": n} for n in range(rows)]})
        n = self.frame(frame_id).claims + 1 if number is None else number
        meta = {"n": n, "rows": rows, "xid": xid or str(next(self._xids)), "place": "here"}
        return tell(self, command, kinds.CURSOR_CLAIMED, meta=meta, payload_ref=index)

    def turn(
        self, frame_id: str, rows: int = 1, outcomes: Mapping[int, Outcome] | None = None, *, breaks: int = 0
    ) -> Event:
        """A slot claims rows and works them off; with none it is at its end.  `outcomes` by place in the frame."""
        if rows == 0:
            return self.empty(frame_id)
        self.claim(frame_id, rows)
        first = self.frame(frame_id).first
        given = {first + place: outcome for place, outcome in (outcomes or {}).items()}
        if not breaks:
            return self.commit(frame_id, given)
        return self._broken(frame_id, rows, breaks)

    def _broken(self, frame_id: str, rows: int, breaks: int) -> Event:
        document = {"first": self.frame(frame_id).first, "records": [{"v": n} for n in range(rows)]}
        self._keep(document)
        result = Result(status="ok", reference=address_of(document).reference)
        meta = {"outcomes": {"success": rows, "failed": 0, "skipped": 0}, "breaks": breaks}
        return tell(self, self._held(frame_id), kinds.FRAME_COMMITTED, meta=meta, result=result.to_json())

    def empty(self, frame_id: str) -> Event:
        return self._told(frame_id, empty_fact(self._message(frame_id), ()))

    def unclaimed(self, frame_id: str, failure: Failure = NO_CONNECTION, *, is_recorded: bool = False) -> Event:
        """The rows could not be claimed."""
        return self._told(frame_id, unclaimed_fact(self._message(frame_id), failure, is_recorded=is_recorded))

    def _message(self, frame_id: str) -> CommandMessage:
        command = self._held(frame_id)
        return CommandMessage(77, "acme", "sales", frame_id, command.attempt, self.body(frame_id))

    def _told(self, frame_id: str, fact: Any) -> Event:
        return tell(self, self._held(frame_id), fact.event_type, meta=fact.meta, result=fact.result)

    def seal(self, command_id: str) -> None:
        command, stage = self.state.commands[command_id], self.body(command_id)["stage"]
        value, failure = cursor_result(stage), stage["failure"]
        names = {command.step: value, "output": {**value, "status": "ok" if failure is None else "error"}}
        context: JsonObject = {"atoms": atom_document(self.playbook.steps[command.step].atoms, names)}
        if failure is not None:
            context["error"] = failure
        self._keep(value)
        result = Result(
            status="ok" if failure is None else "error", reference=address_of(value).reference, context=context
        )
        event_type = kinds.COMMAND_COMPLETED if failure is None else kinds.COMMAND_FAILED
        self._fact(command, event_type, result.to_json(), None)
