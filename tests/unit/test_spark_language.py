"""What a document may say in a task of kind `spark`, and what it is told about what it may not."""

from __future__ import annotations

import textwrap

import pytest

from noetl.core.errors import PlaybookInvalid, Problem
from noetl.core.expression import render_value
from noetl.core.playbook.compile import compile_playbook
from noetl.core.playbook.compiled import CompiledPlaybook, CompiledTask

KINDS = frozenset(("spark", "python", "noop"))
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: demo}\nworkload: {least: 3}\nworkflow:\n"


def document(fields: str, before: str = "") -> str:
    task = textwrap.indent(textwrap.dedent(fields).strip("\n"), "      ")
    step = f"  - step: join\n    tool:\n      kind: spark\n{task}\n"
    return HEAD + textwrap.indent(textwrap.dedent(before).strip("\n") + "\n" if before else "", "  ") + step


def compiled(fields: str, before: str = "") -> CompiledPlaybook:
    return compile_playbook(document(fields, before).replace("»", ""), file="demo.yaml", kinds=KINDS)


def task_of(fields: str) -> CompiledTask:
    return compiled(fields).steps["join"].tasks[0]


def refused(fields: str) -> list[Problem]:
    with pytest.raises(PlaybookInvalid) as caught:
        compiled(fields)
    return caught.value.problems


# --- what is read ----------------------------------------------------------------------------------------


def test_inputs_is_another_word_for_input() -> None:
    task = task_of("sql: select 1\ninputs: {a: 1, b: 2}\ninput: {b: 3, c: 4}")
    assert task.input.source == {"a": 1, "b": 2, "c": 4}
    assert set(task.fields) == {"sql"}


def test_the_names_that_inputs_read_are_those_of_the_step() -> None:
    found = compiled(
        "sql: select * from rows where n > {{ least }}\ninputs: {rows: '{{ load.rows }}'}",
        before="- step: load\n  tool: {kind: python, code: 'result = 1'}\n  next: join",
    )
    step = found.steps["join"]
    assert step.needs.names == {"load", "least"}
    assert found.warnings == ()


def test_a_name_that_nobody_has_is_told() -> None:
    found = compiled("sql: select 1\ninputs: {rows: '{{ laod.rows }}'}")
    assert [warning.code for warning in found.warnings] == ["unknown_name"]


def test_sql_is_a_template_and_code_is_not() -> None:
    sql = task_of("sql: select {{ 1 + 1 }}").fields["sql"]
    assert render_value(sql, {}) == "select 2"
    code = task_of("code: |\n  def main(spark):\n      return f'{{{1 + 1}}}' + '{% x %}'").fields["code"]
    assert render_value(code, {}) == "def main(spark):\n    return f'{{{1 + 1}}}' + '{% x %}'\n"


def test_code_that_looks_like_a_template_is_told() -> None:
    found = compiled("code: |\n  def main(spark):\n      return spark.sql('select {{ least }}')")
    assert [warning.code for warning in found.warnings] == ["code_not_rendered"]
    assert "give values in inputs" in found.warnings[0].message


def test_templates_may_stand_wherever_they_are_rendered() -> None:
    fields = """
    sql: "{{ workload.least }}"
    outputs: "{{ workload.least }}"
    partition_by: "{{ workload.least }}"
    files: "{{ workload.least }}"
    conf: {spark.sql.shuffle.partitions: "{{ workload.least }}"}
    expect:
      - "{{ workload.least }}"
      - not_null: "{{ workload.least }}"
      - row_count: {min: "{{ workload.least }}"}
      - range: {column: "{{ workload.least }}", min: "{{ workload.least }}"}
      - references: {column: a, to: "{{ workload.least }}"}
      - {unique: id, of: "{{ workload.least }}", on_break: "{{ workload.least }}"}
    """
    assert compiled(fields).warnings == ()


