"""Each finding of the doctor: planted, seen, fixed, gone.  What it cannot fix goes with its cause."""

from __future__ import annotations

import datetime
import subprocess
import sys
from pathlib import Path

import pytest

from noetl.adapters.arrow.segments.places import segment_root
from noetl.adapters.memory.clock import VirtualClock
from noetl.adapters.postgres.durability.examination import PostgresExamination
from noetl.adapters.postgres.migrate import migrations
from noetl.adapters.postgres.pool import Reader
from noetl.adapters.postgres.serving.shards import PostgresShards
from noetl.adapters.system.clock import SystemClock
from noetl.core.ids import quarters_from
from noetl.core.reference import address as addressed
from noetl.engine.doctor import finding as found
from noetl.engine.doctor.doctor import Doctor
from noetl.engine.doctor.finding import CODES, Finding, Thresholds
from noetl.engine.doctor.storage import Disk, FullDisk
from noetl.engine.doctor.surroundings import ClockSkew, PendingMigrations
from noetl.engine.sharing.gauges import FRESH_SECONDS, ServerGauges
from noetl.ports.serving.roster import SessionRow
from noetl.wiring.doctor.checks import schema_trouble
from tests.support.aio import asynchronous
from tests.support.collecting import age
from tests.support.databases import connected, fresh_database
from tests.support.doctoring import Patient, codes, of, patient
from tests.support.engine import OWNER

TWO_FRAMES = """
workflow:
  - step: start
    loop: {in: [1, 2], iterator: x, spec: {mode: parallel, max_in_flight: 2, frame: {max_rows: 1}}}
    tool: {kind: noop}
"""
SIMPLE = """
    workflow:
      - {step: start, tool: {kind: python, code: "result = {'n': 4}"}}
"""
TESTED = {
    *(found.SHARD_EXPIRED, found.RUNTIME_DEAD, found.CLAIM_DEAD, found.COMMAND_LOST, found.COMMAND_OVER),
    *(found.PAYLOAD_ORPHAN, found.PROJECTION_LAG, found.PROJECTION_UNHELD, found.PROJECTION_FOREIGN),
    *(found.EXECUTION_QUARANTINED, found.SEGMENT_STALE, found.PARTITION_MISSING, found.MIGRATION_PENDING),
    *(found.CLOCK_SKEW, found.CONNECTIONS_FEW, found.POOL_UNSERVED, found.DISK_FULL, found.CHECK_FAILED),
}
# The lag of what nobody projects in most of these tests is none of their business.
CALM = {"lag_seconds": 3600.0, "unserved_seconds": 3600.0}


RUNTIME = """
    INSERT INTO noetl.runtime (runtime_id, node_number, instance, kind, leased_until, alive_until, last_id)
    VALUES ($1::integer, $1::integer, $2, 'server', now() + $3::interval, now() + $4::interval, $5)
"""


@pytest.fixture
def address() -> str:
    return fresh_database()


def test_every_code_is_planted_here() -> None:
    assert set(CODES) == TESTED


async def fixed(one: Patient, code: str, *, count: int = 1, **thresholds: float) -> list[Finding]:
    """See what was planted and nothing else, have it fixed, and see that it is gone."""
    doctor = one.doctor(**{**CALM, **thresholds})
    seen = await doctor.examine()
    assert codes(seen) == [code] * count, seen
    assert all(finding.can_fix and finding.what and finding.do and finding.where for finding in seen)
    treatment = await doctor.treat()
    assert codes(list(treatment.found)) == [code] * count
    assert list(treatment.left) == []
    assert codes(treatment.fixed) == [code] * count
    return seen


async def ledger(one: Patient) -> list[object]:
    """All that may only ever be appended to."""
    return await one.fetch("SELECT * FROM noetl.event ORDER BY shard_id, position")


@asynchronous
async def test_nothing_is_wrong_with_what_is_well(address: str, tmp_path: Path) -> None:
    async with patient(address, tmp_path) as one:
        one.project()
        await one.running.start(SIMPLE)
        assert await one.doctor(lag_seconds=5.0).examine() == []


@asynchronous
async def test_a_shard_of_a_silent_owner_is_let_go(address: str, tmp_path: Path) -> None:
    async with patient(address, tmp_path) as one:
        await one.execute(RUNTIME, 900, "gone-1", datetime.timedelta(seconds=30), datetime.timedelta(seconds=-9), 0)
        await one.execute(
            "UPDATE noetl.execution_shard SET owner_runtime_id = 900, owner_instance = 'gone-1' WHERE shard_id = 3"
        )
        seen = await fixed(one, found.SHARD_EXPIRED)
        assert seen[0].where == "shard 3"
        assert "gone-1" in seen[0].what
        rows = await one.fetch("SELECT owner_runtime_id FROM noetl.execution_shard WHERE shard_id = 3")
        assert rows[0]["owner_runtime_id"] is None


