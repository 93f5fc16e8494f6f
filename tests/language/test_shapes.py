"""Ten shapes of playbooks, run from end to end (the files are in `playbooks/`)."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from noetl.core import kinds
from noetl.core.codec import canonical_json
from noetl.core.event import envelope
from noetl.core.execution.evolve import fold_all
from noetl.core.execution.state import CommandStatus, Status
from noetl.core.playbook.compile import compile_playbook
from noetl.engine.work.pipeline import interpreter
from noetl.wiring.tools import tool_kinds
from tests.language.test_checklist import runs
from tests.support.aio import asynchronous
from tests.support.databases import empty_database
from tests.support.engine import Told, _Owner, running_engine
from tests.support.language import CREDENTIAL_SECRET, FOLDER, KEYCHAIN_SECRET, World, filed
from tests.support.replay import decided_again

SLOTS = 16
HIDDEN = "***"

# --- S1: types ---------------------------------------------------------------------------------------------


def types_of(value: object) -> object:
    if isinstance(value, dict):
        return {key: types_of(part) for key, part in value.items()}
    return [types_of(part) for part in value] if isinstance(value, list) else type(value).__name__


def test_s1_values_keep_their_types_through_input_and_every_kind_of_set(world: World) -> None:
    what = filed("s1_types")
    values = yaml.safe_load(what.text)["workload"]["values"]
    result = world.completed(what)
    assert set(result["ways"]) == {"by_rule", "by_step", "by_arc", "by_task", "workload"}
    for way, given in result["ways"].items():
        assert given == values, way
        assert result["types"][way] == types_of(values), way
    assert result["nested"] == {"one": {"two": [True, "007", "n=7"]}}
    assert result["changed"] == "changed", "ctx hides the workload key of the same name"


# --- S2: a branch ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [3, 30])
def test_s2_a_join_runs_once_when_one_branch_never_ran(world: World, size: int) -> None:
    what, is_large = filed("s2_branch", size=size), size > 10
    assert world.completed(what) == {
        "box": "L" if is_large else "S",
        "weight": 20 if is_large else 1,
        "packed": True if is_large else None,
        "text": "weight 20 in " if is_large else "weight  in S",
        "known": [is_large, not is_large, is_large],
    }
    branch = {"large": 1, "pack": 1} if is_large else {"small": 1}
    assert runs(world.play(what)) == {"start": 1, "join": 1, **branch}


# --- S3: fan-out -------------------------------------------------------------------------------------------


def test_s3_branches_of_unequal_length_meet_once_and_again(world: World) -> None:
    what = filed("s3_fan_out")
    assert world.completed(what) == [["slow", "middle", "quick"], True, "slow", "r"]
    told = world.play(what)
    assert set(runs(told).values()) == {1}
    parents = {e.meta["step"]: e.meta["parents"] for e in told.of_type(kinds.COMMAND_ISSUED)}
    assert Counter(parents["join"]) == Counter(["slow", "middle", "quick"])  # type: ignore[call-overload]
    assert Counter(parents["second_join"]) == Counter(["left", "right"])  # type: ignore[call-overload]


def test_s3_steps_that_wait_for_each_other_go_on_in_the_order_of_the_document(world: World) -> None:
    assert world.completed(filed("s3_progress")) == ["first", "second", "first"]


def test_s3_a_failing_branch_stops_the_join_and_lets_the_others_end(world: World) -> None:
    what = filed("s3_fan_out", failing="quick", seconds=[0.1, 0.05, 0.0])
    failure = world.failed(what)
    assert (failure["step"], failure["error"]["message"]) == ("quick", "quick is broken")
    told = world.play(what)
    assert runs(told) == {"start": 1, "slow": 1, "middle": 1, "quick": 1}
    ended = [e.command_id for e in told.of_type(kinds.COMMAND_COMPLETED)]
    assert ended[-2:] == ["middle#1", "slow#1"], "what ran was allowed to finish"
    assert told.events[-1].event_type == kinds.PLAYBOOK_FAILED


# --- S4: cycles --------------------------------------------------------------------------------------------

S4_RESULT = [[turn, 3, [[turn, n] for n in range(turn)]] for turn in (1, 2, 3)]
S4_RUNS = {"start": 1, "turn": 3, "tick": 9, "each": 3, "ping": 6, "pong": 6, "end": 1}


def test_s4_cycles_inside_cycles_have_exact_counts_and_fresh_loops(world: World) -> None:
    what = filed("s4_cycles")
    assert world.completed(what) == S4_RESULT
    told = world.play(what)
    assert runs(told) == S4_RUNS
    assert [e.stage_id for e in told.of_type(kinds.LOOP_STARTED)] == ["each#1", "each#2", "each#3"]
    assert [e.meta["total"] for e in told.of_type(kinds.LOOP_STARTED)] == [1, 2, 3]


def test_s4_rebuilt_at_any_event_the_router_goes_on_as_it_did(world: World) -> None:
    what = filed("s4_cycles")
    events = world.play(what).events
    playbook = compile_playbook(what.text, file="s4", kinds=tool_kinds())
    facts = decided_again(events, playbook)
    assert len(facts) > 40
    for place in facts:
        assert decided_again(events, playbook, start=place) == [fact for fact in facts if fact >= place]


def transitions(told: Told) -> Counter[str]:
    """What happened, without how often it was tried and how its loops were cut."""
    left_out = ("command.claimed", "frame.")
    return Counter(e.transition_key for e in told.events if not e.event_type.startswith(left_out))


@pytest.fixture(scope="module")
def restarted_address() -> str:
    return empty_database()


@pytest.mark.parametrize("place", [3, 17, 42, 73, 104, 130])
def test_s4_an_engine_that_restarts_in_the_middle_ends_the_same(
    world: World, restarted_address: str, tmp_path: Path, place: int
) -> None:
    what = filed("s4_cycles")
    undisturbed = world.play(what)
    assert len(undisturbed.events) > 130
    told = asyncio.run(interrupted(restarted_address, tmp_path, what.text, place))
    assert told.result == S4_RESULT
    assert transitions(told) == transitions(undisturbed)
    assert fold_all(told.events) == told.state


def body_of(text: str) -> str:
    """A document without its head."""
    return text.partition("metadata:")[2].partition("\n")[2]


async def interrupted(address: str, home: Path, text: str, place: int) -> Told:
    """Stop an engine when so many events are recorded, and go on with another one."""
    async with running_engine(address, home) as engine:
        execution_id = await engine.start(body_of(text))
        await engine.until(execution_id, lambda state: state.version >= place)
    async with running_engine(address, home) as engine:
        assert not (await engine.state(execution_id)).is_terminal, "the engine was stopped too late"
        return await engine.finish(execution_id)


# --- S5: pipelines -----------------------------------------------------------------------------------------


def waits(told: Told) -> dict[str, list[float]]:
    """The waits that were recorded, by step."""
    found: dict[str, list[float]] = {}
    for event in told.of_type(kinds.TASK_WAITING):
        found.setdefault(str(event.meta["step"]), []).append(float(str(event.meta["delay_seconds"])))
    return found


@pytest.fixture
def recorded_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every wait is a timer of the ledger, not only a long one."""
    monkeypatch.setattr(interpreter, "RETRY_WAIT_IN_WORKER_SECONDS_MAX", 0.0)


