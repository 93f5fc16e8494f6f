"""Three servers and two workers, each a process of its own, on one database: one server is killed, one stands still.

What is asserted is what the ledger says; the seconds are printed, a busy machine may take its time."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.cli import wait_until
from tests.support.server import START_SECONDS_MAX, Place, Process, place

SHARDS = 16
LEASE = "3"
QUICK = {"NOETL_SHARD_LEASE_SEC": LEASE, "NOETL_SHARD_HEARTBEAT_SEC": "0.5"}
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: test}\n"
LOOP = (
    HEAD
    + """
workflow:
  - step: each
    loop:
      in: "{{ range(40) | list }}"
      iterator: item
      spec: {mode: parallel, max_in_flight: 6, frame: {max_rows: 2}}
    tool:
      kind: python
      input: {n: "{{ item }}"}
      code: |
        import time
        time.sleep(0.2)
        result = {"n": n}
    next: {arcs: [{step: end}]}
  - step: end
    tool: {kind: python, input: {all: "{{ each.results }}"}, code: "result = sorted(row['n'] for row in all)"}
"""
)


@dataclass(slots=True)
class Cluster:
    place: Place
    servers: list[Process] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)

    def add_server(self) -> None:
        process = self.place.start("server", NOETL_PORT="0")
        wait_until(lambda: _url_of(process), seconds=START_SECONDS_MAX, what="the server is up")
        self.servers.append(process)
        self.urls.append(_url_of(process))

    def at(self, number: int) -> Place:
        """The place as seen through one of the servers."""
        self.place.url = self.urls[number]
        return self.place

    def shards(self, through: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.at(through).request("GET", "/api/shards").json["shards"]
        return found

    def owners(self, through: int) -> Counter[str]:
        return Counter(one["owner_url"] for one in self.shards(through) if (one["lease_seconds"] or 0) > 0)

    def shared(self, *numbers: int) -> None:
        """Wait until these servers own everything, each its share."""
        share = -(-SHARDS // len(numbers))

        def is_shared() -> bool:
            owners = self.owners(numbers[0])
            return set(owners) == {self.urls[n] for n in numbers} and max(owners.values()) <= share

        wait_until(is_shared, seconds=60, what=f"the shards are shared by {numbers}")


def _url_of(process: Process) -> str:
    assert process.popen.poll() is None, process.text()
    found = [line.split()[-1] for line in process.text().splitlines() if line.startswith("listening on ")]
    return found[0] if found else ""


@contextmanager
def cluster(*, workers: int = 2) -> Iterator[Cluster]:
    with place(**QUICK) as found:
        one = Cluster(found)
        for _ in range(3):
            one.add_server()
        for number in range(workers):
            # Each begins at another server and knows them all.
            urls = one.urls[number:] + one.urls[:number]
            found.start("worker", NOETL_SERVER_URL=",".join(urls), NOETL_WORKER_SLOTS="4")
        wait_until(
            lambda: sum(_sessions(one, n) for n in range(3)) >= workers, seconds=60, what="the workers are registered"
        )
        one.shared(0, 1, 2)
        yield one


def _sessions(one: Cluster, number: int) -> int:
    return one.at(number).sessions()


def check_story(events: list[dict[str, Any]]) -> None:
    """Nothing is missing and nothing is there twice."""
    assert [event["stream_version"] for event in events] == list(range(1, len(events) + 1))
    keys = Counter(event["transition_key"] for event in events)
    assert max(keys.values()) == 1
    committed = [event for event in events if event["event_type"] == "frame.committed"]
    assert sum(event["meta"]["outcomes"]["success"] for event in committed) == 40


def test_a_killed_server_is_succeeded_and_every_run_ends_once() -> None:
    """The one that a worker is connected to: the worker goes on with the next server, its work goes back at once."""
    with cluster() as one:
        runs = [one.at(number).submit(LOOP) for number in (0, 1, 2)]
        before = {shard["shard_id"]: shard for shard in one.shards(0)}
        lost = {shard for shard, row in before.items() if row["owner_url"] == one.urls[1]}
        wait_until(lambda: _has_begun(one, runs[1]), seconds=60, what="the run has begun")
        one.servers[1].signal(signal.SIGKILL)
        killed_at = time.monotonic()
        survivors = {one.urls[0], one.urls[2]}
        wait_until(lambda: all(row["owner_url"] in survivors for row in one.shards(0)), seconds=60, what="the takeover")
        print(f"the shards of a killed server were taken over after {time.monotonic() - killed_at:.1f} s")
        after = {shard["shard_id"]: shard for shard in one.shards(0)}
        assert lost
        assert all(after[shard]["epoch"] > before[shard]["epoch"] for shard in lost)
        for number, execution_id in zip((0, 2, 2), runs, strict=True):
            ended = one.at(number).finish(execution_id, seconds=120)
            assert ended["status"] == "COMPLETED", ended
            assert ended["result"] == list(range(40))
            check_story(one.at(number).events(execution_id))
        print(f"all runs had ended after {time.monotonic() - killed_at:.1f} s")
        wait_until(lambda: _sessions(one, 0) + _sessions(one, 2) == 2, seconds=60, what="both workers are back")


def _has_begun(one: Cluster, execution_id: str) -> bool:
    return any(event["event_type"] == "frame.started" for event in one.at(0).events(execution_id))


def test_an_owner_that_stood_still_for_three_leases_decides_nothing_of_what_others_own_now() -> None:
    with cluster() as one:
        runs = [one.at(number).submit(LOOP) for number in (0, 1, 2)]
        before = {shard["shard_id"]: shard for shard in one.shards(0)}
        stopped = {shard for shard, row in before.items() if row["owner_url"] == one.urls[2]}
        one.servers[2].signal(signal.SIGSTOP)
        begun = time.monotonic()
        wait_until(
            lambda: all(row["owner_url"] in one.urls[:2] for row in one.shards(0)), seconds=60, what="the takeover"
        )
        taken = {shard["shard_id"]: shard["epoch"] for shard in one.shards(0)}
        assert all(taken[shard] > before[shard]["epoch"] for shard in stopped)
        time.sleep(max(0.0, 3 * float(LEASE) - (time.monotonic() - begun)))
        one.servers[2].signal(signal.SIGCONT)
        # It comes back, finds its shards gone, and gets its share again: with other epochs.
        one.shared(0, 1, 2)
        for number, execution_id in zip((0, 1, 2), runs, strict=True):
            ended = one.at(number).finish(execution_id, seconds=120)
            assert ended["status"] == "COMPLETED", ended
            check_story(one.at(number).events(execution_id))
        again = {shard["shard_id"]: shard for shard in one.shards(0)}
        assert all(row["epoch"] > taken[shard] for shard, row in again.items() if row["owner_url"] == one.urls[2])


def test_processes_and_shards_are_shown() -> None:
    with cluster(workers=0) as one:
        runtimes = one.at(1).request("GET", "/api/runtimes").json["runtimes"]
        alive = [row for row in runtimes if row["is_alive"] and row["kind"] == "server"]
        assert {row["url"] for row in alive} == set(one.urls)
        rows = one.shards(1)

        def all_are_owned() -> bool:
            rows[:] = one.shards(1)
            return all(row["lease_seconds"] is not None for row in rows)

        wait_until(all_are_owned, seconds=60, what="every shard has an owner")
        for row in rows:
            assert 0 < row["lease_seconds"] <= float(LEASE)
            assert row["lag"] == 0
