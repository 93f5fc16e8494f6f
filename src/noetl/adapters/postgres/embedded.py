"""The private Postgres server of one NOETL_HOME: start or adopt it, stop it, say where it answers.

The server outlives the process that started it, whatever happens to that process; the next one adopts it.
So nothing here keeps state in memory: the data directory and the process list are asked each time.  Never
call it from inside an event loop, it blocks.  It needs the /proc of Linux.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import signal
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from noetl.adapters.postgres.locations import (
    PORT,
    Place,
    ServerUser,
    existing_place,
    locked,
    prepare_place,
    prepare_socket_dir,
    server_user,
    usable_binaries,
)
from noetl.core.errors import EmbeddedPostgresFailed

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 20.0
ANSWER_SECONDS_MAX = 5.0
REMAINS_SECONDS_MAX = 10.0
REMAINS_GRACE_SECONDS = 5.0
LOG_BYTES_MAX = 10_000_000
LOG_TAIL_LINES = 15

_POLL_SECONDS = 0.005
_LOG_TAIL_BYTES = 8_192
_PID_FILE_BYTES_MAX = 4_096
_PASSING_DATA = "data.new-"
_SSL_REQUEST = struct.pack("!ii", 8, 80877103)

# `&` detaches the server from the shell, which ends at once: the server is nobody's child to wait for, and
# opening the log is done with the rights of the server's user.
_LAUNCH = 'exec 3>&1 >>"$0"; "$@" </dev/null 2>&1 3>&- & echo $! >&3'

# In single-user mode an empty line ends a statement.  The data role must never reach the control database.
_FIRST_STATEMENTS = b"""\
CREATE ROLE noetl LOGIN;

CREATE ROLE noetl_data LOGIN;

CREATE DATABASE noetl OWNER noetl;

CREATE DATABASE noetl_data OWNER noetl_data;

REVOKE CONNECT ON DATABASE noetl FROM PUBLIC;

