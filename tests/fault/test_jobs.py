"""A worker dies in the middle of a job: the command is claimed again, and the ledger tells both jobs, each once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.cli import descendants, kill_all, wait_until
from tests.support.jobs import job_step
from tests.support.server import Place, Process, place
from tests.support.yaml import HEAD


def spark_worker(server: Place) -> Process:
    before = server.sessions()
    words = ("worker", "--server", server.url, "--pool", "spark", "--slots", "1")
    process = server.start(*words, program="tests.support.jobs")
    wait_until(lambda: server.sessions() > before, seconds=60, what="the worker is registered")
    return process


def of_type(events: list[dict[str, Any]], event_type: str) -> list[dict[str, Any]]:
    return [event for event in events if event["event_type"] == event_type]


def test_a_second_intent_is_recorded_for_the_attempt_after_a_killed_worker(tmp_path: Path) -> None:
    with place(NOETL_SESSION_LEASE_SECONDS="1") as server:
        server.start_server()
        first = spark_worker(server)
        file = tmp_path / "pid"
        execution_id = server.submit(HEAD + job_step(seconds=2.5, file=str(file)))
        wait_until(
            lambda: bool(of_type(server.events(execution_id), "job.progressed")),
            seconds=30,
            what="the job is under way",
        )
        kill_all(descendants(first.pid))
        wait_until(lambda: server.sessions() == 0, seconds=60, what="the session is dead")
        left = server.request("GET", f"/api/executions/{execution_id}").json
        assert [one["pool"] for one in left["unserved"]] == ["spark"], "claimed once is not running"
        second = spark_worker(server)
        final = server.finish(execution_id)
        assert final["status"] == "COMPLETED", server.logs()
        assert final["result"] == {"attempt": 2}
        assert file.read_text() == str(second.pid)
        events = server.events(execution_id)
    keys = [event["transition_key"] for event in events]
    assert len(keys) == len(set(keys))
    assert [event["stream_version"] for event in events] == list(range(1, len(events) + 1))
    intents = of_type(events, "job.intended")
    assert [event["transition_key"] for event in intents] == ["job.intended/start#1/1/1", "job.intended/start#1/2/1"]
    story = [(event["event_type"], event["meta"].get("attempt")) for event in events if event.get("command_id")]
    assert (
        story.index(("command.claimed", 2)) < story.index(("job.intended", 2)) < story.index(("command.completed", 2))
    )
    assert [event["meta"]["attempt"] for event in of_type(events, "command.completed")] == [2]
