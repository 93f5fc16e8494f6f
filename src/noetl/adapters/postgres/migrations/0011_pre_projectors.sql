-- Processes that keep projections.  Runs before the new code; safe while old code runs.

-- Who is there to share the shards.  While one that does nothing else lives, those inside of servers stand by.
CREATE TABLE noetl.projector (
    runtime_id           bigint      PRIMARY KEY,
    instance             text        NOT NULL,
    is_dedicated         boolean     NOT NULL,
    leased_until         timestamptz NOT NULL
);

-- What could not be folded: looked for whenever a shard is taken, and by whoever asks what is wrong.
CREATE INDEX idx_execution_quarantine ON noetl.execution (shard_id, execution_id) WHERE quarantine IS NOT NULL;
