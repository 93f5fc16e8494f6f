"""kill -9 of everything in the middle of a retry: it goes on by its own ledger, and no item that was good before runs
once more."""

from __future__ import annotations

from pathlib import Path

from tests.fault.test_kill import is_over, postgres_pids
from tests.fault.test_loop_kill import answers, read_journal
from tests.support.cli import cli, descendants, kill_all, wait_until
from tests.support.yaml import write

ITEMS, EVERY, SECONDS = 900, 3, 0.02
PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: killed_retry}}
workflow:
  - step: start
    tool: {{kind: python, code: "result = list(range({items}))"}}
    next: items
  - step: items
    loop: {{in: "{{{{ start }}}}", iterator: n, spec: {{mode: parallel, max_in_flight: 10, frame: {{max_rows: 60}}}}}}
    spec: {{policy: {{failure: {{mode: best_effort}}}}}}
    tool:
      kind: python
      input: {{n: "{{{{ n }}}}"}}
      code: |
        import os, time
        with open("{journal}", "a") as file:
            file.write(f"start {{n}}\\n")
        if os.path.exists("{broken}"):
            if n % {every} == 0:
                raise ValueError("broken")
        else:
            time.sleep({seconds})
        with open("{journal}", "a") as file:
            file.write(f"end {{n}}\\n")
        result = n
    next: {{arcs: [{{step: after}}]}}
  - step: after
    tool: {{kind: python, input: {{got: "{{{{ items.results }}}}"}}, code: "result = got"}}
"""


def test_killed_in_the_middle_a_retry_goes_on_and_runs_nothing_that_was_good(tmp_path: Path) -> None:
    journal, broken = tmp_path / "journal.txt", tmp_path / "broken"
    broken.touch()
    text = PLAYBOOK.format(items=ITEMS, every=EVERY, seconds=SECONDS, journal=journal, broken=broken)
    bad = set(range(0, ITEMS, EVERY))
    with cli() as noetl:
        old = noetl("run", write(tmp_path, text), "--json").json["execution_id"]
        assert noetl("status", old, "--json").json["steps"]["items"]["loop"]["failed"] == len(bad)
        broken.unlink()
        before = read_journal(journal)
        assert set(before.ended) == set(range(ITEMS)) - bad
        victim = noetl.spawn("retry", old, "--failed-items")
        assert victim.stderr is not None
        new = victim.stderr.readline().split()[1]
        half = len(before.ended) * 1 + len(bad) // 2
        wait_until(lambda: len(read_journal(journal).ended) >= half, seconds=120, what="half of the items")
        kill_all([*descendants(victim.pid), *postgres_pids(noetl)])
        victim.communicate()
        host = noetl.spawn("up", "--foreground")
        try:
            wait_until(lambda: answers(noetl), seconds=60, what="the host is up again")
            wait_until(lambda: is_over(noetl, new), seconds=120, what="the end")
            final = noetl("status", new, "--json").json
            assert (final["status"], final["retry_of"]) == ("COMPLETED", old), final
            assert final["result"] == list(range(ITEMS))
            keys = [event["transition_key"] for event in noetl.events(new)]
            assert len(keys) == len(set(keys))
        finally:
            noetl("down")
            host.communicate(timeout=30)
        after = read_journal(journal)
        good = set(range(ITEMS)) - bad
        assert {index: after.started[index] for index in good} == dict.fromkeys(good, 1)
        assert set(after.ended) == set(range(ITEMS))
