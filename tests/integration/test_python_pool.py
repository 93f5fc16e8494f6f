"""The pool of child processes, with real processes: results, hostile code, isolation, limits, leftovers."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import uvloop

from noetl.core import limits
from noetl.core.errors import TemplateFailed, TemplateInvalid, TemplateRefused
from noetl.core.expression import ResultView
from noetl.tools.python.pool import ChildPool, TaskOutcome
from tests.support.children import group_of, is_alive, task, until, with_pool
from tests.support.logs import Heard


def run_one(code: str, log: Heard | None = None, **given: Any) -> TaskOutcome:
    return with_pool(lambda pool: pool.run(task(code, **given), log=log))


# --- results ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
def test_code_runs_in_another_process_and_reuses_it(runner: Callable[[Any], Any]) -> None:
    async def test(pool: ChildPool) -> None:
        outcomes = [await pool.run(task("result = {'n': n + 1}", input={"n": n})) for n in range(5)]
        assert [outcome.value for outcome in outcomes] == [{"n": n + 1} for n in range(5)]
        assert all(outcome.failure is None for outcome in outcomes)
        assert len({outcome.pid for outcome in outcomes}) == 1
        assert outcomes[0].pid not in {0, os.getpid()}
        assert (await pool.run(task("result = os.getpid()"))).value == outcomes[0].pid

    with_pool(test, runner=runner)


def test_result_rules_hold_through_the_process() -> None:
    async def test(pool: ChildPool) -> None:
        async def value(code: str, **given: Any) -> object:
            outcome = await pool.run(task(code, **given))
            assert outcome.failure is None, outcome
            return outcome.value

        assert await value("x = 1") == {"status": "ok"}
        assert await value("if n: return [n]", input={"n": 3}) == [3]
        assert await value("async def main(n, b): return [n, b]", input={"n": 1}, context={"b": 2}) == [1, 2]
        assert await value("result = context['s']", context={"s": {"deep": [1]}}) == {"deep": [1]}
        assert await value("result = [row, _index]", names={"row": {"id": 1}, "_index": 0}) == [{"id": 1}, 0]
        assert await value("result = m.floor(2.5)", libs={"m": "math"}) == 2
        assert await value("result = os.environ['TOKEN']", env={"TOKEN": "t"}) == "t"
        assert await value("result = 'TOKEN' in os.environ") is False
        odd = "result = {1, 2}, float('nan'), datetime.date(2024, 1, 2), b'a'"
        assert await value(odd) == [[1, 2], None, "2024-01-02", "YQ=="]

    with_pool(test)


def test_values_come_back_as_they_went() -> None:
    values = [True, 0, -1.5, 10**25, "", [], {}, {"a": {"b": [1, None, {"c": "d"}]}}]
    values += ["zażółć \U0001f600 \x00 \u2028 {{ x }}", "x" * 3_000_000, [[i, str(i)] for i in range(50_000)]]

    async def test(pool: ChildPool) -> None:
        for value in [None, *values]:
            assert (await pool.run(task("return v", input={"v": value}))).value == value

    with_pool(test)


def test_output_is_captured_beside_the_result() -> None:
    heard = Heard()
    code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\nos.write(1, b'raw')\nresult = 1"
    outcome = run_one(code, heard)
    assert (outcome.value, outcome.dropped_chars) == (1, 0)
    assert (heard.text("stdout"), heard.text("stderr")) == ("out\n", "err\n")


def test_printing_a_gigabyte_is_bounded_in_time_and_memory() -> None:
    heard = Heard()
    outcome = run_one("chunk = 'x' * (1 << 20)\nfor _ in range(1024): print(chunk)", heard)
    assert outcome.failure is None
    printed = 1024 * ((1 << 20) + 1)
    kept = len(heard.text().replace("…", ""))
    assert 0 < kept <= limits.LOG_COMMAND_BYTES_MAX + 4096
    assert kept + outcome.dropped_chars == printed


# --- failures of the code --------------------------------------------------------------------------------


def test_exception_is_a_failure_with_the_lines_of_the_user() -> None:
    heard = Heard()
    outcome = run_one("print('before')\ndef f():\n    raise ValueError('bad')  # here\nf()", heard)
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.code) == ("python", "PY_ValueError")
    assert outcome.failure.details == {"line": 3}
    assert outcome.traceback is not None
    assert "raise ValueError('bad')  # here" in outcome.traceback
    assert heard.text() == "before\n"
    assert outcome.left_behind is None


@pytest.mark.parametrize(
    ("code", "kind", "failure_code"),
    [
        ("import sys\nsys.exit(3)", "python", "PY_SystemExit"),
        ("raise KeyboardInterrupt", "python", "PY_KeyboardInterrupt"),
        ("x = bytearray(10 * 1024**3)", "python", "PY_MemoryError"),
        ("x = []\nwhile True: x.append('y' * 1000000 + str(len(x)))", "python", "PY_MemoryError"),
        ("result = []\nfor _ in range(100000): result = [result]", "python", "RESULT_INVALID"),
        ("result = []\nresult.append(result)", "python", "RESULT_INVALID"),
        ("result = '\\ud800'", "python", "RESULT_INVALID"),
        ("class A:\n    def __str__(self): raise KeyError\nresult = A()", "python", "RESULT_INVALID"),
        ("result = 'x' * 2_000_000", "python", "RESULT_TOO_LARGE"),
        ("def f(): return f()\nf()", "python", "PY_RecursionError"),
        ("import no_such_module", "python", "PY_ModuleNotFoundError"),
        ("result = (", "python", "PY_SyntaxError"),
        ("raise ConnectionRefusedError", "connection", "CONN_REFUSED"),
    ],
)
def test_failure_spares_the_worker(code: str, kind: str, failure_code: str) -> None:
    async def test(pool: ChildPool) -> None:
        outcome = await pool.run(task(code))
        assert outcome.failure is not None
        assert (outcome.failure.kind, outcome.failure.code) == (kind, failure_code)
        assert outcome.value is None
        assert (await pool.run(task("result = 1"))).value == 1

    with_pool(test, memory_bytes_max=256 * 1024**2, result_bytes_max=1_000_000)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("os._exit(7)", "exit code 7"),
        ("os.kill(os.getpid(), 11)", "SIGSEGV"),
        ("import ctypes\nctypes.string_at(0)", "SIGSEGV"),
        ("os.kill(os.getpid(), 9)", "SIGKILL"),
        ("os.abort()", "SIGABRT"),
        ("os.closerange(3, 100)\nimport time\ntime.sleep(30)", "SIGKILL"),
        ("os.write(3, b'garbage')\nimport time\ntime.sleep(30)", "SIGKILL"),
        ("if os.fork() == 0:\n    import time\n    time.sleep(30)\nos._exit(5)", "exit code 5"),
    ],
)
def test_death_of_a_child_fails_its_task_only(code: str, words: str) -> None:
    async def test(pool: ChildPool) -> None:
        doomed, other = await asyncio.gather(
            pool.run(task(code)), pool.run(task("import time\ntime.sleep(0.1)\nresult = 1"))
        )
        assert doomed.failure is not None
        assert (doomed.failure.kind, doomed.failure.code) == ("python", "PY_EXITED")
        assert words in doomed.failure.message
        assert doomed.seconds < 2
        assert other.value == 1
        await until(lambda: not group_of(doomed.pid))

    with_pool(test)


def test_code_that_answers_for_itself_gets_no_further_than_its_own_task() -> None:
    forged = "def send(p): os.write(3, len(p).to_bytes(4, 'big') + p)\n"

    async def test(pool: ChildPool) -> None:
        for payload in (b"", b"+{}", b"12345678+" + bytes(8) + b"{}", bytes(7) + b"\xff+" + bytes(8) + b"{}"):
            outcome = await pool.run(task(f"{forged}send({payload!r})\nimport time\ntime.sleep(0.05)"))
            assert outcome.failure is not None
            assert outcome.failure.code == "RESULT_INVALID"
            assert (await pool.run(task("result = 2"))).value == 2

    with_pool(test)


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
def test_endless_loop_is_killed_at_its_limit(runner: Callable[[Any], Any]) -> None:
    async def test(pool: ChildPool) -> None:
        await pool.run(task("result = 1"))
        before = time.perf_counter()
        outcome = await pool.run(
            task("import signal\nsignal.signal(15, signal.SIG_IGN)\nwhile True: pass", timeout=0.2)
        )
        assert 0.2 <= time.perf_counter() - before < 10
        assert outcome.failure is not None
        assert (outcome.failure.kind, outcome.failure.retryable) == ("timeout", True)
        await until(lambda: not is_alive(outcome.pid))
        assert (await pool.run(task("result = 1"))).value == 1

    with_pool(test, runner=runner)


def test_processes_that_multiply_are_killed_together() -> None:
    async def test(pool: ChildPool) -> None:
        code = "import time\nfor _ in range(6): os.fork()\nwhile True: time.sleep(1)"
        outcome = await pool.run(task(code, timeout=0.5))
        assert outcome.failure is not None
        assert outcome.failure.kind == "timeout"
        await until(lambda: not group_of(outcome.pid))

    with_pool(test)


# --- what code leaves behind -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "left"),
    [
        ("import threading\nthreading.Timer(30, print).start()", "threads"),
        ("open_file = open('/dev/null')\nimport sys\nsys.keep = open_file", "descriptors"),
        ("os.chdir('/')", "working directory"),
        ("os.umask(0)", "umask"),
        ("import signal\nsignal.signal(signal.SIGUSR1, signal.SIG_IGN)", "signal"),
        ("import signal\nsignal.alarm(100)", "timers"),
        ("os.environ['LEFT'] = '1'", "environment"),
        ("os.environ.clear()", "environment"),
        ("import builtins\nbuiltins.print = len", "builtins"),
        ("import builtins\nbuiltins.extra = 1", "builtins"),
        ("import sys\nsys.path.append('/x')", "sys.path"),
        ("import sys\nsys.stdout = None", "streams"),
        ("import sys\nsys.stdin.close()", "streams"),
        ("import sys\nsys.setrecursionlimit(5000)", "interpreter"),
        ("import gc\ngc.disable()", "interpreter"),
        ("import shutil\nshutil.rmtree(os.getcwd())", "process state"),
    ],
)
def test_child_with_leftovers_is_not_used_again(code: str, left: str) -> None:
    async def test(pool: ChildPool) -> None:
        outcome = await pool.run(task(code))
        assert outcome.failure is None, outcome
        assert outcome.left_behind is not None
        assert left in outcome.left_behind
        following = await pool.run(task("result = 1"))
        assert following.pid != outcome.pid
        assert pool.stats().recycled_total == 1
        await until(lambda: not is_alive(outcome.pid))

    with_pool(test)


@pytest.mark.parametrize(
    "start",
    [
        "import subprocess\nresult = subprocess.Popen(['sleep', '60']).pid",
        "import subprocess\nresult = subprocess.Popen(['sleep', '60'], start_new_session=True).pid",
        # a daemon: its parent is gone, its session is another one
        "import subprocess\ncommand = ['setsid', 'sh', '-c', 'sleep 60 >/dev/null & echo $!']\n"
        "result = int(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)",
    ],
)
def test_processes_left_behind_are_killed(start: str) -> None:
    async def test(pool: ChildPool) -> None:
        outcome = await pool.run(task(start))
        assert outcome.left_behind == "processes"
        assert isinstance(outcome.value, int)
        await until(lambda: not is_alive(outcome.value) and not is_alive(outcome.pid))  # type: ignore[arg-type]

    with_pool(test)


def test_tidy_code_keeps_its_child() -> None:
    tidy = """
