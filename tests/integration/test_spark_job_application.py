"""Jobs that are existing PySpark programs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from textwrap import dedent

import pyarrow as pa
import pytest

from noetl.adapters.spark.job.modes import supervised
from noetl.adapters.spark.job.modes.supervised import Supervised
from noetl.core import limits
from noetl.ports.data.compute import Expectation, JobInput, JobOutput
from tests.support.spark_jobs import Heard, arrow_file, dataset, job_of, performed, rows_of

PROGRAM = """
import json, os, sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
print("arguments", *sys.argv[1:])
print("settings", spark.conf.get("spark.sql.shuffle.partitions"), spark.sparkContext.appName, spark.sparkContext.master)
orders = spark.read.parquet(os.environ["NOETL_INPUT_ORDERS"])
factor = json.load(open(os.environ["NOETL_INPUT_FACTOR"]))
good = orders.selectExpr("id", f"id * {factor} AS x", "id % 2 AS p")
good.write.partitionBy("p").parquet(os.environ["NOETL_OUTPUT_GOOD"])
spark.range(3).write.parquet(os.environ["NOETL_OUTPUT_MORE"])
spark.stop()
"""


def program(tmp_path: Path, text: str) -> str:
    path = tmp_path / "program.py"
    path.write_text(dedent(text))
    return str(path)


@pytest.mark.long
def test_a_program_with_a_session_of_its_own_reads_and_writes_what_its_job_has(tmp_path: Path) -> None:
    path, offset, length = arrow_file(tmp_path / "in.arrow", pa.table({"id": [1, 2, 3]}))
    job = job_of(
        tmp_path,
        program(tmp_path, PROGRAM),
        "application",
        arguments=("--day", "2026-01-01 x"),
        inputs=(
            JobInput(name="orders", kind="arrow", path=path, offset=offset, length=length),
            JobInput(name="factor", kind="value", value=10),
        ),
        outputs=(JobOutput(name="good"), JobOutput(name="more")),
        expectations=(Expectation(name="small", kind="range", of="good", columns=("x",), high=20, is_quarantine=True),),
        conf={"spark.sql.shuffle.partitions": "3"},
    )
    heard = Heard()
    outcome = performed(job, heard)
    assert outcome.failure is None, f"{outcome.failure} {outcome.traceback}"
    assert sorted((row["id"], row["x"]) for row in rows_of(dataset(outcome, "good"))) == [(1, 10), (2, 20)]
    assert dataset(outcome, "good").partition_by == ("p",)
    assert [row["x"] for row in rows_of(dataset(outcome, "good", is_quarantine=True))] == [30]
    assert dataset(outcome, "more").row_count == 3
    said = heard.text("stdout")
    assert "arguments --day 2026-01-01 x\n" in said
    assert "settings 3 a test local" in said


def test_a_program_is_told_its_folders_and_finds_the_settings_of_driver_and_job(tmp_path: Path) -> None:
    text = """
        import json, os, pathlib, sys, pyarrow.parquet
        conf = pathlib.Path(os.environ["SPARK_CONF_DIR"])
        settings = dict(line.split(" ", 1) for line in (conf / "spark-defaults.conf").read_text().splitlines())
        assert oct(conf.stat().st_mode)[-3:] == "700" and (conf / "log4j2.properties").exists()
        assert pathlib.Path(os.environ["JAVA_HOME"], "bin", "java").exists()
        assert not any("GATEWAY" in name or name.startswith("_PYSPARK") for name in os.environ)
        print(*sys.argv[1:], *(settings[name] for name in ("spark.app.name", "spark.master", "spark.sql.x")), sep="|")
        print("spark.driver.port" in settings, "spark.driver.memory" in settings)
        table = pyarrow.parquet.read_table(os.environ["NOETL_INPUT_ORDERS"])
        factor = json.load(open(os.environ["NOETL_INPUT_FACTOR"]))
        for day in (1, 2):
            folder = pathlib.Path(os.environ["NOETL_OUTPUT_GOOD"], f"day={day}")
            folder.mkdir(parents=True)
            pyarrow.parquet.write_table(table.append_column("x", [[day * factor] * 3]), folder / "part-0.parquet")
        folder.with_name("_SUCCESS").touch()
    """
    path, offset, length = arrow_file(tmp_path / "in.arrow", pa.table({"id": [1, 2, 3]}))
    inputs = (
        JobInput(name="orders", kind="arrow", path=path, offset=offset, length=length),
        JobInput(name="factor", kind="value", value=10),
    )
    job = job_of(
        tmp_path,
        program(tmp_path, text),
        "application",
        arguments=("--day", "2026-01-01 x"),
        inputs=inputs,
        outputs=(JobOutput(name="good"),),
        expectations=(Expectation(name="small", kind="range", of="good", columns=("x",), high=10, is_quarantine=True),),
        conf={"spark.sql.x": "a b"},
    )
    heard = Heard()
    outcome = performed(job, heard)
    assert outcome.failure is None, f"{outcome.failure} {outcome.traceback}"
    assert heard.text("stdout") == "--day|2026-01-01 x|a test|local[2]|a b\nFalse True\n"
    assert sorted((row["id"], row["x"], row["day"]) for row in rows_of(dataset(outcome, "good"))) == [
        (1, 10, "1"),
        (2, 10, "1"),
        (3, 10, "1"),
    ]
    assert [row["x"] for row in rows_of(dataset(outcome, "good", is_quarantine=True))] == [20, 20, 20]


def test_a_program_that_fails_is_told_with_its_last_words(tmp_path: Path) -> None:
    text = "import sys\nprint('so far')\nraise ValueError('no such day')"
    heard = Heard()
    outcome = performed(job_of(tmp_path, program(tmp_path, text), "application"), heard)
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.code) == ("python", "SPARK_APPLICATION_FAILED")
    assert outcome.failure.message == "the application program.py ended with exit code 1: ValueError: no such day"
    assert outcome.failure.details == {"exit_code": 1}
    assert outcome.traceback is not None
    assert "line 3, in <module>" in outcome.traceback
    assert heard.text("stdout") == "so far\n"


def test_a_write_that_was_not_committed_is_not_published(tmp_path: Path) -> None:
    text = """
        import os, pathlib, pyarrow, pyarrow.parquet
        folder = pathlib.Path(os.environ["NOETL_OUTPUT"])
        folder.mkdir()
        pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), folder / "part-0.parquet")
    """
    only = (JobOutput(name=""),)
    outcome = performed(job_of(tmp_path, program(tmp_path, text), "application", outputs=only))
    assert outcome.failure is not None
    assert outcome.failure.code == "OUTPUT_TORN"
    assert "_SUCCESS is missing" in outcome.failure.message
    marked = text + "    (folder / '_SUCCESS').touch()\n        (folder / 'part-1.parquet').write_text('half')\n"
    broken = performed(job_of(tmp_path, program(tmp_path, marked), "application", outputs=only))
    assert broken.failure is not None
    assert "part-1.parquet is no complete Parquet file" in broken.failure.message


def test_a_named_output_without_a_folder_and_a_program_that_is_not_there_are_named(tmp_path: Path) -> None:
    named = (JobOutput(name="sales"),)
    outcome = performed(job_of(tmp_path, program(tmp_path, "pass"), "application", outputs=named))
    assert outcome.failure is not None
    assert (outcome.failure.code, "wrote nothing for sales" in outcome.failure.message) == ("OUTPUT_MISSING", True)
    alone = performed(job_of(tmp_path, program(tmp_path, "pass"), "application", outputs=(JobOutput(name=""),)))
    assert (alone.failure, alone.values) == (None, {"": {"status": "ok", "exit_code": 0}})
    gone = performed(job_of(tmp_path, str(tmp_path / "gone.py"), "application"))
    assert gone.failure is not None
    assert gone.failure.code == "SPARK_APPLICATION_MISSING"


def test_a_program_ends_with_its_job(tmp_path: Path) -> None:
    text = f"""
        import os, subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        open({str(tmp_path / "pids")!r}, "w").write(f"{{os.getpid()}} {{child.pid}} ")
        print("ready", flush=True)
        time.sleep(600)
    """
    heard = Heard()
    outcomes = []
    job = job_of(tmp_path, program(tmp_path, text), "application")
    runner = threading.Thread(target=lambda: outcomes.append(performed(job, heard)))
    runner.start()
    wait_for(lambda: "ready" in heard.text("stdout"))
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    for action in heard.actions:
        action()
    runner.join(60)
    assert not runner.is_alive()
    assert outcomes[0].failure is not None
    assert "was ended by signal 15" in outcomes[0].failure.message
    wait_for(lambda: not any(is_running(pid) for pid in pids))


STUBBORN = """
    import os, signal, subprocess, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    children = [subprocess.Popen(sleep, process_group=0), subprocess.Popen(sleep, start_new_session=True)]
    print("ready", os.getpid(), *[child.pid for child in children], flush=True)
    time.sleep(600)