@pytest.mark.parametrize(
    "fields",
    [
        "sql: select 1",
        "sql: [create table t, select 1]",
        "code: 'def main(spark): return 1'",
        "script: jobs/clean.py",
        "script: {uri: jobs/clean.sql, source: {type: file}}\noutputs: {a: select 1}",
        "application: /opt/jobs/clean.py\narguments: [--day, 2026-01-01, 3]\noutputs: [clean]",
        "code: 'def main(spark): return {}'\noutputs: [daily, monthly]",
        "code: 'def main(spark): return {}'\noutputs: {daily: {partition_by: day, files: 4}, monthly: null}",
        "sql: select 1\noutputs: {daily: view_of_days, monthly: {query: select 1, partition_by: [year]}}",
        "sql: select 1\nconf: {spark.sql.shuffle.partitions: 8, spark.sql.adaptive.enabled: true}",
        "sql: select 1\nexpect: [{rule: range, column: value, max: 300, name: sane}]",
        "sql: select 1\nexpect: [{row_count: 5}, {sql: value > 0, on_break: quarantine}]",
        "sql: select 1\nexpect: [{references: {columns: [a, b], to: other, to_columns: [c, d]}}]",
        "sql: select 1\nauth: {db: pg_work}\ntimeout: 30\noutput: {store: {kind: auto}}",
    ],
)
def test_what_is_right_is_accepted_in_silence(fields: str) -> None:
    assert compiled(fields).warnings == ()


