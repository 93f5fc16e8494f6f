"""A spark task from its call to its result, with drivers whose answers are known."""

from __future__ import annotations

import base64
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from noetl.adapters.arrow.tables import ArrowTables
from noetl.adapters.objects.filesystem import FilePayloads
from noetl.core.errors import Failure, StoreUnavailable
from noetl.engine.payloads import Payloads
from noetl.engine.work.calling.datasets import CallDatasets
from noetl.engine.work.calling.redact import Redactor
from noetl.ports.data.compute import JobDataset, JobListener, JobOutcome, JobPart, SparkJob, Verdict
from noetl.ports.tool import ToolCall, ToolSettings
from noetl.tools import patience
from noetl.tools.spark.folders import JobFolder
from noetl.tools.spark.tool import SparkTool
from tests.support.aio import asynchronous
from tests.support.datasets import landed, over

OWNER = {"tenant_id": "t", "organization_id": "o"}
TABLE = pa.table({"x": [1, 2]})


class Away:
    """Tables whose store is away when it is asked first."""

    def __init__(self, tables: ArrowTables, times: int) -> None:
        self._tables = tables
        self.times = times

    async def open(self, *given: Any, **more: Any) -> Any:
        self.times -= 1
        if self.times >= 0:
            raise StoreUnavailable("away for a moment")
        return await self._tables.open(*given, **more)


class Known:
    """Writes one file and answers what it was told to."""

    def __init__(self, outcome: JobOutcome) -> None:
        self._outcome = outcome

    async def run(self, job: SparkJob, listener: JobListener) -> JobOutcome:
        (part,) = landed(job.folder, TABLE).parts
        parts = (JobPart(path=str(part.path), row_count=2),)
        datasets = tuple(replace(one, parts=parts) for one in self._outcome.datasets)
        return replace(self._outcome, datasets=datasets)


def rows(*, is_quarantine: bool = False) -> JobDataset:
    schema = base64.b64encode(TABLE.schema.serialize().to_pybytes()).decode()
    return JobDataset(name="", parts=(), arrow_schema=schema, columns=("x",), row_count=2, is_quarantine=is_quarantine)


def sink(folder: Path, *, times_away: int = 0) -> CallDatasets:
    datasets, tables = over(FilePayloads(folder / "store"), folder / "spill")
    payloads = SimpleNamespace(datasets=datasets, tables=Away(tables, times_away))
    return CallDatasets(cast("Payloads", payloads), redactor=Redactor(), **OWNER)


async def ran(
    folder: Path, outcome: JobOutcome, *, seconds: float = 30.0, times_away: int = 0, **fields: object
) -> Any:
    settings = ToolSettings(
        python_children=1,
        python_memory_bytes=1,
        http_allow=(),
        spark=Known(outcome),
        spark_folder=folder / "jobs",
    )
    call = ToolCall(
        fields={"sql": "SELECT 1", **fields},
        input={},
        names={},
        context=None,
        timeout_seconds=seconds,
        execution_id=1,
        step="s",
        label="s_task",
        datasets=sink(folder, times_away=times_away),
        **OWNER,
    )
    found = await SparkTool(settings).run(call)
    assert list((folder / "jobs").iterdir()) == []
    return found


@asynchronous
async def test_a_store_that_is_away_after_the_files_are_its_own_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "ASK_AGAIN_SECONDS", 0.001)
    result = await ran(tmp_path, JobOutcome(datasets=(rows(),)), times_away=2)
    assert result.failure is None
    assert result.value["row_count"] == 2
    assert result.parts[("rows",)]["plain_bytes"] == len('[{"x":1},{"x":2}]')


@asynchronous
async def test_the_end_of_its_folder_is_not_in_the_time_of_a_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = JobFolder.remove

    def slow(folder: JobFolder) -> None:
        time.sleep(1.0)
        remove(folder)

    monkeypatch.setattr(JobFolder, "remove", slow)
    result = await ran(tmp_path, JobOutcome(datasets=(rows(),)), seconds=0.9)
    assert result.failure is None
    assert list(result.parts) == [("rows",)]


@asynchronous
async def test_a_task_whose_time_ends_while_it_stores_has_no_results(tmp_path: Path) -> None:
    result = await ran(tmp_path, JobOutcome(datasets=(rows(),)), seconds=0.2, times_away=10**9)
    assert result.failure is not None
    assert "nothing of it is published" in result.failure.message
    assert (result.value, dict(result.parts)) == (None, {})
    assert "outputs" not in result.job


@asynchronous
async def test_a_job_that_failed_has_its_verdicts_and_no_rows(tmp_path: Path) -> None:
    broken = Verdict(name="r", kind="sql", of="", is_met=False, rows=2, broken=1)
    failure = Failure(kind="schema", code="EXPECT_BROKEN", message="r is broken")
    outcome = JobOutcome(datasets=(rows(), rows(is_quarantine=True)), verdicts=(broken,), failure=failure)
    result = await ran(tmp_path, outcome)
    assert result.failure == failure
    assert dict(result.parts) == {}
    assert list(result.value) == ["status", "expect"]


@pytest.mark.parametrize("name", ["", "good"])
@asynchronous
async def test_an_output_with_a_quarantine_has_one_also_when_nothing_broke(tmp_path: Path, name: str) -> None:
    rules = [{"range": {"column": "x", "max": 5}, "on_break": "quarantine"}]
    outputs = {"outputs": {name: "select 1"}} if name else {}
    outcome = JobOutcome(datasets=(replace(rows(), name=name),))
    result = await ran(tmp_path, outcome, expect=rules, **outputs)
    found = result.value["quarantine"][name] if name else result.value["quarantine"]
    assert found == {
        "status": "success",
        "rows": [],
        "dataset": None,
        "row_count": 0,
        "columns": ["x", "_broken_rules"],
    }
    assert list(result.parts) == [(name, "rows") if name else ("rows",)]


@asynchronous
async def test_without_a_rule_for_it_and_of_a_failed_job_there_is_no_empty_quarantine(tmp_path: Path) -> None:
    result = await ran(tmp_path, JobOutcome(datasets=(rows(),)), expect=[{"unique": "x"}])
    assert "quarantine" not in result.value
    rules = [{"unique": "x", "on_break": "quarantine"}]
    failed = await ran(
        tmp_path, JobOutcome(datasets=(rows(),), failure=Failure(kind="data", message="no")), expect=rules
    )
    assert failed.value is None