@asynchronous
async def test_a_process_that_fell_silent_leaves_and_its_last_id_stays(address: str, tmp_path: Path) -> None:
    async with patient(address, tmp_path) as one:
        minute = datetime.timedelta(minutes=1)
        await one.execute(RUNTIME, 901, "gone-2", -minute, -2 * minute, 77)
        # This one may still come back and make ids.
        await one.execute(RUNTIME, 902, "gone-3", minute, -minute, 78)
        await one.execute(
            "INSERT INTO noetl.session (session_id, runtime_id, worker_id, pool, slots, leased_until) "
            "VALUES (5, 901, 'w', 'default', 1, clock_timestamp() + interval '1 h')"
        )
        seen = await fixed(one, found.RUNTIME_DEAD)
        assert seen[0].where == "runtime 901"
        assert (await one.fetch("SELECT last_id FROM noetl.runtime WHERE runtime_id = 901"))[0]["last_id"] == 77
        assert await one.fetch("SELECT 1 FROM noetl.session WHERE session_id = 5") == []


@asynchronous
async def test_a_command_of_a_dead_session_goes_back(address: str, tmp_path: Path) -> None:
    async with patient(address, tmp_path) as one:
        execution_id = await one.running.start(SIMPLE)
        before = await ledger(one)
        await one.execute("UPDATE noetl.command SET session_id = 4242")
        seen = await fixed(one, found.CLAIM_DEAD)
        assert f"execution {execution_id} " in seen[0].where
        assert "4242" in seen[0].what
        assert (await one.fetch("SELECT session_id FROM noetl.command"))[0]["session_id"] is None
        assert await ledger(one) == before


@asynchronous
async def test_a_command_that_the_queue_lost_is_queued_again(address: str, tmp_path: Path) -> None:
    async with patient(address, tmp_path) as one:
        await one.running.start(SIMPLE)
        before, rows = await ledger(one), await one.fetch("SELECT command_id, pool, body::text FROM noetl.command")
        await one.execute("DELETE FROM noetl.command")
        await fixed(one, found.COMMAND_LOST)
        assert await one.fetch("SELECT command_id, pool, body::text FROM noetl.command") == rows
        assert await ledger(one) == before


GHOST = """
    INSERT INTO noetl.command (execution_id, command_id, shard_id, tenant_id, organization_id, pool, tool_kind, body)
    SELECT execution_id, 'ghost', shard_id, tenant_id, organization_id, 'default', 'python', '{}'
    FROM noetl.stream WHERE execution_id = $1
"""


@asynchronous
async def test_a_row_of_a_command_that_is_over_is_taken_out(address: str, tmp_path: Path) -> None:
    async with patient(address, tmp_path) as one:
        execution_id = await one.running.start(SIMPLE)
        await one.execute(GHOST, execution_id)
        seen = await fixed(one, found.COMMAND_OVER)
        assert "ghost" in seen[0].where
        rows = await one.fetch("SELECT command_id FROM noetl.command")
        assert [row["command_id"] for row in rows] != []
        assert "ghost" not in {row["command_id"] for row in rows}


@asynchronous
async def test_rows_of_an_execution_that_has_ended_are_taken_out(address: str, tmp_path: Path) -> None:
    async with patient(address, tmp_path) as one:
        one.project()
        execution_id = await one.running.start(SIMPLE)
        await one.running.cancel(execution_id)
        await one.running.finish(execution_id)
        await one.execute(GHOST, execution_id)
        await fixed(one, found.COMMAND_OVER)


@asynchronous
async def test_who_does_not_own_a_shard_leaves_its_commands_alone(address: str, tmp_path: Path) -> None:
    async with patient(address, tmp_path) as one:
        await one.running.start(SIMPLE)
        await one.execute("DELETE FROM noetl.command")
        one.engine.decider.own([])
        treatment = await one.doctor(**CALM).treat()
        assert [(left.code, left.can_fix) for left in treatment.left] == [(found.COMMAND_LOST, False)]
        assert "noetl_shard_owner" in treatment.left[0].do


@asynchronous
async def test_orphans_are_given_to_the_collector(address: str, tmp_path: Path) -> None:
    async with patient(address, tmp_path) as one:
        orphan = addressed(b"nobody names me", media_type="text/plain", store="db", **OWNER)
        await one.engine.small_payloads.put(orphan)
        assert await one.doctor(**CALM).examine() == []  # young
        await age(address, hours=30)
        seen = await fixed(one, found.PAYLOAD_ORPHAN)
        assert "1 payloads of 15 bytes" in seen[0].what
        await age(address, hours=30)
        await fixed(one, found.PAYLOAD_ORPHAN)
        assert await one.fetch("SELECT 1 FROM noetl.payload WHERE sha256 = $1", orphan.reference.sha256) == []


