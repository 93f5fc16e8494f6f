"""The class archive: Spark's classes as the JVM has them after loading, mapped by later starts instead of being read
and checked again.  It halves the time to the first result.

An archive fits one build of Java, one list of jars and one release of Spark exactly, and is named after them.  It is an
accelerator and nothing else: whatever is wrong with it, a JVM starts without it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from noetl.adapters.spark.runtime.java import Java
from noetl.adapters.spark.runtime.options import SparkOptions

BUILDER_MODULE = "noetl.adapters.spark.runtime.builder"
ARCHIVES_MAX = 6
"""Files that stay: those of the Javas and releases that were used last."""
_BYTES_MIN = 1024**2
_FAILED_SECONDS = 24 * 3600.0
"""After a build that failed the next driver does not try again for so long."""
# Part of the name of an archive: raised when its content or its flags change.
_LAYOUT = 1

_builders: list[subprocess.Popen[bytes]] = []

State = Literal["ready", "building", "failed", "missing"]


def archive_file(options: SparkOptions, java: Java, jars: Sequence[Path]) -> Path:
    return options.classes / f"spark-{importlib.metadata.version('pyspark')}-java-{java.version}-{_key(java, jars)}.jsa"


def base_file(options: SparkOptions, java: Java) -> Path:
    """For a runtime that comes without the archive of Java's own classes, on which any other stands."""
    return options.classes / f"java-{java.version}-{java.identity}.jsa"


def flags(options: SparkOptions, java: Java, jars: Sequence[Path]) -> list[str]:
    """What makes a JVM use the archive; nothing when there is none."""
    file = archive_file(options, java, jars)
    if not is_whole(file):
        return []
    base = [] if java.has_base_archive else [base_file(options, java)]
    if not all(is_whole(one) for one in base):
        return []
    for one in (*base, file):
        with contextlib.suppress(OSError):
            os.utime(one)  # so that the archives in use are the newest
    # Checked against its sums while it is mapped: damage makes the JVM go without it instead of going wrong.
    return [f"-XX:SharedArchiveFile={':'.join(map(str, [*base, file]))}", "-XX:+VerifySharedSpaces", "-Xshare:auto"]


def set_aside(options: SparkOptions, java: Java, jars: Sequence[Path]) -> None:
    """A JVM that did not come up with it shall not be started with it again."""
    file = archive_file(options, java, jars)
    with contextlib.suppress(OSError):
        file.unlink(missing_ok=True)
    record_failure(file, "a JVM did not start with it")


def state(options: SparkOptions, java: Java, jars: Sequence[Path]) -> State:
    file = archive_file(options, java, jars)
    if flags(options, java, jars):
        return "ready"
    if _is_locked(file):
        return "building"
    return "failed" if failure(file) is not None else "missing"


def build_later(options: SparkOptions, java: Java, jars: Sequence[Path]) -> int | None:
    """Have the archive built by a process of its own, at the lowest priority, if there is none.  Returns at once, with
    the number of that process.  Never raises: nobody's work depends on it."""
    if not options.is_local or state(options, java, jars) != "missing":
        return None
    try:
        options.classes.mkdir(parents=True, exist_ok=True)
        # It outlives us, and has nothing of us: no session, folder or descriptor.
        builder = subprocess.Popen(
            builder_command(options, later=True),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=options.classes,
            start_new_session=True,
        )
    except OSError:
        return None
    # Nobody waits for it; without this, its handle would complain when it is thrown away.
    _builders.append(builder)
    return builder.pid


def builder_command(options: SparkOptions, *, later: bool) -> list[str]:
    words = [sys.executable, "-P", "-m", BUILDER_MODULE, json.dumps(options.to_plain())]
    return [*words, "later"] if later else words


@contextmanager
def building(file: Path, *, waits: bool) -> Iterator[bool]:
    """One builder at a time; False when there is another and we do not wait.  The kernel drops the lock with its
    process."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with _lock_of(file).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def publish(made: Path, file: Path) -> None:
    """Whole or not at all: a JVM may look for it at any moment."""
    size = made.stat().st_size
    if size < _BYTES_MIN:
        raise OSError(f"{made} is no archive")
    with made.open("rb") as content:
        os.fsync(content.fileno())
    _size_of(file).write_text(str(size), "utf-8")
    made.rename(file)
    _failure_of(file).unlink(missing_ok=True)


def keep_newest_only(folder: Path) -> None:
    """What was used last stays; what belonged to the others goes with them."""
    dated = sorted(((file.stat().st_mtime, file) for file in folder.glob("*.jsa")), reverse=True)
    for _, file in dated[ARCHIVES_MAX:]:
        for one in (file, _size_of(file), _lock_of(file), _failure_of(file)):
            one.unlink(missing_ok=True)


def record_failure(file: Path, reason: str) -> None:
    with contextlib.suppress(OSError):
        _failure_of(file).write_text(reason, "utf-8")


def failure(file: Path) -> str | None:
    """Why the last build failed, for as long as it is not tried again."""
    path = _failure_of(file)
    try:
        is_recent = time.time() - path.stat().st_mtime < _FAILED_SECONDS
        return path.read_text("utf-8") if is_recent else None
    except OSError:
        return None


def is_whole(file: Path) -> bool:
    """A JVM notices damage by the sums in an archive, but it dies of one that ends too early."""
    try:
        return file.stat().st_size == int(_size_of(file).read_text("utf-8"))
    except (OSError, ValueError):
        return False


def _key(java: Java, jars: Sequence[Path]) -> str:
    digest = hashlib.sha256(f"{_LAYOUT}\n{java.identity}\n".encode())
    for jar in jars:
        found = jar.stat()
        digest.update(f"{jar}\0{found.st_size}\0{found.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _is_locked(file: Path) -> bool:
    try:
        with _lock_of(file).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        # No lock at all, or a folder that is none: whoever builds there will say so.
        return False
    return False


def _lock_of(file: Path) -> Path:
    return file.with_suffix(".lock")


def _size_of(file: Path) -> Path:
    return file.with_suffix(".size")


def _failure_of(file: Path) -> Path:
    return file.with_suffix(".failed")
