"""What children print, with real ones: it comes while they run, whole, to the right task, and is never in the way."""

from __future__ import annotations

import asyncio
import struct
import time
from pathlib import Path

import pytest

from noetl.core import limits
from noetl.tools.python import wire
from noetl.tools.python.pool import ChildPool
from tests.support.children import task, until, with_pool
from tests.support.logs import Heard

RECORD = "struct.pack('!QBdH', ticket, 1, 0.0, len(text)) + text"


def test_a_line_arrives_while_its_task_still_runs(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    code = "import time\nprint('first')\nwhile not os.path.exists(gate): time.sleep(0.005)\nprint('second')"

    async def test(pool: ChildPool) -> None:
        heard = Heard()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(pool.run(task(code, input={"gate": str(gate)}), log=heard))
            await until(lambda: heard.text() == "first\n")
            assert not running.done()
            gate.touch()
        assert heard.text() == "first\nsecond\n"

    with_pool(test)


def test_moments_are_of_the_clock_that_this_process_has_too() -> None:
    async def test(pool: ChildPool) -> None:
        heard = Heard()
        before = time.monotonic()
        await pool.run(task("for n in range(5): print(n)"), log=heard)
        moments = [at for _, _, at in heard.texts if at is not None]
        assert moments == sorted(moments)
        assert before <= moments[0] <= moments[-1] <= time.monotonic()

    with_pool(test)


@pytest.mark.parametrize(
    ("deed", "code"),
    [
        ("os._exit(3)", "PY_EXITED"),
        ("os.kill(os.getpid(), 9)", "PY_EXITED"),
        ("import time; time.sleep(100)", "PY_TIMEOUT"),
        ("import ctypes; ctypes.string_at(0)", "PY_EXITED"),
    ],
)
def test_last_words_are_heard(deed: str, code: str) -> None:
    async def test(pool: ChildPool) -> None:
        heard = Heard()
        seconds = 3.0 if code == "PY_TIMEOUT" else 60.0
        outcome = await pool.run(task(f"print('last words')\n{deed}", timeout=seconds), log=heard)
        assert outcome.failure is not None
        assert (outcome.failure.code, heard.text()) == (code, "last words\n")

    with_pool(test)


def test_text_without_a_line_end_comes_with_the_end_of_its_task() -> None:
    code = """
import sys
print("no end", end="")
sys.stderr.write("half")
sys.stdout.buffer.write("bytes é ".encode())
sys.stdout.writelines(["a", "b"])
for character in "x" * 10_000:
    sys.stdout.write(character)
"""

    async def test(pool: ChildPool) -> None:
        heard, next_one = Heard(), Heard()
        first = await pool.run(task(code), log=heard)
        assert heard.text("stdout") == "no endbytes é ab" + "x" * 10_000
        assert heard.text("stderr") == "half"
        second = await pool.run(task("print('own')"), log=next_one)
        assert (next_one.text(), second.pid) == ("own\n", first.pid)

    with_pool(test)


def test_long_texts_and_threads_lose_nothing() -> None:
    code = """
import threading
print("é" * 30_000)
def speak(name):
    for n in range(500):
        print(f"{name}-{n}\\n", end="")
threads = [threading.Thread(target=speak, args=(name,)) for name in "abcd"]
for one in threads: one.start()
for one in threads: one.join()
"""

    async def test(pool: ChildPool) -> None:
        heard = Heard()
        outcome = await pool.run(task(code), log=heard)
        assert (outcome.failure, outcome.dropped_chars) == (None, 0)
        first, *lines = heard.text().splitlines()
        assert first == "é" * 30_000
        assert sorted(lines) == sorted(f"{name}-{n}" for name in "abcd" for n in range(500))

    with_pool(test)


# --- never in the way --------------------------------------------------------------------------------------------


def test_a_worker_that_does_not_read_loses_output_and_no_answer(tmp_path: Path) -> None:
    """The task ends although nobody reads for as long as it prints; what it lost is counted."""
    lines = 20_000
    done = tmp_path / "done"
    code = f"for n in range({lines}): print('x' * 99)\nopen(done, 'w').close()\nresult = 'answered'"

    async def test(pool: ChildPool) -> None:
        heard = Heard()
        await pool.run(task("pass"))
        with_done = task(code, input={"done": str(done)})
        async with asyncio.TaskGroup() as group:
            running = group.create_task(pool.run(with_done, log=heard))
            await asyncio.sleep(0)
            while not done.exists():
                time.sleep(0.005)  # the loop is to stand still
        outcome = running.result()
        assert outcome.value == "answered"
        assert outcome.dropped_chars > 0
        assert len(heard.text().replace(wire.GAP, "")) + outcome.dropped_chars == lines * 100
        after = Heard()
        await pool.run(task("print('fine again')"), log=after)
        assert after.text() == "fine again\n"

    with_pool(test)


def test_exceptions_out_of_nowhere_break_no_answer() -> None:
    """A timer of user code raises in the middle of whatever it does, most of the time in `print`."""
    code = """
import signal
class Ring(Exception): pass
def ring(*_): raise Ring
signal.signal(signal.SIGALRM, ring)
rings = 0
for n in range(300):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0001)
        while True: print("x" * 50)
    except Ring:
        rings += 1
signal.signal(signal.SIGALRM, signal.SIG_DFL)
print("\\nthe end")
result = rings
"""

    async def test(pool: ChildPool) -> None:
        heard = Heard()
        outcome = await pool.run(task(code), log=heard)
        assert outcome.value == 300, outcome
        assert heard.text().endswith("\nthe end\n")
        assert (await pool.run(task("result = 1"))).value == 1

    with_pool(test)


def test_a_pipe_that_user_code_closed_breaks_nothing() -> None:
    async def test(pool: ChildPool) -> None:
        heard = Heard()
        outcome = await pool.run(task("print('seen')\nos.close(5)\nprint('lost')\nresult = 1"), log=heard)
        assert (outcome.value, heard.text()) == (1, "seen\n")
        assert outcome.left_behind is not None
        assert (await pool.run(task("result = 2"))).value == 2

    with_pool(test)


# --- lies ------------------------------------------------------------------------------------------------------


def test_what_a_task_writes_in_the_name_of_others_is_heard_by_nobody() -> None:
    """It knows the form of a record and guesses the tickets: those of tasks before and after it."""
    forging = f"""
import struct
text = b"forged\\n"
for ticket in range(100):
    if ticket != own:
        os.write(5, {RECORD})
print("true")
"""

    async def test(pool: ChildPool) -> None:
        heard = [Heard() for _ in range(6)]
        pids = set()
        for number, log in enumerate(heard):
            code = forging if number == 2 else "print('true')"
            outcome = await pool.run(task(code, input={"own": number}), log=log)
            assert outcome.failure is None
            pids.add(outcome.pid)
        assert len(pids) == 1
        assert [log.text() for log in heard] == ["true\n"] * 6

    with_pool(test)


def test_what_is_no_record_costs_the_child_its_voice_and_nothing_else() -> None:
    async def test(pool: ChildPool) -> None:
        heard = Heard()
        outcome = await pool.run(task("os.write(5, b'\\xff' * 4000)\nprint('unheard')\nresult = 7"), log=heard)
        assert (outcome.value, outcome.failure) == (7, None)
        assert (await pool.run(task("print('x')\nresult = 8"))).value == 8
        assert "\xff" not in heard.text()

    with_pool(test)


def test_output_of_a_row_that_is_over_is_not_taken_for_the_next_one() -> None:
    code = """
import struct
text = b"late\\n"
if n == 1:
    os.write(5, b"".join(struct.pack('!QBdH', ticket, 1, 0.0, len(text)) + text for ticket in range(1000, 1100)))
print(n)
"""

    async def test(pool: ChildPool) -> None:
        heard = [Heard() for _ in range(50)]
        for n, log in enumerate(heard):
            await pool.run_row(task(code, input={"n": n}), log=log)
        assert [log.text() for log in heard] == [f"{n}\n" for n in range(50)]

    with_pool(test)


def test_a_record_fits_into_what_a_pipe_takes_in_one_piece() -> None:
    largest = wire.output_record(2**64 - 1, wire.STDERR, 1.5, "x" * wire.OUTPUT_TEXT_BYTES_MAX)
    assert len(largest) == 4096
    (found,) = wire.output_records(bytearray(largest))
    assert found == (2**64 - 1, wire.STDERR, 1.5, "x" * wire.OUTPUT_TEXT_BYTES_MAX)
    partial = bytearray(largest[:100])
    assert list(wire.output_records(partial)) == []
    assert len(partial) == 100
    with pytest.raises(wire.FrameInvalid):
        list(wire.output_records(bytearray(struct.pack("!QBdH", 1, 7, 0.0, 0))))
    assert limits.LOG_BLOCKED_SECONDS_MAX < 1
