-- What others may read of the control plane.  Runs before the new code; safe while old code runs.

-- Published views: the only way into this database for anybody but NoETL.  `noetl migrate` lets the role noetl_reader in.
CREATE SCHEMA noetl_views;

-- One row per execution.
CREATE VIEW noetl_views.executions WITH (security_barrier = true) AS
SELECT execution_id, tenant_id, organization_id, path, playbook_digest, status, started_at, ended_at, last_step,
       last_event_id, parent_execution_id, shard_id, applied_position
FROM noetl.execution;

-- The ledger without the caller's keys and checksums.  Payloads are named by reference and are not in here.
CREATE VIEW noetl_views.events WITH (security_barrier = true) AS
SELECT execution_id, position, shard_id, event_id, tenant_id, organization_id, stream_id, stream_version, aggregate_type,
       aggregate_id, event_type, schema_name, schema_version, event_time, ingest_time, producer, causation_id,
       correlation_id, transition_key, command_id, stage_id, frame_id, parent_event_id, parent_execution_id, payload_ref,
       result, writes, meta
FROM noetl.event;

-- Commands that wait or run, without what they carry.
CREATE VIEW noetl_views.commands WITH (security_barrier = true) AS
SELECT execution_id, command_id, shard_id, tenant_id, organization_id, pool, tool_kind, priority, available_at, attempt,
       session_id
FROM noetl.command;
