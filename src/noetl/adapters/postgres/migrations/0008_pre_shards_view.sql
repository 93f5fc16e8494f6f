-- How far the ledger is, for whoever reads it from a position on.  Runs before the new code; safe while old code runs.

-- How far each shard is: the position before the next one is the last that was given.
CREATE VIEW noetl_views.shards WITH (security_barrier = true) AS
SELECT shard_id, next_position
FROM noetl.execution_shard;

-- Which life of the ledger positions are of: one that was remembered in another life means nothing.
CREATE VIEW noetl_views.ledger WITH (security_barrier = true) AS
SELECT ledger_incarnation, created_at
FROM noetl.ledger;
