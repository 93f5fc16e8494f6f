"""Rows of frames in child processes: sent together, run one by one, none lost, none twice."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from noetl.ports.tool import ToolCall, ToolSettings
from noetl.tools.python.pool import ChildPool, TaskOutcome
from noetl.tools.python.tool import PythonTool
from tests.support.children import is_alive, task, until, with_pool
from tests.support.logs import Heard

TRIVIAL = 'result = {"n": n + 1}'

# Notes that it started, outside of its directory, then does what its input says.
NOTED = """
import time
with open(path, "a") as file:
    file.write(f"{n}\\n")
if n in deeds:
    exec(deeds[n])
result = {"n": n, "pid": os.getpid()}
"""


async def run_rows(
    pool: ChildPool,
    code: str,
    inputs: Iterable[dict[str, Any]],
    *,
    in_flight: int = 1_000,
    logs: list[Heard] | None = None,
    **given: Any,
) -> list[TaskOutcome]:
    places = asyncio.Semaphore(in_flight)

    async def one(values: dict[str, Any], log: Heard | None) -> TaskOutcome:
        async with places:
            return await pool.run_row(task(code, input=values, **given), log=log)

    return await asyncio.gather(*(one(values, logs[n] if logs else None) for n, values in enumerate(inputs)))


class Notes:
    """Rows that note themselves in a file, some with a deed."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "notes"
        self.path.touch()

    def input(self, n: int, deed: str | None = None) -> dict[str, Any]:
        return {"n": str(n), "path": str(self.path), "deeds": {} if deed is None else {str(n): deed}}

    def started(self) -> Counter[int]:
        return Counter(int(line) for line in self.path.read_text().splitlines())

    async def teach(self, pool: ChildPool) -> None:
        """So many quick rows that the next ones of this code go down together."""
        await run_rows(pool, NOTED, (self.input(-1) for _row in range(200)), in_flight=50)
        self.path.write_text("")


def codes_of(outcomes: list[TaskOutcome]) -> list[str | None]:
    return [None if outcome.failure is None else outcome.failure.code for outcome in outcomes]


def values_of(outcomes: list[TaskOutcome]) -> list[Any]:
    return [outcome.value["n"] if isinstance(outcome.value, dict) else None for outcome in outcomes]


# --- results ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
def test_every_row_has_its_own_outcome(runner: Callable[[Any], Any]) -> None:
    async def test(pool: ChildPool) -> None:
        outcomes = await run_rows(pool, TRIVIAL, ({"n": n} for n in range(5_000)), in_flight=50)
        assert values_of(outcomes) == [n + 1 for n in range(5_000)]
        assert all(outcome.pid not in {0, os.getpid()} for outcome in outcomes)
        stats = pool.stats()
        assert (stats.tasks_total, stats.waiting) == (5_000, 0)
        assert stats.requests_total < 2_500  # they went down together
        assert stats.forked_total < 50  # and not to a child for each that was under way

    with_pool(test, runner=runner)


def test_rows_get_all_that_a_task_gets() -> None:
    async def test(pool: ChildPool) -> None:
        code = "result = [row, context['c'], m.floor(2.5), os.environ['TOKEN'], 'leak' in globals(), n]\nleak = 1"
        given = {"libs": {"m": "math"}, "env": {"TOKEN": 'secret "é'}, "context": {"c": [1]}}
        for _round in range(2):
            outcomes = await asyncio.gather(
                *(pool.run_row(task(code, input={"n": n}, names={"row": {"id": n}}, **given)) for n in range(30))
            )
            assert [outcome.value for outcome in outcomes] == [
                [{"id": n}, [1], 2, 'secret "é', False, n] for n in range(30)
            ]
        assert (await pool.run(task("result = 'TOKEN' in os.environ"))).value is False

    with_pool(test)


