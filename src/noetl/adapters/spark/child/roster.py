"""Which jobs a driver has, and what its worker says about them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from py4j.protocol import Py4JError

from noetl.adapters.spark.child.jobs import Desk, JobThread
from noetl.adapters.spark.child.progress import Watcher
from noetl.adapters.spark.driver import codec
from noetl.adapters.spark.driver.wire import Message
from noetl.ports.data.compute import JobProgress, SparkJob


class Roster:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._lock = threading.Lock()
        self._threads: dict[str, JobThread] = {}
        self._later: list[Callable[[], object]] = []
        self._watcher = Watcher(desk.books, running=self._going, tell=self._tell)
        self._watcher.start()

    @property
    def is_idle(self) -> bool:
        return not self._threads

    def when_idle(self, action: Callable[[], object]) -> None:
        """Have something done once, behind the first job with which no other one runs."""
        self._later.append(action)

    def hear(self, message: Message) -> None:
        if message["type"] == "run":
            self._begin(codec.typed(SparkJob, message["job"]))
            return
        thread = self._threads.get(message["job_id"])
        if message["type"] == "cancel":
            # Apart from the reader: other jobs go on meanwhile.
            threading.Thread(target=self._cancel, args=(message["job_id"], thread), daemon=True).start()
        elif message["type"] == "go" and thread is not None:
            thread.go()
            self._watcher.wake()

    def _begin(self, job: SparkJob) -> None:
        with self._lock:
            taken = {thread.slot for thread in self._threads.values()}
            slot = next(number for number in range(len(taken) + 1) if number not in taken)
            thread = JobThread(self._desk, job, slot=slot, on_end=self._forget, on_answered=self._rest)
            self._threads[job.job_id] = thread
        thread.start()

    def _forget(self, thread: JobThread) -> None:
        with self._lock:
            self._threads.pop(thread.job.job_id, None)

    def _rest(self) -> None:
        """When no job runs: what jobs have cached and not given back belongs to nobody, and what waits can be done."""
        if not self.is_idle:
            return
        try:
            self._desk.session.spark.catalog.clearCache()
        except (Py4JError, OSError):
            return  # the JVM is gone, which others notice
        with self._lock:
            later, self._later = self._later, []
        for action in later:
            action()

    def _cancel(self, job_id: str, thread: JobThread | None) -> None:
        if thread is not None:
            thread.cancel()
        self._desk.link.send({"type": "cancelled", "job_id": job_id})

    def _going(self) -> list[str]:
        with self._lock:
            return [job_id for job_id, thread in self._threads.items() if thread.is_going]

    def _tell(self, job_id: str, progress: JobProgress) -> None:
        self._desk.link.send({"type": "progress", "job_id": job_id, "progress": codec.plain(progress)})
