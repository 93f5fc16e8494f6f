"""The jobs of a driver: each in a thread of its own, with a session, a job group and a pool of the scheduler."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from noetl.adapters.spark.child.effective import effective
from noetl.adapters.spark.child.ending import end
from noetl.adapters.spark.child.link import Link
from noetl.adapters.spark.child.output import Voices
from noetl.adapters.spark.child.progress import Books
from noetl.adapters.spark.driver import codec
from noetl.adapters.spark.driver.wire import Message, MessageTooLarge
from noetl.adapters.spark.job.report import JobReport
from noetl.adapters.spark.session import OpenSession
from noetl.core import limits
from noetl.core.errors import Failure
from noetl.ports.data.compute import JobIntent, JobOutcome, SparkJob

Perform = Callable[[SparkSession, SparkJob, JobReport], JobOutcome]

POOL = "spark.scheduler.pool"
_LOOK_SECONDS = 0.05
_AGAIN_SECONDS = 0.5
_SILENCE_SECONDS_MAX = 5.0
_UNSETTABLE = ("CANNOT_MODIFY_CONFIG", "CANNOT_MODIFY_STATIC_CONFIG")


class JobCancelled(BaseException):
    """Thrown into the thread of a job that was cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What all jobs of a driver share."""

    session: OpenSession
    conf: Mapping[str, str]
    """What the driver was started with."""
    link: Link
    voices: Voices
    flush: Callable[[], None]
    """Sends the rest of a line that the calling thread has printed."""
    books: Books
    perform: Perform

    @property
    def context(self) -> Any:
        return self.session.spark.sparkContext

    def expect_jvm(self) -> None:
        """Not a job failed when its JVM is gone, but its driver is lost: that is told by who waits for the JVM."""
        try:
            self.context._jvm.java.lang.System.nanoTime()
        except (Py4JError, OSError):
            threading.Event().wait(_SILENCE_SECONDS_MAX)
            self._end("its JVM does not answer")

    def expect_session(self) -> None:
        """What a job has stopped for all cannot be used any more."""
        java: Any = self.context._jsc
        try:
            is_stopped = java is None or bool(java.sc().isStopped())
        except (Py4JError, OSError):
            return  # the JVM is gone, which others notice
        if is_stopped:
            self._end("a job of it stopped its session")

    def _end(self, reason: str) -> NoReturn:
        self.link.send({"type": "lost", "message": reason})
        end(1)

    def intent(self, job: SparkJob, session: SparkSession) -> JobIntent:
        return JobIntent(
            job_group=job.job_id,
            application_id=self.session.application_id,
            ui=self.session.ui,
            event_log=self.session.event_log,
            conf=effective(session.conf.getAll, job.conf),
        )


class JobThread(threading.Thread):
    """One job.  It is also the report that the job's own code sees."""

    def __init__(
        self,
        desk: Desk,
        job: SparkJob,
        *,
        slot: int,
        on_end: Callable[[JobThread], None],
        on_answered: Callable[[], None],
    ) -> None:
        super().__init__(name=f"job {job.job_id}", daemon=True)
        self.job = job
        self.slot = slot
        self._desk = desk
        self._on_end = on_end
        self._on_answered = on_answered
        self._word = threading.Event()
        self._lock = threading.Lock()
        self._actions: list[Callable[[], None]] = []
        self._is_cancelled = False
        self._is_performing = False

    # --- the report ------------------------------------------------------------------------------------------

    def said(self, text: str, *, stream: str) -> None:
        self._desk.voices.say(self.job.job_id, text, stream=stream)

    def on_cancel(self, action: Callable[[], None]) -> None:
        with self._lock:
            if not self._is_cancelled:
                self._actions.append(action)
                return
        action()

    # --- the job ---------------------------------------------------------------------------------------------

    def go(self) -> None:
        """The intent is recorded: the job may run."""
        self._word.set()

    @property
    def is_going(self) -> bool:
        return self._word.is_set()

    def run(self) -> None:
        """Whatever happens, the worker has an answer or hears that its driver is lost."""
        answer: Message | None = None
        self._desk.voices.begin(self.job.job_id)
        try:
            answer = self._answer()
            self._desk.flush()
        except JobCancelled:
            answer = None
        except BaseException as error:  # user code and Spark may raise anything; only this job fails by it
            self._desk.expect_jvm()
            answer = self._done(JobOutcome(failure=_failed(error, "unknown", "SPARK_JOB_FAILED")))
        finally:
            self._desk.voices.end(self.job.job_id)
            self._on_end(self)
        if answer is not None and not self._is_cancelled:
            self._send(answer)
        self._desk.expect_session()
        self._on_answered()

    def _answer(self) -> Message | None:
        """What becomes of the job; None when it was cancelled before it ran."""
        desk, job = self._desk, self.job
        try:
            session = desk.session.spark.newSession()
            refused = self._configure(session)
            if refused:
                return {"type": "refused", "job_id": job.job_id, "keys": refused}
            self._mark()
            intent = desk.intent(job, session)
        except (PySparkException, Py4JError) as error:
            desk.expect_jvm()
            return self._done(JobOutcome(failure=_failed(error, "config", "SPARK_CONF_INVALID")))
        desk.link.send({"type": "intent", "job_id": job.job_id, "intent": codec.plain(intent)})
        self._word.wait()
        with self._lock:
            if self._is_cancelled:
                return None
            self._is_performing = True
        try:
            outcome = desk.perform(session, job, self)
        finally:
            with self._lock:
                self._is_performing = False
                throw(self.ident, None)
        if outcome.failure is not None:
            desk.expect_jvm()
        return self._done(outcome)

    def _configure(self, session: SparkSession) -> list[str]:
        """Set what the job asks for; returns what cannot be set on a session."""
        refused = []
        for key, value in self.job.conf.items():
            if key == POOL or self._desk.conf.get(key) == value:
                continue
            try:
                session.conf.set(key, value)
            except AnalysisException as error:
                if error.getCondition() not in _UNSETTABLE:
                    raise
                refused.append(key)
        return refused

    def _mark(self) -> None:
        """All Spark jobs of this thread belong to it.  The tag stays when user code sets a group of its own."""
        context = self._desk.context
        context.setJobGroup(self.job.job_id, self.job.title, interruptOnCancel=True)
        context.addJobTag(self.job.job_id)
        context.setLocalProperty(POOL, self.job.conf.get(POOL, f"noetl-{self.slot}"))

    def _done(self, outcome: JobOutcome) -> Message:
        return {"type": "done", "job_id": self.job.job_id, "outcome": codec.plain(outcome)}

    def _send(self, answer: Message) -> None:
        try:
            self._desk.link.send(answer)
        except MessageTooLarge as error:
            text = f"the answer of the job is too large: {error}; return a DataFrame, which is stored as a dataset"
            self._desk.link.send(self._done(_unreturnable(text)))
        except (TypeError, ValueError, RecursionError) as error:
            self._desk.link.send(self._done(_unreturnable(f"the answer of the job is no plain data: {error}")))

    # --- its end before time ---------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Returns when no Spark job of it is active and its thread has ended.  The worker bounds the time."""
        with self._lock:
            if self._is_cancelled:
                return
            self._is_cancelled = True
            actions, self._actions = self._actions, []
        self._word.set()
        for action in actions:
            action()
        while self.is_alive():
            self._interrupt()
            self.join(_AGAIN_SECONDS)
        pause = threading.Event()
        while self._desk.books.is_active(self.job.job_id):
            pause.wait(_LOOK_SECONDS)

    def _interrupt(self) -> None:
        """End what runs in the JVM and what runs in Python."""
        context, why = self._desk.context, "the task was cancelled"
        context._jsc.sc().cancelJobGroupAndFutureJobs(self.job.job_id, why)
        context._jsc.sc().cancelJobsWithTag(self.job.job_id, why)
        with self._lock:
            if self._is_performing:
                throw(self.ident, JobCancelled)


def throw(thread: int | None, error: type[BaseException] | None) -> None:
    """Have an exception raised in a thread as soon as it runs Python code; None takes it back."""
    given = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread or 0), given)


def _failed(error: BaseException, kind: str, code: str) -> Failure:
    message = f"{type(error).__name__}: {error}"[: limits.ERROR_MESSAGE_CHARS_MAX]
    return Failure(kind=kind, code=code, message=message, exception_type=type(error).__name__)


def _unreturnable(message: str) -> JobOutcome:
    failure = Failure(kind="config", code="SPARK_ANSWER_INVALID", message=message[: limits.ERROR_MESSAGE_CHARS_MAX])
    return JobOutcome(failure=failure)
