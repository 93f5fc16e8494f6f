"""A Spark driver that ends itself, once, at a named point of its first job.  It is a real one: only the calls on the
way are watched.  MORTAL_POINT and MORTAL_MARK in its environment say where, and which file tells that it happened."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from noetl.adapters.spark.child import main as entry
from noetl.adapters.spark.child.link import Link
from noetl.adapters.spark.job import perform as performing

POINTS = ("before_write", "after_write", "after_commit_message")


def die_at(point: str) -> None:
    if point != os.environ["MORTAL_POINT"]:
        return
    try:
        Path(os.environ["MORTAL_MARK"]).touch(exist_ok=False)
    except FileExistsError:
        return  # once is enough
    os.kill(os.getpid(), signal.SIGKILL)


def install() -> None:
    module: Any = performing
    write = module.write
    send = Link.send

    def watched_write(*arguments: object, **options: object) -> object:
        die_at("before_write")
        written = write(*arguments, **options)
        die_at("after_write")
        return written

    def watched_send(self: Link, message: Mapping[str, object]) -> None:
        send(self, message)
        if message["type"] == "done":
            die_at("after_commit_message")

    module.write = watched_write
    Link.send = watched_send  # type: ignore[method-assign]


if __name__ == "__main__":
    install()
    entry.main()