@pytest.mark.usefixtures("recorded_waits")
def test_s5_the_waits_of_every_backoff(world: World) -> None:
    what = filed("s5_backoff")
    assert world.completed(what) == [1, 2, 3, 4], (
        "the writes of a rule count for every match, and attempts for all tries"
    )
    assert waits(world.play(what)) == {
        "fixed": [0.01, 0.01, 0.01],
        "linear": [0.01, 0.02, 0.03],
        "exponential": [0.01, 0.02, 0.04],
        "omitted": [0.01, 0.01, 0.01],
        "constant": [0.01, 0.01, 0.01],
    }


@pytest.mark.usefixtures("recorded_waits")
@pytest.mark.parametrize(
    ("retry_after", "delay", "wait"), [(120, 1, 120.0), (10, 60, 60.0), (3600, 1, 300.0), (0, 4000, 300.0)]
)
def test_s5_a_wait_is_at_least_what_the_api_asks_for_and_at_most_five_minutes(
    world: World, retry_after: int, delay: int, wait: float
) -> None:
    execution_id = world.start(filed("s5_patience", retry_after=retry_after, delay=delay))
    world.wait(world.engine.until(execution_id, lambda state: state.timers))
    world.wait(world.engine.cancel(execution_id))
    told = world.finish(execution_id)
    assert told.state.status is Status.CANCELLED
    assert waits(told) == {"start": [wait]}