import concurrent.futures, subprocess, tempfile, asyncio, logging, contextlib, io
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    list(pool.map(str, range(10)))
subprocess.run(["true"], check=True)
asyncio.run(asyncio.sleep(0))
logging.warning("seen")
with contextlib.redirect_stdout(io.StringIO()):
    print("not seen")
with tempfile.NamedTemporaryFile(delete=False) as file:
    file.write(b"x")
os.makedirs("a/b/c")
open("a/b/file", "w").close()
os.symlink("/", "link")
result = [os.path.dirname(file.name) == os.getcwd(), os.environ["HOME"] == os.getcwd()]
"""

    async def test(pool: ChildPool) -> None:
        heard = Heard()
        first = await pool.run(task(tidy, env={"HOME2": "x"}), log=heard)
        assert (first.failure, first.left_behind, first.value) == (None, None, [True, True])
        assert "WARNING:root:seen" in heard.text("stderr")
        assert "not seen" not in heard.text()
        second = await pool.run(task("result = [os.listdir('.'), os.listdir('/') != []]"))
        assert second.pid == first.pid
        assert second.value == [[], True]
        assert pool.stats().recycled_total == 0

    with_pool(test)


def test_fork_that_returns_into_our_loop_answers_once() -> None:
    async def test(pool: ChildPool) -> None:
        outcome = await pool.run(task("result = os.fork() > 0"))
        assert outcome.value is True
        assert (await pool.run(task("result = 2"))).value == 2

    with_pool(test)


def test_namespace_is_fresh_for_each_task() -> None:
    async def test(pool: ChildPool) -> None:
        first = await pool.run(task("leak = 1\nresult = 1", input={"given": 1}))
        second = await pool.run(task("result = sorted(n for n in globals() if not n.startswith('__'))"))
        assert second.pid == first.pid
        assert second.value == ["args", "datetime", "input_data", "json", "os", "uuid"]

    with_pool(test)


def test_child_is_replaced_after_its_share_of_tasks() -> None:
    async def test(pool: ChildPool) -> None:
        pids = [(await pool.run(task("result = 1"))).pid for _ in range(7)]
        assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [3, 3, 1]

    with_pool(test, tasks_per_child_max=3)


# --- isolation -------------------------------------------------------------------------------------------


def test_tenants_and_organizations_never_share_a_child() -> None:
    async def test(pool: ChildPool) -> None:
        keys = [("a", "x"), ("a", "y"), ("b", "x")]
        seen: dict[int, set[tuple[str, str]]] = {}

        async def one(key: tuple[str, str]) -> None:
            outcome = await pool.run(task("result = 1"), tenant=key[0], organization=key[1])
            assert outcome.value == 1
            seen.setdefault(outcome.pid, set()).add(key)

        for _round in range(5):
            await asyncio.gather(*(one(key) for key in keys for _ in range(4)))
        assert all(len(owners) == 1 for owners in seen.values())
        assert {owner for owners in seen.values() for owner in owners} == set(keys)
        assert pool.stats().children <= 4

    with_pool(test, children_max=4)


def test_child_sees_neither_environment_nor_descriptors_of_the_worker() -> None:
    ours, theirs = os.pipe()
    os.set_inheritable(ours, True)
    code = """
