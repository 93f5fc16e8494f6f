"""Calling a tool: credentials are resolved just before, and what they hold is scrubbed from everything just after."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from noetl.core.errors import Failure, NoetlError, ToolFailed
from noetl.core.expression import View, plain
from noetl.core.playbook.compiled import CompiledPlaybook
from noetl.core.playbook.keychain.secrecy import AUTH_FIELDS
from noetl.core.playbook.spark.secrecy import REASON, SPARK, kept_texts
from noetl.core.results.parts import parted, split
from noetl.engine.stored.reader import Reader
from noetl.engine.work.calling.artifacts import Artifacts
from noetl.engine.work.calling.auth import resolve_auth
from noetl.engine.work.calling.body_sink import PayloadBodySink
from noetl.engine.work.calling.datasets import CallDatasets
from noetl.engine.work.calling.redact import Redactor
from noetl.engine.work.calling.scripts import Scripts
from noetl.engine.work.calling.secrets import Secrets
from noetl.engine.work.calling.tables import CallTables
from noetl.engine.work.jobs import CommandJobs, TaskJobs
from noetl.engine.work.logs.task_log import TaskLog
from noetl.engine.work.parts import WorkerParts
from noetl.ports.session import CommandMessage
from noetl.ports.tool import OpensTables, ToolCall, ToolResult

log = logging.getLogger("noetl.worker")


class Caller:
    """Belongs to one command or frame, and so do the secrets that it has seen."""

    def __init__(
        self, parts: WorkerParts, message: CommandMessage, *, playbook: CompiledPlaybook, names: Mapping[str, object]
    ) -> None:
        self._tools = parts.tools
        self._opening: dict[str, bool] = {}
        self._open_log = None if parts.logs is None else partial(parts.logs.of, message)
        self._redactor = Redactor()
        self.scripts = Scripts(parts, message)
        self.secrets = Secrets(parts, message, playbook=playbook, names=names, redactor=self._redactor)
        owner = {"tenant_id": message.tenant_id, "organization_id": message.organization_id}
        self._reader = Reader(parts.payloads, **owner)
        self.sink = PayloadBodySink(parts.payloads, redactor=self._redactor, **owner)
        is_shared = parts.shares_frame_rows or "stage" not in message.body
        self.tables = CallTables(parts.payloads, redactor=self._redactor, is_shared=is_shared, **owner)
        self.datasets = CallDatasets(parts.payloads, redactor=self._redactor, **owner)
        self.artifacts = Artifacts(parts.payloads, redactor=self._redactor, **owner)
        self.jobs = CommandJobs(
            parts.session, parts.payloads, message, clock=parts.clock, redactor=self._redactor, counts=parts.job_counts
        )

    def opens_tables(self, kind: str) -> bool:
        """Whether a tool takes the tables of its input as tables.  Looked up once: every row asks, and a look at what a
        protocol wants costs as much as a template."""
        known = self._opening.get(kind)
        if known is None:
            tool: object = self._tools.get(kind)
            known = self._opening[kind] = isinstance(tool, OpensTables) and tool.opens_tables
        return known

    async def run(self, kind: str, call: ToolCall) -> ToolResult:
        tool = self._tools.get(kind)
        if tool is None:
            message = f"tool kind {kind!r} is not available in this installation"
            raise ToolFailed(Failure(kind="unsupported", message=message))
        try:
            equipped = await self._equipped(call)
            if kind == SPARK:
                self._refuse_kept_secrets(equipped)
            result = await tool.run(equipped)
        except ToolFailed as error:
            result = ToolResult(value=error.data, failure=error.failure)
        except NoetlError:
            raise
        except Exception as error:  # tool boundary: what a defect prints may be what the tool was given
            result = ToolResult(failure=self._defect(kind, error))
        finally:
            if isinstance(call.log, TaskLog):
                call.log.end()
        if isinstance(call.jobs, TaskJobs):
            call.jobs.ended(result.failure)
        if result.failure is not None and result.failure.kind == "auth":
            self.secrets.refused()
        return self._scrubbed(result)

    def log_of(self, task: str, *, row: int | None, tried: int) -> TaskLog | None:
        """Where a call says what happens, without the secrets that this command has seen."""
        if self._open_log is None:
            return None
        return TaskLog(self._open_log, self._redactor, task=task, row=row, tried=tried)

    async def _equipped(self, call: ToolCall) -> ToolCall:
        auth = next((call.fields[name] for name in AUTH_FIELDS if call.fields.get(name) is not None), None)
        if auth is None:
            return call
        resolved = await resolve_auth(auth, self.secrets)
        for credential in resolved.values() if isinstance(resolved, Mapping) else (resolved,):
            if credential is not None:
                self.secrets.learn(credential)
        fields = {name: value for name, value in call.fields.items() if name not in AUTH_FIELDS}
        return replace(call, auth=resolved, fields=fields)

    def _refuse_kept_secrets(self, call: ToolCall) -> None:
        """What a template made of a text may hold what the document did not show."""
        script = None if call.script is None else (call.script.name, call.script.text)
        for name, value in kept_texts(call.fields, script) if self._redactor.has_learnt else ():
            if self._redactor.scrub(value) is not value:
                message = f"{name} holds a secret, so the job was not run: {REASON}"
                raise ToolFailed(Failure(kind="config", code="SPARK_SECRET", message=message))

    def _defect(self, kind: str, error: Exception) -> Failure:
        text = self.scrubbed("".join(traceback.format_exception(error)))
        log.error("a tool failed unexpectedly: %s", text, extra={"event": "tool.defect", "kind": kind})
        return Failure(kind="unknown", code="internal", message=f"internal error of the tool {kind!r}: {error!r}")

    def fetched_scripts(self) -> dict[str, Mapping[str, object]]:
        """References of the scripts that were fetched, by name, as they may be recorded."""
        return {self.scrubbed(name): reference for name, reference in self.scripts.fetched.items()}

    # --- nothing secret leaves -----------------------------------------------------------------------------

    def scrubbed(self, value: Any) -> Any:
        """A value, or a text, without the secrets that this command has seen."""
        return self._redactor.scrub(value)

    def scrubbed_value(self, value: object) -> object:
        """As plain data without secrets; what is stored on its own was scrubbed before, and stays a view of it."""
        if not isinstance(value, View):
            return self.scrubbed(plain(value))
        if not self._redactor.has_learnt:
            return value
        document, parts = split(value)
        return parted(self.scrubbed(document), parts)

    def scrubbed_failure(self, failure: Failure) -> Failure:
        scrub = self.scrubbed
        return replace(failure, message=scrub(failure.message), details=scrub(failure.details))

    def value_of(self, result: ToolResult) -> object:
        """What a tool gave: plain data, with views of what it has stored already."""
        return parted(result.value, {place: self._reader.part(one) for place, one in result.parts.items()})

    def _scrubbed(self, result: ToolResult) -> ToolResult:
        if not self._redactor.has_learnt:
            return result
        scrub, failure = self.scrubbed, result.failure
        return replace(
            result,
            value=scrub(result.value),
            parts={tuple(map(scrub, place)): one for place, one in result.parts.items()},
            failure=None if failure is None else self.scrubbed_failure(failure),
            traceback=scrub(result.traceback),
            facts=scrub(result.facts),
            job=scrub(result.job),
        )