def test_s5_what_a_policy_can_do(world: World) -> None:
    assert world.completed(filed("s5_pipeline")) == {
        "retried": {"attempt": 2, "failed": 1, "rows": 200},
        "paged": {"ids": 35, "pages": 4},
        "broken_off": {"labels": ["look"], "by_task": True, "by_rule": 1},
        "continued": {"seen": "not_found error", "after": 404},
        "before_fail": True,
    }


def test_s5_the_kinds_of_errors_of_an_api(world: World) -> None:
    seen = world.completed(filed("s5_kinds"))
    kind = {name: (row["error"]["kind"], row["error"]["code"], row["error"]["retryable"]) for name, row in seen.items()}
    assert kind == {
        "429": ("rate_limit", "HTTP_429", True),
        "401": ("auth", "HTTP_401", False),
        "403": ("auth", "HTTP_403", False),
        "404": ("not_found", "HTTP_404", False),
        "400": ("client_error", "HTTP_400", False),
        "500": ("server_error", "HTTP_500", True),
        "503": ("server_error", "HTTP_503", True),
        "timeout": ("timeout", kind["timeout"][1], True),
        "refused": ("connection", "CONN_REFUSED", True),
    }
    assert seen["429"]["error"]["retry_after"] == 7
    for name, row in seen.items():
        status = int(name) if name.isdecimal() else None
        error = row["error"]
        assert [error["status"], error["status_code"], error["http_status"], row["http"]] == [status] * 4
        assert row["body"] == status, "the body of an answer is there also when it is an error"
        assert set(error) == {
            *("kind", "retryable", "code", "message", "status", "status_code", "http_status", "retry_after"),
            *("pg_code", "exception_type", "details"),
        }


def test_s5_a_pipeline_that_runs_away_is_stopped(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "PIPELINE_TASKS_MAX", 100)
    assert world.completed(filed("s5_runaway")) == "policy"


# --- S6: loops ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("total", [0, 1, 500])
@pytest.mark.parametrize("in_flight", [1, 7])
def test_s6_a_parallel_loop_never_has_more_in_flight_than_it_may(world: World, total: int, in_flight: int) -> None:
    what = filed("s6_loop", n=total, in_flight=in_flight, seconds=0.004 if in_flight > 1 else 0)
    result = world.completed(what)
    probes = result["probes"]["data"]
    assert (probes["started"], probes["completed"], probes["active"]) == (total, total, 0)
    assert probes["max_active"] <= in_flight
    if total > 1:
        assert probes["max_active"] == in_flight, "as many as it may"
    assert result["loop"] == {
        "stats": {"total": total, "success": total, "failed": 0},
        "count": total,
        "status": "ok",
        "labels": [str(n) for n in range(total)],
        "same": True,
    }
    assert sorted(probes["labels"], key=int) == result["loop"]["labels"]