def names(pid):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return [entry.partition(b"=")[0].decode() for entry in file.read().split(b"\\0")]
    except OSError as error:
        return type(error).__name__
result = {
    "env": dict(os.environ),
    "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd")),
    "stdio": [os.readlink(f"/proc/self/fd/{fd}") for fd in (0, 1, 2)],
    "others": [names(worker), names(os.getppid())],
    "own": names("self"),
    "group": os.getpgid(0) == os.getpid(),
    "umask": os.umask(0o077),
}
"""
    try:
        value: Any = run_one(code, input={"worker": os.getpid()}).value
    finally:
        os.close(ours)
        os.close(theirs)
    assert set(value["env"]) == {"PATH", "HOME", "TMPDIR"}
    assert value["fds"] == [0, 1, 2, 3, 4, 5, 6]  # 6 reads the directory
    assert value["stdio"] == ["/dev/null"] * 3
    assert value["group"] is True
    assert value["umask"] == 0o077
    assert value["others"] == ["PermissionError"] * 2
    assert value["own"] == "PermissionError" or set(value["own"]) <= {"MALLOC_ARENA_MAX", "PYTHONPATH", ""}


def test_child_cannot_look_into_the_child_of_another_tenant() -> None:
    code = """
try:
    result = [len(open(f"/proc/{other}/environ", "rb").read()), os.listdir(f"/proc/{other}/cwd")]