def test_failures_output_and_large_values_belong_to_their_row() -> None:
    code = "print(n)\nif n % 3 == 0: raise ValueError(n)\nresult = {'n': n, 'text': text * 100_000}"

    async def test(pool: ChildPool) -> None:
        await run_rows(pool, code, ({"n": 1, "text": ""} for _row in range(50)), in_flight=10)
        heard = [Heard() for _ in range(60)]
        outcomes = await run_rows(pool, code, ({"n": n, "text": "é" * (n % 5)} for n in range(60)), logs=heard)
        for n, outcome in enumerate(outcomes):
            assert heard[n].text() == f"{n}\n"
            if n % 3 == 0:
                assert outcome.failure is not None
                assert (outcome.failure.code, outcome.failure.message) == ("PY_ValueError", str(n))
            else:
                assert outcome.value == {"n": n, "text": "é" * (n % 5) * 100_000}

    with_pool(test)


def test_row_that_is_no_data_fails_alone() -> None:
    circular: dict[str, Any] = {"n": 1}
    circular["self"] = circular

    async def test(pool: ChildPool) -> None:
        outcomes = await run_rows(pool, TRIVIAL, [{"n": 1}, circular, {"n": 3}, {"n": "\ud800" * 400_000}])
        assert codes_of(outcomes) == [None, "INPUT_INVALID", None, "PY_TypeError"]

    with_pool(test)


def test_directory_is_empty_for_each_row() -> None:
    code = "result = {'n': os.listdir('.')}\nos.makedirs('a/b')\nopen('file', 'w').close()"

    async def test(pool: ChildPool) -> None:
        assert values_of(await run_rows(pool, code, ({} for _row in range(200)), in_flight=20)) == [[]] * 200

    with_pool(test)


# --- death and time --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deed", "words"),
    [
        ("os._exit(7)", "exit code 7"),
        ("os.kill(os.getpid(), 9)", "SIGKILL"),
        ("os.closerange(3, 100)\ntime.sleep(30)", "SIGKILL"),
        ("os.write(3, b'garbage')\ntime.sleep(30)", "SIGKILL"),
    ],
)
def test_row_that_ends_its_child_fails_alone(tmp_path: Path, deed: str, words: str) -> None:
    async def test(pool: ChildPool) -> None:
        notes = Notes(tmp_path)
        await notes.teach(pool)
        doomed = {0, 7, 8, 40, 99}
        outcomes = await run_rows(pool, NOTED, (notes.input(n, deed if n in doomed else None) for n in range(100)))
        assert codes_of(outcomes) == ["PY_EXITED" if n in doomed else None for n in range(100)]
        assert all(words in outcome.failure.message for outcome in outcomes if outcome.failure)
        assert notes.started() == Counter(range(100))

    with_pool(test)


def test_row_too_large_for_its_child_fails_alone() -> None:
    """It ends its child before any row starts, twice."""

    async def test(pool: ChildPool) -> None:
        await run_rows(pool, TRIVIAL, ({"n": n} for n in range(200)))
        inputs = [{"n": n, "text": "x" * (150_000_000 if n == 2 else 1)} for n in range(5)]
        outcomes = await run_rows(pool, TRIVIAL, inputs)
        assert codes_of(outcomes) == [None, None, "PY_EXITED", None, None]

    with_pool(test, memory_bytes_max=300 * 1024**2)


def test_row_sent_to_a_child_that_has_ended_goes_to_another() -> None:
    async def test(pool: ChildPool) -> None:
        first = await run_rows(pool, TRIVIAL, ({"n": n} for n in range(200)))
        for pid in {outcome.pid for outcome in first}:
            os.kill(pid, signal.SIGKILL)
        second = await run_rows(pool, TRIVIAL, ({"n": n} for n in range(200)))
        assert values_of(second) == [n + 1 for n in range(200)]

    with_pool(test, children_max=2)


def test_time_limit_counts_for_each_row() -> None:
    code = "import time\ntime.sleep(seconds)\nresult = {'n': seconds}"

    async def test(pool: ChildPool) -> None:
        await run_rows(pool, code, ({"seconds": 0} for _row in range(100)), timeout=2.0)
        together = [0.12] * 20  # more than two seconds in one child
        assert values_of(await run_rows(pool, code, ({"seconds": s} for s in together), timeout=2.0)) == together
        await run_rows(pool, code, ({"seconds": 0} for _row in range(100)), timeout=2.0)
        mixed = [0, 0, 30, 0, 0, 30, 0, 0]
        outcomes = await run_rows(pool, code, ({"seconds": s} for s in mixed), timeout=2.0)
        assert codes_of(outcomes) == ["PY_TIMEOUT" if s else None for s in mixed]
        assert all(outcome.failure.retryable for outcome in outcomes if outcome.failure)
        await until(lambda: not any(is_alive(outcome.pid) for outcome in outcomes if outcome.failure))

    with_pool(test, children_max=1)


