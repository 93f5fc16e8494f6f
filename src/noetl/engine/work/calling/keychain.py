"""The keychain of a playbook in a worker's hands (dsl §10.3): an entry is made when a task asks for it, never before.

Whatever an entry gives is learnt by the redactor before anybody else sees it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from noetl.core.errors import Failure, TemplateFailed, ToolFailed
from noetl.core.expression import to_text, view_of
from noetl.core.playbook.compiled import CompiledEntry
from noetl.core.playbook.keychain.reading import CREDENTIAL_KINDS, UNSUPPORTED_KINDS
from noetl.core.secret import Secret
from noetl.engine.work.calling.tokens import TokenRequest
from noetl.ports.secrets import Credential

# The names of a running execution that entries may read beside the workload.
SHARED_NAMES = ("execution_id", "job", "path", "parent_execution_id", "catalog_id", "version", "env")
_JSON_TYPE = "application/json"


@dataclass(frozen=True, slots=True)
class Opened:
    """An entry as a credential; `main` is the field that stands for the whole when only one thing is in it."""

    credential: Credential
    main: str | None = None

    def view(self) -> object:
        """What `keychain.<name>` is in a template."""
        data = self.credential.data.reveal()
        return dict(data) if self.main is None else view_of(data[self.main], extras=data)


def entry_names(names: Mapping[str, object]) -> dict[str, object]:
    """What the templates of entries see of a command's names."""
    workload: Any = names["workload"]
    shared = {name: names[name] for name in SHARED_NAMES if name in names}
    return {**workload, "workload": workload, **shared}


def made_of(entry: CompiledEntry, fields: Mapping[str, object]) -> Opened:
    """The kinds of entries that are what their fields say.  Raises ToolFailed."""
    name, kind = entry.name, entry.kind
    if kind in UNSUPPORTED_KINDS:
        message = f"keychain entry {name!r} has kind {kind!r}, for which this installation has no provider"
        raise ToolFailed(Failure(kind="unsupported", code="KEYCHAIN_KIND", message=message))
    if kind == "static":
        values = fields.get("map")
        if not isinstance(values, dict) or not values:
            raise entry_failed(name, "its map is empty")
        return Opened(_credential(name, "generic", values), next(iter(values)) if len(values) == 1 else None)
    if kind == "bearer":
        data = {"token": _text(name, fields, "token", "value", "access_token")}
        return Opened(_credential(name, "bearer", data), "token")
    if kind == "basic":
        data = {"username": _text(name, fields, "username", "user"), "password": _text(name, fields, "password")}
        return Opened(_credential(name, "basic", data))
    assert kind == "api_key"
    data = {"api_key": _text(name, fields, "api_key", "value", "key")}
    if fields.get("header_name"):
        data["header_name"] = to_text(fields["header_name"])
    return Opened(_credential(name, "api_key", data), "api_key")


def of_credential(entry: CompiledEntry, stored: Credential) -> Opened:
    """The record of another credential under the name of the entry."""
    assert entry.kind in CREDENTIAL_KINDS
    data = stored.data.reveal()
    type_ = "postgres" if entry.kind == "postgres_credential" else stored.type
    return Opened(
        Credential(name=entry.name, type=type_, data=stored.data), next(iter(data)) if len(data) == 1 else None
    )


def of_token(entry: CompiledEntry, answer: Secret[Mapping[str, object]]) -> Opened:
    return Opened(Credential(name=entry.name, type="oauth2", data=answer))


def token_request(entry: CompiledEntry, fields: Mapping[str, object]) -> TokenRequest:
    """The request of an `oauth2` entry.  A mapping is sent as a form, as the protocol wants it, unless the headers say
    JSON."""
    headers = fields.get("headers")
    headers = dict(headers) if isinstance(headers, dict) else {}
    types = [to_text(value) for name, value in headers.items() if str(name).lower() == "content-type"]
    is_json = any(_JSON_TYPE in one.lower() for one in types)
    body: tuple[str, object] | None = None
    for field, sent_as in (("json", "json"), ("form", "form"), ("data", "json" if is_json else "form")):
        if fields.get(field) is not None:
            body = (sent_as, fields[field])
            break
    params = fields.get("params")
    return TokenRequest(
        owner=f"keychain entry {entry.name!r}",
        url=_text(entry.name, fields, "endpoint", "url", "token_url"),
        method=to_text(fields.get("method") or "POST").upper(),
        headers=headers,
        params=params if isinstance(params, dict) else None,
        body=body,
        token_field=_optional(fields.get("token_field")),
        ttl_field=_optional(fields.get("ttl_field")),
    )


def cache_key(entry: CompiledEntry, request: TokenRequest, *, owner: Hashable, scope: Hashable) -> Hashable:
    """Equal requests of one playbook, or of one execution for an entry that is local, share a token."""
    return (owner, scope, entry.name, request.digest())


def entry_failed(name: str, reason: str) -> ToolFailed:
    return ToolFailed(Failure(kind="auth", code="KEYCHAIN_ENTRY", message=f"keychain entry {name!r}: {reason}"))


def template_failed(name: str, error: TemplateFailed) -> ToolFailed:
    """What the template said may quote what it was given."""
    return entry_failed(name, f"one of its templates failed ({error.code})")


def _credential(name: str, type_: str, data: Mapping[str, object]) -> Credential:
    return Credential(name=name, type=type_, data=Secret(dict(data)))


def _text(name: str, fields: Mapping[str, object], *spellings: str) -> str:
    for spelling in spellings:
        value = fields.get(spelling)
        if value is not None and value != "":
            return to_text(value)
    raise entry_failed(name, f"{spellings[0]} is empty")


def _optional(value: object) -> str | None:
    return to_text(value) if value not in (None, "") else None
