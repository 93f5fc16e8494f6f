-- name: execution_events
SELECT execution_id, position, shard_id, event_id, tenant_id, organization_id, stream_version, event_type,
       schema_version, event_time, ingest_time, producer, causation_id, correlation_id, idempotency_key,
       transition_key, command_id, stage_id, frame_id, parent_event_id, parent_execution_id, payload_ref, result,
       writes, meta, checksum
FROM noetl.event
WHERE execution_id = :execution_id::bigint AND position > :after_position::bigint
ORDER BY position
LIMIT :rows::integer

-- name: shard_events
SELECT execution_id, position, shard_id, event_id, tenant_id, organization_id, stream_version, event_type,
       schema_version, event_time, ingest_time, producer, causation_id, correlation_id, idempotency_key,
       transition_key, command_id, stage_id, frame_id, parent_event_id, parent_execution_id, payload_ref, result,
       writes, meta, checksum
FROM noetl.event
WHERE shard_id = :shard_id::integer AND position > :after_position::bigint
ORDER BY position
LIMIT :rows::integer

-- name: heads
SELECT shard_id, next_position, decided_position, epoch FROM noetl.execution_shard ORDER BY shard_id

-- name: incarnation
SELECT ledger_incarnation::text AS ledger_incarnation FROM noetl.ledger

-- name: refresh_incarnation
-- The first start records where the ledger lives; any later one that finds it elsewhere begins a new incarnation.
UPDATE noetl.ledger AS l
SET ledger_incarnation = CASE WHEN l.system_identifier IS NULL THEN l.ledger_incarnation ELSE gen_random_uuid() END,
    system_identifier = s.system_identifier, timeline_id = c.timeline_id
FROM pg_control_system() AS s, pg_control_checkpoint() AS c
WHERE (l.system_identifier, l.timeline_id) IS DISTINCT FROM (s.system_identifier, c.timeline_id)
RETURNING l.ledger_incarnation::text AS ledger_incarnation

-- name: payload
SELECT content, media_type FROM noetl.payload
WHERE tenant_id = :tenant_id::text AND organization_id = :organization_id::text AND sha256 = :sha256::text

-- name: put_payload
-- Equal content put twice is one object, and renewed by the rule that `append.sql` tells.
INSERT INTO noetl.payload (tenant_id, organization_id, sha256, media_type, content)
SELECT :tenant_id::text, :organization_id::text, :sha256::text, :media_type::text, :content::bytea
WHERE NOT EXISTS (
    SELECT 1 FROM noetl.payload AS kept
    WHERE kept.tenant_id = :tenant_id::text AND kept.organization_id = :organization_id::text
      AND kept.sha256 = :sha256::text AND kept.renewed_at > clock_timestamp() - interval '1 hour')
ON CONFLICT (tenant_id, organization_id, sha256) DO UPDATE SET renewed_at = clock_timestamp()

-- name: waiting_commands
-- Only a look: the claim itself is an event, guarded by the shard's fence, so no row lock is held over the work.
SELECT execution_id, command_id, shard_id, tenant_id, organization_id, pool, tool_kind, attempt, session_id,
       body::text AS body, locality
FROM noetl.command
WHERE pool = :pool::text AND session_id IS NULL AND available_at <= clock_timestamp()
  AND (:kinds::text[] IS NULL OR string_to_array(tool_kind, '+') <@ :kinds::text[])
ORDER BY priority DESC, available_at
LIMIT :rows::integer

-- name: release_commands
UPDATE noetl.command SET session_id = NULL, stop = NULL
WHERE session_id IS NOT NULL AND session_id <> ALL (:sessions::bigint[])
RETURNING execution_id

-- name: release_session
UPDATE noetl.command AS c
SET session_id = NULL, stop = NULL,
    attempt = CASE WHEN :attempts::integer[] IS NULL THEN c.attempt ELSE c.attempt - 1 END
WHERE c.session_id = :session_id::bigint
  AND (:executions::bigint[] IS NULL OR EXISTS (
      SELECT 1
      FROM unnest(:executions::bigint[], :commands::text[], :attempts::integer[]) AS t(execution_id, command_id, attempt)
      WHERE t.execution_id = c.execution_id AND t.command_id = c.command_id
        AND (t.attempt IS NULL OR t.attempt = c.attempt)))
RETURNING c.execution_id

-- name: commands_of
SELECT execution_id, command_id, shard_id, tenant_id, organization_id, pool, tool_kind, attempt, session_id,
       body::text AS body, locality
FROM noetl.command WHERE execution_id = :execution_id::bigint ORDER BY command_id

-- name: due_timers
SELECT execution_id, name, shard_id FROM noetl.timer
WHERE due_at <= clock_timestamp() AND (:shards::integer[] IS NULL OR shard_id = ANY (:shards::integer[]))
ORDER BY due_at LIMIT :rows::integer

-- name: next_due
SELECT extract(epoch FROM min(due_at) - clock_timestamp())::float8 AS seconds FROM noetl.timer
WHERE :shards::integer[] IS NULL OR shard_id = ANY (:shards::integer[])

-- name: execution
SELECT execution_id, tenant_id, organization_id, shard_id, path, playbook_digest, status, started_at, ended_at,
       last_step, last_event_id, applied_position, parent_execution_id, version, retry_of,
       quarantine::text AS quarantine
FROM noetl.execution
WHERE execution_id = :execution_id::bigint AND tenant_id = :tenant_id::text
  AND organization_id = :organization_id::text

-- name: executions
SELECT execution_id, tenant_id, organization_id, shard_id, path, playbook_digest, status, started_at, ended_at,
       last_step, last_event_id, applied_position, parent_execution_id, version, retry_of,
       quarantine::text AS quarantine
FROM noetl.execution
WHERE tenant_id = :tenant_id::text AND organization_id = :organization_id::text
  AND execution_id < :before::bigint AND (:status::text IS NULL OR status = :status::text)
ORDER BY execution_id DESC
LIMIT :rows::integer

-- name: open_executions
-- From the streams, which the appending statement keeps, and not from a projection.
SELECT execution_id FROM noetl.stream
WHERE NOT closed AND execution_id >= :first_id::bigint
  AND (:shards::integer[] IS NULL OR shard_id = ANY (:shards::integer[]))
ORDER BY execution_id

-- name: idempotent
SELECT tenant_id, organization_id, idempotency_key, request_digest, execution_id FROM noetl.idempotency
WHERE tenant_id = :tenant_id::text AND organization_id = :organization_id::text
  AND idempotency_key = :idempotency_key::text
