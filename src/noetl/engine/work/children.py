"""`playbook` tasks: a pipeline stops where another execution is to run, and goes on with what became of it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from noetl.core.codec import canonical_bytes
from noetl.core.credential_keys import credential_at
from noetl.core.errors import EnvelopeInvalid, Failure, ToolFailed
from noetl.core.execution.children import COMPLETED, REFUSED, STARTED, TIMEOUT
from noetl.core.expression import is_true, plain
from noetl.core.limits import CALLER_BYTES_MAX, CONTEXT_ENTRY_BYTES_MAX, TIMEOUT_SECONDS_MAX
from noetl.engine.payloads import Payloads
from noetl.engine.results import read_result
from noetl.ports.catalog import is_catalog_id
from noetl.ports.session import CommandMessage
from noetl.ports.tool import ToolCall

PLAYBOOK = "playbook"
CHILD_FAILED = "CHILD_FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildRequest:
    """What a task wants to start: a path of the catalog, or one version by its number, and then no path."""

    task: str
    path: str
    version: int | None
    payload: Mapping[str, object]
    return_step: str | None
    waits: bool
    timeout_seconds: float
    catalog_id: str | None = None
    iteration: Mapping[str, object] | None = None
    """The row that starts it, for `iter.parent`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildOutcome:
    """What a task gets from the execution that it started."""

    value: object = None
    failure: Failure | None = None


def child_request(call: ToolCall) -> ChildRequest:
    """The rendered fields of a `playbook` task (dsl §9.6).  Raises ToolFailed."""
    fields = call.fields
    path, catalog_id = fields.get("path"), _catalog_id(fields.get("catalog_id"))
    if catalog_id is not None:
        path = ""
    elif not isinstance(path, str) or not path:
        raise _wrong("path is required and must be text, or catalog_id")
    given = plain(fields.get("payload"))
    if given is not None and not isinstance(given, dict):
        raise _wrong("payload must be a mapping")
    if not 0 < call.timeout_seconds <= TIMEOUT_SECONDS_MAX:
        raise _wrong("timeout must be above 0 and at most a year")
    return_step = fields.get("return_step")
    return ChildRequest(
        task=call.label,
        path=path,
        catalog_id=catalog_id,
        version=_version(fields.get("version")),
        payload={**(given or {}), **_mapping(plain(call.input))},
        return_step=str(return_step) if return_step else None,
        waits=is_true(fields.get("wait", True)),
        timeout_seconds=call.timeout_seconds,
    )


def caller_of(iteration: Mapping[str, object]) -> dict[str, object]:
    """What a child may know of the row that starts it: every value that is small, the smallest first, as long as they
    fit together.  An item that does not fit is not there: a child is given large data as input."""
    sized = []
    for name, value in iteration.items():
        with contextlib.suppress(EnvelopeInvalid):
            if credential_at(plain(value), (name,)) is None:  # it is recorded with the child's first event
                sized.append((len(canonical_bytes(plain(value))), name))
    found: dict[str, object] = {}
    for size, name in sorted(sized):
        grown = {**found, name: plain(iteration[name])}
        if size <= CONTEXT_ENTRY_BYTES_MAX and len(canonical_bytes(grown)) <= CALLER_BYTES_MAX:
            found = grown
    return found


def _catalog_id(value: object) -> str | None:
    if value is None or value == "":
        return None
    text = str(value).strip() if isinstance(value, int | str) and not isinstance(value, bool) else ""
    if not is_catalog_id(text):
        raise _wrong("catalog_id must be the number of a version, as `noetl catalog show` tells it")
    return text


def _version(value: object) -> int | None:
    if value is None or value in ("", "latest"):
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    raise _wrong(f"version must be a whole number or latest, not {value!r}")


def _wrong(message: str) -> ToolFailed:
    return ToolFailed(Failure(kind="config", message=f"playbook: {message}"))


def _mapping(value: object) -> dict[str, object]:
    return dict(value) if isinstance(value, dict) else {}


async def child_outcome(payloads: Payloads, message: CommandMessage) -> ChildOutcome | None:
    """What the task at the resume point gets; None when the command does not come from waiting for a child."""
    child: Any = message.body.get("child")
    if child is None:
        return None
    status, path, identity = child["status"], child["path"], child["execution_id"]
    if status == STARTED:
        return ChildOutcome(value={"status": STARTED, "execution_id": identity, "path": path, "async": True})
    if status != COMPLETED:
        return ChildOutcome(failure=_failure(child))
    data = None
    if child["ref"] is not None:
        payloads.used.named(child["ref"], child.get("ref_id"))
        data = await read_result(
            payloads, child["ref"], tenant_id=message.tenant_id, organization_id=message.organization_id
        )
    own = _mapping(data)
    value = {
        **own,
        "execution_id": identity,
        "path": path,
        "status": own.get("status", COMPLETED),
        "completed": True,
        "failed": False,
        "return_step": child["return_step"],
        "data": data,
    }
    return ChildOutcome(value=value)


def _failure(child: Mapping[str, Any]) -> Failure:
    """The child's own failure, told as this task's."""
    error, status = child["error"], child["status"]
    message, code = str(error.get("message")), error.get("code")
    details: dict[str, object] = {"path": child["path"], "status": status}
    if status != REFUSED:
        details["execution_id"] = child["execution_id"]
    if status not in (REFUSED, TIMEOUT):
        # In a chain of playbooks the message names the one that failed first, not all of those above it.
        if code != CHILD_FAILED:
            message = f"playbook {child['path']!r} (execution {child['execution_id']}) {status}: {message}"
        details["code"], code = code, CHILD_FAILED
    return Failure(
        kind=str(error.get("kind")),
        code=code,
        message=message,
        status=error.get("status"),
        retryable=error.get("retryable") is True,
        details=details,
    )