@asynchronous
async def test_a_projection_that_nobody_keeps_and_one_that_lags(address: str, tmp_path: Path) -> None:
    async with patient(address, tmp_path) as one:
        await one.running.start(SIMPLE)
        doctor = one.doctor(**{**CALM, "lag_seconds": 0.0})
        assert codes(await doctor.examine()) == [found.PROJECTION_UNHELD]
        await one.execute(
            "INSERT INTO noetl.projection_checkpoint (shard_id, owner_runtime_id, epoch, leased_until) "
            "SELECT shard_id, 999, 1, clock_timestamp() + interval '1 h' FROM noetl.execution_shard "
            "ON CONFLICT (shard_id) DO UPDATE SET owner_runtime_id = 999, leased_until = excluded.leased_until"
        )
        lagging = await doctor.examine()
        assert codes(lagging) == [found.PROJECTION_LAG]
        assert "runtime 999" in lagging[0].what
        await one.execute("UPDATE noetl.projection_checkpoint SET leased_until = clock_timestamp()")
        one.project()
        treatment = await doctor.treat()
        # The projector may have taken the shard by the first look.
        assert codes(list(treatment.found)) in ([found.PROJECTION_UNHELD], [found.PROJECTION_LAG], [])
        assert list(treatment.left) == []


@asynchronous
async def test_a_projection_of_another_ledger_is_folded_again(address: str, tmp_path: Path) -> None:
    async with patient(address, tmp_path) as one:
        one.project()
        execution_id = await one.running.start(SIMPLE)
        assert await one.engine.projecting.caught_up(seconds=60)
        before = await one.fetch("SELECT status, applied_position FROM noetl.execution")
        await one.execute(
            "UPDATE noetl.projection_checkpoint SET ledger_incarnation = gen_random_uuid() "
            "WHERE shard_id = (SELECT shard_id FROM noetl.stream WHERE execution_id = $1)",
            execution_id,
        )
        await fixed(one, found.PROJECTION_FOREIGN)
        assert await one.engine.projecting.caught_up(seconds=60)
        assert await one.fetch("SELECT status, applied_position FROM noetl.execution") == before


@asynchronous
async def test_an_execution_in_quarantine_is_folded_again(address: str, tmp_path: Path) -> None:
    async with patient(address, tmp_path) as one:
        one.project()
        execution_id = await one.running.start(SIMPLE)
        assert await one.engine.projecting.caught_up(seconds=60)
        await one.execute('UPDATE noetl.execution SET quarantine = \'{"reason": "an older release"}\'')
        seen = await fixed(one, found.EXECUTION_QUARANTINED)
        assert seen[0].where == f"execution {execution_id}"


@asynchronous
async def test_segments_of_dead_processes_are_swept(address: str, tmp_path: Path) -> None:
    async with patient(address, tmp_path) as one:
        code = "from noetl.adapters.arrow.segments.owners import own_token; print(own_token())"
        token = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        root = segment_root(one.settings.node_id, one.settings.home)
        root.mkdir(mode=0o700, parents=True)
        segment = root / f"{'a' * 32}.{token}.1"
        segment.write_bytes(b"x" * 4096)
        try:
            seen = await fixed(one, found.SEGMENT_STALE)
            assert "1 segments of shared memory, 4,096 bytes" in seen[0].what
            assert not segment.exists()
        finally:
            for path in root.iterdir():
                path.unlink()
            root.rmdir()


@asynchronous
async def test_missing_partitions_are_made(address: str, tmp_path: Path) -> None:
    async with patient(address, tmp_path) as one:
        now, coming, later = quarters_from(SystemClock().moment(), 3)
        for quarter in (now, coming, later):  # the last is not needed yet
            await one.execute(f"DROP TABLE noetl.event_{quarter.name}")
        seen = await fixed(one, found.PARTITION_MISSING, count=2)
        assert [finding.where for finding in seen] == [f"quarter {now.name}", f"quarter {coming.name}"]
        await one.running.start(SIMPLE)


@asynchronous
async def test_a_pending_migration_is_told(address: str, tmp_path: Path) -> None:
    last = migrations()[-1]
    async with patient(address, tmp_path) as one:
        await one.execute("DELETE FROM noetl.migration WHERE number = $1", last.number)
        treatment = await one.doctor(**CALM).treat()
        assert [(left.code, left.can_fix) for left in treatment.left] == [(found.MIGRATION_PENDING, False)]
        assert "noetl migrate" in treatment.left[0].do
        await one.execute("INSERT INTO noetl.migration (number, name) VALUES ($1, $2)", last.number, last.name)
        assert await one.doctor(**CALM).examine() == []