except OSError as error:
    result = type(error).__name__
"""

    async def test(pool: ChildPool) -> None:
        other = await pool.run(task("result = 1"), tenant="other")
        assert (await pool.run(task(code, input={"other": other.pid}))).value == "PermissionError"

    with_pool(test)


# --- places and queue ------------------------------------------------------------------------------------


def test_no_more_children_than_allowed_and_first_come_first_served() -> None:
    async def test(pool: ChildPool) -> None:
        code = "import time\nresult = time.monotonic()\ntime.sleep(0.01)"
        running = [asyncio.ensure_future(pool.run(task(code), tenant=f"t{n % 2}")) for n in range(12)]
        children = []
        while not all(future.done() for future in running):
            children.append(pool.stats().children)
            await asyncio.sleep(0.001)
        assert max(children) == 1
        started = [future.result().value for future in running]
        assert started == sorted(started)  # type: ignore[type-var]

    with_pool(test, children_max=1)


def test_tasks_run_at_the_same_time_up_to_the_limit() -> None:
    async def test(pool: ChildPool) -> None:
        code = "import time\na = time.monotonic()\ntime.sleep(0.1)\nresult = [a, time.monotonic()]"
        outcomes = await asyncio.gather(*(pool.run(task(code)) for _ in range(9)))
        spans: list[Any] = [outcome.value for outcome in outcomes]
        overlap = [sum(a < moment < b for a, b in spans) for moment, _end in spans]
        assert 1 <= max(overlap) <= 2
        assert len({outcome.pid for outcome in outcomes}) == 3

    with_pool(test, children_max=3)


def test_idle_child_of_another_tenant_makes_room() -> None:
    async def test(pool: ChildPool) -> None:
        first = await asyncio.gather(*(pool.run(task("result = 1"), tenant="a") for _ in range(3)))
        second = await pool.run(task("result = 1"), tenant="b")
        assert second.pid not in {outcome.pid for outcome in first}
        assert pool.stats().children <= 2

    with_pool(test, children_max=2)


def test_cancelling_kills_the_child(tmp_path: Path) -> None:
    async def test(pool: ChildPool) -> None:
        code = "open(path, 'w').write(str(os.getpid()))\nwhile True: pass"
        marker = tmp_path / "pid"
        running = asyncio.ensure_future(pool.run(task(code, input={"path": str(marker)})))
        await until(lambda: marker.exists() and marker.read_text())
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await until(lambda: not is_alive(int(marker.read_text())))
        assert (await pool.run(task("result = 1"))).value == 1

    with_pool(test)


def test_cancelling_a_waiting_task_gives_its_turn_to_the_next() -> None:
    async def test(pool: ChildPool) -> None:
        blocker = asyncio.ensure_future(pool.run(task("import time\ntime.sleep(0.1)\nresult = 'first'")))
        await until(lambda: pool.stats().idle == 0 and pool.stats().children == 1)
        waiting = [asyncio.ensure_future(pool.run(task(f"result = {n}"))) for n in range(4)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        waiting[2].cancel()
        results = await asyncio.gather(blocker, *waiting, return_exceptions=True)
        values = [result.value if isinstance(result, TaskOutcome) else type(result) for result in results]
        assert values == ["first", asyncio.CancelledError, 1, asyncio.CancelledError, 3]
        assert pool.stats().waiting == 0

    with_pool(test, children_max=1)


def test_cancelling_everywhere_loses_no_place() -> None:
    async def test(pool: ChildPool) -> None:
        for turns in range(40):
            running = [asyncio.ensure_future(pool.run(task("result = 1"), tenant=f"t{n % 3}")) for n in range(5)]
            for _turn in range(turns % 8):
                await asyncio.sleep(0)
            for future in running[::2]:
                future.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        outcomes = await asyncio.gather(*(pool.run(task("result = 1"), tenant=f"t{n % 3}") for n in range(6)))
        assert [outcome.value for outcome in outcomes] == [1] * 6
        await until(lambda: pool.stats().children == pool.stats().idle)

    with_pool(test, children_max=2)


# --- start and end ---------------------------------------------------------------------------------------


def test_first_task_does_not_wait_long() -> None:
    async def main() -> list[float]:
        pool = ChildPool()
        moments = [time.perf_counter()]
        await pool.start()
        moments.append(time.perf_counter())
        await pool.run(task("result = 1"))
        moments.append(time.perf_counter())
        await pool.close()
        return moments

    attempts = [asyncio.run(main()) for _ in range(3)]
    assert min(started - begun for begun, started, _done in attempts) < 0.5
    assert min(done - begun for begun, _started, done in attempts) < 3


def test_close_leaves_no_process_and_no_directory() -> None:
    async def main() -> tuple[list[int], Any]:
        pool = ChildPool()
        await pool.start()
        where: Any = (await pool.run(task("result = [os.getppid(), os.getcwd()]"))).value
        endless = [asyncio.ensure_future(pool.run(task("while True: pass"), tenant=f"t{n}")) for n in range(3)]
        await until(lambda: pool.stats().children >= 4 and pool.stats().waiting == 0)
        family = [int(pid) for pid in Path(f"/proc/{where[0]}/task/{where[0]}/children").read_text().split()]
        await pool.close()
        outcomes = await asyncio.gather(*endless, pool.run(task("result = 1")))
        assert [outcome.failure.kind for outcome in outcomes if outcome.failure] == ["cancelled"] * 4
        return [where[0], *family], where

    pids, (_zygote, directory) = asyncio.run(main())
    assert len(pids) >= 4
    assert not [pid for pid in pids if is_alive(pid)]
    assert not Path(directory).parent.exists()


def test_worker_killed_takes_everything_along(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(
        """
