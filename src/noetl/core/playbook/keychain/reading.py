"""`keychain` → entries.  What an entry is made of stays a YAML value; its templates are compiled elsewhere."""

from __future__ import annotations

from collections.abc import Mapping

from noetl.core.limits import CREDENTIAL_NAME_CHARS_MAX, KEYCHAIN_ENTRIES_MAX
from noetl.core.playbook.document import Findings, Path
from noetl.core.playbook.model import KeychainEntry

CREDENTIAL_KINDS = ("credential", "postgres_credential")
# Of each group of spellings an entry must have one.
REQUIRED: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "static": (("map",),),
    "bearer": (("token", "value", "access_token"),),
    "basic": (("username", "user"), ("password",)),
    "api_key": (("api_key", "value", "key"),),
    "credential": (("credential", "ref"),),
    "postgres_credential": (("credential", "ref"),),
    "oauth2": (("endpoint", "url", "token_url"),),
}
OPTIONAL: Mapping[str, tuple[str, ...]] = {
    "api_key": ("header_name",),
    "oauth2": ("method", "headers", "params", "data", "form", "json", "token_field", "ttl_field"),
}
# Their providers need a driver that this installation lacks; an entry that nobody uses does no harm.
UNSUPPORTED_KINDS = ("secrets", "secret_manager", "google_id_token", "google_oauth")
COMMON_KEYS = ("name", "kind", "type", "scope", "auto_renew", "desc", "description")
SCOPES = ("global", "local", "shared")


def read_keychain(value: object, findings: Findings) -> tuple[KeychainEntry, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        findings.error("keychain_shape", "keychain must be a list of entries with `name` and `kind`", ("keychain",))
        return ()
    if len(value) > KEYCHAIN_ENTRIES_MAX:
        message = f"keychain has {len(value):,} entries, the limit is {KEYCHAIN_ENTRIES_MAX}"
        findings.error("keychain_shape", message, ("keychain",))
        return ()
    entries: dict[str, KeychainEntry] = {}
    for number, given in enumerate(value):
        place: Path = ("keychain", number)
        entry = _read_entry(given, place, findings)
        if entry is None:
            continue
        if entry.name in entries:
            message = f"the keychain entry {entry.name!r} is declared twice"
            findings.error("duplicate_keychain_entry", message, (*place, "name"))
        entries.setdefault(entry.name, entry)
    return tuple(entries.values())


def _read_entry(given: object, place: Path, findings: Findings) -> KeychainEntry | None:
    name = given.get("name") if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(name, str) or not name.strip():
        findings.error("keychain_name", "a keychain entry is a mapping with a `name`", place)
        return None
    if len(name) > CREDENTIAL_NAME_CHARS_MAX or not name.isprintable() or name != name.strip():
        message = f"the name of a keychain entry is one line of at most {CREDENTIAL_NAME_CHARS_MAX} characters"
        findings.error("keychain_name", message, (*place, "name"))
        return None
    kind = _kind(name, given, place, findings)
    if kind is None:
        return None
    scope = given.get("scope")
    if scope is not None and scope not in SCOPES:
        hint = findings.suggestion(str(scope), SCOPES)
        findings.error("keychain_scope", f"{_where(name)}: unknown scope {scope!r}{hint}", (*place, "scope"))
    if not isinstance(given.get("auto_renew", True), bool):
        message = f"{_where(name)}: auto_renew must be true or false"
        findings.error("keychain_shape", message, (*place, "auto_renew"))
    config: dict[str, object] = {}
    if kind not in UNSUPPORTED_KINDS:
        config = {key: value for key, value in given.items() if key not in COMMON_KEYS}
        _check_fields(name, kind, config, place, findings)
    return KeychainEntry(
        name=name, kind=kind, config=config, scope=scope if isinstance(scope, str) else None, place=place
    )


def _kind(name: str, given: Mapping[str, object], place: Path, findings: Findings) -> str | None:
    key = "type" if "kind" not in given and "type" in given else "kind"
    known = (*REQUIRED, *UNSUPPORTED_KINDS)
    kind = str(given.get(key) or "").lower()
    if not kind:
        findings.error("keychain_kind", f"{_where(name)} needs a kind: one of {', '.join(known)}", place)
        return None
    if kind not in known:
        hint = findings.suggestion(kind, known)
        findings.error("keychain_kind", f"{_where(name)}: unknown kind {given[key]!r}{hint}", (*place, key))
        return None
    if kind in UNSUPPORTED_KINDS:
        message = f"{_where(name)}: kind {kind!r} is not available in this installation; a task that uses it fails"
        findings.warn("unsupported_keychain_kind", message, (*place, key))
    return kind


def _check_fields(name: str, kind: str, config: Mapping[str, object], place: Path, findings: Findings) -> None:
    for spellings in REQUIRED[kind]:
        if all(config.get(spelling) in (None, "") for spelling in spellings):
            message = f"{_where(name)} ({kind}) needs {' or '.join(map(repr, spellings))}"
            findings.error("keychain_field", message, place)
    for key in ("map", "headers", "params", "data", "form"):
        # `data` and `form` may be written as the text that is sent.
        is_text = isinstance(config.get(key), str) and key in ("data", "form")
        if config.get(key) is not None and not isinstance(config[key], dict) and not is_text:
            findings.error("keychain_field", f"{_where(name)}: {key} must be a mapping", (*place, key))
    known = frozenset((*(one for spellings in REQUIRED[kind] for one in spellings), *OPTIONAL.get(kind, ())))
    for key in config:
        if key not in known:
            hint = findings.suggestion(key, known)
            findings.warn("unknown_key", f"{_where(name)}: unknown key {key!r} is ignored{hint}", (*place, key))


def _where(name: str) -> str:
    return f"keychain entry {name!r}"
