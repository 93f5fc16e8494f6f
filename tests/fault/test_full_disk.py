"""A disk that is full while results are stored: the run waits, nothing is half-written, and it completes when there is
room again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.cli import cli
from tests.support.small_disk import small_file_system
from tests.support.yaml import write

PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: full}
workflow:
  - step: table
    tool:
      kind: python
      code: |
        import pyarrow as pa, hashlib
        texts = [hashlib.md5(str(i).encode()).hexdigest() for i in range(25000)]
        result = pa.table({"n": range(25000), "t": texts})
    next: [{step: plain}]
  - step: plain
    tool: {kind: python, code: 'result = [{"n": i, "t": "x" * 40} for i in range(25000)]'}
    next: [{step: use}]
  - step: use
    tool:
      kind: python
      tables: arrow
      input: {rows: "{{ table }}", last: "{{ plain[-1].n }}"}
      code: "result = [rows.num_rows, last]"
"""
BALLAST_BYTES = 4_000_000


def test_a_run_waits_for_room_and_completes(tmp_path: Path) -> None:
    with cli() as noetl:
        payloads = noetl.home / "payloads"
        payloads.mkdir(parents=True)
        ballast = payloads / "ballast"
        fill = f'head -c {BALLAST_BYTES} /dev/zero > "{ballast}"; exec "$@"'
        run = (sys.executable, "-m", "noetl", "run", write(tmp_path, PLAYBOOK), "--json")
        victim = subprocess.Popen(
            [*small_file_system(payloads), "sh", "-c", fill, "sh", *run],
            env=noetl.environment() | {"NOETL_TIER15_BUDGET_MB": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        inside = Path(f"/proc/{victim.pid}/root")
        assert victim.stderr is not None
        waiting = next((line for line in victim.stderr if "waiting for a payload store" in line), None)
        assert waiting is not None, "the run ended although the disk was full"
        assert "No space left on device" in waiting
        seen = inside / payloads.relative_to("/")
        stored = [path for path in seen.rglob("*") if path.is_file() and ".incoming" not in path.parts]
        assert stored == [seen / "ballast"], "nothing is half-written"
        (seen / "ballast").unlink()
        out, err = victim.communicate(timeout=60)
        assert victim.returncode == 0, err
        assert json.loads(out)["result"] == [25_000, 24_999]
