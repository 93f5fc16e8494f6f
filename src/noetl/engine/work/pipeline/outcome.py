"""The outcome of a task and of a pipeline: what templates see, what the ledger gets, which atoms travel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from noetl.core import limits
from noetl.core.codec import canonical_bytes
from noetl.core.credential_keys import is_credential, without_credentials
from noetl.core.errors import EnvelopeInvalid, Failure
from noetl.core.expression import (
    Atom,
    FailedView,
    OutputView,
    View,
    data_path,
    evaluate_atom,
    heavy_place,
    plain,
    unaliased,
    view_of,
)
from noetl.core.limits import ERROR_DETAILS_BYTES_MAX, ERROR_MESSAGE_CHARS_MAX
from noetl.core.playbook.compiled import Answer

_RETRYABLE = frozenset(
    [
        "connection",
        "timeout",
        "rate_limit",
        "server_error",
        "db_connection",
        "db_deadlock",
        "db_timeout",
        "missing_reference",
    ]
)


def error_document(failure: Failure) -> dict[str, object]:
    """A failure as playbooks see it (dsl §8.4)."""
    return {
        "kind": failure.kind,
        "retryable": failure.retryable or failure.kind in _RETRYABLE,
        "code": failure.code,
        "message": failure.message[:ERROR_MESSAGE_CHARS_MAX],
        "status": failure.status,
        "status_code": failure.status,
        "http_status": failure.status,
        "retry_after": failure.retry_after,
        "pg_code": failure.details.get("sqlstate"),
        "exception_type": failure.exception_type,
        "details": failure.details or None,
    }


def recorded_error(failure: Failure) -> dict[str, object]:
    """A failure as the ledger keeps it: bounded, without the absent facts."""
    document: dict[str, object] = {
        "kind": failure.kind,
        "code": failure.code,
        "status": failure.status,
        "retryable": failure.retryable or failure.kind in _RETRYABLE,
        "message": _bounded(failure.message),
    }
    if failure.retry_after is not None:
        document["retry_after"] = failure.retry_after
    if failure.exception_type:
        document["exception_type"] = failure.exception_type
    if failure.details and len(canonical_bytes(failure.details)) <= ERROR_DETAILS_BYTES_MAX:
        document["details"] = without_credentials(failure.details)
    return document


def _bounded(message: str) -> str:
    """A message that fits into an event whatever its characters are."""
    message = message.encode("utf-8", "replace").decode("utf-8")[:ERROR_MESSAGE_CHARS_MAX]
    while len(canonical_bytes(message)) > 2 * ERROR_MESSAGE_CHARS_MAX:
        message = message[: len(message) // 2]
    return message


@dataclass(slots=True, kw_only=True)
class TaskOutcome:
    """One execution of one task.  Not frozen because there is one for every row; nobody changes it."""

    value: object
    failure: Failure | None
    attempt: int
    duration_ms: float
    started_at: str
    traceback: str | None = None
    facts: Mapping[str, object] | None = None
    reference: Mapping[str, object] | None = None
    """Where the value is, when it was stored on its own and counts as external."""
    extras: Mapping[str, object] | None = None
    limit_ms: float = 0.0
    """What it waited for a permit of its limit, which is no part of its duration."""

    def output(self) -> OutputView:
        """`output` in policy rules and in the fields of the next task."""
        error = error_document(self.failure) if self.failure else None
        facts: Mapping[str, Any] = self.facts or {}
        python = None
        if self.failure is not None and self.failure.kind == "python":
            python = {
                "exception_type": self.failure.exception_type,
                "message": self.failure.message,
                "traceback": self.traceback,
            }
        return OutputView(
            status="error" if self.failure else "ok",
            data=unaliased(view_of(self.value)) if isinstance(self.value, View) else self.value,
            error=error,
            http=facts.get("http"),
            pg=facts.get("pg"),
            py=python,
            ref=self.reference,
            meta=self.meta(),
        )

    def meta(self) -> dict[str, object]:
        return {"attempt": self.attempt, "duration_ms": self.duration_ms, "started_at": self.started_at}

    def entry(self, label: str) -> dict[str, object]:
        """What the ledger keeps of it."""
        entry: dict[str, object] = {"task": label, "ms": self.duration_ms}
        if self.attempt > 1:
            entry["attempt"] = self.attempt
        if self.limit_ms > 0:
            entry["limit_ms"] = self.limit_ms
        if self.failure is not None:
            entry["error"] = self.failure.kind
        return entry

    def view(self) -> object:
        """What later tasks see under the label."""
        view = view_of(self.value, extras=self.extras)
        return view if self.failure is None else FailedView(error_document(self.failure), view)


def answer_bytes_max(answer: Answer) -> int:
    """How large the inline answer to a question of the router may be."""
    return limits.ATOM_BYTES_MAX if answer is Answer.VALUE else limits.CONTROL_BYTES_MAX


def atom_document(atoms: tuple[Atom, ...], names: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """Every atom of a step, evaluated where the data is: a value, undefined, an error, an alias or `too big`."""
    document: dict[str, dict[str, object]] = {}
    total = 0
    for atom in atoms:
        entry = _atom(atom, names)
        total += len(canonical_bytes(entry)) + len(atom.key) + 4
        if total > limits.ATOMS_BYTES_MAX:
            # An atom that is not reported is asked for when it is needed.
            break
        document[atom.key] = entry
    return document


def _atom(atom: Atom, names: Mapping[str, object]) -> dict[str, object]:
    place = heavy_place(atom, names, limits.ATOM_BYTES_MAX)
    if place is not None:
        return {"a": list(place)}
    outcome = evaluate_atom(atom, names)
    if outcome[0] == "undefined":
        return {"u": 1}
    if outcome[0] == "error":
        return {"e": str(outcome[1])[:200]}
    value = plain(outcome[1])
    try:
        size = len(canonical_bytes(value))
    except EnvelopeInvalid:
        return {"b": 1}
    if size <= limits.ATOM_BYTES_MAX and not is_credential(atom.template.mentions, value):
        return {"v": value}
    place = data_path(atom, names)
    return {"b": 1} if place is None else {"a": list(place)}
