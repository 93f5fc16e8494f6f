"""Every error that NoETL raises on purpose, in one tree.

NoetlError
├── PlaybookInvalid      (Terminal)   the document breaks a rule of the language
├── RequestInvalid       (Terminal)   a request to the host or the command line is wrong
├── SettingsInvalid      (Terminal)   an environment variable or option is out of range
├── TemplateInvalid      (Terminal)   a template does not compile
├── TemplateFailed       (Terminal)   a template could not be evaluated
├── TemplateRefused      (Terminal)   the sandbox or a limit refused a template
├── EnvelopeInvalid      (Terminal)   an event breaks the shape of the ledger
├── LocatorInvalid       (Terminal)   a text is no locator or subject, or a name cannot be in one
├── TransitionConflict   (Terminal)   the same transition was recorded with other content
├── VersionConflict      (Terminal)   a stream is not at the expected version
├── ExecutionClosed      (Terminal)   a fact arrived after the terminal event
├── ExecutionUnknown     (Terminal)   no such execution in this tenant and organization
├── ExecutionRunning     (Terminal)   what was asked for needs an execution that has ended
├── NothingToRetry       (Terminal)   no item of the execution failed, or was left out
├── RetryTooLarge        (Terminal)   what an execution has kept does not fit into the beginning of another one
├── CredentialUnknown    (Terminal)   no such credential in this tenant and organization
├── CredentialUnreadable (Terminal)   a stored credential does not decrypt with this key
├── PlaybookUnknown      (Terminal)   no such playbook, or version of it, in the catalog
├── ScriptUnavailable    (Terminal)   a script cannot be read: it is not there, or outside of every root
├── ShardUnknown         (Terminal)   no such shard in this ledger
├── StageUnknown         (Terminal)   no such open stage in this execution
├── FrameAlreadyTerminal (Terminal)   a frame that has ended was asked about
├── ResultUnknown        (Terminal)   no result of such a step, or nothing at such a path of it
├── ResultUnfinished     (Terminal)   the step has not ended yet
├── ResultNotTabular     (Terminal)   no rows and columns can be made of what was asked for
├── LeaseLost            (Terminal)   a stale attempt or epoch tried to write
├── LedgerCorrupt        (Terminal)   stored bytes do not agree with their checksum or order
├── LedgerRestored       (Terminal)   what was derived is of another ledger than this one: it must be rebuilt
├── PayloadMissing       (Terminal)   a reference names bytes that are not there
├── PayloadCorrupt       (Terminal)   stored bytes do not have the digest of their reference
├── PayloadUnreadable    (Terminal)   stored bytes are sealed with a key that this process does not have
├── StoreRefused         (Terminal)   a payload store refuses this process: credentials, bucket or rights
├── SchemaOutdated       (Terminal)   the database must be migrated first
├── EmbeddedPostgresFailed (Terminal) the private Postgres could not be started or stopped
├── SparkUnavailable     (Terminal)   Spark cannot be started here: no Java, or it does not come up
├── LedgerUnavailable    (Transient)  Postgres cannot be reached or gave no answer
│   └── LedgerBusy       (Transient)  somebody holds a lock for long: nothing was written
├── AppendOverloaded     (Transient)  the append queue is full
├── ShardMoved           (Transient)  a shard is owned by another server, or by none yet
├── NotShownYet          (Transient)  an execution is recorded, and what is shown of it is being made again
├── CollectionBusy       (Transient)  another collector of payloads is at work
├── HostUnavailable      (Transient)  the host process does not answer
├── StoreUnavailable     (Transient)  a payload store does not answer, or has trouble of its own
├── StorageFull          (Transient)  a payload store or its file system has no room left
└── ToolFailed                        a task failed; data about it, not a defect of ours
"""

from __future__ import annotations

from dataclasses import dataclass, field

REFERENCE_NOT_AVAILABLE = "REFERENCE_NOT_AVAILABLE"
"""The code of a failure: a payload that is needed is gone or damaged, or a result could not be stored."""
SECRET_IN_BODY = "SECRET_IN_BODY"  # noqa: S105 - a code and no secret
"""The code of a failure: a stream holds a secret and was not stored."""


class NoetlError(Exception):
    """Something NoETL can explain went wrong."""

    code = "noetl_error"


class Transient(NoetlError):
    """Trying again may help."""

    retry_after_seconds: float | None = None
    """When it may help, if whoever refused said so."""


