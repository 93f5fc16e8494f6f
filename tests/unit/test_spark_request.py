"""What the rendered fields of a spark task mean, what its inputs are, and where its jobs have their folders."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from noetl.core.errors import ToolFailed
from noetl.core.secret import Secret
from noetl.ports.data.compute import Expectation, JobCredential, JobInput, JobOutput
from noetl.ports.secrets import Credential
from noetl.ports.tool import Script, ToolCall, ToolSettings
from noetl.tools.spark.folders import Folders, job_id
from noetl.tools.spark.request import read_request
from noetl.tools.spark.sources import Sources, is_path, of_path

SETTINGS = ToolSettings(python_children=1, python_memory_bytes=1, http_allow=("loopback",))
LOGIN = {"db_host": "db.example", "db_user": "me", "db_password": "canary", "db_name": "sales"}
POSTGRES = Credential(name="pg", type="postgres", data=Secret(LOGIN))
BEARER = Credential(name="api", type="bearer", data=Secret({"token": "canary"}))


def call(**more: Any) -> ToolCall:
    given: dict[str, Any] = {
        **{"fields": {}, "input": {}, "names": {}, "context": None, "timeout_seconds": 1.0},
        **{
            "tenant_id": "t",
            "organization_id": "o",
            "execution_id": 7,
            "step": "clean/up é",
            "label": "clean/up é_task",
        },
    }
    return ToolCall(**{**given, **more})


def refused(fields: dict[str, object]) -> str:
    with pytest.raises(ToolFailed) as caught:
        read_request(fields)
    assert caught.value.failure.kind == "config"
    assert caught.value.failure.message.startswith("spark: ")
    return caught.value.failure.message


# --- fields ----------------------------------------------------------------------------------------------


def test_each_kind_of_program_has_its_mode() -> None:
    assert (read_request({"sql": "select 1"}).mode, read_request({"code": "x"}).mode) == ("sql", "code")
    assert (
        read_request({"sql": ["create view v as select 1", "select 2"]}).text == "create view v as select 1;\nselect 2"
    )
    assert read_request({}, Script("jobs/a.py", "def main(spark): ...")).mode == "code"
    assert read_request({}, Script("https://host/A.SQL?x=1", "select 1")).mode == "sql"
    found = read_request({"application": "/a.py", "arguments": ["--day", 3]})
    assert (found.mode, found.text, found.arguments) == ("application", "/a.py", ("--day", "3"))


def test_a_task_without_outputs_has_one_without_a_name() -> None:
    found = read_request({"sql": "select 1", "partition_by": "day", "files": "2"})
    assert found.outputs == (JobOutput(name="", partition_by=("day",), files=2),)


def test_outputs_have_their_own_files_or_those_of_the_task() -> None:
    outputs = {"daily": "days", "monthly": {"query": "select 1", "files": 1, "partition_by": ["year"]}}
    found = read_request({"sql": "x", "outputs": outputs, "files": 8, "partition_by": "day"})
    assert found.outputs == (
        JobOutput(name="daily", query="days", partition_by=("day",), files=8),
        JobOutput(name="monthly", query="select 1", partition_by=("year",), files=1),
    )


def test_settings_are_text_as_spark_writes_it() -> None:
    conf = {"spark.sql.adaptive.enabled": False, "spark.sql.shuffle.partitions": 8, "spark.app.name": "me"}
    assert read_request({"sql": "x", "conf": conf}).conf == {
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "8",
        "spark.app.name": "me",
    }


def test_rules_are_read_in_both_forms() -> None:
    rules = [
        {"not_null": ["id", "day"]},
        {"rule": "not_null", "columns": ["id", "day"]},
        {"unique": "id", "name": "one row each"},
        {"range": {"column": "value", "min": 0, "max": 300}, "on_break": "quarantine"},
        {"row_count": {"min": 1}},
        {"row_count": "7"},
        {"references": {"column": "patient", "to": "patients.id"}},
        {"rule": "references", "columns": ["a", "b"], "to": "t", "to_columns": ["c", "d"]},
        {"sql": " value >  0 "},
    ]
    assert read_request({"sql": "x", "expect": rules}).expectations == (
        Expectation(name="not_null(id, day)", kind="not_null", columns=("id", "day")),
        Expectation(name="not_null(id, day) #2", kind="not_null", columns=("id", "day")),
        Expectation(name="one row each", kind="unique", columns=("id",)),
        Expectation(name="range(value)", kind="range", columns=("value",), low=0, high=300, is_quarantine=True),
        Expectation(name="row_count", kind="row_count", low=1),
        Expectation(name="row_count #2", kind="row_count", low=7, high=7),
        Expectation(
            name="references(patient to patients.id)",
            kind="references",
            columns=("patient",),
            to="patients",
            to_columns=("id",),
        ),
        Expectation(
            name="references(a, b to t.c, d)", kind="references", columns=("a", "b"), to="t", to_columns=("c", "d")
        ),
        Expectation(name="sql(value > 0)", kind="sql", sql="value >  0"),
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "there is nothing to run"),
        ({"sql": None, "code": None}, "there is nothing to run"),
        ({"sql": "x", "code": "y"}, "sql and code are both given"),
        ({"sql": " "}, "sql must be a text"),
        ({"code": "a\0b"}, "NUL"),
        ({"sql": "x", "conf": {"driver.memory": "1g"}}, "begin with spark."),
        ({"sql": "x", "files": -1}, "files must be a whole number"),
        ({"sql": "x", "outputs": {"a": 5}}, "outputs: the output 'a'"),
        ({"code": "x", "outputs": {"a": "select 1"}}, "that is for sql"),
        ({"sql": "x", "expect": "all"}, "expect must be a list"),
        ({"sql": "x", "expect": [{"unique": "a"}, {"row_count": {"min": "{{ n }}"}}]}, "rule 2: row_count min"),
        ({"sql": "x", "outputs": ["a", "b"], "expect": [{"unique": "x"}]}, "there are several outputs"),
    ],
)
def test_what_cannot_be_run_says_why(fields: dict[str, object], words: str) -> None:
    assert words in refused(fields)


# --- inputs that Spark reads itself ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("/data/days", True), ("s3a://bucket/days", True), ("./days", True), ("days.parquet", True)),
        *(("file:/a", True), ("days.csv.gz", True), ("a/b.jsonl", True), ("2026-01-01", False), ("a/b", False)),
        *(("see s3a://bucket/days", False), ("https://api.example.com/days.csv", False), ("HTTP://x", False)),
        *(("north", False), ("3.5", False), ("", False), ("readme.md", False)),
    ],
)
def test_a_text_is_a_path_only_if_it_looks_like_one(text: str, expected: bool) -> None:
    assert is_path(text) is expected


@pytest.mark.parametrize(
    ("value", "fmt", "options"),
    [
        ({"path": "/a/days"}, "parquet", {}),
        ({"path": "/a/days.csv.gz"}, "csv", {"header": "true", "inferSchema": "true"}),
        ({"path": "/a/days.csv", "options": {"header": False, "sep": ";"}}, "csv", {"header": "false", "sep": ";"}),
        ({"path": "/a/days.tsv"}, "csv", {"header": "true", "inferSchema": "true", "sep": "\t"}),
        ({"path": "/a/days.json"}, "json", {}),
        ({"path": "/a/days", "format": "orc"}, "orc", {}),
        ({"format": "noetl_events", "options": {"shards": [1, 2]}}, "noetl_events", {"shards": "[1, 2]"}),
    ],
)
def test_the_format_of_a_path_is_told_or_seen(value: dict[str, object], fmt: str, options: dict[str, str]) -> None:
    expected = JobInput(name="a", kind="source", path=value.get("path"), format=fmt, options=options)  # type: ignore[arg-type]
    assert Sources(None, SETTINGS).described("a", value) == expected


def test_a_relative_path_is_looked_for_below_the_folders_of_artifacts(tmp_path: Path) -> None:
    (tmp_path / "days.csv").touch()
    assert of_path("a", {"path": "days.csv"}, (str(tmp_path),)).path == str(tmp_path / "days.csv")
    for roots in ((), (str(tmp_path),)):
        with pytest.raises(ToolFailed, match="is a relative path"):
            of_path("a", {"path": "other.csv"}, roots)


def test_a_mapping_that_describes_nothing_is_plain_data() -> None:
    for value in ({}, {"path": "/a", "mode": "x"}, {"table": 5}, {"name": "a"}, {"postgres": {}, "http": {}}):
        assert Sources(None, SETTINGS).described("a", value) is None
    found = Sources(None, SETTINGS).described("a", {"table": "db.t"})
    assert found == JobInput(name="a", kind="table", path="db.t")


def test_a_login_goes_apart_from_the_options() -> None:
    sources = Sources({"db": POSTGRES, "api": BEARER}, SETTINGS)
    value = {"postgres": {"table": "orders", "partitions": 4, "columns": ["a", "b"]}, "auth": "db"}
    found = sources.described("a", value)
    assert found is not None
    assert found.format == "noetl_postgres"
    assert found.options == {"table": "orders", "partitions": "4", "columns": "a,b", "auth": "db"}
    # A program may want what no input has asked for.
    assert sources.credentials == {
        "db": JobCredential(type="postgres", data=LOGIN),
        "api": JobCredential(type="bearer", data={"token": "canary"}),
    }
    assert "canary" not in repr(sources.credentials)


def test_the_only_credential_needs_no_name() -> None:
    found = Sources(POSTGRES, SETTINGS).described("a", {"postgres": {"query": "select 1"}})
    assert found is not None
    assert found.options == {"query": "select 1", "auth": "pg"}
    both = Sources({"db": POSTGRES, "api": BEARER}, SETTINGS)
    found = both.described("a", {"http": {"url": "https://api.example"}})
    assert found is not None
    assert found.options["auth"] == "api"
    # A login of a database is sent to nobody else.
    found = Sources(POSTGRES, SETTINGS).described("a", {"http": {"url": "https://api.example"}})
    assert found is not None
    assert "auth" not in found.options


def test_headers_are_no_options() -> None:
    sources = Sources(BEARER, SETTINGS)
    value = {"http": {"url": "https://api.example/rows", "headers": {"X-Key": "canary", "X-No": None}}}
    found = sources.described("a", value)
    assert found is not None
    assert found.options == {"url": "https://api.example/rows", "auth": "input a"}
    headers = {"X-Key": "canary", "Authorization": "Bearer canary"}
    assert sources.credentials["input a"] == JobCredential(type="header", data={"headers": headers})


@pytest.mark.parametrize(
    ("value", "auth", "words"),
    [
        ({"postgres": {"table": "a"}}, None, "auth is required"),
        ({"postgres": {"table": "a"}}, {"x": POSTGRES, "y": POSTGRES}, "one of the task's own `auth`, which are: x, y"),
        ({"postgres": {"table": "a"}, "auth": "z"}, {"x": POSTGRES}, "which are: x"),
        ({"postgres": {"table": "a"}, "auth": "z"}, POSTGRES, "which are: pg"),
        ({"postgres": {"table": "a"}}, BEARER, "auth is required"),
        ({"postgres": {"table": "a"}, "auth": "api"}, BEARER, "not postgres"),
        ({"postgres": "a"}, POSTGRES, "must be a mapping"),
        ({"http": {"url": "a", "headers": [1]}}, None, "headers must be a mapping"),
        ({"path": 5}, None, "path must be a text"),
        ({"path": "/a", "options": [1]}, None, "options must be a mapping"),
    ],
)
def test_a_source_that_cannot_be_read_says_why(value: dict[str, object], auth: Any, words: str) -> None:
    with pytest.raises(ToolFailed) as caught:
        Sources(auth, SETTINGS).described("rows", value)
    assert words in caught.value.failure.message
    assert "canary" not in caught.value.failure.message


# --- folders ---------------------------------------------------------------------------------------------


def test_every_try_has_a_folder_of_its_own_that_goes_with_it(tmp_path: Path) -> None:
    folders = Folders(tmp_path / "jobs")
    first, second = folders.new(call()), folders.new(call())
    assert first.path != second.path
    (first.path / "part.parquet").write_text("x")
    first.remove()
    assert not first.path.exists()
    assert second.path.exists()
    second.remove()


def test_the_id_of_a_job_is_fit_for_a_name() -> None:
    found = job_id(call(attempt=3), 12)
    assert found.startswith("7-clean_up__-a3-")
    assert found.endswith("-12")
    assert job_id(call(label="one"), 1).startswith("7-clean_up__.one-a1-")
    assert len(job_id(call(step="s" * 500, label="l" * 500), 1)) < 128


def test_what_a_dead_worker_left_is_removed_and_what_is_in_use_stays(tmp_path: Path) -> None:
    (tmp_path / "jobs" / "other").mkdir(parents=True)
    used = Folders(tmp_path / "jobs").new(call())
    make = (
        "import sys, types; from pathlib import Path; from noetl.tools.spark.folders import Folders\n"
        "call = types.SimpleNamespace(execution_id=8, step='s', label='s_task', attempt=1)\n"
        "print(Folders(Path(sys.argv[1])).new(call).path)"
    )
    done = subprocess.run(
        [sys.executable, "-c", make, str(tmp_path / "jobs")], capture_output=True, text=True, check=True, timeout=60
    )
    left = Path(done.stdout.strip())
    assert left.is_dir()
    assert Folders(tmp_path / "jobs").remove_left() == 1
    assert not left.exists()
    assert used.path.is_dir()
    used.remove()
    assert Folders(tmp_path / "none").remove_left() == 0


def test_a_worker_that_starts_leaves_a_folder_that_is_just_being_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one looks around at every moment at which a lock is not taken yet."""
    one, other = Folders(tmp_path / "jobs"), Folders(tmp_path / "jobs")
    removed: list[int] = []
    take = fcntl.flock

    def slow(lock: int, how: int) -> None:
        with monkeypatch.context() as quick:
            quick.setattr(fcntl, "flock", take)
            removed.append(other.remove_left())
        take(lock, how)

    monkeypatch.setattr(fcntl, "flock", slow)
    folder = one.new(call())
    monkeypatch.setattr(fcntl, "flock", take)
    assert removed == [0]
    assert folder.path.is_dir()
    assert other.remove_left() == 0
    folder.remove()
    assert list((tmp_path / "jobs").iterdir()) == []


def test_what_has_no_lock_is_removed_after_a_while(tmp_path: Path) -> None:
    for name in ("half-removed", ".new-never-locked", "young"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part.parquet").touch()
    (tmp_path / ".new-never-locked" / ".lock").touch()
    for name in ("half-removed", ".new-never-locked"):
        os.utime(tmp_path / name, (1, 1))
    assert Folders(tmp_path).remove_left() == 2
    assert [path.name for path in tmp_path.iterdir()] == ["young"]
