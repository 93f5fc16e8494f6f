"""The pages of docs/reference that are generated: events from `core/event.py`, the schema from the migrations, the
limits from `core/limits.py`.

Pure text.  `python -m noetl.cli.reference` writes the pages below docs/reference of the current folder.
Migrations are read as text, nothing is run: a statement of a form that is not known here is an error, so that the
page never lags in silence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from noetl.cli.limits_page import limits_markdown
from noetl.cli.pages.logs import logs_markdown
from noetl.cli.pages.metrics import metrics_markdown
from noetl.cli.pages.settings import settings_markdown
from noetl.core.kinds import KINDS, EventKind

ENVELOPE = {
    "execution_id": "the execution; its high bits are the time of its start",
    "event_id": "snowflake id, unique everywhere",
    "tenant_id, organization_id": "whose event it is; never empty",
    "stream_id, stream_version": "`execution/<id>` and the gap-free number of the event in it",
    "shard_id, position": "the shard and the gap-free number of the event in it, in the order of commits",
    "aggregate_type, aggregate_id": "what the event is about: execution, step, command, stage or frame",
    "event_type": "noun and past tense",
    "schema_name, schema_version": "`noetl.<event_type>` and the version of its members",
    "event_time, ingest_time": "when it happened, when the ledger stored it",
    "producer": "locator of the process that made it",
    "correlation_id, causation_id": "the execution, and the event that this one follows from",
    "transition_key": "what makes one transition happen once; unique within the execution",
    "idempotency_key": "the caller's key, on the first event of an execution",
    "command_id": "`<step>#<run>`, or `<step>#<run>/eval/<n>` for an expression",
    "stage_id, frame_id": "a loop's `<step>#<run>` and the window `<step>#<run>/<n>` of its rows",
    "parent_execution_id": "the execution that started this one",
    "payload_ref": "reference to bytes that belong to the event",
    "result": "`{status, reference, parent_ref, context}`, at most 8 KB",
    "writes": "values written to `ctx`: `{path, v}`, or `{path, ref, at}` for a place in a payload",
    "meta": "the members of the type, below",
    "checksum": "SHA-256 of the canonical JSON of all that the producer fixed",
}

MEMBERS = {
    "application": "the engine's own name for the application that the job runs in",
    "arcs": "numbers of the arcs that fired, in order",
    "args": "what the deprecated `args` of arcs give to a target's run, by target and name",
    "attempt": "ordinal of the claim; the fencing token",
    "breaks": "rows of a cursor that said `break`: their slot ends",
    "catalog": "which version of the catalog it is: `{id, version}`; absent for a text that was handed in",
    "cause": "`request`, `timeout` or `parent`",
    "claim": "of a cursor's frame without rows: `none` were there, or claiming them `failed`",
    "child_execution_id": "the execution that the task started",
    "claimed": "of a cursor whose recorded rows run once more: its counters; the rows are a collection now",
    "closing": "true for the final step, started after everything else",
    "collection": "the rows of the loop: `{v}` inline, or `{ref}` to a stored collection",
    "conf": "settings of the job that differ from the engine's own, without secrets; large ones are the payload",
    "concurrency": "how many rows of the frame may run at the same time",
    "credentials": "names of the credentials and keychain entries that were used, never what they hold",
    "cursor": "what is claimed where: `{kind, claim, auth}`; what is no template is not repeated here",
    "dead_letter": "of a loop with failures: the payload that lists them, by reference",
    "delay_seconds": "how long the task waits",
    "done": "rows that have an outcome",
    "depth": "how many executions are above this one",
    "due_at": "when the timer fires that bounds this: of a wait, a step run, an execution, a grace",
    "duration_ms": "how long the work took",
    "entry": "the step that runs first",
    "env": "variables of the server that playbooks may read, as they were when the execution began",
    "error": "the failure that no arc handled: `{kind, code, status, retryable, message}`",
    "event_log": "where the engine writes its own account of the job",
    "expression": "key of the expression to evaluate",
    "failed": "rows that failed",
    "fanin": "what became of the shards of a fan-out: `{status, total, succeeded, failed}`",
    "first": "index of the frame's first row",
    "fork": "of an execution that begins with another one's state: `{execution_id, position, kind, seeds}`",
    "frames": "how many frames the loop had",
    "inputs": "results that were opened for the work: `{ref_id}`, or `{sha256}` of what no step gave; at most 32",
    "iter": "the iteration of another execution's loop that started this one: its small values",
    "job": "the `n` of the job's intent",
    "job_group": "under what name the engine runs everything that belongs to the job",
    "jobs": "of an end, what the last jobs cost and which expectations they met; of a progress, the engine's own jobs",
    "kind": "`step`, or `evaluate`, `collect`, `gather` or `seal` for work inside a step",
    "logs": "what the tasks said while they ran: `{lines, bytes}`, and `left_out_bytes` when it was too much",
    "leaf": "true when the step has no `next` at all",
    "n": "ordinal of the wait, the child, the heartbeat, the claim, the seed; of a word about a job, in its attempt",
    "name": "the timer: `retry/<command>/<n>`, `child/<command>/<n>`, `step/<step>#<run>`, `execution`, `cancel`",
    "number": "ordinal of the frame in its stage",
    "opens": "true when the step run begins with this question about its loop",
    "outcome": "`completed`, `handled` (a failure that an arc handled), `skipped` (it was not admitted) or `failed`",
    "outputs": "what the loop has kept of another execution: where the outcomes are, and of which rows",
    "outcomes": "how the frame's rows ended: `{success, failed, skipped}`",
    "parents": "the steps whose arcs requested this run",
    "parent": "the task that started this execution: `{command_id, n, waits}`",
    "path": "the playbook's path in the catalog",
    "pending_writes": "what the router wrote before it came to the expression; recorded with its decision",
    "phase": "`admit` or `skip`: a question about a step before it runs, whether it may, or where it leads if not",
    "place": "a mark of the database in which the rows were claimed",
    "playbook": "reference to the playbook's own text",
    "playbooks": "the versions of the playbooks that it starts, by path: `{id, version, sha256}`",
    "policy": "how the stage is worked off, as decided when it was opened",
    "profile": "what the frame cost: rows, wall milliseconds, and of each task its calls, rendering and tool, "
    "and what it waited for the permits of a limit (`limit_ms`)",
    "ranges": "half-open ranges of row indexes whose outcome is persisted",
    "reason": "why: in the words of whoever asked; of a skipped step `admission`, `guard` or `failing`",
    "retry_mode": "`behind_persisted_rows` or `whole_frame`",
    "return_step": "the step whose result the task gets",
    "row": "the row of a loop that the job works for",
    "rows": "how many rows the frame has",
    "run": "ordinal of the run of this step",
    "script_names": "which names each pinned script reads, null for any of them",
    "scripts": "scripts by path: those that are pinned, or those that were fetched when a task ran; references",
    "session": "the worker session that took the command",
    "locality": "where that worker is, as far as it says: region, zone, cluster, node",
    "worker_locator": "the worker's canonical name, with its place",
    "source_locality": "where the data was made that it reads, as far as that is known",
    "placement": "how far that is, `{distance, max_distance, within_max_distance}`; places are no content",
    "slot": "the claimant of a cursor whose turn the frame is",
    "shard_index": "ordinal of the shard in its fan-out, from 0",
    "shard_size": "how many rows a shard has; the last one may have fewer",
    "skipped": "how many rows the next attempt need not run",
    "source": "where the rows of the loop come from: a `collection`, or a `cursor` that claims them",
    "stage": "what the engine does now, in its own words",
    "stage_kind": "`loop` or `fanout`",
    "stages": "the engine's stages, as far as it knows of them",
    "stages_done": "those of them that have ended",
    "state": "fields of the state; mappings as pairs, in their order",
    "started": "when the task was about to begin",
    "status": "how it ended",
    "step": "the step; at the end of an execution the last or the failed one",
    "targets": "steps that the arcs requested",
    "task": "the task that waits, or that runs the job",
    "tasks": "the first task runs: label, milliseconds, what it waited for a permit, attempt, kind of error, where the "
    "result is stored on its own; "
    "of a job, how many tasks the engine has made of it",
    "tasks_done": "tasks of the engine that have ended well",
    "tasks_failed": "tasks of the engine that have failed; it tries them again",
    "total": "how many rows the loop has",
    "total_shards": "how many shards the fan-out has",
    "traceback": "reference to the traceback of the last task",
    "tries": "how often the shard was run before",
    "ui": "where the engine shows the job to people",
    "unconfirmed": "commands that did not confirm within the grace",
    "waits": "false when the task does not wait for the child",
    "warnings": "what went wrong without failing anything; of an execution, what is to be said about its playbook",
    "xid": "number of the transaction that claimed the rows; its database says whether it was committed",
    "workload": "the inputs by name: `{v}`, or `{ref, path}` for a place in a payload",
    "epoch": "the ordinal of a checkpoint of its shard",
    "shard": "the shard that a checkpoint is of",
    "position": "up to where in its shard everything is applied",
    "last_event_id": "the event at that position",
}

# Names of the design's event list that no row of the ledger has, and what became of them.
NOT_IN_THE_LEDGER = {
    "batch.accepted": "transport: an answer to the sender, never in the ledger",
    "batch.processing": "transport, never in the ledger",
    "batch.completed": "transport: the answer after the commit, never in the ledger",
    "batch.failed": "transport: the answer to the sender, never in the ledger",
    "heartbeats": "transport: they keep a session alive, never in the ledger",
}
# The order of the design's list.
DESIGN_EVENTS = (
    *("playbook.initialized", "workflow.initialized", "command.issued", "command.claimed", "command.started"),
    *("command.completed", "command.failed", "step.enter", "step.exit", "call.done", "call.error", "loop.done"),
    *("batch.accepted", "batch.processing", "batch.completed", "batch.failed", "heartbeats"),
    *("loop.started", "loop.item", "stage.opened", "stage.closed", "frame.dispatched", "frame.started"),
    *("frame.heartbeat", "frame.committed", "frame.failed", "frame.abandoned"),
    *("loop.fanout.started", "loop.shard.done", "loop.shard.failed", "loop.fanin.completed"),
    *("playbook.completed", "playbook.failed", "execution.cancelled"),
)

# Column or table of the design documents → what holds the fact here.
REPLACED_COLUMNS = (
    ("event: node_id, node_name (the step of an event)", "`event.aggregate_id` and `meta.step`"),
    ("event: parent_id", "`event.causation_id`; `event.parent_event_id`, `event.parent_execution_id`"),
    ("event: created_at", "`event.event_time` (producer) and `event.ingest_time` (database)"),
    ("event: hash of execution_id in an index expression", "`event.shard_id`, stored when the execution starts"),
    ("event: event_id as a reader's watermark", "`event.position`, gap-free within `event.shard_id`"),
    ("event: meta.command_id and its unique index", "`event.command_id`, `event.transition_key`"),
    ("event: meta.loop_id, meta.epoch_id, loop_event_id", "`event.stage_id` and the ordinal in `event.transition_key`"),
    ("event: unique indexes for loop.done, loop.fanin.completed, checkpoint.committed", "`uidx_event_transition`"),
    ("event: current_index, current_item", "the output of the item's frame: `GET /api/executions/{id}/items/{step}`"),
    ("event: expected_version", "`stream.version`, counted by the appending statement"),
    ("event.result: reference {ref_id, type, uri}", "`result.reference` {uri, sha256, media_type, bytes, store, …}"),
    ("result_ref: ref_id from a sequence", "`result_ref.ref_id`, the id of the event that names the result"),
    ("result_ref: a table with a foreign key to itself", "a view of `event`; `event.parent_event_id` is the link"),
    ("result_ref: physical_uri", "`result_ref.store_tier`, `result_ref.physical_address`"),
    ("command: numeric command_id", "`command.command_id`, the text `<step>#<run>`"),
    (
        "command: stage_id, frame_id, meta.worker_slot_id",
        "`command.session_id`, `command.attempt`; frames are no commands",
    ),
    (
        "execution: state (one JSON document)",
        "`execution.state`, the document that views show; the state itself is folded from events",
    ),
    ("execution: last_projected_event_id", "the same, and `execution.applied_position`"),
    ("execution: start_time, end_time", "`execution.started_at`, `execution.ended_at`"),
    ("execution_shard: owner_runtime_id, owner_instance, epoch, leased_until", "the same, and the shard's counters"),
    (
        "projection_checkpoint: last_projected_event_id, lag_ms",
        "the same; where to go on is `projection_checkpoint.position`",
    ),
    ("checkpoint: epoch, last_event_id", "the same, and `checkpoint.position`"),
    ("outbox", "the ledger: a reader remembers one position per shard"),
    ("stage: a table that is written", "`stage`, a view of `event`: its rows are what the events say"),
    ("frame: a table that is written", "`frame`, a view of `event`"),
    (
        "stage: dsl_ref, parent_event_id",
        "`stage.step`; the playbook is in `execution`, the cause in `event.causation_id`",
    ),
    ("frame: lease_until, owner_worker", "`frame.owner_session_id`; the lease is that of the session"),
    (
        "frame: cursor, output_ref, events_emitted",
        "`frame.first_row` and `frame.row_count`; `result_ref`; three events",
    ),
    ("manifest, manifest_part", "come with large collections"),
)


# --- events ----------------------------------------------------------------------------------------------


def events_markdown() -> str:
    lines = [
        "# Events",
        "",
        "Generated by `noetl.cli.reference` from `core/event.py`; a test compares.",
        "",
        "## Envelope",
        "",
        *_table(("member", "meaning"), ENVELOPE.items()),
    ]
    for kind in KINDS.values():
        lines += ["", *_event(kind)]
    lines += ["", "## Names of the design and where their facts are", ""]
    lines += _table(("event", "carried by"), ((f"`{name}`", _carrier(name)) for name in DESIGN_EVENTS))
    return "\n".join(lines) + "\n"


def _event(kind: EventKind) -> list[str]:
    extras = [name for name, has in (("result", kind.has_result), ("writes", kind.has_writes)) if has]
    facts = [
        ("about", f"`{kind.aggregate_type}`"),
        ("transition key", f"`{kind.transition_key}`"),
        ("schema", f"`{kind.schema_name}` version {kind.schema_version}"),
        ("also carries", ", ".join(f"`{name}`" for name in extras) or "nothing"),
        ("closes the execution", "yes" if kind.closes else "no"),
    ]
    return [
        f"## `{kind.event_type}`",
        "",
        kind.says,
        "",
        *(f"- {name}: {text}" for name, text in facts),
        "",
        *_table(("member of `meta`", "meaning"), ((f"`{name}`", MEMBERS[name]) for name in kind.meta)),
    ]


def _carrier(name: str) -> str:
    kinds = [f"`{kind.event_type}`" for kind in KINDS.values() if name in kind.carries]
    return " or ".join(kinds) if kinds else NOT_IN_THE_LEDGER[name]


# --- schema ----------------------------------------------------------------------------------------------

_PIECE = re.compile(r"\$\$.*?\$\$|'(?:[^']|'')*'|--[^\n]*|[;(),]|[^;(),'$-]+|.", re.DOTALL)
_TABLE = re.compile(r"^CREATE (?:UNLOGGED )?TABLE noetl\.(\w+) (?=\()")
_PARTITION = re.compile(r"^CREATE TABLE noetl\.(\w+) PARTITION OF noetl\.(\w+) (.*)$")
_INDEX = re.compile(r"^CREATE (UNIQUE )?INDEX (\w+) ON noetl\.(\w+) (.*)$")
_NO_INDEX = re.compile(r"^DROP INDEX noetl\.(\w+)$")
_FUNCTION = re.compile(r"^CREATE (?:OR REPLACE )?FUNCTION (noetl\.\w+\([^)]*\) RETURNS \w+)")
_DERIVED = re.compile(r"^CREATE VIEW noetl\.(\w+) \(([^)]*)\) AS ")
_COLUMN = re.compile(r"^ALTER TABLE noetl\.(\w+) ADD COLUMN (.*)$")
_DEFAULT = re.compile(r"^ALTER TABLE noetl\.(\w+) ALTER COLUMN (\w+) SET DEFAULT (.*)$")
_VIEW = re.compile(
    r"^CREATE (?:OR REPLACE )?VIEW (noetl_views\.\w+) WITH \(security_barrier = true\) "
    r"AS SELECT (.*) FROM noetl\.(\w+)$"
)
_IGNORED = re.compile(r"^(?:INSERT|SET|COMMENT|CREATE SCHEMA) ")
_RULE_WORDS = ("PRIMARY KEY", "CONSTRAINT", "UNIQUE", "CHECK", "FOREIGN KEY")
_COLUMN_RULE = re.compile(r" (?=(?:NOT NULL|DEFAULT|GENERATED|PRIMARY KEY|UNIQUE|CHECK|REFERENCES)\b)")


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str
    rule: str


@dataclass(frozen=True, slots=True)
class Index:
    name: str
    definition: str
    comment: str


@dataclass(slots=True)
class Table:
    name: str
    comment: str
    columns: list[Column] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)
    indexes: list[Index] = field(default_factory=list)
    partitions: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class View:
    name: str
    table: str
    columns: list[str]
    comment: str


@dataclass(slots=True)
class Schema:
    tables: dict[str, Table] = field(default_factory=dict)
    views: list[View] = field(default_factory=list)
    functions: dict[str, str] = field(default_factory=dict)


def read_schema(migrations: Sequence[str]) -> Schema:
    schema = Schema()
    for text in migrations:
        for statement, comment in _statements(text):
            _apply(schema, statement, comment)
    return schema


def _apply(schema: Schema, statement: str, comment: str) -> None:
    if found := _PARTITION.match(statement):
        schema.tables[found[2]].partitions.append(f"{found[1]} {found[3]}")
    elif found := _TABLE.match(statement):
        parts, rest = _parts(statement[found.end() :])
        table = Table(found[1], comment)
        for part in parts:
            _add_part(table, part)
        table.rules += [rest] if rest else []
        schema.tables[table.name] = table
    elif found := _INDEX.match(statement):
        definition = f"{'unique ' if found[1] else ''}{found[4]}"
        schema.tables[found[3]].indexes.append(Index(found[2], definition, comment))
    elif found := _NO_INDEX.match(statement):
        for table in schema.tables.values():
            table.indexes = [index for index in table.indexes if index.name != found[1]]
    elif found := _FUNCTION.match(statement):
        schema.functions[found[1]] = comment
    elif found := _COLUMN.match(statement):
        for column in found[2].split(", ADD COLUMN "):
            _add_part(schema.tables[found[1]], column)
    elif found := _DEFAULT.match(statement):
        table = schema.tables[found[1]]
        table.columns = [_with_default(one, found[3]) if one.name == found[2] else one for one in table.columns]
    elif not _IGNORED.match(statement):
        _add_view(schema, statement, comment)


def _add_view(schema: Schema, statement: str, comment: str) -> None:
    if found := _VIEW.match(statement):
        view = View(found[1], found[3], found[2].split(", "), comment)
        known = [number for number, one in enumerate(schema.views) if one.name == view.name]
        if known:
            schema.views[known[0]] = View(view.name, found[3], view.columns, comment or schema.views[known[0]].comment)
        else:
            schema.views.append(view)
    elif found := _DERIVED.match(statement):
        columns = [Column(name, "", "derived") for name in found[2].split(", ")]
        schema.tables[found[1]] = Table(found[1], comment, columns, ["a view of the ledger"])
    else:
        raise ValueError(f"a statement of an unknown form: {statement[:80]}")


def _with_default(column: Column, value: str) -> Column:
    rules = re.sub(r" ?DEFAULT .*$", "", column.rule)
    return Column(column.name, column.type, f"{rules} DEFAULT {value}".strip())


def _add_part(table: Table, part: str) -> None:
    if part.startswith(_RULE_WORDS):
        table.rules.append(part)
        return
    name, _, rest = part.partition(" ")
    type_, *rules = _COLUMN_RULE.split(rest)
    table.columns.append(Column(name, type_, " ".join(rules)))


def _statements(text: str) -> Iterator[tuple[str, str]]:
    """Each statement in one line, with the comment that stands directly above it."""
    words: list[str] = []
    comment: list[str] = []
    for piece in _PIECE.findall(text):
        if piece.startswith("--"):
            if not words:
                comment.append(piece[2:].strip())
        elif piece == ";":
            yield _one_line("".join(words)), " ".join(comment)
            words, comment = [], []
        elif piece.strip():
            words.append(piece)
        elif words:
            words.append(" ")
        elif piece.count("\n") > 1:
            comment = []
    if "".join(words).strip():
        raise ValueError("the last statement has no end")


def _one_line(text: str) -> str:
    text = re.sub(r"\s+", " ", text).strip()
    return re.sub(r"\( ", "(", re.sub(r" \)", ")", text))


def _parts(body: str) -> tuple[list[str], str]:
    """What stands between the commas of the first bracket, and what follows after it."""
    parts, depth = [""], 0
    for place, character in enumerate(body):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return [part.strip() for part in parts], body[place + 1 :].strip()
        if character == "," and depth == 1:
            parts.append("")
        elif place:
            parts[-1] += character
    raise ValueError(f"a bracket is not closed: {body[:80]}")


def schema_markdown() -> str:
    folder = files("noetl").joinpath("adapters", "postgres", "migrations")
    found = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".sql")), key=lambda e: e.name)
    schema = read_schema([entry.read_text("utf-8") for entry in found])
    lines = [
        "# Schema",
        "",
        "Generated by `noetl.cli.reference` from the migrations; a test compares.  All names are in the schema",
        "`noetl`, except the views that others may read.  Beside these tables there are `noetl.migration` (what was",
        "applied) and one partition of `noetl.event` per quarter, made by `noetl migrate` and at every start of the",
        "embedded database.  Both also let the role `noetl_reader` into the views, and make it where they may.",
    ]
    for table in schema.tables.values():
        lines += ["", *_described(table)]
    for view in schema.views:
        names = ", ".join(f"`{name}`" for name in view.columns)
        lines += ["", f"## View `{view.name}`", "", view.comment, "", f"Of `{view.table}`: {names}."]
    for name, comment in schema.functions.items():
        lines += ["", f"## Function `{name}`", "", comment]
    lines += ["", "## Columns of the design and what holds their fact", ""]
    lines += _table(("design", "here"), REPLACED_COLUMNS)
    return "\n".join(lines) + "\n"


def _described(table: Table) -> list[str]:
    lines = [f"## `{table.name}`", ""]
    if table.comment:
        lines += [table.comment, ""]
    lines += _table(
        ("column", "type", "rule"),
        ((f"`{column.name}`", column.type, f"`{column.rule}`" if column.rule else "") for column in table.columns),
    )
    notes = [
        *(f"- `{rule}`" for rule in table.rules),
        *(f"- `{index.name}`: `{index.definition}`{_after(index.comment)}" for index in table.indexes),
        *(f"- partition `{partition}`" for partition in table.partitions),
    ]
    return [*lines, "", *notes] if notes else lines


def _after(comment: str) -> str:
    return f".  {comment}" if comment else ""


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows),
    ]


def main() -> None:
    folder = Path("docs") / "reference"
    pages = {
        "events.md": events_markdown(),
        "schema.md": schema_markdown(),
        "limits.md": limits_markdown(),
        "settings.md": settings_markdown(),
        "metrics.md": metrics_markdown(),
        "logs.md": logs_markdown(),
    }
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
