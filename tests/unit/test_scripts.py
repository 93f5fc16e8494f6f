"""`script` in its shapes, and what a script reads."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from noetl.core.errors import PlaybookInvalid
from noetl.core.playbook.compile import compile_playbook
from noetl.core.playbook.compiled import CompiledPlaybook
from noetl.core.playbook.lenient import script_paths
from noetl.core.playbook.programs import NOTHING, complaint_about, needs_of_program, needs_of_script, program_of
from noetl.core.playbook.scripts import scripts_digest, version_digest
from tests.support.yaml import playbook

KINDS = frozenset({"python", "postgres", "noop", "container", "playbook"})


def compiled(tool: str) -> CompiledPlaybook:
    text = playbook(f"workflow:\n  - step: start\n    tool: {tool}\n")
    return compile_playbook(text, file="p.yaml", kinds=KINDS)


def fields(tool: str) -> dict[str, Any]:
    return {name: value.source for name, value in compiled(tool).steps["start"].tasks[0].fields.items()}


def refusal(tool: str) -> str:
    with pytest.raises(PlaybookInvalid) as caught:
        compiled(tool)
    return str(caught.value)


def codes(tool: str) -> list[str]:
    return [warning.code for warning in compiled(tool).warnings]


@pytest.mark.parametrize(
    ("written", "uri", "kind"),
    [
        ("clean.py", "clean.py", "file"),
        ("/opt/lib/clean.py", "/opt/lib/clean.py", "file"),
        ("https://host/clean.py", "https://host/clean.py", "http"),
        ("{uri: lib/clean.py}", "lib/clean.py", "file"),
        ("{uri: lib/clean.py, source: {type: file}}", "lib/clean.py", "file"),
        ("{uri: HTTP://host/x.py}", "HTTP://host/x.py", "http"),
        ("{uri: x, source: {type: http, endpoint: 'http://host/x.py'}}", "x", "http"),
        ("{source: {type: http, endpoint: 'http://host/x.py'}}", None, "http"),
        ("'{{ name }}.py'", "{{ name }}.py", "file"),
        ("gs://bucket/x.py", "gs://bucket/x.py", "gcs"),
    ],
)
def test_every_way_to_write_a_script_becomes_a_descriptor(written: str, uri: str | None, kind: str) -> None:
    script = fields(f"{{kind: python, script: {written}}}")["script"]
    assert (script["uri"], script["source"]["type"]) == (uri, kind)


def test_only_a_file_whose_path_is_written_out_belongs_to_the_playbook() -> None:
    found = compiled("{kind: python, script: lib/clean.py}")
    [use] = found.scripts
    assert (use.name, use.step, use.task, use.kind, use.line) == ("lib/clean.py", "start", "start_task", "python", 6)
    assert found.steps["start"].scripts == ("lib/clean.py",)
    for other in ("'{{ name }}.py'", "https://host/x.py", "s3://bucket/x.py", "{uri: x, source: {type: '{{ t }}'}}"):
        found = compiled(f"{{kind: python, script: {other}}}")
        assert found.scripts == ()
        assert found.steps["start"].scripts == (None,)


def test_an_inline_script_is_the_field_of_its_kind() -> None:
    assert fields("{kind: python, script: {source: {type: inline, code: 'result = 1'}}}") == {"code": "result = 1"}
    sql = fields("{kind: postgres, auth: pg, script: {uri: x, source: {type: inline, code: 'SELECT 1'}}}")
    assert sql == {"auth": "pg", "command": "SELECT 1"}


def test_a_script_wins_over_every_other_text_and_that_is_told() -> None:
    tool = "{kind: python, script: a.py, code: 'x = 1', code_b64: eA==}"
    assert set(fields(tool)) == {"script"}
    assert codes(tool) == ["script_wins", "script_wins"]
    assert set(fields("{kind: postgres, auth: pg, script: a.sql, query: 'SELECT 1'}")) == {"auth", "script"}
    assert codes("{kind: python, script: null, code: 'x = 1'}") == []


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("[a.py]", "script is the path of a file, or a mapping"),
        ("''", "script is the path of a file, or a mapping"),
        ("{uri: a.py, source: file}", "script is the path of a file, or a mapping"),
        ("{source: {type: file}}", "a script of type file needs uri as a text"),
        ("{uri: 5}", "a script of type file needs uri as a text"),
        ("{source: {type: http}}", "a script of type http needs uri, or source.endpoint, as a text"),
        ("{uri: x, source: {type: inline}}", "an inline script needs source.code"),
        ("{uri: x, source: {type: ftp}}", "must be one of file, http, inline, gcs, s3, not 'ftp'"),
    ],
)
def test_a_descriptor_that_says_nothing_is_refused(written: str, message: str) -> None:
    said = refusal(f"{{kind: python, script: {written}}}")
    assert message in said
    assert said.startswith("p.yaml:6:")
    assert "step 'start', task 'start_task'" in said


def test_slips_of_the_pen_and_missing_drivers_are_warnings() -> None:
    assert codes("{kind: python, script: {uri: a.py, sorce: {}}}") == ["unknown_key"]
    assert codes("{kind: python, script: {uri: 'gs://b/a.py'}}") == ["unsupported_script"]


def test_kinds_that_mean_something_else_keep_their_word() -> None:
    assert fields("{kind: container, script: [echo]}") == {"script": ["echo"]}
    assert compiled("{kind: container, script: x.sh}").scripts == ()


def test_the_scripts_of_a_workbook_entry_belong_to_the_playbook() -> None:
    text = playbook("""
    workbook:
      - name: clean
        tool: {kind: python, script: clean.py}
    workflow:
      - step: start
        tool: {kind: workbook, name: clean}
    """)
    [use] = compile_playbook(text, file="p.yaml", kinds=KINDS).scripts
    assert (use.name, use.step) == ("clean.py", "start")
    assert script_paths(text, file="p.yaml") == ("clean.py",)


def test_the_scripts_of_a_text_are_found_although_it_is_not_valid() -> None:
    text = playbook("""
    workflow:
      - {step: a, tool: {kind: nonsense, script: a.py}}
      - {step: a, tool: {kind: python, script: {uri: b.py}}}
      - {step: c, tool: {kind: python, script: "{{ c }}.py"}}
    """)
    assert script_paths(text, file="p.yaml") == ("a.py", "b.py")


# --- what they read --------------------------------------------------------------------------------------


def names(code: str | None) -> set[str] | None:
    needs = needs_of_program(code)
    return None if needs.everything else set(needs.names)


@pytest.mark.parametrize(
    ("code", "read"),
    [
        ("result = 1", set()),
        ("def main(a, *, b=1, **rest):\n    return a", {"a", "b"}),
        ("async def main(a, /, input_data, args): ...", {"a"}),
        ("def main(context): ...", None),
        ("print(context['x'])", None),
        ("def other(a): ...", set()),
        ("class X:\n    def main(self, a): ...", set()),
        ("def main({{ name }}): ...", None),
        (None, None),
    ],
)
def test_the_names_of_a_program_are_the_parameters_of_its_main(code: str | None, read: set[str] | None) -> None:
    assert names(code) == read


def test_the_names_of_a_sql_text_are_those_of_its_templates() -> None:
    needs = needs_of_script("postgres", "SELECT {{ ctx.a }} FROM {{ table }} -- {{ load.rows | length }}")
    assert (set(needs.names), needs.everything) == ({"a", "table", "load"}, False)
    assert needs_of_script("postgres", "SELECT '{{' || 1").names == frozenset()
    assert needs_of_script("python", "x = '{{ a }}'").names == frozenset()


def test_inline_code_with_a_main_asks_for_its_parameters() -> None:
    step = compiled("{kind: python, code: 'def main(a): return a'}").steps["start"]
    assert step.needs.names == {"a"}
    encoded = base64.b64encode(b"def main(b): return b").decode()
    assert compiled(f"{{kind: python, code: x, code_b64: {encoded}}}").steps["start"].needs.names == {"b"}
    assert compiled("{kind: python, code_b64: '{{ text }}'}").steps["start"].needs.everything


def test_code_b64_is_decoded_before_code() -> None:
    assert program_of({"code": "a", "code_b64": base64.b64encode(b"b").decode()}) == "b"
    assert program_of({"code": "a"}) == "a"
    assert program_of({}) == ""
    assert program_of({"code_b64": "?"}) is None


def test_what_cannot_run_is_complained_about() -> None:
    assert complaint_about("python", "def f(:\n") == "line 1: invalid syntax"
    assert complaint_about("python", "x = 1") is None
    assert complaint_about("postgres", "SELECT {{ a }}") is None
    assert "line 1" in str(complaint_about("postgres", "SELECT {{ a"))
    assert complaint_about("spark", "def f(:", "job.py") == "line 1: invalid syntax"
    assert complaint_about("spark", "SELECT {{ a }}", "job.sql") is None


def test_a_script_of_spark_is_a_program_unless_it_is_sql() -> None:
    assert needs_of_script("spark", "def main(spark, a): return context", "job.py") == NOTHING
    assert needs_of_script("spark", "SELECT {{ least }}", "folder/Job.SQL").names == {"least"}


def test_the_digest_of_a_version_is_that_of_its_text_unless_it_has_scripts() -> None:
    assert scripts_digest({}) == ""
    assert version_digest("abc", "") == "abc"
    one, other = scripts_digest({"a": "1", "b": "2"}), scripts_digest({"a": "2", "b": "1"})
    assert one == scripts_digest({"b": "2", "a": "1"})
    assert len({version_digest("abc", ""), version_digest("abc", one), version_digest("abc", other)}) == 3
