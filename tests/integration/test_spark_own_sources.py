"""`noetl` and `noetl_events` inside of spark steps: real drivers, an engine over the private Postgres of a home."""

from __future__ import annotations

import asyncio
import base64
import json
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from noetl.core.dataset import MEDIA_DATASET
from noetl.core.execution.state import Status
from noetl.core.locator import payload_digest
from noetl.core.reference import Reference
from noetl.engine.executions import StartRequest
from noetl.ports.data.compute import JobOutcome, JobSources
from noetl.settings import read_settings
from noetl.wiring.databases import prepare_database
from noetl.wiring.engine import Engine
from noetl.wiring.job_sources import job_access, job_sources
from tests.support.engine import HEAD, OWNER, Running, Told
from tests.support.postgres import RunningServer, embedded_server
from tests.support.spark_drivers import Heard, code_job, shared_compute
from tests.support.spark_tool import share_spark

TEST_SECONDS_MAX = 200.0


class Plane:
    """One engine over the server of its home; its loop turns only while a test waits."""

    def __init__(self, runner: asyncio.Runner, server: RunningServer) -> None:
        self._runner = runner
        self.home = server.home
        self.settings = read_settings({"NOETL_HOME": str(server.home)})
        self._engine = Engine(self.settings, server.dsn(), instance="test", server=server.address)
        self._task: asyncio.Task[None] | None = None
        self._address = server.dsn()

    def wait(self, work: Any) -> Any:
        async def within() -> Any:
            async with asyncio.timeout(TEST_SECONDS_MAX):
                return await work

        return self._runner.run(within())

    async def open(self) -> None:
        await prepare_database(self.settings, self._address, is_embedded=True)
        await self._engine.open()
        self._task = asyncio.get_running_loop().create_task(self._engine.run())
        await self._engine.is_restored.wait()

    async def close(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait({self._task})
        await self._engine.close()

    async def play(self, body: str, owner: dict[str, str]) -> Told:
        running = Running(self._engine)
        request = StartRequest(
            text=HEAD + textwrap.dedent(body), file="test.yaml", payload={}, idempotency_key=None, **owner
        )
        execution_id = (await self._engine.service.start(request)).execution_id
        state = await self._engine.service.wait_terminal(execution_id, timeout_seconds=TEST_SECONDS_MAX, **owner)
        result = await self._engine.service.result(state)
        return Told(state, result, await running.engine.ledger.read_execution(execution_id))

    def completed(self, body: str, owner: dict[str, str] | None = None) -> Told:
        told: Told = self.wait(self.play(body, owner or OWNER))
        assert told.state.status is Status.COMPLETED, told.state.failure
        return told

    def performed(
        self, folder: Path, text: str, sources: JobSources | None = None, tenant: str = "default"
    ) -> JobOutcome:
        """A job in the driver, as the tool of this home's worker asks for it."""
        job = code_job(
            folder,
            text,
            tenant_id=tenant,
            organization_id="default",
            sources=sources or job_sources(self.settings, has_home=True, has_database=True),
        )
        outcome: JobOutcome = self.wait(shared_compute().run(job, Heard()))
        return outcome


@contextmanager
def running_plane() -> Iterator[Plane]:
    with embedded_server() as server, pytest.MonkeyPatch.context() as patch, asyncio.Runner() as runner:
        share_spark(patch)
        plane = Plane(runner, server)
        plane.wait(plane.open())
        try:
            yield plane
        finally:
            plane.wait(plane.close())


@pytest.fixture(scope="module")
def plane() -> Iterator[Plane]:
    with running_plane() as plane:
        yield plane


STORY = """
workflow:
  - step: make
    tool:
      kind: python
      code: |
        import pyarrow as pa
        result = pa.table({"id": range(5000), "name": [f"n{n % 3}" for n in range(5000)]})
    next: use
  - step: use
    tool:
      kind: spark
      input:
        execution: "{{ execution_id }}"
        payload: {value: "{{ make._ref.uri }}"}
      code: |
        import tempfile
        import noetl.spark

        def main(spark, execution, payload):
            result = f"noetl://tenant/default/org/default/execution/{execution}/result/make"
            rows = spark.read.format("noetl").load(payload)
            saved = noetl.spark.save(rows.groupBy("name").count())
            with tempfile.TemporaryDirectory() as folder:
                rows.limit(7).write.format("noetl").mode("overwrite").save(f"{folder}/seven.noetl")
                seven = spark.read.format("noetl").load(f"{folder}/seven.noetl").count()
            events = spark.read.format("noetl_events").option("execution", execution).load()
            kinds = [row.event_type for row in events.orderBy("position").collect()]
            again = spark.read.format("noetl").load(result)
            return {"rows": rows.count(), "again": again.count(), "saved": saved, "seven": seven, "kinds": kinds}
    next: groups
  - step: groups
    tool: {kind: spark, inputs: {saved: "{{ use.saved }}"}, sql: "select name, count from saved order by name"}
    next: end
  - step: end
    tool: {kind: noop, result: {use: "{{ use }}", groups: "{{ groups.rows }}"}}
"""


@pytest.fixture(scope="module")
def story(plane: Plane) -> Told:
    return plane.completed(STORY)


def test_a_program_reads_and_writes_references_and_reads_the_ledger(story: Told) -> None:
    told, found = story, story.result["use"]
    assert (found["rows"], found["again"], found["seven"]) == (5000, 5000, 7)
    assert told.result["groups"] == [{"name": f"n{n}", "count": 1667 - n // 2} for n in range(3)]
    # Those that were there when the job asked: its own intent among them.
    own = [event.event_type for event in told.events]
    assert found["kinds"] == own[: len(found["kinds"])]
    assert own[len(found["kinds"]) - 1] in ("job.intended", "job.progressed")


READ = """
def main(spark):
    return spark.read.format("noetl").load("{}").count()
"""
COUNT_EVENTS = """
def main(spark):
    return spark.read.format("noetl_events"){}.load().count()
"""


def test_what_belongs_to_another_tenant_is_refused(plane: Plane, story: Told, tmp_path: Path) -> None:
    saved = story.result["use"]["saved"]
    theirs = plane.performed(tmp_path, READ.format(saved), tenant="rival").failure
    assert theirs is not None
    assert (theirs.kind, theirs.code, theirs.retryable) == ("auth", "SOURCE_ACCESS", False)
    assert "a job reaches only what is its own" in theirs.message
    # Under a name of its own there is nothing of the other one.
    renamed = plane.performed(
        tmp_path, READ.format(saved.replace("/default/org", "/rival/org")), tenant="rival"
    ).failure
    assert renamed is not None
    assert renamed.kind == "missing_reference"
    by_file = f"""
def main(spark):
    with open("{tmp_path}/theirs.noetl", "w") as file:
        file.write({json.dumps(reference_of(saved))!r})
    return spark.read.format("noetl").load("{tmp_path}/theirs.noetl").count()
"""
    pointed = plane.performed(tmp_path, by_file, tenant="rival").failure
    assert pointed is not None
    assert pointed.code == "SOURCE_ACCESS"


def test_the_ledger_of_a_job_is_that_of_its_tenant(plane: Plane, story: Told, tmp_path: Path) -> None:
    assert story.events
    assert plane.performed(tmp_path, COUNT_EVENTS.format("")).values[""] > 10  # type: ignore[operator]
    assert plane.performed(tmp_path, COUNT_EVENTS.format(""), tenant="rival").values[""] == 0
    asked = '.option("tenant", "default")'
    refused = plane.performed(tmp_path, COUNT_EVENTS.format(asked), tenant="rival").failure
    assert refused is not None
    assert refused.code == "SOURCE_ACCESS"


def reference_of(uri: str) -> dict[str, object]:
    digest = payload_digest(uri)
    assert digest is not None
    found = Reference(kind="payload", uri=uri, sha256=digest, media_type=MEDIA_DATASET, bytes=100, store="file")
    return dict(found.to_json())


def test_without_a_way_the_reason_is_said(plane: Plane, story: Told, tmp_path: Path) -> None:
    saved = story.result["use"]["saved"]
    far = plane.performed(tmp_path, READ.format(saved), sources_of(plane.home, has_home=False)).failure
    assert far is not None
    assert far.kind == "auth"
    assert "do not get its token" in far.message
    assert "`inputs:`" in far.message
    # Payloads are files; only the database is another's.
    foreign = sources_of(plane.home, has_database=False)
    assert plane.performed(tmp_path, READ.format(saved), foreign).values[""] == 3
    blind = plane.performed(tmp_path, COUNT_EVENTS.format(""), foreign).failure
    assert blind is not None
    assert "login of the control plane's Postgres" in blind.message


def sources_of(home: Path, *, has_home: bool = True, has_database: bool = True, **variables: str) -> JobSources:
    settings = read_settings({"NOETL_HOME": str(home), **variables})
    return job_sources(settings, has_home=has_home, has_database=has_database)


def test_no_secret_goes_with_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {
        "NOETL_TOKEN": "canary-token-of-16",
        "NOETL_POSTGRES_DSN": "postgresql://noetl:canary-login@db.example/noetl",
    }
    assert "canary" not in repr(sources_of(tmp_path, has_database=False, **secrets))
    sealed = sources_of(tmp_path, NOETL_PAYLOAD_KEY=base64.b64encode(bytes(32)).decode())
    assert sealed.refusal is not None
    assert "sealed" in sealed.refusal
    assert sealed.data == {}
    cloud = {"NOETL_DEFAULT_STORE_TIER": "s3", "NOETL_STORAGE_BUCKET": "lake"}
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    by_identity = job_access(sources_of(tmp_path, **cloud).data, tenant_id="a", organization_id="b")
    assert by_identity.storage.cloud is not None
    assert by_identity.storage.cloud.opened_by == {"AWS_REGION": "eu-central-1"}
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-key")
    refused = sources_of(tmp_path, **cloud)
    assert refused.refusal is not None
    assert "canary" not in repr(refused)
    assert sources_of(tmp_path, NOETL_DEFAULT_STORE_TIER="memory").refusal is not None
