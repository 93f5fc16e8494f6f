"""A credential as the server to talk to (dsl §10.2).  The only place of the client that reveals a secret.

Everything that the driver would otherwise take from the environment or the home directory of the worker (password
files, client keys, services) is set here, so that a user's credential never borrows the worker's own."""

from __future__ import annotations

import hashlib
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from noetl.clients.postgres.failures import failed
from noetl.core.secret import Secret
from noetl.ports.secrets import Credential

PORT = 5432
# Roles of the private server that a tool may be.
PRIVATE_USERS = frozenset(("noetl_data", "noetl_reader"))

_TYPES = frozenset(("postgres", "postgresql", "generic"))
_SPELLINGS = {
    "host": ("db_host", "host", "hostname", "pg_host"),
    "port": ("db_port", "port"),
    "user": ("db_user", "user", "username"),
    "password": ("db_password", "password"),
    "database": ("db_name", "database", "dbname"),
    "sslmode": ("sslmode",),
    "options": ("options",),
    "sslrootcert": ("sslrootcert",),
}
_DSN_NAMES = ("dsn", "connection_string")
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_KEYWORD = re.compile(r"\s*(\w+)\s*=\s*(?:'((?:[^'\\]|\\.)*)'|((?:[^\s'\\]|\\.)*))", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where to connect and as whom."""

    host: str
    port: int
    user: str
    password: Secret[str]
    database: str
    sslmode: str
    options: str | None = None
    sslrootcert: str | None = None
    """Certificates as PEM text; without it the ones of the worker's system count."""

    @property
    def place(self) -> str:
        """What messages may say about it."""
        return f"{self.host}:{self.port}/{self.database}"

    @property
    def is_local(self) -> bool:
        return self.host.startswith("/")

    @property
    def socket(self) -> str:
        """The file of a local server; the driver also takes it in place of its folder."""
        return self.host if ".s.PGSQL." in self.host else os.path.join(self.host, f".s.PGSQL.{self.port}")

    def fingerprint(self) -> bytes:
        """Equal for equal credentials, and says nothing about them."""
        login = (self.host, self.port, self.user, self.password.reveal(), self.database)
        parts = (*login, self.sslmode, self.options, self.sslrootcert)
        return hashlib.blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=16).digest()

    def arguments(self) -> dict[str, Any]:
        """All that the driver needs, with nothing left to its own search."""
        settings = {"application_name": "noetl"}
        return {
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "password": self.password.reveal(),
            "database": self.database,
            "server_settings": settings if self.options is None else {**settings, "options": self.options},
            "direct_tls": False,
            "target_session_attrs": "any",
        }

    def encryption(self) -> list[ssl.SSLContext | bool]:
        """How to encrypt, in the order of trying."""
        if self.is_local or self.sslmode == "disable":
            return [False]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.sslmode == "verify-full"
        if not self.sslmode.startswith("verify"):
            context.verify_mode = ssl.CERT_NONE
        elif self.sslrootcert is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(cadata=self.sslrootcert)
        orders: dict[str, list[ssl.SSLContext | bool]] = {"allow": [False, context], "prefer": [context, False]}
        return orders.get(self.sslmode, [context])


def credential_of(auth: Credential | Mapping[str, Credential] | None, named: object) -> Credential:
    """The one credential of a call."""
    if isinstance(auth, Credential):
        credential = auth
    elif auth and len(auth) == 1:
        credential = next(iter(auth.values()))
    elif auth:
        raise failed("config", f"auth must name one credential, not {len(auth)}")
    elif named in (None, ""):
        raise failed("config", "auth is required: it names a credential of type postgres")
    else:
        raise failed("auth", "the credential that auth names was not resolved", "AUTH_UNRESOLVED")
    if credential.type.lower() not in _TYPES:
        raise failed("auth", f"credential {credential.name!r} has type {credential.type!r}, not postgres")
    return credential


def data_of(credential: Credential) -> Mapping[str, Any]:
    """Its fields, to see whether they are those that were seen before."""
    return credential.data.reveal()


