"""Expectations: what breaks a rule, what a step fails by, and what a quarantine holds."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from noetl.adapters.spark.job.expect.quarantine import RULES
from noetl.adapters.spark.job.expect.verdicts import judge
from noetl.adapters.spark.job.outputs import Written
from noetl.core import limits
from noetl.core.errors import ToolFailed
from noetl.ports.data.compute import Expectation, JobInput, JobOutcome, JobOutput
from tests.support.spark import shared_session
from tests.support.spark_jobs import arrow_file, dataset, job_of, performed, rows_of, succeeded

Row = dict[str, Any]


def rule(name: str, kind: str, *columns: str, aside: bool = False, **more: Any) -> Expectation:
    return Expectation(name=name, kind=kind, columns=columns, is_quarantine=aside, **more)


def given(tmp_path: Path, name: str, table: pa.Table) -> JobInput:
    path, offset, length = arrow_file(tmp_path / f"{name}.arrow", table)
    return JobInput(name=name, kind="arrow", path=path, offset=offset, length=length)


def broken(outcome: JobOutcome) -> dict[str, int]:
    return {one.name: one.broken for one in outcome.verdicts}


# --- all rules against plain Python ------------------------------------------------------------------------


def is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def key_of(row: Row, *names: str) -> tuple[object, ...] | None:
    """None when it is not complete.  NaN is equal to itself, and both zeros are one."""
    values = [row[name] for name in names]
    return None if None in values else tuple("nan" if is_nan(value) else value for value in values)


def oracle(rows: list[Row], known: set[object]) -> dict[str, Callable[[Row], bool]]:
    ids = Counter(key_of(row, "id") for row in rows)
    pairs = Counter(key_of(row, "name", "price") for row in rows)

    def in_range(value: float | None) -> bool:
        return value is None or (not math.isnan(value) and -1.0 <= value <= 5)

    return {
        "filled": lambda row: row["name"] is None or row["price"] is None or is_nan(row["price"]),
        "id once": lambda row: row["id"] is not None and ids[key_of(row, "id")] > 1,
        "pair once": lambda row: key_of(row, "name", "price") is not None and pairs[key_of(row, "name", "price")] > 1,
        "price in range": lambda row: not in_range(row["price"]),
        "id from": lambda row: row["id"] is not None and row["id"] < 3,
        "known": lambda row: row["id"] is not None and row["id"] not in known,
        # To SQL, NaN is more than any number.
        "condition": lambda row: (
            row["id"] is None
            or row["price"] is None
            or not (row["id"] % 2 == 0 or row["price"] > 1 or is_nan(row["price"]))
        ),
    }


def rules(*, aside: bool) -> tuple[Expectation, ...]:
    return (
        rule("filled", "not_null", "name", "price", aside=aside),
        rule("id once", "unique", "id", aside=aside),
        rule("pair once", "unique", "name", "price", aside=aside),
        rule("price in range", "range", "price", low=-1.0, high=5, aside=aside),
        rule("id from", "range", "id", low=2.5, aside=aside),
        rule("known", "references", "id", to="people", to_columns=("person",), aside=aside),
        rule("condition", "sql", sql="(id % 2 = 0 OR price > 1) AND id IS NOT NULL AND price IS NOT NULL", aside=aside),
    )


def a_table(seed: int) -> list[Row]:
    chance = random.Random(seed)
    prices = [None, math.nan, -0.0, 0.0, 1.5, 5.0, 5.1, math.inf, -math.inf, -1.0]
    return [
        {
            "number": number,
            "id": chance.choice([None, *range(60)]),
            "name": chance.choice([None, "", "ann", "bob", "cleo"]),
            "price": chance.choice(prices),
        }
        for number in range(chance.choice([1, 30, 60]))
    ]


SCHEMA = pa.schema([("number", pa.int32()), ("id", pa.int64()), ("name", pa.string()), ("price", pa.float64())])


# Tables of 60, 30 and 1 rows.
@pytest.mark.parametrize("seed", [5, pytest.param(7, marks=pytest.mark.long), pytest.param(1, marks=pytest.mark.long)])
def test_verdicts_and_quarantines_are_those_of_plain_python(tmp_path: Path, seed: int) -> None:
    rows = a_table(seed)
    people = [None, *range(0, 60, 3), *range(0, 60, 4)]
    inputs = (
        given(tmp_path, "t", pa.Table.from_pylist(rows, SCHEMA)),
        given(tmp_path, "people", pa.table({"person": pa.array(people, pa.int32())})),
    )
    expected = oracle(rows, {one for one in people if one is not None})
    counts = {name: sum(1 for row in rows if breaks(row)) for name, breaks in expected.items()}

    strict = performed(job_of(tmp_path, "SELECT * FROM t", inputs=inputs, expectations=rules(aside=False)))
    assert broken(strict) == counts
    assert {one.rows for one in strict.verdicts} == {len(rows)}
    assert (strict.failure is not None) == any(counts.values())
    assert strict.datasets == () or strict.failure is None

    aside = succeeded(job_of(tmp_path, "SELECT * FROM t", inputs=inputs, expectations=rules(aside=True)))
    assert broken(aside) == counts
    by_number = {row["number"]: [name for name, breaks in expected.items() if breaks(row)] for row in rows}
    kept = sorted(row["number"] for row in rows_of(dataset(aside)))  # type: ignore[type-var]
    assert kept == [number for number, names in by_number.items() if not names]
    if any(counts.values()):
        found = {row["number"]: row[RULES] for row in rows_of(dataset(aside, is_quarantine=True))}
        assert found == {number: names for number, names in by_number.items() if names}


# --- what a step fails by ----------------------------------------------------------------------------------


def test_a_broken_rule_fails_the_step_with_counts_and_publishes_nothing(tmp_path: Path) -> None:
    expectations = (rule("id filled", "not_null", "id"), rule("enough", "row_count", low=10, high=20))
    sql = "SELECT * FROM VALUES (1), (NULL), (3) AS t(id)"
    outcome = performed(job_of(tmp_path, sql, expectations=expectations))
    failure = outcome.failure
    assert failure is not None
    assert (failure.kind, failure.code, failure.retryable) == ("schema", "SPARK_EXPECTATION", False)
    assert "id filled: 1 of 3 rows of the output have no value in id" in failure.message
    assert "the output has 3 rows, and 10 to 20 are expected" in failure.message
    assert "`on_break: quarantine`" in failure.message
    assert outcome.datasets == ()
    assert [(one.name, one.is_met, one.rows, one.broken) for one in outcome.verdicts] == [
        ("id filled", False, 3, 1),
        ("enough", False, 3, 1),
    ]
    assert outcome.facts.rows_written == 3


def test_rules_that_are_met_are_told_and_the_rows_are_computed_once(tmp_path: Path) -> None:
    text = """
