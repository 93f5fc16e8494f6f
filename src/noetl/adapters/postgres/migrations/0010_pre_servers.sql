-- Who is alive.  Runs before the new code; safe while old code runs.

-- The lease of a process: what it owns (shards, sessions) is its own until then.  One row is renewed and not one for each
-- shard: those are hot.  `seat` is the lock that it holds: whoever holds it next knows that this process is dead.
ALTER TABLE noetl.runtime
    ADD COLUMN alive_until  timestamptz NOT NULL DEFAULT to_timestamp(0),
    ADD COLUMN seat         text;
