"""Playbooks as people write them, one or more for every form of the language.  None of them has a slip in it."""

from __future__ import annotations

KINDS = frozenset(("noop", "python", "http", "postgres", "playbook", "artifact"))

PAGING = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: paging, path: corpus/paging, description: Pages of an API into a table.}
workload:
  api_url: http://127.0.0.1:8080
  page_size: 50
  day: "{{ payload.day | default('2024-01-01') }}"
  table: "rows_{{ day }}"
executor: {profile: local, spec: {entry_step: start, final_step: report, no_next_is_error: false}}
workflow:
  - step: start
    desc: Where to begin
    tool:
      - name: prepare
        kind: postgres
        auth: pg_main
        command: |
          CREATE TABLE IF NOT EXISTS {{ workload.table }} (id bigint, body jsonb);
          -- it's a comment; with a semicolon
          SELECT max(id) AS last FROM {{ table }} WHERE execution = '{{ execution_id }}'
      - name: begin
        kind: noop
        set: {page: 1, iter.rows: 0}
      - name: fetch
        kind: http
        method: GET
        url: "{{ api_url }}/items"
        params: {page: "{{ page }}", size: "{{ workload.page_size | int }}", since: "{{ prepare.rows[0].last }}"}
        headers: {X-Run: "{{ execution_id }}", Accept: application/json}
        spec:
          policy:
            rules:
              - when: "{{ output.status == 'error' and output.error.kind in ['rate_limit', 'server_error'] }}"
                then: {do: retry, attempts: 5, backoff: exponential, delay: 0.5}
              - when: "{{ output.status == 'error' }}"
                then: {do: fail}
      - name: save
        kind: python
        input: {rows: "{{ fetch.data.items }}", page: "{{ page }}"}
        code: |
          result = {"count": len(rows), "text": f"{{page}} of {page}"}
        set: {page: "{{ page + 1 }}", seen: "{{ output.count }}"}
        spec:
          policy:
            rules:
              - when: "{{ fetch.data.paging.hasMore }}"
                then: {do: jump, to: fetch, set: {iter.rows: "{{ iter.rows + save.count }}"}}
              - else: {then: {do: continue, set: {ctx.total: "{{ iter.rows + results.save.count }}"}}}
    set: {ctx.pages: "{{ output.data.save.count }}"}
    next:
      spec: {mode: exclusive, on_no_match: quiet}
      arcs:
        - {step: retry_later, when: "{{ event.name == 'call.error' }}", set: {reason: "{{ error.message }}"}}
        - {step: check, when: "{{ ctx.total > 0 and start.status == 'ok' }}"}
        - {step: end}
  - step: retry_later
    tool: {kind: noop, result: {reason: "{{ ctx.reason }}", again: "{{ reason | lower }}"}}
    next: end
  - step: check
    tool: {kind: python, input: {total: "{{ total }}", id: "{{ start.fetch.data.items[0].id }}"}, code: result = total}
    next: end
  - step: end
    tool: {kind: noop, result: {total: "{{ ctx.total | default(0) }}", checked: "{{ check.data }}"}}
  - step: report
    tool: {kind: noop, result: "{{ end if end is defined else start }}"}
