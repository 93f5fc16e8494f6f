"""Starts the JVM of a session.

Spark's own way is a shell script that starts Python to find Spark and a first JVM to find the arguments of the second:
some seconds for a command line that is the same every time.  So it is made here; a test compares it with what the
launcher says."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shlex
import struct
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from noetl.adapters.spark.runtime import archive
from noetl.adapters.spark.runtime.defaults import session_conf
from noetl.adapters.spark.runtime.environment import conf_folders, jvm_environment
from noetl.adapters.spark.runtime.java import Java, find_java
from noetl.adapters.spark.runtime.options import SparkOptions
from noetl.adapters.spark.runtime.scratch import Scratch, keep_newest, new_scratch
from noetl.adapters.spark.runtime.shim import launcher_home
from noetl.core import limits
from noetl.core.errors import SparkUnavailable

EVENT_LOGS_MAX = 50
"""Logs of ended sessions that stay."""
CRASH_LOGS_MAX = 10
"""Reports of JVMs that died of a defect."""
JVM_OUT_OF_MEMORY = 3
"""The exit status of a JVM that had no memory left."""
_POLL_SECONDS = 0.02
_LOG_CONF = Path(__file__).with_name("log4j2.properties")
_OPENED = [
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
]
_GONE_IN_24 = "java.base/sun.security.action"


def spark_flags(java: Java) -> list[str]:
    """What Spark's launcher says, but for the vector module: it slows the start and few runtimes have it."""
    opened = [package for package in _OPENED if java.major < 24 or package != _GONE_IN_24]
    return [
        "-XX:+IgnoreUnrecognizedVMOptions",
        *(f"--add-opens={package}=ALL-UNNAMED" for package in opened),
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Dio.netty.allocator.type=pooled",
        "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
        "--sun-misc-unsafe-memory-access=allow",
        "--enable-native-access=ALL-UNNAMED",
        "-Dderby.connection.requireAuthentication=false",
    ]


