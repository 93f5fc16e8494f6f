"""kill -9 of everything in the middle of a loop: it goes on behind what was persisted, and the ledger holds every row
once.  The rows keep a journal of their own, outside the system, that tells how often each really ran."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from noetl.cli.client import Client
from noetl.core.errors import HostUnavailable
from tests.fault.test_kill import is_over, postgres_pids
from tests.support.cli import Cli, cli, descendants, kill_all, wait_until
from tests.support.yaml import write

IN_FLIGHT = 20
ITEM_SECONDS = 0.02
# What may have finished without having been made durable: as long as rows are collected before they are.
PERSIST_SECONDS = 0.25

PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: killed_loop}}
workflow:
  - step: start
    tool: {{kind: python, code: "result = list(range({items}))"}}
    next: items
  - step: items
    loop: {{in: "{{{{ start }}}}", iterator: n, spec: {{mode: parallel, max_in_flight: {in_flight}}}}}
    tool:
      kind: python
      input: {{n: "{{{{ n }}}}"}}
      code: |
        import time
        with open("{journal}", "a") as file:
            file.write(f"start {{n}}\\n")
        time.sleep({seconds})
        with open("{journal}", "a") as file:
            file.write(f"end {{n}}\\n")
        result = n
"""


@dataclass(frozen=True, slots=True)
class Journal:
    started: Counter[int]
    ended: Counter[int]

    @property
    def repeated(self) -> int:
        """How many runs of rows there were beyond the first of each."""
        return sum(count - 1 for count in self.started.values())


def read_journal(path: Path) -> Journal:
    lines = path.read_text().splitlines() if path.exists() else []
    words = [line.split() for line in lines if len(line.split()) == 2]
    return Journal(
        Counter(int(n) for word, n in words if word == "start"), Counter(int(n) for word, n in words if word == "end")
    )


def check_loop(events: list[dict[str, Any]], items: int) -> None:
    """Every row is in exactly one committed frame; every transition is there once."""
    assert [event["stream_version"] for event in events] == list(range(1, len(events) + 1))
    keys = [event["transition_key"] for event in events]
    assert len(keys) == len(set(keys))
    windows = {
        event["frame_id"]: (event["meta"]["first"], event["meta"]["rows"])
        for event in events
        if event["event_type"] == "frame.dispatched"
    }
    committed = [event["frame_id"] for event in events if event["event_type"] == "frame.committed"]
    assert not [event for event in events if event["event_type"] == "frame.failed"]
    rows = Counter(index for name in committed for index in range(windows[name][0], sum(windows[name])))
    assert rows == Counter(range(items))


@dataclass(frozen=True, slots=True)
class Story:
    """Seconds: what was left of the run at the kill, from the restart command to the end, from a ready host to the
    end."""

    left: float
    after_command: float
    after_ready: float
    repeated: int
    finished_twice: int


def killed_run(noetl: Cli, folder: Path, items: int) -> Story:
    journal = folder / "journal.txt"
    text = PLAYBOOK.format(items=items, in_flight=IN_FLIGHT, seconds=ITEM_SECONDS, journal=journal)
    victim = noetl.spawn("run", write(folder, text))
    assert victim.stderr is not None
    execution_id = victim.stderr.readline().split()[1]
    wait_until(lambda: sum(read_journal(journal).ended.values()) >= items // 2, seconds=120, what="half of the rows")
    kill_all([*descendants(victim.pid), *postgres_pids(noetl)])
    victim.communicate()
    before = read_journal(journal)
    commanded = time.monotonic()
    host = noetl.spawn("up", "--foreground")
    try:
        wait_until(lambda: answers(noetl), seconds=60, what="the host is up again")
        ready = time.monotonic()
        wait_until(lambda: len(read_journal(journal).ended) == items, seconds=120, what="all rows")
        wait_until(lambda: is_over(noetl, execution_id), seconds=60, what="the end")
        over = time.monotonic()
        final = noetl("status", execution_id, "--json").json
        assert final["status"] == "COMPLETED", final
        assert final["result"]["results"] == list(range(items))
        check_loop(noetl.events(execution_id), items)
    finally:
        noetl("down")
        host.communicate(timeout=30)
    after = read_journal(journal)
    assert set(after.ended) == set(range(items))
    left = (items - len(before.ended)) * ITEM_SECONDS / IN_FLIGHT
    twice = sum(count - 1 for count in after.ended.values())
    return Story(left, over - commanded, over - ready, after.repeated, twice)


def answers(noetl: Cli) -> bool:
    """Whether a host answers; the socket alone may be what the killed one left."""
    client = Client(noetl.home / "host.sock")
    try:
        return bool(client.health())
    except HostUnavailable:
        return False
    finally:
        client.close()


def check_repeats(story: Story) -> None:
    finished = IN_FLIGHT * PERSIST_SECONDS / ITEM_SECONDS
    assert story.repeated <= IN_FLIGHT + finished, story


def test_killed_in_the_middle_a_loop_goes_on_behind_what_was_persisted(tmp_path: Path) -> None:
    with cli() as noetl:
        check_repeats(killed_run(noetl, tmp_path, 800))


@pytest.mark.long
def test_killed_at_half_of_four_thousand_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with cli() as noetl:
        story = killed_run(noetl, tmp_path, 4_000)
    check_repeats(story)
    with capsys.disabled():
        print(json.dumps({name: getattr(story, name) for name in story.__dataclass_fields__}))
