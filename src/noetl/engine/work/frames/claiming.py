"""The rows of a cursor's frame, claimed so that none is lost and none is worked off twice.

Begin; run the claim; persist what it returned; record that with the number of the transaction; only then commit.
Whoever takes the frame over finds the rows in the ledger and asks the database what became of the transaction: the rows
are taken, or they are free and claimed anew.  There is nothing in between."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from noetl.core import kinds
from noetl.core.codec import sha256_hex
from noetl.core.errors import Failure, TemplateFailed, ToolFailed
from noetl.core.expression import plain, to_text
from noetl.core.limits import (
    CURSOR_DOUBT_ENDED_SECONDS_MAX,
    CURSOR_DOUBT_LOOK_SECONDS,
    CURSOR_DOUBT_SECONDS_MAX,
    CURSOR_OTHERS_SECONDS_MAX,
    CURSOR_OTHERS_SECONDS_MIN,
    CURSOR_RETRY_SECONDS,
    TASK_TIMEOUT_SECONDS_DEFAULT,
    WARNINGS_MAX,
)
from noetl.core.playbook.compiled import CompiledCursor, CompiledPlaybook, CompiledStep
from noetl.engine.work.calling.auth import resolve_auth
from noetl.engine.work.calling.caller import Caller
from noetl.engine.work.collections import rows_between, store_rows
from noetl.engine.work.parts import WorkerParts
from noetl.engine.work.pipeline.rendering import Rendering
from noetl.ports.cursor import ClaimCall, Claims, TransactionStatus
from noetl.ports.session import CommandMessage, Fact


class Claiming:
    """For one attempt at a frame that this worker is confirmed to hold.  `is_recorded` says that rows stand in the
    ledger, `is_taken_over` that they are those of an earlier attempt."""

    def __init__(
        self,
        parts: WorkerParts,
        caller: Caller,
        *,
        message: CommandMessage,
        playbook: CompiledPlaybook,
        step: CompiledStep,
        names: Mapping[str, object],
    ) -> None:
        assert step.loop is not None
        assert step.loop.cursor is not None
        stage: Any = message.body["stage"]
        self._parts = parts
        self._caller = caller
        self._message = message
        self._owner = {"tenant_id": message.tenant_id, "organization_id": message.organization_id}
        self._step = step.name
        self._number: int = stage["number"]
        # The loop, in a few characters: names of steps may be long and hold anything.
        self._mark = sha256_hex(f"{message.execution_id}/{stage['stage_id']}".encode())[:16]
        self._compiled: CompiledCursor = step.loop.cursor
        self._written = step.loop.loop.cursor
        self._recorded_cursor = stage["cursor"]
        self._names = names
        self._timeout = playbook.playbook.task_timeout_seconds or TASK_TIMEOUT_SECONDS_DEFAULT
        self.warnings: list[str] = []
        self._rendering = Rendering(parts, message, strict=playbook.playbook.strict_templates, warnings=self.warnings)
        # The claim that the ledger knows of and that may still be good.
        self._known: Mapping[str, Any] | None = None
        if stage["claim"] is not None:
            self._known = {**stage["claim"], "rows": stage["rows"]}
        self._claims = self._claims_before = int(stage["claims"])

    @property
    def is_recorded(self) -> bool:
        return self._known is not None

    @property
    def is_taken_over(self) -> bool:
        return self.is_recorded and self._claims == self._claims_before

    async def rows(self) -> list[object]:
        """What this frame is to work off; nothing when the cursor has come to its end.  Raises ToolFailed."""
        call = await self._call()
        clock, failures = self._parts.clock, 0
        until, is_alone = clock.monotonic() + self._timeout, self._message.attempt == 1
        while True:
            try:
                if self._known is None and not is_alone:
                    # What an earlier attempt has not recorded it never will: its rows must not stay locked.
                    await self._driver().end(call)
                    is_alone = True
                return await self._found(call)
            except ToolFailed as error:
                failures += 1
                # Rows in the ledger may be taken: giving them up is the last thing to do.
                is_over = clock.monotonic() >= until if self.is_recorded else failures >= self._recorded_cursor["tries"]
                if is_over or not error.failure.retryable:
                    raise
                self._warn(f"claiming is tried again: {error.failure.message}")
                await asyncio.sleep(CURSOR_RETRY_SECONDS[min(failures, len(CURSOR_RETRY_SECONDS)) - 1])

    async def _found(self, call: ClaimCall) -> list[object]:
        if self._known is not None:
            if await self._fate(call, self._known) is TransactionStatus.COMMITTED:
                return await self._recorded(self._known)
            self._known = None
        return await self._taken(call)

    # --- a claim of our own ----------------------------------------------------------------------------------

    async def _taken(self, call: ClaimCall) -> list[object]:
        """Rows, or nothing when that can be believed.  Rows that an open claim has locked look as if they were not
        there; when it belongs to a worker that is gone they come back.  So nothing is there only when it is said twice,
        and no other claim of this loop is open in between."""
        driver = self._driver()
        while not (rows := await self._claim(call)):
            others = await driver.others(call)
            if not others:
                return await self._claim(call)
            seconds = CURSOR_OTHERS_SECONDS_MIN
            while others & await driver.others(call):
                await asyncio.sleep(seconds)
                seconds = min(2 * seconds, CURSOR_OTHERS_SECONDS_MAX)
        return rows

    async def _claim(self, call: ClaimCall) -> list[object]:
        async with self._driver().claim(call) as claim:
            rows = self._caller.scrubbed(list(claim.rows))
            if rows:
                await self._record(rows, claim.transaction_id, claim.place)
            try:
                await claim.commit()
            except ToolFailed as error:
                if not error.failure.retryable:
                    # Refused, and so rolled back: nothing is taken.
                    self._known = None
                raise
        allowed = int(self._recorded_cursor["max_rows"])
        if len(rows) > allowed:
            # They are taken: leaving them out would be losing them.
            self._warn(f"the claim took {len(rows)} rows where max_rows is {allowed}: all of them are worked off")
        return list(rows)

    async def _record(self, rows: list[object], transaction_id: str, place: str) -> None:
        """Return when the ledger has it.  Raises LeaseLost when somebody else has the frame: nothing is taken then."""
        index, made = await store_rows(self._parts.payloads, rows, **self._owner)
        number = self._claims + 1
        reference = index.reference.to_json()
        await self._parts.session.report(
            Fact(
                execution_id=self._message.execution_id,
                command_id=self._message.command_id,
                attempt=self._message.attempt,
                event_type=kinds.CURSOR_CLAIMED,
                meta={"n": number, "rows": len(rows), "xid": transaction_id, "place": place},
                payload_ref=reference,
                payloads=made,
            )
        )
        self._claims = number
        self._known = {"xid": transaction_id, "ref": reference, "place": place, "rows": len(rows)}

    # --- a claim of somebody before us -----------------------------------------------------------------------

    async def _fate(self, call: ClaimCall, known: Mapping[str, Any]) -> TransactionStatus:
        """What became of a recorded claim.  One that is still open is waited for, then ended: whoever it was for has
        lost the frame, and its connection may stand there as long as its machine does."""
        driver, clock = self._driver(), self._parts.clock
        began, is_ended = clock.monotonic(), False
        while True:
            status = await driver.status(call, known["xid"], known["place"])
            passed = clock.monotonic() - began
            if status is TransactionStatus.FORGOTTEN:
                message = f"step {self._step!r}: the database no longer knows what became of transaction {known['xid']}"
                raise ToolFailed(Failure(kind="unknown", code="CLAIM_FORGOTTEN", message=message))
            if status is not TransactionStatus.IN_PROGRESS:
                return status
            if passed > CURSOR_DOUBT_SECONDS_MAX and not is_ended:
                await driver.end(call)
                is_ended = True
            if passed > CURSOR_DOUBT_ENDED_SECONDS_MAX:
                message = f"step {self._step!r}: transaction {known['xid']} of a lost claim does not end"
                raise ToolFailed(Failure(kind="db_timeout", code="CLAIM_IN_DOUBT", message=message, retryable=True))
            await asyncio.sleep(CURSOR_DOUBT_LOOK_SECONDS)

    async def _recorded(self, known: Mapping[str, Any]) -> list[object]:
        return await rows_between(self._parts.payloads, {"ref": known["ref"]}, 0, known["rows"], **self._owner)

    # --- where, and by what ----------------------------------------------------------------------------------

    def _driver(self) -> Claims:
        kind = self._compiled.kind
        tool: object = self._parts.tools.get(kind)
        if not isinstance(tool, Claims):
            message = f"step {self._step!r}: this worker has no driver for a cursor of kind {kind!r}"
            raise ToolFailed(Failure(kind="unsupported", message=message))
        return tool

    async def _call(self) -> ClaimCall:
        """The statement as it was rendered when the loop opened, and a credential that is resolved just now."""
        assert self._written is not None
        cursor = self._recorded_cursor
        statement = await self._entry(cursor["claim"]) if "claim" in cursor else self._written.claim
        try:
            if "auth" in cursor:
                auth = await self._entry(cursor["auth"])
            else:
                auth = plain(await self._caller.secrets.render(self._rendering, self._compiled.auth, self._names))
        except TemplateFailed as error:
            message = f"step {self._step!r}, loop.cursor.auth: {error}"
            raise ToolFailed(Failure(kind="template", code=error.code, message=message)) from error
        return ClaimCall(
            statement=to_text(statement),
            mark=self._mark,
            frame=self._number,
            auth=await resolve_auth(auth, self._caller.secrets),
            timeout_seconds=self._timeout,
            **self._owner,
        )

    async def _entry(self, entry: Mapping[str, Any]) -> object:
        if "ref" not in entry:
            return entry.get("v")
        value = await self._parts.payloads.read_json(entry["ref"], **self._owner)
        for key in entry["path"]:
            value = value[key]
        return value

    def _warn(self, message: str) -> None:
        if len(self.warnings) < WARNINGS_MAX:
            self.warnings.append(self._caller.scrubbed(message))