@pytest.mark.parametrize("total", [0, 1, 500])
def test_s6_a_sequential_loop_runs_one_item_after_the_other(world: World, total: int) -> None:
    result = world.completed(filed("s6_sequential", n=total))
    probes, numbers = result["probes"]["data"], list(range(total))
    assert (probes["started"], probes["max_active"]) == (total, min(total, 1))
    assert result["loop"] == {
        "stats": {"total": total, "success": total, "failed": 0},
        "sum": sum(numbers),
        "before": [sum(numbers[:n]) for n in numbers],
        "n": numbers,
        "labels": [str(n) for n in numbers],
    }


def test_s6_failing_rows_are_counted_or_end_the_loop(world: World) -> None:
    result = world.completed(filed("s6_failing"))
    best, fast = result["best"], result["fast"]
    assert best["stats"] == {"total": 200, "success": 198, "failed": 2}
    assert best["status"] == "ok"
    for index, row in enumerate(best["results"]):
        if index in (3, 150):
            assert (row["status"], row["error"]["message"]) == ("error", f"no {index}")
        else:
            assert row == index
    assert fast["status"] == "error"
    assert fast["error"]["message"] == "item 3: no 3"
    assert fast["stats"] == {"total": 200, "success": 3, "failed": 1}
    assert fast["results"][:3] == [0, 1, 2]
    assert fast["results"][4:] == [None] * 196, "no further row began"


# --- S7: a queue (more of it in `tests/integration/test_cursor_loops.py`) -----------------------------------


@pytest.mark.parametrize("slots", [1, 4])
def test_s7_a_queue_is_worked_off_by_rows_and_by_frames(world: World, slots: int) -> None:
    result = world.completed(filed("s7_cursor", slots=slots))
    assert result["table"] == {"rows": 32, "least": 2, "most": 2, "added": 2}
    rows, frames = result["rows"], result["frames"]
    assert (rows["status"], rows["processed"], rows["failed"], rows["row_count"]) == ("partial", 31, 1, 32)
    assert rows["stats"] == {"total": 32, "success": 31, "failed": 1}
    assert rows["frames"] >= 8
    assert (frames["status"], frames["processed"], frames["frames"]) == ("ok", 32, 4)


# --- S8: postgres ------------------------------------------------------------------------------------------


def test_s8_a_script_of_statements_and_values_of_every_type(world: World) -> None:
    result = world.completed(filed("s8_postgres"))
    script = result["script"]
    assert script["statement_count"] == 6
    assert [name for name in script if name.startswith("command_")] == [f"command_{n}" for n in range(6)]
    assert script["command_3"]["rows"] == result["inserted"]
    assert result["inserted"] == [
        {
            "id": 1,
            "who": "O'Brien; 100%",
            "price": 12.5,
            "pieces": 3,
            "ratio": 0.1,
            "placed_at": "2024-02-29T10:00:00+00:00",
            "day": "2024-02-29",
            "naive": "2024-02-29T12:00:00",
            "tags": {"a": [1, "x;y"]},
            "note": None,
            "token": "00000000-0000-0000-0000-00000000002a",
            "raw": "AP8=",
        },
        {
            "id": 2,
            "who": 'it\'s "quoted"',
            "price": 7.0,
            "pieces": 4,
            "ratio": None,
            "placed_at": None,
            "day": None,
            "naive": None,
            "tags": [1.5],
            "note": "text",
            "token": None,
            "raw": None,
        },
    ]
    updated = script["command_4"]
    assert (updated["row_count"], updated["affected_rows"]) == (2, 2)
    assert not {"rows", "columns"} & set(updated)
    assert script["rows"] == script["command_5"]["rows"]
    assert script["rows"] == [{"pieces": 7, "price": 19.5, "mean": 1.5, "top": 25.0, "rest": 2, "percent": 1}]
    assert type(script["rows"][0]["pieces"]) is int
    assert script["columns"] == ["pieces", "price", "mean", "top", "rest", "percent"]
    assert script["row_count"] == 1