@asynchronous
async def test_clocks_that_differ_are_told(address: str, tmp_path: Path) -> None:
    async with patient(address, tmp_path) as one:
        examination = PostgresExamination(one.engine.durability.pool)
        here = SystemClock().moment()
        for seconds, word in ((-90, "behind"), (90, "ahead of")):
            clock = VirtualClock(here + datetime.timedelta(seconds=seconds))
            seen = await ClockSkew(examination, clock, Thresholds()).look()
            assert codes(seen) == [found.CLOCK_SKEW]
            assert word in seen[0].what
        assert await ClockSkew(examination, SystemClock(), Thresholds()).look() == []


@asynchronous
async def test_few_connections_are_told(address: str, tmp_path: Path) -> None:
    async with patient(address, tmp_path) as one:
        used, total = await PostgresExamination(one.engine.durability.pool).connections()
        assert 0 < used < total
        # Other tests use the same server: the bound is one that no number of them comes to.
        assert codes(await one.doctor(**CALM, connections_min=total + 1).examine()) == [found.CONNECTIONS_FEW]
        async with connected(address), connected(address):
            more = await PostgresExamination(one.engine.durability.pool).connections()
            assert more.used >= 2
        assert await one.doctor(**CALM, connections_min=0).examine() == []


@asynchronous
async def test_commands_that_nobody_serves_are_told(address: str, tmp_path: Path) -> None:
    async with patient(address, tmp_path) as one:
        await one.running.start(SIMPLE)
        doctor = one.doctor(**{**CALM, "unserved_seconds": 0.0})
        seen = of(await doctor.examine(), found.POOL_UNSERVED)
        assert [finding.where for finding in seen] == ["pool default (python)"]
        assert "noetl worker --pool default" in seen[0].do
        row = SessionRow(session_id=7, worker_id="w", pool="default", kinds=frozenset({"http"}), slots=1)
        await one.engine.serving.vouch(row)
        assert len(of(await doctor.examine(), found.POOL_UNSERVED)) == 1  # one that cannot run it
        await one.engine.serving.vouch(SessionRow(session_id=8, worker_id="v", pool="default", kinds=None, slots=1))
        assert of(await doctor.examine(), found.POOL_UNSERVED) == []


@asynchronous
async def test_numbers_of_the_database_are_left_out_when_it_is_away(address: str, tmp_path: Path) -> None:
    async with patient(address, tmp_path) as one:
        pool, clock = Reader(address, size_max=1), VirtualClock()
        await pool.open()
        gauges = ServerGauges(PostgresExamination(pool), PostgresShards(pool), one.engine.sessions, clock)
        await one.running.start(SIMPLE)
        await one.running.start(TWO_FRAMES)
        await gauges.refresh()
        shown = list(gauges.samples())
        assert ("noetl_queue_commands", {"pool": "default", "state": "waiting"}, 3) in shown
        assert ("noetl_frame_backlog_total", {"stage_kind": "collection", "status": "waiting"}, 2) in shown
        assert ("noetl_frame_backlog_total", {"stage_kind": "all", "status": "all"}, 2) in shown
        assert ("noetl_timers_due", {}, 0) in shown
        assert {name for name, labels, _ in shown if labels.get("instance") == "patient"} == {"noetl_shard_owner"}
        await pool.close()
        await gauges.refresh()
        assert list(gauges.samples()) == shown  # asked a moment ago
        clock.advance(FRESH_SECONDS)
        await gauges.refresh()
        assert [name for name, _, _ in gauges.samples()] == ["noetl_sessions"]


@asynchronous
async def test_a_full_disk_is_told() -> None:
    def disk(free: int) -> Doctor:
        return Doctor([FullDisk(lambda: Disk("/home", free, 1000), Thresholds())])

    assert codes(await disk(49).examine()) == [found.DISK_FULL]
    assert await disk(50).examine() == []


@asynchronous
async def test_what_cannot_be_looked_at_is_told_and_stops_nothing_else() -> None:
    async def nowhere() -> str | None:
        return await schema_trouble("postgresql://noetl@127.0.0.1:1/nothing")

    seen = await Doctor([PendingMigrations(nowhere), FullDisk(lambda: Disk("/home", 0, 1), Thresholds())]).examine()
    assert codes(seen) == [found.CHECK_FAILED, found.DISK_FULL]
    assert seen[0].where == "PendingMigrations"
