"""The command line, as a user types it."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import Cli, cli, wait_until
from tests.support.server import place
from tests.support.yaml import one_step, playbook, slow_chain, write

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


@pytest.fixture(scope="module")
def noetl() -> Iterator[Cli]:
    """A command line whose host is up, so that each test pays for one process only."""
    with cli() as command:
        assert command("up").code == 0
        yield command


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_valid_without_warnings(noetl: Cli, example: Path) -> None:
    done = noetl("validate", str(example))
    assert done.code == 0
    assert done.stderr == ""


def test_run_prints_one_json_object_with_the_result(noetl: Cli, tmp_path: Path) -> None:
    file = write(tmp_path, one_step('result = {"n": 1, "text": "ä"}'))
    done = noetl("run", file, "--json")
    assert set(done.json) == {"execution_id", "status", "result", "error", "warnings"}
    assert done.json["result"] == {"n": 1, "text": "ä"}


def test_set_and_payload_become_the_workload(noetl: Cli, tmp_path: Path) -> None:
    file = write(
        tmp_path,
        playbook("""
        workload: {a: 1, b: {c: 2, d: 3}, e: x}
        workflow:
          - step: start
            tool: {kind: python, input: {w: "{{ workload }}"}, code: "result = w"}
        """),
    )
    done = noetl("run", file, "--json", "--payload", '{"b": {"c": 20}, "e": [1]}', "--set", "a=7", "--set", "f=text")
    assert done.json["result"] == {"a": 7, "b": {"c": 20, "d": 3}, "e": [1], "f": "text"}


def test_steps_that_did_not_run_are_shown_as_skipped(noetl: Cli, tmp_path: Path) -> None:
    file = write(
        tmp_path,
        playbook("""
        workflow:
          - {step: start, tool: {kind: noop}, next: [denied, guarded]}
          - {step: denied, tool: {kind: noop}, spec: {policy: {admit: {rules: [{else: {then: {allow: false}}}]}}}}
          - {step: guarded, tool: {kind: noop}, when: false, next: last}
          - {step: last, tool: {kind: noop}}
        """),
    )
    done = noetl("run", file)
    assert done.code == 0, done.stderr
    shown = [line.split() for line in done.stderr.splitlines() if line.startswith("  - ")]
    assert shown == [
        ["-", "denied", "skipped", "not", "admitted"],
        ["-", "guarded", "skipped", "its", "`when`", "is", "false"],
    ]
    execution_id = noetl("list", "--json").json[0]["execution_id"]
    status = noetl("status", execution_id).stdout.split("\n")
    assert [line.split() for line in status if line.startswith("  skipped")] == [
        ["skipped", "denied"],
        ["skipped", "guarded"],
    ]
    events = noetl("events", execution_id).stdout
    assert "skipped (admission)" in events
    assert "skipped (guard) → last" in events


def test_a_failed_run_exits_with_one_and_names_step_and_error(noetl: Cli, tmp_path: Path) -> None:
    file = write(tmp_path, one_step('raise ValueError("no such luck")'))
    done = noetl("run", file, "--json")
    assert done.code == 1
    assert done.json["status"] == "FAILED"
    assert done.json["error"]["step"] == "start"
    assert done.json["error"]["kind"] == "python"
    assert "no such luck" in done.json["error"]["message"]


def test_status_list_and_events_agree(noetl: Cli, tmp_path: Path) -> None:
    file = write(tmp_path, one_step("result = 1"))
    execution_id = noetl("run", file, "--json").json["execution_id"]
    status = noetl("status", execution_id, "--json").json
    listed = {row["execution_id"]: row for row in noetl("list", "--json").json}
    assert status["status"] == listed[execution_id]["status"] == "COMPLETED"
    assert status["ended_at"] == listed[execution_id]["ended_at"]
    assert execution_id in noetl("list").stdout
    assert "completed" in noetl("status", execution_id).stdout
    lines = noetl("events", execution_id).stdout.splitlines()
    assert [line.split()[2] for line in lines] == [e["event_type"] for e in noetl.events(execution_id)]


def test_an_unknown_execution_is_exit_two(noetl: Cli) -> None:
    for word in ("1", "99999999999999999999", "abc"):
        done = noetl("status", word)
        assert done.code == 2
        assert "there is no execution" in done.stderr


def test_wrong_words_are_exit_two(noetl: Cli, tmp_path: Path) -> None:
    file = write(tmp_path, one_step("result = 1"))
    for words in (("nonsense",), ("run",), ("run", file, "--payload", "{"), ("run", file, "--set", "x")):
        assert noetl(*words).code == 2
    assert "No such file" in noetl("run", "missing.yaml").stderr


def test_up_twice_says_so(noetl: Cli) -> None:
    done = noetl("up")
    assert done.code == 0
    assert "already up" in done.stdout


def test_run_hosts_in_its_own_process_and_leaves_nothing_running(tmp_path: Path) -> None:
    with cli() as noetl:
        file = write(tmp_path, one_step("result = 1"))
        done = noetl("run", file, "--json")
        assert done.code == 0, done.stderr
        assert noetl("down").stdout.strip() == "nothing was running"
        assert json.loads(noetl("list", "--json").stdout)[0]["execution_id"] == done.json["execution_id"]
        assert noetl("down").stdout.strip() == "nothing was running"


def test_down_stops_every_server_of_a_home() -> None:
    with place() as ground:
        first = ground.start_server()
        ground.url = ""
        second = ground.start_server()
        assert (ground.home / "host-1.lock").exists()
        noetl = Cli(ground.home, {"NOETL_POSTGRES_DSN": ground.environment["NOETL_POSTGRES_DSN"]})
        assert noetl("down").stdout.strip() == "down"
        assert [process.popen.wait(60) for process in (first, second)] == [0, 0]
        assert noetl("down").stdout.strip() == "nothing was running"


def test_a_second_run_is_a_client_of_the_first_and_both_finish(tmp_path: Path) -> None:
    with cli() as noetl:
        first = noetl.spawn("run", write(tmp_path, slow_chain(10, seconds=0.1)), "--json")
        wait_until((noetl.home / "host.sock").exists, seconds=60, what="the first run hosts")
        second = noetl.spawn("run", write(tmp_path, slow_chain(20, seconds=0.1), "two.yaml"), "--json")
        outputs = [process.communicate(timeout=60) for process in (first, second)]
        assert [json.loads(out)["result"]["n"] for out, _ in outputs] == [10, 20]


def test_ctrl_c_leaves_the_run_open_and_up_finishes_it(tmp_path: Path) -> None:
    with cli() as noetl:
        process = noetl.spawn("run", write(tmp_path, slow_chain(20, seconds=0.3)))
        assert process.stderr is not None
        execution_id = process.stderr.readline().split()[1]
        for line in process.stderr:
            if "✓ s3 " in line:
                break
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "noetl up" in said
        assert execution_id in noetl("up").stdout
        wait_until(
            lambda: noetl("status", execution_id, "--json").json["status"] == "COMPLETED", seconds=60, what="the end"
        )


def test_a_client_goes_on_when_its_host_is_killed(tmp_path: Path) -> None:
    with cli() as noetl:
        host = noetl.spawn("up", "--foreground")
        wait_until((noetl.home / "host.sock").exists, seconds=60, what="the host is up")
        client = noetl.spawn("run", write(tmp_path, slow_chain(20, seconds=0.1)), "--json")
        wait_until(lambda: len(noetl("list", "--json").json) > 0, seconds=60, what="the run is submitted")
        host.kill()
        host.communicate()
        out, err = client.communicate(timeout=60)
        assert json.loads(out)["result"] == {"n": 20}, err


def test_on_a_terminal_the_running_step_is_shown_while_it_runs(noetl: Cli, tmp_path: Path) -> None:
    file = write(tmp_path, slow_chain(3, seconds=0.2))
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "noetl", "run", file],
        env=noetl.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        seen = b""
        with contextlib.suppress(OSError):  # the terminal's way of saying that the other side has gone
            while chunk := os.read(ours, 4096):
                seen += chunk
        assert process.wait(60) == 0
    os.close(ours)
    shown = seen.decode()
    assert "… s1#1" in shown
    assert shown.index("… s1#1") < shown.index("✓ s1")
    assert "COMPLETED" in shown
