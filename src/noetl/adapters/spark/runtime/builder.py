"""The process that builds a class archive: it runs a little of everything in a JVM that writes down what it loaded."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from noetl.adapters.spark.runtime import archive, workload
from noetl.adapters.spark.runtime.java import Java, find_java
from noetl.adapters.spark.runtime.launch import class_path, jars, spark_flags, spark_folder, start_jvm
from noetl.adapters.spark.runtime.options import SparkOptions
from noetl.adapters.spark.session import connect
from noetl.core.errors import NoetlError, SparkUnavailable

BUILD_SECONDS_MAX = 300.0
"""How long the JVM may take to write the archive after the last job."""
_MEMORY_BYTES = 1024**3
_KINDS = 7


def build(options: SparkOptions, *, waits: bool = True) -> Path | None:
    """The archive, built now.  While another process is at it, wait, or return None.  Raises SparkUnavailable."""
    java = find_java(options).java
    home = spark_folder()
    file = archive.archive_file(options, java, jars(home))
    try:
        with archive.building(file, waits=waits) as is_mine:
            if not is_mine:
                return None
            if archive.flags(options, java, jars(home)):
                return file
            with _workshop(options.classes / f".build-{file.stem}") as folder:
                _build(options, java, home, file, folder)
            archive.keep_newest_only(options.classes)
    except (NoetlError, OSError, subprocess.SubprocessError, PySparkException, Py4JError) as error:
        reason = _reason(error)
        archive.record_failure(file, reason)
        raise SparkUnavailable(f"the class archive was not built: {reason}") from error
    return file


def _reason(error: Exception) -> str:
    """In one line; the errors of processes would tell a whole command line."""
    if isinstance(error, subprocess.CalledProcessError):
        return f"{error.cmd[0]} ended with exit code {error.returncode}"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"{error.cmd[0]} did not end in {error.timeout:g} s"
    return str(error).partition("\n")[0] or type(error).__name__


@contextmanager
def _workshop(folder: Path) -> Iterator[Path]:
    """Empty at the beginning, also when a builder was killed in it: whoever has the lock is alone here."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _build(options: SparkOptions, java: Java, home: Path, file: Path, folder: Path) -> None:
    command = [str(java.executable), *spark_flags(java), "-Xlog:disable"]
    base: list[Path] = []
    if not java.has_base_archive:
        base = [archive.base_file(options, java)]
        if not archive.is_whole(base[0]):
            made = folder / "base.jsa"
            # With the flags of later starts: an archive keeps what it knows of modules only for the same ones.
            _run([*command, "-Xshare:dump", f"-XX:SharedArchiveFile={made}"])
            archive.publish(made, base[0])
    made = folder / "classes.jsa"
    own = replace(options, folder=folder / "spark", master="local[2]", driver_memory_bytes=_MEMORY_BYTES)
    onto = [f"-XX:SharedArchiveFile={base[0]}"] if base else []
    jvm = start_jvm(
        own, {"spark.ui.port": "0"}, name="class archive", flags=[*onto, f"-XX:ArchiveClassesAtExit={made}"]
    )
    session = connect(jvm)
    try:
        found = workload.run(session.spark, folder)
    finally:
        session.close(BUILD_SECONDS_MAX)
    if found != _KINDS:
        raise SparkUnavailable(f"the workload of the archive has {found} rows and not {_KINDS}")
    # The JVM's own word that it can be used.
    whole = f"-XX:SharedArchiveFile={':'.join(map(str, [*base, made]))}"
    _run([*command, "-cp", class_path(home, {}, ()), "-Xshare:on", whole, "-XX:+VerifySharedSpaces", "-version"])
    archive.publish(made, file)


def _run(command: list[str]) -> None:
    subprocess.run(
        command,
        check=True,
        timeout=BUILD_SECONDS_MAX,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def main(words: list[str]) -> int:
    options = SparkOptions.from_plain(json.loads(words[0]))
    is_later = "later" in words[1:]
    if is_later:
        os.nice(19)
    try:
        build(options, waits=not is_later)
    except NoetlError:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
