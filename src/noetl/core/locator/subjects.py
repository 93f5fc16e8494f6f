"""Subjects on which events, commands and facts are distributed, and the way back from a subject.

A token holds letters, digits, `-`, `_` and `~`; everything else is percent-encoded as in a locator, the dot too,
because it divides tokens.  So no name can be a wildcard or reach into another subject."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote

from noetl.core.errors import LocatorInvalid
from noetl.core.limits import SUBJECT_CHARS_MAX
from noetl.core.locator.builders import event_stream_locator
from noetl.core.locator.kinds import Kind, parse

ROOT = "noetl"
EVENTS, COMMANDS, FACTS = "events", "commands", "worker"
ALL_EVENTS = f"{ROOT}.{EVENTS}.>"
ALL_FACTS = f"{ROOT}.{FACTS}.>"
_ANY = "*"


@dataclass(frozen=True, slots=True)
class EventSubject:
    """Events of one execution."""

    tenant_id: str
    organization_id: str
    execution_id: int
    shard_id: int


@dataclass(frozen=True, slots=True)
class CommandSubject:
    """Commands for a pool, or for one worker of it."""

    pool: str
    worker_id: str | None = None


@dataclass(frozen=True, slots=True)
class FactSubject:
    """Facts of one worker about executions of one shard."""

    shard_id: int
    worker_id: str


Subject = EventSubject | CommandSubject | FactSubject


def subject_text(subject: Subject) -> str:
    """Raises LocatorInvalid."""
    if isinstance(subject, EventSubject):
        owner = (subject.tenant_id, subject.organization_id)
        numbers = (_number(subject.execution_id), _number(subject.shard_id))
        return _joined(EVENTS, *map(_token, owner), *numbers)
    if isinstance(subject, FactSubject):
        return _joined(FACTS, _number(subject.shard_id), _token(subject.worker_id))
    workers = () if subject.worker_id is None else (_token(subject.worker_id),)
    return _joined(COMMANDS, _token(subject.pool), *workers)


def parse_subject(text: str) -> Subject:
    """What a message's subject names.  A subject with wildcards names nothing.  Raises LocatorInvalid."""
    if len(text) > SUBJECT_CHARS_MAX:
        raise _refused(text, f"it has more than {SUBJECT_CHARS_MAX:,} characters")
    root, *tokens = text.split(".")
    kind, *values = [_value(text, token) for token in tokens] or [""]
    if root == ROOT and kind == EVENTS and len(values) == 4:
        return EventSubject(values[0], values[1], _read(text, values[2]), _read(text, values[3]))
    if root == ROOT and kind == COMMANDS and len(values) in (1, 2):
        return CommandSubject(*values)
    if root == ROOT and kind == FACTS and len(values) == 2:
        return FactSubject(_read(text, values[0]), values[1])
    raise _refused(
        text,
        f"it must be {ROOT}.{EVENTS}.TENANT.ORG.EXECUTION.SHARD, {ROOT}.{COMMANDS}.POOL, "
        f"{ROOT}.{COMMANDS}.POOL.WORKER or {ROOT}.{FACTS}.SHARD.WORKER",
    )


# --- filters ---------------------------------------------------------------------------------------------


def events_of_shard(shard_id: int) -> str:
    """What the owner of a shard subscribes to."""
    return _joined(EVENTS, _ANY, _ANY, _ANY, _number(shard_id))


def events_of_owner(tenant_id: str, organization_id: str) -> str:
    return _joined(EVENTS, _token(tenant_id), _token(organization_id), ">")


def facts_of_shard(shard_id: int) -> str:
    return _joined(FACTS, _number(shard_id), ">")


# --- locators --------------------------------------------------------------------------------------------


def event_subject_of(locator: str) -> EventSubject:
    """The subject of an event stream.  Raises LocatorInvalid."""
    found = parse(locator)
    if found.kind is not Kind.EVENT_STREAM:
        raise LocatorInvalid(f"only an event stream has a subject, and not a {found.kind}")
    assert found.tenant_id is not None
    assert found.organization_id is not None
    return EventSubject(found.tenant_id, found.organization_id, found.number("execution_id"), found.number("shard_id"))


def locator_of(subject: EventSubject) -> str:
    return event_stream_locator(subject.tenant_id, subject.organization_id, subject.execution_id, subject.shard_id)


def _joined(*tokens: str) -> str:
    text = ".".join((ROOT, *tokens))
    if len(text) > SUBJECT_CHARS_MAX:
        raise _refused(text, f"it has more than {SUBJECT_CHARS_MAX:,} characters")
    return text


def _token(value: str) -> str:
    if not value:
        raise LocatorInvalid("a name in a subject must not be empty")
    try:
        return quote(value, safe="").replace(".", "%2E")
    except UnicodeEncodeError as error:
        raise LocatorInvalid("a name in a subject must be text that has an UTF-8 form") from error


def _value(text: str, token: str) -> str:
    try:
        value = unquote(token, errors="strict")
    except UnicodeDecodeError as error:
        raise _refused(text, f"{token!r} is not percent-encoded UTF-8") from error
    if not token or token in (_ANY, ">") or _token(value) != token:
        raise _refused(text, f"the token {token!r} is empty, a wildcard, or not written in the one way that there is")
    return value


def _number(value: int) -> str:
    if not 0 <= value < 2**63:
        raise LocatorInvalid(f"a number in a subject is from 0 to 2^63 - 1, not {value}")
    return str(value)


def _read(text: str, value: str) -> int:
    is_number = value.isascii() and value.isdigit() and len(value) <= 19
    if not is_number or str(int(value)) != value or int(value) >= 2**63:
        raise _refused(text, f"{value[:40]!r} is not a number below 2^63 in decimal digits")
    return int(value)


def _refused(text: str, reason: str) -> LocatorInvalid:
    return LocatorInvalid(f"{text[:200]!r} is no subject of ours: {reason}")
