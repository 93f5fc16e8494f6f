"""What requests and answers look like, for the OpenAPI document and the checks of the framework."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from noetl.core.limits import (
    FACTS_AT_ONCE_MAX,
    LOG_CHUNKS_AT_ONCE_MAX,
    PLACE_NAME_CHARS_MAX,
    POOL_CHARS_MAX,
    SESSION_KINDS_MAX,
    SESSION_SLOTS_MAX,
    STEP_NAME_CHARS_MAX,
)


class Document(BaseModel):
    model_config = ConfigDict(extra="allow")


class ProblemView(Document):
    """problem+json: `code` is stable, `detail` is for people."""

    type: str
    title: str
    status: int
    code: str
    detail: str


class StartBody(BaseModel):
    """A playbook by its text, or by its path in the catalog, with the workload's values."""

    model_config = ConfigDict(extra="forbid")

    playbook: str | None = Field(default=None, description="the text of a playbook")
    file: str | None = Field(default=None, description="its name, for messages")
    path: str | None = Field(default=None, description="a playbook of the catalog, instead of a text")
    version: int | None = Field(default=None, description="of that playbook; the newest when it is not given")
    catalog_id: str | None = Field(default=None, description="one version of the catalog, instead of a path")
    scripts: dict[str, str] | None = Field(
        default=None, description="texts of scripts that the playbook names, by path"
    )
    payload: dict[str, Any] | None = Field(default=None, description="values for the workload")


class Warned(BaseModel):
    """What is to be said about a playbook, and where in its text."""

    code: str
    message: str
    file: str | None = None
    line: int | None = None
    column: int | None = None
    step: str | None = None
    field: str | None = None


class StartedView(BaseModel):
    execution_id: str
    warnings: list[Warned]


class ExecutionRowView(BaseModel):
    execution_id: str
    path: str
    status: str
    started_at: str
    ended_at: str | None
    last_step: str | None
    retry_of: str | None = Field(description="the execution whose failed items this one runs again")
    quarantine: dict[str, Any] | None = Field(description="why its events could not be folded any further")


class ExecutionsView(BaseModel):
    """`next_before` is the value of `before` for the following page; null on the last one."""

    executions: list[ExecutionRowView]
    next_before: str | None


class UnservedView(BaseModel):
    """A step that waits for workers which nobody has started."""

    step: str
    pool: str
    kinds: list[str]
    message: str


class ExecutionView(ExecutionRowView):
    """`position` is the last position of its shard that this answer includes; `catalog` is the version of the catalog
    that it runs, null for a text that was handed in.  A step has `running_jobs` while a compute engine works for it,
    and in `jobs` what the finished ones cost.  `progress` has `loop.<step>` and `fanout.<step>`; `commands` are those
    that are open; `left_out` counts what is not shown because there is too much of it."""

    parent_execution_id: str | None
    version: int
    position: int
    steps: dict[str, Any]
    progress: dict[str, Any]
    commands: list[dict[str, Any]]
    catalog: dict[str, Any] | None
    warnings: list[Warned]
    unserved: list[UnservedView]
    cancelling: dict[str, Any] | None
    error: dict[str, Any] | None
    left_out: dict[str, int]
    result_ref: dict[str, Any] | None
    result: Any


class EventView(Document):
    execution_id: str
    event_id: str
    event_type: str
    transition_key: str
    position: int
    stream_version: int


class EventsView(BaseModel):
    events: list[EventView]


class CancelBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reason: str | None = Field(default=None, max_length=500)


class RetryBody(BaseModel):
    """`step` limits it to the items of one loop."""

    model_config = ConfigDict(extra="forbid")

    items: Literal["failed"]
    step: str | None = Field(default=None, min_length=1, max_length=STEP_NAME_CHARS_MAX)


class RetriedView(BaseModel):
    execution_id: str
    retry_of: str


class CancelledView(BaseModel):
    execution_id: str
    status: str


class HealthView(Document):
    status: str


# --- the worker protocol -----------------------------------------------------------------------------------


# Postgres has no text with NUL in it.
_STORED = r"^[^\x00]*$"


_PLACE_NAME: Any = Field(default=None, min_length=1, max_length=PLACE_NAME_CHARS_MAX, pattern=_STORED)


class PlaceBody(BaseModel):
    """Where a worker is, as far as it knows; other members are ignored."""

    region: str | None = _PLACE_NAME
    zone: str | None = _PLACE_NAME
    cluster: str | None = _PLACE_NAME
    node: str | None = _PLACE_NAME


class SessionBody(BaseModel):
    """Who registers.  Without `kinds` the worker can run every kind of task."""

    model_config = ConfigDict(extra="forbid")

    worker_id: str = Field(min_length=1, max_length=200, pattern=_STORED)
    slots: int = Field(ge=1, le=SESSION_SLOTS_MAX)
    pool: str = Field(default="default", min_length=1, max_length=POOL_CHARS_MAX, pattern=_STORED)
    kinds: list[Annotated[str, Field(pattern=_STORED)]] | None = Field(default=None, max_length=SESSION_KINDS_MAX)
    place: PlaceBody | None = Field(default=None, description="without one the worker is nowhere")
    replaces: str | None = Field(
        default=None, pattern=r"^[0-9]{1,19}$", description="an earlier session of this worker, which is over"
    )


class SessionView(BaseModel):
    session_id: str
    lease_seconds: float
    heartbeat_seconds: float
    store: str
    """Where large payloads go; references to them name it."""


class HeartbeatBody(BaseModel):
    """With `slots` the session wants no more commands than these at a time; none: as many as before."""

    model_config = ConfigDict(extra="forbid")

    slots: int | None = Field(default=None, ge=0, le=SESSION_SLOTS_MAX)