"""

LOOPS = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: loops}
workload: {regions: [north, south], many: 4, queue: work}
workflow:
  - step: start
    tool: {kind: python, input: {regions: "{{ workload.regions }}"}, code: "result = [{'name': r} for r in regions]"}
    next: [each, drain]
  - step: each
    loop:
      in: "{{ start }}"
      iterator: region
      spec: {mode: parallel, max_in_flight: "{{ workload.many }}", frame: {max_rows: 10, max_attempts: 2}}
    spec: {policy: {failure: {mode: best_effort}}, timeout: 5m}
    tool:
      - name: fetch
        kind: http
        url: "http://127.0.0.1:1/{{ region.name }}?i={{ _index }}&of={{ _total }}"
        spec: {policy: {rules: [{when: "{{ loop.last and output.status == 'error' }}", then: {do: break}}]}}
      - name: fold
        kind: python
        input: {region: "{{ iter.region }}", body: "{{ fetch.body }}", last: "{{ iter._last }}", before: "{{ _prev }}"}
        code: |
          result = {"region": region["name"], "index": _index}
        set: {iter.done: true, ctx.last: "{{ output.region }}"}
    next: {arcs: [{step: join, when: "{{ output.data.stats.failed == 0 or loop_failed_ok }}"}]}
    set: {ctx.loop_failed_ok: "{{ each.stats.total > 0 }}"}
  - step: drain
    loop:
      cursor:
        kind: postgres
        auth: pg_main
        claim: "UPDATE {{ queue }} SET taken = now() WHERE id IN (SELECT id LIMIT {{ __frame_max_rows }}) RETURNING *"
        options: {max_iterations: 1000}
      iterator: job_row
      spec: {mode: cursor, max_in_flight: 2, frame: {max_rows: 5, process: frame, lease_seconds: 60}}
    tool:
      kind: python
      input: {rows: "{{ frame.rows }}", same: "{{ iter.job_row_rows }}", n: "{{ frame.row_count }}"}
      code: "result = len(rows)"
    next: join
  - step: sequential
    loop: {in: "{{ each.results }}", iterator: item}
    tool: {kind: noop, result: "{{ (ctx.sum | default(0)) + item.index }}", set: {ctx.sum: "{{ output }}"}}
    next: [{step: end, when: "{{ event.name == 'loop.done' }}"}]
  - step: fan
    loop: {in: [1, 2, 3], iterator: n, spec: {mode: fanout, fanout: {shard_size: 2}}}
    tool: {kind: noop, result: {n: "{{ n }}", at: "{{ loop.index }}"}}
    next: [{step: end, when: "{{ fanin.status == 'complete' and fanin.failed == 0 }}"}]
  - step: join
    tool: {kind: noop, result: {each: "{{ each.count }}", drained: "{{ drain.processed }}"}}
    next: {spec: {mode: inclusive}, arcs: [{step: sequential}, {step: fan}]}
"""

COUNTING = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: counting}
workload: {goal: 5}
workflow:
  - step: start
    tool: {kind: noop}
    set: {ctx.n: 0}
    next: step one
  - step: step one
    tool: {kind: noop, result: {n: "{{ ctx.n + 1 }}", again: "{{ steps['step two'].n | default(0) }}"}}
    set: {n: "{{ output.n }}"}
    next: [{step: step two}]
  - step: step two
    tool: {kind: noop, result: {n: "{{ n * 2 }}"}}
    next:
      arcs:
        - {step: step one, when: "{{ n < goal }}", set: {ctx.last.value: "{{ steps['step two'].n }}"}}
        - {step: down, when: "{{ n == goal }}"}
  - step: down
    tool: {kind: python, input: {left: "{{ down.left if down else goal }}"}, code: "result = {'left': left - 1}"}
    next: [{step: down, when: "{{ down.left > 0 }}"}, {step: end}]
"""

OLDER_WORDS = """
apiVersion: noetl.io/v10
kind: Playbook
metadata: {name: older, path: /corpus/older, labels: {team: data}, tags: [a, b]}
spec: {city: Berlin, units: metric}
workload: {threshold: 3}
workflow:
  - step: start
    args: {base: "{{ spec.city }}"}
    tool:
      - fetch:
          kind: http
          spec:
            url: "http://127.0.0.1:1/{{ spec.city }}/{{ input.base }}/{{ base }}"
            method: GET
          retry: {max_attempts: 3, retry_on: [timeout, 503], backoff: fixed, delay: 1}
      - kind: python
        args: {a: "{{ fetch.data }}"}
        libs: [requests]
        code: result = a
      - name: last
        kind: noop
        spec:
          policy:
            rules:
              - {when: "{{ outcome.result.x > threshold }}", then: {do: continue, set_ctx: {x: 1}, set_iter: {y: 2}}}
              - {else: null, then: {do: continue}}
    next: [{step: next_one, cond: "{{ result.x and response.y }}", args: {given: "{{ output.x }}"}}, {step: end}]
  - step: next_one
    when: "{{ x == 1 }}"
    tool: {kind: playbook, path: "lib/{{ args.given }}", payload: {day: "{{ given }}"}, return_step: done}
    next: {step: end}
  - step: end
    tool: {kind: noop, result: "{{ result }}"}
