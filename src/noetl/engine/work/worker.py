"""A worker: takes commands from its session, runs them, reports facts.  It knows nothing of routing."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from typing import Any

from noetl.core import kinds
from noetl.core.errors import (
    EnvelopeInvalid,
    Failure,
    NoetlError,
    Transient,
)
from noetl.core.playbook.compiled import CompiledPlaybook
from noetl.core.reference import is_parted
from noetl.core.results.parts import primed, rooted
from noetl.engine.payloads import Payloads
from noetl.engine.stored.sources import settled
from noetl.engine.stored.unavailable import told
from noetl.engine.work.children import child_outcome
from noetl.engine.work.evaluations import Evaluations
from noetl.engine.work.facts import Facts, failed, stopped
from noetl.engine.work.frames.frame import FrameRun
from noetl.engine.work.frames.sealing import seal_cursor
from noetl.engine.work.names import NameBuilder
from noetl.engine.work.parting import copied, read_parted
from noetl.engine.work.parts import WorkerParts
from noetl.engine.work.pipeline.interpreter import Pipeline
from noetl.engine.work.pipeline.run import Run
from noetl.engine.work.running import Running, Work
from noetl.points import point
from noetl.ports.session import ClaimWithdrawn, CommandMessage, Fact

log = logging.getLogger("noetl.worker")
LOAD_AGAIN_SECONDS = 0.5
TELLS_LOGS = frozenset((kinds.COMMAND_COMPLETED, kinds.COMMAND_FAILED, kinds.FRAME_COMMITTED, kinds.FRAME_FAILED))


class Worker:
    """`run` belongs to the caller's task group and lives as long as the session."""

    def __init__(self, parts: WorkerParts) -> None:
        parts = replace(parts, payloads=parts.payloads.patient())
        self._parts = parts
        self._session = parts.session
        self._playbooks = parts.playbooks
        self._payloads = parts.payloads
        self._clock = parts.clock
        self._facts = Facts(parts.payloads, parts.clock)
        self._running = Running()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen())
            if self._parts.logs is not None:
                group.create_task(self._parts.logs.run())
            if self._parts.permits is not None:
                group.create_task(self._parts.permits.run())
            try:
                while True:
                    message = await self._session.next_command()
                    point("worker.taken")
                    group.create_task(self._perform(message))
            finally:
                # Before the group cancels its tasks: theirs is then not the cancellation of a stop.
                self._running.is_closing = True

    async def _listen(self) -> None:
        while True:
            self._running.stop(await self._session.next_stop())

    async def _perform(self, message: CommandMessage) -> None:
        try:
            fact = await self._stoppable(message)
            await self._session.confirmed(message)
        except ClaimWithdrawn:
            return
        point("worker.stored")
        try:
            await self._report(message, await self._logged(message, fact))
        except NoetlError as error:
            # Late, or about an execution that cannot be read: it concerns this command and nobody else.
            told_of = {"execution_id": message.execution_id, "command_id": message.command_id}
            reason = f"{error.code}: {error}"
            log.warning("fact refused", extra={"event": "fact.refused", **told_of, "reason": reason})

    async def _report(self, message: CommandMessage, fact: Fact) -> None:
        try:
            await self._session.report(fact)
        except EnvelopeInvalid as error:
            failure = Failure(kind="config", code=error.code, message=str(error))
            await self._session.report(failed(message, failure))

    async def _logged(self, message: CommandMessage, fact: Fact) -> Fact:
        """The fact when the log of its command is durable: whoever sees the end can read all that was said before."""
        said = None if self._parts.logs is None else await self._parts.logs.end(message)
        if said is None or fact.event_type not in TELLS_LOGS:
            return fact
        return fact._replace(meta={**fact.meta, "logs": said})

    async def _stoppable(self, message: CommandMessage) -> Fact:
        """The fact about a command, which may be told to stop until there is one."""
        work = self._running.begin(message)
        try:
            fact = await self._guarded(message, work)
        except asyncio.CancelledError:
            if not work.is_stopped:
                raise
            fact = stopped(message)
        finally:
            self._running.end(message, work)
        if work.is_stopped:
            await work.settle()
            if self._running.is_closing:
                raise asyncio.CancelledError
        return fact

    async def _guarded(self, message: CommandMessage, work: Work) -> Fact:
        """The fact about a command, whatever happens while it is performed."""
        try:
            return await self._fact(message, work, self._clock.monotonic())
        except NoetlError as error:
            return failed(message, told(error))
        except ClaimWithdrawn:
            raise
        except Exception as error:  # task supervision: a defect of ours fails this command and nothing else
            told_of = {"execution_id": message.execution_id, "command_id": message.command_id}
            log.exception("command failed unexpectedly", extra={"event": "command.defect", **told_of})
            return failed(message, Failure(kind="unknown", code="internal", message=f"internal error: {error!r}"))

    async def _fact(self, message: CommandMessage, work: Work, started: float) -> Fact:
        # What was announced is prepared while it is committed, and so may be what it reads.
        parts = replace(self._parts, payloads=self._payloads.awaiting(lambda: self._session.confirmed(message)))
        fact = await self._performed(message, work, parts, started)
        used = parts.payloads.used.to_json() if fact.result is not None else None
        return fact._replace(meta={**fact.meta, **used}) if used else fact

    async def _performed(self, message: CommandMessage, work: Work, parts: WorkerParts, started: float) -> Fact:
        body: Any = message.body
        while True:
            try:
                playbook, names, run = await self._load(message, parts.payloads)
                break
            except Transient as error:
                # Nothing has happened yet: a store that is away for a while is no failure of the command.
                log.warning("waiting for a payload", extra={"event": "payload.unavailable", "reason": str(error)})
                await asyncio.sleep(LOAD_AGAIN_SECONDS)
        step = playbook.steps[body["step"]]
        if body["kind"] == "seal" and "cursor" in body["stage"]:
            return await seal_cursor(self._facts, parts.payloads, message, step)
        if body["kind"] in ("evaluate", "collect", "gather", "seal"):
            evaluations = Evaluations(self._facts, parts.payloads, parts.renderer, parts.clock)
            return await evaluations.perform(message, playbook, step, names)
        if body["kind"] == "frame":
            frame = FrameRun(parts, self._facts, message=message, playbook=playbook, step=step, names=names, run=run)
            work.drains_by(frame.drain)
            return await frame.perform()
        pipeline = Pipeline(parts, message=message, playbook=playbook, step=step, names=names, run=run)
        ended = await pipeline.perform()
        point("worker.ran")
        ended.run.used = parts.payloads.used.to_json()
        if ended.child is not None:
            return await self._facts.child_started(message, ended)
        if ended.wait is not None:
            return await self._facts.waiting(message, ended)
        return await self._facts.finished(message, step, ended, started)

    async def _load(
        self, message: CommandMessage, payloads: Payloads
    ) -> tuple[CompiledPlaybook, dict[str, object], Run]:
        """Everything that must be read before the command can begin."""
        body: Any = message.body
        owner = {"tenant_id": message.tenant_id, "organization_id": message.organization_id}
        playbook = await self._playbooks.pinned(body["playbook"], **owner)
        names = await NameBuilder(payloads).build(message, spec=playbook.playbook.spec)
        if body.get("resume") is None:
            return playbook, names, Run()
        saved = await read_parted(payloads, body["resume"], **owner)
        # A copy: the run changes its memory, and the payload cache keeps what it read.
        run = Run(**copied(saved))
        if is_parted(body["resume"]["media_type"]):
            run.results = {label: rooted(value) for label, value in run.results.items()}
            run.scopes = {name: {key: rooted(value) for key, value in one.items()} for name, one in run.scopes.items()}
        for value in run.results.values():
            await settled(partial(primed, value))
        payloads.used.restore(run.used)
        run.child = await child_outcome(payloads, message)
        return playbook, names, run
