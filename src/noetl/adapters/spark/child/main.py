"""The process of a driver: `python -m noetl.adapters.spark.child.main <descriptor>`, started by its worker.

Three things end it: its worker hangs up or dies (the connection ends), its JVM dies, or it is told to stop.  None of
them is noticed by waiting for a time.  This module loads no pyspark: the JVM is on its way before that."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

from noetl.adapters.spark.child import output
from noetl.adapters.spark.child.ending import end
from noetl.adapters.spark.child.link import Link
from noetl.adapters.spark.driver import codec
from noetl.adapters.spark.driver.wire import Message
from noetl.adapters.spark.runtime.launch import Jvm, start_jvm
from noetl.adapters.spark.runtime.options import SparkOptions
from noetl.core import limits
from noetl.core.errors import Failure, SparkUnavailable


class Reader(threading.Thread):
    """Hears the worker from the first moment on, so also its end while Spark starts."""

    def __init__(self, messages: Iterator[Message]) -> None:
        super().__init__(name="reader", daemon=True)
        self._messages = messages
        self.hear: Callable[[Message], None] | None = None
        self.stop: Callable[[], None] | None = None

    def run(self) -> None:
        try:
            self._listen()
        finally:
            # Whoever does not hear its worker any more would outlive it.
            end(0)

    def _listen(self) -> None:
        for message in self._messages:
            if message["type"] == "stop":
                if self.stop is not None:
                    self.stop()
                return
            if self.hear is not None:
                self.hear(message)


def main() -> None:
    link = Link(int(sys.argv[1]))
    voices = output.Voices(link)
    flush = output.install(voices)
    messages = link.messages()
    start = next(messages, None)
    if start is None:
        end(0)
    reader = Reader(messages)
    reader.start()
    jvm = _started(link, start)
    from noetl.adapters.spark.child import service  # noqa: PLC0415 - pyspark loads while the JVM starts

    try:
        session = service.connected(jvm)
    except SparkUnavailable as error:
        _refuse(link, "config", "SPARK_START_FAILED", error)
    served = service.Service(session, conf=start["conf"], link=link, voices=voices, flush=flush)
    reader.hear, reader.stop = served.hear, served.stop
    link.send({"type": "ready"})
    if start["is_builder"]:
        served.build_archive_later(_options(start))
    status = session.jvm.process.wait()
    if not served.is_stopping:
        link.send({"type": "lost", "message": f"its JVM ended by {service.signal_name(status)}"})
        end(1)
    reader.join()


def _started(link: Link, start: Message) -> Jvm:
    try:
        return start_jvm(_options(start), start["conf"])
    except SparkUnavailable as error:
        _refuse(link, "unsupported", error.code.upper(), error)


def _options(start: Message) -> SparkOptions:
    return SparkOptions.from_plain(start["runtime"])


def _refuse(link: Link, kind: str, code: str, error: SparkUnavailable) -> NoReturn:
    failure = Failure(kind=kind, code=code, message=str(error)[: limits.ERROR_MESSAGE_CHARS_MAX])
    link.send({"type": "unable", "failure": codec.plain(failure)})
    end(1)


if __name__ == "__main__":
    main()