"""

SECRETS = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: secrets}
workload: {tenant: acme, db: pg_main}
keychain:
  - {name: api, kind: bearer, token: "{{ workload.tenant }}-token"}
  - {name: login, kind: oauth2, endpoint: "http://127.0.0.1:1/{{ tenant }}", data: {k: "{{ keychain.api }}"}}
workbook:
  - {name: ask, tool: {kind: http, url: "http://127.0.0.1:1/{{ what }}", auth: api}, input: {what: null, lang: en}}
workflow:
  - step: start
    tool: {kind: workbook, name: ask, input: {what: "{{ tenant }}"}}
    next: call
  - step: call
    tool:
      kind: http
      url: "http://127.0.0.1:1/{{ start.data.id }}"
      headers: {Authorization: "Bearer {{ keychain.login.access_token }}", X: "{{ token('gcp', 'aud') }}"}
      auth: {source: credential, key: "{{ workload.db }}"}
    spec:
      policy:
        admit:
          rules: [{when: "{{ start.status_code == 200 }}", then: {allow: true}}, {else: {then: {allow: false}}}]
    output: {inline_max_bytes: 1000, store: {kind: auto}}
    next: [{step: store, when: "{{ call._ref is defined }}"}, {step: sql}]
  - step: store
    tool: {kind: artifact, action: get, result_ref: "{{ call._ref }}"}
    next: sql
  - step: sql
    tool:
      - name: insert
        kind: postgres
        auth: "{{ workload.db }}"
        commands:
          - "INSERT INTO t VALUES ('{{ call.data | tojson | replace(\\"'\\", \\"''\\") }}') RETURNING id"
          - SELECT 1
        params: null
      - name: read
        kind: postgres
        auth: "{{ db }}"
        query: "SELECT * FROM t WHERE id = {{ insert.command_0.rows[0].id }} AND n = {{ _attempt }}"
      - {name: check, kind: noop, result: "{{ read.row_count }}/{{ insert.row_count }}/{{ store.size_bytes }}"}
"""

BRANCHES = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: branches}
workload: &defaults
  left: true
  right: "{{ left }}"
workflow:
  - step: split
    tool: {kind: noop}
    next:
      spec: {mode: inclusive}
      arcs: [{step: left_one, when: "{{ left }}"}, {step: right_one, when: "{{ workload.right }}"}]
  - {step: left_one, tool: {kind: noop, result: {n: 1}}, next: join}
  - step: right_one
    tool: {kind: python, input: {<<: *defaults, x: "{{ left_one.n | default(0) }}"}, code: result = x}
    next: {arcs: [{step: join}]}
  - step: join
    tool:
      kind: noop
      result: |
        {% set sides = ['left', 'right'] %}
        {% for side in sides %}{{ loop.index }}: {{ side }} {{ left_one.n if left_one else '' }}{% endfor %}
        {% if right_one is defined %}both{% else %}{{ left_one.n }}{% endif %}
    next: [{step: end, when: "{{ output.status == 'ok' }}"}, {step: tests/odd name, when: "{{ output.error }}"}]
  - {step: tests/odd name, tool: {kind: noop, result: "{{ steps['tests/odd name'] is defined }} {{ join.error.kind }}"}}
  - {step: end, tool: {kind: noop, result: {a: "{{ left_one }}", b: "{{ right_one }}", when: "{{ now() }}"}}}
"""

CORPUS = {
    "paging": PAGING,
    "loops": LOOPS,
    "counting": COUNTING,
    "older words": OLDER_WORDS,
    "secrets": SECRETS,
    "branches": BRANCHES,
}
