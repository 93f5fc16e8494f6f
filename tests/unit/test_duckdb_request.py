"""What the fields of a duckdb task mean, where its files are, and the shape of its result."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from noetl.core.errors import PlaybookInvalid, ToolFailed
from noetl.core.playbook.compile import compile_playbook
from noetl.core.playbook.model import Task
from noetl.core.secret import Secret
from noetl.ports.secrets import Credential
from noetl.ports.tool import KeptRun
from noetl.tools.duckdb.failures import crash_failure, statement_failure, timeout_failure
from noetl.tools.duckdb.places import LOCK, Owner, Places
from noetl.tools.duckdb.request import MEMORY, read_request
from noetl.tools.duckdb.sources import attachments_of
from noetl.tools.sql.params import Bound, ParamsInvalid, bind
from noetl.tools.sql.results import StatementResult, value_of
from noetl.tools.sql.split import WITH_MORE_PLACEHOLDERS
from tests.support.playbooks import workflow

OWNER = Owner("default", "default")


def refused(fields: dict[str, object]) -> tuple[str, str]:
    with pytest.raises(ToolFailed) as caught:
        read_request(fields)
    return caught.value.failure.kind, caught.value.failure.message


# --- fields ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["query", "command", "commands", "sql"])
def test_every_field_with_sql_is_cut_into_statements(field: str) -> None:
    request = read_request({field: "create table t(a int); -- it's; one\nselect ';' from t;"})
    assert [one.text for one in request.statements] == [
        "create table t(a int)",
        "-- it's; one\nselect ';' from t",
    ]
    assert request.database is None


def test_a_list_runs_in_order_and_a_script_wins() -> None:
    assert len(read_request({"commands": ["select 1", "select 2; select 3"]}).statements) == 3
    (only,) = read_request({"query": "select 1"}, "select 2").statements
    assert only.text == "select 2"


@pytest.mark.parametrize(
    ("fields", "database"),
    [
        ({}, None),
        ({"database": ""}, None),
        ({"database": " sales.duckdb "}, "sales.duckdb"),
        ({"db_path": ":memory:"}, MEMORY),
    ],
)
def test_a_database_is_named_by_two_fields(fields: dict[str, object], database: str | None) -> None:
    assert read_request({"query": "select 1", **fields}).database == database


@pytest.mark.parametrize(
    ("fields", "kind", "words"),
    [
        ({}, "config", "no SQL"),
        ({"query": " -- nothing"}, "config", "no statement"),
        ({"query": "select 1", "command": "select 2"}, "config", "both given"),
        ({"query": "select 1", "database": "a", "db_path": "b"}, "config", "both given"),
        ({"query": "select 1", "database": ["a"]}, "config", "must be a name"),
        ({"query": "select $1; select 2", "params": [1]}, "config", "is several"),
        ({"query": "select 1; INSTALL httpfs"}, "policy", "statement 1: INSTALL is refused"),
        ({"query": "/* x */ load 'a.duckdb_extension'"}, "policy", "LOAD is refused"),
        ({"query": "copy t from program 'cat'"}, "policy", "PROGRAM is refused"),
        ({"query": "copy (select 1) TO PROGRAM 'cat'"}, "policy", "PROGRAM is refused"),
    ],
)
def test_what_cannot_be_run_says_why(fields: dict[str, object], kind: str, words: str) -> None:
    found, message = refused(fields)
    assert found == kind
    assert words in message
    assert message.startswith("duckdb: ")


def test_a_table_may_be_called_program() -> None:
    assert read_request({"query": "copy program to 'x.csv'"}).statements


# --- placeholders ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "params", "expected"),
    [
        ("select ?, ?", [1, 2], Bound("select $1, $2", (1, 2))),
        ("select '?', ?", [1], Bound("select '?', $1", (1,))),
        ("select $2, $1", [1, 2], Bound("select $2, $1", (1, 2))),
        ("select %s", [1], Bound("select $1", (1,))),
        ("select $low, :low, $high", {"low": 1, "high": 2}, Bound("select $1, $1, $2", (1, 2))),
        ("select {'a':b, c: $low}, x[1:2]", {"low": 1}, Bound("select {'a':b, c: $1}, x[1:2]", (1,))),
        ("select $$ $low $$, $low", {"low": 1}, Bound("select $$ $low $$, $1", (1,))),
        ("select $t$ ? $t$, $low::int", {"low": 1}, Bound("select $t$ ? $t$, $1::int", (1,))),
    ],
)
def test_every_way_to_write_a_placeholder(text: str, params: object, expected: Bound) -> None:
    assert bind(text, params, WITH_MORE_PLACEHOLDERS) == expected


def test_question_marks_and_dollar_names_stay_what_they_are_for_postgres() -> None:
    assert bind("select a ? 'b', $1", [1]) == Bound("select a ? 'b', $1", (1,))


@pytest.mark.parametrize(("text", "params"), [("select ?", {"a": 1}), ("select $b", {"a": 1}), ("select ?", [1, 2])])
def test_placeholders_that_do_not_fit(text: str, params: object) -> None:
    with pytest.raises(ParamsInvalid):
        bind(text, params, WITH_MORE_PLACEHOLDERS)


def run(number: int) -> KeptRun:
    return KeptRun(OWNER.tenant_id, OWNER.organization_id, number)


def numbers(places: Places) -> set[int]:
    return {one.execution_id for one in places.runs()}


# --- places ----------------------------------------------------------------------------------------------


def test_the_execution_has_a_folder_of_its_own(tmp_path: Path) -> None:
    places = Places(tmp_path / "duckdb")
    place = places.make(None, Owner("a/b", ".."), 12)
    assert place.database == tmp_path / "duckdb" / "a%2Fb" / "%2E%2E" / "runs" / "12" / "main.duckdb"
    assert place.is_first
    assert place.files.is_dir()
    assert place.scratch.is_dir()
    assert place.scratch.parent.parent == place.run
    place.database.touch()
    again = places.make(None, Owner("a/b", ".."), 12)
    assert not again.is_first
    assert again.scratch != place.scratch
    assert places.runs() == [KeptRun("a/b", "..", 12)]


@pytest.mark.parametrize(
    ("name", "below"),
    [
        ("sales.duckdb", "sales.duckdb"),
        ("reports/2024.duckdb", "reports/2024.duckdb"),
        ("/data/reports/x.db", "data/reports/x.db"),
        ("./x//y", "x/y"),
    ],
)
def test_a_named_database_is_below_the_folder_of_its_owner(tmp_path: Path, name: str, below: str) -> None:
    found = Places(tmp_path).named(name, OWNER)
    assert found == tmp_path / "default" / "default" / "databases" / below


@pytest.mark.parametrize(
    "name",
    ["..", "../x", "a/../../x", "/..", "/", "./.", "x.wal", "x.lock", "a\0b", "a\nb", "x" * 401, "y" * 201 + "/z"],
)
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ToolFailed, match="no name of a database"):
        Places(tmp_path).named(name, OWNER)
    assert list(tmp_path.iterdir()) == []


def test_folders_of_ended_executions_go_and_others_stay(tmp_path: Path) -> None:
    places = Places(tmp_path)
    for number in (1, 2, 3):
        places.make(None, OWNER, number)
    assert places.remove({run(1), run(9), KeptRun("other", "default", 2)}) == 1
    assert numbers(places) == {2, 3}
    old = tmp_path / "default" / "default" / "runs" / "2"
    os.utime(old, (0, 0))
    assert places.remove_unused(3600) == 1
    assert numbers(places) == {3}
    assert Places(tmp_path / "none").remove_unused(1) == 0


def test_a_folder_with_a_task_in_it_stays(tmp_path: Path) -> None:
    places = Places(tmp_path)
    place = places.make(None, OWNER, 1)
    with open(place.run / LOCK, "ab") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        assert places.remove({run(1)}) == 0
    assert numbers(places) == {1}
    assert places.remove({run(1)}) == 1


# --- credentials -----------------------------------------------------------------------------------------


def credential(kind: str, **data: object) -> Credential:
    return Credential(name="c", type=kind, data=Secret(data))


def test_a_credential_of_a_database_is_attached_under_its_alias() -> None:
    (one,) = attachments_of({"past": credential("duckdb", database="past.duckdb", read_only=False)})
    assert (one.alias, one.database, one.is_read_only) == ("past", "past.duckdb", False)
    (own,) = attachments_of(credential("duckdb", db_path="past.duckdb"))
    assert (own.alias, own.is_read_only) == ("c", True)
    assert attachments_of(None) == []


@pytest.mark.parametrize("kind", ["postgres", "s3", "gcs_hmac", "generic"])
def test_any_other_credential_is_refused_with_another_way_and_without_its_values(kind: str) -> None:
    with pytest.raises(ToolFailed) as caught:
        attachments_of({"x": credential(kind, password="hunter22222")})
    failure = caught.value.failure
    assert failure.kind == "unsupported"
    assert "as a table in `input`" in failure.message
    assert "hunter" not in failure.message


@pytest.mark.parametrize("data", [{}, {"database": ":memory:"}])
def test_a_credential_must_name_a_database(data: dict[str, object]) -> None:
    with pytest.raises(ToolFailed, match="names a database"):
        attachments_of(credential("duckdb", **data))


# --- results and failures --------------------------------------------------------------------------------

ROWS = StatementResult(row_count=2, columns=("a",), reference={"sha256": "x"})
CHANGE = StatementResult(row_count=3)


def test_rows_stand_at_two_places_and_are_stored_once() -> None:
    value, parts = value_of([CHANGE, ROWS], is_failed=False)
    assert value == {
        "status": "success",
        "rows": None,
        "row_count": 2,
        "columns": ["a"],
        "statement_count": 2,
        "command_0": {"status": "success", "row_count": 3, "affected_rows": 3},
        "command_1": {"status": "success", "rows": None, "row_count": 2, "columns": ["a"]},
    }
    assert parts == {("rows",): {"sha256": "x"}, ("command_1", "rows"): {"sha256": "x"}}


def test_a_last_statement_without_rows_has_none_at_the_top() -> None:
    value, parts = value_of([ROWS, CHANGE], is_failed=False)
    assert value is not None
    assert "rows" not in value
    assert parts == {("command_0", "rows"): {"sha256": "x"}}


def test_what_was_carried_out_before_a_failure_is_told() -> None:
    value, parts = value_of([ROWS], is_failed=True)
    assert value is not None
    assert (value["status"], value["statement_count"]) == ("error", 1)
    assert parts == {("command_0", "rows"): {"sha256": "x"}}
    assert value_of([], is_failed=True) == (None, {})


@pytest.mark.parametrize(
    ("error", "kind", "is_retryable"),
    [
        ("ConstraintException", "db_constraint", False),
        ("TransactionException", "db_deadlock", True),
        ("OutOfMemoryException", "storage_quota", False),
        ("ConversionException", "transform", False),
        ("SomethingNewException", "unknown", False),
    ],
)
def test_errors_have_the_kinds_of_the_language(error: str, kind: str, is_retryable: bool) -> None:
    failure = statement_failure(error, "no\n\nLINE 1: select …", number=3)
    assert (failure.kind, failure.retryable, failure.details) == (kind, is_retryable, {"statement": 3})
    assert "LINE" not in failure.message


def test_a_failure_of_the_process_says_what_to_do() -> None:
    killed = crash_failure(-9, number=1, memory_bytes=2**30)
    assert "SIGKILL" in killed.message
    assert "1,024 MB" in killed.message
    assert "in use by other tasks" in timeout_failure(2, number=0, is_waiting=True).message
    assert timeout_failure(2, number=0, is_waiting=False).kind == "timeout"


# --- in a playbook ---------------------------------------------------------------------------------------


def read_task(tool: str) -> Task:
    text = workflow(f"- step: s\n  tool: {tool}")
    return compile_playbook(text, file="t.yaml", kinds=frozenset(("duckdb",))).playbook.steps[0].tasks[0]


def test_tables_are_a_part_of_the_input() -> None:
    task = read_task("{kind: duckdb, query: q, tables: {a: 1, b: 2}, input: {b: 3}}")
    assert (task.input, task.config) == ({"a": 1, "b": 3}, {"query": "q"})
    assert read_task("{kind: duckdb, query: q, tables: {a: 1}}").input == {"a": 1}
    assert read_task("{kind: duckdb, query: q, tables: null}").input == {}


@pytest.mark.parametrize(
    ("tool", "code"),
    [
        ("{kind: duckdb, query: q, tables: [a]}", "tables_shape"),
        ("{kind: duckdb, query: q, tables: {a: 1}, input: [b]}", "input_shape"),
    ],
)
def test_tables_must_have_names(tool: str, code: str) -> None:
    with pytest.raises(PlaybookInvalid) as caught:
        read_task(tool)
    assert [problem.code for problem in caught.value.problems] == [code]
