"""What the results of steps cost: a chain whose steps hand on a kilobyte, against one whose steps hand on nothing."""

from __future__ import annotations

import time

from noetl.bench.ground import Ground
from noetl.bench.measure import Metric
from noetl.bench.runs import run_once

STEPS = 200
ROUNDS = 6
TEXT_CHARS = 1_000


async def chain_ratio(ground: Ground) -> dict[str, Metric]:
    """The median of pairs, so that what else the machine does meets both sides."""
    with_results, without = chain_playbook(has_results=True), chain_playbook(has_results=False)
    await run_once(ground, with_results)
    await run_once(ground, without)
    ratios = []
    for _ in range(ROUNDS):
        plain = await _seconds(ground, without)
        ratios.append(await _seconds(ground, with_results) / plain)
    ratios.sort()
    return {"chain_1kb_ratio": Metric((ratios[ROUNDS // 2 - 1] + ratios[ROUNDS // 2]) / 2, "×", 1.2)}


async def _seconds(ground: Ground, text: str) -> float:
    started = time.perf_counter()
    await run_once(ground, text)
    return time.perf_counter() - started


def chain_playbook(*, has_results: bool) -> str:
    """The steps of the one read a field of what the step before gave; those of the other give nothing to read."""
    lines = [
        "apiVersion: noetl.io/v2",
        "kind: Playbook",
        "metadata: {name: bench_results}",
        f'workload: {{zero: {{n: 0, text: "{"x" * TEXT_CHARS}"}}}}' if has_results else "workload: {zero: {n: 0}}",
        "workflow:",
    ]
    for number in range(STEPS):
        before = f"s{number - 1}" if has_results and number else "zero"
        code = "result = {'n': n + 1, 'text': 'x' * 1000}" if has_results else "result = None"
        lines += [
            f"  - step: s{number}",
            "    tool:",
            "      kind: python",
            f'      input: {{n: "{{{{ {before}.n }}}}"}}',
            f'      code: "{code}"',
        ]
        if number + 1 < STEPS:
            lines.append(f"    next: {{arcs: [{{step: s{number + 1}}}]}}")
    return "\n".join(lines) + "\n"