"""

_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "port": str(PORT),
    "shared_buffers": "128MB",
    "max_connections": "100",
    "jit": "off",
    "max_wal_size": "1GB",
    "checkpoint_timeout": "15min",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "logging_collector": "off",
    # The life of the server, not the failing statements of its clients: those carry user data, and the log
    # is only rotated at start.
    "log_min_messages": "log",
}
_SETTINGS_BY_VERSION = {"18": {"io_method": "sync"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    socket_dir: Path
    port: int
    pid: int
    adopted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _PidFile:
    """What a server writes about itself into postmaster.pid; the last lines appear while it starts."""

    pid: int
    port: int | None
    socket_dir: Path | None
    status: str


class EmbeddedPostgres:
    def __init__(
        self,
        home: Path,
        *,
        os_user: str | None = None,
        system_root: Path = Path("/var/lib/noetl"),
        version: str = "18",
    ) -> None:
        self._home = home.expanduser().resolve()
        self._os_user = os_user
        self._system_root = system_root
        self._version = version

    def start(self) -> ServerAddress:
        """The running server of this home, adopted when there is one; makes home and data when missing."""
        if not os.path.exists("/proc/self/cmdline"):
            raise EmbeddedPostgresFailed("the embedded Postgres needs Linux with /proc: use your own server")
        if not str(self._home).isprintable():
            raise EmbeddedPostgresFailed(f"NOETL_HOME {str(self._home)!r} has unprintable characters: move it")
        with _explained("start", self._home):
            self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(self._lock):
                place = existing_place(self._home, self._system_root)
                pid = _find_postmaster(place)
                if pid is not None:
                    if address := _await_answer(place, pid, adopted=True):
                        return address
                    _halt(place, pid)
                return self._start_own()

    def stop(self) -> bool:
        """Stop the server of this home, whoever started it; False when none was running."""
        with _explained("stop", self._home):
            if not self._home.is_dir():
                return False
            with locked(self._lock):
                place = existing_place(self._home, self._system_root)
                pid = _find_postmaster(place)
                if pid is None:
                    return False
                _halt(place, pid)
                return True

    def running(self) -> ServerAddress | None:
        """The server of this home when it runs and answers; changes nothing and waits for nobody."""
        place = existing_place(self._home, self._system_root)
        found = _read_pid_file(place)
        if found is None or not _serves(found.pid, place):
            return None
        return _address(found, adopted=True)

    @staticmethod
    def has_ended(address: ServerAddress) -> bool:
        """Whether the server behind an address is gone.  Cheap: it asks the kernel, not the server."""
        return _ended(address.pid)

    @property
    def _lock(self) -> Path:
        return self._home / "postgres.lock"

    def _start_own(self) -> ServerAddress:
        user = server_user(self._os_user)
        place = prepare_place(self._home, user, self._system_root)
        binaries = usable_binaries(self._version, user, self._system_root)
        socket_dir = prepare_socket_dir(place, user)
        if not os.path.lexists(place.data):
            _create_data(place, user, binaries)
        had_remains = False
        retry_until = time.monotonic() + REMAINS_SECONDS_MAX
        while True:
            # Looked up again each time: a start whose process was killed may bring its server up just now.
            pid = _find_postmaster(place)
            adopted = pid is not None
            if pid is None:
                had_remains = _clear_remains(place, socket_dir)
                pid = self._launch(place, user, binaries, socket_dir)
            if address := _await_answer(place, pid, adopted=adopted):
                return address
            _halt(place, pid)
            if not (adopted or had_remains) or time.monotonic() > retry_until:
                raise _failure("Postgres did not come up", place, "The log says why")

    def _launch(self, place: Place, user: ServerUser, binaries: Path, socket_dir: Path) -> int:
        settings = {
            **_SETTINGS,
            **_SETTINGS_BY_VERSION.get(self._version, {}),
            "unix_socket_directories": str(socket_dir),
            "cluster_name": place.title,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with suppress(FileNotFoundError):
            if place.log.lstat().st_size > LOG_BYTES_MAX:
                place.log.rename(place.log.with_name("server.log.old"))
        server: list[str | Path] = [binaries / "bin" / "postgres", "-D", place.data, *options]
        launched = user.run(["/bin/sh", "-c", _LAUNCH, place.log, *server], new_session=True)
        if launched.returncode != 0:
            raise _failure("Postgres could not be launched", place, _text(launched.stderr))
        return int(launched.stdout)


def dsn(address: ServerAddress, *, database: str, user: str) -> str:
    """An address that asyncpg, psycopg and psql all take."""
    host = quote(str(address.socket_dir), safe="/")
    return f"postgresql://{quote(user, safe='')}@/{quote(database, safe='')}?host={host}&port={address.port}"


def _create_data(place: Place, user: ServerUser, binaries: Path) -> None:
    """Make the data directory with its roles and databases under a passing name, then rename it.

    A kill at any moment leaves no `data`, so a `data` that exists is always complete.
    """
    for abandoned in place.directory.glob(f"{_PASSING_DATA}*"):
        _remove(abandoned)
    passing = place.directory / f"{_PASSING_DATA}{secrets.token_hex(4)}"
    single = ["--single", "-j", "--exit_on_error=on", "--fsync=off"]
    # `trust` is right here: whoever can open the socket is the server's user or root, and both could read
    # the data files anyway.  The wall is the 0700 of the socket directory.
    initdb = ["-U", "postgres", "--auth=trust", "--no-sync", "--locale=C.UTF-8", "-E", "UTF8"]
    try:
        _must_run(user, [binaries / "bin" / "initdb", *initdb, "-D", passing])
        _must_run(user, [binaries / "bin" / "postgres", *single, "-D", passing, "postgres"], _FIRST_STATEMENTS)
        # One sync at the end, before the name exists: a power cut must not take committed events with it.
        _must_run(user, [binaries / "bin" / "initdb", "--sync-only", "-D", passing])
    except EmbeddedPostgresFailed:
        _remove(passing)
        raise
    passing.rename(place.data)
    parent = os.open(place.directory, os.O_RDONLY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)


def _must_run(user: ServerUser, command: list[str | Path], stdin: bytes = b"") -> None:
    done = user.run(command, stdin=stdin)
    if done.returncode != 0:
        raise EmbeddedPostgresFailed(
            f"the data directory could not be made: {shlex.join(map(str, command))} ended with code "
            f"{done.returncode} as user {user.name!r}. Check free space and rights.\n{_text(done.stderr)}"
        )


def _remove(abandoned: Path) -> None:
    """Remove a half-made data directory.  An initdb that outlived its caller may still write for a moment."""
    until = time.monotonic() + REMAINS_SECONDS_MAX
    while os.path.lexists(abandoned) and time.monotonic() < until:
        shutil.rmtree(abandoned, ignore_errors=True)
        time.sleep(_POLL_SECONDS)


def _await_answer(place: Place, pid: int, *, adopted: bool) -> ServerAddress | None:
    """Wait until `pid` answers; None when it ended, is stopping, or is ready but cannot be reached."""
    until = time.monotonic() + START_SECONDS_MAX
    unreachable_since: float | None = None
    while not _ended(pid):
        found = _read_pid_file(place)
        if found is not None and found.pid == pid:
            if address := _address(found, adopted=adopted):
                return address
            if found.status == "stopping":
                return None
            if found.status == "ready":
                unreachable_since = unreachable_since or time.monotonic()
                if time.monotonic() - unreachable_since > ANSWER_SECONDS_MAX:
                    return None
        if time.monotonic() > until:
            advice = "It goes on, perhaps with recovery after a crash: start again to wait for it"
            raise _failure(f"Postgres (pid {pid}) is not ready after {START_SECONDS_MAX:.0f} s", place, advice)
        time.sleep(_POLL_SECONDS)
    return None


def _halt(place: Place, pid: int) -> None:
    """Fast stop: open transactions are rolled back, everything committed is on disk."""
    if _serves(pid, place):  # asked again just before the signal, for the pid may be another's by now
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)
    if not _wait_ended([pid], STOP_SECONDS_MAX):
        advice = f"It is still running: look at the log, then `kill -QUIT {pid}`"
        raise _failure(f"Postgres (pid {pid}) did not stop in {STOP_SECONDS_MAX:.0f} s", place, advice)


def _clear_remains(place: Place, socket_dir: Path) -> bool:
    """Remove what a server that died left behind; True when there was something.

    Postgres refuses to start while an old backend is attached to its shared memory, and also when the pid
    in one of its lock files lives on as another program.  Removing the lock files is safe only because no
    process of the old server is left when we do it.
    """
    if _answers(socket_dir, PORT):
        advice = "It may run in another container or have been moved: stop it there first"
        raise _failure(f"a server that is not visible here answers in {socket_dir}", place, advice)
    recorded = _read_pid_file(place)
    remains = _backends(place)
    if recorded is not None and _is_dying(recorded.pid, place):
        remains.append(recorded.pid)
    for kill_signal, seconds in (
        (signal.SIGQUIT, REMAINS_GRACE_SECONDS),
        (signal.SIGKILL, REMAINS_SECONDS_MAX - REMAINS_GRACE_SECONDS),
    ):
        for pid in (pid for pid in remains if not _ended(pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, kill_signal)
        if _wait_ended(remains, seconds):
            break
    else:
        raise _failure(f"old server processes {remains} do not end", place, "End them, then start again")
    found_files = False
    for lock_file in (place.pid_file, socket_dir / f".s.PGSQL.{PORT}.lock"):
        with suppress(FileNotFoundError):
            lock_file.unlink()
            found_files = True
    return found_files or bool(remains)


# --- the pid file and the socket -------------------------------------------------------------------------


def _read_pid_file(place: Place) -> _PidFile | None:
    text = _read(place.pid_file, _PID_FILE_BYTES_MAX)
    lines = [line.strip() for line in text.splitlines()]
    # pid, data directory, start time, port, socket directory, listen address, shared memory, status
    lines += [""] * (8 - len(lines))
    if not lines[0].isdecimal() or int(lines[0]) <= 1:
        return None
    return _PidFile(
        pid=int(lines[0]),
        port=int(lines[3]) if lines[3].isdecimal() else None,
        socket_dir=Path(lines[4]) if lines[4] else None,
        status=lines[7],
    )


def _address(found: _PidFile, *, adopted: bool) -> ServerAddress | None:
    if found.status != "ready" or found.port is None or found.socket_dir is None:
        return None
    if not _answers(found.socket_dir, found.port):
        return None
    return ServerAddress(socket_dir=found.socket_dir, port=found.port, pid=found.pid, adopted=adopted)


def _answers(socket_dir: Path, port: int) -> bool:
    """Ask for TLS: a server answers that with one byte, even when all its connections are taken."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client, suppress(OSError):
        client.settimeout(1.0)
        client.connect(str(socket_dir / f".s.PGSQL.{port}"))
        client.sendall(_SSL_REQUEST)
        return client.recv(1) in (b"N", b"S")
    return False


