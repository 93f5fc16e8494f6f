"""Inputs that Spark reads itself: paths, tables of its catalog, and data sources of ours.

The only place of the tool that reveals a secret: what data sources need to be let in goes into the job's message, apart
from their options."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from noetl.clients.http.credentials import auth_headers
from noetl.clients.postgres.target import check_private, credential_of, target_of
from noetl.core.expression import to_text
from noetl.ports.data.compute import JobCredential, JobInput
from noetl.ports.secrets import Credential
from noetl.ports.tool import ToolSettings
from noetl.tools.spark.failures import failed

Auth = Credential | Mapping[str, Credential] | None

FORMATS = {
    **{".parquet": "parquet", ".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"},
    **{".orc": "orc", ".avro": "avro", ".txt": "text", ".text": "text", ".xml": "xml"},
}
_PACKED = frozenset((".gz", ".bz2", ".zst", ".snappy", ".lz4", ".deflate"))
# How a text file is read of which nobody says how.
_OPTIONS: Mapping[str, Mapping[str, str]] = {
    ".csv": {"header": "true", "inferSchema": "true"},
    ".tsv": {"header": "true", "inferSchema": "true", "sep": "\t"},
}
_DEFAULT_FORMAT = "parquet"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_PATH_KEYS = frozenset(("path", "format", "options"))
# Types of credentials that are for one of our sources and never for the other.
_TYPES = {
    "postgres": frozenset(("postgres", "postgresql", "duckdb")),
    "http": frozenset(("bearer", "basic", "api_key", "header", "oauth2")),
}
_OURS = {"postgres": "noetl_postgres", "http": "noetl_http"}


def is_path(text: str) -> bool:
    """Whether a text is the place of data: it has a scheme, begins like a path, or ends like a file of data.  Spark
    reads nothing over HTTP: such an address is a value, for whoever wants to ask there."""
    if (found := _SCHEME.match(text)) is not None:
        return found.group().lower() not in ("http://", "https://")
    return text.startswith(("/", "./", "../", "file:")) or _suffix(text) in FORMATS


class Sources:
    """Reads descriptions of sources.  `credentials` is what the job needs to be let in, by the name that options give:
    all that the task's `auth` names, for its program may want them too, and headers of single inputs."""

    def __init__(self, auth: Auth, settings: ToolSettings) -> None:
        self._auth: Mapping[str, Credential] = {auth.name: auth} if isinstance(auth, Credential) else auth or {}
        self._settings = settings
        self.credentials = {
            alias: JobCredential(type=one.type, data=one.data.reveal()) for alias, one in self._auth.items()
        }

    def described(self, name: str, value: Mapping[str, object]) -> JobInput | None:
        """The input that a mapping describes; None for one that is plain data.  Raises ToolFailed."""
        keys = set(value)
        if keys == {"table"} and isinstance(value["table"], str):
            return JobInput(name=name, kind="table", path=value["table"])
        ours = [key for key in _OURS if key in keys]
        if len(ours) == 1 and keys <= {ours[0], "auth"}:
            return self._of_ours(name, ours[0], value)
        if keys <= _PATH_KEYS and keys & {"path", "format"}:
            return of_path(name, value, self._settings.artifact_roots)
        return None

    def _of_ours(self, name: str, kind: str, value: Mapping[str, object]) -> JobInput:
        body = value[kind]
        if not isinstance(body, Mapping):
            raise _wrong(name, f"{kind} must be a mapping of what to read")
        alias = self._alias(name, kind, value.get("auth"))
        if kind == "postgres":
            target = target_of(credential_of(None if alias is None else self._auth[alias], None))
            check_private(target, self._settings.postgres_private_hosts)
        elif body.get("headers") is not None:
            alias = self._with_headers(name, body["headers"], alias)
        options = {key: one for key, one in body.items() if key != "headers"}
        named = {} if alias is None else {"auth": alias}
        return JobInput(name=name, kind="source", format=_OURS[kind], options={**_options(name, options), **named})

    def _alias(self, name: str, kind: str, given: object) -> str | None:
        """Which of the task's credentials an input has: the one that it names, or the only one of its kind."""
        if given is None:
            others = _TYPES["http" if kind == "postgres" else "postgres"]
            suiting = [alias for alias, one in self._auth.items() if one.type.lower() not in others]
            if len(suiting) <= 1:
                return suiting[0] if suiting else None
        if isinstance(given, str) and given in self._auth:
            return given
        known = ", ".join(sorted(self._auth)) or "none"
        raise _wrong(name, f"auth must name one of the task's own `auth`, which are: {known}")

    def _with_headers(self, name: str, given: object, alias: str | None) -> str:
        """Headers of a playbook may hold secrets as well: they go where those of a credential go."""
        if not isinstance(given, Mapping):
            raise _wrong(name, "http.headers must be a mapping")
        headers = {str(key): to_text(one) for key, one in given.items() if one is not None}
        headers |= auth_headers(None if alias is None else self._auth[alias], None)
        own = f"input {name}"
        self.credentials[own] = JobCredential(type="header", data={"headers": headers})
        return own


def of_path(name: str, value: Mapping[str, object], roots: tuple[str, ...]) -> JobInput:
    """`{path, format, options}`."""
    path, given, options = value.get("path"), value.get("format"), value.get("options")
    if path is not None and (not isinstance(path, str) or not path.strip()):
        raise _wrong(name, "path must be a text")
    if given is not None and not isinstance(given, str):
        raise _wrong(name, "format must be a text")
    suffix = _suffix(path or "")
    usual = _OPTIONS.get(suffix, {}) if options is None and given is None else {}
    return JobInput(
        name=name,
        kind="source",
        path=None if path is None else found_below(path.strip(), roots),
        format=given or FORMATS.get(suffix, _DEFAULT_FORMAT),
        options={**usual, **_options(name, options)},
    )


def found_below(path: str, roots: tuple[str, ...]) -> str:
    """A path that means the same in every process: a relative one is looked for below the folders of artifacts."""
    if _SCHEME.match(path) is not None or path.startswith(("/", "file:")):
        return path
    for root in roots:
        found = Path(root) / path
        if found.exists():
            return str(found)
    where = f"there is none below {', '.join(roots)}" if roots else "NOETL_ARTIFACT_ROOTS names no folder"
    message = f"{path} is a relative path, and {where}: write the whole path, or {{value: …}} for a mere text"
    raise failed("config", message, "SPARK_PATH")


def _suffix(path: str) -> str:
    suffixes = PurePosixPath(path.rstrip("/").lower()).suffixes
    while suffixes and suffixes[-1] in _PACKED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _options(name: str, given: object) -> dict[str, str]:
    if not isinstance(given, Mapping | None):
        raise _wrong(name, "options must be a mapping")
    return {str(key): _option(one) for key, one in (given or {}).items() if one is not None}


def _option(value: object) -> str:
    """As text, the way Spark takes it: names with commas between them, anything else that has parts as JSON."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple) and all(isinstance(one, str) and "," not in one for one in value):
        return ",".join(value)
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value, ensure_ascii=False)
    return to_text(value)


def _wrong(name: str, message: str) -> Exception:
    return failed("config", f"input {name!r}: {message}")
