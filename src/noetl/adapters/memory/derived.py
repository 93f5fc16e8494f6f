"""The tables that are derived from events: queue, timers, executions, idempotency keys.  Their writes travel
with the commit that causes them, for the shards whose fence held."""

from __future__ import annotations

from dataclasses import replace

from noetl.adapters.memory.tables import QueueRow, Request, Tables, Timer
from noetl.ports.ledger import Advance, QueuedCommand


def derive(tables: Tables, advance: Advance, held: frozenset[int], *, now: str) -> None:
    _queue(tables, advance, held, now)
    for key in advance.timers_gone:
        if key in tables.timers and tables.timers[key].shard_id in held:
            del tables.timers[key]
    for execution_id, name, shard_id, due_at in advance.timers:
        if shard_id in held:
            tables.timers.setdefault((execution_id, name), Timer(shard_id, due_at))
    for shown in advance.executions:
        if shown.shard_id in held:
            # Only the first row: what is there is the projector's work.
            tables.executions.setdefault(shown.execution_id, shown)
    for request in requests(advance, held):
        tables.idempotency[request.key] = request.row


def requests(advance: Advance, held: frozenset[int]) -> list[Request]:
    """The idempotency keys whose execution is written by this commit."""
    shards = {sealed.event.execution_id: sealed.event.shard_id for sealed in advance.events}
    return [Request(row) for row in advance.idempotency if shards[row.execution_id] in held]


def _queue(tables: Tables, advance: Advance, held: frozenset[int], now: str) -> None:
    commands = tables.commands
    queued = {_key(row): row for row in advance.queue if row.shard_id in held}
    claimed = {_key(row): row for row in advance.claims if row.shard_id in held and _key(row) in commands}
    gone = {key for key in advance.dequeue if key in commands and commands[key].command.shard_id in held}
    told = {(stop.execution_id, stop.command_id): stop for stop in advance.stops}
    # Postgres does not say which of two changes of one statement to one row wins: there must be no two.
    assert queued.keys().isdisjoint(claimed.keys() | gone), "one commit changes a row of the queue twice"
    assert gone.isdisjoint(claimed.keys()), "one commit changes a row of the queue twice"
    assert told.keys().isdisjoint(claimed.keys() | gone | queued.keys()), "one commit changes a row of the queue twice"
    for key, stop in told.items():
        row = commands.get(key)
        is_held = row is not None and row.command.session_id is not None and row.command.shard_id in held
        if row is not None and is_held and row.command.attempt == stop.attempt:
            commands[key] = row._replace(stop=stop.word)
    for key in gone:
        del commands[key]
    for key, claim in claimed.items():
        command = replace(commands[key].command, attempt=claim.attempt, session_id=claim.session_id)
        commands[key] = commands[key]._replace(command=command, stop=None)
    for key, new in queued.items():
        known = commands.get(key)
        # A row that is ahead of the ledger belongs to a claim that another server is recording.
        if known is None or known.command.session_id is None or known.command.attempt <= new.attempt:
            commands[key] = QueueRow(new, known.available_at if known else now)


def _key(row: QueuedCommand) -> tuple[int, str]:
    return row.execution_id, row.command_id
