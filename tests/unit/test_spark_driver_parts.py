"""The parts of a driver that need no Spark: framing, what is fixed with it, what is recorded of settings, folders."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from noetl.adapters.spark.child.effective import effective, told
from noetl.adapters.spark.driver import codec
from noetl.adapters.spark.driver.folders import DriverFolder, remove_left
from noetl.adapters.spark.driver.statics import Statics, is_static
from noetl.adapters.spark.driver.wire import Frames, MessageInvalid, MessageTooLarge, framed
from noetl.core import limits
from noetl.core.errors import Failure
from noetl.ports.data.compute import Expectation, JobInput, JobOutcome, JobOutput, JobPart, SparkJob


def test_messages_come_out_as_they_went_in_however_they_are_cut() -> None:
    messages = [{"type": "said", "text": "ä\ud800€"}, {"type": "done", "value": [1, 10**40, 0.1, None, {"a": []}]}]
    data = b"".join(framed(message) for message in messages)
    for size in (1, 7, len(data)):
        frames = Frames()
        found = [one for start in range(0, len(data), size) for one in frames.feed(data[start : start + size])]
        assert found == messages


@pytest.mark.parametrize("content", [b"{", b"[]", b"{}", b'{"type": 1}', b"\xff"])
def test_what_is_no_message_is_refused(content: bytes) -> None:
    with pytest.raises(MessageInvalid):
        Frames().feed(len(content).to_bytes(4, "big") + content)


def test_a_message_over_the_limit_is_refused_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SPARK_MESSAGE_BYTES_MAX", 100)
    with pytest.raises(MessageTooLarge):
        framed({"type": "x" * 100})
    with pytest.raises(MessageInvalid):
        Frames().feed((101).to_bytes(4, "big"))


def test_a_job_and_its_outcome_survive_the_trip() -> None:
    job = SparkJob(
        job_id="a-1",
        title="t",
        mode="sql",
        text="…",
        inputs=(JobInput(name="v", kind="value", value={"a": [1, None, 10**30], "b": math.inf}),),
        outputs=(JobOutput(name="x", partition_by=("a",), files=3),),
        expectations=(Expectation(name="r", kind="range", low=1.5, high="z"),),
        conf={"spark.x": "1"},
        folder=Path("a/b"),
    )
    (message,) = Frames().feed(framed({"type": "run", "job": codec.plain(job)}))
    assert codec.typed(SparkJob, message["job"]) == job
    outcome = JobOutcome(values={"": [1, {"a": None}]}, failure=Failure(kind="k", message="m", details={"line": 3}))
    (message,) = Frames().feed(framed({"type": "done", "outcome": codec.plain(outcome)}))
    assert codec.typed(JobOutcome, message["outcome"]) == outcome


@pytest.mark.parametrize(
    "document", [None, [], {"values": []}, {"datasets": [{"name": 1}]}, {"failure": {"kind": "k", "message": 3}}]
)
def test_an_outcome_of_another_shape_is_refused(document: object) -> None:
    with pytest.raises(MessageInvalid):
        codec.typed(JobOutcome, document)
    with pytest.raises(MessageInvalid):
        codec.typed(JobPart, {"path": 1, "row_count": "x"})


@pytest.mark.parametrize(
    "key", ["spark.driver.memory", "spark.master", "spark.jars", "spark.sql.warehouse.dir", "spark.ui.port"]
)
def test_settings_of_an_application_are_fixed(key: str) -> None:
    assert is_static(key)


@pytest.mark.parametrize(
    "key", ["spark.sql.shuffle.partitions", "spark.mine.setting", "spark.scheduler.pool", "mine", "spark.sql.unknown"]
)
def test_settings_of_a_session_and_those_of_users_are_not(key: str) -> None:
    assert not is_static(key)


def test_what_spark_refuses_is_learned() -> None:
    statics, conf = Statics(), {"spark.sql.x": "1", "spark.driver.memory": "1g"}
    assert statics.of(conf) == {("spark.driver.memory", "1g")}
    statics.learn(["spark.sql.x"])
    assert statics.of(conf) == set(conf.items())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.hadoop.fs.s3a.secret.key", "canary"),
        ("spark.my.Password", "canary"),
        ("spark.x.accessKeyId", "canary"),
        ("spark.my.url", "jdbc:postgresql://me:canary@host/db"),
        ("spark.my.url", "https://canary@host/"),
        ("spark.my.options", "-Dmy.password=canary -Dx=1"),
        ("spark.my.options", "a=1;token: canary"),
    ],
)
def test_no_secret_is_recorded(name: str, value: str) -> None:
    assert "canary" not in told(name, value)


def test_what_is_recorded_is_bounded_and_has_what_was_asked_for() -> None:
    conf = {f"spark.a{number:03}": "x" * 1000 for number in range(500)} | {"spark.z": "1", "spark.app.id": "noise"}
    found = effective(conf, {"spark.z": "1"})
    assert len(found) == limits.SPARK_CONF_TOLD_MAX
    assert found["spark.z"] == "1"
    assert max(map(len, found.values())) <= limits.SPARK_CONF_VALUE_CHARS_MAX
    assert "spark.app.id" not in found


def test_a_folder_stays_as_long_as_its_process_and_no_longer(tmp_path: Path) -> None:
    left, held = DriverFolder(tmp_path), DriverFolder(tmp_path)
    os.close(left._lock)  # as the kernel does for a process that was killed
    assert remove_left(tmp_path) == 1
    assert list(tmp_path.iterdir()) == [held.path]
    held.remove()
    assert list(tmp_path.iterdir()) == []
