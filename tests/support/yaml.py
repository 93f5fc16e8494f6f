"""Small playbooks as text."""

from __future__ import annotations

import textwrap
from pathlib import Path

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: test}\n"


def playbook(body: str) -> str:
    return HEAD + textwrap.dedent(body)


def one_step(code: str, *, timeout: float | None = None) -> str:
    limit = f"\n      timeout: {timeout}" if timeout is not None else ""
    indented = textwrap.indent(textwrap.dedent(code).strip(), " " * 8)
    return f"{HEAD}workflow:\n  - step: start\n    tool:\n      kind: python{limit}\n      code: |\n{indented}\n"


def slow_chain(steps: int, *, seconds: float) -> str:
    """A chain whose every step sleeps a little and adds one."""
    lines = [HEAD + "workload: {zero: {n: 0}}", "workflow:"]
    for number in range(steps):
        before = "zero" if number == 0 else f"s{number - 1}"
        lines += [
            f"  - step: s{number}",
            "    tool:",
            "      kind: python",
            f'      input: {{n: "{{{{ {before}.n }}}}"}}',
            f'      code: "import time; time.sleep({seconds}); result = {{\\"n\\": n + 1}}"',
        ]
        if number + 1 < steps:
            lines.append(f"    next: {{arcs: [{{step: s{number + 1}}}]}}")
    return "\n".join(lines) + "\n"


def write(folder: Path, text: str, name: str = "playbook.yaml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)
