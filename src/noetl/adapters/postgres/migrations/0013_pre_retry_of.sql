-- Executions that run failed items of another one.  Runs before the new code; safe while old code runs.

-- The execution whose state it began with, as its first event says.
ALTER TABLE noetl.execution ADD COLUMN retry_of bigint;

CREATE OR REPLACE VIEW noetl_views.executions WITH (security_barrier = true) AS
SELECT execution_id, tenant_id, organization_id, path, playbook_digest, status, started_at, ended_at, last_step,
       last_event_id, parent_execution_id, shard_id, applied_position, retry_of
FROM noetl.execution;
