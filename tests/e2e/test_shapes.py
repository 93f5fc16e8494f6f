"""The same playbooks in both shapes: embedded, and through a server and a worker as processes.

Only configuration differs, so the result and the kinds of events must not."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import QUICK_SPARK, Cli, cli
from tests.support.databases import empty_database
from tests.support.language import credentials, most_events
from tests.support.server import running_server
from tests.support.standin import standin_process
from tests.support.yaml import playbook, write

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.yaml"))


@pytest.fixture(scope="module")
def embedded() -> Iterator[Cli]:
    with cli(**QUICK_SPARK) as command:
        assert command("up").code == 0
        yield furnished(command, "partner_api")


@pytest.fixture(scope="module")
def remote() -> Iterator[Cli]:
    key = base64.b64encode(bytes(32)).decode()
    with running_server(NOETL_CREDENTIAL_KEY=key, **QUICK_SPARK) as server:
        server.start_worker("--pool", "spark")
        yield furnished(server.cli(), "partner_api", "noetl_data")


@pytest.fixture(scope="module")
def api() -> Iterator[str]:
    """The API to play with that some examples ask for."""
    with standin_process() as address:
        yield address


def furnished(noetl: Cli, *names: str) -> Cli:
    """With what the heads of the examples tell a user to do first."""
    known = credentials(empty_database())
    words = [["catalog", "register", str(FOLDER)]]
    words += [
        ["credential", "set", name, "--type", known[name][0], "--data", json.dumps(known[name][1])] for name in names
    ]
    for line in words:
        done = noetl(*line)
        assert done.code == 0, done.stderr
    return noetl


def told(noetl: Cli, file: str, *words: str) -> tuple[Any, Counter[str]]:
    done = noetl("run", file, "--json", *words)
    assert done.code == (0 if done.json["status"] == "COMPLETED" else 1), done.stderr
    events = noetl.events(done.json["execution_id"])
    assert len(events) <= most_events([(event["event_type"], event["meta"]) for event in events])
    error = done.json["error"]
    outcome = {
        "status": done.json["status"],
        "result": done.json["result"],
        "error": error and {name: error.get(name) for name in ("step", "kind", "code")},
    }
    return outcome, story(events)


def story(events: list[dict[str, Any]]) -> Counter[str]:
    """How often each kind of event happened.  How often a job says how far it is follows from how long it takes, and
    is left out.  How many frames a loop is cut into follows from how long its rows take;
    that every frame was given out, begun and committed once does not.  One that waits for a child is begun again."""
    counts = Counter(event["event_type"] for event in events)
    if waits := sum(bool(e.get("frame_id")) for e in events if e["event_type"] == "child.terminal"):
        counts["frame.started"] -= waits
    frames = {name: count for name, count in counts.items() if name.startswith("frame.") and name != "frame.heartbeat"}
    assert len(set(frames.values())) <= 1, counts
    left_out = ("frame.heartbeat", "job.progressed")
    return Counter({name: 1 if name in frames else n for name, n in counts.items() if name not in left_out})


@pytest.mark.parametrize(
    "example",
    # One Spark job is enough for both shapes; what the other gives is looked at in `tests/language/test_examples.py`.
    [pytest.param(path, marks=[pytest.mark.long] if path.stem == "spark_quality" else []) for path in EXAMPLES],
    ids=lambda path: path.stem,
)
def test_an_example_tells_the_same_story_in_both_shapes(embedded: Cli, remote: Cli, api: str, example: Path) -> None:
    words = ("--set", f"api={api}") if "workload.api" in example.read_text() else ()
    outcome, events = told(embedded, str(example), *words)
    assert outcome["status"] == "COMPLETED", outcome
    assert outcome["error"] is None
    assert told(remote, str(example), *words) == (outcome, events)


VALUES = playbook(r"""
workload:
  {text: "nul \0, quote \" and ü", big: 123456789012345678901234567890, f: 1.0e+22, none: null, deep: {a: [1, {b: 2}]}}
workflow:
  - step: start
    tool:
      kind: python
      input: {w: "{{ workload }}"}
      code: |
        print("some words")
        rows = [{"n": n, "text": "x" * 40} for n in range(5000)]
        result = {"w": w, "rows": rows, "keys": {"1": True, "ü": [1.5, -0.0]}}
    set: {ctx.count: "{{ start.rows | length }}"}
    next: {arcs: [{step: check, when: "{{ start.keys['1'] and ctx.count == 5000 }}"}, {step: wrong}]}
  - step: check
    tool:
      kind: python
      input: {w: "{{ start.w }}", last: "{{ start.rows[4999].n }}", count: "{{ ctx.count }}"}
      code: |
        result = {"w": w, "last": last, "count": count}
  - {step: wrong, tool: {kind: noop}}
""")

FAILING = playbook("""
workflow:
  - step: start
    tool:
      kind: python
      code: |
        raise ValueError("no: \\ud800")
""")


@pytest.mark.parametrize(("text", "status"), [(VALUES, "COMPLETED"), (FAILING, "FAILED")])
def test_values_and_failures_survive_the_network(
    embedded: Cli, remote: Cli, tmp_path: Path, text: str, status: str
) -> None:
    file = write(tmp_path, text)
    outcome, events = told(remote, file)
    assert outcome["status"] == status, outcome
    assert told(embedded, file) == (outcome, events)
