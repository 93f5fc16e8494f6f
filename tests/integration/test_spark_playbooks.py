"""spark steps in playbooks: the real engine around real drivers.  One engine and one driver serve the whole file."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from noetl.core.dataset import MEDIA_DATASET
from noetl.core.execution.state import Status
from tests.support.engine import Told
from tests.support.language import CREDENTIAL_SECRET, Case, World, running_world

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: spark, path: spark}\n"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running_world(tmp_path_factory.mktemp("home")) as world:
        yield world


def case(name: str, body: str, **payload: object) -> Case:
    return Case(name, HEAD + textwrap.dedent(body), payload)


def ended(told: Told, step: str) -> Any:
    """The event with which a step ended."""
    kinds = ("command.completed", "command.failed")
    (event,) = [one for one in told.events if one.event_type in kinds and one.command_id == f"{step}#1"]
    return event


def job_of(told: Told, step: str) -> dict[str, Any]:
    (job,) = ended(told, step).meta["jobs"]
    return dict(job)


def job_folders(world: World) -> list[str]:
    return sorted(path.name for path in (world.home / "spark" / "jobs").iterdir())


# --- inputs and outputs ----------------------------------------------------------------------------------


def test_sql_joins_a_table_of_postgres_with_one_of_python(world: World) -> None:
    told = world.play(
        case(
            "join",
            """
            workload: {least: 2}
            workflow:
              - step: orders
                tool:
                  kind: postgres
                  auth: pg_work
                  query: |
                    select n as id, n % 3 as customer, (n * 1.5)::numeric(10, 2) as amount from generate_series(1, 9) n
                next: people
              - step: people
                tool:
                  kind: python
                  code: |
                    import pyarrow as pa
                    result = pa.table({"id": pa.array([0, 1, 2], pa.int32()), "name": ["Ada", "Grace", "Hedy"]})
                next: join
              - step: join
                tool:
                  kind: spark
                  inputs: {orders: "{{ orders }}", people: "{{ people }}"}
                  sql: |
                    create or replace temporary view totals as
                      select customer, sum(amount) as amount from orders group by customer;
                    select p.name, t.amount from totals t join people p on p.id = t.customer
                    where t.customer < {{ workload.least }} order by p.name
                  files: 1
                next: end
              - step: end
                tool:
                  kind: noop
                  result:
                    first: "{{ join.rows[0] }}"
                    count: "{{ join.row_count }}"
                    columns: "{{ join.columns }}"
                    names: "{{ join.rows | map(attribute='name') | list }}"
            """,
        )
    )
    assert told.state.status is Status.COMPLETED, told.state.failure
    assert told.result == {
        "first": {"name": "Ada", "amount": 27.0},
        "count": 2,
        "columns": ["name", "amount"],
        "names": ["Ada", "Grace"],
    }
    job = job_of(told, "join")
    assert job["rows_written"] == 2
    assert job["outputs"] == [{"name": "rows", "rows": 2, "files": 1, "sha256": job["outputs"][0]["sha256"]}]
    (intent,) = told.of_type("job.intended")
    assert intent.command_id == "join#1"
    assert job_folders(world) == []


def test_a_dataset_is_read_by_every_tool_and_by_templates(world: World) -> None:
    told = world.play(
        case(
            "readers",
            """
            workflow:
              - step: make
                tool:
                  kind: spark
                  sql: select id, id % 2 as half, cast(id as decimal(10, 2)) as price from range(5000)
                  partition_by: half
                  files: 1
                next: [again]
              - step: again
                tool:
                  kind: spark
                  inputs: {made: "{{ make.rows }}", least: 10}
                  code: |
                    def main(spark, made, least):
                        return made.where(made.id < least).orderBy("id").coalesce(1)
                next: [arrow]
              - step: arrow
                tool:
                  kind: python
                  tables: arrow
                  input: {made: "{{ make.rows }}", few: "{{ again.rows }}"}
                  code: |
                    result = {"rows": made.num_rows, "type": str(made.schema.field("price").type),
                              "few": few.column("id").to_pylist(), "names": made.column_names}
                next: [duck]
              - step: duck
                tool:
                  kind: duckdb
                  database: ":memory:"
                  input: {made: "{{ make }}"}
                  query: select count(*) as n, sum(half) as halves, max(price) as price from made
                next: [end]
              - step: end
                tool:
                  kind: noop
                  result:
                    arrow: "{{ arrow }}"
                    duck: "{{ duck.rows[0] }}"
                    third: "{{ again.rows[3] }}"
                    external: "{{ make._ref is defined }}"
            """,
        )
    )
    assert told.state.status is Status.COMPLETED, told.state.failure
    assert told.result == {
        "arrow": {
            **{"rows": 5000, "type": "decimal128(10, 2)", "few": list(range(10))},
            "names": ["id", "half", "price"],
        },
        "duck": {"n": 5000, "halves": 2500, "price": 4999.0},
        "third": {"id": 3, "half": 1, "price": 3.0},
        "external": True,
    }


def test_code_gives_named_outputs_and_values(world: World) -> None:
    told = world.play(
        case(
            "named",
            """
            workflow:
              - step: make
                tool:
                  kind: spark
                  inputs: {rows: [{a: 1, b: x}, {a: 2, b: null}], plain: {k: [1, 2]}, text: north}
                  code: |
                    def main(spark, rows, plain, text):
                        print("there are", rows.count())
                        braces = f"{{{text}}}"
                        return {"twice": rows.union(rows), "facts": {"plain": plain, "braces": braces}}
                  outputs: {twice: {files: 1}, facts: null}
                next: [end]
              - step: end
                tool:
                  kind: noop
                  result:
                    twice: "{{ make.twice.row_count }}"
                    facts: "{{ make.facts }}"
                    b: "{{ make.twice.rows[1].b }}"
            """,
        )
    )
    assert told.state.status is Status.COMPLETED, told.state.failure
    assert told.result == {"twice": 4, "facts": {"plain": {"k": [1, 2]}, "braces": "{north}"}, "b": None}


def test_a_small_result_is_a_value(world: World) -> None:
    body = """
    workflow:
      - step: make
        tool: {kind: spark, code: "def main(spark): return spark.range(5).count()"}
    """
    assert world.completed(case("value", body)) == 5


def test_an_input_may_be_a_locator_a_path_or_a_table(world: World, tmp_path: Path) -> None:
    (tmp_path / "days.csv").write_text("day,n\n2026-01-01,3\n2026-01-02,4\n")
    told = world.play(
        case(
            "places",
            """
            workload: {csv: ""}
            workflow:
              - step: make
                tool: {kind: spark, sql: select id from range(7), files: 1, output: {inline_max_bytes: 0}}
                next: [rows]
              - step: rows
                tool:
                  kind: duckdb
                  database: ":memory:"
                  query: select range as n from range(4)
                  output: {inline_max_bytes: 0}
                next: [use]
              - step: use
                tool:
                  kind: spark
                  inputs:
                    dataset: "{{ make._ref.uri }}"
                    rows: "{{ rows._ref.uri }}"
                    days: "{{ workload.csv }}"
                    given: {path: "{{ workload.csv }}", format: csv, options: {header: true, inferSchema: true}}
                  sql: |
                    select (select count(*) from dataset) as dataset, (select sum(n) from rows) as sum,
                           (select sum(n) from days) as days, (select max(day) from given) as day
                  files: 1
                next: [end]
              - step: end
                tool: {kind: noop, result: "{{ use.rows[0] }}"}
            """,
            csv=str(tmp_path / "days.csv"),
        )
    )
    assert told.state.status is Status.COMPLETED, told.state.failure
    assert told.result == {"dataset": 7, "sum": 6, "days": 7, "day": "2026-01-02"}


def test_the_lineage_of_a_result_has_the_inputs_of_its_job(world: World) -> None:
    told = world.play(
        case(
            "lineage",
            """
            workflow:
              - step: one
                tool: {kind: spark, sql: select 1 as a, files: 1}
                next: [two]
              - step: two
                tool: {kind: python, code: "result = [{'a': 1}, {'a': 2}]"}
                next: [three]
              - step: three
                tool:
                  kind: spark
                  inputs: {one: "{{ one.rows }}", two: "{{ two }}"}
                  sql: select count(*) as n from one join two using (a)
                  files: 1
            """,
        )
    )
    assert told.state.status is Status.COMPLETED, told.state.failure
    inputs = ended(told, "three").meta["inputs"]
    read = [one["ref_id"] for one in inputs if "ref_id" in one]
    assert sorted(read) == sorted(ended(told, step).event_id for step in ("one", "two"))
    (made,) = job_of(told, "one")["outputs"]
    assert {"sha256": made["sha256"]} in inputs


def test_sources_have_the_credentials_of_the_task(world: World) -> None:
    world.sql("create table spark_orders as select n as id, n % 2 as half from generate_series(1, 10) n")
    world.sql("create table spark_halves (half int primary key, count bigint)")
    told = world.play(
        case(
            "sources",
            """
            workload: {api: null}
            workflow:
              - step: load
                tool:
                  kind: spark
                  auth: {db: pg_work, token: s10_token}
                  inputs:
                    orders: {postgres: {table: spark_orders}}
                    items:
                      http: {url: "{{ workload.api }}/api/v1/assessments", data_path: data, headers: {X-Mine: mine}}
                      auth: token
                  code: |
                    def main(spark, orders, items):
                        counts = orders.groupBy("half").count()
                        halves = counts.write.format("noetl_postgres").mode("append")
                        halves.options(auth="db", table="spark_halves").save()
                        return {"orders": orders.count(), "items": items.count()}
            """,
        )
    )
    assert told.state.status is Status.COMPLETED, told.state.failure
    assert told.result == {"orders": 10, "items": 10}
    assert world.sql("select half, count from spark_halves order by 1") == [
        {"half": 0, "count": 5},
        {"half": 1, "count": 5},
    ]
    assert ended(told, "load").meta["credentials"] == ["pg_work", "s10_token"]
    assert CREDENTIAL_SECRET not in str(told.events)


# --- programs elsewhere ----------------------------------------------------------------------------------


def test_a_script_is_a_program_or_sql(world: World) -> None:
    scripts = world.home / "scripts"
    scripts.mkdir(exist_ok=True)
    (scripts / "count.py").write_text(
        "def main(spark, rows):\n    return {'n': rows.count(), 'braces': '{{ least }}'}\n"
    )
    (scripts / "few.sql").write_text("select * from rows where n > {{ workload.least }} order by n -- {{ 'a' }}\n")
    told = world.play(
        case(
            "scripts",
            """
            workload: {least: 1}
            workflow:
              - step: count
                tool: {kind: spark, script: count.py, inputs: {rows: [{n: 1}, {n: 2}, {n: 3}]}}
                next: [few]
              - step: few
                tool: {kind: spark, script: few.sql, inputs: {rows: [{n: 1}, {n: 2}, {n: 3}]}, files: 1}
                next: [end]
              - step: end
                tool: {kind: noop, result: {count: "{{ count }}", few: "{{ few.rows }}"}}
            """,
        )
    )
    assert told.state.status is Status.COMPLETED, told.state.failure
    assert told.result == {"count": {"n": 3, "braces": "{{ least }}"}, "few": [{"n": 2}, {"n": 3}]}


@pytest.mark.long
def test_an_application_reads_and_writes_folders(world: World, tmp_path: Path) -> None:
    (tmp_path / "clean.py").write_text(
        textwrap.dedent(
            """
            import os, sys
            from pyspark.sql import SparkSession

            spark = SparkSession.builder.getOrCreate()
            rows = spark.read.parquet(os.environ["NOETL_INPUT_ROWS"])
            rows.where(rows.n > int(sys.argv[1])).coalesce(1).write.parquet(os.environ["NOETL_OUTPUT_KEPT"])
            """
        )
    )
    told = world.play(
        case(
            "application",
            """
            workload: {program: ""}
            workflow:
              - step: clean
                tool:
                  kind: spark
                  application: "{{ workload.program }}"
                  arguments: [1]
                  inputs: {rows: [{n: 1}, {n: 2}, {n: 3}]}
                  outputs: [kept]
                  expect: [{row_count: 2, of: kept}]
                next: [end]
              - step: end
                tool: {kind: noop, result: "{{ clean.kept.rows }}"}
            """,
            program=str(tmp_path / "clean.py"),
        )
    )
    assert told.state.status is Status.COMPLETED, told.state.failure
    assert told.result == [{"n": 2}, {"n": 3}]


# --- expectations ----------------------------------------------------------------------------------------


def test_a_broken_expectation_fails_the_step_and_publishes_nothing_but_verdicts(world: World) -> None:
    told = world.play(
        case(
            "broken",
            """
            workflow:
              - step: make
                tool:
                  kind: spark
                  sql: select id, if(id = 3, null, id) as value from range(5)
                  expect:
                    - not_null: value
                    - {unique: id, name: one each}
                    - row_count: {min: 1}
                next:
                  arcs: [{step: look, when: "{{ output.status == 'error' }}"}]
              - step: look
                tool:
                  kind: noop
                  result: {code: "{{ make.error.code }}", rows: "{{ make.rows is defined }}"}
            """,
        )
    )
    assert told.state.status is Status.COMPLETED, told.state.failure
    event = ended(told, "make")
    assert event.event_type == "command.failed"
    assert [(one["name"], one["met"], one["broken"]) for one in job_of(told, "make")["expect"]] == [
        ("not_null(value)", False, 1),
        ("one each", True, 0),
        ("row_count", True, 0),
    ]
    assert "outputs" not in job_of(told, "make")
    assert told.result["rows"] is False
    assert MEDIA_DATASET not in str(event.result)
    assert job_folders(world) == []


def test_rows_that_break_a_rule_may_go_to_quarantine(world: World) -> None:
    told = world.play(
        case(
            "quarantine",
            """
            workflow:
              - step: make
                tool:
                  kind: spark
                  sql: select id, cast(id * 10 as int) as value from range(10)
                  files: 1
                  expect:
                    - {range: {column: value, max: 50}, on_break: quarantine}
                    - {sql: "id >= 0"}
                next: [end]
              - step: end
                tool:
                  kind: noop
                  result:
                    good: "{{ make.row_count }}"
                    broken: "{{ make.quarantine.rows | map(attribute='id') | sort }}"
                    count: "{{ make.quarantine.row_count }}"
                    met: "{{ make.expect | map(attribute='met') | list }}"
            """,
        )
    )
    assert told.state.status is Status.COMPLETED, told.state.failure
    assert told.result == {"good": 6, "broken": [6, 7, 8, 9], "count": 4, "met": [False, True]}


# --- what goes wrong -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "fields", "kind", "words"),
    [
        ("missing", "sql: select * from nowhere", "config", "nowhere"),
        ("raises", "code: 'def main(spark): raise ValueError(\"no\")'", "python", "no"),
        ("empty", "sql: '{{ nothing }}'", "config", "there is nothing to run"),
        ("inside", "sql: select 1\ninputs: {all: {a: '{{ make.rows }}'}}", "config", "has tables inside"),
        ("relative", "sql: select 1\ninputs: {a: b/c.csv}", "config", "relative path"),
        ("rendered", "sql: select 1\nfiles: '{{ 0 }}'", "config", "files must be a whole number"),
        ("foreign", "sql: select 1\ninputs: {a: 'noetl://tenant/x'}", "missing_reference", "no payload of this tenant"),
    ],
)
def test_a_field_that_cannot_be_followed_fails_the_step(
    world: World, name: str, fields: str, kind: str, words: str
) -> None:
    body = (
        "workflow:\n"
        "  - {step: make, tool: {kind: spark, sql: select 1 as a, files: 1}, next: [use]}\n"
        "  - step: use\n    tool:\n      kind: spark\n" + textwrap.indent(fields, "      ")
    )
    failure = world.failed(Case(name, HEAD + body))
    assert failure["step"] == "use"
    assert failure["error"]["kind"] == kind
    assert words in failure["error"]["message"]


def test_a_step_is_tried_again_by_its_policy(world: World, tmp_path: Path) -> None:
    told = world.play(
        case(
            "again",
            """
            workload: {mark: ""}
            workflow:
              - step: make
                tool:
                  kind: spark
                  inputs: {mark: {value: "{{ workload.mark }}"}}
                  code: |
                    from pathlib import Path

                    def main(spark, mark):
                        if not Path(mark).exists():
                            Path(mark).touch()
                            raise RuntimeError("not yet")
                        return spark.range(3)
                  spec:
                    policy:
                      rules:
                        - {when: "{{ output.error.kind == 'python' }}", then: {do: retry, attempts: 3, delay: 0}}
            """,
            mark=str(tmp_path / "mark"),
        )
    )
    assert told.state.status is Status.COMPLETED, told.state.failure
    assert told.result["row_count"] == 3
    groups = [event.meta["job_group"] for event in told.of_type("job.intended")]
    assert len(set(groups)) == 2


def test_a_time_limit_cancels_the_job(world: World) -> None:
    body = """
    workflow:
      - step: make
        tool:
          kind: spark
          timeout: 3
          code: |
            from pyspark.sql import functions as F

            def main(spark):
                slow = F.udf(lambda n: __import__("time").sleep(60) or n, "long")
                return spark.range(4, numPartitions=4).select(slow("id").alias("id"))
    """
    failure = world.failed(case("slow", body))
    assert failure["error"]["kind"] == "timeout"
    assert failure["error"]["code"] == "SPARK_TIMEOUT"
    assert "the job was cancelled" in failure["error"]["message"]
    assert job_folders(world) == []


def test_a_cancelled_execution_ends_when_spark_has_confirmed_the_end_of_its_job(world: World) -> None:
    body = """
    workflow:
      - step: make
        tool:
          kind: spark
          code: |
            from pyspark.sql import functions as F

            def main(spark):
                slow = F.udf(lambda n: __import__("time").sleep(60) or n, "long")
                return spark.range(4, numPartitions=4).select(slow("id").alias("id"))
    """
    execution_id = world.start(case("cancelled", body))
    held = world.wait(world.engine.until(execution_id, lambda state: state.commands["make#1"].job is not None))
    job = held.commands["make#1"].job
    assert job is not None
    assert (job.number, job.where["task"]) == (1, "make_task")
    world.wait(world.engine.cancel(execution_id))
    told = world.finish(execution_id)
    assert told.state.status is Status.CANCELLED
    assert "unconfirmed" not in told.events[-1].meta
    assert [event.meta["attempt"] for event in told.of_type("command.failed")] == [1]
    assert job_folders(world) == []
    # The driver goes on with the next job.
    assert world.completed(case("after", "workflow:\n  - step: s\n    tool: {kind: spark, sql: SELECT 1 AS n}\n"))