"""


def pids_in(said: str) -> list[int]:
    return [int(word) for word in said.split()[1:]]


def test_a_program_that_does_not_want_to_end_is_killed_long_before_its_driver_would_be(tmp_path: Path) -> None:
    """Also what has left its process group or its session; and without the time that its driver has."""
    assert supervised._GRACE_SECONDS + supervised._KILL_SECONDS < limits.SPARK_CANCEL_SECONDS_MAX - 1
    heard = Heard()
    running = Supervised([program(tmp_path, STUBBORN)], folder=tmp_path, environment=os.environ)
    outcomes: list[tuple[int, str]] = []
    runner = threading.Thread(target=lambda: outcomes.append(running.outcome(heard)))
    runner.start()
    wait_for(lambda: heard.text("stdout").endswith("\n"))
    running.end()
    runner.join(60)
    assert outcomes[0][0] != 0
    wait_for(lambda: not any(is_running(pid) for pid in pids_in(heard.text("stdout"))))


def test_a_program_and_all_that_it_started_end_with_whoever_runs_it(tmp_path: Path) -> None:
    text = f"""
        import os
        from pathlib import Path
        from noetl.adapters.spark.job.modes.supervised import Supervised

        class Report:
            def said(self, text, *, stream):
                print(text, end="", flush=True)

        Supervised([{program(tmp_path, STUBBORN)!r}], folder=Path({str(tmp_path)!r}), environment=os.environ).outcome(
            Report()
        )
    """
    parent = tmp_path / "parent.py"
    parent.write_text(dedent(text))
    with subprocess.Popen([sys.executable, str(parent)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        process.kill()
    assert said.startswith("ready")
    wait_for(lambda: not any(is_running(pid) for pid in pids_in(said)))


def wait_for(condition) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    return state != "Z"
