"""How a JVM is started, what its session and its Python workers are like, and what is left of them."""

from __future__ import annotations

import gc
import io
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.clientserver import ClientServer, JavaParameters
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from noetl import spark as facade
from noetl.adapters.spark.runtime import launch
from noetl.adapters.spark.runtime.daemon import unless_dismissed, without_archives
from noetl.adapters.spark.runtime.defaults import cores_of
from noetl.adapters.spark.runtime.environment import jvm_environment
from noetl.adapters.spark.runtime.java import VECTOR_MODULE, find_java, wheel_home
from noetl.adapters.spark.runtime.launch import Jvm, jars, spark_flags, spark_folder, start_jvm
from noetl.adapters.spark.runtime.options import SparkOptions
from noetl.adapters.spark.runtime.scratch import keep_newest, new_scratch, sweep
from noetl.adapters.spark.session import connect
from noetl.core.errors import SparkUnavailable
from tests.support.spark import quick_options, shared_open_session, shared_session

HOME = spark_folder()


def property_of(jvm: Jvm, name: str) -> str:
    where = jvm.gateway()
    gateway = ClientServer(java_parameters=JavaParameters(port=where.port, auth_token=where.secret))
    try:
        return str(gateway.jvm.System.getProperty(name))
    finally:
        gateway.shutdown()


# --- the JVM ---------------------------------------------------------------------------------------------


def test_the_jvm_gets_the_flags_that_sparks_own_launcher_gives(tmp_path: Path) -> None:
    java = find_java(quick_options(tmp_path)).java
    command = [java.executable, "-cp", launch.class_path(HOME, {}, ()), "org.apache.spark.launcher.Main"]
    done = subprocess.run(
        [*command, "org.apache.spark.deploy.SparkSubmit", "pyspark-shell"],
        env={"SPARK_HOME": str(HOME), "SPARK_SCALA_VERSION": "2.13", "JAVA_HOME": str(java.home)},
        capture_output=True,
        text=True,
        check=True,
    )
    said = done.stdout.split("\0")
    flags = said[said.index("-XX:+IgnoreUnrecognizedVMOptions") : said.index("org.apache.spark.deploy.SparkSubmit")]
    flags.remove(f"--add-modules={VECTOR_MODULE}")
    assert flags == spark_flags(java)


def test_settings_reach_the_jvm_as_they_are_and_not_by_its_arguments(tmp_path: Path) -> None:
    odd = {"spark.x": "  a=b:c\\d\n#é!\t'\"$HOME", "spark.a b=c": "!", "spark.empty": ""}
    jvm = start_jvm(quick_options(tmp_path), odd)
    try:
        arguments = Path(f"/proc/{jvm.process.pid}/cmdline").read_bytes()
        assert b"spark.x" not in arguments
        where = jvm.gateway()
        gateway = ClientServer(java_parameters=JavaParameters(port=where.port, auth_token=where.secret))
        # Spark itself takes blanks off the ends.
        found = {key: gateway.jvm.System.getProperty(key) for key in odd}
        gateway.shutdown()
    finally:
        jvm.end(5.0)
    assert found == {key: value.strip() for key, value in odd.items()}
    assert list((tmp_path / "scratch").iterdir()) == []
    assert not jvm.scratch.private.exists()


def test_a_jvm_that_does_not_come_up_with_the_archive_is_started_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aside: list[object] = []
    monkeypatch.setattr(launch.archive, "flags", lambda *_: ["-Xmx1"])
    monkeypatch.setattr(launch.archive, "set_aside", lambda *given: aside.append(given))
    jvm = start_jvm(quick_options(tmp_path))
    try:
        assert property_of(jvm, "spark.app.name") == "noetl"
    finally:
        jvm.end(5.0)
    assert len(aside) == 1


def test_a_jvm_that_does_not_come_up_is_an_error_that_says_so(tmp_path: Path) -> None:
    options = quick_options(tmp_path)
    jvm = start_jvm(options, {"spark.driver.extraJavaOptions": "-Xmx1"})
    with pytest.raises(SparkUnavailable, match=r"Java \d+.* ended with status 1 before Spark answered"):
        jvm.gateway()
    jvm.end(5.0)
    assert list(options.scratch.iterdir()) == []


def test_a_second_jvm_in_a_process_with_a_session_is_refused_and_ended(tmp_path: Path) -> None:
    shared_session()
    jvm = start_jvm(quick_options(tmp_path))
    with pytest.raises(SparkUnavailable, match="has a Spark session already"):
        connect(jvm)
    assert jvm.process.poll() is not None


# --- the session -----------------------------------------------------------------------------------------