@pytest.mark.parametrize("children_max", [1, 4])
def test_slow_row_does_not_hold_up_the_others(tmp_path: Path, children_max: int) -> None:
    async def test(pool: ChildPool) -> None:
        notes = Notes(tmp_path)
        await notes.teach(pool)
        gate = tmp_path / "gate"
        deed = f"while not os.path.exists({str(gate)!r}): time.sleep(0.001)"
        rows = [
            asyncio.ensure_future(pool.run_row(task(NOTED, input=notes.input(n, deed if n == 10 else None))))
            for n in range(20)
        ]
        others = rows[:10] if children_max == 1 else rows[:10] + rows[11:]
        outcomes = await asyncio.gather(*others)  # returns while the slow one still waits for its gate
        assert not rows[10].done()
        assert codes_of(outcomes) == [None] * len(others)
        gate.touch()
        assert codes_of(await asyncio.gather(*rows)) == [None] * 20
        assert notes.started() == Counter(range(20))

    with_pool(test, children_max=children_max)


def test_slow_rows_all_run_at_the_same_time() -> None:
    code = "import time\na = time.monotonic()\ntime.sleep(0.3)\nresult = [a, time.monotonic()]"

    async def test(pool: ChildPool) -> None:
        for _round in range(2):
            outcomes = await run_rows(pool, code, ({} for _row in range(20)))
        spans: list[Any] = [outcome.value for outcome in outcomes]
        assert max(start for start, _end in spans) < min(end for _start, end in spans)
        assert len({outcome.pid for outcome in outcomes}) == 20

    with_pool(test)


def test_pool_survives_the_death_of_its_zygote_between_rows(tmp_path: Path) -> None:
    async def test(pool: ChildPool) -> None:
        notes = Notes(tmp_path)
        await notes.teach(pool)
        zygote = (await pool.run(task("result = os.getppid()"))).value
        assert isinstance(zygote, int)
        rows = asyncio.ensure_future(run_rows(pool, NOTED, (notes.input(n) for n in range(1_000))))
        await until(lambda: len(notes.started()) > 50)
        os.kill(zygote, signal.SIGKILL)
        outcomes = await rows
        assert set(codes_of(outcomes)) <= {None, "PY_EXITED"}
        assert sum(outcome.failure is not None for outcome in outcomes) <= 4
        assert max(notes.started().values()) == 1

    with_pool(test)


# --- what is left behind ---------------------------------------------------------------------------------


def test_rows_behind_one_that_leaves_something_go_to_another_child(tmp_path: Path) -> None:
    async def test(pool: ChildPool) -> None:
        notes = Notes(tmp_path)
        await notes.teach(pool)
        deed = "import threading\nthreading.Timer(30, print).start()"
        spoiling = {3, 4, 20, 49}
        outcomes = await run_rows(pool, NOTED, (notes.input(n, deed if n in spoiling else None) for n in range(50)))
        assert codes_of(outcomes) == [None] * 50
        assert [outcome.left_behind for outcome in outcomes] == [
            "threads" if n in spoiling else None for n in range(50)
        ]
        assert notes.started() == Counter(range(50))
        assert len({outcomes[n].pid for n in spoiling}) == len(spoiling)
        await until(lambda: not any(is_alive(outcomes[n].pid) for n in spoiling))

    with_pool(test)


def test_child_runs_no_more_rows_than_its_share() -> None:
    async def test(pool: ChildPool) -> None:
        outcomes = await run_rows(pool, TRIVIAL, ({"n": n} for n in range(100)), in_flight=20)
        assert values_of(outcomes) == [n + 1 for n in range(100)]
        assert max(Counter(outcome.pid for outcome in outcomes).values()) <= 7

    with_pool(test, tasks_per_child_max=7)


# --- isolation -------------------------------------------------------------------------------------------


