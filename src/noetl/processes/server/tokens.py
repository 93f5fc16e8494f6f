"""Tokens: configured, or made at start and kept in a private file, so that others on this machine find them."""

from __future__ import annotations

import fcntl
import ipaddress
import json
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from noetl.core.codec import sha256_hex
from noetl.core.errors import SettingsInvalid
from noetl.settings import Settings

TOKEN_FILE = "server.token"  # noqa: S105 - a file's name
TOKEN_BYTES = 32
TOKEN_NAMES = ("token", "worker_token")
_ADMIN = frozenset(("api", "worker", "admin"))
_WORKER = frozenset(("worker",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What the bearer of a token may do.  Only the token's digest is known."""

    sha256: str
    scopes: frozenset[str]
    tenant_id: str | None = None
    organization_id: str | None = None


@dataclass(frozen=True, slots=True)
class TokenPair:
    """The token of people and programs, which may do everything, and that of workers."""

    token: str
    worker_token: str

    def __repr__(self) -> str:
        return "TokenPair(***)"


def token_path(home: Path) -> Path:
    return home / TOKEN_FILE


def serving_tokens(settings: Settings) -> TokenPair:
    """The tokens a server accepts.  One that is not configured is taken from the file, or made and kept there: a
    restarted server accepts what its workers already hold."""
    with _exclusive(settings.home):
        made = _made(settings)
    pair = TokenPair(settings.token or made["token"], settings.worker_token or made["worker_token"])
    if pair.token == pair.worker_token:
        raise SettingsInvalid("NOETL_TOKEN and NOETL_WORKER_TOKEN must differ: a worker may do less")
    return pair


def _made(settings: Settings) -> dict[str, str]:
    known = read_token_file(settings.home)
    made = {
        name: known.get(name) or secrets.token_urlsafe(TOKEN_BYTES)
        for name, configured in (("token", settings.token), ("worker_token", settings.worker_token))
        if configured is None
    }
    if made != known:
        _write(token_path(settings.home), made)
    return made


@contextmanager
def _exclusive(home: Path) -> Iterator[None]:
    """Servers that share a home and start together must end with the same tokens."""
    descriptor = os.open(home / f"{TOKEN_FILE}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def grants_of(pair: TokenPair, tokens_file: Path | None) -> list[Grant]:
    own = [
        Grant(sha256=sha256_hex(pair.token.encode()), scopes=_ADMIN),
        Grant(sha256=sha256_hex(pair.worker_token.encode()), scopes=_WORKER),
    ]
    return own + (_listed(tokens_file) if tokens_file else [])


def read_token_file(home: Path) -> dict[str, str]:
    """The tokens that the server of this home made; a file that others could have read or written is not believed."""
    try:
        descriptor = os.open(token_path(home), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return {}
    with os.fdopen(descriptor) as file:
        found = os.fstat(file.fileno())
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            return {}
        try:
            document = json.load(file)
        except ValueError:
            return {}
    if not isinstance(document, dict):
        return {}
    return {name: value for name, value in document.items() if name in TOKEN_NAMES and isinstance(value, str) and value}


def _write(path: Path, tokens: dict[str, str]) -> None:
    """A new file beside it, then renamed: nobody sees half of it, and it was never open to others."""
    if not tokens:
        path.unlink(missing_ok=True)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(tokens, file)
    temporary.replace(path)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listed(path: Path) -> list[Grant]:
    """Further tokens by digest: `[{"sha256": …, "scopes": ["api"], "tenant_id": …, "organization_id": …}]`."""
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsInvalid(f"NOETL_TOKENS_FILE {path} cannot be read as JSON: {error}") from error
    if not isinstance(document, list):
        raise SettingsInvalid(f"NOETL_TOKENS_FILE {path} must be a JSON list")
    return [_grant(entry, f"NOETL_TOKENS_FILE {path}, entry {number}") for number, entry in enumerate(document, 1)]


def _grant(entry: object, where: str) -> Grant:
    if not isinstance(entry, dict) or not set(entry) <= {"sha256", "scopes", "tenant_id", "organization_id"}:
        raise SettingsInvalid(f"{where}: the members are sha256, scopes, tenant_id and organization_id")
    digest, scopes = entry.get("sha256"), entry.get("scopes")
    if not isinstance(digest, str) or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise SettingsInvalid(f"{where}: sha256 must be the lower-case hexadecimal digest of a token")
    if not isinstance(scopes, list) or not scopes or not set(map(str, scopes)) <= _ADMIN:
        raise SettingsInvalid(f"{where}: scopes must be a list of api, worker and admin")
    names = {name: entry.get(name) for name in ("tenant_id", "organization_id")}
    for name, value in names.items():
        if value is not None and (not isinstance(value, str) or not 0 < len(value) <= 100 or not value.isprintable()):
            raise SettingsInvalid(f"{where}: {name} must be 1 to 100 printable characters")
    if any(value is not None for value in names.values()) and "worker" in scopes:
        raise SettingsInvalid(f"{where}: a worker serves every tenant, so its token cannot be bound to one")
    return Grant(sha256=digest, scopes=frozenset(map(str, scopes)), **names)
