"""Jobs in a warm driver that is a process of its own: one start, order, output, progress, settings and cancelling.
Tests that end or configure a driver are in tests/fault/test_spark_driver_kill.py."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from noetl.core import limits
from noetl.ports.data.compute import JobOutcome, SparkJob
from tests.support.aio import asynchronous
from tests.support.children import until
from tests.support.spark_drivers import Heard, code_job, living, shared_compute

PID = "def main(spark):\n    import os\n    return os.getpid()\n"
ACTIVE = "def main(spark):\n    return sorted(spark.sparkContext.statusTracker().getActiveJobsIds())\n"
SLOW_TASKS = """
def main(spark):
    import time
    return spark.sparkContext.parallelize(range(4), 4).map(lambda n: time.sleep(n and 60)).count()
"""


async def run(job: SparkJob, heard: Heard | None = None) -> JobOutcome:
    async with asyncio.timeout(120):
        return await shared_compute().run(job, heard or Heard())


def value(outcome: JobOutcome) -> object:
    assert outcome.failure is None, outcome
    return outcome.values[""]


async def cancel_when(task: asyncio.Task[JobOutcome], is_time: object) -> None:
    """Cancel a job at a moment, and see that its end was waited for."""
    await until(is_time, seconds=60)  # type: ignore[arg-type]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@asynchronous
async def test_two_first_jobs_share_one_start(tmp_path: Path) -> None:
    first, second = await asyncio.gather(run(code_job(tmp_path, PID)), run(code_job(tmp_path, PID)))
    assert (value(first),) == (value(second),) == shared_compute().pids
    assert value(await run(code_job(tmp_path, PID))) == value(first)  # and it stays


@asynchronous
async def test_what_a_job_prints_is_its_own_and_what_spark_says_is_everybodys(tmp_path: Path) -> None:
    text = """
def main(spark, name):
    import os, sys, threading
    print("out of", name)
    print("end", end="")
    print("trouble of", name, file=sys.stderr)
    thread = threading.Thread(target=lambda: os.write(2, b"past Python\\n"))
    thread.start()
    thread.join()
    spark._jvm.java.lang.System.err.println("the JVM speaks")
"""
    texts = [text.replace("name)", f"name='{name}')", 1) for name in ("one", "two")]
    heard = Heard(), Heard()
    await asyncio.gather(*(run(code_job(tmp_path, text), one) for text, one in zip(texts, heard, strict=True)))
    for one, name, other in ((heard[0], "one", "two"), (heard[1], "two", "one")):
        assert one.text("stdout") == f"out of {name}\nend"
        assert one.text("stderr") == f"trouble of {name}\n"
        assert other not in one.text("stdout") + one.text("stderr")
    # Between the writes of another process and the end of a job there is no order.
    alone = Heard()
    pause = code_job(tmp_path, texts[0] + "    import time\n    time.sleep(0.5)\n")
    await run(pause, alone)
    assert "the JVM speaks\n" in alone.text("log")
    assert "past Python\n" in alone.text("log")


@asynchronous
async def test_output_is_bounded(tmp_path: Path) -> None:
    heard = Heard()
    size = limits.SPARK_OUTPUT_BYTES_MAX
    text = f"def main(spark):\n    for _ in range(20):\n        print('x' * ({size} // 10))\n    return 1\n"
    assert value(await run(code_job(tmp_path, text), heard)) == 1
    assert size <= len(heard.text("stdout")) < size + 100
    assert heard.text("stdout").endswith("left out\n")


@asynchronous
async def test_nothing_runs_before_the_intent_is_taken(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    found: list[bool] = []

    async def look() -> None:
        await asyncio.sleep(0.3)
        found.append(mark.exists())

    heard = Heard(look)
    text = f"def main(spark):\n    open({str(mark)!r}, 'w').close()\n    return spark.sparkContext.applicationId\n"
    job = code_job(tmp_path, text)
    outcome = await run(job, heard)
    assert found == [False]
    assert mark.exists()
    (intent,) = heard.intents
    assert (intent.job_group, intent.application_id, intent.ui) == (job.job_id, value(outcome), None)


@asynchronous
async def test_a_job_whose_intent_is_refused_does_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    async def refuse() -> None:
        raise LookupError("no such lease")

    with pytest.raises(LookupError):
        await run(code_job(tmp_path, f"def main(spark):\n    open({str(mark)!r}, 'w')\n"), Heard(refuse))
    assert value(await run(code_job(tmp_path, PID))) in shared_compute().pids
    assert not mark.exists()


@asynchronous
async def test_progress_tells_of_jobs_stages_and_tasks(tmp_path: Path) -> None:
    text = """
def main(spark):
    import time
    return spark.sparkContext.parallelize(range(4), 4).map(lambda n: time.sleep(1)).count()
