"""Loops whose items fail for as long as a file says so, and that write down every time they have run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from noetl.engine.forking.retrying import RetryRequest
from tests.support.engine import OWNER, Running, Told


@dataclass(frozen=True, slots=True)
class Flaky:
    """A folder: which items are broken, and who has run."""

    folder: Path

    @property
    def journal(self) -> Path:
        return self.folder / "journal"

    @property
    def broken(self) -> Path:
        return self.folder / "broken"

    def breaks(self, items: Iterable[int]) -> None:
        self.broken.write_text(" ".join(map(str, items)))

    def ran(self) -> Counter[int]:
        return Counter(map(int, self.journal.read_text().split())) if self.journal.exists() else Counter()

    def tool(self, indent: int = 4) -> str:
        lines = f"""
tool:
  kind: python
  input: {{x: "{{{{ x }}}}", journal: {self.journal}, broken: {self.broken}}}
  code: |
    with open(journal, "a") as file:
        file.write(f"{{x}}\\n")
    if str(x) in open(broken).read().split():
        raise ValueError(f"item {{x}} is broken")
    result = {{"x": x, "twice": x * 2}}
"""
        return "\n".join(" " * indent + line for line in lines.strip("\n").splitlines())


async def retried(running: Running, execution_id: int, *, step: str | None = None, key: str | None = None) -> int:
    request = RetryRequest(execution_id=execution_id, step=step, idempotency_key=key, **OWNER)
    return (await running.engine.retries.failed_items(request)).execution_id


async def retry(running: Running, execution_id: int, *, step: str | None = None) -> Told:
    return await running.finish(await retried(running, execution_id, step=step))