# --- what is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ("conf: {}", "spark_text", "needs one of sql, code, script, application"),
        ("sql: select 1\n»code: 'x = 1'", "spark_text", "sql and code are both given: use one"),
        ("sql: select 1\n»script: a.py", "spark_text", "both given"),
        ("»sql: []", "spark_text", "a text with statements"),
        ("»code: 5", "spark_text", "def main(spark"),
        ("»application: ''", "spark_text", "the path of a PySpark program"),
        ("sql: select 1\n»arguments: [a]", "spark_arguments", "for an application"),
        ("application: a.py\n»arguments: a", "spark_arguments", "a list of texts"),
        ("sql: select 1\n»inputs: [a]", "spark_inputs", "must be a mapping"),
        ("sql: select 1\n»inputs: {my-rows: 1}", "spark_inputs", "'my-rows' needs another name"),
        ("sql: select 1\n»inputs: {spark: 1}", "spark_inputs", "that is the session"),
        ("sql: select 1\n»inputs: {Rows: 1, rows: 2}", "spark_inputs", "'Rows' and 'rows' are one name"),
        ("sql: select 1\n»conf: [a]", "spark_conf", "a mapping of Spark's settings"),
        ("sql: select 1\nconf: {»shuffle.partitions: 8}", "spark_conf", "their names begin with spark."),
        ("sql: select 1\nconf: {»spark.a: [1]}", "spark_conf", "a text, a number or true or false"),
        ("sql: select 1\n»files: 0", "spark_files", "a whole number from 1 to"),
        ("sql: select 1\n»partition_by: {a: b}", "spark_partition_by", "the name of a column"),
        ("sql: select 1\n»outputs: 5", "spark_outputs", "a mapping from names"),
        ("sql: select 1\noutputs: {»a-b: select 1}", "spark_outputs", "'a-b' cannot be an output"),
        ("sql: select 1\noutputs: {»expect: select 1}", "spark_outputs", "none of expect, quarantine, status"),
        ("sql: select 1\noutputs: {a: {»partion_by: x}}", "spark_outputs", "unknown key 'partion_by'"),
        ("sql: select 1\noutputs: {a: {»files: x}}", "spark_outputs", "files must be a whole number"),
        ("code: x\noutputs: {»a: select 1}", "spark_outputs", "that is for sql"),
        ("sql: select 1\n»expect: {not_null: id}", "spark_expect", "a list of rules"),
        ("sql: select 1\nexpect: [»not_null]", "spark_expect", "rule 1: a rule is a mapping"),
        ("sql: select 1\nexpect: [{»notnull: id}]", "spark_expect", "(did you mean 'not_null'?)"),
        ("sql: select 1\nexpect: [{unique: a}, {»rule: uniqe, column: a}]", "spark_expect", "rule 2: unknown rule"),
        ("sql: select 1\nexpect: [»{not_null: a, unique: b}]", "spark_expect", "not_null and unique are in one rule"),
        ("sql: select 1\nexpect: [»{name: a}]", "spark_expect", "there is no rule in it"),
        ("sql: select 1\nexpect: [{»not_null: []}]", "spark_expect", "needs a column"),
        ("sql: select 1\nexpect: [{»range: value}]", "spark_expect", "range has parts"),
        ("sql: select 1\nexpect: [{»range: {column: a}}]", "spark_expect", "needs min or max"),
        ("sql: select 1\nexpect: [{»range: {column: a, mni: 1}}]", "spark_expect", "(did you mean 'min'?)"),
        ("sql: select 1\nexpect: [{»row_count: {min: many}}]", "spark_expect", "must be a whole number"),
        (
            "sql: select 1\nexpect: [{»references: {column: a, to: b}}]",
            "spark_expect",
            "the column that has the values",
        ),
        ("sql: select 1\nexpect: [{»references: {columns: [a, b], to: c.d}}]", "spark_expect", "names 2 columns and 1"),
        ("sql: select 1\nexpect: [{»sql: ''}]", "spark_expect", "needs a condition"),
        ("sql: select 1\nexpect: [{unique: a, »on_break: quarantin}]", "spark_expect", "(did you mean 'quarantine'?)"),
        ("sql: select 1\nexpect: [{row_count: 5, »on_break: quarantine}]", "spark_expect", "no rows break a row_count"),
        ("sql: select 1\nexpect: [{unique: a, »of: daily}]", "spark_expect", "the task names no outputs"),
        ("sql: x\noutputs: [daily, b]\nexpect: [{unique: a, »of: dayly}]", "spark_expect", "(did you mean 'daily'?)"),
        ("sql: select 1\nexpect: [{»rule: [not_null], column: a}]", "spark_expect", "unknown rule that is no text"),
        ("sql: select 1\nexpect: [{»row_count: '" + "1" * 5000 + "'}]", "spark_expect", "must be a whole number"),
        ("sql: select 1\nexpect: [{»row_count: {min: 10, max: 1}}]", "spark_expect", "a min above its max"),
        ("sql: select 1\nexpect: [{»range: {column: a, min: 0.5, max: 0}}]", "spark_expect", "a min above its max"),
        ("sql: select 1\n»files: '" + "1" * 5000 + "'", "spark_files", "must be a whole number"),
        ("sql: select 1\n»partition_by: [day, Day]", "spark_partition_by", "names the column 'Day' twice"),
        ("sql: x\noutputs: {a: {»partition_by: [b, b]}}", "spark_outputs", "names the column 'b' twice"),
        ("sql: select 1\n»inputs: {class: 1}", "spark_inputs", "it is a word of Python's"),
        ("sql: select 1\n»inputs: {a: {postgres: orders}}", "spark_inputs", "postgres must be a mapping"),
        ("sql: x\noutputs: [a, b]\nexpect: [»{unique: a}]", "spark_expect", "there are several outputs"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(fields: str, code: str, words: str) -> None:
    (problem,) = refused(fields)
    assert problem.code == code
    assert words in problem.message
    assert "step 'join', task 'join_task'" in problem.message
    if "»" in fields:
        before = document(fields).partition("»")[0]
        assert problem.line == before.count("\n") + 1
        column = len(before.rpartition("\n")[2]) + 1
        # The place of a value is that of its key, or of itself in a list.
        assert problem.column is not None
        assert problem.column >= column


@pytest.mark.parametrize(
    "fields",
    [
        "sql: \"select '{{ keychain.db.password }}'\"",
        "sql: [select 1, \"select '{{ token('api') }}'\"]",
        "sql: select 1\noutputs: {a: {query: \"select '{{ keychain.db.password }}'\"}}",
        "sql: select 1\nexpect: [{sql: \"x <> '{{ keychain.db.password }}'\"}]",
        "sql: select 1\nconf: {spark.hadoop.fs.s3a.secret.key: '{{ keychain.db.password }}'}",
        "application: a.py\narguments: [--password, '{{ keychain.db.password }}']",
    ],
)
def test_a_secret_may_not_be_in_a_text_that_spark_keeps(fields: str) -> None:
    entry = "keychain: [{name: db, kind: credential, credential: db}]\nworkflow:\n"
    text = document(fields).replace("workflow:\n", entry)
    with pytest.raises(PlaybookInvalid) as caught:
        compile_playbook(text, file="demo.yaml", kinds=KINDS)
    (problem,) = caught.value.problems
    assert problem.code == "spark_secret"
    assert "Name the credential in `auth`" in problem.message


def test_words_about_secrets_are_none() -> None:
    assert task_of("sql: select token, keychain from logins where token > 3").kind == "spark"


def test_every_wrong_rule_is_told_at_once() -> None:
    assert len(refused("sql: select 1\nexpect: [{a: 1}, {unique: id}, {range: 5}]")) == 2


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("sql: select 1\nquery: select 2", "'query' is ignored: write sql"),
        ("sql: select 1\npartition: day", "'partition' is ignored"),
        ("sql: select 1\nexpects: []", "(did you mean 'expect'?)"),
    ],
)
def test_a_key_that_nobody_reads_is_told(fields: str, words: str) -> None:
    (warning,) = compiled(fields).warnings
    assert warning.code == "unknown_key"
    assert words in warning.message