# --- the process list ------------------------------------------------------------------------------------
# Only what everybody may read of a process is used: root in a container may not look at the executable or
# the working directory of another user's process.  A process of another user than the owner of the data is
# never ours, whatever it calls itself, so that nobody can make root send signals to it.


def _find_postmaster(place: Place) -> int | None:
    recorded = _read_pid_file(place)
    if recorded is not None and _serves(recorded.pid, place):
        return recorded.pid
    return next((pid for pid in _pids() if _serves(pid, place)), None)


def _serves(pid: int, place: Place) -> bool:
    """Is `pid` the main process of the server of this data directory?  (Its children change their title.)"""
    words = _words(pid)
    if len(words) < 3 or os.path.basename(words[0]) != b"postgres":
        return False
    return words[1:3] == [b"-D", os.fsencode(place.data)] and _is_owner(pid, place)


def _backends(place: Place) -> list[int]:
    title = f"postgres: {place.title}: ".encode()
    return [pid for pid in _pids() if (words := _words(pid)) and words[0].startswith(title) and _is_owner(pid, place)]


def _is_dying(pid: int, place: Place) -> bool:
    """A killed process first loses its command line, then its shared memory, then its place in the list."""
    return not _ended(pid) and _words(pid) == [b""] and _is_owner(pid, place)