import asyncio, os, signal, sys
from noetl.core.expression import ResultView
from noetl.tools.python.pool import ChildPool, PythonTask
CODE = '''
import subprocess, time
sleeper = subprocess.Popen(["sleep", "60"], start_new_session=True)
open("started", "w").close()
with open(path, "a") as file:
    file.write(f"{os.getppid()} {os.getpid()} {sleeper.pid} {os.getcwd()}\\\\n")
time.sleep(60)
'''
async def main():
    pool = ChildPool()
    await pool.start()
    task = PythonTask(code=CODE, input={"path": sys.argv[1]}, names={}, context=None, libs={}, env={},
                      timeout_seconds=60, filename="<x>")
    running = [asyncio.ensure_future(pool.run(task, tenant=str(n))) for n in range(2)]
    while not os.path.exists(sys.argv[1]) or open(sys.argv[1]).read().count("\\n") < 2:
        await asyncio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    )
    seen = tmp_path / "seen"
    ended = subprocess.run([sys.executable, str(script), str(seen)], timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    lines = [line.split() for line in seen.read_text().splitlines()]
    pids = {int(pid) for line in lines for pid in line[:3]}
    assert len(pids) == 5  # one zygote, two children, two processes they started
    directory = Path(lines[0][3]).parent
    asyncio.run(until(lambda: not [pid for pid in pids if is_alive(pid)] and not directory.exists()))


def test_pool_survives_the_death_of_its_zygote() -> None:
    async def test(pool: ChildPool) -> None:
        zygote = (await pool.run(task("result = os.getppid()"))).value
        assert isinstance(zygote, int)
        running = asyncio.ensure_future(pool.run(task("import time\ntime.sleep(30)")))
        await until(lambda: pool.stats().idle == 0 or pool.stats().children > 1)
        os.kill(zygote, signal.SIGKILL)
        outcome = await running
        assert outcome.failure is not None
        assert outcome.failure.code == "PY_EXITED"
        await until(lambda: not is_alive(outcome.pid))
        assert (await pool.run(task("result = 1"))).value == 1

    with_pool(test)


def test_pool_that_cannot_have_children_says_so() -> None:
    async def test(pool: ChildPool) -> str:
        code = "import shutil\nresult = os.path.dirname(os.getcwd())\nshutil.rmtree(result)\nopen(result, 'w')"
        base = (await pool.run(task(code))).value
        assert isinstance(base, str)
        for _attempt in range(3):
            outcome = await pool.run(task("result = 1"), tenant="another")
            assert outcome.failure is not None
            assert outcome.failure.code in {"PY_UNAVAILABLE", "PY_EXITED"}
        os.unlink(base)
        assert (await pool.run(task("result = 1"))).value == 1
        return base

    assert not os.path.exists(with_pool(test, warm=0))


def test_input_that_is_no_data_is_a_failure() -> None:
    circular: dict[str, object] = {}
    circular["self"] = circular
    outcome = run_one("result = 1", input=circular)
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.pid) == ("INPUT_INVALID", 0)
    bad = run_one("result = 1", env={"A=B": "x"})
    assert bad.failure is not None
    assert (bad.failure.kind, bad.failure.code) == ("config", "ENV_INVALID")