class HeartbeatView(BaseModel):
    session_id: str
    is_draining: bool


class PayloadBody(BaseModel):
    """Bytes that travel with a fact, base64.  More than 64 KB are put with PUT /api/payloads first."""

    model_config = ConfigDict(extra="forbid")

    media_type: str
    content: str


class FactBody(BaseModel):
    """What a worker says about a command that its session holds."""

    model_config = ConfigDict(extra="forbid")

    fact_id: str | None = None
    execution_id: str
    command_id: str
    attempt: int
    event_type: str
    result: dict[str, Any] | None = None
    writes: list[dict[str, Any]] | None = None
    meta: dict[str, Any] = Field(default_factory=dict)
    payload_ref: dict[str, Any] | None = None
    payloads: list[PayloadBody] = Field(default_factory=list)


class OneFactBody(FactBody):
    session_id: str


class FactsBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    session_id: str
    facts: list[FactBody] = Field(max_length=FACTS_AT_ONCE_MAX)


class FactAnswer(BaseModel):
    """`ok`, or `refused` with the code of the reason."""

    status: str
    is_held: bool = Field(description="whether the session still holds the command")
    code: str | None = None
    detail: str | None = None


class FactAnswers(BaseModel):
    answers: list[FactAnswer]


class ClaimBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    session_id: str
    count: int = Field(default=1, ge=1, le=SESSION_SLOTS_MAX)
    wait_s: float = Field(default=0.0, ge=0.0, le=30.0)


class CommandView(Document):
    execution_id: str
    command_id: str
    tenant_id: str
    organization_id: str
    attempt: int
    body: dict[str, Any]


class CommandsView(BaseModel):
    commands: list[CommandView]


class DrainedView(BaseModel):
    """How many commands the session still holds."""

    session_id: str
    held: int


class StoredView(Document):
    """The reference of a stored payload."""

    uri: str
    sha256: str
    bytes: int


class ResultView(BaseModel):
    """What is known of a step's result without reading it; rows and columns are those of its natural table."""

    step: str
    run: int
    status: str
    media_type: str | None
    bytes: int
    rows: int | None
    columns: list[str] | None
    problem: str | None = Field(description="why it cannot be read")


class ResultsView(BaseModel):
    results: list[ResultView]
    total: int
    next_offset: int | None


class LogLineView(BaseModel):
    """One line that a tool or user code said."""

    at: str
    stream: str = Field(description="`stdout` or `stderr` of user code, or `log`: a tool, or the engine")
    step: str
    task: str
    row: int | None = Field(description="index in the loop, of a line that belongs to one row")
    command_id: str
    attempt: int = Field(description="of the command: it rises when a worker is lost or a task waits")
    try_: int = Field(alias="try", description="how often the task was run in this attempt")
    text: str


class LogsView(BaseModel):
    lines: list[LogLineView]
    next_after: str = Field(description="`after` of the next request")
    is_complete: bool = Field(description="the execution has ended, and nothing follows")


class LogChunkBody(BaseModel):
    """Lines of one attempt: base64 of a chunk as `content`, or the `reference` of a payload that holds one."""

    model_config = ConfigDict(extra="forbid")

    execution_id: str
    command_id: str
    attempt: int
    seq: int = Field(ge=0, le=2**31 - 1)
    first_at_ms: int
    last_at_ms: int
    lines: int = Field(ge=0, le=2**31 - 1)
    bytes: int = Field(ge=0, le=2**31 - 1)
    content: str | None = None
    reference: dict[str, Any] | None = None


class LogChunksBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    session_id: str
    chunks: list[LogChunkBody] = Field(max_length=LOG_CHUNKS_AT_ONCE_MAX)


class LogChunksView(BaseModel):
    """How many chunks were kept, and how many not: the session no longer holds their commands."""

    kept: int
    refused: int


class SealedView(BaseModel):
    """Nonce and ciphertext are base64."""

    name: str
    type: str
    tenant_id: str
    organization_id: str
    key_id: str
    nonce: str
    ciphertext: str
    updated_at: str


# --- describing what the framework does not read itself ----------------------------------------------------

IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "a request that is sent again with the same key has one effect",
    "schema": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[ -~]+$"},
}


class PermitUseBody(BaseModel):
    """What a session uses of one limit for one execution."""

    model_config = ConfigDict(extra="forbid")

    execution_id: str
    limit: str
    rate: float | None = Field(default=None, description="calls per second, as declared")
    concurrency: int | None = None
    returned: int = Field(default=0, ge=0, description="permits given back so far; only grows")
    in_use: int = Field(default=0, ge=0)
    waiting: int = Field(default=0, ge=0)


class PermitsBody(BaseModel):
    """Everything that a session uses of shared limits; what it does not say is free."""

    model_config = ConfigDict(extra="forbid")

    turn: int = Field(ge=0, description="rises from word to word")
    uses: list[PermitUseBody]
    wait_s: float = Field(default=0.0, ge=0.0)


DESCRIBED = (
    StartBody,
    OneFactBody,
    FactsBody,
    HeartbeatBody,
    PermitsBody,
    ProblemView,
)


def body(name: str, *, required: bool = True) -> dict[str, Any]:
    """The request body of a plain route; the schema is one of DESCRIBED."""
    return {"required": required, "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}}


def keyed(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """A POST that reads its body itself and honours an Idempotency-Key."""
    schema = model.model_json_schema()
    return {
        "requestBody": {"required": required, "content": {"application/json": {"schema": schema}}},
        "parameters": [IDEMPOTENCY_KEY],
    }


def path_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