def test_s8_bound_parameters_and_a_failing_statement(world: World) -> None:
    result = world.completed(filed("s8_postgres"))
    who = "O'Brien; 100%"
    assert result["bound"] == {"who": who, "n": 42, "doc": {"a": [who]}, "text": "; -- %s"}
    broken: dict[str, Any] = result["broken"]
    assert broken["status"] == "error"
    assert (broken["error"]["code"], broken["error"]["pg_code"]) == ("PG_23505", "23505")
    assert broken["command_0"]["affected_rows"] == 1
    assert not {"command_1", "command_2"} & set(broken)
    assert result["ids"] == [1, 2, 3], "what ran before stays, what comes behind does not run"


# --- S9: playbooks and workbooks as tasks ------------------------------------------------------------------


def test_s9_what_a_parent_gets_from_its_children(world: World) -> None:
    result = world.completed(filed("s9_parent"))
    assert result["one_step"] == {
        "execution_id": result["one_step"]["execution_id"],
        "path": "lib/double",
        "status": "completed",
        "completed": True,
        "failed": False,
        "return_step": "start",
        "data": {"double": 42},
        "double": 42,
    }
    whole = result["whole"]
    assert whole["data"] == {"status": "fine", "total": 85, "path": "mine"}
    assert (whole["status"], whole["path"], whole["total"]) == ("fine", "lib/double", 85)
    assert result["absent"] == 3
    assert result["alone"] == {
        "status": "started",
        "execution_id": result["alone"]["execution_id"],
        "path": "lib/double",
        "async": True,
    }


def test_s9_the_failure_of_a_child_is_the_failure_of_its_task(world: World) -> None:
    result = world.completed(filed("s9_parent"))
    error = result["failing"]
    child = world.finish(int(error["details"]["execution_id"]))
    assert child.state.status is Status.FAILED
    assert child.state.parent_execution_id == world.play(filed("s9_parent")).state.execution_id
    assert (error["kind"], error["retryable"]) == ("connection", True)
    assert "no line" in error["message"]
    assert result["stats"] == {"total": 6, "success": 5, "failed": 1}
    rows = result["many"]
    assert [row.get("after") for row in rows] == [[n, 2 * n] if n != 4 else None for n in range(1, 7)]
    assert rows[3]["error"]["kind"] == "connection"


@pytest.mark.usefixtures("recorded_waits")
def test_s9_a_parent_and_a_child_that_wait_hold_no_slot(world: World, tmp_path: Path) -> None:
    sessions = world.engine.engine.sessions
    execution_id = world.start(filed("s9_waiting", file=str(tmp_path / "open")))
    state = world.wait(world.engine.until(execution_id, lambda s: any(c.awaits_child for c in s.commands.values())))
    ((_, command),) = state.commands.items()
    assert command.child is not None
    waits = world.engine.until(
        command.child.execution_id, lambda s: any(c.status is CommandStatus.WAITING for c in s.commands.values())
    )
    world.wait(waits)
    assert sessions.pools.free_in("default") == SLOTS
    (tmp_path / "open").touch()
    assert world.finish(execution_id).result == "it is there"


@pytest.mark.usefixtures("recorded_waits")
@asynchronous
async def test_s9_a_parent_that_waits_outlives_its_engine(restarted_address: str, tmp_path: Path) -> None:
    parent, child = filed("s9_waiting").text, (FOLDER / "lib" / "patient.yaml").read_text()
    async with running_engine(restarted_address, tmp_path) as engine:
        await engine.engine.catalog.register(child, file="patient.yaml", owner=_Owner())
        execution_id = await engine.start(body_of(parent), {"file": str(tmp_path / "open")})
        await engine.until(execution_id, lambda s: any(c.awaits_child for c in s.commands.values()))
    (tmp_path / "open").touch()
    async with running_engine(restarted_address, tmp_path) as engine:
        told = await engine.finish(execution_id)
    assert told.result == "it is there"
    assert len(told.of_type(kinds.CHILD_STARTED)) == 1