class Terminal(NoetlError):
    """Trying again gives the same answer."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding about a playbook: what, where, and what to do about it."""

    code: str
    message: str
    file: str | None = None
    line: int | None = None
    column: int | None = None
    step: str | None = None
    field: str | None = None

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        return f"{place}: {self.message}" if place else self.message


class PlaybookInvalid(Terminal):
    code = "playbook_invalid"

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))


class RequestInvalid(Terminal):
    code = "request_invalid"


class SettingsInvalid(Terminal):
    code = "settings_invalid"


class TemplateInvalid(Terminal):
    code = "template_invalid"


class TemplateFailed(Terminal):
    code = "template_failed"


class TemplateRefused(TemplateFailed):
    code = "template_refused"


class EnvelopeInvalid(Terminal):
    """`event_id` names the event when the database told which one it refused."""

    code = "envelope_invalid"

    def __init__(self, message: str, *, event_id: int | None = None) -> None:
        self.event_id = event_id
        super().__init__(message)


class LocatorInvalid(Terminal):
    code = "locator_invalid"


class TransitionConflict(Terminal):
    code = "transition_conflict"


class VersionConflict(Terminal):
    code = "version_conflict"


class ExecutionClosed(Terminal):
    code = "execution_closed"


class ExecutionUnknown(Terminal):
    code = "execution_unknown"


class ExecutionRunning(Terminal):
    code = "execution_running"


class NothingToRetry(Terminal):
    code = "nothing_to_retry"


class RetryTooLarge(Terminal):
    code = "retry_too_large"


class CredentialUnknown(Terminal):
    code = "credential_unknown"


class CredentialUnreadable(Terminal):
    code = "credential_unreadable"


class PlaybookUnknown(Terminal):
    code = "playbook_unknown"


class ScriptUnavailable(Terminal):
    """`is_absent` says that there is none, where it may be looked for; it may still be elsewhere."""

    code = "script_unavailable"

    def __init__(self, message: str, *, is_absent: bool = False) -> None:
        self.is_absent = is_absent
        super().__init__(message)


class StageUnknown(Terminal):
    code = "stage_unknown"


class FrameAlreadyTerminal(Terminal):
    """`event_id` is the event that ended the frame."""

    code = "frame_already_terminal"

    def __init__(self, message: str, *, event_id: int) -> None:
        self.event_id = event_id
        super().__init__(message)


class ShardUnknown(Terminal):
    code = "shard_unknown"


class ResultUnknown(Terminal):
    code = "result_unknown"


class ResultUnfinished(Terminal):
    code = "result_unfinished"


class ResultNotTabular(Terminal):
    code = "result_not_tabular"


class LeaseLost(Terminal):
    code = "lease_lost"


class LedgerCorrupt(Terminal):
    code = "ledger_corrupt"


class LedgerRestored(Terminal):
    """What was derived from the ledger is of another incarnation of it, or ahead of it."""

    code = "ledger_restored"


class PayloadMissing(Terminal):
    code = "payload_missing"


class PayloadCorrupt(Terminal):
    code = "payload_corrupt"


class PayloadUnreadable(Terminal):
    code = "payload_unreadable"


class StoreRefused(Terminal):
    code = "store_refused"


class SchemaOutdated(Terminal):
    code = "schema_outdated"


class EmbeddedPostgresFailed(Terminal):
    code = "embedded_postgres_failed"


class SparkUnavailable(Terminal):
    code = "spark_unavailable"


class LedgerUnavailable(Transient):
    code = "ledger_unavailable"


class LedgerBusy(LedgerUnavailable):
    code = "ledger_busy"


class AppendOverloaded(Transient):
    code = "append_overloaded"


class NotShownYet(Transient):
    code = "not_shown_yet"


class ShardMoved(Transient):
    code = "shard_moved"


class CollectionBusy(Transient):
    code = "collection_busy"


class HostUnavailable(Transient):
    code = "host_unavailable"


class StoreUnavailable(Transient):
    code = "store_unavailable"


class StorageFull(Transient):
    code = "storage_full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A recorded failure.  It is data: it travels in events and is what playbooks see as `error`."""

    kind: str
    message: str
    code: str | None = None
    status: int | None = None
    retryable: bool = False
    retry_after: float | None = None
    exception_type: str | None = None
    details: dict[str, object] = field(default_factory=dict)


class ToolFailed(NoetlError):
    """A task failed; `failure` says how and `data` is what the tool still returned."""

    code = "tool_failed"

    def __init__(self, failure: Failure, data: object = None) -> None:
        self.failure = failure
        self.data = data
        super().__init__(failure.message)
