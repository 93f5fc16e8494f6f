"""What a task says about a job that it runs elsewhere: where, before it begins, and now and then how far it is.

These are facts about the command that the worker holds: whoever lost it is refused, and ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from noetl.core import kinds, limits
from noetl.core.codec import canonical_bytes
from noetl.core.credential_keys import without_credentials
from noetl.core.errors import EnvelopeInvalid, Failure
from noetl.core.execution.jobs.reports import shown
from noetl.core.reference import MEDIA_JSON, Payload
from noetl.engine.payloads import Payloads
from noetl.engine.work.calling.redact import Redactor
from noetl.ports.clock import Clock
from noetl.ports.data.compute import DRIVER_LOST, JobIntent, JobProgress
from noetl.ports.data.counters import Sample
from noetl.ports.session import CommandMessage, Fact, WorkerSession

log = logging.getLogger("noetl.worker")


class JobCounts:
    """What became of the jobs of this process."""

    def __init__(self) -> None:
        self.started = 0
        self.failed = 0
        self.lost = 0

    def samples(self) -> Iterator[Sample]:
        yield "noetl_jobs_started_total", {}, self.started
        yield "noetl_jobs_failed_total", {}, self.failed
        yield "noetl_jobs_lost_total", {}, self.lost


class CommandJobs:
    """Belongs to one command or frame, and numbers what is said about its jobs, one word after the other."""

    def __init__(
        self,
        session: WorkerSession,
        payloads: Payloads,
        message: CommandMessage,
        *,
        clock: Clock,
        redactor: Redactor,
        counts: JobCounts,
    ) -> None:
        self._session = session
        self._payloads = payloads
        self._message = message
        self._redactor = redactor
        self._order = asyncio.Lock()
        self._numbers = {kinds.JOB_INTENDED: 0, kinds.JOB_PROGRESSED: 0}
        self.clock = clock
        self.counts = counts

    def of(self, task: str, *, row: int | None) -> TaskJobs:
        return TaskJobs(self, task, row)

    async def tell(self, event_type: str, meta: Mapping[str, object], conf: Mapping[str, str] | None = None) -> int:
        """Returns when it is in the ledger, with its number."""
        said: Any = self._redactor.scrub({name: value for name, value in meta.items() if value is not None})
        more, payload = await self._settings(conf) if conf else ({}, None)
        async with self._order:
            # Used up when it is sent: whoever stops waiting for the answer does not know whether it was recorded.
            self._numbers[event_type] += 1
            number = self._numbers[event_type]
            await self._session.report(
                Fact(
                    execution_id=self._message.execution_id,
                    command_id=self._message.command_id,
                    attempt=self._message.attempt,
                    event_type=event_type,
                    meta={**said, **more, "n": number},
                    payload_ref=None if payload is None else payload.reference.to_json(),
                    payloads=() if payload is None else (payload,),
                )
            )
        return number

    async def _settings(self, conf: Mapping[str, str]) -> tuple[dict[str, object], Payload | None]:
        """A job's settings without secrets, or, when they are large, where they are."""
        told: Any = without_credentials(self._redactor.scrub({name: str(value) for name, value in conf.items()}))
        if len(canonical_bytes(told)) <= limits.JOB_CONF_BYTES_MAX:
            return {"conf": told}, None
        payload = await self._payloads.keep_json(
            told,
            tenant_id=self._message.tenant_id,
            organization_id=self._message.organization_id,
            media_type=MEDIA_JSON,
        )
        return {}, payload


class TaskJobs:
    """Given to a tool: the job of one call."""

    __slots__ = ("_begun", "_due", "_is_telling", "_last", "_number", "_of", "_row", "_task")

    def __init__(self, of: CommandJobs, task: str, row: int | None) -> None:
        self._of = of
        self._task = task
        self._row = row
        self._number: int | None = None
        self._last: JobProgress | None = None
        self._is_telling = False

    async def intended(self, intent: JobIntent) -> None:
        of = self._of
        meta = {
            "task": _cut(self._task),
            "row": self._row,
            "job_group": _cut(intent.job_group),
            "application": _cut(intent.application_id),
            "ui": _cut(intent.ui),
            "event_log": _cut(intent.event_log),
            "started": of.clock.now(),
        }
        self._number = await of.tell(kinds.JOB_INTENDED, meta, intent.conf)
        self._begun = of.clock.monotonic()
        self._due = limits.JOB_PROGRESS_SECONDS[0]
        of.counts.started += 1

    async def progressed(self, progress: JobProgress) -> None:
        """Recorded when it is time, and something has changed.  A refusal of what it says is no failure of the task."""
        passed = 0.0 if self._number is None else self._of.clock.monotonic() - self._begun
        if self._number is None or self._is_telling or passed < self._due or progress == self._last:
            return
        following = (seconds for seconds in limits.JOB_PROGRESS_SECONDS if seconds > passed)
        self._due = next(following, passed + limits.JOB_PROGRESS_EVERY_SECONDS)
        self._is_telling, self._last = True, progress
        try:
            await self._of.tell(kinds.JOB_PROGRESSED, self._meta(progress))
        except EnvelopeInvalid as error:
            log.warning("progress refused", extra={"event": "job.refused", "reason": str(error)})
        finally:
            self._is_telling = False

    def _meta(self, progress: JobProgress) -> dict[str, object]:
        return {
            "task": _cut(self._task),
            "row": self._row,
            "job": self._number,
            "jobs": list(progress.jobs[-limits.JOB_IDS_MAX :]),
            "stages": progress.stages,
            "stages_done": progress.stages_done,
            "tasks": progress.tasks,
            "tasks_done": progress.tasks_done,
            "tasks_failed": progress.tasks_failed,
            "stage": _cut(progress.stage),
        }

    def ended(self, failure: Failure | None) -> None:
        """The call is over: a job that began is counted."""
        if self._number is None or failure is None:
            return
        self._of.counts.failed += 1
        if failure.code == DRIVER_LOST:
            self._of.counts.lost += 1


def _cut(text: str | None) -> str | None:
    return None if text is None else shown(text)[: limits.JOB_TEXT_CHARS_MAX]