def test_s9_workbook_entries_are_tools_with_defaults(world: World) -> None:
    start, first, second, third, status, rows = world.completed(filed("s9_workbook"))
    assert (start, first) == ("Hello, Ada!", "Hi, Grace!")
    assert second == {"q": "Hi, Grace!"}
    assert third == {"q": "1"}
    assert status == 200
    assert [row["text"] for row in rows] == ["Hello, a!", "Hello, b!"]


# --- S10: large results and secrets ------------------------------------------------------------------------


def test_s10_a_result_of_five_megabytes_in_parts_and_as_a_whole(world: World) -> None:
    result = world.completed(filed("s10_large"))
    _, size, *_ = result["facts"]
    assert size > 5_000_000
    assert result == {
        "keys": ["count", "rows", "summary"],
        "rows": 1500,
        "same": True,
        "deep": 3500,
        "top": {"last": 1499, "note": "short"},
        "facts": ["disk", size, False, False],
    }


def test_s10_a_large_result_is_opened_by_its_reference(world: World) -> None:
    result = world.completed(filed("s10_artifact"))
    assert result.pop("size") > 200_000
    assert result == {
        "same": True,
        "count": 2000,
        "media": "application/json",
        "uri": "noetl://",
        "again": 1999,
    }


def test_s10_events_stay_small_and_carry_the_selected_fields(world: World) -> None:
    told = world.play(filed("s10_large"))
    assert told.state.status is Status.COMPLETED
    assert max(len(canonical_json(envelope(event))) for event in told.events) < 12_000
    completed = next(e for e in told.of_type(kinds.COMMAND_COMPLETED) if e.command_id == "big#1")
    assert completed.result is not None
    assert "1499" in canonical_json(completed.result["context"])


def test_s10_secrets_are_used_and_nowhere_to_be_seen(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        told = world.finish(world.start(filed("s10_secrets")))
    assert told.state.status is Status.COMPLETED, told.state.failure
    result = told.result
    assert result["code"]["length"] == len(KEYCHAIN_SECRET)
    assert result["code"]["secret"] == HIDDEN
    assert result["headers"]["X-Secret"] == result["by_name"]["X-Key"] == HIDDEN
    assert CREDENTIAL_SECRET not in result["headers"]["Authorization"]
    assert HIDDEN in result["why"]
    places = {
        "log": "\n".join(record.getMessage() + str(record.__dict__) for record in caplog.records),
        "result": json.dumps(result),
        "events": "\n".join(canonical_json(envelope(event)) for event in told.events),
        **everything_kept(world),
    }
    assert "s10_token" in "".join(places.values()), "the search looks in the wrong place"
    found = [(place, secret[:12]) for place, text in places.items() for secret in forms_of_secrets() if secret in text]
    assert found == []


def everything_kept(world: World) -> dict[str, str]:
    """Every row of every table, and every file of the home, as text."""
    tables = world.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'noetl'", control=True)
    found = {}
    for name in (row["tablename"] for row in tables):
        rows = world.sql(f"SELECT t::text AS row FROM noetl.{name} AS t", control=True)
        found[name] = "\n".join(row["row"] for row in rows)
    contents = world.sql("SELECT encode(content, 'escape') AS content FROM noetl.payload", control=True)
    found["payloads"] = "\n".join(row["content"] for row in contents)
    for path in world.home.rglob("*"):
        if path.is_file():
            found[str(path)] = path.read_bytes().decode("latin-1")
    return found


def forms_of_secrets() -> list[str]:
    forms = []
    for secret in (KEYCHAIN_SECRET, CREDENTIAL_SECRET):
        encoded = base64.b64encode(secret.encode()).decode()
        forms += [
            secret,
            quote(secret),
            quote(secret, safe=""),
            secret.encode().hex(),
            encoded[: len(encoded) // 4 * 4 - 4],
        ]
    return forms