def test_tenants_and_organizations_never_share_a_child() -> None:
    async def test(pool: ChildPool) -> None:
        keys = [("a", "x"), ("a", "y"), ("b", "x")]
        seen: dict[int, set[tuple[str, str]]] = {}

        async def one(key: tuple[str, str], n: int) -> None:
            outcome = await pool.run_row(task(TRIVIAL, input={"n": n}), tenant=key[0], organization=key[1])
            assert outcome.value == {"n": n + 1}
            seen.setdefault(outcome.pid, set()).add(key)

        for _round in range(5):
            await asyncio.gather(*(one(key, n) for n in range(50) for key in keys))
        assert all(len(owners) == 1 for owners in seen.values())
        assert {owner for owners in seen.values() for owner in owners} == set(keys)
        assert pool.stats().children <= 3

    with_pool(test, children_max=3)


FORGED = """
def own_ticket():
    import sys
    frame = sys._getframe()
    while "ticket" not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals["ticket"]
def send(ticket, value):
    answer = ticket.to_bytes(8, "big") + b"+" + bytes(8) + b'{"value":' + value + b"}"
    os.write(3, len(answer).to_bytes(4, "big") + answer)
if forge is not None:
    send(own_ticket() + forge, b'{"n":"forged"}')
result = {"n": n}
"""


@pytest.mark.parametrize("forge", [0, 1, 2, -1])
def test_row_that_writes_answers_gets_no_further_than_itself(forge: int) -> None:
    async def test(pool: ChildPool) -> None:
        await run_rows(pool, FORGED, ({"n": n, "forge": None} for n in range(200)), in_flight=50)
        recycled = pool.stats().recycled_total
        outcomes = await run_rows(pool, FORGED, ({"n": n, "forge": forge if n == 5 else None} for n in range(20)))
        others = [outcome for n, outcome in enumerate(outcomes) if n != 5]
        assert values_of(others) == [n for n in range(20) if n != 5]
        if forge == 0:
            assert outcomes[5].value == {"n": "forged"}
        elif forge > 0:
            assert codes_of([outcomes[5]]) == ["RESULT_INVALID"]
        await until(lambda: not is_alive(outcomes[5].pid))
        assert pool.stats().recycled_total <= recycled + 1
        assert (await pool.run(task("result = 1"))).value == 1

    with_pool(test)


# --- places and queue ------------------------------------------------------------------------------------


def test_single_tasks_get_their_turn_beside_a_long_loop() -> None:
    async def test(pool: ChildPool) -> None:
        code = f"import time\ntime.sleep(0.002)\n{TRIVIAL}"
        loop = asyncio.ensure_future(run_rows(pool, code, ({"n": n} for n in range(1_500))))
        await until(lambda: pool.stats().tasks_total > 20)
        for tenant in ("default", "another"):
            outcomes = await asyncio.gather(*(pool.run(task("result = 1"), tenant=tenant) for _ in range(3)))
            assert [outcome.value for outcome in outcomes] == [1] * 3
        assert not loop.done()
        assert pool.stats().waiting > 100
        assert values_of(await loop) == [n + 1 for n in range(1_500)]

    with_pool(test, children_max=2)


def test_many_codes_share_the_places() -> None:
    async def test(pool: ChildPool) -> None:
        codes = [f"{TRIVIAL}  # {number}" for number in range(300)]
        outcomes = await asyncio.gather(*(run_rows(pool, code, [{"n": n} for n in range(3)]) for code in codes))
        assert [values_of(group) for group in outcomes] == [[1, 2, 3]] * 300
        assert pool.stats().waiting == 0

    with_pool(test, children_max=3)


def test_cancelled_row_that_has_not_started_never_does(tmp_path: Path) -> None:
    async def test(pool: ChildPool) -> None:
        notes = Notes(tmp_path)
        await notes.teach(pool)
        rows = [
            asyncio.ensure_future(
                pool.run_row(task(NOTED, input=notes.input(n, "time.sleep(0.1)" if n == 0 else None)))
            )
            for n in range(10)
        ]
        await until(lambda: notes.started()[0] == 1)
        cancelled = {3, 4, 9}
        for n in cancelled:
            rows[n].cancel()
        results = await asyncio.gather(*rows, return_exceptions=True)
        assert {n for n, result in enumerate(results) if isinstance(result, asyncio.CancelledError)} == cancelled
        assert notes.started() == Counter(set(range(10)) - cancelled)
        pids = {result.pid for result in results if isinstance(result, TaskOutcome)}
        assert len(pids) == 1  # nothing had to be killed

    with_pool(test, children_max=1)


