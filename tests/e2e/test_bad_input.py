"""Bad input: a clear error that names file, step and field; the host stays healthy; nothing is half-written."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from noetl.core import limits
from tests.support.cli import Cli, cli
from tests.support.yaml import one_step, playbook, write


@pytest.fixture(scope="module")
def noetl() -> Iterator[Cli]:
    with cli(NOETL_PYTHON_MEMORY_MB="512") as command:
        assert command("up").code == 0
        yield command


@pytest.fixture(autouse=True)
def host_stays_healthy(noetl: Cli, tmp_path: Path) -> Iterator[None]:
    yield
    done = noetl("run", write(tmp_path, one_step("result = 42"), "healthy.yaml"), "--json")
    assert done.code == 0, done.stderr
    assert done.json["result"] == 42


REFUSED = {
    "broken_yaml": ("apiVersion: [noetl", ["playbook.yaml:", "not valid YAML"]),
    "unknown_step": (
        playbook(
            "workflow:\n  - step: a\n    tool: {kind: noop}\n    next: [bee]\n  - {step: be, tool: {kind: noop}}\n"
        ),
        ["playbook.yaml:", "step 'a'", "'bee'", "did you mean 'be'"],
    ),
    "unknown_tool": (
        playbook("workflow:\n  - step: a\n    tool: {kind: pythn}\n"),
        ["playbook.yaml:", "step 'a'", "kind", "did you mean 'python'"],
    ),
    "sandbox_escape": (
        playbook(
            "workflow:\n  - step: a\n    tool: {kind: noop}\n    set: {x: \"{{ ''.__class__.__mro__ }}\"}\n"
            "    next: [b]\n  - {step: b, tool: {kind: noop}}\n"
        ),
        ["playbook.yaml:", "step 'a'", "'set.x'", "__mro__"],
    ),
    "unsupported_cursor_loop": (
        playbook("workflow:\n  - step: a\n    loop: {cursor: {claim: x}, iterator: i}\n    tool: {kind: noop}\n"),
        ["step 'a'", "loop"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_playbook_leaves_no_execution(noetl: Cli, tmp_path: Path, name: str) -> None:
    text, words = REFUSED[name]
    before = noetl("list", "--json").json
    done = noetl("run", write(tmp_path, text))
    assert done.code == 2
    for word in words:
        assert word in done.stderr
    assert noetl("list", "--json").json == before
    checked = noetl("validate", write(tmp_path, text))
    assert checked.code == 1
    for word in words:
        assert word in checked.stderr


def test_a_file_of_50_mb_is_refused_without_being_read(noetl: Cli, tmp_path: Path) -> None:
    path = tmp_path / "big.yaml"
    path.write_bytes(b"x" * 50_000_000)
    for verb in ("run", "validate"):
        done = noetl(verb, str(path))
        assert done.code == 2
        assert "50,000,000 bytes" in done.stderr


FAILING = {
    "endless_loop": (one_step("while True: pass", timeout=1), "timeout", "limit of 1 s"),
    "exits": (one_step("os._exit(3)"), "python", "exit"),
    "system_exit": (one_step("raise SystemExit(1)"), "python", "sys.exit"),
    "allocates": (one_step("x = bytearray(10 * 1024**3)"), "python", "memory"),
    "template_escape": (
        playbook(
            'workflow:\n  - step: start\n    tool: {kind: noop, result: "{{ x.__class__ }}"}\n    '
            'input: {x: "{{ [] }}"}\n'
        ),
        "template",
        "__class__",
    ),
    "unsupported_kind": (
        playbook("workflow:\n  - step: start\n    tool: {kind: nats, operation: kv_keys, bucket: b}\n"),
        "unsupported",
        "nats",
    ),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_failing_task_fails_its_run_and_nothing_else(noetl: Cli, tmp_path: Path, name: str) -> None:
    text, kind, word = FAILING[name]
    done = noetl("run", write(tmp_path, text), "--json")
    if done.code == 2:
        assert word in done.stderr
        return
    assert done.code == 1, done.stderr
    assert done.json["error"]["step"] == "start"
    assert done.json["error"]["kind"] == kind
    assert word in done.json["error"]["message"]


def test_printing_a_gigabyte_is_bounded(noetl: Cli, tmp_path: Path) -> None:
    code = """
    line = "x" * 1_000_000
    for _ in range(1000):
        print(line)
    result = "done"
    """
    done = noetl("run", write(tmp_path, one_step(code)), "--json")
    assert done.json["result"] == "done"
    events = noetl.events(done.json["execution_id"])
    kept = next(e["meta"]["logs"] for e in events if e["event_type"] == "command.completed")
    assert kept["bytes"] <= limits.LOG_COMMAND_BYTES_MAX + limits.LOG_TAIL_BYTES_MAX
    assert kept["left_out_bytes"] > 900_000_000


def test_an_endless_template_ends_at_its_time_limit(noetl: Cli, tmp_path: Path) -> None:
    text = playbook("""
    workflow:
      - step: start
        tool:
          kind: noop
          result: >-
            {% for a in range(100000) %}{% for b in range(100000) %}{% if a == 1.5 %}x{% endif %}{% endfor %}
            {% endfor %}
    """)
    started = time.monotonic()
    done = noetl("run", write(tmp_path, text), "--json")
    assert time.monotonic() - started < 60
    assert done.code == 1
    assert done.json["error"]["kind"] == "template"
    assert "'result'" in done.json["error"]["message"]