def test_the_session_has_our_defaults() -> None:
    conf = dict(shared_session().sparkContext.getConf().getAll())
    expected = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.scheduler.mode": "FAIR",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.ui.showConsoleProgress": "false",
    }
    assert {key: conf.get(key) for key in expected} == expected
    assert shared_open_session().event_log is None
    # Nothing is left in the folder in which somebody happened to be.
    scratch = shared_open_session().jvm.scratch.folder
    assert conf["spark.sql.warehouse.dir"].endswith(str(scratch.parents[1] / "warehouse"))
    # Plans have values in them.
    assert (scratch.parents[1] / "events").stat().st_mode & 0o777 == 0o700


def looked_at(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a worker is like, as rows of two columns."""
    for _ in batches:
        pass
    facts = {
        "python": sys.executable,
        "daemon": Path(f"/proc/{os.getppid()}/cmdline").read_bytes().replace(b"\0", b" ").decode(),
        "frozen": str(gc.get_freeze_count()),
        "pyspark": sys.modules["pyspark"].__file__ or "",
        "archives": ",".join(
            entry for entry in sys.path if entry.endswith((".jar", ".zip")) and "python3" not in entry
        ),
        "ours": ",".join(name for name in os.environ if name.startswith(("NOETL_", "PYTHONDONTWRITEBYTECODE"))),
    }
    yield pa.RecordBatch.from_pydict({"name": list(facts), "value": list(facts.values())})


def test_workers_are_this_python_forked_from_our_daemon() -> None:
    rows = shared_session().range(1).coalesce(1).mapInArrow(looked_at, "name string, value string").collect()
    facts = {row["name"]: row["value"] for row in rows}
    assert facts["python"] == sys.executable
    assert "noetl.adapters.spark.runtime.daemon" in facts["daemon"]
    assert int(facts["frozen"]) > 10_000
    # The one that is installed, and not the archive that comes with it.
    assert facts["pyspark"] == str(HOME / "__init__.py")
    assert facts["archives"] == facts["ours"] == ""


def nulled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_arrays([pa.nulls(batch.num_rows, one.type) for one in batch], batch.schema.names)


def test_a_null_from_python_where_a_schema_has_none_is_an_error_and_no_number() -> None:
    frame = shared_session().range(3)
    assert not frame.schema["id"].nullable
    with pytest.raises(Py4JJavaError, match="Value at index is null"):
        frame.mapInArrow(nulled, frame.schema).collect()
    assert [row["id"] for row in frame.mapInArrow(nulled, "id long").collect()] == [None, None, None]


def test_spark_is_stopped_by_a_setting_that_it_refuses_and_leaves_nothing(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from typing import Any
from noetl.adapters.spark.session import open_session
from noetl.core.errors import SparkUnavailable
from tests.support.spark import quick_options
try:
    open_session(quick_options(Path({str(tmp_path)!r})), {{"spark.driver.maxResultSize": "much"}})
except SparkUnavailable as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=90)
    assert done.stdout.startswith("Spark did not start: ")
    assert "much" in done.stdout
    assert list((tmp_path / "scratch").iterdir()) == []


def test_the_facade_takes_the_session_that_is_there() -> None:
    shared = shared_session()
    key = "spark.sql.shuffle.partitions"
    before = shared.conf.get(key)
    found = facade.session(**{key: 3, "spark.sql.parquet.mergeSchema": True})
    try:
        assert found.sparkContext is shared.sparkContext
        assert (found.conf.get(key), found.conf.get("spark.sql.parquet.mergeSchema")) == ("3", "true")
    finally:
        found.conf.set(key, before or "2")
        found.conf.unset("spark.sql.parquet.mergeSchema")
    assert shared_open_session().ui is None


def test_the_facade_makes_the_sources_known_to_any_session() -> None:
    other = shared_session().newSession()
    with pytest.raises(Py4JJavaError, match="DATA_SOURCE_NOT_FOUND"):
        other.read.format("noetl").load()
    facade.register(other)
    with pytest.raises(PySparkException) as caught:
        other.read.format("noetl").load()
    assert "noetl" in str(caught.value)


# --- what is kept and what goes --------------------------------------------------------------------------


def test_the_environment_of_the_jvm_has_none_of_our_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOETL_CREDENTIAL_KEY", "secret")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYSPARK_PYTHON", "another")
    monkeypatch.setenv("SPARK_HOME", "another")
    monkeypatch.setenv("KEPT", "yes")
    scratch = new_scratch(tmp_path)
    given = {"java_home": tmp_path, "spark_home": HOME, "scratch": scratch, "answer": tmp_path / "answer"}
    local = jvm_environment(quick_options(tmp_path), **given)
    assert not {"NOETL_CREDENTIAL_KEY", "PYTHONDONTWRITEBYTECODE", "SPARK_HOME"} & set(local)
    assert (local["PYSPARK_PYTHON"], local["SPARK_LOCAL_IP"], local["KEPT"]) == (sys.executable, "127.0.0.1", "yes")
    cluster = SparkOptions(folder=tmp_path, classes=tmp_path, master="spark://host:7077")
    far = jvm_environment(cluster, **given)
    assert far["SPARK_HOME"] == str(HOME)
    assert "SPARK_LOCAL_IP" not in far
    scratch.remove()


def test_scratch_of_the_living_stays_and_of_the_dead_goes(tmp_path: Path) -> None:
    code = """
import os, sys
from pathlib import Path
from typing import Any
from noetl.adapters.spark.runtime.scratch import new_scratch
made = new_scratch(Path(sys.argv[1]))
print(made.folder, made.private, flush=True)
os.kill(os.getpid(), 9)
"""

    def killed(root: Path) -> tuple[Path, Path]:
        done = subprocess.run([sys.executable, "-c", code, root], capture_output=True, text=True, check=False)
        folder, private = map(Path, done.stdout.split())
        return folder, private

    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    folder, private = killed(here)
    assert folder.is_dir()
    assert private.stat().st_mode & 0o777 == 0o700
    assert private.parent == Path(tempfile.gettempdir())
    # The folder for temporary files may be emptied, and a home may be removed.
    bare_folder, bare_private = killed(here)
    shutil.rmtree(bare_private)
    _, lone_private = killed(elsewhere)
    shutil.rmtree(elsewhere)
    mine = new_scratch(here)
    assert not any(path.exists() for path in (folder, private, bare_folder, lone_private))
    sweep(here)
    assert mine.folder.is_dir()
    assert mine.private.is_dir()
    mine.remove()
    assert list(here.iterdir()) == []


def test_only_the_newest_logs_stay(tmp_path: Path) -> None:
    for number in range(4):
        folder = tmp_path / f"eventlog_{number}"
        folder.mkdir()
        (folder / "events").write_text("x")
        os.utime(folder, (number, number))
    keep_newest(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["eventlog_2", "eventlog_3"]
    keep_newest(tmp_path / "nothing", 2)


def test_partitions_follow_the_master() -> None:
    assert [cores_of(text) for text in ("local", "local[3]", "local[4,2]", "yarn")] == [1, 3, 4, 1]
    assert cores_of("local[*]") == len(os.sched_getaffinity(0))


def test_the_jar_leaves_the_search_path_of_workers() -> None:
    assert without_archives(["", "/a/spark-core.jar", "/b/mine.zip"]) == ["", "/b/mine.zip"]


def test_a_worker_that_is_dismissed_while_it_waits_says_nothing() -> None:
    seen: list[bytes] = []

    def work(infile: io.BufferedReader, outfile: Any) -> None:
        seen.append(infile.read(4))
        outfile.write(b"done")

    ours, theirs = socket.socketpair()
    with ours, theirs, theirs.makefile("rb") as infile, io.BytesIO() as outfile:
        ours.sendall(b"task")
        unless_dismissed(work)(infile, outfile)
        assert (seen, outfile.getvalue()) == ([b"task"], b"done")
        ours.close()
        with pytest.raises(SystemExit) as ended:
            unless_dismissed(work)(infile, outfile)
        assert ended.value.code == 1
        assert (seen, outfile.getvalue()) == ([b"task"], b"done")


def test_the_class_path_begins_with_the_jars_whatever_is_added() -> None:
    plain = launch.class_path(HOME, {}, ())
    assert plain.split(":") == [str(jar) for jar in jars(HOME)]
    assert launch.class_path(HOME, {}, ["/etc/hadoop"]) == f"{plain}:/etc/hadoop"
    assert launch.class_path(HOME, {"spark.driver.extraClassPath": "/mine.jar"}, ()) == f"/mine.jar:{plain}"


@pytest.mark.long
def test_with_the_systems_java_hidden_the_wheel_runs_python_code_also_by_sparks_own_launcher(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from typing import Any
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from noetl.adapters.spark.runtime.java import find_java
from noetl.adapters.spark.runtime.shim import launcher_home
from noetl.adapters.spark.session import open_session
from tests.support.spark import quick_options

def sums(spark):
    double = udf(lambda number: number * 2, "bigint")
    return spark.range(10).select(double("id").alias("id")).selectExpr("sum(id)").first()[0]

options = quick_options(Path({str(tmp_path)!r}))
session = open_session(options)
print(session.jvm.java.origin, sums(session.spark))
session.close()
import io
import os
os.environ["JAVA_HOME"] = str(launcher_home(find_java(options).java, options.runtimes))
os.environ["PYSPARK_PYTHON"] = sys.executable
plain = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
print("launcher", sums(plain))
plain.stop()
"""
    path = tmp_path / "path"
    path.mkdir()
    programs = [program for folder in os.get_exec_path() if Path(folder).is_dir() for program in Path(folder).iterdir()]
    for program in programs:
        if not program.name.startswith("java") and not (path / program.name).is_symlink():
            (path / program.name).symlink_to(program)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAVA", "PATH"))}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**kept, "PATH": str(path)}
    )
    assert done.stdout.splitlines() == ["wheel 90", "launcher 90"], done.stderr
    assert wheel_home() is not None