def test_cancelling_the_running_row_kills_its_child_only(tmp_path: Path) -> None:
    async def test(pool: ChildPool) -> None:
        notes = Notes(tmp_path)
        await notes.teach(pool)
        rows = [
            asyncio.ensure_future(
                pool.run_row(task(NOTED, input=notes.input(n, "while True: pass" if n == 2 else None)))
            )
            for n in range(10)
        ]
        await until(lambda: notes.started()[2] == 1)
        rows[2].cancel()
        results = await asyncio.gather(*rows, return_exceptions=True)
        assert isinstance(results.pop(2), asyncio.CancelledError)
        assert all(isinstance(result, TaskOutcome) and result.failure is None for result in results)
        assert notes.started() == Counter(range(10))

    with_pool(test, children_max=1)


def test_cancelling_everywhere_loses_no_row_and_no_place(tmp_path: Path) -> None:
    async def test(pool: ChildPool) -> None:
        notes = Notes(tmp_path)
        for turns in range(60):
            rows = [
                asyncio.ensure_future(pool.run_row(task(NOTED, input=notes.input(100 * turns + n)), tenant=f"t{n % 2}"))
                for n in range(20)
            ]
            for _turn in range(turns % 12):
                await asyncio.sleep(0)
            for row in rows[turns % 3 :: 3]:
                row.cancel()
            results = await asyncio.gather(*rows, return_exceptions=True)
            for result in results:
                assert isinstance(result, asyncio.CancelledError) or (
                    isinstance(result, TaskOutcome) and result.failure is None
                )
        assert max(notes.started().values()) == 1
        await until(lambda: pool.stats().children == pool.stats().idle)
        assert pool.stats().waiting == 0

    with_pool(test, children_max=3)


def test_close_ends_rows_under_way_and_rows_that_wait() -> None:
    async def main() -> list[TaskOutcome]:
        pool = ChildPool(children_max=2)
        await pool.start()
        code = "import time\ntime.sleep(wait)\nresult = {'n': 1}"
        await run_rows(pool, code, ({"wait": 0} for _row in range(100)))
        async with asyncio.TaskGroup() as group:
            rows = group.create_task(run_rows(pool, code, ({"wait": 30} for _row in range(50))))
            await until(lambda: pool.stats().idle == 0)
            await pool.close()
        return [*rows.result(), *await run_rows(pool, code, [{"wait": 0}])]

    assert codes_of(asyncio.run(main())) == ["PY_POOL_CLOSED"] * 51


def test_pool_that_cannot_have_children_says_so_for_rows() -> None:
    async def test(pool: ChildPool) -> None:
        code = "import shutil\nresult = os.path.dirname(os.getcwd())\nshutil.rmtree(result)\nopen(result, 'w')"
        base = (await pool.run(task(code))).value
        assert isinstance(base, str)
        outcomes = await run_rows(pool, TRIVIAL, ({"n": n} for n in range(10)))
        assert set(codes_of(outcomes)) <= {"PY_UNAVAILABLE", "PY_EXITED"}
        os.unlink(base)
        assert values_of(await run_rows(pool, TRIVIAL, ({"n": n} for n in range(10)))) == [*range(1, 11)]

    with_pool(test, warm=0)


# --- the tool --------------------------------------------------------------------------------------------


def test_tool_sends_rows_together() -> None:
    def call(n: int) -> ToolCall:
        return ToolCall(
            fields={"code": TRIVIAL},
            input={"n": n},
            names={},
            context=None,
            timeout_seconds=10,
            tenant_id="t",
            organization_id="o",
            execution_id=1,
            step="s",
            label="l",
            is_row=True,
        )

    async def main() -> None:
        tool = PythonTool(ToolSettings(python_children=4, python_memory_bytes=1024**3))
        await tool.start()
        try:
            for _round in range(3):
                results = await asyncio.gather(*(tool.run(call(n)) for n in range(200)))
                assert [result.value for result in results] == [{"n": n + 1} for n in range(200)]
            assert tool._pool.stats().requests_total < 300
        finally:
            await tool.close()

    asyncio.run(main())
