"""Results through the real engine: what templates see of them, where they are, and that size changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from noetl.core import kinds
from noetl.core.execution.evolve import fold_all
from noetl.core.execution.state import Status
from tests.support.aio import asynchronous
from tests.support.databases import fresh_database
from tests.support.engine import Told, running_engine
from tests.support.thresholds import USUAL, ZERO, thresholds
from tests.support.web import web_server


@pytest.fixture(scope="module")
def address() -> str:
    return fresh_database()


def asked(told: Told) -> list[object]:
    """The expressions for which a worker was asked."""
    return [
        event.meta["expression"] for event in told.of_type(kinds.COMMAND_ISSUED) if event.meta["kind"] == "evaluate"
    ]


def completed(told: Told, step: str) -> Any:
    """What the event about a step's result says."""
    (event,) = [event for event in told.of_type(kinds.COMMAND_COMPLETED) if event.command_id == f"{step}#1"]
    return event.result


# --- views -----------------------------------------------------------------------------------------------


@asynchronous
async def test_a_list_pipeline_has_labels_merged_keys_and_a_last_result(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run("""
        workflow:
          - step: s
            tool:
              - {name: pull, kind: python, code: 'result = {"status_code": 200, "n": 1, "fold": "hidden"}'}
              - {name: fold, kind: python, code: 'result = {"more": False, "n": 2}'}
            set:
              a: "{{ s.more }}{{ s.fold.more }}{{ s.results.fold.more }}"
              b: "{{ [s.pull.status_code, s.n, s.pull.n, s._prev.n, s.fold.n, s.status] }}"
              c: "{{ output.fold.more }}{{ output.data.n }}{{ output.results.pull.n }}"
              d: "{{ s.pull.status }}{{ s.results.fold.data.more }}"
            next: [{step: end}]
          - step: end
            tool: {kind: noop, result: {whole: "{{ s }}", ctx: "{{ ctx }}", label: "{{ s.fold.status }}"}}
        """)
    assert told.state.status is Status.COMPLETED
    pull, fold = {"status_code": 200, "n": 1, "fold": "hidden"}, {"more": False, "n": 2}
    assert told.result["ctx"] == {
        "a": "FalseFalseFalse",
        "b": [200, 2, 1, 2, 2, "ok"],
        "c": "False21",
        "d": "okFalse",
    }
    assert told.result["label"] == "ok"
    assert told.result["whole"] == {
        "status_code": 200,
        "n": 2,
        "more": False,
        "pull": pull,
        "fold": fold,
        "results": {"pull": pull, "fold": fold},
        "_prev": fold,
    }
    assert asked(told) == []


@asynchronous
async def test_a_last_task_that_gives_no_mapping_is_data(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run("""
        workflow:
          - step: one
            tool: [{name: only, kind: python, code: "result = [1, 2, 3]"}]
            set: {a: "{{ one.data }}", b: "{{ one.only.data[0] }}", c: "{{ one.status }}", d: "{{ one._prev }}"}
            next: [{step: two}]
          - step: two
            tool:
              - {name: first, kind: python, code: 'result = {"data": "of the first", "status": "error"}'}
              - {name: last, kind: python, code: "result = 7"}
            set: {e: "{{ two.data }}", f: "{{ two.status }}", g: "{{ two.last + 1 }}", h: "{{ output.status }}"}
            next: [{step: end}]
          - step: end
            tool: {kind: noop, result: {ctx: "{{ ctx }}", one: "{{ one }}", two: "{{ two.first.data }}"}}
        """)
    # A user's value is never a failure.
    assert told.state.status is Status.COMPLETED
    assert told.result == {
        "ctx": {"a": [1, 2, 3], "b": 1, "c": "ok", "d": [1, 2, 3], "e": 7, "f": "error", "g": 8, "h": "ok"},
        "one": {"only": [1, 2, 3], "results": {"only": [1, 2, 3]}, "_prev": [1, 2, 3], "data": [1, 2, 3]},
        "two": "of the first",
    }


@asynchronous
async def test_a_failed_step_shows_its_error_and_what_was_done_before(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run("""
        workflow:
          - step: s
            tool:
              - {name: good, kind: python, code: 'result = {"n": 5}'}
              - {name: bad, kind: python, code: 'raise ValueError("boom")'}
            next:
              - step: end
                when: "{{ s.status == 'error' and s.error.exception_type == 'ValueError' and s.good.n == 5 }}"
                set:
                  a: "{{ s.n }}"
                  b: "{{ output.error.kind }}"
                  c: "{{ output.py.message }}"
                  d: "{{ output.data.good }}"
          - step: end
            tool:
              kind: noop
              result:
                ctx: "{{ ctx }}"
                error: "{{ s.error.message }}"
                status: "{{ s.status }}"
                good: "{{ s.good.data.n }}"
                code: "{{ s.error.code }}"
                http: "{{ s.error.http_status }}"
                bad: "{{ s.bad.status }}"
        """)
    assert told.state.status is Status.COMPLETED
    result = told.result
    assert result.pop("ctx") == {"a": 5, "b": "python", "c": "boom", "d": {"n": 5}}
    assert result == {
        "error": "boom",
        "status": "error",
        "good": 5,
        "code": "PY_ValueError",
        "http": None,
        "bad": "error",
    }


async def pages(request: web.BaseRequest) -> web.StreamResponse:
    if "nothing" in request.path:
        return web.json_response({"detail": {"why": "no such page"}}, status=404)
    return web.json_response({"paging": {"page": int(request.query["page"])}, "items": [1, 2]})


@asynchronous
async def test_an_http_body_is_found_from_every_side(address: str, tmp_path: Path) -> None:
    async with web_server(pages) as port, running_engine(address, tmp_path) as engine:
        told = await engine.run(
            """
            workflow:
              - step: s
                tool:
                  - {name: pull, kind: http, url: "{{ url }}/pages", params: {page: 1}}
                  - {name: last, kind: noop}
                set:
                  a: "{{ s.pull.paging.page }}"
                  b: "{{ s.results.pull.paging.page }}"
                  c: "{{ output.pull.paging.page }}"
                next: [{step: each}]
              - step: each
                loop: {in: [1, 2], iterator: page}
                tool: {kind: http, url: "{{ url }}/pages", params: {page: "{{ page }}"}}
                set: {d: "{{ each.results[1].paging.page }}", e: "{{ each.data[0].data.paging.page }}"}
                next: [{step: bad}]
              - step: bad
                tool: {kind: http, url: "{{ url }}/nothing"}
                next:
                  - step: worse
                    when: "{{ output.error.status == 404 and output.http.status == 404 and bad.detail.why }}"
              - step: worse
                tool: [{name: get, kind: http, url: "{{ url }}/nothing"}]
                next: [{step: end, when: "{{ worse.get.detail.why == output.data.get.detail.why and error }}"}]
              - step: end
                tool:
                  kind: noop
                  result:
                    ctx: "{{ ctx }}"
                    late: "{{ s.pull.paging.page + each.results[1].paging.page }}"
                    bad: ["{{ bad.status_code }}", "{{ bad.status }}", "{{ bad.detail.why }}"]
                    worse: "{{ worse.get.detail.why }}"
                    whole: "{{ bad }}"
            """,
            {"url": f"http://127.0.0.1:{port}"},
        )
    assert told.state.status is Status.COMPLETED, told.state.failure
    assert told.result["ctx"] == {"a": 1, "b": 1, "c": 1, "d": 2, "e": 1}
    assert told.result["late"] == 3
    assert (told.result["bad"], told.result["worse"]) == ([404, "error", "no such page"], "no such page")
    six = {"status_code", "headers", "url", "elapsed", "data", "body"}
    assert set(told.result["whole"]) == {*six, "status", "error"}
    assert asked(told) == []


# --- storage hints ---------------------------------------------------------------------------------------

SIZES = """
workflow:
  - step: make
    tool: {{kind: python, input: {{n: "{{{{ n }}}}"}}, code: 'result = {{"text": "x" * n, "n": n}}'}}
    {hints}
    set: {{seen: "{{{{ [make._ref is defined, make._store, make._size_bytes, output.ref is none] }}}}"}}
    next: [{{step: end, when: "{{{{ make._ref is defined }}}}"}}, {{step: end}}]
  - step: end
    tool:
      kind: noop
      result:
        - "{{{{ ctx.seen }}}}"
        - "{{{{ make._ref is defined }}}}"
        - "{{{{ make._preview }}}}"
        - "{{{{ make.n }}}}"
        - "{{{{ make }}}}"
"""


@pytest.mark.parametrize(
    ("hints", "n", "stored"),
    [
        ("", 60_000, None),
        ("", 65_536, "kv"),
        ("", 1_100_000, "disk"),
        ("output: {inline_max_bytes: 0}", 10, "kv"),
        ("output: {inline_max_bytes: 100}", 60, None),
        ("output: {inline_max_bytes: 100}", 90, "kv"),
        ("output: {inline_max_bytes: 2000000}", 1_100_000, None),
        ("output: {inline_max_bytes: 0, store: {kind: object}}", 10, "disk"),
        ("output: {inline_max_bytes: 0, store: {kind: s3, bucket: b}}", 10, "kv"),
    ],
)
@asynchronous
async def test_a_result_is_external_by_its_size_and_the_hint(
    address: str, tmp_path: Path, hints: str, n: int, stored: str | None
) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(SIZES.format(hints=hints), {"n": n})
    size = len('{"text":"","n":}') + n + len(str(n))
    assert told.state.status is Status.COMPLETED, told.state.failure
    seen, is_defined, preview, number, whole = told.result
    value = {"text": "x" * n, "n": n}
    assert (number, whole) == (n, value)
    if stored is None:
        assert (seen, is_defined, preview) == ([False, None, None, True], False, None)
        assert "stored" not in completed(told, "make")["context"]
    else:
        assert (seen, is_defined) == ([True, stored, size, False], True)
        assert preview == ('{"text":"' + "x" * n + f'","n":{n}}}')[:1024]
        assert told.of_type(kinds.STEP_DECIDED)[0].meta["arcs"] == [0]
    assert fold_all(told.events) == told.state


@asynchronous
async def test_the_size_of_a_pipeline_counts_each_result_once(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run("""
        workflow:
          - step: s
            output: {inline_max_bytes: 0, preview_max_bytes: 20}
            tool:
              - {name: a, kind: python, code: 'result = {"x": 1, "y": "zz"}'}
              - {name: b, kind: python, code: 'result = [1, 2]'}
            next: [{step: end}]
          - step: end
            tool: {kind: noop, result: ["{{ s._size_bytes }}", "{{ s._preview }}", "{{ s._ref.media_type }}"]}
        """)
    assert told.result == [
        len('{"x":1,"y":"zz"}') + len("[1,2]"),
        '{"a":{"x":1,"y":"zz"},"b":[1,2]}'[:20],
        "application/vnd.noetl.pipeline+json",
    ]


@asynchronous
async def test_selected_fields_travel_with_the_event_and_change_nothing_else(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run("""
        workflow:
          - step: s
            tool:
              kind: python
              code: 'result = {"a": {"b": 5, "rows": [1, {"deep": "x"}]}, "n": 7, "big": "y" * 5000, "own": 1}'
              output_select: [n, a.rows, nothing.there]
              output: {select: [{path: "$.a.b", as: c}, {path: "$.big", as: large}, {path: $.a.b, as: own}]}
            set: {r: "{{ [s.c, s.n, s.own, s.a.b, s.large | length] }}", when: "{{ s.missing is defined }}"}
            next: [{step: end, when: "{{ s.c == 5 }}"}]
          - step: end
            tool:
              kind: noop
              result: ["{{ ctx.r }}", "{{ s.c }}", "{{ s.a.rows[1].deep }}", "{{ s.large | length }}", "{{ s.own }}",
                       "{{ s | length }}", "{{ s.a }}", "{{ s.nothing is defined }}"]
        """)
    assert told.state.status is Status.COMPLETED, told.state.failure
    rows = [1, {"deep": "x"}]
    assert told.result == [[5, 7, 1, 5, 5000], 5, "x", 5000, 1, 4, {"b": 5, "rows": rows}, False]
    assert completed(told, "s")["context"]["selected"] == [
        ["c", ["a", "b"], {"v": 5}],
        ["large", ["big"], {"a": ["big"]}],
        [None, ["n"], {"v": 7}],
        [None, ["a", "rows"], {"v": rows}],
    ]


@asynchronous
async def test_results_of_tasks_have_references_of_their_own_when_somebody_asks(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run("""
        workflow:
          - step: s
            tool:
              - {name: a, kind: python, code: 'result = {"x": 1}', output: {inline_max_bytes: 0}}
              - name: b
                kind: python
                input: {ref: "{{ a._ref }}", out: "{{ output.ref.sha256 }}", size: "{{ a._size_bytes }}"}
                code: 'result = [ref["sha256"] == out, size]'
            next: [{step: end}]
          - step: end
            tool:
              kind: noop
              result: ["{{ s.b }}", "{{ s.a._store }}", "{{ s.a._preview }}", "{{ s.b._ref is defined }}"]
        """)
    assert told.result == [[True, 7], "kv", '{"x":1}', False]


# --- large values everywhere -----------------------------------------------------------------------------

ROWS = """
  - step: big
    tool:
      kind: python
      code: 'result = {"rows": [[i, {"x": i * 2, "text": "t" * 40}] for i in range(3000)], "row_count": 3000}'
"""


@asynchronous
async def test_a_large_value_may_stand_anywhere_in_the_context(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(
            "workflow:"
            + ROWS
            + """
    set:
      a: {rows: "{{ big.rows }}", n: 1, list: ["{{ big.rows[1] }}", 2]}
      whole: "{{ big }}"
      part.one: "{{ big.rows }}"
    next: [{step: then, set: {a.more: "{{ whole.rows[2][0] }}", part.two: {deep: "{{ big.rows }}"}}}]
  - step: then
    tool:
      - name: t
        kind: noop
        result: "{{ a.rows | length }}"
        set: {ctx.a.late: "{{ a.rows[7][0] }}", ctx.part.three: "{{ part.one }}"}
        spec: {policy: {rules: [{else: {then: {do: continue, set: {ctx.a.n: 2}}}}]}}
    set: {a.step: "{{ a.n + 1 }}"}
    next:
      - step: each
        when: "{{ a.rows[2999][0] == 2999 and ctx.part.two.deep[1][0] == 1 and whole.row_count == 3000 }}"
  - step: each
    loop: {in: "{{ ctx.part.three[:3] }}", iterator: row}
    tool: {kind: noop, result: "{{ row[1].x }}"}
    next: [{step: end}]
  - step: end
    tool:
      kind: python
      input:
        a: "{{ a }}"
        part: "{{ part }}"
        whole: "{{ big }}"
        each: "{{ each.results }}"
      code: |
        rows = whole["rows"]
        result = {
            "a": {key: value for key, value in a.items() if key not in ("rows", "list")},
            "same": a["rows"] == rows and a["list"] == [rows[1], 2] and part["one"] == rows,
            "parts": sorted(part), "deep": part["two"]["deep"] == rows, "each": each,
        }
        """
        )
    assert told.state.status is Status.COMPLETED, told.state.failure
    assert told.result == {
        "a": {"n": 2, "more": 2, "late": 7, "step": 3},
        "same": True,
        "parts": ["one", "three", "two"],
        "deep": True,
        "each": [0, 2, 4],
    }
    warnings = [event.meta.get("warnings") for event in told.events]
    assert [one for one in warnings if one] == []
    assert fold_all(told.events) == told.state
    assert max(len(str(event)) for event in told.events) < 16_000


@pytest.mark.parametrize("limits", [ZERO, USUAL], ids=["zero", "usual"])
@asynchronous
async def test_an_outcome_is_the_same_wherever_it_is_looked_at(
    address: str, tmp_path: Path, limits: Mapping[str, int]
) -> None:
    """By the worker that ran the step, by one that is asked, and by a child process of either."""
    async with web_server(pages) as port, running_engine(address, tmp_path) as engine:
        with thresholds(limits):
            told = await engine.run(
                """
                workflow:
                  - step: bad
                    tool: {kind: python, code: 'raise KeyError("gone")'}
                    next:
                      - step: get
                        when: "{{ 'KeyError' in output.py.traceback and output.error.code == 'PY_KeyError' }}"
                        set:
                          a: >-
                            {% for x in [1] %}{{ error.exception_type }}{{ 'gone' in output.py.traceback }}{% endfor %}
                          b: "{{ [output.http is none, output.pg is none, output.ref is none, output.meta.attempt] }}"
                  - step: get
                    tool: {kind: http, url: "{{ url }}/pages", params: {page: 3}}
                    set:
                      c: "{{ [output.http.status, output.http.headers is mapping, output.paging.page] }}"
                      d: "{% for x in output.items %}{{ x * output.http.status }},{% endfor %}"
                    next: [{step: end}]
                  - step: end
                    tool: {kind: noop, result: "{{ ctx }}"}
                """,
                {"url": f"http://127.0.0.1:{port}"},
            )
    assert told.state.status is Status.COMPLETED, told.state.failure
    assert told.result == {
        "a": "KeyErrorTrue",
        "b": [True, True, True, 1],
        "c": [200, True, 3],
        "d": "200,400,",
    }