def _is_owner(pid: int, place: Place) -> bool:
    with suppress(OSError):
        return os.stat(f"/proc/{pid}").st_uid == place.data.lstat().st_uid
    return False


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())


def _words(pid: int) -> list[bytes]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return []


def _ended(pid: int) -> bool:
    """Gone, or a zombie that nobody has collected: both have let go of files and memory."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/stat").read_bytes()
        return status.rpartition(b")")[2].split()[:1] in ([b"Z"], [b"X"])
    return True


def _wait_ended(pids: list[int], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not all(_ended(pid) for pid in pids):
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_SECONDS)
    return True


# --- failures --------------------------------------------------------------------------------------------


@contextmanager
def _explained(verb: str, home: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EmbeddedPostgresFailed(
            f"cannot {verb} the embedded Postgres of {home}: {error}. Check free space and rights."
        ) from error


def _failure(what: str, place: Place, advice: str) -> EmbeddedPostgresFailed:
    with suppress(OSError):
        size = place.log.lstat().st_size
        tail = _read(place.log, _LOG_TAIL_BYTES, offset=max(0, size - _LOG_TAIL_BYTES))
        lines = "\n".join(tail.splitlines()[-LOG_TAIL_LINES:])
        advice = f"{advice}. Last lines of {place.log}:\n{lines}"
    return EmbeddedPostgresFailed(f"{what} (data in {place.data}). {advice}")


def _read(path: Path, size: int, *, offset: int = 0) -> str:
    """Read a file of the server's user; never through a link, for root would read anything that way."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return _text(os.pread(descriptor, size, offset))
    finally:
        os.close(descriptor)


def _text(raw: bytes) -> str:
    return raw[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
