"""One driver as its worker sees it: its start, its jobs, its end.

A driver is started once, however many wait for it.  When it is gone all its jobs hear of it at once; none of them
waits for a time limit."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace

from noetl.adapters.spark.driver import codec
from noetl.adapters.spark.driver.inbox import Cancelled, Inbox, JobEnd, Lost, Refused
from noetl.adapters.spark.driver.process import DriverProcess, Hearing, signal_name
from noetl.adapters.spark.driver.settings import DriverSettings
from noetl.adapters.spark.driver.wire import Message, MessageInvalid, MessageTooLarge, framed
from noetl.core import limits
from noetl.core.errors import Failure
from noetl.ports.data.compute import DRIVER_LOST, JobIntent, JobListener, JobOutcome, JobProgress, SparkJob

# A driver that hears nothing of its JVM says so by itself.
_ANSWER_SECONDS = 5.0
_LAST_WORDS = "\nits last words:\n"
_MEMORY_MARKS = ("OutOfMemoryError", "Cannot allocate memory")
_MEMORY_ADVICE = (
    "it ran out of memory: give it more by NOETL_SPARK_DRIVER_MEMORY_MB or `conf: {spark.driver.memory: …}`"
)


class Driver:
    def __init__(
        self,
        settings: DriverSettings,
        conf: Mapping[str, str],
        *,
        loop: asyncio.AbstractEventLoop,
        on_end: Callable[[Driver], None],
    ) -> None:
        """`conf` is what is fixed with it.  Raises OSError when no process can be started."""
        self._loop = loop
        self._on_end = on_end
        self._inboxes: dict[str, Inbox] = {}
        self._starting: list[JobListener] = []
        self._last_words = ""
        self._reason: str | None = None
        self.is_over = False
        self.users = 0
        """Those who have it in hand, also while it starts."""
        self._started: asyncio.Future[Failure | None] = loop.create_future()
        hearing = Hearing(message=self._hear, text=self._write, ended=self._over)
        self._process = DriverProcess(settings, loop=loop, hearing=hearing)
        self._limit = loop.call_later(limits.SPARK_START_SECONDS_MAX + _ANSWER_SECONDS, self._is_late)
        self._process.send(
            {
                "type": "start",
                "runtime": settings.runtime.to_plain(),
                "conf": {**settings.conf, **conf},
                "is_builder": settings.is_builder,
            }
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_ready(self) -> bool:
        return self._started.done() and not self._started.cancelled() and self._started.result() is None

    async def started(self, listener: JobListener) -> Failure | None:
        """None when it can take jobs.  What it says on the way goes to everybody who waits."""
        self._starting.append(listener)
        try:
            # Others wait for the same start: it does not end with one of them.
            return await asyncio.shield(self._started)
        finally:
            self._starting.remove(listener)

    async def run(self, job: SparkJob, listener: JobListener) -> JobEnd:
        """Returns what became of a job.  Whoever leaves earlier waits until nothing of it runs any more."""
        inbox = Inbox(listener)
        if self.is_over:
            return self._lost(inbox)
        try:
            request = framed({"type": "run", "job": codec.plain(job)})
        except MessageTooLarge as error:
            return _unsendable(f"the job is too large to be sent to Spark: {error}; pass data by reference or by path")
        except (TypeError, ValueError, RecursionError) as error:
            return _unsendable(f"the job is no plain data: {error}")
        self._inboxes[job.job_id] = inbox
        self._process.send_framed(request)
        try:
            return await self._attend(job.job_id, inbox)
        finally:
            if inbox.end is None:
                await self._cancel(job.job_id, inbox)
            del self._inboxes[job.job_id]

    def stop(self) -> None:
        """Have it end by itself, and by force if it does not."""
        if not self.is_over:
            self._reason = self._reason or "it was stopped"
            self._process.send({"type": "stop"})
            self._loop.call_later(limits.SPARK_STOP_SECONDS_MAX, self.kill, "it did not stop")

    def kill(self, reason: str) -> None:
        self._reason = self._reason or reason
        self._process.kill()

    async def ended(self) -> None:
        await asyncio.shield(self._process.ended)

    # --- a job -----------------------------------------------------------------------------------------------

    async def _attend(self, job_id: str, inbox: Inbox) -> JobEnd:
        while True:
            await inbox.change()
            if inbox.end is not None:
                return inbox.end
            if inbox.intent is not None:
                intent, inbox.intent = inbox.intent, None
                await inbox.listener.intended(intent)
                self._process.send({"type": "go", "job_id": job_id})
            if inbox.progress is not None:
                progress, inbox.progress = inbox.progress, None
                await inbox.listener.progressed(progress)

    async def _cancel(self, job_id: str, inbox: Inbox) -> None:
        """Until Spark has confirmed it.  Whoever cancels again waits as well: the time is bounded."""
        self._process.send({"type": "cancel", "job_id": job_id})
        limit = self._loop.call_later(
            limits.SPARK_CANCEL_SECONDS_MAX, self.kill, "a job of it was cancelled and its code did not end"
        )
        try:
            while inbox.end is None:
                with contextlib.suppress(asyncio.CancelledError):
                    await inbox.change()
        finally:
            limit.cancel()

    def _lost(self, inbox: Inbox) -> Lost:
        return Lost(message=self._farewell(), has_begun=inbox.has_begun)

    # --- what it says ----------------------------------------------------------------------------------------

    def _hear(self, message: Message) -> None:
        kind = message["type"]
        if kind == "ready":
            self._settle(None)
            return
        if kind == "unable":
            self._settle(self._explained(codec.typed(Failure, message.get("failure"))))
            return
        if kind == "lost":
            self._reason = self._reason or str(message.get("message"))
            return
        inbox = self._inboxes.get(str(message.get("job_id")))
        if inbox is None:
            return  # it came too late: nobody waits any more
        if kind == "said":
            inbox.listener.said(str(message.get("text")), stream=str(message.get("stream")))
        elif kind == "intent":
            inbox.note_intent(codec.typed(JobIntent, message.get("intent")))
        elif kind == "progress":
            inbox.note_progress(codec.typed(JobProgress, message.get("progress")))
        elif kind == "done":
            inbox.note_end(codec.typed(JobOutcome, message.get("outcome")))
        elif kind == "refused":
            inbox.note_end(Refused(keys=codec.typed(tuple[str, ...], message.get("keys"))))
        elif kind == "cancelled":
            inbox.note_end(Cancelled())
        else:
            raise MessageInvalid(f"a message of the unknown type {kind!r}")

    def _write(self, stream: str, text: str) -> None:
        """What goes to the descriptors is Spark's own log, and what user code writes past Python."""
        self._last_words = (self._last_words + text)[-limits.SPARK_LAST_WORDS_CHARS_MAX :]
        listeners = [inbox.listener for inbox in self._inboxes.values()] + self._starting
        of_one = stream == "stdout" and len(listeners) == 1
        for listener in listeners:
            listener.said(text, stream="stdout" if of_one else "log")

    # --- its start and end -----------------------------------------------------------------------------------

    def _settle(self, failure: Failure | None) -> None:
        self._limit.cancel()
        if not self._started.done():
            self._started.set_result(failure)

    def _explained(self, failure: Failure) -> Failure:
        """Why a JVM did not start is on its standard error, and nowhere else."""
        self._process.drain_text()
        return replace(failure, message=self._with_last_words(failure.message))

    def _is_late(self) -> None:
        self.kill(f"it did not start within {limits.SPARK_START_SECONDS_MAX:g} seconds")

    def _over(self, status: int | None) -> None:
        self.is_over = True
        if self._reason is None and status is not None:
            self._reason = f"it ended by {signal_name(status)}"
        self._settle(lost_failure(self._farewell()))
        for inbox in self._inboxes.values():
            inbox.note_end(self._lost(inbox))
        self._on_end(self)

    def _farewell(self) -> str:
        reason = self._reason or "it ended"
        if any(mark in self._last_words for mark in _MEMORY_MARKS):
            reason = f"{reason}; {_MEMORY_ADVICE}"
        return self._with_last_words(f"the Spark driver is gone: {reason}")

    def _with_last_words(self, text: str) -> str:
        words = "\n".join(line for line in self._last_words.splitlines() if line.strip())
        room = limits.ERROR_MESSAGE_CHARS_MAX - len(text) - len(_LAST_WORDS)
        return text + _LAST_WORDS + words[-room:] if words and room > 0 else text


def lost_failure(message: str) -> Failure:
    return Failure(
        kind="connection", code=DRIVER_LOST, message=message[: limits.ERROR_MESSAGE_CHARS_MAX], retryable=True
    )


def _unsendable(message: str) -> JobOutcome:
    failure = Failure(kind="config", code="SPARK_JOB_UNSENDABLE", message=message[: limits.ERROR_MESSAGE_CHARS_MAX])
    return JobOutcome(failure=failure)
