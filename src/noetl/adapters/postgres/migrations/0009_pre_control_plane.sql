-- Several servers on one ledger: who is there, who owns what, how far projections and checkpoints are.  Runs before the
-- new code; safe while old code runs.

-- What others may want to know of a process.
ALTER TABLE noetl.runtime
    ADD COLUMN url          text,
    ADD COLUMN version      text,
    ADD COLUMN started_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    ADD COLUMN heartbeat_at timestamptz NOT NULL DEFAULT clock_timestamp();

-- Who does what only one process at a time may do.  The epoch rises with every new holder.
CREATE TABLE noetl.runtime_role (
    role                 text        PRIMARY KEY,
    runtime_id           bigint,
    epoch                bigint      NOT NULL DEFAULT 0,
    leased_until         timestamptz NOT NULL DEFAULT '-infinity'
);

-- Worker sessions of all servers.  A server renews its own; those of a dead one run out.
CREATE TABLE noetl.session (
    session_id           bigint      PRIMARY KEY,
    runtime_id           bigint      NOT NULL,
    worker_id            text        NOT NULL,
    pool                 text        NOT NULL,
    kinds                text[],
    slots                integer     NOT NULL,
    leased_until         timestamptz NOT NULL
);
CREATE INDEX idx_session_runtime ON noetl.session (runtime_id);

-- A word to whoever holds the command: end it, or begin no further row of it.  Its session may be another server's.
ALTER TABLE noetl.command ADD COLUMN stop text CHECK (stop IN ('cancel', 'drain'));
CREATE INDEX idx_command_session ON noetl.command (session_id) WHERE session_id IS NOT NULL;

-- How far the projector of a shard is: written with the rows that it made of the events up to here.
CREATE TABLE noetl.projection_checkpoint (
    shard_id                 integer     PRIMARY KEY,
    position                 bigint      NOT NULL DEFAULT 0,
    ledger_incarnation       uuid,
    last_projected_event_id  bigint      NOT NULL DEFAULT 0,
    last_projected_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    lag_ms                   integer,
    owner_runtime_id         bigint,
    epoch                    bigint      NOT NULL DEFAULT 0,
    leased_until             timestamptz
);

-- The rest of an execution's projection: what its status shows, and whether it could not be folded.
ALTER TABLE noetl.execution
    ADD COLUMN version                  bigint NOT NULL DEFAULT 0,
    ADD COLUMN state                    json,
    ADD COLUMN quarantine               json,
    ADD COLUMN last_projected_event_id  bigint;

-- Epoch barriers: one row for each `checkpoint.committed`, in the system execution of its shard.
CREATE TABLE noetl.checkpoint (
    execution_id         bigint      NOT NULL,
    shard_id             integer     NOT NULL,
    epoch                bigint      NOT NULL,
    position             bigint      NOT NULL,
    last_event_id        bigint      NOT NULL,
    committed_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (execution_id, epoch)
);
CREATE INDEX idx_checkpoint_shard ON noetl.checkpoint (shard_id, position DESC);

-- Folded states at a position.  Never the authority: ignored unless everything about them fits.
CREATE TABLE noetl.projection_snapshot (
    execution_id         bigint      NOT NULL,
    position             bigint      NOT NULL,
    tenant_id            text        NOT NULL,
    organization_id      text        NOT NULL,
    shard_id             integer     NOT NULL,
    stream_version       bigint      NOT NULL,
    last_event_id        bigint      NOT NULL,
    code_version         text        NOT NULL,
    upcaster_digest      text        NOT NULL,
    payload_root         text        NOT NULL,
    encryption_context   text,
    checksum             text        NOT NULL,
    state                bytea       NOT NULL,
    created_at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (execution_id, position)
);