_OWN_FLAGS = (
    # A JVM that has run out of memory once is no use any more, and its end is noticed at once.
    "-XX:+ExitOnOutOfMemoryError",
    # What the JVM has to say about an archive that it does not take is of no use to anybody.
    "-Xlog:disable",
    # Spark goes over the columns that Python hands over by their number of rows; Arrow would look at the bounds of its
    # buffers again for each value.  Its check for nulls stays: where a schema says that a column has none, Spark does
    # not ask, and a null would be some number.
    "-Darrow.enable_unsafe_memory_access=true",
    f"-Dlog4j2.configurationFile={_LOG_CONF}",
)
# An interrupt at the terminal is for us; what is ignored stays so in the program that takes the shell's place.
_UNINTERRUPTED = ("/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """How a JVM is spoken to."""

    port: int
    secret: str


@dataclass(slots=True, kw_only=True)
class Jvm:
    """A JVM that is starting or runs.  It ends when its input does, so also when this process is killed."""

    process: subprocess.Popen[bytes]
    java: Java
    scratch: Scratch
    answer: Path
    without_archive: Callable[[], subprocess.Popen[bytes]] | None = None
    """Starts it again, for it may be the class archive that it did not come up with."""
    blame_archive: Callable[[], None] | None = None
    """Called when that was it."""

    def gateway(self) -> Gateway:
        """Waits until it can be spoken to.  Raises SparkUnavailable."""
        until = time.monotonic() + limits.SPARK_START_SECONDS_MAX
        is_second = False
        while not self.answer.exists():
            status = self.process.poll()
            if status is not None and self.without_archive is not None:
                self._hang_up()
                self.process, self.without_archive, is_second = self.without_archive(), None, True
            elif status is not None:
                raise SparkUnavailable(
                    f"Java {self.java.version} ({self.java.home}) ended with status {status} before Spark answered: "
                    "its own messages on standard error say why"
                )
            if time.monotonic() > until:
                raise SparkUnavailable(f"Spark did not start within {limits.SPARK_START_SECONDS_MAX:g} s")
            time.sleep(_POLL_SECONDS)
        if is_second and self.blame_archive is not None:
            self.blame_archive()
        content = self.answer.read_bytes()
        port, length = struct.unpack(">ii", content[:8])
        self.answer.unlink()
        return Gateway(port=port, secret=content[8 : 8 + length].decode())

    def end(self, seconds: float) -> None:
        """Let it end by itself for so long, then kill it; and remove what it leaves."""
        self._hang_up()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.scratch.remove()

    def _hang_up(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()


def start_jvm(
    options: SparkOptions,
    conf: Mapping[str, str] | None = None,
    *,
    name: str = "noetl",
    flags: Sequence[str] | None = None,
) -> Jvm:
    """Returns at once.  `flags` stand in place of those for the class archive.  Raises SparkUnavailable."""
    found = find_java(options)
    spark_home = spark_folder()
    for folder in (options.events, options.warehouse, options.crashes):
        folder.mkdir(parents=True, exist_ok=True)
    # Plans have values of the job's data in them, and Spark lets a group read its logs.
    options.events.chmod(0o700)
    keep_newest(options.events, EVENT_LOGS_MAX)
    keep_newest(options.crashes, CRASH_LOGS_MAX)
    scratch = new_scratch(options.scratch)
    settings = {**session_conf(options, scratch, name=name), **(conf or {})}
    answer = scratch.private / "gateway"
    java_home = launcher_home(found.java, options.runtimes)
    environment = jvm_environment(options, java_home=java_home, spark_home=spark_home, scratch=scratch, answer=answer)
    head = [
        *_UNINTERRUPTED,
        str(found.java.executable),
        *("-cp", class_path(spark_home, settings, conf_folders(environment))),
        f"-Xmx{settings['spark.driver.memory']}",
        *spark_flags(found.java),
        *_OWN_FLAGS,
        f"-Djava.io.tmpdir={scratch.private}",
        f"-XX:ErrorFile={options.crashes / 'crash-%p.log'}",
    ]
    tail = [
        *shlex.split(settings.get("spark.driver.defaultJavaOptions", "")),
        *shlex.split(settings.get("spark.driver.extraJavaOptions", "")),
        "org.apache.spark.deploy.SparkSubmit",
        *("--properties-file", str(_written(settings, scratch.private / "spark.properties"))),
        *(["--load-spark-defaults"] if environment.get("SPARK_CONF_DIR") else []),
        "pyspark-shell",
    ]

    def start(used: Sequence[str]) -> subprocess.Popen[bytes]:
        # Descriptor 2 twice: standard output may carry the answers of whoever started us.
        return subprocess.Popen([*head, *used, *tail], stdin=subprocess.PIPE, stdout=2, stderr=2, env=environment)

    known = jars(spark_home)
    used = archive.flags(options, found.java, known) if flags is None else flags
    jvm = Jvm(process=start(used), java=found.java, scratch=scratch, answer=answer)
    if used and flags is None:
        jvm.without_archive = partial(start, ())
        jvm.blame_archive = partial(archive.set_aside, options, found.java, known)
    return jvm


def spark_folder() -> Path:
    spec = importlib.util.find_spec("pyspark")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        return Path(folder)
    raise SparkUnavailable("the Python package pyspark is not installed: `pip install noetl` installs it")


def spark_version() -> str:
    return importlib.metadata.version("pyspark")


def jars(spark_home: Path) -> list[Path]:
    """In one order on every start: the class archive fits one class path exactly."""
    return sorted((spark_home / "jars").glob("*.jar"))


def class_path(spark_home: Path, settings: Mapping[str, str], folders: Iterable[str]) -> str:
    """Folders stand at the end, where the launcher puts them first: an archive fits every path that begins as its own
    did, and no jar of Spark's has a file with settings."""
    extra = settings.get("spark.driver.extraClassPath")
    return ":".join([*([extra] if extra else []), *map(str, jars(spark_home)), *folders])


def _written(settings: Mapping[str, str], path: Path) -> Path:
    """In a file that nobody else can read: arguments of a process are seen by everybody on the machine."""
    path.touch(mode=0o600)
    path.write_text("".join(f"{_escaped(key, True)}={_escaped(value)}\n" for key, value in settings.items()), "utf-8")
    return path


def _escaped(text: str, is_key: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    if is_key:
        text = text.replace(":", "\\:").replace("=", "\\=").replace(" ", "\\ ")
    return f"\\{text}" if text.startswith((" ", "#", "!")) else text