def test_warm_tasks_are_quick() -> None:
    async def test(pool: ChildPool) -> float:
        work = task('result = {"n": n + 1}', input={"n": 1})
        taken = []
        for _ in range(500):
            before = time.perf_counter()
            await pool.run(work)
            taken.append(time.perf_counter() - before)
        return sorted(taken)[250]

    assert with_pool(test) < 0.1  # a process per task would take longer; `noetl bench` has the figures


# --- templates -------------------------------------------------------------------------------------------


def test_templates_with_loops_are_rendered_in_a_child() -> None:
    async def test(pool: ChildPool) -> None:
        async def render(source: object, **names: object) -> object:
            return await pool.render(source, names, now="2024-01-02T03:04:05Z", timeout_seconds=60)

        loop = "{% for row in rows %}{{ row.n }};{% endfor %}"
        assert await render(loop, rows=[{"n": 1}, {"n": 2}]) == "1;2;"
        assert await render({"a": ["{{ n }}", loop], "b": 5}, n=[1], rows=[]) == {"a": [[1], ""], "b": 5}
        assert await render("{{ now() }}") == "2024-01-02T03:04:05Z"
        assert await render("{{ step.n }}", step=ResultView({"n": Decimal("2")})) == 2
        with pytest.raises(TemplateInvalid):
            await render("{% for %}")
        with pytest.raises(TemplateFailed):
            await render("{{ missing + 1 }}")
        assert pool.stats().forked_total <= 2

    with_pool(test)


def test_template_over_its_time_or_work_is_refused() -> None:
    endless = "{% for a in r %}{% for b in r %}{% for c in r %}{% endfor %}{% endfor %}{% endfor %}"

    async def test(pool: ChildPool) -> None:
        with pytest.raises(TemplateRefused, match=r"0\.2 s"):
            await pool.render(endless, {"r": list(range(10_000))}, now=None, timeout_seconds=0.2)
        assert await pool.render("{{ 1 + 1 }}", {}, now=None, timeout_seconds=60) == 2

    with_pool(test)