"""
    heard = Heard()
    assert value(await run(code_job(tmp_path, text), heard)) == 4
    assert heard.progresses, "two seconds of work and no word"
    last = heard.progresses[-1]
    assert (len(last.jobs), last.stages, last.tasks, last.tasks_failed) == (1, 1, 4, 0)
    assert any(one.stage is not None and one.tasks_done < 4 for one in heard.progresses)
    counts = [one.tasks_done for one in heard.progresses]
    assert counts == sorted(counts)


@asynchronous
async def test_settings_of_a_session_are_those_of_one_job_and_recorded_without_secrets(tmp_path: Path) -> None:
    names = ["spark.sql.shuffle.partitions", "spark.mine.api.token", "spark.mine.place"]
    text = f"def main(spark):\n    return [spark.conf.get(name, None) for name in {names!r}]\n"
    conf = dict(zip(names, ("7", "canary-1", "jdbc:x://me:canary-2@host/db?password=canary-3"), strict=True))
    heard = Heard()
    outcome = await run(code_job(tmp_path, text, conf=conf), heard)
    assert value(outcome) == list(conf.values())  # untouched
    told = heard.intents[0].conf
    assert told["spark.sql.shuffle.partitions"] == "7"
    assert set(names) <= told.keys()
    assert "canary" not in repr(told)
    assert told["spark.mine.place"].startswith("jdbc:x://")
    assert "host/db" in told["spark.mine.place"]
    assert value(await run(code_job(tmp_path, text))) == ["2", None, None]
    assert len(shared_compute().pids) == 1


@asynchronous
async def test_a_wrong_setting_fails_its_job_only(tmp_path: Path) -> None:
    outcome = await run(code_job(tmp_path, PID, conf={"spark.sql.shuffle.partitions": "many"}))
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.code) == ("config", "SPARK_CONF_INVALID")
    assert "spark.sql.shuffle.partitions" in outcome.failure.message


@asynchronous
async def test_a_request_that_is_too_large_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SPARK_MESSAGE_BYTES_MAX", 10_000)
    request = await run(code_job(tmp_path, PID + "#" * 10_000))
    assert request.failure is not None
    assert request.failure.code == "SPARK_JOB_UNSENDABLE"
    assert "10000" in request.failure.message


@asynchronous
async def test_cancelling_ends_the_jobs_of_spark_before_it_returns(tmp_path: Path) -> None:
    (before,) = shared_compute().pids or (value(await run(code_job(tmp_path, PID))),)
    heard = Heard()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(run(code_job(tmp_path, SLOW_TASKS), heard))
        await cancel_when(task, lambda: heard.progresses)
    assert value(await run(code_job(tmp_path, ACTIVE))) == []
    assert shared_compute().pids == (before,)  # nobody else noticed


@asynchronous
async def test_cancelling_ends_a_loop_of_user_code(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    text = f"""
def main(spark):
    while True:
        try:
            while True:
                open({str(mark)!r}, "a").write("x")
        except Exception:
            pass
"""
    (before,) = shared_compute().pids or (value(await run(code_job(tmp_path, PID))),)
    async with asyncio.TaskGroup() as group:
        await cancel_when(group.create_task(run(code_job(tmp_path, text))), mark.exists)
    size = mark.stat().st_size
    assert value(await run(code_job(tmp_path, PID))) == before
    assert mark.stat().st_size == size


@asynchronous
async def test_cancelling_before_the_word_to_go_runs_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    heard = Heard(lambda: asyncio.sleep(60))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(run(code_job(tmp_path, f"def main(spark):\n    open({str(mark)!r}, 'w')\n"), heard))
        await cancel_when(task, lambda: heard.intents)
    assert value(await run(code_job(tmp_path, PID))) in shared_compute().pids
    assert not mark.exists()


@asynchronous
async def test_user_code_sees_no_setting_and_no_descriptor_of_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOETL_CREDENTIAL_KEY", "canary")  # too late for a driver that runs, but see below
    text = """
def main(spark):
    import os
    return {"names": sorted(os.environ), "all": open("/proc/self/environ").read()}
"""
    found = value(await run(code_job(tmp_path, text)))
    assert isinstance(found, dict)
    allowed = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "PYTHON", "LC_", "HADOOP_", "YARN_", "LD_")
    assert [name for name in found["names"] if not name.startswith(allowed) and "SPARK" not in name] == []
    assert "NOETL_" not in found["all"]


@asynchronous
async def test_jobs_beyond_the_limit_wait_in_order(tmp_path: Path) -> None:
    text = "def main(spark):\n    import time\n    time.sleep(0.2)\n    return time.monotonic()\n"
    begun: list[int] = []

    def listener(number: int) -> Heard:
        async def note() -> None:
            begun.append(number)

        return Heard(note)

    started = time.monotonic()
    outcomes = await asyncio.gather(*(run(code_job(tmp_path, text), listener(number)) for number in range(9)))
    ends = sorted(float(str(value(outcome))) for outcome in outcomes)
    assert sorted(begun[:4]) == [0, 1, 2, 3]
    assert sorted(begun[4:]) == [4, 5, 6, 7, 8]
    assert ends[4] - ends[0] > 0.1
    assert ends[-1] - started > 0.6


def test_the_driver_is_a_session_of_its_own() -> None:
    for pid in shared_compute().pids:
        assert pid in living(pid)
        assert len(living(pid)) >= 2


@pytest.mark.parametrize("text", ["raise SystemExit(3)", "raise type('Odd', (BaseException,), {})('odd')"])
@asynchronous
async def test_code_that_ends_in_any_way_has_an_answer(tmp_path: Path, text: str) -> None:
    outcome = await run(code_job(tmp_path, f"def main(spark):\n    {text}\n"))
    assert outcome.failure is not None
    assert value(await run(code_job(tmp_path, PID))) in shared_compute().pids
