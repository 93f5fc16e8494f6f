"""`compile`: a playbook of a thousand steps, from its text to a version in the catalog."""

from __future__ import annotations

import time

from noetl.bench.ground import Ground
from noetl.bench.measure import Metric, Report
from noetl.core.expression import forget_templates
from noetl.core.playbook.compile import compile_playbook

STEPS = 1_000
SECONDS_MAX = 1.0
ROUNDS = 3
KINDS = frozenset(("http", "python"))


async def compile_steps(ground: Ground) -> Report:
    """The best of a few rounds; nothing of a round is known to the next one."""
    compiling, registering = float("inf"), float("inf")
    for number in range(ROUNDS):
        text = steps_playbook(STEPS, name=f"bench_compile_{number}")
        forget_templates()
        started = time.perf_counter()
        compiled = compile_playbook(text, file="<bench>", kinds=KINDS)
        compiling = min(compiling, time.perf_counter() - started)
        assert not compiled.warnings, compiled.warnings[0]
        forget_templates()
        started = time.perf_counter()
        await ground.engine.catalog.register(text, file="<bench>", owner=ground.settings)
        registering = min(registering, time.perf_counter() - started)
    return Report(
        "compile",
        {
            "register_s": Metric(registering, "s", SECONDS_MAX),
            "compile_s": Metric(compiling, "s", SECONDS_MAX),
            "steps_per_s": Metric(STEPS / compiling, "1/s"),
        },
    )


def steps_playbook(steps: int, name: str = "bench_compile") -> str:
    """Fetches and computations in turns, each with the templates, rules, guards and writes that such steps have."""
    lines = [
        "apiVersion: noetl.io/v2",
        "kind: Playbook",
        f"metadata: {{name: {name}}}",
        "workload: {api_url: 'http://127.0.0.1:8080', region: north, limit: 10, retries: 3}",
        "workflow:",
    ]
    for number in range(steps):
        lines += _fetch(number) if number % 2 else _compute(number)
        lines += _routing(number, steps)
    return "\n".join(lines) + "\n"


def _fetch(number: int) -> list[str]:
    before = f"s{number - 1}"
    return [
        f"  - step: s{number}",
        "    tool:",
        "      kind: http",
        f'      url: "{{{{ api_url }}}}/items/{{{{ {before}.id | default({number}) }}}}"',
        f'      params: {{region: "{{{{ workload.region }}}}", limit: "{{{{ limit | int + {number} }}}}"}}',
        '      headers: {X-Run: "{{ execution_id }}"}',
        "      spec:",
        "        policy:",
        "          rules:",
        "            - when: \"{{ output.status == 'error' and output.http.status in [429, 503] }}\"",
        '              then: {do: retry, attempts: "{{ retries }}", backoff: exponential, delay: 0.5}',
    ]


def _compute(number: int) -> list[str]:
    before = f"s{number - 1}" if number else "workload"
    return [
        f"  - step: s{number}",
        "    tool:",
        "      kind: python",
        "      input:",
        f'        rows: "{{{{ {before}.data.rows | default([]) }}}}"',
        f"        first: \"{{{{ {before}.data.rows[0].name if {before}.data.rows else '' }}}}\"",
        f'        text: "step {number} of {{{{ workload.region }}}}"',
        "      code: |",
        f'        result = {{"n": len(rows) + {number}, "first": first}}',
    ]


def _routing(number: int, steps: int) -> list[str]:
    return [
        '    set: {ctx.total: "{{ (ctx.total or 0) + output.data.n }}"}',
        "    next:",
        "      arcs:",
        f"        - step: {_name(number + 1, steps)}",
        f"          when: \"{{{{ s{number}.n > {number} and region != 'south' }}}}\"",
        f"          set: {{ctx.last: \"{{{{ output.data.first or 's{number}' }}}}\"}}",
        f"        - step: {_name(number + 7, steps)}",
    ]


def _name(number: int, steps: int) -> str:
    return f"s{number}" if number < steps else "end"