def target_of(credential: Credential) -> Target:
    """Where a credential leads.  Messages name its fields and never their values."""
    data = data_of(credential)
    fields = _from_dsn(credential.name, _first(data, _DSN_NAMES))
    for name, spellings in _SPELLINGS.items():
        value = _first(data, spellings)
        if value is not None:
            fields[name] = value
    for name in ("host", "user"):
        if not fields.get(name):
            raise failed("config", f"credential {credential.name!r} has no {' or '.join(_SPELLINGS[name])}")
    sslmode = fields.get("sslmode", "prefer").lower()
    if sslmode not in _SSL_MODES:
        raise failed("config", f"credential {credential.name!r}: sslmode must be one of {', '.join(_SSL_MODES)}")
    if "," in fields["host"]:
        raise failed("config", f"credential {credential.name!r} names several hosts: one is supported")
    if not all(_is_sendable(value) for value in fields.values()):
        raise failed("config", f"credential {credential.name!r} has a character that no server takes")
    return Target(
        host=fields["host"],
        port=_port(credential.name, fields.get("port")),
        user=fields["user"],
        password=Secret(fields.get("password", "")),
        database=fields.get("database") or fields["user"],
        sslmode=sslmode,
        options=fields.get("options"),
        sslrootcert=_certificates(credential.name, fields.get("sslrootcert")),
    )


def check_private(target: Target, private_hosts: tuple[str, ...]) -> None:
    """Refuse the server of the control plane, except to the roles that are made for tools.

    It trusts whoever opens its socket, so the socket itself is compared, under whatever name it was given."""
    if not target.is_local or target.user in PRIVATE_USERS:
        return
    try:
        found = os.stat(target.socket)
    except OSError:
        return  # the connection will say what is wrong
    for host in private_hosts:
        if any(_is_same(found, file) for file in _sockets(host)):
            allowed = " or ".join(sorted(PRIVATE_USERS))
            raise failed("auth", f"{target.place} is NoETL's own server: a tool may only be {allowed} there")


def _sockets(host: str) -> list[str]:
    try:
        return [entry.path for entry in os.scandir(host) if ".s.PGSQL." in entry.name]
    except OSError:
        return []


def _is_same(found: os.stat_result, file: str) -> bool:
    try:
        return os.path.samestat(found, os.stat(file))
    except OSError:
        return False


def _is_sendable(value: str) -> bool:
    return "\0" not in value and not any("\ud800" <= character <= "\udfff" for character in value)


def _first(data: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    for name in names:
        value = data.get(name)
        if value is not None and value != "":
            return str(value)
    return None


def _port(name: str, text: str | None) -> int:
    if text is None:
        return PORT
    if not text.isascii() or not text.isdigit() or not 0 < int(text[:9]) < 65536:
        raise failed("config", f"credential {name!r}: the port must be a number from 1 to 65535")
    return int(text)


def _certificates(name: str, text: str | None) -> str | None:
    if text is None or text == "system":
        return None
    if "-----BEGIN CERTIFICATE-----" not in text:
        raise failed("config", f"credential {name!r}: sslrootcert must be the certificates themselves, as PEM text")
    return text


def _from_dsn(name: str, dsn: str | None) -> dict[str, str]:
    """The fields of a connection URL or of `keyword=value` pairs."""
    if dsn is None:
        return {}
    if "://" not in dsn:
        return _known({key: re.sub(r"\\(.)", r"\1", a or b) for key, a, b in _KEYWORD.findall(dsn)})
    try:
        url = urlsplit(dsn)
        scheme, port = url.scheme.partition("+")[0], url.port
        pairs = dict(parse_qsl(url.query))
    except ValueError:
        # The cause would quote the address, and the address holds the password.
        raise failed("config", f"credential {name!r}: its connection URL cannot be read") from None
    if scheme not in ("postgres", "postgresql"):
        raise failed("config", f"credential {name!r}: a connection URL begins with postgresql://")
    parts = {
        "host": unquote(_host(url.netloc.rpartition("@")[2])),
        "port": "" if port is None else str(port),
        "user": unquote(url.username or ""),
        "password": unquote(url.password or ""),
        "database": unquote(url.path.removeprefix("/")),
    }
    return {**_known(pairs), **{key: value for key, value in parts.items() if value}}


def _host(netloc: str) -> str:
    """Without the port, and with its case: a folder is a host too."""
    if netloc.startswith("["):
        return netloc[1:].partition("]")[0]
    return netloc.partition(":")[0]


def _known(pairs: Mapping[str, str]) -> dict[str, str]:
    found = {name: _first(pairs, spellings) for name, spellings in _SPELLINGS.items()}
    return {name: value for name, value in found.items() if value is not None}