import pathlib, uuid

SEEN = pathlib.Path(__file__).with_name("seen")

def seen(batches):
    SEEN.joinpath(uuid.uuid4().hex).touch()
    yield from batches

def main(spark):
    SEEN.mkdir()
    return spark.range(0, 1000, 1, 4).mapInArrow(seen, "id long")
"""
    expectations = (
        rule("filled", "not_null", "id"),
        rule("once", "unique", "id"),
        rule("some", "row_count", low=1),
        rule("even", "sql", sql="id % 2 = 0", aside=True),
    )
    job = job_of(tmp_path, text, "code", expectations=expectations)
    outcome = succeeded(job)
    assert [one.is_met for one in outcome.verdicts] == [True, True, True, False]
    assert dataset(outcome).row_count == 500
    assert dataset(outcome, is_quarantine=True).row_count == 500
    assert outcome.verdicts[3].quarantine == ""
    assert len(list((job.folder / "seen").iterdir())) == 4


def test_strict_rules_are_about_the_rows_that_a_quarantine_leaves(tmp_path: Path) -> None:
    sql = "SELECT * FROM VALUES (1, 'a'), (1, NULL), (2, 'b'), (3, NULL) AS t(id, name)"
    expectations = (
        rule("named", "not_null", "name", aside=True),
        rule("once", "unique", "id"),
        rule("two", "row_count", low=2, high=2),
    )
    outcome = succeeded(job_of(tmp_path, sql, expectations=expectations))
    assert [(one.name, one.is_met, one.rows, one.broken) for one in outcome.verdicts] == [
        ("named", False, 4, 2),
        ("once", True, 2, 0),
        ("two", True, 2, 0),
    ]


def test_a_quarantine_keeps_the_partitioning_of_its_output(tmp_path: Path) -> None:
    sql = "SELECT id, concat('d', id % 2) AS day FROM range(10)"
    expectations = (rule("small", "range", "id", high=6, aside=True), rule("day", "sql", sql="day <> 'd9'"))
    outcome = succeeded(
        job_of(tmp_path, sql, outputs=(JobOutput(name="", partition_by=("day",)),), expectations=expectations)
    )
    assert sorted((row["id"], row["day"]) for row in rows_of(dataset(outcome))) == [(n, f"d{n % 2}") for n in range(7)]
    found = rows_of(dataset(outcome, is_quarantine=True))
    assert sorted((row["id"], row["day"]) for row in found) == [(n, f"d{n % 2}") for n in range(7, 10)]
    assert {tuple(row[RULES]) for row in found} == {("small",)}  # type: ignore[arg-type]


def test_outputs_are_held_against_each_other_as_they_are_published(tmp_path: Path) -> None:
    sql = """
    CREATE TEMP VIEW orders AS SELECT * FROM VALUES (1, 10), (2, 20), (3, 30) AS t(id, person);
    CREATE TEMP VIEW persons AS SELECT * FROM VALUES (10, 'a'), (20, NULL) AS t(id, name)
    """
    expectations = (
        rule("has person", "references", "person", of="orders", to="persons", to_columns=("id",), aside=True),
        rule("has name", "not_null", "name", of="persons", aside=True),
    )
    outputs = (JobOutput(name="orders"), JobOutput(name="persons"))
    outcome = succeeded(job_of(tmp_path, sql, outputs=outputs, expectations=expectations))
    assert [row["id"] for row in rows_of(dataset(outcome, "orders"))] == [1]
    assert broken(outcome) == {"has person": 2, "has name": 1}
    assert [one.name for one in outcome.verdicts] == ["has person", "has name"]


def test_a_row_may_refer_to_rows_of_its_own_output(tmp_path: Path) -> None:
    sql = "SELECT * FROM VALUES (1, NULL), (2, 1), (3, 9) AS t(id, parent)"
    own = rule("parent", "references", "parent", to="tree", to_columns=("id",))
    outcome = performed(job_of(tmp_path, sql + "", outputs=(JobOutput(name="tree", query=sql),), expectations=(own,)))
    assert broken(outcome) == {"parent": 1}


def test_a_condition_may_ask_other_tables(tmp_path: Path) -> None:
    sql = "CREATE TEMP VIEW allowed AS SELECT 1 AS id; SELECT id FROM range(4)"
    asked = rule("allowed", "sql", sql="id IN (SELECT id FROM allowed)", aside=True)
    outcome = succeeded(job_of(tmp_path, sql, expectations=(asked,)))
    assert broken(outcome) == {"allowed": 3}
    assert [row["id"] for row in rows_of(dataset(outcome))] == [1]


def test_bounds_are_read_as_the_type_of_their_column(tmp_path: Path) -> None:
    sql = "SELECT date'2026-01-05' AS day, 1.25BD AS price, 'm' AS word"
    expectations = (
        rule("day", "range", "day", low="2026-01-01", high="2026-01-04"),
        rule("price", "range", "price", low="1.25", high=1.25),
        rule("word", "range", "word", low="a", high="m"),
        rule("large", "range", "price", high=2**70),
    )
    assert broken(performed(job_of(tmp_path, sql, expectations=expectations))) == {
        "day": 1,
        "price": 0,
        "word": 0,
        "large": 0,
    }


# --- answers that must be exact ------------------------------------------------------------------------------


def test_rows_whose_parents_are_set_aside_are_set_aside_too(tmp_path: Path) -> None:
    """The names of the columns are those that a quarantine would choose for itself."""
    tree = "SELECT * FROM VALUES (1, NULL, NULL), (2, 1, 'v'), (3, 2, 'v'), (4, NULL, 'v'), (5, 4, 'v')"
    expectations = (
        rule("filled", "not_null", "val", aside=True),
        rule("parent", "references", "_rule_1", to="tree", to_columns=("_rule_1_key_0",), aside=True),
        rule("still", "references", "_rule_1", to="tree", to_columns=("_rule_1_key_0",)),
    )
    outputs = (JobOutput(name="tree", query=f"{tree} AS t(_rule_1_key_0, _rule_1, val)"),)
    job = job_of(tmp_path, "SELECT 1", outputs=outputs, expectations=expectations)
    outcome = succeeded(job)
    assert sorted(row["_rule_1_key_0"] for row in rows_of(dataset(outcome, "tree"))) == [4, 5]  # type: ignore[type-var]
    found = {row["_rule_1_key_0"]: row[RULES] for row in rows_of(dataset(outcome, "tree", is_quarantine=True))}
    assert found == {1: ["filled"], 2: ["parent"], 3: ["parent"]}
    assert broken(outcome) == {"filled": 1, "parent": 2, "still": 0}


def test_a_chain_that_is_too_long_fails_and_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SPARK_QUARANTINE_ROUNDS_MAX", 1)
    tree = "SELECT * FROM VALUES (1, 0), (2, 1) AS t(id, parent)"
    parent = rule("parent", "references", "parent", to="tree", to_columns=("id",), aside=True)
    job = job_of(tmp_path, "SELECT 1", outputs=(JobOutput(name="tree", query=tree),), expectations=(parent,))
    failure = performed(job).failure
    assert failure is not None
    assert failure.message.startswith("expect, rule parent: after 1 rounds")


def test_outputs_that_refer_to_each_other_are_held_against_what_is_left(tmp_path: Path) -> None:
    first, second = "SELECT * FROM VALUES (1, 1), (2, 2) AS t(a, b)", "SELECT * FROM VALUES (1, 1), (2, 9) AS t(b, a)"
    expectations = (
        rule("has b", "references", "b", of="first", to="second", to_columns=("b",), aside=True),
        rule("has a", "references", "a", of="second", to="first", to_columns=("a",), aside=True),
    )
    outputs = (JobOutput(name="first", query=first), JobOutput(name="second", query=second))
    outcome = succeeded(job_of(tmp_path, "SELECT 1", outputs=outputs, expectations=expectations))
    assert [rows_of(dataset(outcome, name)) for name in ("first", "second")] == [[{"a": 1, "b": 1}], [{"b": 1, "a": 1}]]


def test_a_condition_that_changes_with_time_loses_no_row_and_doubles_none(tmp_path: Path) -> None:
    now = rule("now", "sql", sql="pmod(unix_micros(current_timestamp()), 1000) = id", aside=True)
    outcome = succeeded(job_of(tmp_path, "SELECT id FROM range(1000)", expectations=(now,)))
    kept, aside = rows_of(dataset(outcome)), rows_of(dataset(outcome, is_quarantine=True))
    assert sorted(row["id"] for row in (*kept, *aside)) == list(range(1000))  # type: ignore[type-var]
    assert broken(outcome) == {"now": len(aside)}


def test_ranges_are_compared_in_the_type_of_their_column(tmp_path: Path) -> None:
    big = 2**53
    sql = f"SELECT float(0.1) AS f, {big + 1}L AS n, cast(0.3 AS decimal(3,1)) AS d, double('-Infinity') AS i"
    expectations = (
        rule("tenth", "range", "f", low=0.1, high=0.1),
        rule("below", "range", "n", low=float(big + 2)),
        rule("above", "range", "n", high=float(big)),
        rule("near", "range", "n", low=big + 0.5, high=1e300),
        rule("far", "range", "n", low=math.inf),
        rule("decimal", "range", "d", low=0.3, high=0.3),
        rule("between", "range", "d", low=0.25, high=0.29),
        rule("huge", "range", "i", low=-(10**400)),
    )
    assert broken(performed(job_of(tmp_path, sql, expectations=expectations))) == {
        "tenth": 0,
        "below": 1,
        "above": 1,
        "near": 0,
        "far": 1,
        "decimal": 0,
        "between": 1,
        "huge": 0,
    }


def test_keys_of_different_numbers_are_not_the_same(tmp_path: Path) -> None:
    big = 2**53
    sql = f"""
    CREATE TEMP VIEW doubles AS SELECT * FROM VALUES (double({big})), (double(1.5)), (double(7)) AS t(k);
    CREATE TEMP VIEW longs AS SELECT * FROM VALUES ({big + 1}L), (7L) AS t(k);
    SELECT * FROM VALUES ({big + 1}L, double({big}), 1), (7L, double(7), 2), (2L, double('NaN'), 3) AS t(n, d, id)
    """
    expectations = (
        rule("long in doubles", "references", "n", to="doubles", to_columns=("k",), aside=True),
        rule("double in longs", "references", "d", to="longs", to_columns=("k",), aside=True),
    )
    outcome = succeeded(job_of(tmp_path, sql, expectations=expectations))
    assert broken(outcome) == {"long in doubles": 2, "double in longs": 2}
    assert [row["id"] for row in rows_of(dataset(outcome))] == [2]


def test_a_verdict_about_other_rows_than_were_written_is_none(tmp_path: Path) -> None:
    written = succeeded(job_of(tmp_path, "SELECT id FROM range(0, 4, 1, 2)"))
    parts = dataset(written).parts
    one = Written(
        name="",
        folder=Path(parts[0].path).parent,
        struct=StructType([StructField("id", LongType())]),
        parts=(*parts[:-1], replace(parts[-1], row_count=parts[-1].row_count + 1)),
    )
    for small in (rule("small", "range", "id", high=9), rule("once", "unique", "id")):
        with pytest.raises(ToolFailed) as caught:
            judge(shared_session(), {"": one}, {"": [small]}, lambda name: "a test")
        assert caught.value.failure.code == "OUTPUT_TORN"


# --- rules that cannot be held -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (rule("r", "not_null", "nope"), "nope"),
        (rule("r", "unique"), "names no columns"),
        (rule("r", "range", "id", low="soon"), "'soon', which is no bigint"),
        (rule("r", "sql", sql="id + 1"), "gives bigint"),
        (rule("r", "sql", sql="id >"), "PARSE_SYNTAX_ERROR"),
        (rule("r", "sql", sql="rand() < 0.5", aside=True), "another answer each time"),
        (rule("r", "references", "id", to="nowhere"), "nowhere"),
        (rule("r", "references", "id", to="t", to_columns=("a", "b")), "as many columns"),
        (rule("r", "not_null", "id", of="other"), "is about other"),
        (rule("r", "strange", "id"), "unknown kind strange"),
        (rule("r", "range", "word", low=0, high=10), "has the bound 0, and word is string"),
        (rule("r", "range", "id", low=True), "has the bound True, and id is bigint"),
        (rule("r", "range", "id", low=math.nan), "NaN"),
        (rule("r", "references", "word", to="t", to_columns=("a",)), "compares word, which is string, with a of t"),
        (rule("r", "sql", sql="sum(id) > 1"), "no condition about one row"),
        (rule("r", "sql", sql="row_number() OVER (ORDER BY id) = 1", aside=True), "no condition about one row"),
        (rule("r", "sql", sql="explode(array(id < 1, true))"), "no condition about one row"),
    ],
)
def test_a_wrong_rule_is_named_before_anything_is_computed(tmp_path: Path, wrong: Expectation, word: str) -> None:
    sql = "CREATE TEMP VIEW t AS SELECT 1 AS a; SELECT max(id) AS id, 'w' AS word FROM range(3)"
    conf = {"spark.sql.ansi.enabled": "false"}
    outcome = performed(job_of(tmp_path, sql, expectations=(wrong,), conf=conf))
    assert outcome.failure is not None
    assert outcome.failure.kind == "config"
    assert outcome.failure.message.startswith("expect, rule r: ")
    assert word in outcome.failure.message
    assert outcome.facts.jobs == ()
